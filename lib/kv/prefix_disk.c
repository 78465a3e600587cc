#include "prefix_disk.h"
#include "abi/arith.h"
#include "base/clock.h"
#include "base/hash.h"
#include "prefix_file.h"
#include "prefix_index.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

STAILQ_HEAD(queue, prefix_job);

struct prefix_dir {
    pthread_mutex_t lock;
    struct prefix_index index;
    uint64_t coming; /* bytes of pages that are being written */
    uint64_t serial; /* number of the last temporary file */
    bool known;      /* its names are read */
};

struct prefix_disk {
    struct prefix_disk_config cfg;
    struct prefix_dir *shared;
    bool alone; /* `shared` is its own */
    int dir;
    uint64_t place;
    size_t page_bytes;
    bool told; /* the write failure has been reported */
    pthread_t thread;

    /* Guarded by shared->lock. */
    pthread_cond_t wakeup, quiet;
    struct queue reads, writes, done;
    uint32_t n_jobs; /* submitted, not yet done */
    bool closing;
    void (*wake)(void *context);
    void *wake_context;

    _Atomic uint64_t paused_until_ns;
    _Atomic uint64_t hits, spilled, errors;
};

static void lock(struct prefix_disk *d)
{
    pthread_mutex_lock(&d->shared->lock);
}

static void unlock(struct prefix_disk *d)
{
    pthread_mutex_unlock(&d->shared->lock);
}

static uint64_t realtime_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void report(const struct prefix_disk *d, const char *words)
{
    if (d->cfg.report)
        d->cfg.report(d->cfg.context, words);
}

static void report_file(const struct prefix_disk *d, const struct error *why, const char *what)
{
    char words[sizeof why->text + 64];
    snprintf(words, sizeof words, "prefix cache: %s: %s", why->text, what);
    report(d, words);
}

static void moved(const struct prefix_disk *d)
{
    if (d->cfg.moved)
        d->cfg.moved(d->cfg.context);
}

static uint64_t place_of(const struct prefix_disk_config *cfg)
{
    const uint64_t parts[] = {PREFIX_FILE_VERSION, ARITH_VERSION,    cfg->model,   cfg->kv.n_layers,
                              cfg->kv.n_kv_heads,  cfg->kv.head_dim, cfg->kv.type, KV_PAGE_TOKENS};
    return hash_bytes(hash_bytes(0, parts, sizeof parts), cfg->order, strlen(cfg->order));
}

static struct prefix_job *pop(struct queue *q)
{
    struct prefix_job *job = STAILQ_FIRST(q);
    if (job)
        STAILQ_REMOVE_HEAD(q, queued);
    return job;
}

/* ---- the disk's thread: it holds lock, except during slow calls ---- */

static void remove_file(struct prefix_disk *d, uint64_t place, struct kv_key key)
{
    char name[PREFIX_FILE_NAME];
    prefix_file_name(name, place, key);
    unlinkat(d->dir, name, 0);
    moved(d);
}

/* Removes the least recently used files until what is coming fits into the budget. */
static void evict(struct prefix_disk *d)
{
    const struct prefix_dir *s = d->shared;
    const struct prefix_entry *e;
    while ((e = prefix_index_oldest(&s->index)) && s->index.bytes + s->coming > d->cfg.budget) {
        uint64_t place = e->place;
        struct kv_key key = e->key;
        prefix_index_remove(&d->shared->index, place, key);
        unlock(d);
        remove_file(d, place, key);
        lock(d);
    }
}

static void write_failed(struct prefix_disk *d, const struct error *why)
{
    atomic_fetch_add(&d->errors, 1);
    atomic_store(&d->paused_until_ns, clock_ns() + PREFIX_DISK_PAUSE_NS);
    if (!d->told)
        report_file(d, why, "no pages are written for a minute");
    d->told = true;
}

static size_t size_of(const struct prefix_disk *d, const struct prefix_job *job)
{
    return d->page_bytes - job->n_absent;
}

