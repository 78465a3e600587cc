/* scheduler.c - threads of the grid as fibers, picked by a seeded random number generator. */
#include "machine.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STACK_BYTES  (128 * 1024)
#define STARVED_RATE 32 /* a starved block gets to run once in so many picks */
#define AHEAD_RATE   16 /* the favoured warp is passed over once in so many picks */
#define IDLE_TRIES   6  /* times another thread is drawn instead of one that only polls */
#define LAND_RATE    24 /* a copy lands once in so many steps */
#define HANG_STEPS   20000
#define STEP_NS      50 /* how far the global timer moves per step */

_Thread_local struct simt_machine *simt_machine;

uint32_t machine_random(struct simt_machine *m, uint32_t below)
{
    m->random ^= m->random << 13; /* xorshift64 (Marsaglia 2003) */
    m->random ^= m->random >> 7;
    m->random ^= m->random << 17;
    return (uint32_t)(((m->random >> 32) * below) >> 32);
}

static void make_ready(struct simt_machine *m, struct thread *t)
{
    t->state = THREAD_READY;
    t->idle = false;
    t->ready_slot = m->n_ready;
    m->ready[m->n_ready++] = t;
}

static void take_from_ready(struct simt_machine *m, struct thread *t)
{
    struct thread *last = m->ready[--m->n_ready];
    m->ready[t->ready_slot] = last;
    last->ready_slot = t->ready_slot;
}

void machine_yield(struct simt_machine *m)
{
    fiber_switch(&m->running->fiber, &m->host);
}

void machine_block(struct simt_machine *m)
{
    struct thread *t = m->running;
    take_from_ready(m, t);
    t->state = THREAD_BLOCKED;
    fiber_switch(&t->fiber, &m->host);
}

void machine_wake(struct simt_machine *m, struct thread *t)
{
    make_ready(m, t);
    machine_progress(m);
}

void machine_progress(struct simt_machine *m)
{
    m->progress_step = m->steps;
}

void machine_poll(struct simt_machine *m, const struct simt_site *at, bool done, uint64_t value)
{
    struct thread *t = m->running;
    struct look *look = NULL;
    for (uint32_t i = 0; i < SIMT_LOOKS && !look; i++)
        look = t->looks[i].at == at ? &t->looks[i] : NULL;
    t->idle = !done && look && look->value == value;
    if (!look)
        look = &t->looks[t->next_look++ % SIMT_LOOKS];
    *look = (struct look){.at = at, .value = value};
    if (!t->idle)
        machine_progress(m);
    machine_yield(m);
}

bool machine_mutes(const struct simt_machine *m, const struct simt_site *at, enum simt_aspect aspect)
{
    return at == m->launch.muted && (m->launch.muted_aspects & (uint32_t)aspect);
}

struct thread *machine_enter(const struct simt_site *at)
{
    struct thread *t = simt_machine->running;
    t->at = at;
    t->idle = false;
    return t;
}

