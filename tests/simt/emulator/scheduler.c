/* scheduler.c - runs the grid's threads as fibers; a seeded random number generator picks the next one. */
#include "machine.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Translated PTX has a variable for each register: those of a decoder take over 128 KB. */
#define STACK_BYTES  (256 * 1024)
#define STARVED_RATE 32 /* a starved block gets to run once in so many picks */
#define AHEAD_RATE   16 /* the favoured warp is passed over once in so many picks */
#define IDLE_TRIES   6  /* times another thread is drawn instead of one that only polls */
#define LAND_RATE    24 /* copies land once in so many steps */
#define HANG_STEPS   20000
#define STEP_NS      50  /* how far the global timer moves per step */
#define LIVE_STEP_NS 200 /* the most it moves per step beside a host that follows real time */
#define LIVE_STEPS   64  /* without progress, after which a grid sleeps that waits for the host */
#define TIME_NAPS    64  /* how often the timer jumps ahead before a wait on it counts as a hang */
#define NAP_NS       50000
#define ARMED_STEPS  1024 /* between two questions whether faults are due yet */
#define PASSES       4096
#define HOST_RATE    48 /* the host of a launch acts once in so many steps */

_Thread_local struct simt_machine *simt_machine;

uint32_t machine_random(struct simt_machine *m, uint32_t below)
{
    m->random ^= m->random << 13; /* xorshift64 (Marsaglia 2003) */
    m->random ^= m->random >> 7;
    m->random ^= m->random << 17;
    return (uint32_t)(((m->random >> 32) * below) >> 32);
}

static void take_from_ready(struct simt_machine *m, struct thread *t)
{
    machine_set_idle(m, t, false);
    struct thread *last = m->ready[--m->n_ready];
    m->ready[t->ready_slot] = last;
    last->ready_slot = t->ready_slot;
}

void machine_rest(struct simt_machine *m)
{
    fiber_switch(&m->running->fiber, &m->host);
}

void machine_yield(struct simt_machine *m)
{
    if (m->launch.schedule != SIMT_IN_ORDER || m->running->idle)
        machine_rest(m);
}

/* In order: straight to a lane of the same warp that can go on. The scheduler is passed over, but not for
 * ever. */
static bool pass_on(struct simt_machine *m, struct thread *t)
{
    if (m->launch.schedule != SIMT_IN_ORDER || ++m->n_passes % PASSES == 0)
        return false;
    struct thread *lanes = t - t->index % SIMT_LANES;
    for (uint32_t i = t->index + 1; i < t->index + SIMT_LANES; i++) {
        struct thread *next = &lanes[i % SIMT_LANES];
        if (next->state != THREAD_READY || next->idle)
            continue;
        m->running = next;
        m->steps++;
        fiber_switch(&t->fiber, &next->fiber);
        return true;
    }
    return false;
}

void machine_block(struct simt_machine *m)
{
    struct thread *t = m->running;
    take_from_ready(m, t);
    t->state = THREAD_BLOCKED;
    if (!pass_on(m, t))
        fiber_switch(&t->fiber, &m->host);
}

void machine_poll(struct simt_machine *m, const struct simt_site *at, const void *of, bool done,
                  uint64_t value)
{
    struct thread *t = m->running;
    uint32_t i = t->next_again, end = i + SIMT_LOOKS;
    while (i < end && (t->looks[i % SIMT_LOOKS].at != at || t->looks[i % SIMT_LOOKS].of != of))
        i++;
    bool again = i < end;
    if (!again)
        i = t->next_look++;
    struct look *look = &t->looks[i % SIMT_LOOKS];
    t->next_again = (i + 1) % SIMT_LOOKS;
    machine_set_idle(m, t, !done && again && look->value == value);
    *look = (struct look){.at = at, .of = of, .value = value};
    if (!t->idle)
        machine_progress(m);
    machine_yield(m);
}

static void thread_main(void)
{
    struct simt_machine *m = simt_machine;
    struct thread *t = m->running;
    fiber_arrived(&t->fiber);
    m->launch.kernel->run(m->launch.args);
    t->state = THREAD_DONE;
    t->warp->n_done++;
    take_from_ready(m, t);
    machine_progress(m);
    if (++t->block->n_done == m->launch.n_threads && copies_in_flight(m, t->block))
        report_fault(m, "misuse", NULL, NULL,
                     "block %u returned while copies into its shared memory are in flight", t->block->index);
    if (t->warp->n_arrived)
        report_fault(m, "collective", NULL, NULL,
                     "block %u thread %u returned while lanes of its warp wait for it", t->block->index,
                     t->index);
    fiber_switch(&t->fiber, &m->host);
}

