/* prefix_file.h - one page of the prefix cache as a file: its format, and how it is written, checked and
 * read.
 *
 * A file is a header and the page's bytes (keys and values of 64 tokens, all layers). The header names the
 * arithmetic and model (`place`) and the tokens (`name`) that the bytes belong to, and carries checksums of
 * both parts (hash_bytes()): a file with any byte changed, missing or added is refused. A file is written
 * under a temporary name, flushed to the disk and then renamed. So a reader sees a whole file or none, and a
 * writer that dies leaves only its temporary file.
 *
 * Names: 16 hex digits of the place, '-', 32 of the page's key, ".kv". Temporary names begin with ".tmp-";
 * their files are locked (flock) while the writer lives. Files have mode 0600 and the host's byte order.
 * Thread: any, with a directory descriptor that stays open. Memory: none is allocated. Errors: a negative
 * errno with words. */
#pragma once
#include "base/error.h"
#include "kv_cache.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PREFIX_FILE_VERSION   2
#define PREFIX_FILE_NAME      64 /* bytes of a name, with NUL */
#define PREFIX_FILE_TEMPORARY ".tmp-"

struct prefix_file_header {
    char magic[8];
    uint32_t version, n_ids;
    uint64_t place;
    struct kv_page_name name;
    uint64_t n_bytes;    /* size of the page's bytes */
    uint64_t bytes_sum;  /* checksum of the page's bytes */
    uint64_t header_sum; /* checksum of all fields before it */
};

/* A page: its identity and the memory of its bytes, to write from or read into. */
struct prefix_file {
    uint64_t place;
    const struct kv_page_name *name;
    void *bytes; /* [n_bytes] */
    size_t n_bytes;
};

void prefix_file_name(char out[PREFIX_FILE_NAME], uint64_t place, struct kv_key key);
/* Parses such a name. False: it is no page's name. */
bool prefix_file_parse_name(const char *name, uint64_t *place, struct kv_key *key);
/* The size in bytes of a whole file. */
size_t prefix_file_size(size_t n_bytes);

/* Writes the page and replaces a file of its name; sets its modification time to `stamp_ns` (CLOCK_REALTIME).
 * `serial` makes the temporary name unique, also among processes elsewhere with the same pid. A failure
 * leaves no file behind. */
int prefix_file_write(int dir, const struct prefix_file *f, uint64_t serial, uint64_t stamp_ns,
                      struct error *err);
/* Reads the page into f->bytes. -ENOENT: no such file or (without words) the file of another page with the
 * same key; -EBADMSG: broken; -EPERM: not a regular file of this user. */
int prefix_file_read(int dir, const struct prefix_file *f, struct error *err);
/* The same for an open file of any name. */
int prefix_file_read_from(int fd, const struct prefix_file *f, struct error *err);
/* Removes a temporary file whose writer is dead. */
void prefix_file_sweep(int dir, const char *name);