static void thread_main(void)
{
    struct simt_machine *m = simt_machine;
    struct thread *t = m->running;
    fiber_arrived(&t->fiber);
    m->launch.kernel->run(m->launch.args);
    t->state = THREAD_DONE;
    t->warp->n_done++;
    m->n_done++;
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

static struct thread *pick(struct simt_machine *m)
{
    struct thread *t = m->ready[machine_random(m, m->n_ready)];
    for (int i = 0; i < IDLE_TRIES && t->idle; i++) /* looking again is seldom worth a switch */
        t = m->ready[machine_random(m, m->n_ready)];
    switch (m->launch.schedule) {
    case SIMT_STARVE_BLOCK:
        for (int i = 0; i < 8 && t->block->index == m->launch.victim && machine_random(m, STARVED_RATE); i++)
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

/* Where threads stand, for a run that cannot go on. */
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

/* Nothing but polls for a long time. */
static void idle_too_long(struct simt_machine *m)
{
    if (m->host_polled) {
        m->host_polled = false;
        m->progress_step = m->steps;
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        return;
    }
    report_hang(m, "no thread gets any further");
}

static void run_to_the_end(struct simt_machine *m)
{
    while (m->n_done < m->n_threads && !m->reported) {
        m->steps++;
        if (m->n_copies && machine_random(m, LAND_RATE) == 0)
            copies_land_one(m);
        if (!m->n_ready) {
            if (!copies_land_one(m))
                report_hang(m, "every thread waits");
            continue;
        }
        if (m->steps - m->progress_step > HANG_STEPS + 100ull * m->n_threads) {
            idle_too_long(m);
            continue;
        }
        m->running = pick(m);
        fiber_switch(&m->host, &m->running->fiber);
        m->running = NULL;
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
    m->n_blocks = l->n_blocks;
    m->n_threads = l->n_blocks * l->n_threads;
    m->n_columns = m->n_threads + 1; /* column 0 is the host's, which is before everything */
    for (uint32_t i = 0; i < m->n_threads; i++) {
        struct thread *t = &m->threads[i];
        struct fiber fiber = t->fiber;
        uint32_t block = i / l->n_threads;
        *t = (struct thread){.fiber = fiber, .index = i % l->n_threads, .column = i + 1, .epoch = 1};
        t->block = &m->blocks[block];
        t->warp = &m->warps[i / SIMT_LANES];
        t->block->index = block;
        if (t->index == 0)
            t->block->threads = t;
        fiber_start(&t->fiber, thread_main);
        make_ready(m, t);
    }
}

static void tear_down(struct simt_machine *m)
{
    copies_drop(m);
    memory_forget(m);
    clock_pool_forget(&m->clocks);
    for (uint32_t i = 0; i < m->n_threads; i++) {
        struct thread *t = &m->threads[i];
        knowledge_drop(&m->clocks, &t->knows);
        knowledge_drop(&m->clocks, &t->fenced);
        knowledge_drop(&m->clocks, &t->loose);
    }
    for (uint32_t b = 0; m->blocks && b < m->n_blocks; b++) {
        struct block *block = &m->blocks[b];
        for (uint32_t i = 0; i < block->n_mbarriers; i++) {
            knowledge_drop(&m->clocks, &block->mbarriers[i].now);
            knowledge_drop(&m->clocks, &block->mbarriers[i].ended);
        }
        for (uint32_t i = 0; i < block->n_carves; i++)
            free(block->carves[i].memory - SIMT_GUARD);
    }
    if (m->blocks)
        free(m->blocks[0].barriers[0].waiting);
    free(m->blocks);
    free(m->warps);
    free(m->ready);
    m->blocks = NULL;
    m->warps = NULL;
    m->ready = NULL;
    m->n_threads = m->n_blocks = m->n_ready = m->n_done = 0;
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
    return m;
}

void simt_close(struct simt_machine *m)
{
    if (!m)
        return;
    for (uint32_t i = 0; i < m->room_threads; i++)
        fiber_stack_close(&m->threads[i].fiber);
    free(m->threads);
    clock_pool_close(&m->clocks);
    shadow_close(m->shadow);
    free(m->copies);
    free(m->late);
    free(m);
}

static void choose_victim(struct simt_machine *m)
{
    struct machine_launch *l = &m->launch;
    if (l->schedule == SIMT_N_SCHEDULES)
        l->schedule = (enum simt_schedule)machine_random(m, SIMT_N_SCHEDULES);
    uint32_t n_warps = l->n_blocks * l->n_threads / SIMT_LANES;
    l->victim = l->schedule == SIMT_STARVE_BLOCK ? machine_random(m, l->n_blocks)
                                                 : machine_random(m, n_warps) * SIMT_LANES;
}

int simt_run(struct simt_machine *m, const struct simt_launch *launch, struct simt_report *report)
{
    const struct simt_kernel *k = launch->kernel;
    *report = (struct simt_report){0};
    m->report = report;
    m->reported = false;
    if (k->args_size > sizeof m->launch.args || k->threads % SIMT_LANES || !k->threads || !launch->n_blocks) {
        report_note(m, "misuse",
                    "%s cannot be launched with %u blocks of %u threads and %zu bytes of arguments", k->name,
                    launch->n_blocks, k->threads, k->args_size);
        return -1;
    }
    m->launch = (struct machine_launch){.kernel = k,
                                        .n_threads = k->threads,
                                        .n_blocks = launch->n_blocks,
                                        .shared_bytes = launch->shared_bytes,
                                        .schedule = launch->schedule};
    memcpy(m->launch.args, launch->args, k->args_size);
    if (launch->mute >= 0) {
        enum simt_aspect aspect = SIMT_WHOLE;
        m->launch.muted = simt_mutation(launch->mute, &aspect);
        m->launch.muted_aspects = (uint32_t)aspect;
    }
    m->random = (launch->seed + 1) * 0x9E3779B97F4A7C15u;
    m->steps = m->progress_step = m->slept_ns = 0;
    m->host_polled = false;
    shadow_reset(m->shadow);
    choose_victim(m);
    if (grow(m, launch->n_blocks, k->threads) < 0) {
        report_note(m, "misuse", "no memory for %u blocks of %u threads", launch->n_blocks, k->threads);
    } else {
        set_up_threads(m);
        simt_machine = m;
        run_to_the_end(m);
        simt_machine = NULL;
    }
    report->steps = m->steps;
    tear_down(m);
    return m->reported ? -1 : 0;
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
    simt_machine->slept_ns += ns / simt_machine->n_threads;
    machine_yield(simt_machine);
}

uint64_t simt_emu_globaltimer(void)
{
    return simt_machine->steps * STEP_NS + simt_machine->slept_ns;
}
