/* device_abi.h - what host and device share about the decoder: its launch parameter, the tables it reads from
 * device memory, and the words in pinned host memory through which steps go in and results come out.
 *
 * One launch lives until it is told to leave. Threads of a block: the crew (consumer warps, 0..n_crew-1,
 * which compute), one producer warp (streams weights into the ring of stages), one border warp (only block
 * 0's does anything: it alone touches host memory). A step goes
 *
 *   host      writes struct step into the pinned step ring, then `submitted` (release, sys)
 *   border    copies it into device memory (while the step before it still runs), waits for that step's end,
 *             applies table edits and slot settings, resolves tokens, then releases `published`
 *   blocks    see `published`, do the step's page ops, then every op of the program; a block that has done
 *             its part of an op adds 1 to the op's counter, and nobody starts the next op before all have
 *   border    sees the last op's counter, copies results to the pinned result ring, releases `completed`
 *
 * Counters (dependency.h) are cumulative: every block signals every op it walks past, whether or not it had
 * work, so a counter's target is n_blocks times the number of times the op ran; each block counts along in
 * shared memory. The host clears counters before each launch. An op has DECODER_PHASES of them: [0] is its
 * end, the others order the phases inside it. A step without logits passes over the ops with PROGRAM_HEAD,
 * one without rows over all of them; the last op's end counter is signalled in every step: it is the step's
 * end.
 *
 * Addresses are uint64_t so that both sides agree on the layout; a kernel casts with DECODER_AT(). */
#pragma once
#include "kv_layout.h"
#include "program_ops.h"
#include "step.h"

#include <stdint.h>

#define DECODER_AT(type, address) ((SIMT_GLOBAL type *)(uintptr_t)(address))

/* Threads; whole warps, at least 2. Sixteen warps in all: four on each of an SM's schedulers, so that a
 * thread may have 128 registers. (18 warps would put five on one of them, and leave 96, with which the loop
 * spills.) */
#define DECODER_MAX_CREW    448
#define DECODER_MAX_THREADS 512 /* the crew and two warps; a number: it becomes a launch bound */
#define DECODER_PHASES      4
#define DECODER_MAX_OPS     4096 /* of a program */
#define DECODER_LINE        32   /* u32 per counter: a 128-byte line each */
#define DECODER_RING        2    /* steps in flight */
#define DECODER_GATE_BYTES  32   /* of shared memory, behind the 16 per stage of the ring: step_gate.h */

/* A packed weight matrix [n, k]: tile.h. By model weight index; n is 0 where a weight is no matrix. */
struct decoder_matrix {
    uint64_t tiles; /* n_tiles x n_supers x super_bytes */
    uint32_t type;  /* enum tile_type */
    uint32_t n, k;
    uint32_t n_tiles;     /* ceil(n / 16): tiles of 16 rows */
    uint32_t n_supers;    /* ceil(k / 256) */
    uint32_t super_bytes; /* of one 16 x 256 super-block tile */
};
_Static_assert(sizeof(struct decoder_matrix) == 32, "decoder_matrix");

/* What is known of each sequence; the border warp alone writes it, between steps. */
struct decoder_slots {
    uint64_t tables;       /* u32 [n_slots][pages_per_slot] */
    uint64_t history;      /* i32 [n_slots][n_ctx], by position */
    uint64_t start;        /* u32 [n_slots]: first position whose token is known */
    uint64_t last_sampled; /* i32 [n_slots] */
    uint64_t sampling;     /* struct step_sampling [n_slots] */
    uint64_t biases;       /* struct step_bias [n_slots][STEP_MAX_BIAS] */
    uint32_t n_slots, n_ctx, pages_per_slot, n_pages;
};
_Static_assert(sizeof(struct decoder_slots) == 64, "decoder_slots");

/* One published step: what blocks may read while it runs. */
struct decoder_step {
    uint32_t lone_rows; /* no two rows of the step share a slot */
    uint32_t reserved[3];
    int32_t tokens[512]; /* of the rows */
    /* struct step follows, at DECODER_STEP_AT */
};
#define DECODER_STEP_AT 2064 /* sizeof(struct decoder_step) */
_Static_assert(sizeof(struct decoder_step) == DECODER_STEP_AT, "decoder_step");

/* Buffers of a step. */
struct decoder_buffers {
    uint64_t rows;        /* float [max_rows][row_floats]: the program's buffers but the logits */
    uint64_t logits;      /* float [STEP_MAX_LOGITS][logits_stride] */
    uint64_t activations; /* wide products: quantised rows, activation.h */
    uint64_t factors;     /* wide products: float [max_rows], 1/rms */
    uint64_t results; /* struct step_result [DECODER_RING][STEP_MAX_LOGITS], by step modulo DECODER_RING */
    uint64_t attend;  /* scratch of attend.h; zeroed at load */
    uint64_t sample;  /* scratch of sample.h; zeroed at load */
    uint32_t max_rows, row_floats, logits_stride, n_vocab;
};

/* How a block's dynamic shared memory is laid out; offsets and sizes are multiples of 128. The work area is
 * one op's at a time: quantised columns, K and V pages, candidates. The host sizes it (schedule.h). */
