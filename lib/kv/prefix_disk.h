/* prefix_disk.h - the prefix cache on disk: pages as files in a directory, within a budget, and the thread
 * that reads and writes them.
 *
 * open() reads the directory's names once. From then on an index in memory lists the files, and only the
 * disk's thread accesses the disk. The directory may also hold pages of other models, KV types and
 * arithmetics (other places): they count against the budget and are removed, like ours, when they are the
 * least recently used, but are never read. Writing, reading and touching a page counts as use. A page always
 * counts as older than its parent, so the end of a chain is removed first. The files' modification times keep
 * the order. Two daemons may share a directory: each knows the files that existed when it started and those
 * that it wrote, and a file that the other has removed is a miss. Those of one process that share a
 * prefix_dir know all of it, and the budget holds for them together.
 *
 * A broken file is removed, and a file that this user may not read is ignored; both leave the index, and
 * report() is called. When writing fails (no space), report() is called once, and no page is written for a
 * minute.
 *
 * Thread: open and close from any one thread; the other functions from the engine's, which waits for the disk
 * only in prefix_disk_detach(); stats from any. The disk's thread calls report(), moved() and `wake`. Memory:
 * the index grows with the number of files, in open() and on the disk's thread. Errors: a failed job has a
 * negative errno in job->rc. */
#pragma once
#include "base/error.h"
#include "kv_cache.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#define PREFIX_DISK_PAUSE_NS 60000000000ull /* pause after a failed write */

struct prefix_disk;
struct prefix_dir; /* the index of one directory, for all of this process that use it */

struct prefix_disk_config {
    const char *dir; /* made 0700, if its parent is there; one that others may enter is refused */
    uint64_t budget; /* bytes of all pages together */
    /* Outlives the disk; all that share it have the same `dir` and `budget`. NULL: it has its own. */
    struct prefix_dir *shared;
    /* The bytes depend on these. */
    uint64_t model;    /* model_hash() */
    const char *order; /* backend_info.kv_order: the order of the elements inside a tile */
    struct kv_layout kv;
    void (*report)(void *context, const char *words); /* reports trouble; may be NULL */
    void (*moved)(void *context); /* after each page, time and removal, so that others see that the disk
                                     does not hang; must not call back; may be NULL */
    void *context;
};

struct prefix_disk_stats {
    uint64_t pages, bytes; /* in the directory, of all places */
    uint64_t hits;         /* pages read */
    uint64_t spilled;      /* pages written */
    uint64_t errors;       /* failed writes, broken and unreadable files */
};

/* A page to read or write. It and `bytes` [page size] belong to the caller, except from prefix_disk_submit()
 * until prefix_disk_next() returns the job. */
struct prefix_job {
    bool write;
    struct kv_page_name name;
    void *bytes;
    size_t n_absent; /* bytes at the page's end that the file does not have */
    int rc;          /* 0 or a negative errno; -ENOENT: there is no such page; -ENOSPC: what others
                        write fills the budget, and the page was left out */
    STAILQ_ENTRY(prefix_job) queued; /* private */
};

/* Nothing is read before the first disk is opened with it. 0 or -ENOMEM. */
int prefix_dir_open(struct prefix_dir **out);
void prefix_dir_close(struct prefix_dir *s); /* NULL is fine; no disk may be open with it */

/* -EACCES, -EPERM ...: the directory cannot be used, or is not this user's alone. */
int prefix_disk_open(struct prefix_disk **out, const struct prefix_disk_config *cfg, struct error *err);
void prefix_disk_close(struct prefix_disk *d); /* NULL is fine; no engine may be attached */

/* Attaches the one engine. From here on the disk's thread calls `wake` when prefix_disk_next() has a job. */
void prefix_disk_attach(struct prefix_disk *d, void (*wake)(void *context), void *context);
/* Waits until every job is done and drops the finished ones; `wake` is no longer called. */
void prefix_disk_detach(struct prefix_disk *d);

/* True if the index has the page. */
bool prefix_disk_has(struct prefix_disk *d, struct kv_key key);
/* The same, and marks the page as used now. */
bool prefix_disk_touch(struct prefix_disk *d, const struct kv_page_name *name);
/* False while writing pauses after a failure. */
bool prefix_disk_writes(struct prefix_disk *d);
/* Submits a job. Reads go before writes, otherwise in order of submission. */
void prefix_disk_submit(struct prefix_disk *d, struct prefix_job *job);
/* Returns a finished job, or NULL. */
struct prefix_job *prefix_disk_next(struct prefix_disk *d);

void prefix_disk_stats(struct prefix_disk *d, struct prefix_disk_stats *out);
