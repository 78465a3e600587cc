/* copies.c - mbarriers, and copies that land late, in any order; until then their destination holds
 * poison. */
#include "machine.h"

#include <stdlib.h>
#include <string.h>

#define POISON 0xA5

static void *room_for(void *array, uint32_t n, uint32_t *room, size_t element)
{
    if (n < *room)
        return array;
    *room = *room ? *room * 2 : 64;
    array = realloc(array, *room * element);
    if (!array)
        abort(); /* a test tool: nothing sensible is left to do */
    return array;
}

static struct mbarrier *mbarrier_of(struct block *b, const uint64_t *p)
{
    for (uint32_t i = 0; i < b->n_mbarriers; i++)
        if (b->mbarriers[i].address == (uintptr_t)p)
            return &b->mbarriers[i];
    return NULL;
}

/* The mbarrier at p, whose initialisation `clock` must know of. */
static struct mbarrier *mbarrier_use(struct simt_machine *m, struct thread *t, const uint64_t *p,
                                     bool by_copy)
{
    char where[128];
    struct mbarrier *b = mbarrier_of(t->block, p);
    if (!b)
        report_fault(m, "mbarrier", NULL, NULL, "%s: block %u thread %u: no mbarrier was initialised there",
                     report_where(t->at, where, sizeof where), t->block->index, t->index);
    bool own = b->init.column == t->column && !by_copy;
    if (SIMT_CHECKED && !own &&
        b->init.epoch > clock_at(by_copy ? t->knows.async : t->knows.seen, b->init.column))
        report_fault(m, "mbarrier", NULL, NULL,
                     "%s: block %u thread %u: the mbarrier's initialisation is not %s",
                     report_where(t->at, where, sizeof where), t->block->index, t->index,
                     by_copy ? "visible to asynchronous copies (fence_mbar_init)" : "ordered before this");
    return b;
}

void simt_emu_mbar_init(const struct simt_site *at, uint64_t *p, uint32_t arrivals)
{
    struct simt_machine *m = simt_machine;
    struct thread *t = machine_enter(at);
    struct block *b = t->block;
    char where[128];
    bool is_shared = false;
    memory_region(m, p, sizeof *p, t, &is_shared);
    if (!is_shared || (uintptr_t)p % 8 || !arrivals || b->n_mbarriers == SIMT_MBARRIERS || mbarrier_of(b, p))
        report_fault(m, "mbarrier", NULL, NULL, "%s: cannot initialise an mbarrier for %u arrivals at %p",
                     report_where(at, where, sizeof where), arrivals, (void *)p);
    b->mbarriers[b->n_mbarriers++] =
        (struct mbarrier){.address = (uintptr_t)p,
                          .arrivals = arrivals,
                          .pending = arrivals,
                          .init = {.column = t->column, .epoch = t->epoch, .site = at}};
    machine_yield(m);
}

static void end_phase(struct simt_machine *m, struct mbarrier *b)
{
    if (b->pending || b->tx)
        return;
    knowledge_share(&m->clocks, &b->ended, &b->now);
    knowledge_drop(&m->clocks, &b->now);
    b->phase++;
    b->pending = b->arrivals;
    machine_progress(m);
}

void simt_emu_mbar_arrive(const struct simt_site *at, uint64_t *p, uint32_t expect_bytes)
{
    struct simt_machine *m = simt_machine;
    struct thread *t = machine_enter(at);
    char where[128];
    struct mbarrier *b = mbarrier_use(m, t, p, false);
    if (!b->pending)
        report_fault(m, "mbarrier", NULL, NULL, "%s: block %u thread %u arrives where all %u have arrived",
                     report_where(at, where, sizeof where), t->block->index, t->index, b->arrivals);
    if (!machine_mutes(m, at, SIMT_RELEASE)) {
        struct knowledge k = thread_release(m, t);
        knowledge_join(&m->clocks, &b->now, &k);
        knowledge_drop(&m->clocks, &k);
    }
    if (!machine_mutes(m, at, SIMT_WHOLE))
        b->tx += expect_bytes;
    b->pending--;
    end_phase(m, b);
    machine_progress(m);
    machine_yield(m);
}

