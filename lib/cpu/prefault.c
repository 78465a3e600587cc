#include "prefault.h"
#include "base/clock.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define PIECE    ((size_t)2 << 20) /* size of one touch: a huge page */
#define QUIET_NS 100000000u        /* least time since the last use */

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* It has no lock: another process may keep the thread off its CPU for long, and the decoder must not wait for
 * it. The kernel has one, though: that of the address space, which madvise() holds while it finds memory, and
 * for which malloc() waits wherever it grows. So the thread has an ordinary share of the CPUs: with
 * SCHED_IDLE it got none beside ten busy processes, and the engine waited for it for ten seconds. */
struct ahead {
    struct memory_block block;
    pthread_t thread;
    sem_t wakeup;
    _Atomic size_t used, taken; /* bytes; only the thread writes `taken` */
    _Atomic uint64_t used_ns;   /* time of the last ahead_use() */
    atomic_bool closing;
};

static size_t wanted(const struct ahead *a)
{
    size_t used = atomic_load(&a->used), rest = a->block.size - used;
    return used ? used + (rest < AHEAD_BYTES ? rest : AHEAD_BYTES) : 0;
}

/* Touches the next piece. False: the kernel cannot do it or is out of memory, which is not reported here. */
static bool take_piece(struct ahead *a)
{
    size_t start = ahead_taken(a) / PIECE * PIECE, rest = a->block.size - start;
    size_t size = rest < PIECE ? rest : PIECE;
    if (madvise((char *)a->block.data + start, size, MADV_POPULATE_WRITE) < 0)
        return errno == EINTR;
    atomic_store(&a->taken, start + size);
    return true;
}

/* True if no step has run lately. A guest's CPU stalls while its host finds memory, whatever the priority, so
 * it must not happen during work. */
static bool quiet(const struct ahead *a)
{
    uint64_t used = atomic_load(&a->used_ns), now = clock_ns();
    return now > used && now - used > QUIET_NS;
}

static void *touch(void *argument)
{
    struct ahead *a = argument;
    bool able = true;
    pthread_setname_np(pthread_self(), "memory-ahead");
    sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0}); /* of this thread; it may fail */
    while (able && !atomic_load(&a->closing)) {
        if (ahead_taken(a) >= wanted(a))
            sem_wait(&a->wakeup);
        else if (quiet(a))
            able = take_piece(a);
        else
            nanosleep(&(struct timespec){0, QUIET_NS}, NULL);
    }
    return NULL;
}

int ahead_open(struct ahead **out, const struct memory_block *block, struct error *err)
{
    struct ahead *a = calloc(1, sizeof *a);
    if (!a)
        return error_set(err, -ENOMEM, "prefault thread: out of memory");
    a->block = *block;
    sem_init(&a->wakeup, 0, 0);
    int rc = pthread_create(&a->thread, NULL, touch, a);
    if (rc) {
        sem_destroy(&a->wakeup);
        free(a);
        return error_set(err, -rc, "cannot start the prefault thread: %s", strerror(rc));
    }
    *out = a;
    return 0;
}

void ahead_close(struct ahead *a)
{
    if (!a)
        return;
    atomic_store(&a->closing, true);
    sem_post(&a->wakeup);
    pthread_join(a->thread, NULL);
    sem_destroy(&a->wakeup);
    free(a);
}

void ahead_use(struct ahead *a, size_t used)
{
    size_t before = atomic_load(&a->used);
    atomic_store(&a->used_ns, clock_ns());
    atomic_store(&a->used, used < a->block.size ? used : a->block.size);
    if (used > before)
        sem_post(&a->wakeup);
}

size_t ahead_taken(const struct ahead *a)
{
    size_t used = atomic_load(&a->used), taken = atomic_load(&a->taken);
    return used > taken ? used : taken;
}
