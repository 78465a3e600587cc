#include "model_dir.h"
#include "base/log.h"
#include "base/utf8.h"
#include "model_file.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SUFFIX ".gguf"
#define PART   "-00001-of-00001" /* the form of a part's number */

static bool is_digits(const char *s, size_t n)
{
    return strspn(s, "0123456789") >= n;
}

/* The part's number at the end of a stem of n bytes; 0: it is no part. */
static unsigned part_of(const char *stem, size_t n)
{
    const char *at = stem + n - (sizeof PART - 1);
    if (n <= sizeof PART - 1 || *at != '-' || !is_digits(at + 1, 5) || memcmp(at + 6, "-of-", 4) != 0 ||
        !is_digits(at + 10, 5))
        return 0;
    return (unsigned)strtoul(at + 1, NULL, 10);
}

/* The length of the model's name in a file's; 0: the file is no model, or a later part of one. */
static size_t name_length(const char *file)
{
    size_t n = strlen(file), suffix = strlen(SUFFIX);
    if (file[0] == '.' || n <= suffix || strcmp(file + n - suffix, SUFFIX) != 0)
        return 0;
    n -= suffix;
    unsigned part = part_of(file, n);
    return part == 1 ? n - (sizeof PART - 1) : part ? 0 : n;
}

static struct model_dir_entry *add_entry(struct model_dir *d, const char *file, size_t name_len)
{
    const char *slash = strrchr(file, '/');
    struct model_dir_entry *more = realloc(d->entries, ((size_t)d->n + 1) * sizeof *more);
    if (!more)
        return NULL;
    d->entries = more;
    more[d->n] =
        (struct model_dir_entry){.name = strndup(slash ? slash + 1 : file, name_len), .file = strdup(file)};
    if (!more[d->n].name || !more[d->n].file) {
        free(more[d->n].name);
        free(more[d->n].file);
        return NULL;
    }
    return &more[d->n++];
}

static void set_file(struct model_dir_entry *e, const struct stat *st)
{
    e->bytes = (uint64_t)st->st_size;
    e->modified = st->st_mtime;
}

void model_dir_look(struct model_dir *d, int number)
{
    struct stat st;
    if (stat(d->entries[number].file, &st) == 0)
        set_file(&d->entries[number], &st);
}

static int number_of_file(const struct model_dir *d, const char *file)
{
    for (int i = 0; i < d->n; i++)
        if (!strcmp(d->entries[i].file, file))
            return i;
    return -1;
}

/* Its name is that of the file, whatever link leads to it. */
static void take_file(struct model_dir *d, const char *file)
{
    const char *slash = strrchr(file, '/');
    size_t name_len = name_length(slash ? slash + 1 : file);
    int i = number_of_file(d, file);
    struct stat st;
    if (!name_len || stat(file, &st) < 0)
        return;
    struct model_dir_entry *e = i < 0 ? add_entry(d, file, name_len) : &d->entries[i];
    if (!e)
        return;
    e->present = true;
    set_file(e, &st);
}

/* Of two files with one name the one that was added has it, else the first by path. */
static bool has_name_of(const struct model_dir_entry *a, const struct model_dir_entry *b)
{
    return a != b && a->present && !strcmp(a->name, b->name) &&
           (a->added || (!b->added && strcmp(a->file, b->file) < 0));
}

static const char *why_hidden(const struct model_dir *d, const struct model_dir_entry *e)
{
    if (utf8_valid(e->name, strlen(e->name)) != strlen(e->name))
        return "its name is no UTF-8";
    for (int i = 0; i < d->n; i++)
        if (has_name_of(&d->entries[i], e))
            return "another file has its name";
    return NULL;
}

/* Hides what cannot be named. */
static void hide(struct model_dir *d)
{
    for (int i = 0; i < d->n; i++) {
        struct model_dir_entry *e = &d->entries[i];
        const char *why = e->present ? why_hidden(d, e) : NULL;
        if (why && !e->warned)
            log_warn("%s is left out: %s", e->file, why);
        if (why)
            e->warned = true;
        e->present &= !why;
    }
}

