/* toy_decoder.c - see toy_decoder.h. */
#include "toy_decoder.h"
#include "persistent/persistent_loop.h"

SIMT_INLINE SIMT_GLOBAL uint32_t *toy_row(const struct walk *w, uint32_t buffer, uint32_t row)
{
    return (SIMT_GLOBAL uint32_t *)walk_row(w, buffer, row);
}

/* --- EMBED --- */

SIMT_INLINE bool toy_embed(struct walk *w)
{
    if (!walk_wait(w))
        return false;
    for (uint32_t row = simt_block(); row < w->n_rows; row += simt_n_blocks())
        for (uint32_t i = simt_thread(); i < TOY_WIDTH; i += w->crew.n_threads)
            toy_row(w, PROGRAM_X, row)[i] = toy_mix((uint32_t)w->seen->tokens[row], i);
    return true;
}

/* --- MATMUL --- */

/* A run of a group (abi/schedule.h): tiles of one of the op's matrices. */
struct toy_tiles {
    uint32_t part, first_tile, n_tiles;
};

SIMT_INLINE uint32_t toy_n_runs(const SIMT_GLOBAL struct schedule_op *s)
{
    return s->paired ? 2 : 1;
}

/* Run `index` of a group of the op. */
SIMT_INLINE struct toy_tiles toy_tiles_of(const SIMT_GLOBAL struct schedule_op *s, uint32_t group,
                                          uint32_t index, const SIMT_GLOBAL struct program_op *op,
                                          const SIMT_GLOBAL struct decoder_matrix *matrices)
{
    uint32_t part = index;
    if (!s->paired) { /* of up to three matrices */
        bool second = op->n_weights > 1 && group >= s->part[1].first_group;
        bool third = op->n_weights > 2 && group >= s->part[2].first_group;
        part = third ? 2 : second;
    }
    uint32_t first = (group - s->part[part].first_group) * s->group_tiles;
    uint32_t left = matrices[op->weight[part]].n_tiles - first;
    return (struct toy_tiles){part, first, left < s->group_tiles ? left : s->group_tiles};
}

/* Adds each row's words of the super-block tiles in the next stages to lane `row` of the warp that has them.
 * Tiles of a group follow one another: part `tile` of the fold is that tile's. False: leave. */
SIMT_INLINE bool toy_take(struct walk *w, uint32_t n_tiles, uint32_t n_supers, uint32_t stage_supers)
{
    SIMT_SHARED uint32_t *fold = walk_fold(w);
    uint32_t lane = simt_lane(), total = n_tiles * n_supers;
    for (uint32_t i = simt_thread(); i < n_tiles * w->crew.n_warps * 16; i += w->crew.n_threads)
        fold[i] = 0;
    struct ring_place place = walk_place(w);
    crew_sync(&w->crew);
    bool go = true;
    for (uint32_t at = 0; at < total && go; at += stage_supers) {
        go = ring_take(&w->ring, &place, &w->guard);
        if (!go)
            break;
        const SIMT_SHARED char *stage = ring_stage(&w->ring, &place);
        uint32_t n = total - at < stage_supers ? total - at : stage_supers;
        for (uint32_t s = simt_warp(); s < n && lane < 16; s += w->crew.n_warps) {
            simt_u4 v = *(const SIMT_SHARED simt_u4 *)(stage + s * TOY_SUPER_BYTES + lane * 16);
            fold[((at + s) / n_supers * w->crew.n_warps + simt_warp()) * 16 + lane] +=
                (v[0] + v[1] * 3 + v[2] * 5 + v[3] * 7) * ((at + s) % n_supers + 1);
        }
        ring_give(&w->ring, &place);
    }
    walk_keep_place(w, place);
    return !crew_any(&w->crew, !go);
}

/* The product's value for one output: a sum of weights, a sum of the row. */
SIMT_INLINE uint32_t toy_product(const struct walk *w, const SIMT_GLOBAL uint32_t *in, uint32_t tile,
                                 uint32_t i)
{
    const SIMT_SHARED uint32_t *fold = walk_fold(w);
    uint32_t weights = 0, row = 0;
    for (uint32_t warp = 0; warp < w->crew.n_warps; warp++)
        weights += fold[(tile * w->crew.n_warps + warp) * 16 + i];
    for (uint32_t j = 0; j < TOY_WIDTH; j++)
        row = row * 3 + in[j];
    return toy_mix(weights, row);
}

