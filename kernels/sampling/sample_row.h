/* sample_row.h - one logit row while it is sampled: its settings from the step and its slot, and the search
 * for the largest of many values. Included by sample.h.
 * Thread: any compute thread, except the reductions: all lanes of a warp, or all compute threads of a
 * block. */
#pragma once
#include "device/compute_warps.h"
#include "abi/sample_layout.h"

/* Put before a loop with a long body: unrolled it would cost registers that the products need. */
#define SAMPLE_ROLLED _Pragma("clang loop unroll(disable)")

struct sample {
    struct sample_args in;
    SIMT_SHARED char *work; /* SAMPLE_WORK_BYTES; its parts are below */
};

/* Parts of the work area. Each has one use at a time; a crew_sync separates two uses. */
#define SAMPLE_WEIGHTS 0 /* float [ARITH_LSE_SEGMENT]; or struct sample_best [64]: sample_tops() */
#define SAMPLE_COUNTS                                                                                        \
    16384                   /* uint16_t [ARITH_LSE_SEGMENT]; or the tally, u32 [SAMPLE_LIMBS][SAMPLE_BINS]   \
                             */
#define SAMPLE_ROOM   24576 /* 32 bytes per warp, for reductions */
#define SAMPLE_LENGTH 25088 /* u32: length of the list */
#define SAMPLE_SIEVE  25104 /* struct sample_sieve, 64 bytes */
#define SAMPLE_MASK                                                                                          \
    25088 /* u32 [ARITH_LSE_SEGMENT / 32]: a segment's part of the mask, in sample_segment() */
_Static_assert(SAMPLE_SIEVE + 64 <= SAMPLE_WORK_BYTES, "work area");
_Static_assert(SAMPLE_MASK + ARITH_LSE_SEGMENT / 8 <= SAMPLE_WORK_BYTES, "work area");

/* The way that a row gets its token. Rows from SAMPLE_DIRECT on take part in sample_draw(). */
enum sample_way {
    SAMPLE_NOTHING, /* a target, or indices out of range */
    SAMPLE_GREEDY,
    SAMPLE_LIST,   /* typical_p first: lists all tokens that have a mass */
    SAMPLE_DIRECT, /* at most min_p: each token is scored independently */
    SAMPLE_COUNT,  /* top_k first: bins of token counts */
    SAMPLE_MASS,   /* top_p first: bins of masses */
};

struct sample_row {
    bool in_range;
    bool norm;    /* report a log-probability */
    bool changed; /* has a mask, biases, bans or penalties */
    bool masked;
    enum sample_way way;
    uint32_t slot, pos;
    int32_t target;
    uint32_t n_top, n_biases, n_banned, n_window;
    const SIMT_GLOBAL struct step_sampling *set;
    const SIMT_GLOBAL struct step_bias *biases;
    const SIMT_GLOBAL int32_t *window; /* history that penalties count */
    const SIMT_GLOBAL float *logits;   /* the model's own logits */
    const SIMT_GLOBAL float *x;        /* the logits to sample from: the model's or the adjusted ones */
    SIMT_GLOBAL char *scratch;
    uint32_t n_segments;
};

SIMT_INLINE const SIMT_GLOBAL struct step *sample_step(const struct sample *s)
{
    return DECODER_AT(const struct step, s->in.step);
}

SIMT_INLINE uint32_t sample_n_rows(const struct sample *s)
{
    uint32_t n = sample_step(s)->n_logits;
    return n < STEP_MAX_LOGITS ? n : STEP_MAX_LOGITS;
}

SIMT_INLINE const SIMT_GLOBAL float *sample_logits(const struct sample *s, uint32_t index)
{
    return DECODER_AT(const float, s->in.logits) + (size_t)index * s->in.logits_stride;
}

SIMT_INLINE SIMT_GLOBAL char *sample_scratch(const struct sample *s, uint32_t index)
{
    return DECODER_AT(char, s->in.scratch) + sample_row_bytes(sample_n_segments(s->in.n_vocab)) * index;
}

