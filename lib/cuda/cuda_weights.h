/* cuda_weights.h - the one copy of a model's weights that the device computes with: matrices packed into
 * tiles (pack.h; a tied embedding once), gains and biases as floats. Read from the file and packed on the
 * host by a team of threads, piece by piece into a bounded staging buffer, and copied from there. Thread:
 * one. */
#pragma once
#include "cuda_memory.h"
#include "abi/device_abi.h"

struct graph;

struct cuda_weights {
    uint32_t n;                      /* weights of the model */
    struct decoder_matrix *matrices; /* [n]; n 0: not a matrix of this graph */
    uint64_t *vectors;               /* [n]; 0: not a vector of this graph */
    bool *as_bf16;                   /* [n]; true: a router of floats that BF16 holds, and is packed as */
    uint8_t *uses;                   /* [n], enum weight_use */
    size_t size;                     /* bytes of device memory */
    struct cuda_block block;
    uint64_t sum; /* of what was read (weight_reader.h) */
};

/* Finds shapes and size of the device's weights, for which it reads routers of floats; acquires no
 * device memory. Errors: -ENOMEM, those of model_read_weight(), or as cuda_pack_layout(), with the weight's
 * name. On failure cuda_weights_close() releases. */
int cuda_weights_open(struct cuda_weights *w, const struct graph *g, struct error *err);

struct cuda_weights_progress {
    void (*report)(void *context, double fraction); /* may be NULL */
    void *context;
};

/* n_threads 0: as many as there are cores. -EIO of the file: see gguf_read(). */
int cuda_weights_load(struct cuda_weights *w, const struct graph *g, const struct cuda_driver *driver,
                      uint32_t n_threads, const struct cuda_weights_progress *progress, struct error *err);
void cuda_weights_close(struct cuda_weights *w, const struct cuda_driver *driver); /* a closed one is fine */

/* Writes a sentence about weights whose type on the device differs from the file's, or "". */
void cuda_weights_note(const struct cuda_weights *w, const struct graph *g, char *out, size_t room);
