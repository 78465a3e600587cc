#include "prefix_file.h"
#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static const char magic[8] = "HEARTHKV";
_Static_assert(sizeof(struct prefix_file_header) == 24 + sizeof(struct kv_page_name) + 24, "no padding");
_Static_assert(sizeof(struct kv_page_name) == 40 + 4 * KV_PAGE_TOKENS, "no padding");

/* ---- names ---- */

void prefix_file_name(char out[PREFIX_FILE_NAME], uint64_t place, struct kv_key key)
{
    snprintf(out, PREFIX_FILE_NAME, "%016" PRIx64 "-%016" PRIx64 "%016" PRIx64 ".kv", place, key.a, key.b);
}

bool prefix_file_parse_name(const char *name, uint64_t *place, struct kv_key *key)
{
    char again[PREFIX_FILE_NAME];
    if (sscanf(name, "%16" SCNx64 "-%16" SCNx64 "%16" SCNx64, place, &key->a, &key->b) != 3)
        return false;
    prefix_file_name(again, *place, *key);
    return strcmp(name, again) == 0;
}

size_t prefix_file_size(size_t n_bytes)
{
    return sizeof(struct prefix_file_header) + n_bytes;
}

/* ---- writing ---- */

static void set_header(struct prefix_file_header *h, const struct prefix_file *f)
{
    *h = (struct prefix_file_header){.version = PREFIX_FILE_VERSION,
                                     .n_ids = KV_PAGE_TOKENS,
                                     .place = f->place,
                                     .name = *f->name,
                                     .n_bytes = f->n_bytes,
                                     .bytes_sum = hash_bytes(f->place, f->bytes, f->n_bytes)};
    memcpy(h->magic, magic, sizeof magic);
    h->header_sum = hash_bytes(0, h, offsetof(struct prefix_file_header, header_sum));
}

static int write_all(int fd, const void *data, size_t n)
{
    const char *p = data;
    while (n > 0) {
        ssize_t wrote = write(fd, p, n);
        if (wrote < 0 && errno != EINTR)
            return -errno;
        if (wrote == 0)
            return -ENOSPC;
        p += wrote > 0 ? wrote : 0;
        n -= wrote > 0 ? (size_t)wrote : 0;
    }
    return 0;
}

static int write_into(int fd, const struct prefix_file *f, uint64_t stamp_ns)
{
    struct prefix_file_header h;
    struct timespec stamp = {(time_t)(stamp_ns / 1000000000u), (long)(stamp_ns % 1000000000u)};
    set_header(&h, f);
    int rc = write_all(fd, &h, sizeof h);
    if (rc == 0)
        rc = write_all(fd, f->bytes, f->n_bytes);
    if (rc == 0 && fdatasync(fd) < 0)
        rc = -errno;
    if (rc == 0 && futimens(fd, (struct timespec[]){stamp, stamp}) < 0)
        rc = -errno;
    return rc;
}

int prefix_file_write(int dir, const struct prefix_file *f, uint64_t serial, uint64_t stamp_ns,
                      struct error *err)
{
    char name[PREFIX_FILE_NAME], temporary[PREFIX_FILE_NAME];
    prefix_file_name(name, f->place, f->name->key);
    snprintf(temporary, sizeof temporary, PREFIX_FILE_TEMPORARY "%d-%016" PRIx64, (int)getpid(), serial);
    int fd = openat(dir, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return error_set(err, -errno, "%s: %s", temporary, strerror(errno));
    flock(fd, LOCK_EX | LOCK_NB); /* a file system without locks: a sweep may remove it */
    int rc = write_into(fd, f, stamp_ns);
    if (rc == 0 && renameat(dir, temporary, dir, name) < 0)
        rc = -errno;
    if (rc < 0)
        unlinkat(dir, temporary, 0);
    close(fd);
    return rc < 0 ? error_set(err, rc, "%s: %s", name, strerror(-rc)) : 0;
}

void prefix_file_sweep(int dir, const char *name)
{
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        unlinkat(dir, name, 0);
    close(fd);
}

/* ---- reading ---- */

static int check_file(int fd, const struct prefix_file *f, struct error *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return error_set(err, -errno, "%s", strerror(errno));
    if (!S_ISREG(st.st_mode) || st.st_uid != geteuid())
        return error_set(err, -EPERM, "not a regular file of this user");
    if ((uint64_t)st.st_size != prefix_file_size(f->n_bytes))
        return error_set(err, -EBADMSG, "%lld bytes, %zu expected", (long long)st.st_size,
                         prefix_file_size(f->n_bytes));
    return 0;
}

static int read_parts(int fd, struct prefix_file_header *h, const struct prefix_file *f, struct error *err)
{
    size_t total = prefix_file_size(f->n_bytes), at = 0;
    while (at < total) {
        size_t head = at < sizeof *h ? sizeof *h - at : 0, body = at + head - sizeof *h;
        struct iovec parts[] = {{(char *)h + sizeof *h - head, head},
                                {(char *)f->bytes + body, f->n_bytes - body}};
        ssize_t n = preadv(fd, parts, 2, (off_t)at);
        if (n < 0 && errno != EINTR)
            return error_set(err, -errno, "%s", strerror(errno));
        if (n == 0)
            return error_set(err, -EBADMSG, "file ends after %zu bytes", at);
        at += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

int prefix_file_read_from(int fd, const struct prefix_file *f, struct error *err)
{
    struct prefix_file_header h;
    int rc = check_file(fd, f, err);
    if (rc == 0)
        rc = read_parts(fd, &h, f, err);
    if (rc < 0)
        return rc;
    if (memcmp(h.magic, magic, sizeof magic) != 0)
        return error_set(err, -EBADMSG, "not a page of a prefix cache");
    if (h.header_sum != hash_bytes(0, &h, offsetof(struct prefix_file_header, header_sum)))
        return error_set(err, -EBADMSG, "the header's checksum is wrong");
    if (h.version != PREFIX_FILE_VERSION || h.n_ids != KV_PAGE_TOKENS || h.n_bytes != f->n_bytes ||
        h.place != f->place)
        return error_set(err, -EBADMSG, "the header belongs to another file");
    if (h.bytes_sum != hash_bytes(f->place, f->bytes, f->n_bytes))
        return error_set(err, -EBADMSG, "the checksum is wrong");
    /* A whole file, but of another page with the same key: a miss. */
    return memcmp(&h.name, f->name, sizeof h.name) == 0 ? 0 : -ENOENT;
}

int prefix_file_read(int dir, const struct prefix_file *f, struct error *err)
{
    char name[PREFIX_FILE_NAME];
    struct error why = {0};
    prefix_file_name(name, f->place, f->name->key);
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT)
        return -ENOENT;
    if (fd < 0)
        return error_set(err, errno == ELOOP ? -EPERM : -errno, "%s: %s", name, strerror(errno));
    int rc = prefix_file_read_from(fd, f, &why);
    close(fd);
    return rc < 0 && why.code ? error_set(err, rc, "%s: %s", name, why.text) : rc;
}
