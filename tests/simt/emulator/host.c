/* host.c - the host's column: its accesses to memory that it shares with a grid, ordered and checked like
 * those of a thread. Declared in emulator.h. */
#include "machine.h"

#include <string.h>

#define HOST_COLUMN 0

static struct accessor accessor(const struct host *h, enum simt_scope scope)
{
    return (struct accessor){
        .self = {.column = HOST_COLUMN, .epoch = h->epoch, .scope = (uint8_t)scope, .pc = h->pc},
        .seen = h->knows.seen,
        .writes_seen = h->knows.seen,
        .own_column = HOST_COLUMN,
        .own_epoch = UINT32_MAX,
        .own_writes = true,
    };
}

/* The run's report while it runs, the host's own afterwards. */
static void report(struct simt_machine *m, const void *p, size_t size, bool write, const struct access *other,
                   bool other_is_write)
{
    struct simt_report *of_run = m->report;
    struct access mine = accessor(&m->host_agent, SIMT_WEAK).self;
    if (!m->runs)
        m->report = &m->host_agent.late;
    memory_note_race(m, p, size, write, &mine, other, other_is_write);
    m->report = of_run;
}

static void access_memory(struct simt_machine *m, const void *p, size_t size, bool write,
                          enum simt_scope scope)
{
    struct accessor by = accessor(&m->host_agent, scope);
    struct access other = {0};
    bool other_is_write = false;
    enum shadow_verdict v =
        write ? shadow_write(m->shadow, (uintptr_t)p, size, &by, &other, &other_is_write)
              : shadow_read(m->shadow, (uintptr_t)p, size, &by, false, &other, &other_is_write);
    if (v == SHADOW_RACE)
        report(m, p, size, write, &other, other_is_write);
}

/* From now on the word carries all that the host knows, or nothing. */
static void store(struct simt_machine *m, const void *p, bool release)
{
    struct host *h = &m->host_agent;
    struct knowledge k = {0};
    if (release) {
        knowledge_share(&m->clocks, &k, &h->knows);
        clock_raise(&m->clocks, &k.seen, HOST_COLUMN, h->epoch);
        h->epoch++;
    }
    memory_give(m, p, &k);
    knowledge_drop(&m->clocks, &k);
}

void simt_host_at(struct simt_machine *m, enum simt_host_access what, const void *p, size_t size,
                  const void *pc)
{
    if (!SIMT_CHECKED || m->reported)
        return;
    bool ordered = what != SIMT_HOST_READ && what != SIMT_HOST_WRITE;
    bool write = what == SIMT_HOST_WRITE || what == SIMT_HOST_RELEASE || what == SIMT_HOST_SET;
    m->host_agent.pc = pc;
    access_memory(m, p, size, write, ordered ? SIMT_SYS : SIMT_WEAK);
    if (what == SIMT_HOST_ACQUIRE)
        memory_take_up(m, p, &m->host_agent.knows);
    if (ordered && write)
        store(m, p, what == SIMT_HOST_RELEASE);
}

void simt_host(struct simt_machine *m, enum simt_host_access what, const void *p, size_t size)
{
    simt_host_at(m, what, p, size, NULL);
}

void simt_host_joins(struct simt_machine *m)
{
    memory_forget(m);
    host_forget(m);
    shadow_reset(m->shadow, 0);
}

void simt_host_enter(struct simt_machine *m)
{
    struct door *d = &m->door;
    pthread_mutex_lock(&d->turnstile);
    atomic_store(&d->waits, true);
    pthread_mutex_lock(&d->inside);
    atomic_store(&d->waits, false);
    pthread_mutex_unlock(&d->turnstile);
}

void simt_host_leave(struct simt_machine *m)
{
    pthread_mutex_unlock(&m->door.inside);
}

void host_shut(struct simt_machine *m)
{
    pthread_mutex_lock(&m->door.inside);
}

void host_open(struct simt_machine *m)
{
    pthread_mutex_unlock(&m->door.inside);
}

void host_let_in(struct simt_machine *m)
{
    struct door *d = &m->door;
    if (!atomic_load_explicit(&d->waits, memory_order_relaxed))
        return;
    pthread_mutex_unlock(&d->inside);
    pthread_mutex_lock(
        &d->turnstile); /* the host is in then; without it this thread would be the first again */
    pthread_mutex_unlock(&d->turnstile);
    pthread_mutex_lock(&d->inside);
}

void simt_host_owns_all(struct simt_machine *m)
{
    struct accessor by = accessor(&m->host_agent, SIMT_WEAK);
    struct access other;
    bool other_is_write;
    for (uint32_t i = 0; SIMT_CHECKED && !m->reported && i < m->n_regions; i++) {
        const struct region *r = &m->regions[i];
        uintptr_t at =
            shadow_find_unordered(m->shadow, r->start, r->end - r->start, &by, &other, &other_is_write);
        if (at)
            report(m, (const void *)at, 1, true, &other, other_is_write);
    }
}

int simt_host_verdict(struct simt_machine *m, struct simt_report *out)
{
    if (!*m->host_agent.late.kind)
        return 0;
    *out = m->host_agent.late;
    return -1;
}

bool host_turn(struct simt_machine *m)
{
    const struct simt_host_program *program = m->launch.host;
    if (!program || !program->turn(program->context))
        return false;
    machine_progress(m);
    return true;
}

void host_forget(struct simt_machine *m)
{
    knowledge_drop(&m->clocks, &m->host_agent.knows);
    m->host_agent = (struct host){.epoch = 1};
}
