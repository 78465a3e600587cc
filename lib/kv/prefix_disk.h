/* prefix_disk.h - pages of the prefix cache in a directory: what is there, within a budget, and a thread that
 * reads and writes it.
 *
 * open() reads the directory's names once; from then on an index in memory says what is there, and nobody
 * else touches the disk but the thread. Pages of other models, KV types and arithmetics (other places) may
 * lie in the same directory: they count against the budget and are removed like ours when they have not been
 * used for longest, but are never read. A page is used when it is written, read, or touched; it always counts
 * as older than its parent, so that of a chain the end goes first. The order survives as the files' times of
 * change. Two daemons may share a directory: each sees what was there when it began and what it wrote, and
 * a file that the other has removed is a miss.
 *
 * A file that is broken is removed, one that is not ours to read is left alone; both leave the index, and
 * report() says so. When writing fails (no space) report() says so once, and nothing is written for a minute.
 *
 * Threads: open, close from any one; the rest but stats from the engine's, which never waits here for the
 * disk except in prefix_disk_detach(); stats from any. report() is called by the disk's thread. Memory: the
 * index grows with the number of files, on the disk's thread and in open(). */
#pragma once
#include "base/error.h"
#include "kv_cache.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PREFIX_DISK_PAUSE_NS 60000000000ull /* after a failed write */

struct prefix_disk;

struct prefix_disk_config {
    const char *dir; /* made 0700, if its parent is there; one that others may enter is refused */
    uint64_t budget; /* bytes of all pages together */
    /* What the bytes depend on. */
    uint64_t model;    /* model_hash() */
    const char *order; /* backend_info.kv_order: of the elements inside a tile */
    struct kv_layout kv;
    void (*report)(void *context, const char *words); /* of trouble; may be NULL */
    void *context;
};

struct prefix_disk_stats {
    uint64_t pages, bytes; /* there, of all places */
    uint64_t hits;         /* pages read */
    uint64_t spilled;      /* pages written */
    uint64_t errors;       /* failed writes, broken and foreign files */
};

/* A page to be read or written. The caller's until submitted and again once prefix_disk_next() gives it back;
 * `bytes` [page size] too. */
struct prefix_job {
    bool write;
    struct kv_page_name name;
    void *bytes;
    int rc; /* 0, or why not; a page that is not there is -ENOENT */
    struct prefix_job *next;
};

/* -EACCES, -EPERM ...: the directory cannot be used, or is not this user's alone. */
int prefix_disk_open(struct prefix_disk **out, const struct prefix_disk_config *cfg, struct error *err);
void prefix_disk_close(struct prefix_disk *d); /* NULL is fine; nobody is attached */

/* From here on `wake` is called, by the disk's thread, when prefix_disk_next() has something. */
void prefix_disk_attach(struct prefix_disk *d, void (*wake)(void *context), void *context);
/* Waits until every job is done and given back; `wake` is called no more. */
void prefix_disk_detach(struct prefix_disk *d);

/* Whether the page is there, as far as the index knows. */
bool prefix_disk_has(struct prefix_disk *d, struct kv_key key);
/* The same, and if so it has just been used. */
bool prefix_disk_touch(struct prefix_disk *d, const struct kv_page_name *name);
/* False while writing pauses after a failure. */
bool prefix_disk_writes(struct prefix_disk *d);
/* Reads go before writes, else first come. */
void prefix_disk_submit(struct prefix_disk *d, struct prefix_job *job);
/* A finished job, or NULL. */
struct prefix_job *prefix_disk_next(struct prefix_disk *d);

void prefix_disk_stats(struct prefix_disk *d, struct prefix_disk_stats *out);
