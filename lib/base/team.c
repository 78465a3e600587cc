#include "team.h"
#include "cgroup.h"
#include "clock.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The time a member spins before it sleeps: longer than the gap between two ops or two steps, short enough to
 * free a core soon for another process. */
#define SPIN_NS 40000

struct signal_word { /* a counter that threads wait on */
    _Alignas(64) atomic_uint value;
    atomic_uint sleepers;
    /* Members wait on this word between two steps: long enough to yield the CPU first. Otherwise the thread
     * that sends tokens would wait for the scheduler's tick. */
    bool between_runs;
};

#define NOWHERE (-1) /* value of member.cpu */

struct member {
    _Alignas(64) struct team *team;
    pthread_t thread;
    uint32_t index;
    uint32_t phase;                   /* barriers passed */
    atomic_int cpu;                   /* the CPU it ran on at its last check; NOWHERE between runs */
    _Atomic uint64_t pieces;          /* pieces taken so far; only this member writes it */
    _Alignas(64) atomic_uint next[2]; /* units taken of its own part, by parity of the phase */
};

struct team {
    uint32_t n_members, n_started;
    uint64_t spin_ns; /* 0 when there are more members than CPUs: a spinning member would keep another off its
                       * CPU */
    bool leaving;
    void (*work)(void *context, uint32_t member);
    void *context;
    void (*waited)(void *context, uint32_t member, uint64_t begin_ns, uint64_t end_ns); /* or NULL */
    void *watcher;                                                                      /* its context */
    struct signal_word runs;    /* counts team_run() */
    struct signal_word barrier; /* counts completed barriers */
    _Alignas(64) atomic_uint arrived;
    struct member members[];
};

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void note_cpu(struct member *m)
{
    atomic_store_explicit(&m->cpu, sched_getcpu(), memory_order_relaxed);
}

/* Moves the calling member off a CPU that another member runs on. The scheduler may wake a thread on the CPU
 * of its waker although another CPU is idle, and two members that wait for each other in turn never look busy
 * enough to be separated: every barrier then costs a spin, a sleep and a switch, for whole requests. The new
 * CPU is one of the affinity mask, which is restored before return. */
static void part(struct member *m)
{
    const struct team *t = m->team;
    cpu_set_t allowed, others;
    bool shared = false;
    note_cpu(m);
    CPU_ZERO(&others);
    for (uint32_t i = 0; i < t->n_members; i++) {
        int cpu = atomic_load_explicit(&t->members[i].cpu, memory_order_relaxed);
        if (i == m->index || cpu < 0 || cpu >= CPU_SETSIZE)
            continue;
        CPU_SET(cpu, &others);
        shared |= cpu == atomic_load_explicit(&m->cpu, memory_order_relaxed);
    }
    if (!shared || sched_getaffinity(0, sizeof allowed, &allowed) < 0)
        return;
    CPU_AND(&others, &others, &allowed);
    CPU_XOR(&others, &others, &allowed); /* allowed, and used by no other member */
    if (CPU_COUNT(&others) && sched_setaffinity(0, sizeof others, &others) == 0) {
        sched_setaffinity(0, sizeof allowed, &allowed);
        note_cpu(m);
    }
}

