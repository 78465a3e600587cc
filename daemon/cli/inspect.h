/* inspect.h - what `hearthd inspect` has found out about a model file, and the same as JSON. Thread: main. */
#pragma once
#include "gguf/gguf.h"

#include <stdbool.h>
#include <stdint.h>

struct graph;
struct model;
struct program;

struct inspection {
    const char *path;
    const struct gguf *gguf;
    const struct model *model;     /* NULL: valid GGUF, but no model that Hearth runs */
    const struct graph *graph;     /* as model */
    const struct program *program; /* as model */
    const char *error;             /* why there is no model */
    bool show_graph, show_program;
};

/* Bytes a daemon with default settings takes for this model. */
struct inspection_memory {
    uint64_t weights; /* of the tensors the model uses, as cpu packs them: types with grids take up to twice
                         their bytes in the file */
    int kv_type;      /* enum kv_type */
    uint64_t kv_per_token;
    uint64_t kv_per_page;
    uint64_t kv_per_slot; /* n_ctx tokens in whole pages; layers with windows keep these alone */
    uint64_t windows;     /* the part of kv_per_slot of such layers; 0: they are in the pages */
    uint64_t states;      /* recurrent states of a slot */
    uint64_t scratch;     /* activations of the largest step */
    uint64_t sampling;    /* to draw a slot's tokens with further filters */
    uint32_t n_ctx;       /* min(model's, 8192) */
    uint64_t available;   /* memory of this machine that is free now */
    uint64_t n_ctx_fits;  /* the largest n_ctx of one slot in it; 0: the model does not fit */
};
struct inspection_memory inspection_memory(const struct inspection *in);

/* A number of the metadata, by what it is rather than by how the file stores it. */
struct inspection_number {
    enum { INSPECTION_SIGNED, INSPECTION_UNSIGNED, INSPECTION_REAL, INSPECTION_BOOL } kind;
    int64_t i;  /* SIGNED, BOOL, and UNSIGNED where it fits */
    uint64_t u; /* UNSIGNED */
    double f;   /* REAL */
};
/* `type` is a number's type, not STR or ARR; `data` needs no alignment. */
struct inspection_number inspection_number(uint32_t type, const uint8_t *data);

/* One JSON object on stdout. 0, or -ENOMEM. */
int inspection_print_json(const struct inspection *in);
