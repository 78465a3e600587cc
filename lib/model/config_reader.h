/* config_reader.h - the keys of an architecture: "<architecture>.<name>" of a file.
 * The reader keeps the first failure, which names the key; after it calls do nothing.
 * Thread: one at a time, inside arch.configure. Memory: the caller's. */
#pragma once
#include "model.h"

struct config_reader {
    const struct gguf *g;
    const char *arch, *path;
    struct error *err;
    int rc; /* the first failure */
};

/* Read an optional number; where it is absent, *out keeps its value. */
void config_u32(struct config_reader *r, const char *name, uint32_t *out);
void config_f32(struct config_reader *r, const char *name, float *out);
void config_bool(struct config_reader *r, const char *name, bool *out);
/* Reads a required count, which must not be 0. */
void config_need_u32(struct config_reader *r, const char *name, uint32_t *out);
/* Reads an optional number of layer `layer`: the key is one number, or an array of at least `layer` + 1. */
void config_layer_u32(struct config_reader *r, const char *name, uint32_t layer, uint32_t *out);
/* Reads an optional array with a bool for each layer into out[c->n_layers]; false where the key is absent. */
bool config_layer_bools(struct config_reader *r, const struct model_config *c, const char *name, bool *out);
/* Fails with words; returns the code. */
int config_fail(struct config_reader *r, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Adds kind 1 with a window of attention.sliding_window tokens, by default `window`, and the base
 * rope.freq_base_swa, else equal to kind 0, and gives it to the layers that attention.sliding_window_pattern
 * says: an array with a bool for each layer, or a number n, by default `period` (0: the pattern must be
 * there): all layers but every n-th. Returns false, and adds nothing, where the window is 0. */
bool config_windows(struct config_reader *r, struct model_config *c, uint32_t window, uint32_t period);
/* Reads a factor; absent or 0 leaves *out. */
void config_factor(struct config_reader *r, const char *name, float *out);
/* Reads the keys of yarn that only some architectures obey: yarn_beta_fast, yarn_beta_slow and
 * yarn_log_multiplier. */
void config_yarn(struct config_reader *r, struct model_rotation *rope);
