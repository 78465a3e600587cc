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

#define SUFFIX    ".gguf"
#define PART      "-00001-of-00001" /* the form of a part's number */
#define MOST_TOLD 8                 /* files that are left out, each in a line of the log */
#define TICK_MS   100               /* more than the resolution of the kernel's times of files */

static bool is_digits(const char *s, size_t n)
{
    return strspn(s, "0123456789") >= n;
}

/* The part's number at the end of a stem of n bytes; 0: it is no part. */
static unsigned part_of(const char *stem, size_t n)
{
    if (n <= sizeof PART - 1)
        return 0;
    const char *at = stem + n - (sizeof PART - 1);
    if (*at != '-' || !is_digits(at + 1, 5) || memcmp(at + 6, "-of-", 4) != 0 || !is_digits(at + 10, 5))
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

/* Room for one more entry and its numbers, by powers of two. */
static bool has_room(struct model_dir *d)
{
    size_t n = (size_t)d->n;
    if (n & (n - 1) || n == 1)
        return true;
    size_t room = n ? 2 * n : 2;
    struct model_dir_entry *entries = realloc(d->entries, room * sizeof *entries);
    d->entries = entries ? entries : d->entries;
    int *by_file = realloc(d->by_file, room * sizeof *by_file);
    d->by_file = by_file ? by_file : d->by_file;
    int *by_name = realloc(d->by_name, room * sizeof *by_name);
    d->by_name = by_name ? by_name : d->by_name;
    return entries && by_file && by_name;
}

static struct model_dir_entry *add_entry(struct model_dir *d, const char *file, size_t name_len)
{
    const char *slash = strrchr(file, '/');
    if (!has_room(d))
        return NULL;
    struct model_dir_entry *e = &d->entries[d->n];
    *e = (struct model_dir_entry){.name = strndup(slash ? slash + 1 : file, name_len), .file = strdup(file)};
    if (!e->name || !e->file) {
        free(e->name);
        free(e->file);
        return NULL;
    }
    d->by_file[d->n] = d->n;
    d->n++;
    return e;
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

/* ---- reading a directory ---- */

/* Resolves the name of a model; NULL, or why it is left out. */
static const char *resolve(const char *path, const char *name, char file[PATH_MAX], struct stat *st)
{
    char asked[PATH_MAX];
    if (snprintf(asked, sizeof asked, "%s/%s", path, name) >= (int)sizeof asked)
        return strerror(ENAMETOOLONG);
    if (!realpath(asked, file) || stat(file, st) < 0)
        return strerror(errno);
    if (!model_file_is_below(path, file))
        return "a link leads out of the directory";
    if (!S_ISREG(st->st_mode))
        return "it is not a regular file";
    if (!name_length(strrchr(file, '/') + 1))
        return "a link leads to a file without its name";
    return access(file, R_OK) < 0 ? strerror(errno) : NULL;
}

static void scan_file(struct model_dir_scan *s, const char *path, const char *name)
{
    char file[PATH_MAX];
    struct stat st;
    const char *why = resolve(path, name, file, &st);
    if (why && s->tells && s->n_left_out++ < MOST_TOLD)
        log_warn("%s/%s is left out: %s", path, name, why);
    if (why)
        return;
    if (!(s->n & (s->n - 1))) { /* a power of two: there is no more room */
        struct model_dir_file *more = realloc(s->files, 2 * ((size_t)s->n + 1) * sizeof *more);
        s->files = more ? more : s->files;
        s->whole &= more != NULL;
        if (!more)
            return;
    }
    struct model_dir_file *f = &s->files[s->n];
    *f = (struct model_dir_file){strdup(file), (uint64_t)st.st_size, st.st_mtime};
    s->whole &= f->file != NULL;
    s->n += f->file != NULL;
}

/* A change in the same tick of the file system's clock as the reading could go unseen: then it is read again
 * the next time. */
static struct timespec settled(struct timespec changed)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t age_ms =
        (int64_t)(now.tv_sec - changed.tv_sec) * 1000 + (now.tv_nsec - changed.tv_nsec) / 1000000;
    return age_ms > TICK_MS ? changed : (struct timespec){0};
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct model_dir_file *)a)->file, ((const struct model_dir_file *)b)->file);
}

static void scan(struct model_dir_scan *s, const char *path, int most)
{
    struct stat st;
    DIR *dir = opendir(path);
    if (!dir)
        return;
    if (fstat(dirfd(dir), &st) == 0)
        s->changed = settled(st.st_mtim);
    s->whole = true;
    for (const struct dirent *entry; s->whole && (entry = readdir(dir));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        s->whole = most-- > 0;
        if (s->whole && name_length(entry->d_name))
            scan_file(s, path, entry->d_name);
    }
    closedir(dir);
    if (s->n)
        qsort(s->files, (size_t)s->n, sizeof *s->files, by_path);
}

void model_dir_scan(struct model_dir_scan *s, const char *path, int most)
{
    *s = (struct model_dir_scan){0};
    scan(s, path, most);
}

