#include "shadow.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_WORDS 256
#define PAGE_BYTES (PAGE_WORDS * 4)
#define MAX_READS  64 /* further concurrent readers replace one at random: a race with them may go unseen */

struct cell {
    struct access write;
    struct access read; /* the first of the reads; the others are in `more` */
    struct access *more;
    uint32_t n_more, room;
    struct cell *bytes; /* 4 cells, once split */
};

struct shadow_page {
    uintptr_t number;
    uint32_t run;
    struct shadow_page *next;
    struct cell cells[PAGE_WORDS];
};

/* Memory that is given back all at once. */
struct slab {
    struct slab *next;
    size_t used, size;
    _Alignas(16) char memory[];
};

#define N_BUCKETS 4096
struct shadow {
    struct shadow_page *buckets[N_BUCKETS], *last;
    uint32_t run;
    uint32_t random;
    struct slab *slabs, *current;
};

static void *must(void *p)
{
    if (!p)
        abort(); /* a test tool: nothing sensible is left to do */
    return p;
}

struct shadow *shadow_open(void)
{
    struct shadow *s = calloc(1, sizeof *s);
    if (s)
        s->run = 1;
    return s;
}

void shadow_close(struct shadow *s)
{
    if (!s)
        return;
    for (int i = 0; i < N_BUCKETS; i++)
        while (s->buckets[i]) {
            struct shadow_page *p = s->buckets[i];
            s->buckets[i] = p->next;
            free(p);
        }
    while (s->slabs) {
        struct slab *slab = s->slabs;
        s->slabs = slab->next;
        free(slab);
    }
    free(s);
}

void shadow_reset(struct shadow *s)
{
    s->run++;
    s->random = 1;
    for (struct slab *slab = s->slabs; slab; slab = slab->next)
        slab->used = 0;
    s->current = s->slabs;
}

static void *slab_take(struct shadow *s, size_t size)
{
    while (s->current && s->current->used + size > s->current->size)
        s->current = s->current->next;
    if (!s->current) {
        size_t room = size > 65536 ? size : 65536;
        s->current = must(malloc(sizeof *s->current + room));
        *s->current = (struct slab){.next = s->slabs, .size = room};
        s->slabs = s->current;
    }
    void *p = s->current->memory + s->current->used;
    s->current->used += (size + 15) & ~(size_t)15;
    return p;
}

static struct shadow_page *page_of(struct shadow *s, uintptr_t address)
{
    uintptr_t number = address / PAGE_BYTES;
    struct shadow_page *p = s->last;
    if (!p || p->number != number) {
        struct shadow_page **bucket = &s->buckets[(number * 0x9E3779B97F4A7C15u) >> 52];
        for (p = *bucket; p && p->number != number; p = p->next)
            ;
        if (!p) {
            p = must(malloc(sizeof *p));
            p->number = number;
            p->run = 0;
            p->next = *bucket;
            *bucket = p;
        }
        s->last = p;
    }
    if (p->run != s->run) {
        memset(p->cells, 0, sizeof p->cells);
        p->run = s->run;
    }
    return p;
}

void shadow_forget(struct shadow *s, uintptr_t address, size_t size)
{
    for (uintptr_t at = address; at < address + size; at += 4)
        page_of(s, at)->cells[at / 4 % PAGE_WORDS] = (struct cell){0};
}

static bool ordered(const struct access *a, const struct accessor *by, bool a_is_write)
{
    if (!a->epoch)
        return true;
    if (a->column == by->own_column && a->epoch <= by->own_epoch && (!a_is_write || by->own_writes))
        return true;
    return a->epoch <= clock_at(a_is_write ? by->writes_seen : by->seen, a->column);
}

static bool conflict(const struct access *a, const struct accessor *by, bool a_is_write)
{
    return !(a->strong && by->self.strong) && !ordered(a, by, a_is_write);
}