static int write_page(struct prefix_disk *d, struct prefix_job *job)
{
    struct prefix_file f = {d->place, &job->name, job->bytes, size_of(d, job)};
    struct error why = {0};
    size_t size = prefix_file_size(f.n_bytes);
    if (prefix_index_find(&d->shared->index, d->place, job->name.key))
        return 0;
    if (d->shared->coming + size > d->cfg.budget) /* no file that may go would make room */
        return -ENOSPC;
    d->shared->coming += size;
    evict(d);
    uint64_t serial = ++d->shared->serial;
    uint64_t stamp = prefix_index_stamp(&d->shared->index, d->place, job->name.parent, realtime_ns());
    unlock(d);
    int rc = prefix_file_write(d->dir, &f, serial, stamp, &why);
    lock(d);
    d->shared->coming -= size;
    if (rc == 0) {
        rc = prefix_index_put(&d->shared->index, d->place, job->name.key, job->name.parent, size, stamp);
        if (rc < 0) {
            remove_file(d, d->place, job->name.key);
            error_set(&why, rc, "no memory for the index");
        }
    }
    if (rc < 0)
        write_failed(d, &why);
    else
        atomic_fetch_add(&d->spilled, 1);
    d->told = d->told && rc < 0;
    return rc;
}

static int read_page(struct prefix_disk *d, struct prefix_job *job)
{
    struct prefix_file f = {d->place, &job->name, job->bytes, size_of(d, job)};
    struct error why = {0};
    unlock(d);
    int rc = prefix_file_read(d->dir, &f, &why);
    if (rc == -EBADMSG) {
        remove_file(d, d->place, job->name.key);
        report_file(d, &why, "removed");
    } else if (rc < 0 && why.code) {
        report_file(d, &why, "ignored");
    }
    lock(d);
    if (rc == 0) {
        atomic_fetch_add(&d->hits, 1);
        prefix_index_touch(&d->shared->index, d->place, job->name.key, job->name.parent, realtime_ns());
    } else {
        atomic_fetch_add(&d->errors, why.code != 0);
        prefix_index_remove(&d->shared->index, d->place, job->name.key);
    }
    return rc;
}

/* Writes the time of use of one page to its file. False: all files are up to date. */
static bool stamp_one(struct prefix_disk *d)
{
    const struct prefix_entry *e = prefix_index_stale(&d->shared->index);
    if (!e)
        return false;
    char name[PREFIX_FILE_NAME];
    struct timespec t = {(time_t)(e->stamp_ns / 1000000000u), (long)(e->stamp_ns % 1000000000u)};
    prefix_file_name(name, e->place, e->key);
    unlock(d);
    utimensat(d->dir, name, (struct timespec[]){t, t}, AT_SYMLINK_NOFOLLOW);
    moved(d);
    lock(d);
    return true;
}

static void run(struct prefix_disk *d, struct prefix_job *job)
{
    job->rc = job->write ? write_page(d, job) : read_page(d, job);
    STAILQ_INSERT_TAIL(&d->done, job, queued);
    d->n_jobs--;
    moved(d);
    if (d->wake)
        d->wake(d->wake_context);
    if (d->n_jobs == 0)
        pthread_cond_broadcast(&d->quiet);
}

static void *disk_main(void *arg)
{
    struct prefix_disk *d = arg;
    pthread_setname_np(pthread_self(), "prefix");
    lock(d);
    while (!d->closing) {
        struct prefix_job *job = pop(&d->reads);
        if (!job)
            job = pop(&d->writes);
        if (job)
            run(d, job);
        else if (!stamp_one(d))
            pthread_cond_wait(&d->wakeup, &d->shared->lock);
    }
    while (stamp_one(d))
        ;
    unlock(d);
    return NULL;
}

/* ---- open and close ---- */

struct found {
    uint64_t place, size, stamp_ns;
    struct kv_key key;
};

struct scan {
    struct found *found;
    size_t n, room, n_foreign;
    char foreign[NAME_MAX + 1]; /* name of the first foreign file */
};

static int add_found(struct scan *s, const struct found *f)
{
    if (s->n == s->room) {
        size_t room = s->room ? s->room * 2 : 256;
        struct found *more = realloc(s->found, room * sizeof *more);
        if (!more)
            return -ENOMEM;
        s->found = more;
        s->room = room;
    }
    s->found[s->n++] = *f;
    return 0;
}

