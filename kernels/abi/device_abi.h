/* device_abi.h - what host and device share about the decoder: its launch parameter, the tables it reads from
 * device memory, and the words in pinned host memory through which steps go in and results come out.
 *
 * A launch lives until the host asks it to end. Threads of a block: the compute warps (threads 0..n_crew-1),
 * one producer warp (copies weights into the ring of stages), one I/O warp (only block 0's works: it alone
 * touches host memory). A step goes as follows:
 *
 *   host          writes struct step into the pinned step ring, then `submitted` (release, sys)
 *   I/O warp      copies it into device memory while the step before still runs, waits for that step's end,
 *                 applies table edits and slot settings, resolves tokens, then releases `published`
 *   blocks        see `published`, do the step's page ops, then every op of the program; a block that has
 *                 done its part of an op adds 1 to the op's counter; no block starts the next op before all
 *                 blocks have added theirs, unless the op passes words on (device/words.h) or blocks
 *                 choose experts for themselves (mixture_layout.h)
 *   I/O warp      sees the last op's counter, copies results to the pinned result ring, releases `completed`
 *
 * Counters (dependency.h) are cumulative: every block signals every op it passes, with or without work, but
 * those that pass words on without PROGRAM_SIGNALS, so a counter's target is n_blocks times the number of
 * times the op ran; each block keeps that number in shared memory. The host clears counters before each
 * launch. An op has DECODER_PHASES of them: [0] is its end, the others order the phases inside it. A step
 * without logits skips the ops with PROGRAM_HEAD, one without rows skips all; the last op's end counter is
 * signalled in every step: it is the step's end.
 *
 * Addresses are uint64_t so that both sides agree on the layout; a kernel casts with DECODER_AT().
 * Thread: the host writes decoder_args before the launch; the I/O warp alone writes decoder_slots and
 * decoder_step; each word of decoder_control has one writer, named beside it. */
#pragma once
#include "delta.h"
#include "kv_layout.h"
#include "program_ops.h"
#include "step.h"

#include <stdint.h>

#define DECODER_AT(type, address) ((SIMT_GLOBAL type *)(uintptr_t)(address))

/* Most compute threads; whole warps, at least 2. With the other two warps a block has sixteen, four on each
 * scheduler of an SM, so that a thread may have 128 registers. (18 warps would put five on a scheduler and
 * leave 96 registers, with which the loop spills.) */
#define DECODER_MAX_CREW      448
#define DECODER_MAX_THREADS   512 /* with the other two warps; a literal: it becomes a launch bound */
#define DECODER_PHASES        4
#define DECODER_MAX_OPS       4096 /* most ops of a program */
#define DECODER_LINE          32   /* u32 per counter: a 128-byte line each */
#define DECODER_RING          2    /* steps in flight */
#define DECODER_MASKS         64   /* of tokens: one for each logit row of the steps in flight */
#define DECODER_GATE_BYTES    32   /* bytes of shared memory of a gate: step_gate.h */
#define DECODER_MIXTURE_BYTES 48   /* and of a state of a mixture of experts: experts/mixture.h */
#define DECODER_N_GATES       2
#define DECODER_WARP_BYTES    8   /* and of what a compute warp keeps from op to op: interpreter.h */
#define DECODER_CHOICE_BYTES  512 /* and of the choices that a block makes for itself: mixture_layout.h */
#define DECODER_GATES_BYTES                                                                                  \
    (DECODER_N_GATES * DECODER_GATE_BYTES + 2 * DECODER_MIXTURE_BYTES +                                      \
     DECODER_MAX_THREADS / 32 * DECODER_WARP_BYTES +                                                         \
     DECODER_CHOICE_BYTES)      /* all of these, in this order, after 16 per stage */
#define DECODER_KEPT_BYTES 2048 /* bytes before the work area that ATTEND keeps from op to op: its plan */

_Static_assert(DECODER_MASKS == DECODER_RING * STEP_MAX_LOGITS, "masks");

/* A packed weight matrix [n, k] (tile.h), by model weight index; n is 0 if the weight is no matrix. */
struct decoder_matrix {
    uint64_t tiles; /* n_tiles x n_supers x super_bytes */
    uint32_t type;  /* enum tile_type */
    uint32_t n, k;
    uint32_t n_tiles;     /* ceil(n / 16): tiles of 16 rows */
    uint32_t n_supers;    /* ceil(k / 256) */
    uint32_t super_bytes; /* bytes of one 16 x 256 super-block tile */
};
_Static_assert(sizeof(struct decoder_matrix) == 32, "decoder_matrix");

/* State of each sequence. Only the I/O warp writes it, between steps. */
struct decoder_slots {
    uint64_t tables;       /* u32 [n_slots][pages_per_slot] */
    uint64_t windows;      /* the same of window pages, counted from the first of them */
    uint64_t history;      /* i32 [n_slots][n_ctx], by position */
    uint64_t start;        /* u32 [n_slots]: first position whose token is known */
    uint64_t last_sampled; /* i32 [n_slots] */
    uint64_t sampling;     /* struct step_sampling [n_slots] */
    uint64_t biases;       /* struct step_bias [n_slots][STEP_MAX_BIAS] */
    uint32_t n_slots, n_ctx, pages_per_slot, n_pages;
    uint32_t n_windows; /* window pages, which steps number from n_pages on; 0: there are none */
    uint32_t reserved;
};
_Static_assert(sizeof(struct decoder_slots) == 80, "decoder_slots");

