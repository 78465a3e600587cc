/* weights.h - the copy of a model's weights that the cpu computes with: matrices packed for the products (a
 * tied embedding once), gains and biases as floats.
 * Thread: weights_open() fills it with the team; immutable afterwards, then any. Memory: one block. Errors:
 * -ENOMEM, -ENOTSUP with words. */
#pragma once
#include "base/error.h"
#include "cpu/matmul/matmul.h"
#include "base/memory.h"

#include <stdint.h>

struct graph;
struct team;

struct weights {
    uint32_t n;                     /* weights of the model */
    struct matmul_matrix *matrices; /* [n]; n_groups 0: not a matrix of this graph */
    const float **vectors;          /* [n]; NULL: not a vector of this graph */
    struct memory_block block;
    uint64_t sum; /* of what was read (weight_reader.h) */
};

/* Sets *size to the bytes that the weights of a graph take. -ENOTSUP: one cannot be packed; -ENOMEM. */
int weights_size(const struct graph *g, size_t *size, struct error *err);

struct weights_progress {
    void (*report)(void *context, double fraction); /* may be NULL */
    void *context;
};

/* `report` is called on the calling thread for every piece of a weight that this thread packs, and after
 * every weight. Reads and packs every weight with the whole team, a piece at a time: beside the packed
 * weights each member holds 128 KB of the file, or 16 rows where those are larger. -EIO: see gguf_read(). */
int weights_open(struct weights *w, const struct graph *g, struct team *team,
                 const struct weights_progress *progress, struct error *err);
void weights_close(struct weights *w);
