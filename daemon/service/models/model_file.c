#include "model_file.h"
#include "base/suggest.h"

#include <dirent.h>
#include <errno.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_gguf(const char *name)
{
    size_t n = strlen(name);

    return n > 5 && name[0] != '.' && strcmp(name + n - 5, ".gguf") == 0;
}

/* The *.gguf of `dir` nearest to `word`, or with word NULL the first by name. */
static bool pick_gguf(const char *dir, const char *word, char out[PATH_MAX])
{
    size_t best = SIZE_MAX;
    DIR *d = opendir(dir);
    bool found = false;

    for (struct dirent *entry; d && (entry = readdir(d));) {
        if (!is_gguf(entry->d_name))
            continue;
        size_t distance = word ? nearest_distance(word, entry->d_name) : 0;
        bool better = !found || distance < best ||
                      (distance == best && strcmp(entry->d_name, strrchr(out, '/') + 1) < 0);
        if (better && snprintf(out, PATH_MAX, "%s/%s", dir, entry->d_name) < PATH_MAX) {
            best = distance;
            found = true;
        }
    }
    if (d)
        closedir(d);
    return found;
}

static int keep_gguf(const struct dirent *entry)
{
    return is_gguf(entry->d_name);
}

/* The names of the *.gguf of `dir`, as many as have room, and the number of the others. */
static void list_gguf(const char *dir, char *out, size_t room)
{
    struct dirent **entries = NULL;
    int n = scandir(dir, &entries, keep_gguf, alphasort);
    size_t len = 0;
    out[0] = '\0';
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        if (len + strlen(name) + sizeof " and 2147483647 more" > room) {
            snprintf(out + len, room - len, " and %d more", n - i);
            break;
        }
        len += (size_t)snprintf(out + len, room - len, "%s%s", i ? ", " : "", name);
    }
    for (int i = 0; i < n; i++)
        free(entries[i]);
    free(entries);
}

/* share/hearth/models next to the bin directory this process was started from. */
static bool beside_binary(char out[PATH_MAX])
{
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);

    for (int up = 0; n > 0 && up < 2; up++) {
        exe[n] = '\0';
        char *slash = strrchr(exe, '/');
        n = slash ? slash - exe : 0;
    }
    if (n <= 0)
        return false;
    exe[n] = '\0';
    return snprintf(out, PATH_MAX, "%s/share/hearth/models", exe) < PATH_MAX;
}

static int find_installed(char out[PATH_MAX], struct error *err)
{
    char beside[PATH_MAX];
    bool have_beside = beside_binary(beside);

    if (pick_gguf(HEARTH_MODEL_DIR, NULL, out) || (have_beside && pick_gguf(beside, NULL, out)))
        return 0;
    return error_set(err, -ENOENT,
                     "no model given (--model FILE, or model = FILE in the configuration) and no .gguf in %s",
                     HEARTH_MODEL_DIR);
}

/* Words for a path that is not there: the missing directory, or the file that may have been meant. */
static int missing(const char *path, struct error *err)
{
    char dir[PATH_MAX], meant[PATH_MAX];
    const char *slash = strrchr(path, '/');
    struct stat st;

    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    if (slash == path)
        strcpy(dir, "/");
    if (stat(dir, &st) < 0)
        return error_set(err, -ENOENT, "model %s: directory %s does not exist", path, dir);
    if (pick_gguf(dir, slash ? slash + 1 : path, meant))
        return error_set(err, -ENOENT, "model %s: no such file; the nearest name is %s", path,
                         slash ? meant : meant + 2);
    return error_set(err, -ENOENT, "model %s: no such file, and no .gguf in %s", path, dir);
}

static int unreadable(const char *path, int code, struct error *err)
{
    struct passwd entry, *user = NULL; /* whom access() asks for */
    char room[2048];

    getpwuid_r(getuid(), &entry, room, sizeof room, &user);
    if (code != EACCES)
        return error_set(err, -EACCES, "model %s: %s", path, strerror(code));
    if (!user)
        return error_set(err, -EACCES, "model %s: %s: user %u cannot read it", path, strerror(code),
                         (unsigned)getuid());
    return error_set(err, -EACCES, "model %s: %s: user %s cannot read it", path, strerror(code),
                     user->pw_name);
}

int model_file_find(char out[PATH_MAX], const char *model, struct error *err)
{
    struct stat st;

    if (model[0] == '\0') {
        int rc = find_installed(out, err);
        if (rc < 0)
            return rc;
    } else if (snprintf(out, PATH_MAX, "%s", model) >= PATH_MAX) {
        return error_set(err, -ENOENT, "model path of %zu bytes is too long", strlen(model));
    }
    if (stat(out, &st) < 0)
        return errno == ENOENT || errno == ENOTDIR ? missing(out, err) : unreadable(out, errno, err);
    if (S_ISDIR(st.st_mode)) {
        char names[200];
        list_gguf(out, names, sizeof names);
        return error_set(err, -EISDIR, "model %s is a directory%s%s%s", out, names[0] ? "; it contains " : "",
                         names, names[0] ? " (models = DIR serves all that a directory has)" : "");
    }
    if (access(out, R_OK) < 0)
        return unreadable(out, errno, err);
    return 0;
}

bool model_file_is_below(const char *dir, const char *path)
{
    size_t n = strlen(dir);

    if (n == 1) /* the root */
        return true;
    return n && strncmp(path, dir, n) == 0 && path[n] == '/';
}

int model_file_below(char out[PATH_MAX], const char *dir, const char *word, struct error *err)
{
    char asked[PATH_MAX], meant[PATH_MAX];
    struct stat st;
    int n = word[0] == '/' ? snprintf(asked, sizeof asked, "%s", word)
                           : snprintf(asked, sizeof asked, "%s/%s", dir, word);

    if (!word[0] || n >= PATH_MAX || !realpath(asked, out) || !model_file_is_below(dir, out) ||
        stat(out, &st) < 0 || !S_ISREG(st.st_mode)) {
        bool near = dir[0] && pick_gguf(dir, word, meant) && strcmp(strrchr(meant, '/') + 1, word) != 0;
        return error_set(err, -ENOENT, "no model %.200s below %s%s%s", word, dir[0] ? dir : "model_dir",
                         near ? "; the nearest name is " : "", near ? strrchr(meant, '/') + 1 : "");
    }
    if (access(out, R_OK) < 0)
        return unreadable(out, errno, err);
    return 0;
}
