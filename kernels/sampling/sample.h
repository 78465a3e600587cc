/* sample.h - from logits to struct step_result, bit for bit as in lib/sampler/sampler.h and
 * lib/cpu/cpu_backend.c.
 *
 * Three phases; the caller orders them (a grid hop between two, all blocks arriving; sample_op.h):
 *
 *   sample_prepare_unit()   may come before the logits do
 *   sample_segments()   units (logit row, segment) over all blocks
 *   hop                 counter 1
 *   sample_draws_any()  false: results are next, no second hop. All blocks get the same answer
 *   sample_draw()       units (logit row, segment) over all blocks, of rows that are sampled
 *   hop                 counter 2
 *   sample_results()    rows over blocks: block i % n_blocks writes row i's results[i]
 *
 * Before the first phase all logits of the step lie in memory, and the I/O warp has updated slots, biases and
 * histories. No phase passes anything to the next in shared memory or registers: the work area may be used
 * otherwise between them. A hop, or any other barrier of the compute warps, comes before the first phase and
 * between two.
 *
 * A row whose indices are out of range gets STEP_RESULT_NOT_FINITE.
 *
 * Cost: a greedy row reads its logits once and merges a value per segment. A log-probability reads them
 * again. A draw reads them a third time; with top_k or top_p one block then reads them once more to list what
 * the boundary bin leaves. typical_p without top_k lists all tokens that have a mass. Floor: 4 bytes a logit
 * per reading. Tested by tests/simt/sampling/sampling.c.
 *
 * Thread: all compute threads of every block call each phase together, also if the block has no unit. */
#pragma once
#include "sample_draw.h"

/* Prepares a unit, if there is one. */
SIMT_INLINE struct sample_row sample_prepare_unit(const struct sample *s, const struct crew *crew,
                                                  uint32_t unit)
{
    uint32_t n_segments = sample_n_segments(s->in.n_vocab);
    if (unit >= sample_n_rows(s) * n_segments)
        return (struct sample_row){.way = SAMPLE_NOTHING};
    return sample_prepare(s, crew, unit / n_segments, unit % n_segments);
}

/* row: sample_prepare_unit() of unit `block`. */
SIMT_INLINE void sample_segments(const struct sample *s, const struct crew *crew, uint32_t block,
                                 uint32_t n_blocks, struct sample_row row)
{
    uint32_t n_segments = sample_n_segments(s->in.n_vocab), n = sample_n_rows(s) * n_segments;
    SAMPLE_ROLLED
    for (uint32_t unit = block; unit < n; unit += n_blocks) {
        if (unit != block)
            row = sample_prepare_unit(s, crew, unit);
        sample_segment(s, crew, unit / n_segments, unit % n_segments, &row);
    }
}

SIMT_INLINE bool sample_draws_any(const struct sample *s, const struct crew *crew)
{
    bool any = false;
    for (uint32_t i = simt_thread(); i < sample_n_rows(s); i += crew->n_threads)
        any = any || sample_row_of(s, i).way >= SAMPLE_DIRECT;
    return crew_any(crew, any);
}

SIMT_INLINE void sample_draw(const struct sample *s, const struct crew *crew, uint32_t block,
                             uint32_t n_blocks)
{
    uint32_t n_segments = sample_n_segments(s->in.n_vocab), n = sample_n_rows(s) * n_segments;
    for (uint32_t unit = block; unit < n; unit += n_blocks)
        sample_draw_segment(s, crew, unit / n_segments, unit % n_segments);
}

/* Returns log2 of the row's sum of exponentials; merges the segments ascending; each warp for itself. */
SIMT_INLINE float sample_log2_sum(const struct sample_row *row, float max)
{
    const SIMT_GLOBAL struct sample_part *parts = (const SIMT_GLOBAL struct sample_part *)row->scratch;
    float sum = 0.0f;
    for (uint32_t at = 0; at < row->n_segments; at += SIMT_LANES) {
        uint32_t left = row->n_segments - at, n = left < SIMT_LANES ? left : SIMT_LANES;
        bool any = simt_lane() < n;
        float factor = any ? sample_weight(parts[at + simt_lane()].max.x, max) : 0.0f;
        float part = any ? parts[at + simt_lane()].sum : 0.0f;
        for (uint32_t i = 0; i < n; i++)
            sum = __builtin_fmaf(simt_shfl_f32(factor, i), simt_shfl_f32(part, i), sum);
    }
    return arith_log2(sum);
}

