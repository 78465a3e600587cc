/* decoder_walk_words.h - the words of kernels/device/simt.h for decoder_walk.h: threads that stand for their
 * whole warp or crew, each a fiber. Words between lanes of a warp, or threads of a crew, are this thread's
 * alone; words between fibers are real, and one that would wait lets the others go on. A copy is told of, and
 * nothing is copied. */
#pragma once
#define SIMT_SM 90
#include "simt/emulator/fiber.h"

#include "device/simt.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORDS_MAX_BLOCKS 200
#define WORDS_STACK      (128u << 10)

struct words_fiber {
    struct fiber fiber;
    const void *looked_at; /* by its last word, if that was a load that waits may repeat */
    bool ended;
};

struct walk_words {
    uint32_t n_blocks, block, thread; /* the last two: who runs */
    uint32_t n_ended, n_moves;        /* n_moves: words by which something changes */
    struct words_fiber fibers[WORDS_MAX_BLOCKS][2], *now;
    struct fiber host;
    char *shared; /* [n_blocks][shared_bytes] */
    size_t shared_bytes, room;
    char wrong[256];
};

static struct walk_words *running; /* the one that runs */

/* The test's: a bulk copy of the block that runs, and what a fiber does. */
static void words_copied(const void *src, uint32_t bytes);
static void words_fiber(void);

static inline void words_be(struct walk_words *w, uint32_t block, uint32_t thread)
{
    running = w;
    w->block = block;
    w->thread = thread;
}

static inline void words_pass(void)
{
    uint32_t block = running->block, thread = running->thread;
    struct words_fiber *me = running->now;
    fiber_switch(&me->fiber, &running->host);
    words_be(running, block, thread);
    running->now = me;
}

static void words_enter(void)
{
    struct words_fiber *me = running->now;
    fiber_arrived(&me->fiber);
    words_fiber();
    me->ended = true;
    running->n_ended++;
    running->n_moves++;
    for (;;)
        words_pass();
}

/* Blocks whose fibers are at their beginning; memory and stacks are kept from one use to the next. */
static void words_open(struct walk_words *w, uint32_t n_blocks, size_t shared_bytes)
{
    words_be(w, 0, 0);
    w->n_blocks = n_blocks;
    w->shared_bytes = shared_bytes;
    w->n_ended = w->n_moves = 0;
    w->wrong[0] = '\0';
    if (!w->shared) {
        w->room = (size_t)WORDS_MAX_BLOCKS * (228 << 10);
        w->shared = calloc(1, w->room);
    }
    if (!w->shared || n_blocks * shared_bytes > w->room)
        abort(); /* a test: nothing sensible is left to do */
    for (uint32_t i = 0; i < 2 * n_blocks; i++) {
        struct words_fiber *f = &w->fibers[i / 2][i % 2];
        if (!f->fiber.stack && fiber_stack_open(&f->fiber, WORDS_STACK) < 0)
            abort();
        f->ended = false;
        f->looked_at = NULL;
        fiber_start(&f->fiber, words_enter);
    }
}

/* Every fiber goes on until it has to wait. False: none got anywhere. */
static bool words_round(struct walk_words *w)
{
    uint32_t before = w->n_moves, n = 2 * w->n_blocks;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = w->n_blocks % 2 ? i : n - 1 - i;
        struct words_fiber *f = &w->fibers[at / 2][at % 2];
        if (f->ended)
            continue;
        words_be(w, at / 2, at % 2 * SIMT_LANES); /* a crew of one warp, then the producer's */
        w->now = f;
        fiber_switch(&w->host, &f->fiber);
    }
    return w->n_moves != before;
}

/* --- the words --- */

uint32_t simt_emu_thread(void)
{
    return running->thread;
}

uint32_t simt_emu_n_threads(void)
{
    return 1; /* who opens a block does it alone */
}

uint32_t simt_emu_block(void)
{
    return running->block;
}

uint32_t simt_emu_n_blocks(void)
{
    return running->n_blocks;
}

void *simt_emu_carve(const struct simt_site *at, size_t offset, size_t bytes)
{
    (void)at;
    (void)bytes;
    return running->shared + running->block * running->shared_bytes + offset;
}