void model_dir_scan_free(struct model_dir_scan *s)
{
    for (int i = 0; i < s->n; i++)
        free(s->files[i].file);
    free(s->files);
    *s = (struct model_dir_scan){0};
}

bool model_dir_has_changed(const struct model_dir *d)
{
    struct stat st;
    return !d->changed.tv_sec || stat(d->path, &st) < 0 || st.st_mtim.tv_sec != d->changed.tv_sec ||
           st.st_mtim.tv_nsec != d->changed.tv_nsec;
}

/* ---- the list ---- */

static int order_by_file(const void *a, const void *b, void *dir)
{
    const struct model_dir_entry *e = ((const struct model_dir *)dir)->entries;
    return strcmp(e[*(const int *)a].file, e[*(const int *)b].file);
}

/* Orders files by name. Two files with one name: the one that was added comes first and keeps the name, else
 * the first by path. */
static int order_by_name(const void *a, const void *b, void *dir)
{
    const struct model_dir_entry *x = &((const struct model_dir *)dir)->entries[*(const int *)a],
                                 *y = &((const struct model_dir *)dir)->entries[*(const int *)b];
    int order = strcmp(x->name, y->name);
    if (order == 0)
        order = (int)y->added - (int)x->added;
    return order ? order : strcmp(x->file, y->file);
}

/* Puts n numbers in order, of which the first n_sorted are: only the others are sorted. */
static void sort(struct model_dir *d, int *numbers, int n_sorted, int n,
                 int (*order)(const void *a, const void *b, void *dir))
{
    int n_new = n - n_sorted, *new = NULL;
    if (n_new && n_sorted)
        new = malloc((size_t)n_new * sizeof *new);
    if (n_new)
        qsort_r(numbers + n_sorted, (size_t)n_new, sizeof *numbers, order, d);
    if (new) { /* from the end on, where there is room */
        memcpy(new, numbers + n_sorted, (size_t)n_new * sizeof *new);
        while (n_new > 0) {
            bool old = n_sorted > 0 && order(&numbers[n_sorted - 1], &new[n_new - 1], d) > 0;
            numbers[--n] = old ? numbers[--n_sorted] : new[--n_new];
        }
    } else if (n_new && n_sorted) { /* no memory */
        qsort_r(numbers, (size_t)n, sizeof *numbers, order, d);
    }
    free(new);
}

static void hide(struct model_dir_entry *e, const char *why)
{
    if (!e->warned)
        log_warn("%s is left out: %s", e->file, why);
    e->warned = true;
    e->present = e->listed = false;
}

/* Keeps of by_name the first n that can be named. */
static void hide_unnamed(struct model_dir *d, int n)
{
    d->n_present = 0;
    for (int i = 0; i < n; i++) {
        struct model_dir_entry *e = &d->entries[d->by_name[i]];
        const struct model_dir_entry *last = d->n_present ? &d->entries[d->by_name[d->n_present - 1]] : NULL;
        e->listed = true;
        if (utf8_valid(e->name, strlen(e->name)) != strlen(e->name))
            hide(e, "its name is no UTF-8");
        else if (last && !strcmp(last->name, e->name))
            hide(e, "another file has its name");
        else
            d->by_name[d->n_present++] = d->by_name[i];
    }
}

/* Brings by_name up to date with what is present. Names that stay are in order already. */
static void list_names(struct model_dir *d)
{
    int n = 0, n_before = d->n_present;
    for (int i = 0; i < d->n_present; i++) {
        int number = d->by_name[i];
        struct model_dir_entry *e = &d->entries[number];
        if ((e->listed = e->present))
            d->by_name[n++] = number;
    }
    int n_stay = n;
    for (int i = 0; i < d->n; i++)
        if (d->entries[i].present && !d->entries[i].listed)
            d->by_name[n++] = i;
    if (n == n_stay && n == n_before)
        return;
    sort(d, d->by_name, n_stay, n, order_by_name);
    hide_unnamed(d, n);
}

/* The same where the order of names, or the numbers, are others than before. */
static void relist(struct model_dir *d)
{
    for (int i = 0; i < d->n; i++)
        d->entries[i].listed = false;
    d->n_present = 0;
    list_names(d);
}

/* Its name is that of the file, whatever link leads to it. */
static void take_file(struct model_dir *d, const struct model_dir_file *f, struct model_dir_entry *e)
{
    if (!e)
        e = add_entry(d, f->file, name_length(strrchr(f->file, '/') + 1));
    if (!e)
        return;
    e->present = true;
    e->bytes = f->bytes;
    e->modified = f->modified;
}

/* Both are in order of the files. Two links may lead to one file. */
static void take_files(struct model_dir *d, struct model_dir_scan *s)
{
    int n_known = d->n, at = 0;
    for (int i = 0; i < s->n; i++) {
        const struct model_dir_file *f = &s->files[i];
        int order = -1;
        if (i && by_path(f - 1, f) == 0)
            continue;
        while (at < n_known && (order = strcmp(d->entries[d->by_file[at]].file, f->file)) < 0)
            at++;
        take_file(d, f, at < n_known && order == 0 ? &d->entries[d->by_file[at]] : NULL);
    }
    sort(d, d->by_file, n_known, d->n, order_by_file);
    list_names(d);
    model_dir_scan_free(s);
}

