/* plan.h - the persistent decoder's plan for a device: which block streams and computes which part of every
 * product (kernels/abi/schedule.h), the layout of a block's shared memory, and the counters that order the
 * ops. Tested by tests/unit/cuda/test_cuda_schedule.c.
 * Thread: any; pure functions of program, weights and device. */
#pragma once
#include "abi/device_abi.h"
#include "base/error.h"
#include "abi/schedule.h"

struct plan_device {
    uint32_t n_blocks;     /* blocks of the grid, all resident */
    uint32_t n_crew;       /* compute threads */
    uint32_t shared_bytes; /* most shared memory of a block, bytes */
    uint32_t attend_bytes; /* least work area of attention (attend_layout.h) */
};

struct plan {
    struct schedule_op *ops; /* [n_ops] */
    uint32_t n_ops;
    uint32_t n_counters; /* decoder_args.n_counters */
    struct decoder_shared shared;
};

/* `matrices`: by model weight index, as on the device (tiles may be 0). The caller owns the plan and calls
 * plan_close(). Errors: -ENOTSUP: the model does not fit a block's shared memory, or has too many ops;
 * -ENOMEM. */
int plan_open(struct plan *out, const struct program *program, const struct decoder_matrix *matrices,
              const struct plan_device *device, struct error *err);
void plan_close(struct plan *p); /* a zeroed one is fine */

/* Bytes of what the mixtures and heads of a program need for steps of max_rows rows (mixture_layout.h); all 0
 * if it has none. */
struct plan_mixtures {
    uint64_t list, rows, place, inner, parts; /* decoder_mixtures; 0 for heads */
    uint64_t activations, factors;            /* decoder_buffers, at least */
};
void plan_mixtures(struct plan_mixtures *out, const struct program *program,
                   const struct decoder_matrix *matrices, uint32_t max_rows);

/* Writes the dependencies into the device's copy of the program: every op waits for all blocks' signal of the
 * previous one. (Where blocks choose experts for themselves, EXPERTS waits for the op before ROUTE's; beside
 * HEADS, JOIN waits for nothing.) */
void plan_flow(struct program *program, uint32_t n_blocks);

/* Marks, there too, the ATTEND ops that take up the plan of the one before (PROGRAM_PLANNED): those of its
 * kind, and general if it is. */
void plan_attention(struct program *program);

/* Marks, there too, each ROUTE that the gated EXPERTS op follows at once, and the EXPERTS ops of its choice
 * (PROGRAM_CHOOSES). */
void plan_choices(struct program *program);

/* Marks, there too, each JOIN that may run beside the HEADS op before it (PROGRAM_BESIDE). */
void plan_joins(struct program *program);

/* Gives each MATMUL there its place for the columns of steps of up to ACTIVATION_COLUMNS rows
 * (program_op.panels). Returns the bytes of all places, which decoder_buffers.activations has at least. */
uint64_t plan_panels(struct program *program, const struct decoder_matrix *matrices);

/* The properties of a block and its plan that decide which ops pass words on, and of how many rows. */
struct plan_block {
    uint32_t work_bytes;            /* decoder_shared.work_bytes */
    uint32_t n_crew;                /* compute threads */
    const struct schedule_op *plan; /* plan.ops */
};

/* Marks, there too, the ops that pass their output on as words (PROGRAM_WORDS), or quantised
 * (PROGRAM_QUANTISES), and those that empty them, and gives the buffers that this takes. Call it last: it
 * relies on the hops that the marks above leave. Returns decoder_args.words_rows. */
uint32_t plan_words(struct program *program, const struct decoder_matrix *matrices,
                    const struct plan_block *block);

/* All of these, in the order in which they rely on each other. The ops that have PROGRAM_GENERAL are marked
 * before. words: whether plan_words() is called. */
struct plan_marks {
    uint32_t words_rows;  /* decoder_args */
    uint64_t panel_bytes; /* plan_panels() */
};
struct plan_marks plan_mark(struct program *program, const struct decoder_matrix *matrices, uint32_t n_blocks,
                            const struct plan_block *block, bool words);
