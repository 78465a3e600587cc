/* schedule.h - how a matrix product is divided among blocks and copies: fixed numbers per op, made by
 * lib/cuda/plan.c.
 *
 * The producer warp derives from them what to fetch and the compute warps what to compute; neither asks the
 * other (product.h). tests/unit/cuda/test_cuda_schedule.c checks both on the host.
 *
 * A product's unit is a *group*: a few neighbouring row tiles (16 rows each, all of K) of one matrix, whose
 * super-block tiles lie in memory one after the other in the order (tile, super). With a gated epilogue a
 * group is the same tiles of both matrices, gate's run first, then up's. A *run* is cut into *stages* of at
 * most stage_supers super-block tiles: one copy each, one stage of the ring. Groups are numbered through all
 * matrices of an op and dealt round robin to blocks, from first_block on; first_block moves on from op to op
 * so that every block streams the same number of bytes.
 *
 * A group of several tiles always fits one stage; a run of several stages is one tile.
 * Thread: written once, when a model is loaded; read-only afterwards. */
#pragma once
#include "device_abi.h"

#define SCHEDULE_MAX_SUPERS 16 /* super-block tiles per stage: one per warp of a full block */
#define SCHEDULE_MAX_STAGES 16 /* the most that a ring has */

struct schedule_op {
    uint32_t n_groups;    /* 0: the op is no product */
    uint32_t group_tiles; /* the last group of a matrix may have fewer */
    uint32_t first_block; /* the block that has group 0; of other ops: the one behind the last group before */
    uint32_t paired;      /* program_is_gated() */
    struct {
        uint32_t first_group;  /* first group of this matrix (0 for both of a pair) */
        uint32_t stage_supers; /* super-block tiles per stage */
    } part[3];
    uint32_t reserved[2];
};
_Static_assert(sizeof(struct schedule_op) == 48, "schedule_op");

/* The first group of a block; its next ones follow n_blocks apart. May be >= n_groups: none. */
static inline uint32_t schedule_first(const struct schedule_op *s, uint32_t block, uint32_t n_blocks)
{
    return block >= s->first_block ? block - s->first_block : block + n_blocks - s->first_block;
}
