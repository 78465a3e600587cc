/* embed.c - the node EMBED; see nodes.h. */
#include "embed.h"
#include "nodes.h"

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
                        unit % n_supers, DECODER_AT(float, args.out.data) + (size_t)row * args.out.stride);
        else if (simt_lane() == 0)
            flow_fail(&guard, DECODER_RANGE, DECODER_RANGE_TOKEN, token, args.matrix.n);
    }
}
