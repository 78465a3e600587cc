/* memory.c - accesses of the kernels: checks the memory's owner and the order, and passes on what ordered
 * accesses release. */
#include "machine.h"

#include <link.h>
#include <stdlib.h>
#include <string.h>

static bool inside(uintptr_t at, size_t size, uintptr_t start, uintptr_t end)
{
    return at >= start && at < end && size <= end - at;
}

void simt_map(struct simt_machine *m, void *memory, size_t size, uint32_t flags, const char *name)
{
    if (m->n_regions == m->room_regions) {
        m->room_regions = m->room_regions ? 2 * m->room_regions : 64;
        m->regions = realloc(m->regions, m->room_regions * sizeof *m->regions);
        if (!m->regions)
            abort(); /* a test tool: nothing sensible is left to do */
    }
    uintptr_t start = (uintptr_t)memory;
    uint32_t i = m->n_regions++;
    for (; i && m->regions[i - 1].start > start; i--)
        m->regions[i] = m->regions[i - 1];
    m->regions[i] = (struct region){start, start + size, flags, name};
    m->last_region = NULL;
}

void simt_unmap_all(struct simt_machine *m)
{
    m->n_regions = 0;
    m->last_region = NULL;
}

/* The one with the last start that is not behind `at`, if it reaches over all bytes. */
static const struct region *region_of(struct simt_machine *m, uintptr_t at, size_t size)
{
    if (m->last_region && inside(at, size, m->last_region->start, m->last_region->end))
        return m->last_region;
    uint32_t low = 0, high = m->n_regions;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (m->regions[middle].start <= at)
            low = middle + 1;
        else
            high = middle;
    }
    if (!low || !inside(at, size, m->regions[low - 1].start, m->regions[low - 1].end))
        return NULL;
    m->last_region = &m->regions[low - 1];
    return m->last_region;
}

static int find_constants(struct dl_phdr_info *info, size_t size, void *context)
{
    (void)size;
    struct simt_machine *m = context;
    uintptr_t here = (uintptr_t)find_constants;
    bool is_this = false;
    uintptr_t start = UINTPTR_MAX, end = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        uintptr_t at = info->dlpi_addr + p->p_vaddr;
        if (p->p_type != PT_LOAD)
            continue;
        is_this |= inside(here, 1, at, at + p->p_memsz);
        start = at < start ? at : start;
        end = at + p->p_memsz > end ? at + p->p_memsz : end;
    }
    if (!is_this)
        return 0;
    m->constants = start;
    m->constants_end = end;
    return 1;
}

void memory_find_constants(struct simt_machine *m)
{
    dl_iterate_phdr(find_constants, m);
}

static const struct carve *carve_of(const struct block *b, uintptr_t at, size_t size)
{
    for (uint32_t i = 0; i < b->n_carves; i++) {
        uintptr_t start = (uintptr_t)b->carves[i].memory;
        if (inside(at, size, start, start + b->carves[i].bytes))
            return &b->carves[i];
    }
    return NULL;
}

/* NULL for shared memory of t's block (*is_shared) and for memory that no allocation has (!*is_shared). */
const struct region *memory_region(struct simt_machine *m, const void *p, size_t size, const struct thread *t,
                                   bool *is_shared)
{
    uintptr_t at = (uintptr_t)p;
    *is_shared = carve_of(t->block, at, size) != NULL;
    return *is_shared ? NULL : region_of(m, at, size);
}

static void report_bounds(struct simt_machine *m, const struct thread *t, const void *p, size_t size,
                          bool write, const void *pc)
{
    uintptr_t at = (uintptr_t)p;
    char whose[160] = "nothing the kernel was given";
    for (uint32_t i = 0; i < m->n_regions; i++)
        if (at + 4096 >= m->regions[i].start && at < m->regions[i].end + 4096)
            snprintf(whose, sizeof whose, "%s%+ld, which has %zu bytes", m->regions[i].name,
                     (long)(at - m->regions[i].start), (size_t)(m->regions[i].end - m->regions[i].start));
    for (uint32_t i = 0; i < m->n_threads; i++)
        if (inside(at, 1, (uintptr_t)m->threads[i].fiber.stack,
                   (uintptr_t)m->threads[i].fiber.stack + m->threads[i].fiber.stack_size))
            snprintf(whose, sizeof whose, "local memory of block %u thread %u", m->threads[i].block->index,
                     m->threads[i].index);
    for (uint32_t b = 0; b < m->n_blocks; b++)
        for (uint32_t i = 0; i < m->blocks[b].n_carves; i++) {
            const struct carve *c = &m->blocks[b].carves[i];
            uintptr_t start = (uintptr_t)c->memory;
            if (at + SIMT_GUARD >= start && at < start + c->bytes + SIMT_GUARD)
                snprintf(whose, sizeof whose, "shared memory of block %u, part at %zu%+ld of %zu bytes", b,
                         c->offset, (long)(at - start), c->bytes);
        }
    report_fault(m, "bounds", pc, NULL, "%s of %zu bytes by block %u thread %u at %p: %s",
                 write ? "store" : "load", size, t->block->index, t->index, p, whose);
}