/* Waits until the word is no longer `old`. */
static void word_wait(struct member *m, struct signal_word *w, uint32_t old)
{
    uint64_t end = 0, spin_ns = m->team->spin_ns;
    for (uint32_t i = 1;; i++) {
        if (atomic_load_explicit(&w->value, memory_order_acquire) != old)
            return;
        if (!spin_ns)
            break;
        pause_briefly();
        if (i % 32)
            continue;
        if (w->between_runs)
            sched_yield();
        uint64_t now = clock_ns();
        if (!end)
            end = now + spin_ns;
        if (now > end)
            break;
    }
    if (w->between_runs)
        atomic_store_explicit(&m->cpu, NOWHERE, memory_order_relaxed);
    else
        note_cpu(m);
    atomic_fetch_add(&w->sleepers, 1);
    while (atomic_load(&w->value) == old)
        syscall(SYS_futex, &w->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub(&w->sleepers, 1);
    if (spin_ns) /* else there are fewer CPUs than members */
        part(m);
}

/* Sequentially consistent with the sleeper, which counts itself and then reads the value again: one of the
 * two sees the other. */
static void word_advance(struct signal_word *w)
{
    atomic_fetch_add(&w->value, 1);
    if (atomic_load(&w->sleepers))
        syscall(SYS_futex, &w->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void meet(struct team *t, uint32_t member)
{
    assert(member < t->n_members);
    struct member *m = &t->members[member];
    m->phase++;
    /* No member takes units by this counter any more: all have passed the barrier before the last. */
    atomic_store_explicit(&m->next[(m->phase) & 1], 0, memory_order_relaxed);
    if (t->n_members == 1)
        return;
    uint32_t old = atomic_load_explicit(&t->barrier.value, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&t->arrived, 1, memory_order_acq_rel) + 1 < t->n_members) {
        word_wait(m, &t->barrier, old);
        return;
    }
    atomic_store_explicit(&t->arrived, 0, memory_order_relaxed);
    word_advance(&t->barrier);
}

void team_barrier(struct team *t, uint32_t member)
{
    uint64_t begin_ns = t->waited ? clock_ns() : 0;
    meet(t, member);
    if (begin_ns)
        t->waited(t->watcher, member, begin_ns, clock_ns());
}

void team_watch(struct team *t,
                void (*waited)(void *context, uint32_t member, uint64_t begin_ns, uint64_t end_ns),
                void *context)
{
    t->waited = waited;
    t->watcher = context;
}

struct team_deal team_deal(struct team *t, uint32_t member, uint32_t n, uint32_t chunk)
{
    assert(chunk > 0 && member < t->n_members);
    return (struct team_deal){.team = t, .member = member, .n = n, .chunk = chunk};
}

struct team_deal team_deal_lead(struct team *t, uint32_t member, uint32_t n, uint32_t lead, uint32_t chunk)
{
    struct team_deal d = team_deal(t, member, n, chunk);
    d.lead = lead;
    return d;
}

static void count_piece(struct member *m)
{
    uint64_t n = atomic_load_explicit(&m->pieces, memory_order_relaxed);
    atomic_store_explicit(&m->pieces, n + 1, memory_order_relaxed);
}

uint32_t team_part(const struct team *t, uint32_t member, uint32_t n)
{
    return (uint32_t)((uint64_t)n * member / t->n_members);
}

bool team_next(struct team_deal *d, uint32_t *first, uint32_t *last)
{
    struct team *t = d->team;
    uint32_t parity = t->members[d->member].phase & 1;
    for (; d->victim < t->n_members; d->victim++) {
        uint32_t owner = d->member + d->victim;
        if (owner >= t->n_members)
            owner -= t->n_members;
        uint32_t begin = team_part(t, owner, d->n), end = team_part(t, owner + 1, d->n);
        atomic_uint *next = &t->members[owner].next[parity];
        if (atomic_load_explicit(next, memory_order_relaxed) >= end - begin)
            continue;
        uint32_t size = d->lead > d->chunk && d->victim == 0 ? d->lead : d->chunk;
        uint32_t taken = atomic_fetch_add_explicit(next, size, memory_order_relaxed);
        d->lead = 0;
        if (taken >= end - begin)
            continue;
        *first = begin + taken;
        *last = end - *first < size ? end : *first + size;
        count_piece(&t->members[d->member]);
        return true;
    }
    return false;
}

static void *member_main(void *arg)
{
    struct member *m = arg;
    struct team *t = m->team;
    char name[32];
    snprintf(name, sizeof name, "decoder-%u", m->index);
    name[15] = 0; /* the longest name a thread may have */
    pthread_setname_np(pthread_self(), name);
    for (uint32_t run = 0;; run++) {
        word_wait(m, &t->runs, run);
        if (t->leaving)
            return NULL;
        t->work(t->context, m->index);
        meet(t, m->index);
    }
}

void team_run(struct team *t, void (*work)(void *context, uint32_t member), void *context)
{
    t->work = work;
    t->context = context;
    note_cpu(&t->members[0]);
    if (t->n_members > 1)
        word_advance(&t->runs);
    work(context, 0);
    meet(t, 0);
}

static uint32_t affinity_count(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) < 0) { /* more CPUs than the set has bits */
        long n = sysconf(_SC_NPROCESSORS_ONLN);
        return n > 0 ? (uint32_t)n : 1;
    }
    return (uint32_t)CPU_COUNT(&set);
}

uint32_t team_cores_under(const char *root)
{
    uint32_t n = affinity_count(), quota = cgroup_cores(root);
    n = quota && quota < n ? quota : n;
    return n < 1 ? 1 : n > TEAM_MAX ? TEAM_MAX : n;
}

uint32_t team_cores(void)
{
    return team_cores_under("");
}

static int members_start(struct team *t, struct error *err)
{
    for (uint32_t i = 1; i < t->n_members; i++) {
        struct member *m = &t->members[i];
        int rc = pthread_create(&m->thread, NULL, member_main, m);
        if (rc)
            return error_set(err, -rc, "cannot start compute thread %u of %u: %s", i, t->n_members,
                             strerror(rc));
        t->n_started++;
    }
    return 0;
}

int team_open(struct team **out, uint32_t n_threads, struct error *err)
{
    uint32_t n = n_threads ? n_threads : team_cores();
    if (n > TEAM_MAX)
        return error_set(err, -EINVAL, "%u compute threads requested: the limit is %u", n, TEAM_MAX);
    size_t size = sizeof(struct team) + n * sizeof(struct member);
    struct team *t = aligned_alloc(64, (size + 63) / 64 * 64);
    if (!t)
        return error_set(err, -ENOMEM, "compute threads: out of memory");
    memset(t, 0, size);
    t->n_members = n;
    t->runs.between_runs = true;
    t->spin_ns = n > team_cores() ? 0 : SPIN_NS;
    for (uint32_t i = 0; i < n; i++) {
        t->members[i].team = t;
        t->members[i].index = i;
        t->members[i].cpu = NOWHERE;
    }
    int rc = members_start(t, err);
    if (rc < 0) {
        team_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

void team_close(struct team *t)
{
    if (!t)
        return;
    t->leaving = true;
    word_advance(&t->runs);
    for (uint32_t i = 1; i <= t->n_started; i++)
        pthread_join(t->members[i].thread, NULL);
    free(t);
}

uint32_t team_size(const struct team *t)
{
    return t->n_members;
}

bool team_spins(const struct team *t)
{
    return t->spin_ns > 0;
}

uint64_t team_progress(const struct team *t)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < t->n_members; i++)
        sum += atomic_load_explicit(&t->members[i].pieces, memory_order_relaxed);
    return sum;
}
