#include "team.h"

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
#include <time.h>
#include <unistd.h>

/* How long a member spins before it sleeps: longer than the gap between two ops or two steps, short enough
 * that a core another process wants is soon given up. */
#define SPIN_NS 40000

struct signal_word { /* a counter that threads wait on */
    _Alignas(64) atomic_uint value;
    atomic_uint sleepers;
};

struct member {
    _Alignas(64) struct team *team;
    pthread_t thread;
    uint32_t index;
    uint32_t phase;                   /* barriers passed */
    _Alignas(64) atomic_uint next[2]; /* units taken of the own part, by parity of the phase */
};

struct team {
    uint32_t n_members, n_started;
    bool leaving;
    void (*work)(void *context, uint32_t member);
    void *context;
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

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Waits until the word is no longer `old`. */
static void word_wait(struct signal_word *w, uint32_t old)
{
    uint64_t end = 0;
    for (uint32_t i = 1;; i++) {
        if (atomic_load_explicit(&w->value, memory_order_acquire) != old)
            return;
        pause_briefly();
        if (i % 32)
            continue;
        uint64_t now = now_ns();
        if (!end)
            end = now + SPIN_NS;
        if (now > end)
            break;
    }
    atomic_fetch_add(&w->sleepers, 1);
    while (atomic_load(&w->value) == old)
        syscall(SYS_futex, &w->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub(&w->sleepers, 1);
}

/* Sequentially consistent with the sleeper's "count me, then look again": one of the two sees the other. */
static void word_advance(struct signal_word *w)
{
    atomic_fetch_add(&w->value, 1);
    if (atomic_load(&w->sleepers))
        syscall(SYS_futex, &w->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void team_barrier(struct team *t, uint32_t member)
{
    struct member *m = &t->members[member];
    m->phase++;
    /* Nobody deals from this one any more: all have passed the barrier before the last. */
    atomic_store_explicit(&m->next[(m->phase) & 1], 0, memory_order_relaxed);
    if (t->n_members == 1)
        return;
    uint32_t old = atomic_load_explicit(&t->barrier.value, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&t->arrived, 1, memory_order_acq_rel) + 1 < t->n_members) {
        word_wait(&t->barrier, old);
        return;
    }
    atomic_store_explicit(&t->arrived, 0, memory_order_relaxed);
    word_advance(&t->barrier);
}

struct team_deal team_deal(struct team *t, uint32_t member, uint32_t n, uint32_t chunk)
{
    assert(chunk > 0);
    return (struct team_deal){.team = t, .member = member, .n = n, .chunk = chunk};
}

bool team_next(struct team_deal *d, uint32_t *first, uint32_t *last)
{
    struct team *t = d->team;
    uint32_t parity = t->members[d->member].phase & 1;
    for (; d->victim < t->n_members; d->victim++) {
        uint32_t owner = d->member + d->victim;
        if (owner >= t->n_members)
            owner -= t->n_members;
        uint32_t begin = (uint32_t)((uint64_t)d->n * owner / t->n_members);
        uint32_t end = (uint32_t)((uint64_t)d->n * (owner + 1) / t->n_members);
        atomic_uint *next = &t->members[owner].next[parity];
        if (atomic_load_explicit(next, memory_order_relaxed) >= end - begin)
            continue;
        uint32_t taken = atomic_fetch_add_explicit(next, d->chunk, memory_order_relaxed);
        if (taken >= end - begin)
            continue;
        *first = begin + taken;
        *last = end - *first < d->chunk ? end : *first + d->chunk;
        return true;
    }
    return false;
}

static void *member_main(void *arg)
{
    struct member *m = arg;
    struct team *t = m->team;
    for (uint32_t run = 0;; run++) {
        word_wait(&t->runs, run);
        if (t->leaving)
            return NULL;
        t->work(t->context, m->index);
        team_barrier(t, m->index);
    }
}

void team_run(struct team *t, void (*work)(void *context, uint32_t member), void *context)
{
    t->work = work;
    t->context = context;
    if (t->n_members > 1)
        word_advance(&t->runs);
    work(context, 0);
    team_barrier(t, 0);
}

static uint32_t affinity_count(cpu_set_t *set)
{
    CPU_ZERO(set);
    if (sched_getaffinity(0, sizeof *set, set) < 0) { /* more CPUs than the set has bits */
        long n = sysconf(_SC_NPROCESSORS_ONLN);
        return n > 0 ? (uint32_t)n : 1;
    }
    return (uint32_t)CPU_COUNT(set);
}

static bool read_line(const char *path, char *line, size_t size)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    bool ok = fgets(line, (int)size, f) != NULL;
    fclose(f);
    return ok;
}

/* Cores that a quota file pair allows, or 0 for no bound. */
static uint32_t quota_of(const char *mount, const char *group)
{
    char path[768], line[128];
    long long quota = 0, period = 0;
    snprintf(path, sizeof path, "%s%s/cpu.max", mount, group);
    if (read_line(path, line, sizeof line)) {
        if (sscanf(line, "%lld %lld", &quota, &period) != 2)
            return 0; /* "max" */
    } else {
        snprintf(path, sizeof path, "%s%s/cpu.cfs_quota_us", mount, group);
        if (!read_line(path, line, sizeof line) || sscanf(line, "%lld", &quota) != 1)
            return 0;
        snprintf(path, sizeof path, "%s%s/cpu.cfs_period_us", mount, group);
        if (!read_line(path, line, sizeof line) || sscanf(line, "%lld", &period) != 1)
            return 0;
    }
    if (quota <= 0 || period <= 0)
        return 0;
    return quota < period ? 1 : (uint32_t)(quota / period);
}

static uint32_t smaller_bound(uint32_t a, uint32_t b)
{
    return !a ? b : !b ? a : a < b ? a : b;
}

/* The tightest quota from our group up to the root of its hierarchy. */
static uint32_t quota_of_line(char *line)
{
    char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group)
        return 0;
    *group++ = '\0';
    group[strcspn(group, "\n")] = '\0';
    controllers++;
    if (*controllers && !strstr(controllers, "cpu"))
        return 0;
    uint32_t bound = 0;
    for (;;) {
        bound = smaller_bound(bound, quota_of(*controllers ? "/sys/fs/cgroup/cpu" : "/sys/fs/cgroup", group));
        char *slash = strrchr(group, '/');
        if (!slash)
            return bound;
        *slash = '\0';
    }
}

static uint32_t cgroup_quota(void)
{
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f)
        return 0;
    char line[512];
    uint32_t bound = 0;
    while (fgets(line, sizeof line, f))
        bound = smaller_bound(bound, quota_of_line(line));
    fclose(f);
    return bound;
}

