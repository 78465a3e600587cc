/* sample_draw.h - the token of a sampled row: each segment's contribution once the largest logit is known
 * (the second phase), and the sampling from all of them (the third). Included by sample.h.
 * Thread: all compute threads of a block, together. */
#pragma once
#include "sample_list.h"
#include "sample_segment.h"

/* Returns the bin of a logit's distance from the largest one: bins of eighths; the last one has all distances
 * beyond 31.9. */
SIMT_INLINE uint32_t sample_distance_bin(float x, float max)
{
    float d = (max - x) * 8.0f;
    return d < (float)(SAMPLE_BINS - 1) ? (uint32_t)d : SAMPLE_BINS - 1;
}

/* The largest logit and the floor with which all tokens of a row are compared. */
struct sample_scale {
    float max, floor;
};

SIMT_INLINE struct sample_scale sample_scale_of(const struct sample_row *row, float largest)
{
    float max = sample_bounded(largest);
    return (struct sample_scale){max, sample_floor(row->set, row->way, max)};
}

/* Returns the mass with which a token enters a list: 1 if numbers count; 0: it does not enter. */
SIMT_INLINE uint64_t sample_enters(const struct sample_row *row, struct sample_scale scale, float x)
{
    if (!(x > scale.floor))
        return 0;
    return row->way == SAMPLE_COUNT ? 1 : sample_mass(sample_weight(sample_bounded(x), scale.max));
}

SIMT_INLINE SIMT_GLOBAL uint32_t *sample_bins(const struct sample_row *row, uint32_t segment)
{
    return (SIMT_GLOBAL uint32_t *)(row->scratch + sample_bins_at(row->n_segments)) +
           (size_t)segment * SAMPLE_LIMBS * SAMPLE_BINS;
}

/* Used words of a tally. */
SIMT_INLINE uint32_t sample_bin_words(const struct sample_row *row)
{
    return row->way == SAMPLE_COUNT ? SAMPLE_BINS : SAMPLE_LIMBS * SAMPLE_BINS;
}

SIMT_INLINE void sample_draw_bins(const struct sample *s, const struct crew *crew,
                                  const struct sample_row *row, struct sample_scale scale, uint32_t segment)
{
    struct sample_span span = sample_span_of(s, segment);
    SIMT_SHARED uint32_t *tally = sample_tally(s);
    sample_tally_clear(s, crew);
    SAMPLE_ROLLED
    for (uint32_t i = simt_thread(); i < span.n; i += crew->n_threads) {
        float x = row->x[span.base + i];
        uint64_t mass = sample_enters(row, scale, x);
        if (mass)
            sample_tally_add(tally, sample_distance_bin(sample_bounded(x), scale.max), mass,
                             row->way == SAMPLE_MASS);
    }
    crew_sync(crew);
    SIMT_GLOBAL uint32_t *bins = sample_bins(row, segment); /* the same threads clear the tally next */
    for (uint32_t i = simt_thread(); i < sample_bin_words(row); i += crew->n_threads)
        bins[i] = tally[i];
}

/* Returns (x - max) / T + noise for a token that min_p keeps, otherwise a score below every other. */
SIMT_INLINE struct sample_best sample_score(const SIMT_GLOBAL struct step_sampling *set, float x, float max,
                                            uint32_t id, float noise)
{
    if (set->min_p > 0.0f && x != max && !(sample_weight(x, max) >= set->min_p))
        return sample_none();
    return (struct sample_best){(x - max) / set->temperature + noise, id};
}

/* Finds the best score of a segment whose tokens are scored independently. Four neighbours share a Philox
 * block. */
SIMT_INLINE void sample_draw_scores(const struct sample *s, const struct crew *crew, uint32_t index,
                                    const struct sample_row *row, struct sample_scale scale, uint32_t segment)
{
    struct sample_span span = sample_span_of(s, segment);
    const SIMT_GLOBAL float *x = row->x + span.base;
    struct sample_best best = sample_none();
    SAMPLE_ROLLED
    for (uint32_t i = 4 * simt_thread(); i < span.n; i += 4 * crew->n_threads) {
        uint32_t left = span.n - i, n = left < 4 ? left : 4, r[4];
        bool any = false;
        for (uint32_t k = 0; k < n; k++)
            any = any || x[i + k] > scale.floor;
        if (!any)
            continue;
        arith_philox(row->set->seed, row->pos + 1, (span.base + i) / 4, r);
        SAMPLE_ROLLED
        for (uint32_t k = 0; k < n; k++) {
            uint32_t low = k & 1 ? r[1] : r[0],
                     high = k & 1 ? r[3] : r[2]; /* r[k] without an index, in registers */
            float noise = arith_gumbel_of(k & 2 ? high : low), v = x[i + k];
            if (v > scale.floor)
                best = sample_better(
                    best, sample_score(row->set, sample_bounded(v), scale.max, span.base + i + k, noise));
        }
    }
    best = sample_best_of_crew(s, crew, best);
    if (simt_thread() != 0)
        return;
    SIMT_GLOBAL struct sample_part *part = sample_parts(s, index) + segment;
    part->score.x = best.x;
    part->score.id = best.id;
}

