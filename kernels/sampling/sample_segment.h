/* sample_segment.h - the first phase of sampling: one segment of one logit row. Finds whether its logits are
 * finite, the largest, the sum of exponentials, and the logits to sample from.
 *
 * Element i of a segment belongs to thread i % n_threads in every loop, so that a thread's changes to it need
 * no barrier. Included by sample.h.
 * Thread: all compute threads of a block, together. */
#pragma once
#include "sample_row.h"

struct sample_span {
    uint32_t base, n; /* the segment's first logit and its number of logits */
};

SIMT_INLINE struct sample_span sample_span_of(const struct sample *s, uint32_t segment)
{
    uint32_t base = segment * ARITH_LSE_SEGMENT, left = s->in.n_vocab - base;
    return (struct sample_span){base, left < ARITH_LSE_SEGMENT ? left : ARITH_LSE_SEGMENT};
}

#define SAMPLE_AHEAD 5 /* loads in flight: 448 threads have ten logits each of a segment, so two rounds */

/* Finds the largest of the model's own logits; {+inf, ...} if one is not finite. */
SIMT_INLINE struct sample_best sample_scan(const struct sample *s, const struct crew *crew, uint32_t index,
                                           struct sample_span span)
{
    const SIMT_GLOBAL float *x = sample_logits(s, index) + span.base;
    SIMT_GLOBAL float *to =
        DECODER_AT(float, s->in.exported) + (size_t)index * s->in.logits_stride + span.base;
    bool export = s->in.exported && (sample_step(s)->logits[index].flags & STEP_EXPORT);
    bool finite = true;
    struct sample_best best = sample_none();
    SAMPLE_ROLLED
    for (uint32_t first = simt_thread(); first < span.n; first += SAMPLE_AHEAD * crew->n_threads) {
        float v[SAMPLE_AHEAD];
        uint32_t id[SAMPLE_AHEAD];
#pragma unroll
        for (uint32_t e = 0; e < SAMPLE_AHEAD; e++) { /* behind the segment's end the first one again */
            uint32_t i = first + e * crew->n_threads;
            id[e] = i < span.n ? i : first;
            v[e] = x[id[e]];
        }
#pragma unroll
        for (uint32_t e = 0; e < SAMPLE_AHEAD; e++) {
            finite = finite && (arith_to_bits(v[e]) & 0x7f800000u) != 0x7f800000u;
            best = sample_better(best, (struct sample_best){v[e], span.base + id[e]});
            if (export)
                to[id[e]] = v[e];
        }
    }
    return sample_best_of_crew(s, crew, finite ? best : (struct sample_best){ARITH_INF, span.base});
}

/* Copies the segment's words of the row's mask, if it has one, to the work area: each word crosses PCIe once.
 * sample_scan(), which follows, lets all threads see them. */
SIMT_INLINE void sample_take_mask(const struct sample *s, const struct crew *crew, uint32_t index,
                                  struct sample_span span)
{
    uint32_t mask = sample_step(s)->logits[index].mask - 1; /* 0, or out of range: nothing is read */
    uint32_t n = mask < s->in.n_masks ? (span.n + 31) / 32 : 0;
    uint64_t at = (uint64_t)mask * sample_mask_words(s->in.n_vocab) + span.base / 32;
    const SIMT_GLOBAL uint32_t *from = DECODER_AT(const uint32_t, s->in.masks + at * sizeof *from);
    SIMT_SHARED uint32_t *to = (SIMT_SHARED uint32_t *)(s->work + SAMPLE_MASK);
    SAMPLE_ROLLED
    for (uint32_t i = simt_thread(); i < n; i += crew->n_threads)
        to[i] = from[i];
}

/* Sums the segment's exponentials over lanes; only warp 0's result is valid. */
SIMT_INLINE float sample_sum(const struct sample *s, const struct crew *crew, const SIMT_GLOBAL float *x,
                             uint32_t n, float max)
{
    SIMT_SHARED float *weights = (SIMT_SHARED float *)(s->work + SAMPLE_WEIGHTS);
    for (uint32_t i = simt_thread(); i < n; i += crew->n_threads)
        weights[i] = sample_weight(x[i], max);
    crew_sync(crew);
    float sum = 0.0f;
    if (simt_warp() != 0)
        return sum;
    for (uint32_t i = simt_lane(); i < n; i += ARITH_LANES)
        sum = sum + weights[i];
    for (uint32_t w = ARITH_LANES / 2; w; w /= 2)
        sum = sum + simt_shfl_xor_f32(sum, w);
    return sum;
}

/* Returns a bit for each of the 32 tokens that the lanes pass: set if it lies in this warp's part of the
 * segment. *local: the lane's token in the segment. */
SIMT_INLINE uint32_t sample_ours(const struct crew *crew, struct sample_span span, bool any, int32_t token,
                                 uint32_t *local)
{
    *local = (uint32_t)token - span.base;
    return simt_ballot(any && *local < span.n && *local / SIMT_LANES % crew->n_warps == simt_warp());
}

