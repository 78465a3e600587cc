/* reference.h - the reference executor, arithmetic `exact`: tests compare every faster arithmetic with it.
 * It runs node by node over dequantised weights: f32 activations between nodes, sums in double, plain
 * softmax. It is written to be read, not to be fast. It has its own KV cache, f32 and flat: one run of
 * positions per slot and layer, without pages. So it ignores a step's table edits and refuses page_ops, and a
 * sequence must have passed through its slot from position 0: backend_info says that pages are not shared,
 * and the engine keeps its prefix cache off.
 * Thread: engine only. Memory: a slot's cache grows with the positions, up to n_ctx; a node's rows live from
 * its dispatch to its last reader's. Weights are dequantised row by row at each use, and kept as f32 if all
 * of them together take less than 256 MB. Gains and biases, and the rows of a larger model, are read from the
 * mapped file in every step: the file must not change meanwhile. Errors: -EINVAL for a bad step, -ENOMEM. */
#pragma once
#include "base/error.h"
#include "model/graph.h"
#include "abi/step.h"

#include <stdint.h>

struct exact;

/* The graph must be validated and outlive the executor. */
int exact_open(struct exact **out, const struct graph *g, uint32_t n_slots, uint32_t n_ctx,
               struct error *err);
void exact_close(struct exact *x); /* NULL is fine */

/* Begins a step, which must stay valid until the last dispatch. -EINVAL names a row whose slot, token,
 * position or logit index is out of range, or whose slot lacks the positions before it. */
int exact_begin(struct exact *x, const struct step *step, struct error *err);

/* Runs one node of the current step; call it for the nodes in ascending order. ARGMAX takes each logit row's
 * largest logit (the smallest id among equals). */
int exact_dispatch(struct exact *x, uint32_t node, struct error *err);

/* The logits [n_vocab] of logit row `index` of the step whose nodes have all run, valid until the next begin;
 * NULL if out of range. The caller may change them (bans, biases). */
float *exact_logits(struct exact *x, uint32_t index);

/* Sets the token that a slot sampled last, for rows with STEP_LAST_SAMPLED. By default it is the result of
 * ARGMAX. */
void exact_sampled(struct exact *x, uint32_t slot, int32_t token);
