/* persistent_decoder.c - the persistent decoder: one launch runs every step that is written to its ring, and
 * returns its results. device_abi.h has the protocol, persistent_loop.h the loop, interpreter.h the contract
 * of an op, README.md the picture.
 *
 * Grid: one block per SM, all resident (a cooperative launch). Block: args.n_crew + 64 threads, at most
 * DECODER_MAX_THREADS; args.shared.total bytes of shared memory, laid out by lib/cuda/plan.h.
 *
 * Floor of a step: the packed weights once (Qwen3-8B in Q4_K_M: 115.5 MB in each of 36 layers, and the head),
 * K and V of its sequences once (n_layers * n_kv_heads * head_dim * 4 bytes a token in f16: 147,456 there),
 * and, between two ops, a hop of the grid or a wait for words (words.h). PREDICTIONS.md has what follows.
 *
 * Must match lib/cpu in every bit: tests/cuda/test_cuda_twin.c (every result and logit of random steps),
 * test_cuda_golden.c, test_cuda_identity.c, test_cuda_lives.c; its synchronisation: tests/simt/decoding; the
 * deal of fetches and waits: tests/unit/cuda/test_cuda_schedule.c. */
#include "attention/attend_op.h"
#include "experts/route_op.h"
#include "matmul/branch.h"
#include "matmul/embed.h"
#include "experts/product_op.h"
#include "persistent_loop.h"
#include "recurrent/convolve_op.h"
#include "recurrent/delta_op.h"
#include "sampling/sample_op.h"

SIMT_INLINE bool persistent_op(struct walk *w)
{
    if (route_is_due(w))
        return route_op(w);
    switch (w->op->opcode) {
    case PROGRAM_EMBED:
        return embed_op(w);
    case PROGRAM_MATMUL:
    case PROGRAM_EXPERTS:
    case PROGRAM_HEADS:
        return product_op(w, true);
    case PROGRAM_ATTEND:
        return attend_op(w);
    case PROGRAM_ADD_NORM:
        return add_norm_op(w);
    case PROGRAM_GATE:
        return gate_op(w);
    case PROGRAM_JOIN:
        return join_op(w);
    case PROGRAM_CONV:
        return convolve_op(w);
    case PROGRAM_DELTA:
        return delta_op(w);
    default:
        return sample_op(w);
    }
}

/* Fetches an op's weights, by the producer warp. It has its own description of a product, since the compute
 * warps may be ops behind. */
SIMT_INLINE bool persistent_stream(struct stream *s)
{
    SIMT_SHARED char *fold = simt_carve(s->args->shared.fold, s->args->shared.fold_bytes);
    SIMT_SHARED struct product *p = product_at(fold, 1);
    simt_syncwarp(); /* no lane reads the previous op's any more */
    const SIMT_GLOBAL struct program *program = DECODER_AT(const struct program, s->args->program);
    product_open(p, s->args, program, s->op, s->plan, NULL, 0, false);
    simt_syncwarp();
    if (s->op->opcode != PROGRAM_MATMUL)
        return mixture_stream(p, s->args, program, s->op, &s->experts, &s->ring, &s->place, &s->guard);
    product_ask_vectors(p);
    return product_produce(p, fold, &s->ring, &s->place, &s->guard);
}

SIMT_KERNEL(persistent_decoder, struct decoder_args, DECODER_MAX_THREADS, 1)
{
    resident_run(&args, persistent_op, persistent_stream);
}