/* Adds biases, in their order: x = x + bias. */
SIMT_INLINE void sample_bias(const struct crew *crew, const struct sample_row *row, struct sample_span span,
                             SIMT_GLOBAL float *x)
{
    for (uint32_t at = 0; at < row->n_biases; at += SIMT_LANES) {
        uint32_t i = at + simt_lane(), local;
        bool any = i < row->n_biases;
        float bias = any ? row->biases[i].bias : 0.0f;
        uint32_t ours = sample_ours(crew, span, any, any ? row->biases[i].token : -1, &local);
        for (; ours; ours &= ours - 1) {
            uint32_t from = (uint32_t)__builtin_ctz(ours), which = simt_shfl_u32(local, from);
            float b = simt_shfl_f32(bias, from);
            if (which % SIMT_LANES == simt_lane())
                x[which] = x[which] + b;
        }
    }
}

/* Bans end tokens: x = -inf. */
SIMT_INLINE void sample_ban(const struct sample *s, const struct crew *crew, const struct sample_row *row,
                            struct sample_span span, SIMT_GLOBAL float *x)
{
    for (uint32_t i = 0; i < row->n_banned; i++) {
        uint32_t local = (uint32_t)DECODER_AT(const int32_t, s->in.end_tokens)[i] - span.base;
        if (local < span.n && local % crew->n_threads == simt_thread())
            x[local] = -ARITH_INF;
    }
}

/* Counts how often each token of the segment stands in the window. */
SIMT_INLINE void sample_count(const struct crew *crew, const struct sample_row *row, struct sample_span span,
                              SIMT_SHARED uint16_t *counts)
{
    for (uint32_t i = simt_thread(); i < span.n; i += crew->n_threads)
        counts[i] = 0;
    for (uint32_t at = 0; at < row->n_window; at += SIMT_LANES) {
        uint32_t i = at + simt_lane(), local;
        bool any = i < row->n_window;
        uint32_t ours = sample_ours(crew, span, any, any ? row->window[i] : -1, &local);
        while (ours) {
            uint32_t which = simt_shfl_u32(local, (uint32_t)__builtin_ctz(ours));
            uint32_t same = simt_ballot(local == which) & ours;
            if (which % SIMT_LANES == simt_lane())
                counts[which] = (uint16_t)(counts[which] + __builtin_popcount(same));
            ours &= ~same;
        }
    }
}

SIMT_INLINE float sample_penalised(const SIMT_GLOBAL struct step_sampling *set, float x, uint32_t count)
{
    if (set->repetition_penalty != 1.0f)
        x = x > 0.0f ? x / set->repetition_penalty : x * set->repetition_penalty;
    if (set->presence_penalty != 0.0f || set->frequency_penalty != 0.0f)
        x = x - __builtin_fmaf(set->frequency_penalty, (float)count, set->presence_penalty);
    return x;
}

/* True if the mask, whose words sample_take_mask() has copied, forbids the segment's token i. */
SIMT_INLINE bool sample_forbids(const struct sample *s, const struct sample_row *row, uint32_t i)
{
    const SIMT_SHARED uint32_t *words = (const SIMT_SHARED uint32_t *)(s->work + SAMPLE_MASK);
    return row->masked && !(words[i / 32] >> (i % 32) & 1);
}

/* Makes the logits to sample from and finds the largest of them. */
SIMT_INLINE struct sample_best sample_adjust(const struct sample *s, const struct crew *crew,
                                             const struct sample_row *row, struct sample_span span)
{
    SIMT_GLOBAL float *x =
        (SIMT_GLOBAL float *)(row->scratch + sample_adjusted_at(row->n_segments)) + span.base;
    SIMT_SHARED uint16_t *counts = (SIMT_SHARED uint16_t *)(s->work + SAMPLE_COUNTS);
    for (uint32_t i = simt_thread(); i < span.n; i += crew->n_threads)
        x[i] = sample_forbids(s, row, i) ? -ARITH_INF : row->logits[span.base + i];
    sample_bias(crew, row, span, x);
    sample_ban(s, crew, row, span, x);
    if (row->n_window)
        sample_count(crew, row, span, counts);
    struct sample_best best = sample_none();
    for (uint32_t i = simt_thread(); i < span.n; i += crew->n_threads) {
        float v = x[i];
        uint32_t count = row->n_window ? counts[i] : 0;
        if (count) {
            v = sample_penalised(row->set, v, count);
            x[i] = v;
        }
        if (v > -ARITH_INF)
            best = sample_better(best, (struct sample_best){v, span.base + i});
    }
    return sample_best_of_crew(s, crew, best);
}

/* Looks up what no op of the step writes: row `index`, which it returns, and the segment's words of its mask.
 * sample_segment() of the same segment follows. */
SIMT_INLINE struct sample_row sample_prepare(const struct sample *s, const struct crew *crew, uint32_t index,
                                             uint32_t segment)
{
    sample_take_mask(s, crew, index, sample_span_of(s, segment));
    return sample_row_of(s, index);
}

SIMT_INLINE void sample_segment(const struct sample *s, const struct crew *crew, uint32_t index,
                                uint32_t segment, const struct sample_row *row)
{
    struct sample_span span = sample_span_of(s, segment);
    struct sample_best max = sample_scan(s, crew, index, span), largest = max;
    bool finite = max.x < ARITH_INF;
    float sum = 0.0f;
    if (row->norm && finite)
        sum = sample_sum(s, crew, row->logits + span.base, span.n, max.x);
    if (row->changed && finite)
        largest = sample_adjust(s, crew, row, span);
    if (simt_thread() != 0)
        return;
    SIMT_GLOBAL struct sample_part *part = sample_parts(s, index) + segment;
    part->max.x = max.x;
    part->max.id = max.id;
    part->largest.x = largest.x;
    part->largest.id = largest.id;
    part->sum = sum;
}