static int look_at(struct prefix_disk *d, struct scan *s, const char *name)
{
    struct found f;
    struct stat st;
    if (!strcmp(name, ".") || !strcmp(name, ".."))
        return 0;
    if (!strncmp(name, PREFIX_FILE_TEMPORARY, strlen(PREFIX_FILE_TEMPORARY))) {
        prefix_file_sweep(d->dir, name);
        return 0;
    }
    if (!prefix_file_parse_name(name, &f.place, &f.key)) {
        if (s->n_foreign++ == 0)
            snprintf(s->foreign, sizeof s->foreign, "%s", name);
        return 0;
    }
    if (fstatat(d->dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return 0; /* another process has removed it */
    f.size = (uint64_t)st.st_size;
    f.stamp_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
    return add_found(s, &f);
}

static int by_stamp(const void *a, const void *b)
{
    const struct found *x = a, *y = b;
    return (x->stamp_ns > y->stamp_ns) - (x->stamp_ns < y->stamp_ns);
}

static int put_all(struct prefix_disk *d, struct scan *s)
{
    int rc = 0;
    if (s->n)
        qsort(s->found, s->n, sizeof *s->found, by_stamp);
    for (size_t i = 0; i < s->n && rc == 0; i++) {
        const struct found *f = &s->found[i];
        rc = prefix_index_put(&d->shared->index, f->place, f->key, (struct kv_key){0}, f->size, f->stamp_ns);
    }
    return rc;
}

static int read_names(struct prefix_disk *d, struct scan *s, struct error *err)
{
    const struct dirent *entry;
    int rc = 0, fd = openat(d->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (!dir) {
        rc = -errno;
        if (fd >= 0)
            close(fd);
        return error_set(err, rc, "%s: %s", d->cfg.dir, strerror(-rc));
    }
    while (rc == 0 && (entry = readdir(dir)))
        rc = look_at(d, s, entry->d_name);
    closedir(dir);
    if (rc == 0)
        rc = put_all(d, s);
    return rc < 0 ? error_set(err, rc, "no memory for the index of %s", d->cfg.dir) : 0;
}

/* The lock is held. */
static int scan(struct prefix_disk *d, struct error *err)
{
    struct scan s = {0};
    int rc = read_names(d, &s, err);
    free(s.found);
    if (rc < 0)
        return rc;
    if (s.n_foreign) {
        char words[2 * NAME_MAX];
        snprintf(words, sizeof words,
                 "prefix cache: ignored %zu foreign file%s in its directory, first %.200s", s.n_foreign,
                 s.n_foreign == 1 ? "" : "s", s.foreign);
        report(d, words);
    }
    evict(d);
    return 0;
}

/* The first of those that share the directory reads its names. */
static int know_dir(struct prefix_disk *d, struct error *err)
{
    lock(d);
    int rc = d->shared->known ? 0 : scan(d, err);
    d->shared->known = rc == 0;
    if (rc < 0) {
        prefix_index_close(&d->shared->index);
        prefix_index_open(&d->shared->index);
    }
    unlock(d);
    return rc;
}

/* Names alone tell who can list them, or guess one, that a prompt was asked for: they are hashes of its
 * tokens, without salt where there are no API keys. */
static int open_dir(struct prefix_disk *d, struct error *err)
{
    struct stat st;
    if (mkdir(d->cfg.dir, 0700) < 0 && errno != EEXIST)
        return error_set(err, -errno, "%s: cannot create the directory: %s", d->cfg.dir, strerror(errno));
    d->dir = open(d->cfg.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d->dir < 0 || fstat(d->dir, &st) < 0)
        return error_set(err, -errno, "%s: %s", d->cfg.dir, strerror(errno));
    if (st.st_uid != geteuid())
        return error_set(err, -EPERM, "%s: it belongs to user %u", d->cfg.dir, (unsigned)st.st_uid);
    if (st.st_mode & 077)
        return error_set(err, -EPERM, "%s: mode %04o lets others in (chmod 700)", d->cfg.dir,
                         st.st_mode & 07777);
    return 0;
}

/* Blocks all signals in the new thread: the event loop handles them. */
static int start_thread(struct prefix_disk *d, struct error *err)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&d->thread, NULL, disk_main, d);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc)
        return error_set(err, -rc, "prefix cache thread: %s", strerror(rc));
    return 0;
}

int prefix_dir_open(struct prefix_dir **out)
{
    struct prefix_dir *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->serial = realtime_ns();
    prefix_index_open(&s->index);
    pthread_mutex_init(&s->lock, NULL);
    *out = s;
    return 0;
}

