/* rope.c - rotates every head by its row's position, from the host's table.
 *   in, out [n_rows][width] f32, heads of head_dim, in == out allowed; struct rope_args, node_args.h
 *   pairs: (2i, 2i + 1), or with neox (i, i + rope_dim / 2); values from rope_dim on stay as they are
 * Any grid, NODE_ROPE_THREADS threads: one pair each. A row with a position of n_ctx or more is skipped and
 * reported. Floor: 8 bytes an element. Must match ops.rope: tests/simt/attend/attending.c. */
#include "abi/arith.h"
#include "node.h"

static void rotate(const struct rope_args *args, SIMT_GLOBAL float *out, const SIMT_GLOBAL float *x,
                   uint32_t pos, uint32_t i)
{
    uint32_t half = args->rope_dim / 2, first = args->neox ? i : 2 * i,
             second = args->neox ? i + half : 2 * i + 1;
    size_t at = (size_t)pos * half + i;
    float a = x[first], b = x[second];
    arith_rope(&a, &b, DECODER_AT(const float, args->cosines)[at], DECODER_AT(const float, args->sines)[at]);
    out[first] = a;
    out[second] = b;
}

SIMT_KERNEL(rope, struct rope_args, NODE_ROPE_THREADS, 1)
{
    uint32_t half = args.rope_dim / 2, per_head = args.head_dim - half; /* pairs, then single values */
    struct node_deal d = node_deal(node_n_rows(&args.step), args.width / args.head_dim * per_head);
    for (; node_more(&d); node_next(&d)) {
        uint32_t pos = node_step_of(&args.step)->rows[d.row].pos;
        uint32_t head = d.at / per_head * args.head_dim, i = d.at % per_head;
        const SIMT_GLOBAL float *x = node_row(&args.in, d.row) + head;
        SIMT_GLOBAL float *out = node_row(&args.out, d.row) + head;
        if (pos >= args.n_ctx)
            node_fail(&args.step, DECODER_RANGE_ROW, pos, args.n_ctx);
        else if (i < half)
            rotate(&args, out, x, pos, i);
        else
            out[half + i] = x[half + i];
    }
}