/* The next one that has something to do; when all only poll, the next one. */
static struct thread *pick_in_order(struct simt_machine *m)
{
    bool any = m->n_idle == m->n_ready;
    struct thread *t;
    do {
        m->launch.victim = m->launch.victim + 1 < m->n_threads ? m->launch.victim + 1 : 0;
        t = &m->threads[m->launch.victim];
    } while (t->state != THREAD_READY || (t->idle && !any));
    return t;
}

static struct thread *pick(struct simt_machine *m)
{
    if (m->launch.schedule == SIMT_IN_ORDER)
        return pick_in_order(m);
    struct thread *t = m->ready[machine_random(m, m->n_ready)];
    for (int i = 0; i < IDLE_TRIES && t->idle; i++) /* looking again is seldom worth a switch */
        t = m->ready[machine_random(m, m->n_ready)];
    switch (m->launch.schedule) {
    case SIMT_STARVE_BLOCK:
        for (int i = 0;
             i < 8 && (uint32_t)(t->block - m->blocks) == m->launch.victim && machine_random(m, STARVED_RATE);
             i++)
            t = m->ready[machine_random(m, m->n_ready)];
        break;
    case SIMT_WARP_AHEAD:
        if (machine_random(m, AHEAD_RATE) == 0)
            break;
        for (uint32_t i = 0, at = machine_random(m, SIMT_LANES); i < SIMT_LANES;
             i++, at = (at + 1) % SIMT_LANES) {
            struct thread *lane = &m->threads[m->launch.victim + at];
            if (lane->state == THREAD_READY && !lane->idle)
                return lane;
        }
        break;
    default:
        break;
    }
    return t;
}

/* Reports the places of the threads of a run that cannot continue. */
static void report_hang(struct simt_machine *m, const char *why)
{
    char text[700] = "", where[128];
    size_t used = 0;
    for (uint32_t i = 0, shown = 0; i < m->n_threads && shown < 8; i++) {
        struct thread *t = &m->threads[i];
        bool same_as_before = i && t->warp == m->threads[i - 1].warp && t->at == m->threads[i - 1].at;
        if (t->state == THREAD_DONE || same_as_before)
            continue;
        int n = snprintf(text + used, sizeof text - used, "; block %u thread %u %s %s", t->block->index,
                         t->index, t->state == THREAD_BLOCKED ? "waits at" : "polls at",
                         report_where(t->at, where, sizeof where));
        used += n > 0 && used + (size_t)n < sizeof text ? (size_t)n : 0;
        shown++;
    }
    report_note(m, "hang", "%s%s", why, text);
}

static void drop_block(struct simt_machine *m, struct block *b)
{
    for (uint32_t i = 0; i < b->n_mbarriers; i++) {
        knowledge_drop(&m->clocks, &b->mbarriers[i].now);
        knowledge_drop(&m->clocks, &b->mbarriers[i].ended);
    }
    b->n_mbarriers = 0;
    memory_drop_block(m, b);
}

static void drop_thread(struct simt_machine *m, struct thread *t)
{
    knowledge_drop(&m->clocks, &t->knows);
    knowledge_drop(&m->clocks, &t->fenced);
    knowledge_drop(&m->clocks, &t->loose);
}

/* Thread i of the block's place. Its column was perhaps another's before: it goes on from there, but knows
 * nothing. */
static void start_thread(struct simt_machine *m, struct block *b, uint32_t i)
{
    struct thread *t = &b->threads[i];
    *t = (struct thread){.fiber = t->fiber,
                         .block = b,
                         .warp = &m->warps[(t - m->threads) / SIMT_LANES],
                         .index = i,
                         .column = (uint32_t)(t - m->threads) + 1, /* 0 is the host's */
                         .epoch = t->epoch + 1,
                         .copy_column = t->copy_column,
                         .copy_epoch = t->copy_epoch};
    if (i % SIMT_LANES == 0)
        *t->warp = (struct warp){0};
    fiber_start(&t->fiber, thread_main);
    machine_make_ready(m, t);
}

