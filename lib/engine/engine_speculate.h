/* engine_speculate.h - how the engine drafts; see engine_speculate.c. All of it does nothing where
 * speculation is off. Thread: engine only. */
#pragma once
#include "engine_private.h"

int engine_draft_open(struct engine *e, struct error *err);
void engine_draft_close(struct engine *e); /* half open is fine */

/* Token `index` of what the slot's request generates has come. */
void engine_draft_token(struct engine *e, uint32_t slot, uint32_t index, int32_t token);
/* Step *f took `ms`; the engine slept until woken. */
void engine_draft_measure(struct engine *e, const struct flight *f, double ms, uint64_t now_ns);
void engine_draft_woken(struct engine *e, uint64_t now_ns);

/* Decides how many tokens each sequence drafts in a step of at most n_logits logit rows; the sum. */
uint32_t engine_draft_plan(struct engine *e, uint32_t n_logits);
/* By the plan; 0 while a step is in flight. Token `index` of the draft, from 0. */
uint32_t engine_draft_length(const struct engine *e, uint32_t slot);
int32_t engine_draft_at(const struct engine *e, uint32_t slot, uint32_t index);
/* So many of them have gone into the step. */
void engine_draft_sent(struct engine *e, struct flight *f, uint32_t slot, uint32_t n);
/* No further step now: the next one is to have drafts, or those in flight have. */
bool engine_draft_holds(struct engine *e);
/* All results of *f are there: logit rows behind a wrong draft become `dropped`, their rows are taken back.
 */
void engine_draft_check(struct engine *e, struct flight *f);
