/* product_label.h - the label of a stage: what its super-blocks are of the product. The producer warp, which
 * is ahead, writes a label before it fills the stage, so that the compute warps, which have to be quick,
 * compute nothing of it; they read it when they multiply, and again when they add the values up.
 *
 * Stage number i's label lies at i % PRODUCT_LABELS. The producer writes it once all warps have given back
 * stage i - 1 - n_stages, and a warp that has given back no more than stage j reads labels from
 * j - PRODUCT_MOST_STAGES + 1 on: so n_stages + PRODUCT_MOST_STAGES + 1 labels are enough.
 *
 * Thread: any; product_put_label(): lane 0 of the producer warp. */
#pragma once
#include "abi/schedule.h"
#include "abi/tile.h"
#include "device/weight_ring.h"

#define PRODUCT_LABELS      32
#define PRODUCT_MOST_STAGES 8 /* stages whose values fit one part of the fold area together */

struct product_label {
    uint32_t first_tile; /* the run's */
    uint32_t first_item; /* first super-block tile, from the run's first */
    uint32_t n_items;    /* super-block tiles of the stage */
    uint32_t n_tiles;    /* the run's */
    uint32_t lead;       /* the compute warp that has the first super-block, if there are up to 8 columns */
    uint32_t type;       /* enum tile_type */
    uint32_t matrix;     /* index; of a gated product 0 is gate and 1 up */
    uint32_t turn;       /* groups that this block had before; modulo PRODUCT_MOST_STAGES where it is read */
    uint32_t last;       /* the run's last stage: its tiles can be finished */
    uint32_t ends;       /* the block's last stage of the product */
};

_Static_assert(SCHEDULE_MAX_STAGES + PRODUCT_MOST_STAGES + 1 <= PRODUCT_LABELS, "labels");
_Static_assert(SCHEDULE_MAX_SUPERS <= 16 && DECODER_MAX_THREADS / SIMT_LANES <= 16 && TILE_N_TYPES <= 32 &&
                   PRODUCT_MOST_STAGES <= 8,
               "bits of a packed label");

/* Stores a label in two words: 16 bits of the first tile and 16 of the first item; then the others, and the
 * first tile's upper 8 bits. */
SIMT_INLINE void product_put_label(SIMT_SHARED uint64_t *labels, uint32_t number,
                                   const struct product_label *l)
{
    uint32_t low = (l->first_tile & 0xffff) | l->first_item << 16;
    uint32_t high = (l->n_items - 1) | (l->n_tiles - 1) << 4 | l->lead << 8 | l->type << 12 |
                    l->matrix << 17 | l->turn % PRODUCT_MOST_STAGES << 19 | l->last << 22 | l->ends << 23 |
                    l->first_tile >> 16 << 24;
    labels[number % PRODUCT_LABELS] = low | (uint64_t)high << 32;
}

SIMT_INLINE struct product_label product_label(const SIMT_SHARED uint64_t *labels, uint32_t number)
{
    uint64_t label = labels[number % PRODUCT_LABELS];
    uint32_t low = (uint32_t)label, high = (uint32_t)(label >> 32);
    return (struct product_label){.first_tile = (low & 0xffff) | high >> 24 << 16,
                                  .first_item = low >> 16,
                                  .n_items = (high & 15) + 1,
                                  .n_tiles = (high >> 4 & 15) + 1,
                                  .lead = high >> 8 & 15,
                                  .type = high >> 12 & 31,
                                  .matrix = high >> 17 & 3,
                                  .turn = high >> 19 & 7,
                                  .last = high >> 22 & 1,
                                  .ends = high >> 23 & 1};
}
