/* embed.c - the node EMBED: out = row `token` of the packed matrix, as floats (embed.h).
 *   tokens [n_rows] i32, out [n_rows][out.stride] f32; struct embed_args, node_args.h
 * Any grid, NODE_EMBED_THREADS threads: a warp per super-block of a row. A token out of range is reported,
 * and its row is not written. Floor: 4 bytes a value written, and the row's share of its tiles read (Q4_K:
 * 144 bytes in 256 values). Must match quant_dequantise(): tests/simt/products/product_nodes.c. */
#include "matmul/embed.h"
#include "abi/node_args.h"

SIMT_KERNEL(embed, struct embed_args, NODE_EMBED_THREADS, 1)
{
    const SIMT_GLOBAL struct step *step = DECODER_AT(const struct step, args.step.step);
    const SIMT_GLOBAL int32_t *tokens = DECODER_AT(const int32_t, args.tokens);
    struct flow_guard guard = {.words = DECODER_AT(uint32_t, args.step.fault), .op = args.step.node};
    uint32_t n_warps = simt_n_threads() / SIMT_LANES, n_supers = args.matrix.n_supers;
    for (uint32_t unit = simt_block() * n_warps + simt_warp(); unit < step->n_rows * n_supers;
         unit += simt_n_blocks() * n_warps) {
        uint32_t row = unit / n_supers, token = (uint32_t)tokens[row];
        if (token < args.matrix.n)
            embed_super(DECODER_AT(const char, args.matrix.tiles), args.matrix.type, args.matrix.k, token,
                        unit % n_supers, 1.0f,
                        DECODER_AT(float, args.out.data) + (size_t)row * args.out.stride);
        else if (simt_lane() == 0)
            flow_fail(&guard, DECODER_RANGE, DECODER_RANGE_TOKEN, token, args.matrix.n);
    }
}