bool simt_emu_bar(const struct simt_site *at, uint32_t id, uint32_t n, bool p)
{
    (void)at;
    (void)id;
    (void)n;
    return p;
}

void simt_emu_syncwarp(const struct simt_site *at)
{
    (void)at;
}

uint32_t simt_emu_shuffle(const struct simt_site *at, enum simt_shuffle how, uint32_t v, uint32_t arg)
{
    (void)at;
    (void)arg;
    return how != SIMT_BALLOT ? v : v ? UINT32_MAX : 0;
}

/* A load that comes again is a wait's. */
uint64_t simt_emu_load(const struct simt_site *at, const void *p, uint32_t size, enum simt_scope scope)
{
    (void)scope;
    if (at->aspects & SIMT_ACQUIRE) {
        if (running->now->looked_at == p)
            words_pass();
        running->now->looked_at = p;
    }
    return size == 8 ? *(const uint64_t *)p : *(const uint32_t *)p;
}

void simt_emu_store(const struct simt_site *at, void *p, uint32_t size, uint64_t v, enum simt_scope scope)
{
    (void)at;
    (void)scope;
    running->n_moves++;
    if (size == 8)
        *(uint64_t *)p = v;
    else
        *(uint32_t *)p = (uint32_t)v;
}

uint32_t simt_emu_add(const struct simt_site *at, uint32_t *p, uint32_t v, enum simt_scope scope)
{
    (void)at;
    (void)scope;
    running->n_moves++;
    running->now->looked_at = NULL;
    *p += v;
    return *p - v;
}

uint64_t simt_emu_globaltimer(void)
{
    return 0;
}

uint64_t simt_emu_clock(void)
{
    return 0;
}

void simt_emu_nanosleep(uint32_t ns)
{
    (void)ns;
}

void simt_emu_fence_proxy(const struct simt_site *at)
{
    (void)at;
}

/* An mbarrier: arrivals that are missing, arrivals of a phase, the phase's parity, bytes that are missing. */
struct words_mbar {
    uint8_t missing, all, parity, unused;
    int32_t bytes;
};
_Static_assert(sizeof(struct words_mbar) == 8, "an mbarrier");

static inline void words_mbar_settle(struct words_mbar *m)
{
    running->n_moves++;
    if (m->missing || m->bytes)
        return;
    m->missing = m->all;
    m->parity ^= 1;
}

void simt_emu_mbar_init(const struct simt_site *at, uint64_t *m, uint32_t arrivals)
{
    (void)at;
    *(struct words_mbar *)m = (struct words_mbar){.missing = (uint8_t)arrivals, .all = (uint8_t)arrivals};
}

void simt_emu_mbar_arrive(const struct simt_site *at, uint64_t *m, uint32_t expect_bytes)
{
    struct words_mbar *b = (struct words_mbar *)m;
    (void)at;
    b->missing--;
    b->bytes += (int32_t)expect_bytes;
    words_mbar_settle(b);
}

bool simt_emu_mbar_try_wait(const struct simt_site *at, uint64_t *m, uint32_t parity)
{
    const struct words_mbar *b = (const struct words_mbar *)m;
    (void)at;
    if (b->parity == (parity & 1))
        words_pass();
    return b->parity != (parity & 1);
}

void simt_emu_bulk_copy(const struct simt_site *at, void *dst, const void *src, uint32_t bytes, uint64_t *m)
{
    struct words_mbar *b = (struct words_mbar *)m;
    (void)at;
    (void)dst;
    words_copied(src, bytes);
    b->bytes -= (int32_t)bytes;
    words_mbar_settle(b);
}

/* The words that the walk does not use. */
void simt_emu_cp_async16(const struct simt_site *at, void *dst, const void *src)
{
    (void)at;
    (void)dst;
    (void)src;
    abort();
}

void simt_emu_mma(const struct simt_site *at, bool a_signed, int32_t *c, const uint32_t *a, const uint32_t *b)
{
    (void)at;
    (void)a_signed;
    (void)c;
    (void)a;
    (void)b;
    abort();
}

void simt_emu_mma16(const struct simt_site *at, int32_t *c, const uint32_t *a, uint32_t b)
{
    (void)at;
    (void)c;
    (void)a;
    (void)b;
    abort();
}
