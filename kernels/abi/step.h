/* step.h - everything that passes between the host (engine) and a decoder (backend).
 *
 * Little-endian, fixed width, sizes asserted, offsets never pointers: a step can lie in pinned memory and a
 * device can read it as it is. A decoder range-checks every index it reads from here.
 *
 * A step is one unit of work: a batch of rows. Prefill chunks, decode rows and draft rows share it and its
 * arithmetic. Order inside a step: page_ops, then table_edits and slot settings, then the rows. Rows of one
 * slot stand in ascending position. A row's K and V are written before any row of the same step attends.
 *
 * Thread: the engine thread fills a step; it is constant from submit() until its results are polled. */
#pragma once
#include <stdint.h>

#define STEP_MAX_ROWS      512 /* rows per step on the CPU; CUDA takes STEP_MAX_ROWS_CUDA */
#define STEP_MAX_ROWS_CUDA 256
#define STEP_MAX_LOGITS    32 /* rows of a step that need logits */
#define STEP_MAX_TOP       20 /* alternatives per log-probability request */
#define STEP_MAX_EDITS     1024
#define STEP_MAX_PAGE_OPS  64
#define STEP_MAX_SLOTS     256
#define STEP_MAX_BIAS      1024 /* logit_bias entries per slot */
#define STEP_MAX_HISTORY   8192 /* history tokens per step; also the bound of penalty_last_n */
#define STEP_NO_LOGITS     0xffffu

struct step_row {
    uint32_t slot;
    uint32_t pos;         /* position in the sequence, from 0 */
    int32_t token;        /* or STEP_LAST_SAMPLED */
    uint16_t flags;       /* enum step_row_flags */
    uint16_t logit_index; /* into step.logits, or STEP_NO_LOGITS */
};
_Static_assert(sizeof(struct step_row) == 16, "step_row");
#define STEP_LAST_SAMPLED (-1) /* the token this slot sampled last, in an earlier step */
enum step_row_flags {
    /* Its keys and values are in the cache already and are not written: the row is there for the recurrent
     * state. Only for a model with recurrent layers. */
    STEP_ROW_CACHED = 1,
};

/* A request for a row's logits. `target` >= 0 asks for the log-probability of that token (a prompt's next
 * token); -1 samples with the slot's settings, at position row.pos + 1. */
struct step_logit {
    uint16_t row;   /* index into rows */
    uint16_t n_top; /* alternatives to report, 0..STEP_MAX_TOP */
    int32_t target;
    uint32_t flags; /* enum step_logit_flags */
    uint32_t mask;  /* 0: every token; m: those of mask m - 1 (backend_sampling_ops.masks) */
};
_Static_assert(sizeof(struct step_logit) == 16, "step_logit");
enum step_logit_flags {
    STEP_LOGPROB = 1, /* report result.logprob (otherwise 0) */
    STEP_BAN_END = 2, /* end tokens cannot be sampled: ignore_eos, or fewer than min_tokens so far */
    STEP_EXPORT = 4,  /* copy the raw logits: backend.logits(), for host samplers and tests */
};

/* An edit of a slot's page table: positions [index*64, index*64+64) lie in `page`; those of layers with a
 * window in `window`, where the backend has window pages (backend_info.n_windows). They are numbered behind
 * the pages; 0: no row will see these positions there. */
struct step_table_edit {
    uint32_t slot, index, page, window;
};
_Static_assert(sizeof(struct step_table_edit) == 16, "step_table_edit");

/* Recurrent states are numbered: those of the slots, then the snapshots. A state is known by the number of
 * rows that it has seen. LOAD and SAVE are part of the step's rows. No state is saved twice in a step, or
 * both loaded and saved, and none of a slot that has rows is saved into. */
enum step_page_op_kind {
    STEP_PAGE_COPY = 1,
    STEP_PAGE_EXPORT,
    STEP_PAGE_IMPORT,
    STEP_PAGE_ZERO,
    STEP_STATE_LOAD, /* the first row of slot `page` follows the rows that state `from` has seen */
    STEP_STATE_SAVE, /* state `page` becomes that of slot `from` behind its row at position host_offset */
    /* Part `from` of state `page`, as large as a page but for the last, to and from the transfer buffer. A
     * state that was imported may be loaded at any position: the host knows which. */
    STEP_STATE_EXPORT,
    STEP_STATE_IMPORT,
};
struct step_page_op {                       /* copies whole tiles, of all layers of a page or window page */
    uint32_t kind, page, from, host_offset; /* host_offset: 64-byte units into the transfer buffer */
};
_Static_assert(sizeof(struct step_page_op) == 16, "step_page_op");

/* Sampling settings of a slot, sent once when a sequence acquires it. There is no mutable sampler state:
 * noise comes from (seed, position, token), penalties from the slot's token history. */
struct step_sampling {
    uint64_t seed;
    float temperature; /* 0: greedy */
    float top_p, min_p, typical_p;
    float repetition_penalty, presence_penalty, frequency_penalty;
    int32_t top_k; /* 0: off */
    uint32_t penalty_last_n;
    uint32_t n_bias; /* entries in step.biases, from bias_offset */
    uint32_t bias_offset;
    uint32_t reserved[3];
};
_Static_assert(sizeof(struct step_sampling) == 64, "step_sampling");

/* The settings that change nothing where 0 does not; with temperature 0 they are greedy. */
#define STEP_SAMPLING_NEUTRAL .top_p = 1, .typical_p = 1, .repetition_penalty = 1

struct step_bias {
    int32_t token;
    float bias; /* added to the logit; -inf bans */
};

/* A new sequence acquires a slot. Tokens of a prefix hit never appear as rows, but penalties count them:
 * step.history holds the last n_history of them, ending before position `start`. Tokens of rows enter the
 * slot's history by themselves. */
struct step_slot {
    uint32_t slot;
    uint32_t start; /* first position that arrives as a row */
    uint32_t n_history, history_offset;
    struct step_sampling sampling;
};
_Static_assert(sizeof(struct step_slot) == 80, "step_slot");

struct step {
    uint64_t id; /* 1, 2, 3 ... */
    /* Number of used entries of each array below. */
    uint32_t n_rows, n_logits, n_edits, n_page_ops, n_slots, n_biases, n_history;
    uint32_t reserved[3];
    struct step_row rows[STEP_MAX_ROWS];
    struct step_logit logits[STEP_MAX_LOGITS];
    struct step_table_edit edits[STEP_MAX_EDITS];
    struct step_page_op page_ops[STEP_MAX_PAGE_OPS];
    struct step_slot slots[STEP_MAX_LOGITS];
    struct step_bias biases[STEP_MAX_BIAS];
    int32_t history[STEP_MAX_HISTORY];
};
_Static_assert(sizeof(struct step) % 16 == 0, "step");

enum step_result_flags {
    STEP_RESULT_TARGET = 1,     /* result of a target; no token was sampled */
    STEP_RESULT_NOT_FINITE = 2, /* the row's logits hold a NaN or an infinity: this sequence fails */
};

struct step_top {
    int32_t token;
    float logprob;
};

/* One result per logit row, in the order of step.logits. */
struct step_result {
    uint64_t step;
    uint32_t slot, pos; /* those of the row */
    int32_t token;      /* sampled, or the target */
    uint16_t flags;
    uint16_t n_top;
    float logprob; /* natural log, of the model's own distribution */
    uint32_t logit_index;
    struct step_top top[STEP_MAX_TOP]; /* larger first, ties by smaller id */
};
_Static_assert(sizeof(struct step_result) == 192, "step_result");