/* All its threads have returned: the next block starts in its place, or the place stays empty. */
static void leave_place(struct simt_machine *m, struct block *b)
{
    if (m->next_block == m->launch.n_blocks) {
        m->n_done += b->n_done;
        b->n_done = 0;
        return;
    }
    drop_block(m, b);
    b->n_done = 0;
    b->index = m->next_block++;
    for (uint32_t i = 0; i < m->launch.n_threads; i++) {
        drop_thread(m, &b->threads[i]);
        start_thread(m, b, i);
    }
}

static uint64_t real_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t machine_time(struct simt_machine *m)
{
    struct machine_clock *c = &m->clock;
    if (!m->launch.outside)
        return m->steps * STEP_NS + m->slept_ns;
    uint64_t now = real_ns(), passed = now - c->real_ns;
    uint64_t at_work = (m->steps - c->steps) * LIVE_STEP_NS + c->napped_ns;
    *c = (struct machine_clock){c->ns + (passed < at_work ? passed : at_work), now, m->steps, 0};
    return c->ns;
}

/* Sleeps; a host on another thread may act meanwhile. */
static void sleep_outside(struct simt_machine *m, long ns)
{
    if (m->launch.outside)
        host_open(m);
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
    if (m->launch.outside)
        host_shut(m);
}

/* All wait for the host, or for the timer: the host gets the processor, the timer moves on. */
static void nap(struct simt_machine *m)
{
    uint32_t n = ++m->naps;
    if (!m->launch.outside && (m->launch.host || !m->host_polled)) {
        m->slept_ns += 1000000ull << (n < 10 ? n : 10);
    } else {
        uint64_t before = real_ns();
        sleep_outside(m, n < 40 ? NAP_NS << n / 8 : 20 * NAP_NS);
        m->clock.napped_ns += real_ns() - before;
    }
    m->host_polled = m->time_polled = false;
    m->progress_step = m->steps;
}

/* Nothing but polls for a long time. */
static bool may_wait(const struct simt_machine *m)
{
    return m->lost || (m->host_polled && !m->launch.host) ||
           (m->time_polled && (m->launch.outside || m->naps < TIME_NAPS));
}

static bool waits_too_long(const struct simt_machine *m)
{
    uint64_t steps = m->steps - m->progress_step;
    if (m->launch.outside && may_wait(m))
        return steps > LIVE_STEPS + 4ull * m->n_ready;
    return steps > HANG_STEPS + (100ull + 2 * m->launch.kernel->look_spins) * m->n_threads;
}

/* No thread of block 1 runs any more. */
static void lose_block(struct simt_machine *m)
{
    m->lost = true;
    for (uint32_t i = 0; i < m->n_threads; i++) {
        struct thread *t = &m->threads[i];
        if (t->block->index != 1 || t->state != THREAD_READY)
            continue;
        take_from_ready(m, t);
        t->state = THREAD_BLOCKED;
    }
}

/* Handles words from outside; false when one ends the run. */
static bool goes_on(struct simt_machine *m)
{
    struct simt_outside *o = m->launch.outside;
    if (!m->armed && m->steps % ARMED_STEPS == 1) {
        m->armed = !o->armed || o->armed();
        m->unarmed_steps = m->steps - 1;
    }
    uint64_t steps = m->armed ? m->steps - m->unarmed_steps : 0;
    if (o->fault_at && steps >= o->fault_at)
        report_note(m, "fault", "asked for at step %llu", (unsigned long long)o->fault_at);
    if (o->lost_at && steps >= o->lost_at && !m->lost)
        lose_block(m);
    bool stuck = o->stuck_at && steps >= o->stuck_at;
    while (stuck && !atomic_load_explicit(&o->stop, memory_order_acquire))
        sleep_outside(m, 20 * NAP_NS);
    host_let_in(m);
    if (atomic_load_explicit(&o->stop, memory_order_relaxed))
        report_note(m, "stopped", "from outside");
    return !m->reported;
}

/* The more are under way, the more land. */
static void land_some(struct simt_machine *m)
{
    for (uint32_t n = 1 + m->n_copies / 32; n; n--)
        copies_land_one(m);
}