/* The states of recurrent layers: those of the slots, then snapshots. */
struct decoder_states {
    uint64_t data;    /* float [n_states][n_layers][layer_floats] */
    uint64_t bytes;   /* of one state, a multiple of 64 */
    uint32_t n_slots; /* with a state; 0: the model has no recurrent layers */
    uint32_t n_states, n_layers;
    uint32_t layer_floats; /* delta_state_floats() */
    struct delta_shape shape;
};

/* A kind of attention, for ATTEND ops with PROGRAM_GENERAL: struct model_attention. */
struct decoder_kind {
    uint64_t cosines, sines; /* float [n_ctx][rope_dim / 2] */
    uint64_t temperatures;   /* float [n_ctx], or 0 */
    struct kv_layout layout;
    uint32_t n_heads, rope_dim;
    uint32_t window;   /* tokens that a position sees; 0: all */
    float cap;         /* soft cap of the scores; 0: none */
    uint32_t windowed; /* keys and values lie in window pages */
    uint32_t reserved;
};

/* One published step: what blocks read while it runs. Written by the I/O warp before `published`. */
struct decoder_step {
    uint32_t lone_rows; /* no two rows of the step share a slot */
    uint32_t reserved[3];
    int32_t tokens[512]; /* one per row */
    /* struct step follows, at DECODER_STEP_AT */
};
#define DECODER_STEP_AT 2064 /* sizeof(struct decoder_step) */
_Static_assert(sizeof(struct decoder_step) == DECODER_STEP_AT, "decoder_step");

/* Memory of mixtures of experts (mixture_layout.h). */
struct decoder_mixtures {
    uint64_t list;  /* struct mixture_list */
    uint64_t rows;  /* struct step_logit, by place: `row` is the place's; nothing else is set */
    uint64_t place; /* u32 [max_rows][n_used] */
    uint64_t inner; /* float, by place: [k of the second op] the gated products */
    uint64_t parts; /* float, by place: [its n] the experts' results */
};

/* Buffers of a step. */
struct decoder_buffers {
    uint64_t rows;        /* float [max_rows][row_floats]: the program's buffers except the logits */
    uint64_t logits;      /* float [STEP_MAX_LOGITS][logits_stride] */
    uint64_t activations; /* quantised columns of wide products, and of narrow ones that blocks share */
    uint64_t factors;     /* wide products: float, 1/rms by row, or by place */
    uint64_t results; /* struct step_result [DECODER_RING][STEP_MAX_LOGITS], by step modulo DECODER_RING */
    uint64_t attend;  /* scratch of attend.h; zeroed at load */
    uint64_t sample;  /* scratch of sample.h; zeroed at load */
    struct decoder_mixtures mixtures; /* 0: the program has none */
    uint32_t max_rows, row_floats, logits_stride, n_vocab;
};

/* Layout of a block's dynamic shared memory; offsets and sizes are multiples of 128. The work area belongs to
 * one op at a time: quantised columns, K and V pages, candidates; it begins DECODER_KEPT_BYTES behind `work`.
 * The host sizes it (lib/cuda/plan.h). */
struct decoder_shared {
    uint32_t mbarriers, uses; /* offsets: mbarriers of the ring and the step gate; u32 [n_counters] */
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
    uint32_t left;      /* device: the launch's number, its last write */
    uint32_t heartbeat; /* device: ops done; changes while a step runs */
    uint32_t failed;    /* device: enum decoder_failure, after error[] */
    uint32_t error[8];  /* device: op, block, counter, value, target, ...: for the message */
    uint32_t pad1[20];
};
_Static_assert(sizeof(struct decoder_control) == 256, "decoder_control");

/* Indices of the counters after those of the ops (after n_ops x DECODER_PHASES). */
enum decoder_counter {
    DECODER_PAGES, /* blocks that have done their part of a step's page ops */
    DECODER_LEFT,  /* blocks that will access no memory any more */
    DECODER_N_COUNTERS,
};

enum decoder_stop {
    DECODER_RUN,
    DECODER_DRAIN, /* finish the submitted steps, then end */
    DECODER_ABORT, /* end at the next wait */
};
enum decoder_failure {
    DECODER_FINE,
    DECODER_DEADLINE, /* a wait exceeded deadline_ns: error = what (failure.h), value, target, op, block */
    DECODER_RANGE,    /* the step has an index out of range: error = enum decoder_range, value, limit, op
                         (meaningless), block */
    DECODER_ABORTED,  /* control.stop was DECODER_ABORT */
    DECODER_LEAVING,  /* no failure, never in control: value of the abort word when all blocks end in order */
};
/* The index that was out of range. */
enum decoder_range {
    DECODER_RANGE_COUNT = 1, /* entries of an array of the step */
    DECODER_RANGE_PAGE_OP,   /* kind, page or host offset */
    DECODER_RANGE_EDIT,      /* slot, index or page */
    DECODER_RANGE_SLOT,      /* slot, start, history or biases */
    DECODER_RANGE_TOKEN,     /* token of a row, a bias, the history or a target */
    DECODER_RANGE_LOGIT,     /* row, n_top or mask */
    DECODER_RANGE_ROW,       /* slot, position or logit index */
};

