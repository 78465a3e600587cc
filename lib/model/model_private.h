/* model_private.h - what the files of a model share.
 * Thread: any; pure. Memory: the caller's. */
#pragma once
#include "model.h"

#define MODEL_PART_NAME 40 /* "blk.255.attn_output.weight" is the longest */
/* q, its gate, k, v and the biases of q, k and v, gate, up; of experts: gate, up; or attn_kv_a, attn_k_rope,
 * attn_k_b, attn_v_b; or attn_qkv, attn_gate. */
#define MODEL_LAYER_PARTS 12

struct model {
    struct gguf *gguf;
    const struct arch *arch;
    struct model_config config;
    uint32_t n_tensors, n_weights;
    struct weight *weights; /* weight i is tensor i of the file; then the parts of fused tensors */
    char (*part_names)[MODEL_PART_NAME]; /* [n_weights - n_tensors] */
    float *rope_factors[2];              /* config.kinds[0].rope's factors point here */
};

/* Adds the parts of fused tensors to m->weights, which has room for MODEL_LAYER_PARTS a layer; a tensor whose
 * shape does not fit is left alone: its parts are missing then. */
void model_split_fused(struct model *m);

/* The tensor of the file in which a weight of this name, which is missing, could stand; or NULL. */
const struct gguf_tensor *model_fused_tensor(const struct model *m, const char *name);

/* Marks the weights that have factors in the file (weight_factors.c); once the parts are added. -EBADMSG
 * names a factor that is none; or the error of reading. */
int model_find_factors(struct model *m, struct error *err);

/* Bytes [at, at + n) of a weight as the file stores it, and of one that has factors. */
int model_read_stored(const struct model *m, const struct weight *w, size_t at, void *out, size_t n,
                      struct error *err);
int model_read_multiplied(const struct model *m, const struct weight *w, size_t at, void *out, size_t n,
                          struct error *err);

/* Refuses a file with a tensor that belongs to the model's layers, embedding or output, and that no node of
 * its graph reads (unused_tensors.c). -ENOTSUP names it; -ENOMEM. */
int model_refuse_unused(const struct graph *g, struct error *err);

/* Copies text of the file for people: whole characters as far as they fit; what a terminal obeys and what is
 * no UTF-8 become '?'. */
void model_copy_text(char *out, size_t size, const char *s, size_t len);

/* Reads the keys of architecture `arch` into *c (model_config.c); what depends on tensors is not set yet.
 * -EBADMSG, -ENOTSUP name the key. */
int model_read_config(struct model_config *c, const struct gguf *g, const struct arch *arch,
                      struct error *err);
