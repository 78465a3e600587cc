/* prefix_file.h - one page of the prefix cache as a file: what it holds and how it is written, checked, read.
 *
 * A file is a header and the page's bytes (keys and values of 64 tokens, all layers), nothing else. The
 * header says for which arithmetic and model (`place`), after which tokens (`name`) the bytes hold, and
 * carries the sums of both parts; a file with any byte changed, missing or added is refused. Written under a
 * temporary name, brought to the disk and then renamed: a reader sees a whole file or none, and of a writer
 * that dies nothing stays but its temporary file.
 *
 * Names: 16 hex digits of the place, '-', 32 of the page's key, ".kv"; temporary ones begin with ".tmp-" and
 * are locked (flock) as long as their writer lives. Files are 0600, in the host's byte order.
 * Thread: any, with a directory descriptor that stays open. Memory: none is taken. */
#pragma once
#include "base/error.h"
#include "kv_cache.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PREFIX_FILE_VERSION   1
#define PREFIX_FILE_NAME      64 /* room for a name */
#define PREFIX_FILE_TEMPORARY ".tmp-"

struct prefix_file_header {
    char magic[8];
    uint32_t version, n_ids;
    uint64_t place;
    struct kv_page_name name;
    uint64_t n_bytes;    /* of the page */
    uint64_t bytes_sum;  /* of the page */
    uint64_t header_sum; /* of all before it */
};

/* A page: what it is and where its bytes are (or shall be). */
struct prefix_file {
    uint64_t place;
    const struct kv_page_name *name;
    void *bytes; /* [n_bytes] */
    size_t n_bytes;
};

/* Order matters: the sum of a sequence of calls, from the sum before. */
uint64_t prefix_file_sum(uint64_t sum, const void *data, size_t n);

void prefix_file_name(char out[PREFIX_FILE_NAME], uint64_t place, struct kv_key key);
/* False: no such name. */
bool prefix_file_parse_name(const char *name, uint64_t *place, struct kv_key *key);
/* Bytes of a whole file. */
size_t prefix_file_size(size_t n_bytes);

/* Writes the page, its time of change set to `stamp_ns` (CLOCK_REALTIME), over a file of that name if there
 * is one. `serial` tells the temporary name from all others, those of processes elsewhere with this one's
 * number too. On failure nothing is left behind. */
int prefix_file_write(int dir, const struct prefix_file *f, uint64_t serial, uint64_t stamp_ns,
                      struct error *err);
/* Reads the page into f->bytes. -ENOENT: no such file, or (without words) one of another page with the same
 * key; -EBADMSG: broken; -EPERM: not a plain file of this user's. */
int prefix_file_read(int dir, const struct prefix_file *f, struct error *err);
/* The same of an open file, whatever its name. */
int prefix_file_read_from(int fd, const struct prefix_file *f, struct error *err);
/* Removes a temporary file whose writer is gone. */
void prefix_file_sweep(int dir, const char *name);