struct accessor memory_accessor(const struct thread *t, enum simt_scope scope, const void *pc)
{
    return (struct accessor){
        .self = {.column = t->column,
                 .epoch = t->epoch,
                 .scope = (uint8_t)scope,
                 .block = (uint16_t)t->block->index,
                 .pc = pc,
                 .site = t->at},
        .seen = t->knows.seen,
        .writes_seen = t->knows.seen,
        .own_column = t->column,
        .own_epoch = UINT32_MAX,
        .own_writes = true,
    };
}

/* After the run, for the host's accesses, blocks are known by the places of their threads alone. */
static void agent_text(struct simt_machine *m, const struct access *a, char *out, size_t size)
{
    char where[128];
    uint32_t per_block = m->launch.n_threads, column = a->column;
    if (!column) {
        snprintf(out, size, "the host");
        return;
    }
    bool is_copy = m->runs && column > m->n_threads;
    for (uint32_t i = 0; is_copy && i < m->n_threads; i++)
        if (m->threads[i].copy_column == a->column)
            column = m->threads[i].column;
    uint32_t block = (column - 1) / per_block;
    if (m->runs && column <= m->n_threads)
        block = m->threads[column - 1].block->index;
    snprintf(out, size, "%sblock %u thread %u (last word: %s)", is_copy ? "an asynchronous copy of " : "",
             block, (column - 1) % per_block, report_where(a->site, where, sizeof where));
}

static void race_text(struct simt_machine *m, const void *p, size_t size, bool write,
                      const struct access *mine, const struct access *other, bool other_is_write, char *out,
                      size_t room)
{
    char a[220], b[220], name[64] = "shared memory";
    for (uint32_t i = 0; i < m->n_regions; i++)
        if (inside((uintptr_t)p, 1, m->regions[i].start, m->regions[i].end))
            snprintf(name, sizeof name, "%s%+ld", m->regions[i].name,
                     (long)((uintptr_t)p - m->regions[i].start));
    agent_text(m, mine, a, sizeof a);
    agent_text(m, other, b, sizeof b);
    snprintf(out, room, "%s of %zu bytes at %p (%s) by %s is not ordered after the %s by %s",
             write ? "store" : "load", size, p, name, a, other_is_write ? "store" : "load", b);
}

void memory_report_race(struct simt_machine *m, const void *p, size_t size, bool write,
                        const struct access *mine, const struct access *other, bool other_is_write)
{
    char text[sizeof m->report->text];
    race_text(m, p, size, write, mine, other, other_is_write, text, sizeof text);
    report_fault(m, "race", mine->pc, other->pc, "%s", text);
}

void memory_note_race(struct simt_machine *m, const void *p, size_t size, bool write,
                      const struct access *mine, const struct access *other, bool other_is_write)
{
    char text[sizeof m->report->text];
    race_text(m, p, size, write, mine, other, other_is_write, text, sizeof text);
    report_note(m, "race", "%s", text);
    m->report->pc[0] = mine->pc;
    m->report->pc[1] = other->pc;
}

