/* kv_append.c - the node COPY: K and V of every row into the cache, in the cache's type; returns k.
 *   k, v, out [n_rows][n_kv_heads * head_dim] f32, k rotated; pages as in kv_tile.h, or in linear_tile.h;
 *   struct kv_append_args, node_args.h
 * Any grid, NODE_APPEND_THREADS threads: a warp per head of k or v. A row whose K and V are in the
 * cache already (STEP_ROW_CACHED) is not written; one whose slot, position or page is out of range is skipped
 * and reported. Floor: reads 8 and writes 4 bytes an element, and writes the cache's bytes. Must match
 * ops.append, except for the order inside a tile: tests/simt/attend/attending.c. */
#include "linear_tile.h"
#include "node.h"

/* Finds the tile of a row's head, and its token there. False: out of range, and reported. */
static bool find_tile(const struct kv_append_args *args, uint32_t row, uint32_t kv_head, uint32_t which,
                      SIMT_GLOBAL char **tile, uint32_t *token)
{
    const struct decoder_slots *s = &args->slots;
    uint32_t slot = node_step_of(&args->step)->rows[row].slot, pos = node_step_of(&args->step)->rows[row].pos;
    bool bad = slot >= s->n_slots || pos >= s->n_ctx;
    uint32_t page = bad ? 0 : slot * s->pages_per_slot + pos / KV_PAGE_TOKENS;
    uint32_t id = bad ? 0 : DECODER_AT(const uint32_t, s->tables)[page];
    if (simt_lane() == 0 && slot >= s->n_slots)
        node_fail(&args->step, DECODER_RANGE_ROW, slot, s->n_slots);
    else if (simt_lane() == 0 && pos >= s->n_ctx)
        node_fail(&args->step, DECODER_RANGE_ROW, pos, s->n_ctx);
    else if (simt_lane() == 0 && id >= s->n_pages)
        node_fail(&args->step, DECODER_RANGE_EDIT, id, s->n_pages);
    if (bad || id >= s->n_pages)
        return false;
    *tile = DECODER_AT(char, args->kv) + kv_offset(&args->layout, id, args->layer, kv_head, which);
    *token = pos % KV_PAGE_TOKENS;
    return true;
}

static void append_head(const struct kv_append_args *args, SIMT_SHARED float *stage, uint32_t row,
                        uint32_t head)
{
    uint32_t head_dim = args->layout.head_dim, which = head < args->layout.n_kv_heads ? KV_KEYS : KV_VALUES;
    uint32_t kv_head = head % args->layout.n_kv_heads, token = 0;
    const struct node_rows *in = which == KV_KEYS ? &args->k : &args->v;
    const SIMT_GLOBAL float *x = node_row(in, row) + kv_head * head_dim;
    SIMT_GLOBAL float *out = node_row(&args->out, row) + kv_head * head_dim;
    for (uint32_t d = simt_lane(); d < head_dim; d += SIMT_LANES) {
        stage[d] = x[d];
        if (which == KV_KEYS)
            out[d] = x[d];
    }
    SIMT_GLOBAL char *tile = NULL;
    if (node_step_of(&args->step)->rows[row].flags & STEP_ROW_CACHED)
        return; /* others may read the page at this moment */
    if (!find_tile(args, row, kv_head, which, &tile, &token))
        return;
    if (linear_is(head_dim)) {
        struct linear_row to = linear_row_of(tile, &args->layout, token);
        linear_append(&to, &args->layout, stage);
    } else {
        struct kv_tile k = kv_tile_of(head_dim, args->layout.type);
        struct head_place to = head_place_of(tile, &k, token);
        head_append(&to, &k, token, stage, head_dim);
    }
}

SIMT_KERNEL(kv_append, struct kv_append_args, NODE_APPEND_THREADS, 1)
{
    SIMT_SHARED float *stages = simt_carve(0, NODE_APPEND_SHARED);
    SIMT_SHARED float *stage = stages + simt_warp() * ATTEND_MAX_HEAD_DIM;
    struct node_deal d = node_deal_warps(node_n_rows(&args.step), 2 * args.layout.n_kv_heads);
    for (; node_more(&d); node_next_warp(&d))
        append_head(&args, stage, d.row, d.at);
}
