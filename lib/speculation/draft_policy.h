/* draft_policy.h - how many drafted tokens are worth a row each.
 *
 * A drafted token is one more row of a step. If it is what the model would have said, the step gives one
 * token more; if not, the row was for nothing. Two things decide, and both are measured all the time. The
 * odds: how often the token that an index (ngram_index.h) expects is the one that comes, by the length of the
 * common past. Every token of a text tells it, drafted or not, so it costs nothing to know that drafts would
 * pay again. The costs: what a step takes by its rows, without drafts and with some. A figure is believed for
 * a while only; then the step in question is tried again, one row at first, then three, seven ... The plan is
 * the number of drafted rows at which the expected tokens per millisecond are the most. Pure but for the
 * structs it is given. Thread: the engine's. */
#pragma once
#include "abi/step.h"

#include <stdbool.h>
#include <stdint.h>

#define DRAFT_MAX     15 /* tokens of one sequence in one step */
#define DRAFT_CLASSES 7  /* of lengths of the common past */

struct draft_odds {
    float tries[DRAFT_CLASSES], hits[DRAFT_CLASSES];
};

/* What is believed before anything is known, to stand behind the odds of single sequences. */
void draft_odds_open(struct draft_odds *all);
/* A token came where one was expected with a common past of `length`. `memory`: tokens it remembers. */
void draft_odds_note(struct draft_odds *o, uint32_t length, bool right, float memory);
/* 0..1; where `own` knows little, `all` counts. */
float draft_odds_of(const struct draft_odds *own, const struct draft_odds *all, uint32_t length);

struct draft_cost {
    float ms;       /* 0: not known */
    uint32_t n;     /* times it was noted */
    uint64_t noted; /* the step at which it was last */
};
struct draft_costs {
    uint64_t n_steps;
    struct draft_cost plain[STEP_MAX_LOGITS + 1], drafted[STEP_MAX_LOGITS + 1]; /* by rows */
};

/* A step of n_rows rows with logits and no prefill took so long; n_draft of them were drafts. */
void draft_costs_note(struct draft_costs *c, uint32_t n_rows, uint32_t n_draft, double ms);
/* A step of n_rows rows and no drafts; 0: not known. */
double draft_cost_plain(const struct draft_costs *c, uint32_t n_rows);
/* With n_draft more; only when draft_cost_plain() is known. */
double draft_cost(const struct draft_costs *c, uint32_t n_rows, uint32_t n_draft);

struct draft_chain { /* what one sequence could draft */
    const struct draft_odds *odds;
    uint32_t length; /* the common past of the first token */
    uint32_t n_max;  /* tokens, up to DRAFT_MAX */
    uint32_t n;      /* out: tokens that are worth it */
    float reach;     /* scratch: that the next one comes to count */
};

struct draft_step {
    uint32_t n_rows; /* sequences that get a token in any case */
    uint32_t n_max;  /* rows there is room for beside them */
    /* Beside prefill: what the step takes without drafts, and each row. Else 0, and the costs decide. */
    double base_ms, row_ms;
    bool always; /* as many as there is room for */
};

/* Sets n of every chain. Returns the sum. */
uint32_t draft_plan(const struct draft_costs *c, const struct draft_odds *all, const struct draft_step *step,
                    struct draft_chain *chains, uint32_t n_chains);