void memory_access(struct simt_machine *m, const void *p, size_t size, bool write, enum simt_scope scope,
                   const void *pc)
{
    if (!SIMT_CHECKED)
        return;
    struct thread *t = m->running;
    uintptr_t at = (uintptr_t)p, stack = (uintptr_t)t->fiber.stack;
    if (inside(at, size, stack, stack + t->fiber.stack_size))
        return;
    if (!write &&
        inside(at, size, (uintptr_t)m->launch.args, (uintptr_t)m->launch.args + sizeof m->launch.args))
        return;
    bool is_shared = false;
    const struct region *region = memory_region(m, p, size, t, &is_shared);
    if (!region && !is_shared) {
        if (!write && inside(at, size, m->constants, m->constants_end))
            return;
        report_bounds(m, t, p, size, write, pc);
    }
    if (write && region && (region->flags & SIMT_MAP_READ_ONLY))
        report_fault(m, "bounds", pc, NULL,
                     "store of %zu bytes by block %u thread %u to %s, which is read-only", size,
                     t->block->index, t->index, region->name);
    if (region && (region->flags & SIMT_MAP_READ_ONLY) && !(region->flags & SIMT_MAP_HOST))
        return; /* no thread writes it, nor the host: no read of it races */
    struct accessor by = memory_accessor(t, scope, pc);
    struct access other = {0};
    bool other_is_write = false;
    enum shadow_verdict v = write ? shadow_write(m->shadow, at, size, &by, &other, &other_is_write)
                                  : shadow_read(m->shadow, at, size, &by, is_shared, &other, &other_is_write);
    if (v == SHADOW_RACE)
        memory_report_race(m, p, size, write, &by.self, &other, other_is_write);
    if (v == SHADOW_NEVER_WRITTEN)
        report_fault(m, "uninitialised", pc, NULL,
                     "load of %zu bytes of shared memory that block %u has never written", size,
                     t->block->index);
}

/* The compiler's callbacks: one before every plain access of a kernel. */
#define PLAIN(n)                                                                                             \
    void __sanitizer_cov_load##n(const void *p);                                                             \
    void __sanitizer_cov_load##n(const void *p)                                                              \
    {                                                                                                        \
        if (simt_machine)                                                                                    \
            memory_access(simt_machine, p, n, false, SIMT_WEAK, __builtin_return_address(0));                \
    }                                                                                                        \
    void __sanitizer_cov_store##n(const void *p);                                                            \
    void __sanitizer_cov_store##n(const void *p)                                                             \
    {                                                                                                        \
        if (simt_machine)                                                                                    \
            memory_access(simt_machine, p, n, true, SIMT_WEAK, __builtin_return_address(0));                 \
    }
#pragma GCC visibility push(default)
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)
#pragma GCC visibility pop

/* Checks that an ordered access touches memory that it may. */
static void check_ordered(struct simt_machine *m, const struct thread *t, const void *p, uint32_t size,
                          enum simt_scope scope, bool write)
{
    char where[128];
    bool is_shared = false;
    const struct region *region = memory_region(m, p, size, t, &is_shared);
    if (is_shared || (uintptr_t)p % size)
        report_fault(m, "misuse", NULL, NULL, "%s on %s", report_where(t->at, where, sizeof where),
                     is_shared ? "shared memory" : "an unaligned address");
    if (region && (region->flags & SIMT_MAP_HOST) && scope != SIMT_SYS)
        report_fault(m, "scope", NULL, NULL, "%s on %s, which the host uses too: gpu scope does not reach it",
                     report_where(t->at, where, sizeof where), region->name);
    memory_access(m, p, size, write, machine_mutes(m, t->at, SIMT_SCOPE) ? SIMT_CTA : scope, NULL);
    if (region && (region->flags & SIMT_MAP_HOST) && !write)
        m->host_polled = true;
}

static struct released **released_slot(struct simt_machine *m, const void *p)
{
    struct released **r = &m->released[((uintptr_t)p / 4 * 0x9E3779B97F4A7C15u) >> 54];
    while (*r && (*r)->address != (uintptr_t)p)
        r = &(*r)->next;
    return r;
}

static struct released *released_make(struct simt_machine *m, const void *p)
{
    struct released **r = released_slot(m, p);
    if (!*r) {
        *r = calloc(1, sizeof **r);
        if (!*r)
            abort(); /* a test tool: nothing sensible is left to do */
        (*r)->address = (uintptr_t)p;
    }
    return *r;
}

void memory_forget(struct simt_machine *m)
{
    for (uint32_t i = 0; i < RELEASED_BUCKETS; i++)
        while (m->released[i]) {
            struct released *r = m->released[i];
            m->released[i] = r->next;
            knowledge_drop(&m->clocks, &r->knows);
            free(r);
        }
}