bool simt_emu_mbar_try_wait(const struct simt_site *at, uint64_t *p, uint32_t parity)
{
    struct simt_machine *m = simt_machine;
    struct thread *t = machine_enter(at);
    if (machine_mutes(m, at, SIMT_WHOLE)) {
        machine_yield(m);
        return true;
    }
    struct mbarrier *b = mbarrier_use(m, t, p, false);
    bool ended = (b->phase & 1) != parity;
    if (ended)
        knowledge_join(&m->clocks, &t->knows, &b->ended);
    machine_poll(m, at, p, ended, b->phase);
    return ended;
}

/* Checks both ends of a copy, poisons the destination and puts it on its way. */
static void start_copy(struct simt_machine *m, struct thread *t, char *dst, const char *src, uint32_t bytes,
                       struct mbarrier *mbar, bool async_proxy)
{
    char where[128];
    bool is_shared = false, source_shared = false;
    memory_region(m, dst, bytes, t, &is_shared);
    const struct region *source = memory_region(m, src, bytes, t, &source_shared);
    if (!is_shared || !source || bytes % 16 || (uintptr_t)dst % 16 || (uintptr_t)src % 16)
        report_fault(m, "bounds", NULL, NULL, "%s: block %u thread %u copies %u bytes from %p to %p: %s",
                     report_where(t->at, where, sizeof where), t->block->index, t->index, bytes,
                     (const void *)src, (void *)dst,
                     !is_shared ? "the destination is not shared memory of the block"
                     : !source  ? "the source is not global memory of the kernel"
                                : "not 16-byte aligned");
    if (!SIMT_CHECKED) {
        memcpy(dst, src, bytes);
        if (mbar) {
            mbar->tx -= bytes;
            end_phase(m, mbar);
        }
        machine_progress(m);
        return;
    }
    if (!t->copy_column)
        t->copy_column = m->n_columns++;
    struct accessor by = memory_accessor(t, SIMT_WEAK, NULL);
    by.self.column = t->copy_column;
    by.self.epoch = ++t->copy_epoch;
    if (async_proxy) { /* it sees only what a proxy fence has shown it, of its own thread's writes too */
        by.writes_seen = t->knows.async;
        by.own_writes = false;
    }
    struct access other = {0};
    bool other_is_write = false;
    if (!(source->flags & SIMT_MAP_READ_ONLY) &&
        shadow_read(m->shadow, (uintptr_t)src, bytes, &by, false, &other, &other_is_write) == SHADOW_RACE)
        memory_report_race(m, src, bytes, false, &by.self, &other, other_is_write);
    if (shadow_write(m->shadow, (uintptr_t)dst, bytes, &by, &other, &other_is_write) == SHADOW_RACE)
        memory_report_race(m, dst, bytes, true, &by.self, &other, other_is_write);
    memset(dst, POISON, bytes);
    m->copies = room_for(m->copies, m->n_copies, &m->room_copies, sizeof *m->copies);
    m->copies[m->n_copies++] = (struct copy){dst, src, bytes, t->copy_epoch, t->group, t, mbar};
    if (!mbar && !t->oldest_copy)
        t->oldest_copy = t->copy_epoch;
    machine_progress(m);
}

void simt_emu_bulk_copy(const struct simt_site *at, void *dst, const void *src, uint32_t bytes, uint64_t *p)
{
    struct simt_machine *m = simt_machine;
    struct thread *t = machine_enter(at);
    struct mbarrier *b = mbarrier_use(m, t, p, true);
    start_copy(m, t, dst, src, bytes, b, true);
    machine_yield(m);
}

void simt_emu_cp_async16(const struct simt_site *at, void *dst, const void *src)
{
    struct simt_machine *m = simt_machine;
    struct thread *t = machine_enter(at);
    start_copy(m, t, dst, src, 16, NULL, false);
    machine_yield(m);
}

