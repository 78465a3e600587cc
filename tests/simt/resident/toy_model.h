/* toy_model.h - the toy decoder's program and weights, and a reference that computes its results
 * independently. Thread: one per model. */
#pragma once
#include "rig.h"
#include "toy_decoder.h"

#define TOY_LAYERS  2
#define TOY_SLOTS   5
#define TOY_N_CTX   200
#define TOY_PAGES   16
#define TOY_WINDOWS 14
#define TOY_ROWS    24
#define TOY_WEIGHTS 9

struct toy_model {
    struct program *program;
    struct decoder_matrix matrices[TOY_WEIGHTS];
    char *tiles[TOY_WEIGHTS];
    size_t sizes[TOY_WEIGHTS];
    struct kv_layout layout, windows; /* of pages; of window pages */
};

void toy_model_open(struct toy_model *m);
void toy_model_close(struct toy_model *m);
/* Opens a rig for the model. */
void toy_rig_open(struct rig *r, const struct toy_model *m, uint32_t n_blocks, uint32_t n_stages);

/* State of the reference: everything that steps change. */
struct toy_state {
    const struct toy_model *model;
    uint32_t tables[TOY_SLOTS][(TOY_N_CTX + 63) / 64], window_tables[TOY_SLOTS][(TOY_N_CTX + 63) / 64];
    int32_t history[TOY_SLOTS][TOY_N_CTX], last_sampled[TOY_SLOTS];
    uint32_t start[TOY_SLOTS];
    struct step_sampling sampling[TOY_SLOTS];
    struct step_bias biases[TOY_SLOTS][STEP_MAX_BIAS];
    char *kv, *windows, *transfer; /* pages: TOY_PAGES, TOY_WINDOWS, and 4 */
};

void toy_state_open(struct toy_state *s, const struct toy_model *m);
void toy_state_close(struct toy_state *s);
/* Runs a step; results[n_logits] is what the decoder must return. */
void toy_state_run(struct toy_state *s, const struct step *step, struct step_result *results);
/* Returns whether the rig's results equal the reference's. */
bool toy_same(const struct step_result *got, const struct step_result *want, uint32_t n);
