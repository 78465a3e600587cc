/* draft_policy.h - decides how many draft tokens are worth a row each.
 *
 * A draft token is one more row of a step. If it is the token that the model samples, the step yields one
 * token more; if not, the row is wasted. The decision needs two figures, and both are measured continuously.
 * The odds: how often the token that an index (ngram_index.h) expects is the one sampled, by the length of
 * the match. Every token of a text updates them, drafted or not, so detecting that drafts would pay again
 * costs nothing. The costs: the time of a step by its rows, without drafts and with some. A figure is valid
 * for a limited time only; then that step is tried again, with one row at first, then three, seven ... The
 * plan is the number of draft rows that maximises the expected tokens per millisecond.
 * Thread: one at a time (the engine's); the functions touch only the structs they are given. Memory: none is
 * allocated. Errors: none. */
#pragma once
#include "abi/step.h"

#include <stdbool.h>
#include <stdint.h>

#define DRAFT_MAX     15 /* most draft tokens of one sequence in one step */
#define DRAFT_CLASSES 7  /* classes of match lengths */

struct draft_odds {
    float tries[DRAFT_CLASSES], hits[DRAFT_CLASSES];
};

/* Sets the odds that apply before any measurement; they are the prior of the odds of single sequences. */
void draft_odds_open(struct draft_odds *all);
/* Notes whether the expected token, with a match of `length` tokens, was sampled. `memory`: tokens that the
 * odds remember. */
void draft_odds_note(struct draft_odds *o, uint32_t length, bool right, float memory);
/* The probability (0..1) that the expected token is sampled. `all` counts where `own` has few samples. */
float draft_odds_of(const struct draft_odds *own, const struct draft_odds *all, uint32_t length);

struct draft_cost {
    float ms;       /* 0: unknown */
    uint32_t n;     /* number of samples */
    uint64_t noted; /* n_steps at the last sample */
};
struct draft_costs {
    uint64_t n_steps;
    struct draft_cost plain[STEP_MAX_LOGITS + 1], drafted[STEP_MAX_LOGITS + 1]; /* by rows */
};

/* Notes the time of a step of n_rows rows with logits, without prefill; n_draft of them were draft rows. */
void draft_costs_note(struct draft_costs *c, uint32_t n_rows, uint32_t n_draft, double ms);
/* The time in ms of a step of n_rows rows without drafts; 0: unknown. */
double draft_cost_plain(const struct draft_costs *c, uint32_t n_rows);
/* The time with n_draft draft rows in addition. draft_cost_plain() must be known. */
double draft_cost(const struct draft_costs *c, uint32_t n_rows, uint32_t n_draft);

struct draft_chain { /* the possible drafts of one sequence */
    const struct draft_odds *odds;
    uint32_t length; /* match length of the first token */
    uint32_t n_max;  /* most tokens, up to DRAFT_MAX */
    uint32_t n;      /* out: tokens that pay */
    float reach;     /* scratch: probability that the next one counts */
};

struct draft_step {
    uint32_t n_rows; /* rows without drafts, one per sequence */
    uint32_t n_max;  /* most draft rows */
    /* Beside prefill: the time of the step without drafts, and of each row. Otherwise 0, and the measured
     * costs decide. */
    double base_ms, row_ms;
    bool always; /* draft as many as fit */
};

/* Sets n of every chain, and returns the sum. n_max of the step and of the chains bound it. */
uint32_t draft_plan(const struct draft_costs *c, const struct draft_odds *all, const struct draft_step *step,
                    struct draft_chain *chains, uint32_t n_chains);