void simt_emu_cp_async_commit(void)
{
    struct thread *t = simt_machine->running;
    t->group_epoch[t->group++ % 16] = t->copy_epoch;
}

static bool landed_up_to(const struct thread *t, uint32_t epoch)
{
    return !t->oldest_copy || t->oldest_copy > epoch;
}

static void find_oldest(const struct simt_machine *m, struct thread *t)
{
    t->oldest_copy = 0;
    for (uint32_t i = 0; i < m->n_copies; i++) {
        const struct copy *c = &m->copies[i];
        if (c->issuer == t && !c->mbar && (!t->oldest_copy || c->epoch < t->oldest_copy))
            t->oldest_copy = c->epoch;
    }
}

static void learn_copies(struct simt_machine *m, struct knowledge *k, const struct thread *issuer,
                         uint32_t epoch)
{
    if (!SIMT_CHECKED)
        return;
    clock_raise(&m->clocks, &k->seen, issuer->copy_column, epoch);
    clock_raise(&m->clocks, &k->async, issuer->copy_column, epoch);
}

void simt_emu_cp_async_wait(const struct simt_site *at, uint32_t n)
{
    struct simt_machine *m = simt_machine;
    struct thread *t = machine_enter(at);
    if (machine_mutes(m, at, SIMT_WHOLE) || t->group <= n) {
        machine_yield(m);
        return;
    }
    uint32_t epoch = t->group_epoch[(t->group - n - 1) % 16];
    bool landed;
    while (landed = landed_up_to(t, epoch), machine_poll(m, at, m, landed, m->n_copies), !landed)
        ;
    if (epoch)
        learn_copies(m, &t->knows, t, epoch);
}

static void arrive_late(struct simt_machine *m, const struct late_arrival *l)
{
    if (l->epoch)
        learn_copies(m, &l->mbar->now, l->issuer, l->epoch);
    if (l->mbar->pending)
        l->mbar->pending--;
    end_phase(m, l->mbar);
}

void simt_emu_cp_async_arrive(const struct simt_site *at, uint64_t *p)
{
    struct simt_machine *m = simt_machine;
    struct thread *t = machine_enter(at);
    struct late_arrival l = {.issuer = t, .mbar = mbarrier_use(m, t, p, false), .epoch = t->copy_epoch};
    if (machine_mutes(m, at, SIMT_WHOLE)) /* dropped: the arrival comes at once, ahead of the copies */
        l.epoch = 0;
    if (l.epoch == 0 || landed_up_to(t, l.epoch)) {
        arrive_late(m, &l);
    } else {
        m->late = room_for(m->late, m->n_late, &m->room_late, sizeof *m->late);
        m->late[m->n_late++] = l;
    }
    machine_progress(m);
    machine_yield(m);
}

bool copies_land_one(struct simt_machine *m)
{
    if (!m->n_copies)
        return false;
    uint32_t which = machine_random(m, m->n_copies);
    struct copy c = m->copies[which];
    m->copies[which] = m->copies[--m->n_copies];
    memcpy(c.dst, c.src, c.bytes);
    if (!c.mbar && c.epoch == c.issuer->oldest_copy)
        find_oldest(m, c.issuer);
    if (c.mbar) {
        learn_copies(m, &c.mbar->now, c.issuer, c.epoch);
        c.mbar->tx -= c.bytes;
        end_phase(m, c.mbar);
    }
    for (uint32_t i = 0; i < m->n_late;) {
        if (m->late[i].issuer == c.issuer && landed_up_to(c.issuer, m->late[i].epoch)) {
            struct late_arrival l = m->late[i];
            m->late[i] = m->late[--m->n_late];
            arrive_late(m, &l);
        } else {
            i++;
        }
    }
    machine_progress(m);
    return true;
}

bool copies_in_flight(const struct simt_machine *m, const struct block *b)
{
    for (uint32_t i = 0; i < m->n_copies; i++)
        if (m->copies[i].issuer->block == b)
            return true;
    return false;
}

void copies_drop(struct simt_machine *m)
{
    m->n_copies = m->n_late = 0;
}