struct decoder_shared {
    uint32_t mbarriers, uses; /* offsets: of the ring and the gate; u32 [n_counters] */
    uint32_t work, work_bytes;
    uint32_t fold, fold_bytes; /* partial sums of super-blocks, product.h */
    uint32_t stages, stage_bytes, n_stages;
    uint32_t total;
};

/* Pinned host memory, one page: words the host writes, words the device writes, 128 bytes apart. */
struct decoder_control {
    uint32_t submitted; /* host: steps written to the ring so far (modulo 2^32, as all counts here) */
    uint32_t stop;      /* host: enum decoder_stop */
    uint32_t pad0[30];
    uint32_t completed; /* device: steps whose results lie in the result ring */
    uint32_t left;      /* device: the launch's number, as its last word */
    uint32_t heartbeat; /* device: ops done, moves while a step runs */
    uint32_t failed;    /* device: enum decoder_failure, after error[] */
    uint32_t error[8];  /* device: op, block, counter, value, target, ... for the message */
    uint32_t pad1[20];
};
_Static_assert(sizeof(struct decoder_control) == 256, "decoder_control");

/* Counters behind those of the ops: after n_ops x DECODER_PHASES. */
enum decoder_counter {
    DECODER_PAGES, /* blocks that have done their part of a step's page ops */
    DECODER_LEFT,  /* blocks that will touch nothing more */
    DECODER_N_COUNTERS,
};

enum decoder_stop {
    DECODER_RUN,
    DECODER_DRAIN, /* finish what was submitted, then leave */
    DECODER_ABORT, /* leave at the next wait */
};
enum decoder_failure {
    DECODER_FINE,
    DECODER_DEADLINE, /* a wait took longer than deadline_ns: error = what (dependency.h: a counter's first
                         word, or a stage), value, target, op, block */
    DECODER_RANGE,    /* of the step: error = enum decoder_range, value, limit, op (of no meaning), block */
    DECODER_ABORTED,  /* control.stop said so */
    DECODER_LEAVING,  /* no failure, never in control: the abort word when all leave in order */
};
/* What was out of range. */
enum decoder_range {
    DECODER_RANGE_COUNT = 1, /* of an array of the step */
    DECODER_RANGE_PAGE_OP,   /* kind, page or host offset */
    DECODER_RANGE_EDIT,      /* slot, index or page */
    DECODER_RANGE_SLOT,      /* slot, start, history or biases */
    DECODER_RANGE_TOKEN,     /* of a row, a bias, the history, a target */
    DECODER_RANGE_LOGIT,     /* row or n_top */
    DECODER_RANGE_ROW,       /* slot, position or logit index */
};

struct decoder_args {
    uint64_t program;        /* struct program, program_ops.h */
    uint64_t plan;           /* struct schedule_op [n_ops], schedule.h */
    uint64_t matrices;       /* struct decoder_matrix [n_weights] */
    uint64_t vectors;        /* u64 [n_weights]: address of the floats of a gain or bias, or 0 */
    uint64_t cosines, sines; /* float [n_ctx][rope_dim / 2] */
    uint64_t kv;             /* pages, kv_layout.h; the order inside a tile: attend.h */
    uint64_t transfer;       /* pinned: exported and imported pages */
    uint64_t end_tokens;     /* i32 [n_end_tokens]: what STEP_BAN_END bans */
    /* Cleared by the host before each launch: */
    uint64_t counters;   /* u32 [n_counters][DECODER_LINE]: ops x DECODER_PHASES, then enum decoder_counter */
    uint64_t published;  /* u32: steps of this launch published so far */
    uint64_t abort_word; /* u32 [DECODER_LINE]: enum flow_word; not 0: leave at the next wait */
    uint64_t progress;   /* u32: ops done by block 0, for the heartbeat */
    uint64_t staged;     /* struct decoder_step + struct step [DECODER_RING], staged_stride apart */
    uint64_t control;    /* struct decoder_control, pinned */
    uint64_t steps;      /* struct step [DECODER_RING], pinned, step_stride apart */
    uint64_t results;    /* struct step_result [DECODER_RING][STEP_MAX_LOGITS], pinned */
    uint64_t exported;   /* float [STEP_MAX_LOGITS][logits_stride], pinned: logits of rows with STEP_EXPORT */
    struct kv_layout layout;
    struct decoder_slots slots;
    struct decoder_buffers buffers;
    struct decoder_shared shared;
    uint32_t n_counters, n_crew; /* n_crew: threads */
    uint32_t n_end_tokens, launch;
    uint32_t first_step; /* `completed` when this launch began */
    uint32_t staged_stride, step_stride;
    uint32_t spin_ns;       /* idle: full speed so long, then back off */
    uint32_t park_after_ms; /* idle: leave after that; 0: never */
    uint32_t quantum_ms;    /* leave between steps after that; 0: never (no kernel run-time limit) */
    uint32_t delays;        /* tests: not 0: warps come late to their ops, by random times made from this */
    uint32_t reserved;
    uint64_t deadline_ns; /* a wait inside a step that takes longer is a failure; 0: none is */
    uint64_t transfer_bytes;
};
