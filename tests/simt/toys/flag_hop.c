/* flag_hop.c - see toys.h. */
#include "toys.h"
#include "device/dependency.h"

/* The block that draws the last ticket of a head adds up its parts, in order of blocks. */
static void merge_if_last(const struct flag_hop_args *args, uint32_t head, uint32_t round)
{
    uint32_t t = simt_thread(), n = simt_n_blocks();
    SIMT_SHARED uint32_t *last = simt_carve(0, 16);
    simt_bar_sync(FLOW_BAR, FLAG_HOP_THREADS);
    if (t == 0)
        *last = simt_atom_acq_rel_gpu_add(&args->tickets[head], 1) == (round + 1) * n - 1;
    simt_bar_sync(FLOW_BAR, FLAG_HOP_THREADS);
    if (!*last)
        return;
    uint32_t sum = 0;
    for (uint32_t b = 0; b < n; b++)
        sum = sum * 3 + args->parts[(head * n + b) * FLAG_HOP_THREADS + t];
    args->merged[head * FLAG_HOP_THREADS + t] = sum;
    flow_signal(&args->flags[head], FLAG_HOP_THREADS);
}

SIMT_KERNEL(flag_hop, struct flag_hop_args, FLAG_HOP_THREADS, 1)
{
    uint32_t t = simt_thread(), block = simt_block(), x = block * 100 + t;
    struct flow_guard guard = {.words = args.words, .counters = args.flags};
    for (uint32_t r = 0; r < args.rounds; r++) {
        for (uint32_t h = 0; h < FLAG_HOP_HEADS; h++) {
            args.parts[(h * simt_n_blocks() + block) * FLAG_HOP_THREADS + t] = x + h;
            merge_if_last(&args, h, r);
        }
        for (uint32_t h = 0; h < FLAG_HOP_HEADS; h++) {
            if (!flow_wait(&args.flags[h], r + 1, &guard, FLAG_HOP_THREADS))
                return;
            x += args.merged[h * FLAG_HOP_THREADS + (t + 1) % FLAG_HOP_THREADS];
        }
    }
    args.out[block * FLAG_HOP_THREADS + t] = x;
}