/* Word 0 of a block's line of `places` is one of these, or 1 + the index of its last op. Word 1 is 1 once the
 * block has ended. */
enum decoder_place {
    DECODER_PLACE_NONE,               /* it has not begun */
    DECODER_PLACE_STEP = 0x80000000u, /* it waits for the next step, or does a step's page ops */
};

/* Times of a block in an op, in ticks of its SM's clock; they are of step `step`. A wait that the op did not
 * need has times before `begin`, of an earlier step. */
struct decoder_mark {
    uint64_t step;     /* its id; another one: the op did not run in this step */
    uint64_t begin_ns; /* global timer at `begin` */
    uint64_t begin, end;
    uint64_t wait[DECODER_PHASES][2]; /* begin and end: for the previous op, and for phases inside the op */
};
_Static_assert(sizeof(struct decoder_mark) == 96, "decoder_mark");

/* When the I/O warp was about to publish a step, its copy and the end of the step before being there, and
 * when it had seen the step's end and noted its tokens, in ticks of block 0's SM; what lies outside the two
 * crosses PCIe or runs beside other steps. */
struct decoder_border_mark {
    uint64_t step; /* its id */
    uint64_t ready, ended;
    uint64_t reserved;
};

struct decoder_args {
    uint64_t program;        /* struct program, program_ops.h */
    uint64_t plan;           /* struct schedule_op [n_ops], schedule.h */
    uint64_t matrices;       /* struct decoder_matrix [n_weights] */
    uint64_t vectors;        /* u64 [n_weights]: address of the floats of a gain or bias, or 0 */
    uint64_t cosines, sines; /* float [n_ctx][rope_dim / 2] of kind 0 */
    uint64_t kinds;          /* struct decoder_kind [] by op->kind */
    uint64_t kv;             /* pages, kv_layout.h; order inside a tile: kv_tile.h */
    uint64_t windows;        /* window pages: those of layers with windows, where they are apart */
    uint64_t transfer;       /* pinned: pages to export or import */
    uint64_t end_tokens;     /* i32 [n_end_tokens]: tokens that STEP_BAN_END bans */
    /* Cleared by the host before each launch: */
    uint64_t counters;   /* u32 [n_counters][DECODER_LINE]: ops x DECODER_PHASES, then enum decoder_counter */
    uint64_t published;  /* u32: steps of this launch published so far */
    uint64_t abort_word; /* u32 [DECODER_LINE]: enum flow_word; not 0: end at the next wait */
    uint64_t progress;   /* u32: ops done by block 0, for the heartbeat */
    uint64_t places;     /* u32 [n_blocks][DECODER_LINE]: where each block is */
    uint64_t trace;      /* struct decoder_mark [n_blocks][n_ops], then struct decoder_border_mark
                            [DECODER_RING]; 0: no times are noted */
    uint64_t staged;     /* struct decoder_step + struct step [DECODER_RING], staged_stride apart */
    uint64_t control;    /* struct decoder_control, pinned */
    uint64_t steps;      /* struct step [DECODER_RING], pinned, step_stride apart */
    uint64_t results;    /* struct step_result [DECODER_RING][STEP_MAX_LOGITS], pinned */
    uint64_t exported;   /* float [STEP_MAX_LOGITS][logits_stride], pinned: logits of rows with STEP_EXPORT */
    uint64_t masks;      /* u32 [DECODER_MASKS][sample_mask_words()], pinned: those of step_logit.mask */
    struct kv_layout layout; /* plain attention's: kind 0 without window pages */
    uint64_t page_bytes, window_bytes;
    struct decoder_slots slots;
    struct decoder_buffers buffers;
    struct decoder_shared shared;
    uint32_t n_counters, n_crew; /* n_crew: threads */
    uint32_t words_rows;         /* most rows of a step in which ops with PROGRAM_WORDS pass words on */
    uint32_t n_end_tokens, launch;
    uint32_t first_step; /* `completed` when this launch began */
    uint32_t staged_stride, step_stride;
    uint32_t spin_ns;       /* when idle: poll at full speed this long, then back off */
    uint32_t park_after_ms; /* when idle: end the launch after this long; 0: never */
    uint32_t quantum_ms;  /* end between steps after this long; 0: never (the kernel has no run-time limit) */
    uint64_t deadline_ns; /* longest wait inside a step; a longer one is a failure; 0: no limit */
    uint64_t transfer_bytes;
    struct decoder_states states;
};
