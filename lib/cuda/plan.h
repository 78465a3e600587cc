/* plan.h - the persistent decoder laid out on a device: which block streams and computes which part of every
 * product (kernels/abi/schedule.h), where a block's shared memory goes, and the counters that order the ops.
 * A pure function of program, weights and device; the test of it is tests/unit/cuda/test_cuda_schedule.c. */
#pragma once
#include "abi/device_abi.h"
#include "base/error.h"
#include "abi/schedule.h"

struct plan_device {
    uint32_t n_blocks;     /* of the grid, all resident */
    uint32_t n_crew;       /* threads */
    uint32_t shared_bytes; /* that a block may have */
};

struct plan {
    struct schedule_op *ops; /* [n_ops] */
    uint32_t n_ops;
    uint32_t n_counters; /* decoder_args.n_counters */
    struct decoder_shared shared;
};

/* `matrices`: by model weight index, as the device gets them (tiles may be 0). -ENOTSUP: the model does not
 * fit into a block's shared memory, in words. The plan is the caller's, who gives it back with plan_close().
 */
int plan_open(struct plan *out, const struct program *program, const struct decoder_matrix *matrices,
              const struct kv_layout *kv, const struct plan_device *device, struct error *err);
void plan_close(struct plan *p); /* a zeroed one is fine */

/* Writes the flow into a copy of the program that is meant for the device: every op waits for all blocks'
 * signal of the one before. */
void plan_flow(struct program *program, uint32_t n_blocks);
