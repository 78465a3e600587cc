/* sample_list.h - the tokens of one row that its filters have left in play, and how filters are applied
 * without sorting.
 *
 * A filter keeps the front of an order (larger logits, or less surprise; then smaller ids) until a number of
 * tokens or a mass is reached. Both are integers, so they may be summed in any order. An order is a 64-bit
 * key, smaller first, all different. The last kept key is found by tallying number and mass of the tokens in
 * 256 bins of keys, then in 256 bins of the bin that holds it, until one token is left. Tokens that are cut
 * stay in the list: each later pass compares with the cuts again. Included by sample.h.
 *
 * Thread: all compute threads of a block, together, unless a function says each warp for itself. */
#pragma once
#include "sample_row.h"

struct sample_list {
    SIMT_GLOBAL float *x; /* at most 3e38 */
    SIMT_GLOBAL uint32_t *id;
    uint32_t n;
};

enum sample_stage {
    SAMPLE_TOP_K,   /* every token counts 1 */
    SAMPLE_MEAN,    /* typical_p: masses of what top_k left, */
    SAMPLE_TYPICAL, /* the same tokens in the order of surprise, */
    SAMPLE_REST,    /* and the largest logit of what that left */
    SAMPLE_TOP_P,   /* masses of what both left */
    SAMPLE_LEFT,    /* the tokens to sample from */
};

/* The cuts so far (the last kept keys) and their reference values; in shared memory. */
struct sample_sieve {
    uint64_t top_k_cut, typical_cut, top_p_cut;
    float max;  /* largest logit of the row */
    float left; /* largest logit that typical_p left */
    float mean; /* mean of the surprise */
    uint32_t typical, top_p;
};
_Static_assert(sizeof(struct sample_sieve) <= 64, "its place in the work area");

struct sample_token {
    bool in_play;
    uint64_t key, mass;
};

SIMT_INLINE uint64_t sample_key(float x, uint32_t id)
{
    uint32_t bits = arith_to_bits(x + 0.0f); /* -0 is 0 */
    bits = bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
    return (uint64_t)bits << 32 | id;
}

SIMT_INLINE float sample_key_value(uint64_t key)
{
    uint32_t bits = (uint32_t)(key >> 32);
    return arith_from_bits(bits & 0x80000000u ? bits : ~bits & 0x7fffffffu);
}

/* Key of a token: distance of its surprise from the mean, smallest first. */
SIMT_INLINE uint64_t sample_surprise_key(const SIMT_SHARED struct sample_sieve *f, float x, uint32_t id)
{
    float d = (f->max - x) - f->mean;
    return (uint64_t)(arith_to_bits(d) & 0x7fffffffu) << 32 | id;
}

/* Returns a token's key, mass and state at a stage. */
SIMT_INLINE struct sample_token sample_token_of(const SIMT_SHARED struct sample_sieve *f,
                                                enum sample_stage stage, float x, uint32_t id)
{
    struct sample_token t = {.key = sample_key(x, id), .mass = 1};
    t.in_play = t.key <= f->top_k_cut;
    if (f->typical) {
        uint64_t mass = sample_mass(sample_weight(x, f->max)), key = sample_surprise_key(f, x, id);
        t.in_play = t.in_play && mass && key <= f->typical_cut;
        if (stage <= SAMPLE_TYPICAL) {
            t.mass = mass;
            t.key = key;
        }
    }
    if (f->top_p) {
        t.mass = sample_mass(sample_weight(x, f->left));
        t.in_play = t.in_play && t.mass && t.key <= f->top_p_cut;
    }
    return t;
}

/* ---- tallies ---- */

SIMT_INLINE SIMT_SHARED uint32_t *sample_tally(const struct sample *s)
{
    return (SIMT_SHARED uint32_t *)(s->work + SAMPLE_COUNTS);
}

SIMT_INLINE void sample_tally_clear(const struct sample *s, const struct crew *crew)
{
    SIMT_SHARED uint32_t *tally = sample_tally(s);
    for (uint32_t i = simt_thread(); i < SAMPLE_LIMBS * SAMPLE_BINS; i += crew->n_threads)
        tally[i] = 0;
    crew_sync(crew);
}

/* Adds one token. A mass is 1 to 2^40: minus 1 it has 40 bits, 14 of them in a limb, so that the limbs of
 * SAMPLE_MAX_VOCAB tokens do not overflow. */
SIMT_INLINE void sample_tally_add(SIMT_SHARED uint32_t *tally, uint32_t bin, uint64_t mass, bool by_mass)
{
    simt_atom_shared_add(&tally[bin], 1);
    if (!by_mass)
        return;
    mass -= 1;
    for (uint32_t limb = 1; limb < SAMPLE_LIMBS; limb++)
        simt_atom_shared_add(&tally[limb * SAMPLE_BINS + bin],
                             (uint32_t)(mass >> (14 * (limb - 1))) & 0x3fff);
}

SIMT_INLINE uint64_t sample_tally_of(const SIMT_SHARED uint32_t *tally, uint32_t bin, bool by_mass)
{
    uint64_t sum = tally[bin];
    for (uint32_t limb = 1; limb < SAMPLE_LIMBS && by_mass; limb++)
        sum += (uint64_t)tally[limb * SAMPLE_BINS + bin] << (14 * (limb - 1));
    return sum;
}