void prefix_dir_close(struct prefix_dir *s)
{
    if (!s)
        return;
    prefix_index_close(&s->index);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static void disk_free(struct prefix_disk *d)
{
    if (d->dir >= 0)
        close(d->dir);
    pthread_cond_destroy(&d->wakeup);
    pthread_cond_destroy(&d->quiet);
    if (d->alone)
        prefix_dir_close(d->shared);
    free(d);
}

int prefix_disk_open(struct prefix_disk **out, const struct prefix_disk_config *cfg, struct error *err)
{
    struct prefix_disk *d = calloc(1, sizeof *d);
    if (!d || (!(d->shared = cfg->shared) && prefix_dir_open(&d->shared) < 0)) {
        free(d);
        return error_set(err, -ENOMEM, "no memory for the prefix cache on disk");
    }
    d->alone = !cfg->shared;
    d->cfg = *cfg;
    d->dir = -1;
    d->place = place_of(cfg);
    d->page_bytes = kv_page_size(&cfg->kv);
    STAILQ_INIT(&d->reads);
    STAILQ_INIT(&d->writes);
    STAILQ_INIT(&d->done);
    pthread_cond_init(&d->wakeup, NULL);
    pthread_cond_init(&d->quiet, NULL);
    int rc = prefix_file_size(d->page_bytes) <= cfg->budget
                 ? open_dir(d, err)
                 : error_set(err, -EINVAL, "a budget of %llu bytes cannot hold a page of %zu bytes",
                             (unsigned long long)cfg->budget, prefix_file_size(d->page_bytes));
    if (rc == 0)
        rc = know_dir(d, err);
    if (rc == 0)
        rc = start_thread(d, err);
    d->cfg.dir = d->cfg.order = NULL; /* they belong to the caller */
    if (rc < 0) {
        disk_free(d);
        return rc;
    }
    *out = d;
    return 0;
}

void prefix_disk_close(struct prefix_disk *d)
{
    if (!d)
        return;
    lock(d);
    d->closing = true;
    pthread_cond_signal(&d->wakeup);
    unlock(d);
    pthread_join(d->thread, NULL);
    disk_free(d);
}

/* ---- called by the engine ---- */

void prefix_disk_attach(struct prefix_disk *d, void (*wake)(void *context), void *context)
{
    lock(d);
    d->wake = wake;
    d->wake_context = context;
    unlock(d);
}

void prefix_disk_detach(struct prefix_disk *d)
{
    lock(d);
    d->wake = NULL;
    while (d->n_jobs > 0)
        pthread_cond_wait(&d->quiet, &d->shared->lock);
    STAILQ_INIT(&d->done);
    unlock(d);
}

bool prefix_disk_has(struct prefix_disk *d, struct kv_key key)
{
    lock(d);
    bool has = prefix_index_find(&d->shared->index, d->place, key) != NULL;
    unlock(d);
    return has;
}

bool prefix_disk_touch(struct prefix_disk *d, const struct kv_page_name *name)
{
    lock(d);
    bool has = prefix_index_touch(&d->shared->index, d->place, name->key, name->parent, realtime_ns()) != 0;
    if (has)
        pthread_cond_signal(&d->wakeup);
    unlock(d);
    return has;
}

bool prefix_disk_writes(struct prefix_disk *d)
{
    uint64_t until = atomic_load_explicit(&d->paused_until_ns, memory_order_relaxed);
    return until == 0 || clock_ns() >= until;
}

void prefix_disk_submit(struct prefix_disk *d, struct prefix_job *job)
{
    lock(d);
    STAILQ_INSERT_TAIL(job->write ? &d->writes : &d->reads, job, queued);
    d->n_jobs++;
    pthread_cond_signal(&d->wakeup);
    unlock(d);
}

struct prefix_job *prefix_disk_next(struct prefix_disk *d)
{
    lock(d);
    struct prefix_job *job = pop(&d->done);
    unlock(d);
    return job;
}

void prefix_disk_stats(struct prefix_disk *d, struct prefix_disk_stats *out)
{
    lock(d);
    *out = (struct prefix_disk_stats){.pages = d->shared->index.n, .bytes = d->shared->index.bytes};
    unlock(d);
    out->hits = atomic_load(&d->hits);
    out->spilled = atomic_load(&d->spilled);
    out->errors = atomic_load(&d->errors);
}