SIMT_INLINE SIMT_GLOBAL struct sample_part *sample_parts(const struct sample *s, uint32_t index)
{
    return (SIMT_GLOBAL struct sample_part *)sample_scratch(s, index);
}

SIMT_INLINE enum sample_way sample_way_of(const SIMT_GLOBAL struct step_sampling *set, uint32_t n_vocab)
{
    if (!(set->temperature > 0.0f))
        return SAMPLE_GREEDY;
    if (set->top_k > 0 && (uint32_t)set->top_k < n_vocab)
        return SAMPLE_COUNT;
    if (set->typical_p < 1.0f)
        return SAMPLE_LIST;
    return set->top_p < 1.0f ? SAMPLE_MASS : SAMPLE_DIRECT;
}

/* Returns the number of history tokens that count for penalties. */
SIMT_INLINE uint32_t sample_window(const SIMT_GLOBAL struct step_sampling *set, uint32_t start, uint32_t pos)
{
    uint32_t n = pos + 1 > start ? pos + 1 - start : 0;
    bool neutral =
        set->repetition_penalty == 1.0f && set->presence_penalty == 0.0f && set->frequency_penalty == 0.0f;
    return neutral ? 0 : n < set->penalty_last_n ? n : set->penalty_last_n;
}

/* Logit row `index` of the step. If in_range is false, no other field may be used. */
SIMT_INLINE struct sample_row sample_row_of(const struct sample *s, uint32_t index)
{
    const struct decoder_slots *slots = &s->in.slots;
    const SIMT_GLOBAL struct step *step = sample_step(s);
    const SIMT_GLOBAL struct step_logit *want = &step->logits[index];
    struct sample_row r = {
        .way = SAMPLE_NOTHING, .target = -1, .n_segments = sample_n_segments(s->in.n_vocab)};
    r.scratch = sample_scratch(s, index);
    r.logits = r.x = sample_logits(s, index);
    uint32_t at = want->row;
    if (at >= step->n_rows || at >= STEP_MAX_ROWS)
        return r;
    r.slot = step->rows[at].slot;
    r.pos = step->rows[at].pos;
    r.target = want->target;
    r.in_range = r.slot < slots->n_slots && r.pos < slots->n_ctx &&
                 (r.target < 0 || (uint32_t)r.target < s->in.n_vocab) && want->n_top <= STEP_MAX_TOP &&
                 want->mask <= s->in.n_masks;
    if (!r.in_range)
        return r;
    r.n_top = want->n_top < s->in.n_vocab ? want->n_top : s->in.n_vocab;
    r.norm = (want->flags & STEP_LOGPROB) || want->n_top || r.target >= 0;
    r.set = DECODER_AT(const struct step_sampling, slots->sampling) + r.slot;
    if (r.target >= 0)
        return r;
    r.way = sample_way_of(r.set, s->in.n_vocab);
    r.n_biases = r.set->n_bias < STEP_MAX_BIAS ? r.set->n_bias : STEP_MAX_BIAS;
    r.biases = DECODER_AT(const struct step_bias, slots->biases) + (size_t)r.slot * STEP_MAX_BIAS;
    r.n_banned = want->flags & STEP_BAN_END ? s->in.n_end_tokens : 0;
    uint32_t start = DECODER_AT(const uint32_t, slots->start)[r.slot];
    r.n_window = sample_window(r.set, start, r.pos);
    r.window =
        DECODER_AT(const int32_t, slots->history) + (size_t)r.slot * slots->n_ctx + (r.pos + 1) - r.n_window;
    r.masked = want->mask > 0;
    r.changed = r.masked || r.n_biases || r.n_banned || r.n_window;
    if (r.changed)
        r.x = (const SIMT_GLOBAL float *)(r.scratch + sample_adjusted_at(r.n_segments));
    return r;
}

/* ---- the best of many ---- */

SIMT_INLINE struct sample_best sample_none(void)
{
    return (struct sample_best){-ARITH_INF, UINT32_MAX};
}

SIMT_INLINE bool sample_before(struct sample_best a, struct sample_best b)
{
    return a.x > b.x || (a.x == b.x && a.id < b.id);
}