static void run_to_the_end(struct simt_machine *m)
{
    while (m->n_done < m->n_threads && !m->reported) {
        m->steps++;
        if (m->launch.outside && !goes_on(m))
            return;
        if (m->n_copies && machine_random(m, LAND_RATE) == 0)
            land_some(m);
        if (m->launch.host && machine_random(m, HOST_RATE) == 0) {
            host_turn(m);
            continue;
        }
        if (!m->n_ready) {
            if (!copies_land_one(m))
                report_hang(m, "every thread waits");
            continue;
        }
        if (waits_too_long(m)) {
            if (host_turn(m))
                continue;
            if (may_wait(m))
                nap(m);
            else
                report_hang(m, "no thread gets any further");
            continue;
        }
        m->running = pick(m);
        fiber_switch(&m->host, &m->running->fiber);
        struct block *b = m->running->block; /* whose turn it is by now */
        m->running = NULL;
        if (b->n_done == m->launch.n_threads)
            leave_place(m, b);
    }
}

static int grow(struct simt_machine *m, uint32_t n_blocks, uint32_t n_threads)
{
    uint32_t all = n_blocks * n_threads;
    if (all > m->room_threads) {
        struct thread *threads = realloc(m->threads, all * sizeof *threads);
        if (!threads)
            return -1;
        m->threads = threads;
        memset(threads + m->room_threads, 0, (all - m->room_threads) * sizeof *threads);
        for (uint32_t i = m->room_threads; i < all; i++) {
            if (fiber_stack_open(&threads[i].fiber, STACK_BYTES) < 0)
                return -1;
            m->room_threads = i + 1;
        }
    }
    clock_pool_close(&m->clocks);
    m->clocks.capacity = 2 * all + 1;
    m->blocks = calloc(n_blocks, sizeof *m->blocks);
    m->warps = calloc(all / SIMT_LANES, sizeof *m->warps);
    m->ready = calloc(all, sizeof(struct thread *));
    struct thread **waiting = calloc((size_t)all * SIMT_BARRIERS, sizeof *waiting);
    if (!m->blocks || !m->warps || !m->ready || !waiting) {
        free(waiting);
        return -1;
    }
    for (uint32_t b = 0; b < n_blocks; b++)
        for (uint32_t i = 0; i < SIMT_BARRIERS; i++)
            m->blocks[b].barriers[i].waiting = waiting + ((size_t)b * SIMT_BARRIERS + i) * n_threads;
    return 0;
}

static void set_up_threads(struct simt_machine *m)
{
    const struct machine_launch *l = &m->launch;
    m->n_blocks = m->next_block = l->n_resident;
    m->n_threads = l->n_resident * l->n_threads;
    m->n_columns = m->n_threads + 1;
    for (uint32_t i = 0; i < m->n_threads; i++) {
        struct thread *t = &m->threads[i];
        struct block *b = &m->blocks[i / l->n_threads];
        t->epoch = t->copy_epoch = t->copy_column = 0;
        if (i % l->n_threads == 0) {
            b->threads = t;
            b->index = i / l->n_threads;
        }
        start_thread(m, b, i % l->n_threads);
    }
}

static void tear_down(struct simt_machine *m)
{
    copies_drop(m);
    clock_pool_forget(&m->clocks);
    for (uint32_t i = 0; i < m->n_threads; i++)
        drop_thread(m, &m->threads[i]);
    for (uint32_t b = 0; m->blocks && b < m->n_blocks; b++)
        drop_block(m, &m->blocks[b]);
    if (m->blocks)
        free(m->blocks[0].barriers[0].waiting);
    free(m->blocks);
    free(m->warps);
    free(m->ready);
    m->blocks = NULL;
    m->warps = NULL;
    m->ready = NULL;
    m->n_threads = m->n_blocks = m->n_ready = m->n_idle = m->n_done = 0;
}

struct simt_machine *simt_open(void)
{
    struct simt_machine *m = calloc(1, sizeof *m);
    if (m)
        m->shadow = shadow_open();
    if (m && !m->shadow) {
        free(m);
        m = NULL;
    }
    if (!m)
        return NULL;
    memory_find_constants(m);
    m->door = (struct door){.inside = PTHREAD_MUTEX_INITIALIZER, .turnstile = PTHREAD_MUTEX_INITIALIZER};
    return m;
}

void simt_close(struct simt_machine *m)
{
    if (!m)
        return;
    for (uint32_t i = 0; i < m->room_threads; i++)
        fiber_stack_close(&m->threads[i].fiber);
    free(m->threads);
    memory_forget(m);
    host_forget(m);
    clock_pool_close(&m->clocks);
    shadow_close(m->shadow);
    free(m->copies);
    free(m->late);
    free(m->regions);
    free(m);
}