void model_dir_take(struct model_dir *d, struct model_dir_scan *s)
{
    if (!s->whole) {
        model_dir_scan_free(s);
        return;
    }
    for (int i = 0; i < d->n; i++) /* one that was added may lie elsewhere */
        d->entries[i].present = d->entries[i].added && access(d->entries[i].file, F_OK) == 0;
    d->changed = s->changed;
    take_files(d, s);
}

void model_dir_read(struct model_dir *d)
{
    struct model_dir_scan s;
    model_dir_scan(&s, d->path, INT_MAX);
    model_dir_take(d, &s);
}

void model_dir_look_for(struct model_dir *d, const char *name)
{
    struct model_dir_scan s = {.whole = true};
    char file[NAME_MAX + 1];
    if (strchr(name, '/'))
        return;
    if (name_length(name))
        scan_file(&s, d->path, name);
    if (snprintf(file, sizeof file, "%s" SUFFIX, name) < (int)sizeof file && name_length(file))
        scan_file(&s, d->path, file);
    if (s.n > 1)
        qsort(s.files, (size_t)s.n, sizeof *s.files, by_path);
    if (s.n)
        take_files(d, &s);
    model_dir_scan_free(&s);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct model_dir_entry *)a)->name, ((const struct model_dir_entry *)b)->name);
}

/* So numbers are in the order of lists, until files are added. */
static void number_by_name(struct model_dir *d)
{
    if (d->n)
        qsort(d->entries, (size_t)d->n, sizeof *d->entries, by_name);
    for (int i = 0; i < d->n; i++)
        d->by_file[i] = i;
    sort(d, d->by_file, 0, d->n, order_by_file);
    relist(d);
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
    struct model_dir_scan s = {.tells = true};
    scan(&s, resolved, INT_MAX);
    if (s.n_left_out > MOST_TOLD)
        log_warn("%d more are left out", s.n_left_out - MOST_TOLD);
    model_dir_take(d, &s);
    number_by_name(d);
    return 0;
}

void model_dir_free(struct model_dir *d)
{
    for (int i = 0; i < d->n; i++) {
        free(d->entries[i].name);
        free(d->entries[i].file);
    }
    free(d->entries);
    free(d->by_file);
    free(d->by_name);
    free(d->path);
    *d = (struct model_dir){0};
}

static int number_of_file(const struct model_dir *d, const char *file)
{
    for (int i = 0; i < d->n; i++)
        if (!strcmp(d->entries[i].file, file))
            return i;
    return -1;
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
    sort(d, d->by_file, d->n - 1, d->n, order_by_file);
    relist(d);
    return i;
}

static bool ends_in(const char *s, const char *suffix)
{
    size_t n = strlen(s), k = strlen(suffix);
    return n > k && !strcmp(s + n - k, suffix);
}

static int number_named(const struct model_dir *d, const char *name)
{
    int from = 0, to = d->n_present;
    while (from < to) {
        int at = from + (to - from) / 2, order = strcmp(name, d->entries[d->by_name[at]].name);
        if (order == 0)
            return d->by_name[at];
        from = order > 0 ? at + 1 : from;
        to = order > 0 ? to : at;
    }
    return -1;
}

int model_dir_find(const struct model_dir *d, const char *name)
{
    static const char *const suffixes[] = {":latest", SUFFIX};
    size_t n = strlen(name);
    int found = number_named(d, name);
    for (size_t k = 0; found < 0 && k < sizeof suffixes / sizeof *suffixes; k++) {
        char stem[256];
        if (!ends_in(name, suffixes[k]) || n >= sizeof stem)
            continue;
        snprintf(stem, sizeof stem, "%.*s", (int)(n - strlen(suffixes[k])), name);
        return model_dir_find(d, stem);
    }
    return found;
}

int model_dir_first(const struct model_dir *d)
{
    return d->n_present ? d->by_name[0] : -1;
}

int model_dir_after(const struct model_dir *d, int number)
{
    for (int i = 0; i < d->n_present; i++)
        if (strcmp(d->entries[d->by_name[i]].name, d->entries[number].name) > 0)
            return d->by_name[i];
    return -1;
}

void model_dir_names(const struct model_dir *d, char *out, size_t room)
{
    size_t n = 0;
    out[0] = '\0';
    for (int i = 0; i < d->n_present; i++) {
        const char *name = d->entries[d->by_name[i]].name;
        if (n + strlen(name) + 24 > room) { /* room for the words below */
            snprintf(out + n, room - n, " and %d more", d->n_present - i);
            return;
        }
        n += (size_t)snprintf(out + n, room - n, "%s%s", n ? ", " : "", name);
    }
}