SIMT_INLINE void toy_store(struct walk *w, const struct toy_tiles *run)
{
    uint32_t n = w->op->n[run->part];
    for (uint32_t i = simt_thread(); i < run->n_tiles * 16 * w->n_rows; i += w->crew.n_threads) {
        uint32_t row = i / (run->n_tiles * 16), out = run->first_tile * 16 + i % (run->n_tiles * 16);
        uint32_t from = w->op->flags & PROGRAM_HEAD ? w->step->logits[row].row : row;
        if (out >= n)
            continue;
        uint32_t y = toy_product(w, toy_row(w, w->op->in, from), out / 16 - run->first_tile, out % 16);
        SIMT_GLOBAL uint32_t *to = &toy_row(w, w->op->out, row)[w->op->out_col[run->part] + out];
        *to = w->op->epilogue == PROGRAM_RESIDUAL ? *to + y : run->part && w->plan->paired ? *to * 31 + y : y;
    }
    crew_sync(&w->crew);
}

SIMT_INLINE bool toy_matmul(struct walk *w)
{
    const SIMT_GLOBAL struct decoder_matrix *matrices =
        DECODER_AT(const struct decoder_matrix, w->args->matrices);
    const SIMT_GLOBAL struct schedule_op *plan = w->plan;
    if (!walk_wait(w))
        return false;
    uint32_t block = simt_block(), n_blocks = simt_n_blocks();
    for (uint32_t g = schedule_first((const struct schedule_op *)plan, block, n_blocks); g < plan->n_groups;
         g += n_blocks)
        for (uint32_t r = 0; r < toy_n_runs(plan); r++) {
            struct toy_tiles run = toy_tiles_of(plan, g, r, w->op, matrices);
            if (!toy_take(w, run.n_tiles, matrices[w->op->weight[run.part]].n_supers,
                          plan->part[run.part].stage_supers))
                return false;
            toy_store(w, &run);
        }
    return true;
}

SIMT_INLINE bool toy_stream(struct stream *s)
{
    const SIMT_GLOBAL struct decoder_matrix *matrices =
        DECODER_AT(const struct decoder_matrix, s->args->matrices);
    uint32_t block = simt_block(), n_blocks = simt_n_blocks();
    for (uint32_t g = schedule_first((const struct schedule_op *)s->plan, block, n_blocks);
         g < s->plan->n_groups; g += n_blocks)
        for (uint32_t r = 0; r < toy_n_runs(s->plan); r++) {
            struct toy_tiles run = toy_tiles_of(s->plan, g, r, s->op, matrices);
            const SIMT_GLOBAL struct decoder_matrix *m = &matrices[s->op->weight[run.part]];
            const SIMT_GLOBAL char *from =
                DECODER_AT(const char, m->tiles) + (size_t)run.first_tile * m->n_supers * TOY_SUPER_BYTES;
            uint32_t stage = s->plan->part[run.part].stage_supers, left = run.n_tiles * m->n_supers;
            for (; left; from += stage * TOY_SUPER_BYTES) {
                uint32_t n = left < stage ? left : stage;
                if (!ring_fill(&s->ring, &s->place, from, n * TOY_SUPER_BYTES, &s->guard))
                    return false;
                left -= n;
            }
        }
    return true;
}

/* --- ATTEND --- */

/* The word of the cache that belongs to a position of a layer. */
SIMT_INLINE SIMT_GLOBAL uint32_t *toy_cell(const struct walk *w, uint32_t slot, uint32_t pos)
{
    const struct decoder_slots *slots = &w->args->slots;
    bool window = w->op->layer == TOY_WINDOW_LAYER;
    uint64_t table = window ? slots->windows : slots->tables;
    uint32_t page = DECODER_AT(const uint32_t, table)[slot * slots->pages_per_slot + pos / KV_PAGE_TOKENS];
    if (window)
        return (SIMT_GLOBAL uint32_t *)(DECODER_AT(char, w->args->windows) + page * w->args->window_bytes) +
               pos % KV_PAGE_TOKENS;
    return (SIMT_GLOBAL uint32_t *)(DECODER_AT(char, w->args->kv) +
                                    kv_offset(&w->args->layout, page, w->op->layer, 0, KV_KEYS)) +
           pos % KV_PAGE_TOKENS;
}

