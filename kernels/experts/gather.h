/* gather.h - the rows of a step gathered by expert: the list of units and places of mixture_layout.h, from
 * every row's choice.
 *
 *   choice             [n_rows][n_used] f32, in columns of their rows
 *   list, rows, place  struct decoder_mixtures
 *
 * A warp per expert: it counts the rows that have chosen the expert; when all experts are counted it finds
 * its places, behind those of the experts before, and writes them. Floor: the choice read twice by each
 * expert's warp, 32 rows at a time, and two meetings of all blocks. Tests: tests/cuda/test_cuda_twin.c,
 * tests/cuda/test_cuda_golden.c.
 *
 * Thread: all compute threads of every block together; gather_rows() and gather_expert(): one warp. Errors:
 * false: end, as interpreter.h says. */
#pragma once
#include "abi/mixture_layout.h"
#include "device/interpreter.h"

/* Returns where the row's choice has expert e; n_used: nowhere. */
SIMT_INLINE uint32_t gather_find(const struct walk *w, uint32_t row, uint32_t e)
{
    const SIMT_GLOBAL struct program_op *op = w->op;
    uint32_t n_used = op->route.n_used, at = n_used;
    if (row >= w->n_rows)
        return at;
    const SIMT_GLOBAL float *choice = walk_row(w, op->out, row) + op->out_col[0];
    SIMT_SMALL_LOOP
    for (uint32_t u = 0; u < n_used; u++)
        at = (uint32_t)choice[u] == e ? u : at;
    return at;
}

/* Returns the number of rows that have chosen expert e; with `writes` they get their places, from `place` on.
 */
SIMT_INLINE uint32_t gather_rows(const struct walk *w, uint32_t e, uint32_t place, const bool writes)
{
    const struct decoder_mixtures *x = &w->args->buffers.mixtures;
    uint32_t n_used = w->op->route.n_used, n = 0;
    SIMT_SMALL_LOOP
    for (uint32_t first = 0; first < w->n_rows; first += SIMT_LANES) {
        uint32_t row = first + simt_lane(), u = gather_find(w, row, e);
        uint32_t those = simt_ballot(u < n_used);
        uint32_t at = place + n + (uint32_t)__builtin_popcount(those & ((1u << simt_lane()) - 1));
        if (writes && u < n_used) {
            DECODER_AT(struct step_logit, x->rows)[at].row = (uint16_t)row;
            DECODER_AT(uint32_t, x->place)[row * n_used + u] = at;
        }
        n += (uint32_t)__builtin_popcount(those);
    }
    return n;
}

SIMT_INLINE uint32_t gather_panels(uint32_t n)
{
    return (n + ACTIVATION_COLUMNS - 1) / ACTIVATION_COLUMNS;
}

/* Writes the unit of expert e, if it has rows, and their places; the last expert's warp writes how many there
 * are. */
SIMT_INLINE void gather_expert(const struct walk *w, uint32_t e)
{
    const struct decoder_mixtures *x = &w->args->buffers.mixtures;
    SIMT_GLOBAL struct mixture_list *list = DECODER_AT(struct mixture_list, x->list);
    uint32_t lane = simt_lane(), n = list->count[e], unit = 0, panel = 0;
    for (uint32_t i = lane; i < e; i += SIMT_LANES) {
        unit += list->count[i] != 0;
        panel += gather_panels(list->count[i]);
    }
    for (uint32_t mask = SIMT_LANES / 2; mask; mask /= 2) {
        unit += simt_shfl_xor_u32(unit, mask);
        panel += simt_shfl_xor_u32(panel, mask);
    }
    uint32_t place = panel * ACTIVATION_COLUMNS, end = place + gather_panels(n) * ACTIVATION_COLUMNS;
    if (lane == 0 && e + 1 == w->op->route.n_experts) {
        list->n_units = unit + (n != 0);
        list->n_places = end;
    }
    if (!n)
        return;
    if (lane == 0) {
        SIMT_GLOBAL struct mixture_unit *to = &list->units[unit];
        to->expert = e;
        to->place = place;
        to->n_columns = n;
    }
    if (lane < end - place - n) /* nobody's: any row that there is */
        DECODER_AT(struct step_logit, x->rows)[place + n + lane].row = 0;
    gather_rows(w, e, place, true);
}

/* Gathers the step's rows, behind their choice. */
SIMT_INLINE bool gather_all(struct walk *w)
{
    SIMT_GLOBAL struct mixture_list *list = DECODER_AT(struct mixture_list, w->args->buffers.mixtures.list);
    uint32_t n_warps = w->crew.n_warps * simt_n_blocks(), n_experts = w->op->route.n_experts;
    uint32_t warp = simt_warp() * simt_n_blocks() + simt_block();
    if (!walk_meet(w, 1))
        return false;
    for (uint32_t e = warp; e < n_experts; e += n_warps) {
        uint32_t n = gather_rows(w, e, 0, false);
        if (simt_lane() == 0)
            list->count[e] = n;
    }
    if (!walk_meet(w, 2))
        return false;
    for (uint32_t e = warp; e < n_experts; e += n_warps)
        gather_expert(w, e);
    return true;
}
