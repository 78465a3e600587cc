/* reference.h - arithmetic `exact`: the oracle that tests hold every faster arithmetic to.
 * Node by node over dequantised weights: f32 activations between nodes, sums in double, plain softmax. It is
 * written to be read, not to be fast. It keeps its own KV cache, f32 and flat: one run of positions per slot
 * and layer, without pages. So a step's table edits mean nothing here, one with page_ops is refused, and a
 * sequence must have come through its slot from position 0: backend_info says that pages are not shared, and
 * the engine keeps its prefix cache off. Thread: engine only. Memory: a slot's cache grows as positions come,
 * up to n_ctx; a node's rows live from its dispatch to its last reader's. Weights are read in exact_open()
 * and kept: as f32 when all of them together take at most 256 MB, else as the file has them, and then a row
 * is dequantised whenever it is used. */
#pragma once
#include "base/error.h"
#include "model/graph.h"
#include "abi/step.h"

#include <stdint.h>

struct exact;

/* The graph has been validated and outlives the oracle. -ENOMEM, -EIO (gguf_read()). */
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

uint64_t exact_weights_sum(const struct exact *x); /* see weight_reader.h */
