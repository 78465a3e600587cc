/* gguf_parts.c - opens a model, which may be split into files NAME-00001-of-00003.gguf and so on: finds,
 * checks and joins the parts. Each says its number from 0 (split.no), the number of parts (split.count) and
 * of all tensors (split.tensors.count); the first has the model's keys. */
#include "gguf_private.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_PARTS 512 /* each is an open file */
#define TAIL      "-00001-of-00000.gguf"
#define TAIL_SIZE (sizeof TAIL - 1)

struct split {
    uint32_t no, count, n_tensors;
};

/* The length of NAME in NAME-00002-of-00003.gguf, and the numbers; 0 for other names. */
static size_t name_of(const char *path, unsigned *part, unsigned *count)
{
    size_t n = strlen(path);
    int end = 0;
    if (n <= TAIL_SIZE || sscanf(path + n - TAIL_SIZE, "-%5u-of-%5u.gguf%n", part, count, &end) != 2 ||
        end != (int)TAIL_SIZE)
        return 0;
    return n - TAIL_SIZE;
}

static int read_key(const struct gguf *g, const char *key, uint32_t *out, struct error *err)
{
    int rc = gguf_get_u32(g, key, out, err);
    if (rc == -ENOENT)
        return error_set(err, -EBADMSG, "%s: a part of a split model, but it has no %s", gguf_path(g), key);
    return rc;
}

/* count 1: not split. */
static int read_split(const struct gguf *g, struct split *out, struct error *err)
{
    unsigned part, count = 1;
    *out = (struct split){.count = 1};
    int rc = gguf_get_u32(g, "split.count", &out->count, err);
    if (rc < 0 && rc != -ENOENT)
        return rc;
    (void)name_of(gguf_path(g), &part, &count);
    if (rc == -ENOENT && count > 1)
        return error_set(err, -EBADMSG, "%s: named as one of %u parts, but it has no split.count",
                         gguf_path(g), count);
    if (out->count <= 1)
        return 0;
    rc = read_key(g, "split.no", &out->no, err);
    return rc < 0 ? rc : read_key(g, "split.tensors.count", &out->n_tensors, err);
}

static void part_path(const struct gguf *g, uint32_t no, uint32_t count, char out[PATH_MAX])
{
    unsigned part, of;
    int n = (int)name_of(gguf_path(g), &part, &of);
    snprintf(out, PATH_MAX, "%.*s-%05u-of-%05u.gguf", n, gguf_path(g), no + 1, count);
}

/* Names the parts that are not there, as many as fit. */
static int check_present(const struct gguf *g, uint32_t count, struct error *err)
{
    char path[PATH_MAX], first[PATH_MAX], names[200] = "";
    uint32_t n_missing = 0;
    size_t n = 0;
    for (uint32_t no = 1; no < count; no++) {
        part_path(g, no, count, path);
        const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
        if (access(path, F_OK) == 0)
            continue;
        if (n_missing++ == 0)
            (void)snprintf(first, sizeof first, "%s", path);
        if (n + strlen(name) + 6 < sizeof names)
            n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", name);
    }
    if (!n_missing)
        return 0;
    return error_set(err, -ENOENT, "%u of the model's %u parts missing: %s", n_missing, count,
                     names[0] ? names : first);
}

static int check_first(const struct gguf *g, const struct split *s, struct error *err)
{
    unsigned part = 0, count = 0;
    char first[PATH_MAX];
    if (s->count > MAX_PARTS || s->no >= s->count)
        return error_set(err, -EBADMSG, "%s: part %u of %u; at most %d parts are supported", gguf_path(g),
                         s->no + 1, s->count, MAX_PARTS);
    if (!name_of(gguf_path(g), &part, &count) || part != s->no + 1 || count != s->count)
        return error_set(err, -EBADMSG, "%s: part %u of %u, but its name does not end in -%05u-of-%05u.gguf",
                         gguf_path(g), s->no + 1, s->count, s->no + 1, s->count);
    if (s->no == 0)
        return 0;
    part_path(g, 0, s->count, first);
    return error_set(err, -EINVAL, "part %u of a split model; name the first one, %s", part, first);
}

static int open_part(struct gguf **out, const struct gguf *g, const struct split *whole, uint32_t no,
                     struct error *err)
{
    char path[PATH_MAX];
    struct split s;
    part_path(g, no, whole->count, path);
    int rc = gguf_open_one(out, path, NULL, 0, err);
    if (rc < 0 || (rc = read_split(*out, &s, err)) < 0)
        return rc;
    if (s.no == no && s.count == whole->count && s.n_tensors == whole->n_tensors)
        return 0;
    return error_set(err, -EBADMSG,
                     "%s: says part %u of %u with %u tensors in all, expected part %u of %u with %u", path,
                     s.no + 1, s.count, s.n_tensors, no + 1, whole->count, whole->n_tensors);
}

static int join(struct gguf *g, struct error *err)
{
    struct split s;
    int rc = read_split(g, &s, err);
    if (rc < 0 || s.count <= 1)
        return rc;
    if ((rc = check_first(g, &s, err)) < 0 || (rc = check_present(g, s.count, err)) < 0)
        return rc;
    struct gguf **parts = calloc(s.count, sizeof *parts);
    uint32_t n = 0;
    if (!parts)
        return error_set(err, -ENOMEM, "%s: out of memory", gguf_path(g));
    for (; n + 1 < s.count && rc == 0; n += parts[n] != NULL)
        rc = open_part(&parts[n], g, &s, n + 1, err);
    int joined = gguf_adopt(g, parts, n, rc < 0 ? NULL : err);
    if (rc < 0 || joined < 0)
        return rc < 0 ? rc : joined;
    if (gguf_n_tensors(g) != s.n_tensors)
        return error_set(err, -EBADMSG, "%s: the parts have %zu tensors, split.tensors.count is %u",
                         gguf_path(g), gguf_n_tensors(g), s.n_tensors);
    return 0;
}

static int refuse_parts(const struct gguf *g, struct error *err)
{
    unsigned part = 0, named = 1;
    uint32_t count = 1;
    int rc = gguf_get_u32(g, "split.count", &count, err);
    if (rc < 0 && rc != -ENOENT)
        return rc;
    if (rc == -ENOENT && name_of(gguf_path(g), &part, &named))
        count = named;
    return count <= 1 ? 0
                      : error_set(err, -ENOTSUP, "%s: one of %u parts of a split model", gguf_path(g), count);
}

int gguf_open(struct gguf **out, const char *path, struct error *err)
{
    struct gguf *g;
    int rc = gguf_open_one(&g, path, NULL, 0, err);
    if (rc == 0 && (rc = join(g, err)) < 0)
        gguf_close(g);
    if (rc == 0)
        *out = g;
    return rc;
}

int gguf_open_memory(struct gguf **out, const char *path, const void *bytes, size_t size, struct error *err)
{
    struct gguf *g;
    int rc = gguf_open_one(&g, path, bytes ? bytes : "", size, err);
    if (rc == 0 && (rc = refuse_parts(g, err)) < 0)
        gguf_close(g);
    if (rc == 0)
        *out = g;
    return rc;
}
