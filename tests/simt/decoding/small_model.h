/* small_model.h - a transformer small enough for the real persistent decoder on the emulator: a recurrent
 * layer, matrices of heads, and a layer with biases, QK-norm, RoPE, two query heads per kv head, a norm
 * behind a product, a mixture of experts, a tied head and weights of several types, and steps of every kind.
 * Or a dense one: four such layers without experts, which pass words on from op to op
 * (lib/cuda/plan_words.c). Its results are compared with those of a run whose threads take turns in order;
 * tests/cuda shows that those results are right. Thread: one per model. */
#pragma once
#include "simt/resident/rig.h"
#include "simt/resident/toy_feed.h"

#define SMALL_WEIGHTS 26

struct small_model {
    struct program *program;
    struct decoder_matrix matrices[SMALL_WEIGHTS];
    uint64_t vectors[SMALL_WEIGHTS];
    struct kv_layout layout;
    void *memory[SMALL_WEIGHTS + 2]; /* memory of the weights; then cosines and sines */
    size_t sizes[SMALL_WEIGHTS + 2];
};

void small_model_open(struct small_model *m, bool dense);
void small_model_close(struct small_model *m);
/* Opens a rig for the model. The rig must not outlive it. */
void small_rig_open(struct rig *r, const struct small_model *m, uint32_t n_blocks, uint32_t n_stages);
/* Makes the next step of a feed, with valid sampling settings. */
void small_feed_next(struct toy_feed *feed, struct step *step);
