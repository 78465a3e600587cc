/* host.c - what the program's host code does to pinned memory, if it reports that (tests/simt/host_watch.h),
 * in the clocks of every grid. */
#include "emulated.h"
#include "simt/host_watch.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>

static struct simt_host_watch *watch; /* the program's, or NULL */

static struct stream *next_machine(struct object *o)
{
    while (o && (o->kind != OBJECT_STREAM || !((struct stream *)o)->machine))
        o = o->next;
    return (struct stream *)o;
}

/* The machines stand still from the first of these to the second. */
static void enter_all(void)
{
    for (struct stream *s = next_machine(emulated.objects); s; s = next_machine(s->object.next))
        simt_host_enter(s->machine);
}

static void leave_all(void)
{
    for (struct stream *s = next_machine(emulated.objects); s; s = next_machine(s->object.next))
        simt_host_leave(s->machine);
}

static void act(enum simt_host_access what, void *p, size_t size, uint64_t *value)
{
    if (what == SIMT_HOST_ACQUIRE || what == SIMT_HOST_LOOK)
        *value = size == 8 ? __atomic_load_n((uint64_t *)p, __ATOMIC_SEQ_CST)
                           : __atomic_load_n((uint32_t *)p, __ATOMIC_SEQ_CST);
    else if (size == 8)
        __atomic_store_n((uint64_t *)p, *value, __ATOMIC_SEQ_CST);
    else
        __atomic_store_n((uint32_t *)p, (uint32_t)*value, __ATOMIC_SEQ_CST);
}

/* SIMT_HOST_MUTE: the word at this offset of its allocation is as if its accesses had no order. */
static enum simt_host_access weakened(enum simt_host_access what, const struct buffer *b, const void *p)
{
    if ((const char *)p - b->memory != emulated.settings.host_mute)
        return what;
    return what == SIMT_HOST_ACQUIRE ? SIMT_HOST_LOOK : what == SIMT_HOST_RELEASE ? SIMT_HOST_SET : what;
}

static bool access_pinned(enum simt_host_access what, void *p, size_t size, uint64_t *value, const void *pc)
{
    struct simt_report report;
    pthread_mutex_lock(&emulated.lock);
    const struct buffer *b = buffer_of(p, size);
    if (!b || !b->is_host || !b->is_mapped)
        return call_end(false);
    what = weakened(what, b, p);
    enter_all();
    for (struct stream *s = next_machine(emulated.objects); s; s = next_machine(s->object.next)) {
        if (emulated.sticky)
            break;
        simt_host_at(s->machine, what, p, size, pc);
        if (simt_host_verdict(s->machine, &report) == 0)
            continue;
        fprintf(stderr, "SIMT emulator: the host, after a launch: ");
        simt_report_print(&report, stderr);
        emulated_poison(RESULT_ILLEGAL_ADDRESS);
    }
    if (value)
        act(what, p, size, value);
    leave_all();
    return call_end(true);
}

void host_watch_find(void)
{
#ifdef SIMT_FAST
    return; /* it has no clocks */
#endif
    watch = dlsym(RTLD_DEFAULT, "simt_host_watch");
    if (watch)
        atomic_store(&watch->access, access_pinned);
}

void host_watch_pinned(const struct buffer *b)
{
    uintptr_t low = (uintptr_t)b->memory, high = low + b->bytes;
    if (!watch)
        return;
    if (!atomic_load(&watch->low) || low < atomic_load(&watch->low))
        atomic_store(&watch->low, low);
    if (high > atomic_load(&watch->high))
        atomic_store(&watch->high, high);
}

void host_joins(struct stream *s)
{
    if (s->machine && s->unjoined) {
        simt_host_enter(s->machine);
        simt_host_joins(s->machine);
        simt_host_leave(s->machine);
    }
    s->unjoined = false;
}

void host_joins_all(void)
{
    for (struct stream *s = next_machine(emulated.objects); s; s = next_machine(s->object.next))
        host_joins(s);
}