/* Runs the second phase for one segment of one row. */
SIMT_INLINE void sample_draw_segment(const struct sample *s, const struct crew *crew, uint32_t index,
                                     uint32_t segment)
{
    struct sample_row row = sample_row_of(s, index);
    if (row.way < SAMPLE_DIRECT)
        return;
    struct sample_best largest = sample_best_part(&row, SAMPLE_LARGEST);
    if (!(sample_best_part(&row, SAMPLE_MAX).x < ARITH_INF) || largest.id == UINT32_MAX)
        return;
    struct sample_scale scale = sample_scale_of(&row, largest.x);
    if (row.way == SAMPLE_DIRECT)
        sample_draw_scores(s, crew, index, &row, scale, segment);
    else
        sample_draw_bins(s, crew, &row, scale, segment);
}

/* ---- the third phase ---- */

/* Sums the bins of a row's segments into the tally. */
SIMT_INLINE void sample_merge_bins(const struct sample *s, const struct crew *crew,
                                   const struct sample_row *row)
{
    SIMT_SHARED uint32_t *tally = sample_tally(s);
    for (uint32_t i = simt_thread(); i < sample_bin_words(row); i += crew->n_threads) {
        uint32_t sum = 0;
        for (uint32_t segment = 0; segment < row->n_segments; segment++)
            sum += sample_bins(row, segment)[i];
        tally[i] = sum;
    }
    crew_sync(crew);
}

/* Returns the last bin of which the first filter can keep a token. *need: the mass that top_p needs, if it is
 * the first filter. */
SIMT_INLINE uint32_t sample_last_bin(const struct sample *s, const struct crew *crew,
                                     const struct sample_row *row, uint64_t *need)
{
    const SIMT_SHARED uint32_t *tally = sample_tally(s);
    bool by_mass = row->way == SAMPLE_MASS;
    sample_merge_bins(s, crew, row);
    struct sample_ladder ladder = sample_ladder_of(tally, by_mass);
    if (by_mass)
        *need = sample_needed(ladder.total, row->set->top_p);
    uint64_t want = by_mass ? *need : (uint64_t)row->set->top_k;
    return sample_find(tally, by_mass, &ladder, want < ladder.total ? want : ladder.total).bin;
}

/* Lists the tokens of all bins up to the last, in any order. */
SIMT_INLINE struct sample_list sample_gather(const struct sample *s, const struct crew *crew,
                                             const struct sample_row *row, struct sample_scale scale,
                                             uint32_t last_bin)
{
    SIMT_SHARED uint32_t *length = (SIMT_SHARED uint32_t *)(s->work + SAMPLE_LENGTH);
    SIMT_GLOBAL float *room = (SIMT_GLOBAL float *)(row->scratch + sample_list_at(row->n_segments));
    struct sample_list list = {
        room, (SIMT_GLOBAL uint32_t *)(room + (size_t)row->n_segments * ARITH_LSE_SEGMENT), 0};
    if (simt_thread() == 0)
        *length = 0;
    crew_sync(crew);
    SAMPLE_ROLLED
    for (uint32_t at = simt_warp() * SIMT_LANES; at < s->in.n_vocab; at += crew->n_threads) {
        uint32_t id = at + simt_lane(), base = 0;
        float x = id < s->in.n_vocab ? row->x[id] : -ARITH_INF, bounded = sample_bounded(x);
        bool enters = sample_enters(row, scale, x) && sample_distance_bin(bounded, scale.max) <= last_bin;
        uint32_t lanes = simt_ballot(enters);
        if (!lanes)
            continue;
        if (simt_lane() == 0)
            base = simt_atom_shared_add(length, (uint32_t)__builtin_popcount(lanes));
        base = simt_shfl_u32(base, 0) + (uint32_t)__builtin_popcount(lanes & ((1u << simt_lane()) - 1));
        if (enters) {
            list.x[base] = bounded;
            list.id[base] = id;
        }
    }
    crew_sync(crew);
    list.n = *length;
    return list;
}

SIMT_INLINE uint32_t sample_choose_listed(const struct sample *s, const struct crew *crew,
                                          const struct sample_row *row, float largest)
{
    const SIMT_GLOBAL struct step_sampling *set = row->set;
    struct sample_scale scale = sample_scale_of(row, largest);
    uint64_t need = 0;
    uint32_t last_bin = row->way == SAMPLE_LIST ? SAMPLE_BINS - 1 : sample_last_bin(s, crew, row, &need);
    struct sample_list list = sample_gather(s, crew, row, scale, last_bin);
    const SIMT_SHARED struct sample_sieve *f = sample_filter(s, crew, row, &list, scale.max, need);
    struct sample_best best = sample_none();
    SAMPLE_ROLLED
    for (uint32_t i = simt_thread(); i < list.n; i += crew->n_threads) {
        float x = list.x[i];
        uint32_t id = list.id[i];
        if (sample_token_of(f, SAMPLE_LEFT, x, id).in_play)
            best = sample_better(
                best, sample_score(set, x, f->left, id, arith_gumbel(set->seed, row->pos + 1, id)));
    }
    return sample_best_of_crew(s, crew, best).id;
}

/* Samples the token of a row that has no target and whose logits are finite; `max` is the largest of them. */
SIMT_INLINE uint32_t sample_choose(const struct sample *s, const struct crew *crew,
                                   const struct sample_row *row, struct sample_best max)
{
    if (!row->changed && row->way == SAMPLE_GREEDY)
        return max.id;
    struct sample_best largest = sample_best_part(row, SAMPLE_LARGEST);
    if (largest.id == UINT32_MAX)
        return max.id;
    if (row->way == SAMPLE_GREEDY)
        return largest.id;
    if (row->way == SAMPLE_DIRECT)
        return sample_best_part(row, SAMPLE_SCORE).id;
    return sample_choose_listed(s, crew, row, largest.x);
}