void thread_next_epoch(struct simt_machine *m, struct thread *t)
{
    (void)m;
    t->epoch++;
}

struct knowledge thread_release(struct simt_machine *m, struct thread *t)
{
    struct knowledge k = {0};
    if (!SIMT_CHECKED)
        return k;
    knowledge_share(&m->clocks, &k, &t->knows);
    clock_raise(&m->clocks, &k.seen, t->column, t->epoch);
    thread_next_epoch(m, t);
    return k;
}

/* Takes up what the address carries: at once, or at the next fence. */
static void take_up(struct simt_machine *m, struct thread *t, const void *p, bool acquire)
{
    const struct released *r = SIMT_CHECKED ? *released_slot(m, p) : NULL;
    if (r)
        knowledge_join(&m->clocks, acquire ? &t->knows : &t->loose, &r->knows);
}

/* Adds t's release at p, or what its last fence gives a relaxed write. ends: p carries nothing else any more.
 */
static void hand_on(struct simt_machine *m, struct thread *t, const void *p, bool release, bool ends)
{
    if (!SIMT_CHECKED)
        return;
    struct released *r = released_make(m, p);
    if (ends)
        knowledge_drop(&m->clocks, &r->knows);
    if (release) {
        struct knowledge k = thread_release(m, t);
        knowledge_join(&m->clocks, &r->knows, &k);
        knowledge_drop(&m->clocks, &k);
    } else {
        knowledge_join(&m->clocks, &r->knows, &t->fenced);
    }
}

void memory_take_up(struct simt_machine *m, const void *p, struct knowledge *into)
{
    const struct released *r = *released_slot(m, p);
    if (r)
        knowledge_join(&m->clocks, into, &r->knows);
}

void memory_give(struct simt_machine *m, const void *p, const struct knowledge *what)
{
    struct released *r = released_make(m, p);
    knowledge_drop(&m->clocks, &r->knows);
    knowledge_share(&m->clocks, &r->knows, what);
}

static bool keeps(struct simt_machine *m, const struct simt_site *at, enum simt_aspect aspect)
{
    return (at->aspects & (uint32_t)aspect) && !machine_mutes(m, at, aspect);
}

/* A prefetch has no effect, but its address is checked. */
void simt_emu_prefetch(const void *p)
{
    struct simt_machine *m = simt_machine;
    bool is_shared = false;
    if (SIMT_CHECKED && (!memory_region(m, p, 1, m->running, &is_shared) || is_shared))
        report_bounds(m, m->running, p, 1, false, __builtin_return_address(0));
}

uint64_t simt_emu_load(const struct simt_site *at, const void *p, uint32_t size, enum simt_scope scope)
{
    struct simt_machine *m = simt_machine;
    struct thread *t = machine_enter(at);
    check_ordered(m, t, p, size, scope, false);
    uint64_t v = size == 8 ? __atomic_load_n((const uint64_t *)p, __ATOMIC_ACQUIRE)
                           : __atomic_load_n((const uint32_t *)p, __ATOMIC_ACQUIRE);
    take_up(m, t, p, keeps(m, at, SIMT_ACQUIRE));
    machine_poll(m, at, p, false, v);
    return v;
}

void simt_emu_store(const struct simt_site *at, void *p, uint32_t size, uint64_t v, enum simt_scope scope)
{
    struct simt_machine *m = simt_machine;
    struct thread *t = machine_enter(at);
    check_ordered(m, t, p, size, scope, true);
    hand_on(m, t, p, keeps(m, at, SIMT_RELEASE),
            true); /* a store ends the release sequence of those before it */
    if (size == 8)
        __atomic_store_n((uint64_t *)p, v, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint32_t *)p, (uint32_t)v, __ATOMIC_RELEASE);
    machine_progress(m);
    machine_yield(m);
}

uint32_t simt_emu_add(const struct simt_site *at, uint32_t *p, uint32_t v, enum simt_scope scope)
{
    struct simt_machine *m = simt_machine;
    struct thread *t = machine_enter(at);
    check_ordered(m, t, p, 4, scope, true);
    take_up(m, t, p, keeps(m, at, SIMT_ACQUIRE));
    hand_on(m, t, p, keeps(m, at, SIMT_RELEASE), false);
    uint32_t old = __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL);
    machine_progress(m);
    machine_yield(m);
    return old;
}

