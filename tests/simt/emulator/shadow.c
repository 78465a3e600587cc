#include "shadow.h"
#include "machine.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_WORDS 256
#define PAGE_BYTES (PAGE_WORDS * 4)
/* Concurrent readers of a cell: a list, then a table, in which one may take the place of another, other ones
 * in another run: a race with that one goes unseen. */
#define LIST_READS  16
#define TABLE_READS 64

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
    uint32_t random; /* of the run */
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

void shadow_reset(struct shadow *s, uint32_t random)
{
    s->run++;
    s->random = random;
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

/* Its place in the chain, or the place where it would be. */
static struct shadow_page **find_page(struct shadow *s, uintptr_t number)
{
    struct shadow_page **p = &s->buckets[(number * 0x9E3779B97F4A7C15u) >> 52];
    while (*p && (*p)->number != number)
        p = &(*p)->next;
    return p;
}

static struct shadow_page *page_of(struct shadow *s, uintptr_t address)
{
    uintptr_t number = address / PAGE_BYTES;
    struct shadow_page *p = s->last;
    if (!p || p->number != number) {
        struct shadow_page **at = find_page(s, number);
        if (!*at) {
            *at = must(malloc(sizeof **at));
            (*at)->number = number;
            (*at)->run = 0;
            (*at)->next = NULL;
        }
        s->last = p = *at;
    }
    if (p->run != s->run) {
        memset(p->cells, 0, sizeof p->cells);
        p->run = s->run;
    }
    return p;
}

void shadow_forget(struct shadow *s, uintptr_t address, size_t size)
{
    for (uintptr_t at = address, end = address + size, next; at < end; at = next) {
        next = (at / PAGE_BYTES + 1) * PAGE_BYTES < end ? (at / PAGE_BYTES + 1) * PAGE_BYTES : end;
        struct shadow_page *p = *find_page(s, at / PAGE_BYTES);
        if (p && p->run == s->run)
            memset(&p->cells[at / 4 % PAGE_WORDS], 0, (next - at) / 4 * sizeof *p->cells);
    }
}

static bool ordered(const struct access *a, const struct accessor *by, bool a_is_write)
{
    if (!a->epoch)
        return true;
    if (a->column == by->own_column && a->epoch <= by->own_epoch && (!a_is_write || by->own_writes))
        return true;
    return a->epoch <= clock_at(a_is_write ? by->writes_seen : by->seen, a->column);
}

static bool includes(const struct access *a, const struct access *other)
{
    return a->scope == SIMT_SYS || (a->scope == SIMT_GPU && other->column) ||
           (a->scope == SIMT_CTA && other->column && a->block == other->block);
}

static bool morally_strong(const struct access *a, const struct access *b)
{
    return includes(a, b) && includes(b, a) && a->scope != SIMT_WEAK && b->scope != SIMT_WEAK;
}

static bool conflict(const struct access *a, const struct accessor *by, bool a_is_write)
{
    return !morally_strong(a, &by->self) && !ordered(a, by, a_is_write);
}

static bool same_reader(const struct access *a, const struct access *b)
{
    return a->column == b->column && a->scope == b->scope;
}

/* Reads that happened before this one are covered by it, unless its scope has threads that theirs lacks. */
static bool covers(const struct accessor *by, const struct access *a)
{
    bool wider = by->self.scope > a->scope || (by->self.scope == SIMT_CTA && by->self.block != a->block);
    return !a->epoch || (!wider && ordered(a, by, false));
}

/* Stores a read in one of its two places. */
static void put_read(const struct shadow *s, struct access *table, const struct accessor *by)
{
    uint32_t h = (by->self.column * 4 + by->self.scope) * 0x9E3779B1u ^ s->random;
    uint32_t at = h * 0x85EBCA77u >> 26, other = at ^ 1;
    if (same_reader(&table[other], &by->self) ||
        (!same_reader(&table[at], &by->self) && !covers(by, &table[at]) && covers(by, &table[other])))
        at = other;
    table[at] = by->self;
}

static void make_room(struct shadow *s, struct cell *c, uint32_t room)
{
    struct access *more = slab_take(s, room * sizeof *more);
    if (c->n_more)
        memcpy(more, c->more, c->n_more * sizeof *more);
    c->more = more;
    c->room = room;
}

/* A long list would be costly for bytes that all threads read. */
static void make_table(struct shadow *s, struct cell *c)
{
    struct access list[LIST_READS];
    struct accessor by = {.seen = NULL};
    memcpy(list, c->more, sizeof list);
    c->n_more = 0;
    if (c->room < TABLE_READS)
        make_room(s, c, TABLE_READS);
    memset(c->more, 0, TABLE_READS * sizeof *c->more);
    c->n_more = TABLE_READS;
    for (uint32_t i = 0; i < LIST_READS; i++) {
        by.self = list[i];
        put_read(s, c->more, &by);
    }
}

static void add_read(struct shadow *s, struct cell *c, const struct accessor *by)
{
    if (same_reader(&c->read, &by->self)) {
        c->read = by->self;
        return;
    }
    if (c->n_more == TABLE_READS) {
        put_read(s, c->more, by);
        return;
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < c->n_more; i++)
        if (!covers(by, &c->more[i]))
            c->more[kept++] = c->more[i];
    c->n_more = kept;
    if (covers(by, &c->read)) {
        c->read = by->self;
        return;
    }
    if (c->n_more == LIST_READS) {
        make_table(s, c);
        put_read(s, c->more, by);
        return;
    }
    if (c->n_more == c->room)
        make_room(s, c, c->room ? c->room * 2 : 4);
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

/* The access that a write would race with, or NULL. */
static const struct access *cell_conflict(const struct cell *c, const struct accessor *by, bool *is_write)
{
    const struct access *bad = NULL;
    if (conflict(&c->write, by, true))
        bad = &c->write;
    *is_write = bad != NULL;
    if (!bad && conflict(&c->read, by, false))
        bad = &c->read;
    for (uint32_t i = 0; !bad && i < c->n_more; i++)
        if (conflict(&c->more[i], by, false))
            bad = &c->more[i];
    return bad;
}

static enum shadow_verdict cell_write(struct cell *c, const struct accessor *by, struct access *other,
                                      bool *other_is_write)
{
    const struct access *bad = cell_conflict(c, by, other_is_write);
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

uintptr_t shadow_find_unordered(struct shadow *s, uintptr_t address, size_t size, const struct accessor *by,
                                struct access *other, bool *other_is_write)
{
    for (uintptr_t at = address, end = address + size; at < end;) {
        struct shadow_page *p = *find_page(s, at / PAGE_BYTES);
        if (!p || p->run != s->run) {
            at = (at / PAGE_BYTES + 1) * PAGE_BYTES;
            continue;
        }
        const struct cell *c = &p->cells[at / 4 % PAGE_WORDS];
        size_t step = 4 - at % 4;
        for (uintptr_t i = at % 4; i < (c->bytes ? 4 : at % 4 + 1); i++) {
            const struct access *bad = cell_conflict(c->bytes ? &c->bytes[i] : c, by, other_is_write);
            if (!bad)
                continue;
            *other = *bad;
            return at - at % 4 + i;
        }
        at += step;
    }
    return 0;
}