static void add_read(struct shadow *s, struct cell *c, const struct accessor *by)
{
    /* Reads that happened before this one are covered by it, unless it is strong and they are not. */
    uint32_t kept = 0;
    for (uint32_t i = 0; i < c->n_more; i++)
        if (!ordered(&c->more[i], by, false) || (by->self.strong && !c->more[i].strong))
            c->more[kept++] = c->more[i];
    c->n_more = kept;
    if (!c->read.epoch || (ordered(&c->read, by, false) && (!by->self.strong || c->read.strong))) {
        c->read = by->self;
        return;
    }
    if (c->n_more == MAX_READS) {
        s->random = s->random * 1664525 + 1013904223;
        c->more[(s->random >> 16) % MAX_READS] = by->self;
        return;
    }
    if (c->n_more == c->room) {
        uint32_t room = c->room ? c->room * 2 : 4;
        struct access *more = slab_take(s, room * sizeof *more);
        if (c->n_more)
            memcpy(more, c->more, c->n_more * sizeof *more);
        c->more = more;
        c->room = room;
    }
    c->more[c->n_more++] = by->self;
}

static enum shadow_verdict cell_read(struct shadow *s, struct cell *c, const struct accessor *by,
                                     bool must_be_written, struct access *other, bool *other_is_write)
{
    if (conflict(&c->write, by, true)) {
        *other = c->write;
        *other_is_write = true;
        return SHADOW_RACE;
    }
    if (must_be_written && !c->write.epoch)
        return SHADOW_NEVER_WRITTEN;
    add_read(s, c, by);
    return SHADOW_FINE;
}

static enum shadow_verdict cell_write(struct cell *c, const struct accessor *by, struct access *other,
                                      bool *other_is_write)
{
    const struct access *bad = NULL;
    if (conflict(&c->write, by, true))
        bad = &c->write;
    *other_is_write = bad != NULL;
    if (!bad && conflict(&c->read, by, false))
        bad = &c->read;
    for (uint32_t i = 0; !bad && i < c->n_more; i++)
        if (conflict(&c->more[i], by, false))
            bad = &c->more[i];
    if (bad) {
        *other = *bad;
        return SHADOW_RACE;
    }
    c->write = by->self;
    c->read.epoch = 0;
    c->n_more = 0;
    return SHADOW_FINE;
}

static void split(struct shadow *s, struct cell *c)
{
    struct cell *bytes = slab_take(s, 4 * sizeof *bytes);
    for (int i = 0; i < 4; i++) {
        bytes[i] = *c;
        bytes[i].more = NULL;
        bytes[i].room = 0;
        if (c->n_more) {
            bytes[i].more = slab_take(s, c->n_more * sizeof *c->more);
            memcpy(bytes[i].more, c->more, c->n_more * sizeof *c->more);
            bytes[i].room = c->n_more;
        }
    }
    c->bytes = bytes;
}

/* Calls for every cell of the range. */
static enum shadow_verdict walk(struct shadow *s, uintptr_t address, size_t size, const struct accessor *by,
                                bool write, bool must_be_written, struct access *other, bool *other_is_write)
{
    for (uintptr_t at = address, end = address + size; at < end;) {
        struct cell *c = &page_of(s, at)->cells[at / 4 % PAGE_WORDS];
        size_t step = 4;
        if (at % 4 || end - at < 4 || c->bytes) {
            if (!c->bytes)
                split(s, c);
            c = &c->bytes[at % 4];
            step = 1;
        }
        enum shadow_verdict v = write ? cell_write(c, by, other, other_is_write)
                                      : cell_read(s, c, by, must_be_written, other, other_is_write);
        if (v != SHADOW_FINE)
            return v;
        at += step;
    }
    return SHADOW_FINE;
}

enum shadow_verdict shadow_read(struct shadow *s, uintptr_t address, size_t size, const struct accessor *by,
                                bool must_be_written, struct access *other, bool *other_is_write)
{
    return walk(s, address, size, by, false, must_be_written, other, other_is_write);
}

enum shadow_verdict shadow_write(struct shadow *s, uintptr_t address, size_t size, const struct accessor *by,
                                 struct access *other, bool *other_is_write)
{
    return walk(s, address, size, by, true, false, other, other_is_write);
}
