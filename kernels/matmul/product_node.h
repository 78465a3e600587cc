/* product_node.h - the description of a product (product.h) that is a graph node: of mul_mat.c, of
 * mul_mat_id.c for one expert, of mul_mat_heads.c for one head. Thread: one thread of a block; others may
 * read the description after their next barrier with it. */
#pragma once
#include "abi/node_args.h"
#include "product_wide.h"

/* Returns the largest group of tiles that fits a stage and still gives every block one. */
SIMT_INLINE uint32_t product_group_tiles(uint32_t stage_supers, uint32_t n_supers, uint32_t n_tiles)
{
    uint32_t fit = stage_supers / n_supers, even = n_tiles / simt_n_blocks();
    uint32_t tiles = fit < even ? fit : even;
    return tiles ? tiles : 1;
}

/* Describes the first n rows of a node's matrix, n_tiles tiles, as a product with the node's columns, by one
 * thread. */
SIMT_INLINE void product_describe(SIMT_SHARED struct product *p, const struct mul_mat_args *args, uint32_t n,
                                  uint32_t n_tiles)
{
    const SIMT_GLOBAL struct step *step = DECODER_AT(const struct step, args->step.step);
    SIMT_SHARED struct product_matrix *m = &p->matrix[0];
    uint32_t fit = args->shared.stage_bytes / args->matrix.super_bytes;
    m->tiles = args->matrix.tiles;
    m->bias = args->bias;
    m->type = args->matrix.type;
    m->n = n;
    m->n_tiles = n_tiles;
    m->super_bytes = args->matrix.super_bytes;
    m->out_col = 0;
    m->first_group = 0;
    m->stage_supers = fit < SCHEDULE_MAX_SUPERS ? fit : SCHEDULE_MAX_SUPERS;
    p->in = args->in.data;
    p->in_stride = args->in.stride;
    p->out = args->out.data;
    p->out_stride = args->out.stride;
    p->gain = 0;
    p->factors = args->factors;
    p->gates = 0;
    p->gather = args->in.gathered ? (uint64_t)(uintptr_t)step->logits : 0;
    p->panels = 0;
    p->wide_factors = 0;
    p->k = args->matrix.k;
    p->n_supers = args->matrix.n_supers;
    p->forms = activation_form(args->matrix.type);
    p->n_rows = step->n_rows;
    p->n_warps = simt_n_threads() / SIMT_LANES - 1;
    p->part_floats = product_part_floats(args->shared.fold_bytes);
    p->n_columns = args->step.head ? step->n_logits : step->n_rows;
    p->n_matrices = 1;
    p->head_columns = 0;
    p->polls = p->words = 0;
    p->old = 0;
    p->empties_old = 0;
    p->n_empties = 0;
    p->epilogue = PROGRAM_STORE;
    p->group_tiles = product_group_tiles(m->stage_supers, args->matrix.n_supers, n_tiles);
    p->n_groups = (n_tiles + p->group_tiles - 1) / p->group_tiles;
    p->first_block = 0;
    p->eps = 0;
    p->scale = 1;
    p->cap = 0;
}

/* Returns the number of columns that fit the work area together; the host makes sure that one does. */
SIMT_INLINE uint32_t product_columns_at_once(const SIMT_SHARED struct product *p, uint32_t work_bytes)
{
    uint32_t n = ACTIVATION_COLUMNS;
    while (n > 1 && activation_panel_bytes(n, p->k, p->forms) > work_bytes)
        n--;
    return n;
}

/* By the producer warp: the tiles as often as product_multiply_rows() multiplies with them. False: end. */
SIMT_INLINE bool product_stream_rows(SIMT_SHARED struct product *p, const struct product_place *place,
                                     uint32_t some)
{
    for (uint32_t first = 0; first < p->n_columns; first += some)
        if (!product_produce(p, place->fold, place->ring, place->at, place->guard))
            return false;
    return true;
}

/* By the compute warps: all rows, `some` at a time (product_columns_at_once()). False: end. */
SIMT_INLINE bool product_multiply_rows(SIMT_SHARED struct product *p, const struct product_place *place,
                                       const struct crew *crew, uint32_t some)
{
    uint32_t n = p->n_columns;
    for (uint32_t first = 0; first < n; first += some) {
        uint32_t columns = n - first < some ? n - first : some;
        product_quantise(p, false, place->work, first, columns, simt_warp(), crew->n_warps, false, NULL);
        crew_sync(crew);
        product_find_factors(p, false, false, first, columns, simt_warp(), crew->n_warps);
        if (!product_run(p, place, crew))
            return false;
        crew_sync(crew);
    }
    return true;
}