SIMT_INLINE uint64_t sample_shfl_u64(uint64_t v, uint32_t lane)
{
    return (uint64_t)simt_shfl_u32((uint32_t)(v >> 32), lane) << 32 | simt_shfl_u32((uint32_t)v, lane);
}

SIMT_INLINE uint64_t sample_shfl_xor_u64(uint64_t v, uint32_t mask)
{
    return (uint64_t)simt_shfl_xor_u32((uint32_t)(v >> 32), mask) << 32 |
           simt_shfl_xor_u32((uint32_t)v, mask);
}

#define SAMPLE_LANE_BINS (SAMPLE_BINS / SIMT_LANES)

/* Number or mass of the tokens before each lane's bins, and of all. */
struct sample_ladder {
    uint64_t before, total;
};

/* Each warp for itself, as is the next function. */
SIMT_INLINE struct sample_ladder sample_ladder_of(const SIMT_SHARED uint32_t *tally, bool by_mass)
{
    uint64_t own = 0;
    SAMPLE_ROLLED
    for (uint32_t i = 0; i < SAMPLE_LANE_BINS; i++)
        own += sample_tally_of(tally, simt_lane() * SAMPLE_LANE_BINS + i, by_mass);
    uint64_t upto = own;
    for (uint32_t d = 1; d < SIMT_LANES; d *= 2) {
        uint64_t lower = sample_shfl_u64(upto, (simt_lane() - d) % SIMT_LANES);
        upto += simt_lane() >= d ? lower : 0;
    }
    return (struct sample_ladder){upto - own, sample_shfl_u64(upto, SIMT_LANES - 1)};
}

struct sample_bin {
    uint32_t bin, n; /* n: tokens in the bin */
    uint64_t before; /* number or mass of the bins before it */
};

/* Finds the bin in which `need`, 1 to the total, is reached. */
SIMT_INLINE struct sample_bin sample_find(const SIMT_SHARED uint32_t *tally, bool by_mass,
                                          const struct sample_ladder *ladder, uint64_t need)
{
    struct sample_bin found = {SAMPLE_BINS - 1, 0, 0};
    uint64_t upto = ladder->before;
    bool here = false;
    SAMPLE_ROLLED
    for (uint32_t i = 0; i < SAMPLE_LANE_BINS; i++) {
        uint32_t bin = simt_lane() * SAMPLE_LANE_BINS + i;
        uint64_t more = upto + sample_tally_of(tally, bin, by_mass);
        if (upto < need && more >= need) {
            found = (struct sample_bin){bin, tally[bin], upto};
            here = true;
        }
        upto = more;
    }
    uint32_t lanes = simt_ballot(here), lane = lanes ? (uint32_t)__builtin_ctz(lanes) : 0;
    return (struct sample_bin){simt_shfl_u32(found.bin, lane), simt_shfl_u32(found.n, lane),
                               sample_shfl_u64(found.before, lane)};
}

/* ---- selection ---- */

/* Summary of the tokens in play at a stage. */
struct sample_survey {
    uint64_t first, last; /* keys */
    uint64_t total;       /* mass */
    uint64_t surprise;    /* mass times distance from `max` */
};

SIMT_INLINE struct sample_survey sample_join(struct sample_survey a, struct sample_survey b)
{
    return (struct sample_survey){a.first < b.first ? a.first : b.first, a.last > b.last ? a.last : b.last,
                                  a.total + b.total, a.surprise + b.surprise};
}

SIMT_INLINE struct sample_survey sample_join_warp(struct sample_survey v)
{
    for (uint32_t w = SIMT_LANES / 2; w; w /= 2)
        v = sample_join(
            v, (struct sample_survey){sample_shfl_xor_u64(v.first, w), sample_shfl_xor_u64(v.last, w),
                                      sample_shfl_xor_u64(v.total, w), sample_shfl_xor_u64(v.surprise, w)});
    return v;
}

/* Needs no barrier before it writes `room`: the caller's crew_sync after setting the sieve comes after the
 * previous reduction. */
SIMT_INLINE struct sample_survey sample_survey_of(const struct sample *s, const struct crew *crew,
                                                  const struct sample_list *list,
                                                  const SIMT_SHARED struct sample_sieve *f,
                                                  enum sample_stage stage)
{
    SIMT_SHARED struct sample_survey *room = (SIMT_SHARED struct sample_survey *)(s->work + SAMPLE_ROOM);
    struct sample_survey none = {UINT64_MAX, 0, 0, 0}, v = none;
    SAMPLE_ROLLED
    for (uint32_t i = simt_thread(); i < list->n; i += crew->n_threads) {
        float x = list->x[i];
        struct sample_token t = sample_token_of(f, stage, x, list->id[i]);
        if (!t.in_play)
            continue;
        uint64_t surprise = stage == SAMPLE_MEAN ? sample_mass(sample_weight(x, f->max) * (f->max - x)) : 0;
        v = sample_join(v, (struct sample_survey){t.key, t.key, t.mass, surprise});
    }
    v = sample_join_warp(v);
    if (simt_lane() == 0) {
        room[simt_warp()].first = v.first;
        room[simt_warp()].last = v.last;
        room[simt_warp()].total = v.total;
        room[simt_warp()].surprise = v.surprise;
    }
    crew_sync(crew);
    if (simt_lane() < crew->n_warps) {
        const SIMT_SHARED struct sample_survey *r = &room[simt_lane()];
        none = (struct sample_survey){r->first, r->last, r->total, r->surprise};
    }
    return sample_join_warp(none);
}

