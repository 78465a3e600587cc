/* page_ops.h - a step's page ops: whole pages and window pages copied, exported to and imported from pinned
 * memory, zeroed. All blocks share every op; chunk i of a page always belongs to the same thread, whatever
 * the op, so ops happen in their order without a barrier between them; pages and window pages never meet in
 * one place. The I/O warp has checked every index.
 * Parts of recurrent states, as large as a page of all layers but for the last, go the same way.
 * STEP_STATE_LOAD and STEP_STATE_SAVE are done with the rows. Thread: all compute threads of every block;
 * pages_move() also by any other fixed set of threads. */
#pragma once
#include "device/interpreter.h"

/* A page or window page, by its number in steps. */
SIMT_INLINE SIMT_GLOBAL char *pages_at(const struct decoder_args *args, uint32_t number)
{
    uint32_t n = args->slots.n_pages;
    return number < n ? DECODER_AT(char, args->kv) + number * args->page_bytes
                      : DECODER_AT(char, args->windows) + (number - n) * args->window_bytes;
}

SIMT_INLINE size_t pages_size(const struct decoder_args *args, uint32_t number)
{
    return number < args->slots.n_pages ? args->page_bytes : args->window_bytes;
}

/* Source of an op, from the page's first byte on; NULL: zeros. */
SIMT_INLINE const SIMT_GLOBAL char *pages_source(const struct decoder_args *args,
                                                 const SIMT_GLOBAL struct step_page_op *op)
{
    switch (op->kind) {
    case STEP_PAGE_COPY:
        return pages_at(args, op->from);
    case STEP_PAGE_EXPORT:
        return pages_at(args, op->page);
    case STEP_PAGE_IMPORT:
        return DECODER_AT(const char, args->transfer) + (size_t)op->host_offset * 64;
    default:
        return NULL;
    }
}

SIMT_INLINE SIMT_GLOBAL char *pages_target(const struct decoder_args *args,
                                           const SIMT_GLOBAL struct step_page_op *op)
{
    if (op->kind == STEP_PAGE_EXPORT)
        return DECODER_AT(char, args->transfer) + (size_t)op->host_offset * 64;
    return pages_at(args, op->page);
}

/* Exports or imports a part of a state. What a place of the transfer buffer has behind the last part becomes
 * zero. */
SIMT_INLINE void pages_move_part(const struct decoder_args *args, const SIMT_GLOBAL struct step_page_op *op,
                                 uint32_t thread, size_t stride)
{
    const struct decoder_states *s = &args->states;
    size_t page_bytes = kv_page_size(&args->layout);
    const simt_u4 zeros = {0, 0, 0, 0};
    size_t first = op->from * page_bytes, left = s->bytes - first, n = left < page_bytes ? left : page_bytes;
    SIMT_GLOBAL char *state = DECODER_AT(char, s->data) + op->page * s->bytes + first;
    SIMT_GLOBAL char *host = DECODER_AT(char, args->transfer) + (size_t)op->host_offset * 64;
    bool exports = op->kind == STEP_STATE_EXPORT;
    SIMT_GLOBAL char *from = exports ? state : host, *to = exports ? host : state;
    for (size_t at = (size_t)thread * 16; at < (exports ? page_bytes : n); at += stride)
        *(SIMT_GLOBAL simt_u4 *)(to + at) = at < n ? *(const SIMT_GLOBAL simt_u4 *)(from + at) : zeros;
}

/* Does all of the step's page ops, as number `thread` of the `n_threads` that share them. */
SIMT_INLINE void pages_move(const struct decoder_args *args, const SIMT_GLOBAL struct step *step,
                            uint32_t thread, uint32_t n_threads)
{
    const simt_u4 zeros = {0, 0, 0, 0};
    size_t stride = (size_t)n_threads * 16;
    SIMT_SMALL_LOOP
    for (uint32_t i = 0; i < step->n_page_ops; i++) {
        const SIMT_GLOBAL struct step_page_op *op = &step->page_ops[i];
        if (op->kind >= STEP_STATE_EXPORT)
            pages_move_part(args, op, thread, stride);
        if (op->kind > STEP_PAGE_ZERO)
            continue;
        const SIMT_GLOBAL char *from = pages_source(args, op);
        SIMT_GLOBAL char *to = pages_target(args, op);
        size_t size = pages_size(args, op->page);
        SIMT_SMALL_LOOP
        for (size_t at = (size_t)thread * 16; at < size; at += stride)
            *(SIMT_GLOBAL simt_u4 *)(to + at) = from ? *(const SIMT_GLOBAL simt_u4 *)(from + at) : zeros;
    }
}

/* Does them by the compute threads of all blocks and waits until all are done. False: end. */
SIMT_INLINE bool pages_run(struct walk *w)
{
    uint32_t counter = w->program->n_ops * DECODER_PHASES + DECODER_PAGES;
    pages_move(w->args, w->step, simt_block() * w->crew.n_threads + simt_thread(),
               simt_n_blocks() * w->crew.n_threads);
    walk_signal_counter(w, counter);
    return walk_wait_counter(w, counter);
}
