/* small_model.h - a transformer so small that the real persistent decoder runs on the emulator in no time:
 * one layer of everything (biases, QK-norm, RoPE, two query heads for a kv head, a tied head), weights of
 * several types, and steps of every kind. Its answers are compared with those of a run in which nothing can
 * go wrong; that these are the right ones is what tests/cuda shows. */
#pragma once
#include "simt/resident/rig.h"
#include "simt/resident/toy_feed.h"

#define SMALL_WEIGHTS 15

struct small_model {
    struct program *program;
    struct decoder_matrix matrices[SMALL_WEIGHTS];
    uint64_t vectors[SMALL_WEIGHTS];
    struct kv_layout layout;
    void *memory[SMALL_WEIGHTS + 2]; /* of the weights; cosines and sines */
    size_t sizes[SMALL_WEIGHTS + 2];
};

void small_model_open(struct small_model *m);
void small_model_close(struct small_model *m);
/* The rig for it. It must not outlive the model. */
void small_rig_open(struct rig *r, const struct small_model *m, uint32_t n_blocks, uint32_t n_stages);
/* The next step of a feed, with settings of sampling that a sampler can work with. */
void small_feed_next(struct toy_feed *feed, struct step *step);