uint32_t team_cores(void)
{
    cpu_set_t set;
    uint32_t n = smaller_bound(affinity_count(&set), cgroup_quota());
    return n < 1 ? 1 : n > TEAM_MAX ? TEAM_MAX : n;
}

/* Pins member i (from 1) to the i-th core of the mask. Member 0 is the caller's thread, whose affinity is not
 * ours to change: the scheduler finds it the core that the pinned ones leave free. */
static void member_pin(const struct member *m, const cpu_set_t *mask)
{
    uint32_t index = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, mask) || index++ != m->index)
            continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        pthread_setaffinity_np(m->thread, sizeof one, &one); /* a hint: refused in some sandboxes */
        return;
    }
}

static int members_start(struct team *t, struct error *err)
{
    cpu_set_t mask;
    bool pin = affinity_count(&mask) == t->n_members;
    for (uint32_t i = 1; i < t->n_members; i++) {
        struct member *m = &t->members[i];
        int rc = pthread_create(&m->thread, NULL, member_main, m);
        if (rc)
            return error_set(err, -rc, "cannot start compute thread %u of %u: %s", i, t->n_members,
                             strerror(rc));
        t->n_started++;
        char name[32];
        snprintf(name, sizeof name, "decoder-%u", i);
        name[15] = 0; /* the longest name a thread may have */
        pthread_setname_np(m->thread, name);
        if (pin)
            member_pin(m, &mask);
    }
    return 0;
}

int team_open(struct team **out, uint32_t n_threads, struct error *err)
{
    uint32_t n = n_threads ? n_threads : team_cores();
    if (n > TEAM_MAX)
        return error_set(err, -EINVAL, "%u compute threads asked for, the limit is %u", n, TEAM_MAX);
    size_t size = sizeof(struct team) + n * sizeof(struct member);
    struct team *t = aligned_alloc(64, (size + 63) / 64 * 64);
    if (!t)
        return error_set(err, -ENOMEM, "compute threads: out of memory");
    memset(t, 0, size);
    t->n_members = n;
    for (uint32_t i = 0; i < n; i++) {
        t->members[i].team = t;
        t->members[i].index = i;
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

uint64_t team_cpu_ns(const struct team *t)
{
    uint64_t sum = 0;
    for (uint32_t i = 1; i <= t->n_started; i++) {
        clockid_t clock;
        struct timespec used;
        if (pthread_getcpuclockid(t->members[i].thread, &clock) == 0 && clock_gettime(clock, &used) == 0)
            sum += (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
    }
    return sum;
}
