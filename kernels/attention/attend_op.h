/* attend_op.h - the program's op ATTEND, for the persistent decoder: QK-norm, RoPE, append and attention.
 * Thread: all compute threads of every block, together. */
#pragma once
#include "attend.h"
#include "device/interpreter.h"

_Static_assert(sizeof(struct attend_room) <= DECODER_KEPT_BYTES, "the plan is kept");

/* Sets the arguments that depend on the kind of attention. */
SIMT_INLINE void attend_args_of_kind(struct attend_args *a, const struct walk *w)
{
    const SIMT_GLOBAL struct program_op *op = w->op;
    const SIMT_GLOBAL struct decoder_kind *kind =
        DECODER_AT(const struct decoder_kind, w->args->kinds) + op->kind;
    a->cosines = kind->cosines;
    a->sines = kind->sines;
    a->temperatures = kind->temperatures;
    a->layout.n_layers = kind->layout.n_layers;
    a->layout.n_kv_heads = kind->layout.n_kv_heads;
    a->layout.head_dim = kind->layout.head_dim;
    a->layout.page_bytes = kind->layout.page_bytes;
    a->layout.at = kind->layout.at;
    if (kind->windowed) {
        a->kv = w->args->windows;
        a->slots.tables = w->args->slots.windows;
        a->slots.n_pages = w->args->slots.n_windows;
    }
    a->n_heads = kind->n_heads;
    a->rope_dim = kind->rope_dim;
    a->window = kind->window;
    a->cap = kind->cap;
    a->sinks = op->weight[0] == PROGRAM_NONE ? 0 : (uint64_t)(uintptr_t)walk_vector(w, op->weight[0]);
    a->cached = (op->flags & PROGRAM_CACHED) != 0;
    a->v_normed = (op->flags & PROGRAM_V_NORM) != 0;
}

SIMT_INLINE struct attend_args attend_args_of(const struct walk *w)
{
    const struct decoder_args *args = w->args;
    const SIMT_GLOBAL struct program_op *op = w->op;
    bool normed = op->q_gain != PROGRAM_NONE;
    return (struct attend_args){
        .in = (uint64_t)(uintptr_t)walk_row(w, op->in, 0),
        .out = (uint64_t)(uintptr_t)walk_row(w, op->out, 0),
        .cosines = args->cosines,
        .sines = args->sines,
        .q_gain = normed ? (uint64_t)(uintptr_t)walk_vector(w, op->q_gain) : 0,
        .k_gain = normed ? (uint64_t)(uintptr_t)walk_vector(w, op->k_gain) : 0,
        .kv = args->kv,
        .scratch = args->buffers.attend,
        .layout = args->layout,
        .slots = args->slots,
        .max_rows = args->buffers.max_rows,
        .in_stride = args->buffers.row_floats,
        .out_stride = args->buffers.row_floats,
        .q_col = op->out_col[0],
        .k_col = op->out_col[1],
        .v_col = op->out_col[2],
        .layer = op->layer,
        .n_heads = w->program->n_heads,
        .rope_dim = w->program->rope_dim,
        .neox = w->program->rope_neox,
        .eps = op->eps,
        .scale = op->scale,
        .work = args->shared.work,
        .work_bytes = DECODER_KEPT_BYTES + args->shared.work_bytes,
    };
}

/* Prefetches the gains, cosines and sines of q's and k's heads into L2; they were last read a layer or a step
 * ago. Called by one warp, for the first 32 rows: with many rows, other warps hide the memory latency. */
SIMT_INLINE void attend_ask(const struct attend_args *in, const SIMT_GLOBAL struct step_row *rows,
                            uint32_t n_rows)
{
    uint32_t lane = simt_lane(), half = in->rope_dim / 2;
    if (in->q_gain) {
        walk_ask(in->q_gain, in->layout.head_dim, lane, SIMT_LANES);
        walk_ask(in->k_gain, in->layout.head_dim, lane, SIMT_LANES);
    }
    if (half && lane < n_rows && rows[lane].pos < in->slots.n_ctx) {
        uint64_t at = (uint64_t)rows[lane].pos * half * 4;
        walk_ask(in->cosines + at, half, 0, 1);
        walk_ask(in->sines + at, half, 0, 1);
    }
}

SIMT_INLINE bool attend_run(struct walk *w, const bool general)
{
    struct attend_args in = attend_args_of(w);
    if (general)
        attend_args_of_kind(&in, w);
    const SIMT_GLOBAL struct step_row *rows = w->step->rows;
    bool lone = w->seen->lone_rows != 0;
    struct attend a = {.crew = w->crew,
                       .guard = &w->guard,
                       .general = general,
                       .polls = walk_polls(w),
                       .passes = walk_passes_words(w)};
    if (simt_warp() + 1 == w->crew.n_warps)
        attend_ask(&in, rows, w->n_rows);
    bool planned = w->op->flags & PROGRAM_PLANNED;
    if (a.passes && simt_thread() == 0)
        *walk_quiet(w->args, w->index) = GATE_MUTE;
    bool go = attend_prefetch(&a, &in, rows, w->n_rows, lone, planned) && walk_wait_behind(w);
    if (go && !a.lone) {
        attend_append_phase(&a);
        go = walk_meet(w, 1);
    }
    go = go && attend_phase(&a);
    if (!go)
        simt_cp_async_wait(0); /* a block must end with no copy under way */
    return go;
}

/* False: end, as interpreter.h says; a row or page out of range has then been recorded. */
SIMT_INLINE bool attend_op(struct walk *w)
{
    return w->op->flags & PROGRAM_GENERAL ? attend_run(w, true) : attend_run(w, false);
}
