/* starve.c - linked into hearthd_starved with --wrap, so that the calls of lib/ and daemon/ come to __wrap_*;
 * what else calls malloc in this process, or asks for the time, comes to the definitions at the end. free is
 * counted, never refused.
 */
#include "starve.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void __real_free(void *p);

static struct starve *starve;

__attribute__((constructor)) static void map(void)
{
    const char *fd = getenv(STARVE_FD);
    void *at = fd ? mmap(NULL, sizeof *starve, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(fd), 0) : MAP_FAILED;
    starve = at == MAP_FAILED ? NULL : at;
}

static bool fails(enum starve_whose whose)
{
    if (!starve)
        return false;
    long i = atomic_fetch_add(&starve->n_calls[whose], 1), at = atomic_load(&starve->fails_at[whose]);
    if (at < 0 || i < at || (i > at && !atomic_load(&starve->all_later)))
        return false;
    atomic_fetch_add(&starve->n_failed, 1);
    errno = ENOMEM; /* glibc ends a process that starts a thread with an allocation that failed for another
                       cause */
    return true;
}

static void *held(void *p)
{
    if (p && starve)
        atomic_fetch_add(&starve->n_held, 1);
    return p;
}

#ifdef __SANITIZE_ADDRESS__
#define MALLOC        __real_malloc
#define CALLOC        __real_calloc
#define REALLOC       __real_realloc
#define ALIGNED_ALLOC __real_aligned_alloc
#else
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
#define MALLOC        __libc_malloc
#define CALLOC        __libc_calloc
#define REALLOC       __libc_realloc
#define ALIGNED_ALLOC __libc_memalign
#endif

void *__wrap_malloc(size_t size)
{
    return fails(STARVE_OURS) ? NULL : held(MALLOC(size));
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails(STARVE_OURS) ? NULL : held(CALLOC(n, size));
}

void *__wrap_realloc(void *p, size_t size)
{
    if (fails(STARVE_OURS))
        return NULL;
    return p ? REALLOC(p, size) : held(MALLOC(size));
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return fails(STARVE_OURS) ? NULL : held(ALIGNED_ALLOC(alignment, size));
}

char *__wrap_strdup(const char *s)
{
    char *copy = fails(STARVE_OURS) ? NULL : held(MALLOC(strlen(s) + 1));
    return copy ? strcpy(copy, s) : NULL;
}

void __wrap_free(void *p)
{
    if (p && starve)
        atomic_fetch_sub(&starve->n_held, 1);
    __real_free(p);
}

static _Atomic long monotonic_ahead_s;

struct engine;
void __real_engine_close(struct engine *e);

void __wrap_engine_close(struct engine *e)
{
    if (e && starve)
        atomic_fetch_add(&monotonic_ahead_s, atomic_load(&starve->close_takes_s));
    __real_engine_close(e);
}

char *__real_realpath(const char *restrict path, char *restrict out);

/* As on a network file system that went away. */
char *__wrap_realpath(const char *restrict path, char *restrict out)
{
    if (starve && atomic_load(&starve->paths_hang))
        atomic_fetch_add(&starve->n_paths_hung, 1);
    while (starve && atomic_load(&starve->paths_hang))
        usleep(1000);
    return __real_realpath(path, out);
}

struct prefix_file;
struct error;
int __real_prefix_file_write(int dir, const struct prefix_file *f, uint64_t serial, uint64_t stamp_ns,
                             struct error *err);

/* As slow as a disk can be. One thread writes pages. */
int __wrap_prefix_file_write(int dir, const struct prefix_file *f, uint64_t serial, uint64_t stamp_ns,
                             struct error *err)
{
    while (starve && atomic_load(&starve->pages_wait) && atomic_load(&starve->n_pages_may) <= 0)
        usleep(1000);
    if (starve)
        atomic_fetch_sub(&starve->n_pages_may, 1);
    return __real_prefix_file_write(dir, f, serial, stamp_ns, err);
}

/* The day's time jumps, the monotonic clock only where an engine takes long to close. */
EXPORTED int clock_gettime(clockid_t id, struct timespec *t)
{
    int rc = (int)syscall(SYS_clock_gettime, id, t);
    if (rc == 0 && starve && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        t->tv_sec += atomic_load(&starve->clock_ahead_s);
    if (rc == 0 && (id == CLOCK_MONOTONIC || id == CLOCK_MONOTONIC_COARSE))
        t->tv_sec += atomic_load(&monotonic_ahead_s);
    return rc;
}

EXPORTED int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    *t = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return 0;
}

EXPORTED time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}

#ifndef __SANITIZE_ADDRESS__ /* whose runtime has to have these */
EXPORTED void *malloc(size_t size)
{
    return fails(STARVE_THEIRS) ? NULL : __libc_malloc(size);
}

EXPORTED void *calloc(size_t n, size_t size)
{
    return fails(STARVE_THEIRS) ? NULL : __libc_calloc(n, size);
}

EXPORTED void *realloc(void *p, size_t size)
{
    return fails(STARVE_THEIRS) ? NULL : __libc_realloc(p, size);
}
#endif