SIMT_INLINE void toy_append(struct walk *w, uint32_t row)
{
    uint32_t slot = w->step->rows[row].slot, pos = w->step->rows[row].pos;
    if (simt_thread() == 0)
        *toy_cell(w, slot, pos) = toy_mix(toy_row(w, PROGRAM_QKV, row)[1], pos);
}

SIMT_INLINE void toy_attend_row(struct walk *w, uint32_t row)
{
    uint32_t slot = w->step->rows[row].slot, pos = w->step->rows[row].pos, sum = 0;
    for (uint32_t p = 0; p <= pos; p++)
        sum = sum * 5 + *toy_cell(w, slot, p);
    for (uint32_t i = simt_thread(); i < TOY_WIDTH; i += w->crew.n_threads)
        toy_row(w, PROGRAM_ATTN, row)[i] = toy_mix(sum, toy_row(w, PROGRAM_QKV, row)[i]);
}

SIMT_INLINE bool toy_attend(struct walk *w)
{
    if (!walk_wait(w))
        return false;
    if (!w->seen->lone_rows) {
        for (uint32_t row = simt_block(); row < w->n_rows; row += simt_n_blocks())
            toy_append(w, row);
        if (!walk_meet(w, 1))
            return false;
    }
    for (uint32_t row = simt_block(); row < w->n_rows; row += simt_n_blocks()) {
        if (w->seen->lone_rows)
            toy_append(w, row);
        crew_sync(&w->crew);
        toy_attend_row(w, row);
    }
    return true;
}

/* --- SAMPLE --- */

SIMT_INLINE void toy_choose(struct walk *w, uint32_t i)
{
    const struct decoder_slots *slots = &w->args->slots;
    const SIMT_GLOBAL struct step_row *row = &w->step->rows[w->step->logits[i].row];
    const SIMT_GLOBAL struct step_sampling *sampling =
        DECODER_AT(const struct step_sampling, slots->sampling) + row->slot;
    const SIMT_GLOBAL int32_t *history =
        DECODER_AT(const int32_t, slots->history) + (size_t)row->slot * slots->n_ctx;
    const SIMT_GLOBAL struct step_bias *biases =
        DECODER_AT(const struct step_bias, slots->biases) + (size_t)row->slot * STEP_MAX_BIAS;
    SIMT_GLOBAL struct step_result *out =
        DECODER_AT(struct step_result, w->args->buffers.results) + w->result * STEP_MAX_LOGITS + i;
    uint32_t sum = (uint32_t)sampling->seed;
    for (uint32_t j = 0; j < TOY_VOCAB; j++)
        sum = sum * 3 + toy_row(w, PROGRAM_LOGITS, i)[j];
    for (uint32_t p = DECODER_AT(const uint32_t, slots->start)[row->slot]; p <= row->pos; p++)
        sum = sum * 7 + (uint32_t)history[p];
    for (uint32_t j = 0; j < sampling->n_bias; j++)
        sum = toy_mix(sum, (uint32_t)biases[j].token);
    int32_t target = w->step->logits[i].target;
    out->step = w->step->id;
    out->slot = row->slot;
    out->pos = row->pos;
    out->token = target >= 0 ? target : (int32_t)(sum % TOY_VOCAB);
    out->flags = target >= 0 ? STEP_RESULT_TARGET : 0;
    out->logit_index = i;
    out->top[0].token = (int32_t)sum;
}

SIMT_INLINE bool toy_sample(struct walk *w)
{
    if (!walk_wait(w))
        return false;
    for (uint32_t i = simt_block(); i < w->n_rows; i += simt_n_blocks())
        if (simt_thread() == 0)
            toy_choose(w, i);
    return true;
}

/* --- */

SIMT_INLINE bool toy_lost(struct walk *w)
{
    while (!simt_ld_relaxed_gpu(&w->guard.words[FLOW_ABORT])) {
    }
    return false;
}

SIMT_INLINE bool toy_op(struct walk *w)
{
    if (w->op->reserved[0] && simt_block() == simt_n_blocks() - 1)
        return toy_lost(w);
    switch (w->op->opcode) {
    case PROGRAM_EMBED:
        return toy_embed(w);
    case PROGRAM_MATMUL:
        return toy_matmul(w);
    case PROGRAM_ATTEND:
        return toy_attend(w);
    default:
        return toy_sample(w);
    }
}

SIMT_KERNEL(toy_decoder, struct decoder_args, DECODER_MAX_THREADS, 1)
{
    resident_run(&args, toy_op, toy_stream);
}