/* Finds the last key of the shortest front whose number or mass reaches `need`, 1 to the stage's total. */
SIMT_INLINE uint64_t sample_cut(const struct sample *s, const struct crew *crew,
                                const struct sample_list *list, const SIMT_SHARED struct sample_sieve *f,
                                enum sample_stage stage, const struct sample_survey *survey, uint64_t need)
{
    SIMT_SHARED uint32_t *tally = sample_tally(s);
    uint64_t first = survey->first, last = survey->last;
    for (;;) {
        uint64_t range = last - first;
        uint32_t bits = 64 - (uint32_t)__builtin_clzll(range | 1), shift = bits > 8 ? bits - 8 : 0;
        sample_tally_clear(s, crew);
        SAMPLE_ROLLED
        for (uint32_t i = simt_thread(); i < list->n; i += crew->n_threads) {
            struct sample_token t = sample_token_of(f, stage, list->x[i], list->id[i]);
            if (t.in_play && t.key >= first && t.key <= last)
                sample_tally_add(tally, (uint32_t)((t.key - first) >> shift), t.mass, stage != SAMPLE_TOP_K);
        }
        crew_sync(crew);
        struct sample_ladder ladder = sample_ladder_of(tally, stage != SAMPLE_TOP_K);
        struct sample_bin found = sample_find(tally, stage != SAMPLE_TOP_K, &ladder, need);
        need -= found.before;
        uint64_t from = (uint64_t)found.bin << shift, width = (1ull << shift) - 1;
        first += from; /* computed from `from`, because first + width may exceed 2^64 */
        last = first + (range - from < width ? range - from : width);
        if (found.n <= 1 || shift == 0)
            return last;
        crew_sync(crew); /* the tally has been read */
    }
}

SIMT_INLINE bool sample_stage_runs(const SIMT_GLOBAL struct step_sampling *set, enum sample_stage stage,
                                   bool top_k)
{
    return stage == SAMPLE_TOP_K ? top_k : stage == SAMPLE_TOP_P ? set->top_p < 1.0f : set->typical_p < 1.0f;
}

/* Computes the cuts of a row's filters. `need`: the mass that top_p needs, if known; otherwise 0. */
SIMT_INLINE const SIMT_SHARED struct sample_sieve *
sample_filter(const struct sample *s, const struct crew *crew, const struct sample_row *row,
              const struct sample_list *list, float max, uint64_t need)
{
    const SIMT_GLOBAL struct step_sampling *set = row->set;
    SIMT_SHARED struct sample_sieve *f = (SIMT_SHARED struct sample_sieve *)(s->work + SAMPLE_SIEVE);
    bool top_k = row->way == SAMPLE_COUNT && list->n > (uint32_t)set->top_k, first = simt_thread() == 0;
    if (first) {
        f->top_k_cut = f->typical_cut = f->top_p_cut = UINT64_MAX;
        f->max = f->left = max;
        f->mean = 0.0f;
        f->typical = f->top_p = false;
    }
    SAMPLE_ROLLED
    for (enum sample_stage stage = SAMPLE_TOP_K; stage < SAMPLE_LEFT; stage++) {
        if (!sample_stage_runs(set, stage, top_k))
            continue;
        if (first && stage == SAMPLE_MEAN)
            f->typical = true;
        if (first && stage == SAMPLE_TOP_P)
            f->top_p = true;
        crew_sync(crew); /* the sieve is set */
        struct sample_survey survey = sample_survey_of(s, crew, list, f, stage);
        if (first && stage == SAMPLE_MEAN)
            f->mean = (float)survey.surprise / (float)survey.total;
        if (first && stage == SAMPLE_REST)
            f->left = sample_key_value(survey.first);
        if (stage == SAMPLE_MEAN || stage == SAMPLE_REST)
            continue;
        uint64_t want = stage == SAMPLE_TOP_K ? (uint64_t)set->top_k : need;
        if (!want || stage == SAMPLE_TYPICAL)
            want = sample_needed(survey.total, stage == SAMPLE_TYPICAL ? set->typical_p : set->top_p);
        uint64_t cut = sample_cut(s, crew, list, f, stage, &survey, want);
        if (first && stage == SAMPLE_TOP_K)
            f->top_k_cut = cut;
        if (first && stage == SAMPLE_TYPICAL)
            f->typical_cut = cut;
        if (first && stage == SAMPLE_TOP_P)
            f->top_p_cut = cut;
    }
    crew_sync(crew); /* the cuts are set */
    return f;
}
