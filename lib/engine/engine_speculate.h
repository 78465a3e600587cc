/* engine_speculate.h - the engine's use of drafts; engine_speculate.c explains the method.
 * With speculation off no function has an effect.
 * Thread: engine only. Memory: engine_draft_open() allocates all of it. */
#pragma once
#include "engine_private.h"

/* Sets e->draft unless cfg.speculation is off. Returns 0 or -ENOMEM; engine_draft_close() follows in either
 * case. */
int engine_draft_open(struct engine *e, struct error *err);
void engine_draft_close(struct engine *e); /* after a failed open too */

/* Adds generated token `index` of the slot's request to its n-gram index. Index 0 begins the index. */
void engine_draft_token(struct engine *e, uint32_t slot, uint32_t index, int32_t token);
/* Notes the cost of step *f, which took `ms`; engine_draft_woken() notes when the engine thread last woke
 * up or had drawn tokens: the time before is no cost of drafts. */
void engine_draft_measure(struct engine *e, const struct flight *f, double ms, uint64_t now_ns);
void engine_draft_woken(struct engine *e, uint64_t now_ns);

/* Decides how many tokens each sequence drafts in a step of at most n_logits logit rows. Returns their
 * sum. */
uint32_t engine_draft_plan(struct engine *e, uint32_t n_logits);
/* The number of tokens that the plan drafts for a slot; 0 while a step is in flight. engine_draft_at()
 * returns draft token `index`, from 0. */
uint32_t engine_draft_length(const struct engine *e, uint32_t slot);
int32_t engine_draft_at(const struct engine *e, uint32_t slot, uint32_t index);
/* Makes the masks of a constrained text's drafts; returns the number of drafts that have one. */
uint32_t engine_draft_mask(struct engine *e, uint32_t slot);
/* Notes that n draft tokens of the slot are in the step. */
void engine_draft_sent(struct engine *e, struct flight *f, uint32_t slot, uint32_t n);
/* True if no further step may be submitted now: the next one will have drafts, or the newest in flight
 * has. */
bool engine_draft_holds(struct engine *e);
/* Judges the drafts of step *f, all of whose results have arrived: logit rows behind a wrong draft become
 * `dropped`, and their rows are taken back. */
void engine_draft_check(struct engine *e, struct flight *f);