void model_dir_read(struct model_dir *d)
{
    char file[PATH_MAX];
    DIR *dir = opendir(d->path);
    if (!dir)
        return;
    for (int i = 0; i < d->n; i++) /* one that was added may lie elsewhere */
        d->entries[i].present = d->entries[i].added && access(d->entries[i].file, F_OK) == 0;
    for (struct dirent *entry; (entry = readdir(dir));)
        if (name_length(entry->d_name) && model_file_below(file, d->path, entry->d_name, NULL) == 0)
            take_file(d, file);
    closedir(dir);
    hide(d);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct model_dir_entry *)a)->name, ((const struct model_dir_entry *)b)->name);
}

int model_dir_open(struct model_dir *d, const char *path, struct error *err)
{
    char resolved[PATH_MAX];
    *d = (struct model_dir){0};
    DIR *dir = realpath(path, resolved) ? opendir(resolved) : NULL;
    if (!dir)
        return error_set(err, -errno, "models %s: %s", path, strerror(errno));
    closedir(dir);
    d->path = strdup(resolved);
    if (!d->path)
        return error_set(err, -ENOMEM, "models %s: out of memory", path);
    model_dir_read(d);
    if (d->n)
        qsort(d->entries, (size_t)d->n, sizeof *d->entries,
              by_name); /* so do numbers, until files are added */
    return 0;
}

void model_dir_free(struct model_dir *d)
{
    for (int i = 0; i < d->n; i++) {
        free(d->entries[i].name);
        free(d->entries[i].file);
    }
    free(d->entries);
    free(d->path);
    *d = (struct model_dir){0};
}

int model_dir_add(struct model_dir *d, const char *file)
{
    char resolved[PATH_MAX];
    if (realpath(file, resolved))
        file = resolved;
    int i = number_of_file(d, file);
    if (i < 0) {
        const char *slash = strrchr(file, '/'), *base = slash ? slash + 1 : file;
        if (!add_entry(d, file, name_length(base) ? name_length(base) : strlen(base)))
            return -1;
        i = d->n - 1;
        model_dir_look(d, i);
    }
    d->entries[i].present = d->entries[i].added = true;
    hide(d);
    return i;
}

static bool ends_in(const char *s, const char *suffix)
{
    size_t n = strlen(s), k = strlen(suffix);
    return n > k && !strcmp(s + n - k, suffix);
}

int model_dir_find(const struct model_dir *d, const char *name)
{
    static const char *const suffixes[] = {":latest", SUFFIX};
    size_t n = strlen(name);
    for (int i = 0; i < d->n; i++)
        if (d->entries[i].present && !strcmp(d->entries[i].name, name))
            return i;
    for (size_t k = 0; k < sizeof suffixes / sizeof *suffixes; k++) {
        char stem[256];
        if (!ends_in(name, suffixes[k]) || n >= sizeof stem)
            continue;
        snprintf(stem, sizeof stem, "%.*s", (int)(n - strlen(suffixes[k])), name);
        return model_dir_find(d, stem);
    }
    return -1;
}

/* The next present entry by name after number `i`, or the first where it is -1. */
static int next_by_name(const struct model_dir *d, int i)
{
    int best = -1;
    for (int k = 0; k < d->n; k++) {
        const struct model_dir_entry *e = &d->entries[k];
        if (!e->present || (i >= 0 && strcmp(e->name, d->entries[i].name) <= 0))
            continue;
        if (best < 0 || strcmp(e->name, d->entries[best].name) < 0)
            best = k;
    }
    return best;
}

int model_dir_first(const struct model_dir *d)
{
    return next_by_name(d, -1);
}

void model_dir_names(const struct model_dir *d, char *out, size_t room)
{
    size_t n = 0;
    int left = 0;
    for (int i = 0; i < d->n; i++)
        left += d->entries[i].present;
    out[0] = '\0';
    for (int i = model_dir_first(d); i >= 0; i = next_by_name(d, i), left--) {
        size_t len = strlen(d->entries[i].name);
        if (n + len + 24 > room) { /* room for the words below */
            snprintf(out + n, room - n, " and %d more", left);
            return;
        }
        n += (size_t)snprintf(out + n, room - n, "%s%s", n ? ", " : "", d->entries[i].name);
    }
}
