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

/* Copies text of the file for people: whole characters as far as they fit; what a terminal obeys and what is
 * no UTF-8 become '?'. */
void model_copy_text(char *out, size_t size, const char *s, size_t len);

/* Reads the keys of architecture `arch` into *c (model_config.c); what depends on tensors is not set yet.
 * -EBADMSG, -ENOTSUP name the key. */
int model_read_config(struct model_config *c, const struct gguf *g, const struct arch *arch,
                      struct error *err);