static void choose_victim(struct simt_machine *m)
{
    struct machine_launch *l = &m->launch;
    if (l->schedule == SIMT_N_SCHEDULES)
        l->schedule = (enum simt_schedule)machine_random(m, SIMT_N_SCHEDULES);
    uint32_t n_warps = l->n_resident * l->n_threads / SIMT_LANES;
    l->victim = l->schedule == SIMT_STARVE_BLOCK ? machine_random(m, l->n_resident)
                                                 : machine_random(m, n_warps) * SIMT_LANES;
}

/* False: it cannot be launched so. */
static bool set_up_launch(struct simt_machine *m, const struct simt_launch *launch)
{
    const struct simt_kernel *k = launch->kernel;
    uint32_t n_threads = launch->n_threads ? launch->n_threads : k->threads;
    uint32_t n_resident =
        launch->n_resident && launch->n_resident < launch->n_blocks ? launch->n_resident : launch->n_blocks;
    if (k->args_size > sizeof m->launch.args || n_threads % SIMT_LANES || !n_threads ||
        n_threads > k->threads || !launch->n_blocks)
        return false;
    m->launch = (struct machine_launch){.kernel = k,
                                        .n_threads = n_threads,
                                        .n_blocks = launch->n_blocks,
                                        .n_resident = n_resident,
                                        .shared_bytes = launch->shared_bytes,
                                        .schedule = launch->schedule,
                                        .outside = launch->outside,
                                        .host = launch->host};
    memcpy(m->launch.args, launch->args, k->args_size);
    if (launch->mute >= 0) {
        enum simt_aspect aspect = SIMT_WHOLE;
        m->launch.muted = simt_mutation(launch->mute, &aspect);
        m->launch.muted_aspects = (uint32_t)aspect;
    }
    return true;
}

static int run(struct simt_machine *m, const struct simt_launch *launch, struct simt_report *report)
{
    const struct simt_kernel *k = launch->kernel;
    *report = (struct simt_report){0};
    m->report = report;
    m->reported = false;
    if (!set_up_launch(m, launch)) {
        report_note(m, "misuse",
                    "%s cannot be launched with %u blocks of %u threads and %zu bytes of arguments", k->name,
                    launch->n_blocks, launch->n_threads ? launch->n_threads : k->threads, k->args_size);
        return -1;
    }
    m->random = (launch->seed + 1) * 0x9E3779B97F4A7C15u;
    m->steps = m->progress_step = m->slept_ns = m->naps = 0;
    m->armed = m->lost = false;
    m->clock = (struct machine_clock){.ns = real_ns(), .real_ns = real_ns()};
    m->host_polled = m->time_polled = false;
    memory_forget(m);
    host_forget(m);
    shadow_reset(m->shadow, (uint32_t)(m->random >> 32));
    choose_victim(m);
    if (grow(m, m->launch.n_resident, m->launch.n_threads) < 0) {
        report_note(m, "misuse", "no memory for %u blocks of %u threads", m->launch.n_resident,
                    m->launch.n_threads);
    } else {
        set_up_threads(m);
        simt_machine = m;
        m->runs = true;
        run_to_the_end(m);
        m->runs = false;
        simt_machine = NULL;
    }
    report->steps = m->steps;
    tear_down(m);
    return m->reported ? -1 : 0;
}

int simt_run(struct simt_machine *m, const struct simt_launch *launch, struct simt_report *report)
{
    if (!launch->outside)
        return run(m, launch, report);
    host_shut(m);
    int rc = run(m, launch, report);
    host_open(m);
    return rc;
}

uint32_t simt_emu_thread(void)
{
    return simt_machine->running->index;
}

uint32_t simt_emu_n_threads(void)
{
    return simt_machine->launch.n_threads;
}

uint32_t simt_emu_block(void)
{
    return simt_machine->running->block->index;
}

uint32_t simt_emu_n_blocks(void)
{
    return simt_machine->launch.n_blocks;
}

void simt_emu_nanosleep(uint32_t ns)
{
    if (!simt_machine->launch.outside)
        simt_machine->slept_ns += ns / simt_machine->n_threads;
    machine_rest(simt_machine);
}

uint64_t simt_emu_globaltimer(void)
{
    simt_machine->time_polled = true;
    return machine_time(simt_machine);
}

/* Two ticks per ns, from another origin in every block, as SMs have. */
uint64_t simt_emu_clock(void)
{
    return 2 * machine_time(simt_machine) + simt_emu_block() * UINT64_C(1000000007);
}