SIMT_INLINE struct sample_best sample_better(struct sample_best a, struct sample_best b)
{
    return sample_before(b, a) ? b : a;
}

/* Best of the lanes of a warp; all lanes get it. */
SIMT_INLINE struct sample_best sample_best_of_warp(struct sample_best best)
{
    for (uint32_t w = SIMT_LANES / 2; w; w /= 2) {
        struct sample_best other = {simt_shfl_xor_f32(best.x, w), simt_shfl_xor_u32(best.id, w)};
        best = sample_better(best, other);
    }
    return best;
}

/* Best of all compute threads; all get it. */
SIMT_INLINE struct sample_best sample_best_of_crew(const struct sample *s, const struct crew *crew,
                                                   struct sample_best best)
{
    SIMT_SHARED struct sample_best *room = (SIMT_SHARED struct sample_best *)(s->work + SAMPLE_ROOM);
    best = sample_best_of_warp(best);
    crew_sync(crew); /* the previous reduction has been read */
    if (simt_lane() == 0) {
        room[simt_warp()].x = best.x;
        room[simt_warp()].id = best.id;
    }
    crew_sync(crew);
    struct sample_best mine = sample_none();
    if (simt_lane() < crew->n_warps)
        mine = (struct sample_best){room[simt_lane()].x, room[simt_lane()].id};
    return sample_best_of_warp(mine);
}

/* Selects one of a part's values. */
enum sample_value { SAMPLE_MAX, SAMPLE_LARGEST, SAMPLE_SCORE };

/* Best of a row's parts; each warp for itself. */
SIMT_INLINE struct sample_best sample_best_part(const struct sample_row *row, enum sample_value which)
{
    const SIMT_GLOBAL struct sample_part *parts = (const SIMT_GLOBAL struct sample_part *)row->scratch;
    struct sample_best best = sample_none();
    for (uint32_t i = simt_lane(); i < row->n_segments; i += SIMT_LANES) {
        const SIMT_GLOBAL struct sample_best *b = which == SAMPLE_MAX       ? &parts[i].max
                                                  : which == SAMPLE_LARGEST ? &parts[i].largest
                                                                            : &parts[i].score;
        best = sample_better(best, (struct sample_best){b->x, b->id});
    }
    return sample_best_of_warp(best);
}

/* ---- formulas of lib/sampler/sampler.h ---- */

SIMT_INLINE float sample_weight(float x, float max)
{
    return arith_exp2((x - max) * ARITH_LOG2E);
}

SIMT_INLINE uint64_t sample_mass(float weight)
{
    return (uint64_t)(int64_t)(weight * 0x1p40f);
}

SIMT_INLINE float sample_bounded(float x)
{
    return x < 3e38f ? x : 3e38f;
}

SIMT_INLINE uint64_t sample_needed(uint64_t total, float p)
{
    uint64_t share = p > 0.0f ? (uint64_t)(int64_t)((p < 1.0f ? p : 1.0f) * 0x1p24f) : 0;
    uint64_t need = (total >> 24) * share + (((total & 0xffffff) * share) >> 24);
    return need ? need : 1; /* at least one token, and each has a mass */
}

/* Returns the floor: when the largest logit is `max`, no token at or below it can pass a filter or win by its
 * noise. */
SIMT_INLINE float sample_floor(const SIMT_GLOBAL struct step_sampling *set, enum sample_way way, float max)
{
    float reach = set->temperature * 20.0f; /* noise lies in (-2.9, 16.7) */
    if (way == SAMPLE_COUNT)
        return -ARITH_INF;
    if (way != SAMPLE_DIRECT) {
        reach = 28.0f; /* 2^-40 */
    } else if (set->min_p > 0.0f) {
        float filter = set->min_p < 1.0f ? 0.01f - arith_log2(set->min_p + 1e-30f) * ARITH_LN2 : 0.01f;
        reach = filter < reach ? filter : reach;
    }
    float below = max - reach - (max < 0.0f ? -max : max) * 0x1p-22f; /* and the rounding of the others */
    return below < max ? below : -ARITH_INF;
}