/* Orders nothing: only adds among themselves are no race. */
uint32_t simt_emu_add_shared(const struct simt_site *at, uint32_t *p, uint32_t v)
{
    struct simt_machine *m = simt_machine;
    struct thread *t = machine_enter(at);
    char where[128];
    bool is_shared = false;
    memory_region(m, p, sizeof *p, t, &is_shared);
    if (!is_shared || (uintptr_t)p % sizeof *p)
        report_fault(m, "misuse", NULL, NULL, "%s on %s", report_where(t->at, where, sizeof where),
                     is_shared ? "an unaligned address" : "what is not the block's shared memory");
    memory_access(m, p, sizeof *p, false, SIMT_CTA, NULL); /* it must have been written */
    memory_access(m, p, sizeof *p, true, SIMT_CTA, NULL);
    uint32_t old = *p;
    *p = old + v;
    machine_progress(m);
    machine_yield(m);
    return old;
}

/* At cta scope it orders nothing here: no kernel hands anything over inside a block by fences. */
void simt_emu_fence(const struct simt_site *at, enum simt_scope scope)
{
    struct simt_machine *m = simt_machine;
    struct thread *t = machine_enter(at);
    if (scope != SIMT_CTA && !machine_mutes(m, at, SIMT_WHOLE) && !machine_mutes(m, at, SIMT_SCOPE)) {
        knowledge_join(&m->clocks, &t->knows, &t->loose);
        knowledge_drop(&m->clocks, &t->fenced);
        t->fenced = thread_release(m, t);
    }
    machine_yield(m);
}

void simt_emu_fence_proxy(const struct simt_site *at)
{
    struct simt_machine *m = simt_machine;
    struct thread *t = machine_enter(at);
    if (SIMT_CHECKED && !machine_mutes(m, at, SIMT_WHOLE)) {
        clock_join(&m->clocks, &t->knows.async, t->knows.seen);
        clock_raise(&m->clocks, &t->knows.async, t->column, t->epoch);
        thread_next_epoch(m, t);
    }
    machine_yield(m);
}

/* Every part gets an allocation of its own, with guards, so that running over its end is not the next part.
 */
void *simt_emu_carve(const struct simt_site *at, size_t offset, size_t bytes)
{
    struct simt_machine *m = simt_machine;
    struct thread *t = machine_enter(at);
    struct block *b = t->block;
    char where[128];
    for (uint32_t i = 0; i < b->n_carves; i++) {
        const struct carve *c = &b->carves[i];
        if (c->offset == offset && c->bytes == bytes)
            return c->memory;
        if (offset < c->offset + c->bytes && c->offset < offset + bytes)
            report_fault(m, "misuse", NULL, NULL, "%s: bytes %zu to %zu of shared memory overlap %zu to %zu",
                         report_where(at, where, sizeof where), offset, offset + bytes, c->offset,
                         c->offset + c->bytes);
    }
    if (offset % 16 || offset + bytes > m->launch.shared_bytes || b->n_carves == SIMT_CARVES)
        report_fault(m, "misuse", NULL, NULL,
                     "%s: bytes %zu to %zu of the block's %zu bytes of shared memory",
                     report_where(at, where, sizeof where), offset, offset + bytes, m->launch.shared_bytes);
    char *memory = aligned_alloc(128, (2 * SIMT_GUARD + bytes + 127) / 128 * 128);
    if (!memory)
        abort(); /* a test tool: nothing sensible is left to do */
    memset(memory, 0xA5, 2 * SIMT_GUARD + bytes);
    b->carves[b->n_carves++] = (struct carve){offset, bytes, memory + SIMT_GUARD};
    return memory + SIMT_GUARD;
}

size_t simt_emu_shared_bytes(void)
{
    return simt_machine->launch.shared_bytes;
}

void memory_drop_block(struct simt_machine *m, struct block *b)
{
    for (uint32_t i = 0; i < b->n_carves; i++) {
        const struct carve *c = &b->carves[i];
        if (SIMT_CHECKED)
            shadow_forget(m->shadow, (uintptr_t)c->memory, (c->bytes + 3) / 4 * 4);
        free(c->memory - SIMT_GUARD);
    }
    b->n_carves = 0;
}