SIMT_INLINE float sample_logprob(float logit, float max, float log2_sum)
{
    return (logit - max) - log2_sum * ARITH_LN2;
}

/* Writes the n_top largest logits, one after the other: after each, only its segment looks for its next
 * largest. */
SIMT_INLINE void sample_tops(const struct sample *s, const struct crew *crew, const struct sample_row *row,
                             float max, float log2_sum, SIMT_GLOBAL struct step_result *to)
{
    SIMT_SHARED struct sample_best *heads = (SIMT_SHARED struct sample_best *)(s->work + SAMPLE_WEIGHTS);
    const SIMT_GLOBAL struct sample_part *parts = (const SIMT_GLOBAL struct sample_part *)row->scratch;
    for (uint32_t i = simt_thread(); i < row->n_segments; i += crew->n_threads) {
        heads[i].x = parts[i].max.x;
        heads[i].id = parts[i].max.id;
    }
    for (uint32_t rank = 0; rank < row->n_top; rank++) {
        crew_sync(crew); /* the heads are set */
        struct sample_best top = sample_none(), next = sample_none();
        for (uint32_t i = simt_lane(); i < row->n_segments; i += SIMT_LANES)
            top = sample_better(top, (struct sample_best){heads[i].x, heads[i].id});
        top = sample_best_of_warp(top);
        uint32_t segment = top.id / ARITH_LSE_SEGMENT;
        struct sample_span span = sample_span_of(s, segment);
        for (uint32_t i = simt_thread(); i < span.n; i += crew->n_threads) {
            struct sample_best b = {row->logits[span.base + i], span.base + i};
            if (sample_before(top, b))
                next = sample_better(next, b);
        }
        next = sample_best_of_crew(s, crew, next); /* the heads have been read */
        if (simt_thread() != 0)
            continue;
        heads[segment].x = next.x;
        heads[segment].id = next.id;
        to->top[rank].token = (int32_t)top.id;
        to->top[rank].logprob = sample_logprob(top.x, max, log2_sum);
    }
}

/* Fills a row's result except top[]; by thread 0. */
SIMT_INLINE void sample_write(const struct sample *s, const struct sample_row *row, uint32_t index,
                              uint32_t token, uint32_t flags, uint32_t n_top, float logprob,
                              SIMT_GLOBAL struct step_result *to)
{
    to->step = sample_step(s)->id;
    to->slot = row->slot;
    to->pos = row->pos;
    to->token = (int32_t)token;
    to->flags = (uint16_t)flags;
    to->n_top = (uint16_t)n_top;
    to->logprob = logprob;
    to->logit_index = index;
}

/* Runs the third phase for one row, of which sample_row_of() has been looked up. */
SIMT_INLINE void sample_result(const struct sample *s, const struct crew *crew, uint32_t index,
                               const struct sample_row *row)
{
    SIMT_GLOBAL struct step_result *to = DECODER_AT(struct step_result, s->in.results) + index;
    struct sample_best max = sample_best_part(row, SAMPLE_MAX);
    uint32_t flags = row->target >= 0 ? STEP_RESULT_TARGET : 0, token = 0, n_top = 0;
    float logprob = 0.0f;
    if (!row->in_range || !(max.x < ARITH_INF)) {
        flags |= STEP_RESULT_NOT_FINITE;
    } else {
        token = row->target >= 0 ? (uint32_t)row->target : sample_choose(s, crew, row, max);
        if (row->norm) {
            float log2_sum = sample_log2_sum(row, max.x);
            n_top = row->n_top;
            logprob = sample_logprob(row->logits[token], max.x, log2_sum);
            sample_tops(s, crew, row, max.x, log2_sum, to);
        }
    }
    if (simt_thread() == 0)
        sample_write(s, row, index, token, flags, n_top, logprob, to);
    for (uint32_t i = n_top + simt_thread(); i < STEP_MAX_TOP; i += crew->n_threads) {
        to->top[i].token = 0;
        to->top[i].logprob = 0.0f;
    }
}

/* row: sample_row_of() of row `block`, if there is one; it may have come before the hop. */
SIMT_INLINE void sample_results(const struct sample *s, const struct crew *crew, uint32_t block,
                                uint32_t n_blocks, struct sample_row row)
{
    SAMPLE_ROLLED
    for (uint32_t index = block; index < sample_n_rows(s); index += n_blocks) {
        if (index != block)
            row = sample_row_of(s, index);
        sample_result(s, crew, index, &row);
        crew_sync(crew); /* the next row's heads and counts overwrite this one's */
    }
}
