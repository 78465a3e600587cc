/* mkmodel - writes a GGUF file with random weights in the shape of a real model, for tests and measurements.
 * Hyper-parameters, tensor names and the mix of weight types are those of the real files. The same arguments
 * give the same bytes. */
#include "mkmodel_shapes.h"
#include "random_blocks.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <unistd.h>

#define CHUNK ((size_t)4 << 20) /* bytes made and written at a time, about */

struct mix {
    const char *name;
    uint32_t type;      /* of what no rule names */
    uint32_t file_type; /* general.file_type */
};

static const struct mix mixes[] = {
    {"f32", QUANT_F32, 0},          {"f16", QUANT_F16, 1},        {"bf16", QUANT_BF16, 32},
    {"q4_0", QUANT_Q4_0, 2},        {"q4_1", QUANT_Q4_1, 3},      {"q5_0", QUANT_Q5_0, 8},
    {"q5_1", QUANT_Q5_1, 9},        {"q8_0", QUANT_Q8_0, 7},      {"q2_k", QUANT_Q2_K, 10},
    {"q3_k_m", QUANT_Q3_K, 12},     {"q4_k_s", QUANT_Q4_K, 14},   {"q4_k_m", QUANT_Q4_K, 15},
    {"q5_k_m", QUANT_Q5_K, 17},     {"q6_k", QUANT_Q6_K, 18},     {"mxfp4", QUANT_MXFP4, 38},
    {"nvfp4", QUANT_NVFP4, 39},     {"iq4_nl", QUANT_IQ4_NL, 25}, {"iq4_xs", QUANT_IQ4_XS, 30},
    {"iq3_xxs", QUANT_IQ3_XXS, 23}, {"iq3_s", QUANT_IQ3_S, 26},   {"iq2_xxs", QUANT_IQ2_XXS, 19},
    {"iq2_xs", QUANT_IQ2_XS, 20},   {"iq2_s", QUANT_IQ2_S, 28},   {"iq1_s", QUANT_IQ1_S, 24},
    {"iq1_m", QUANT_IQ1_M, 31},     {"tq1_0", QUANT_TQ1_0, 36},   {"tq2_0", QUANT_TQ2_0, 37},
};
#define N_MIXES (sizeof mixes / sizeof *mixes)

enum role {
    ROLE_EMBD,
    ROLE_OUTPUT,
    ROLE_Q,
    ROLE_K,
    ROLE_V,
    ROLE_O,
    ROLE_GATE,
    ROLE_UP,
    ROLE_DOWN,
    ROLE_ROUTER,
    ROLE_VECTOR,
    ROLE_ROPE
};

struct tensor {
    char name[64];
    enum role role;
    uint32_t type;
    uint64_t n_cols, n_rows; /* n_rows 0: a vector; of all experts */
    uint32_t n_experts;      /* 0: one matrix */
    float centre, rms;       /* of the values; a vector's are centre plus or minus rms */
};

struct made_model {
    const struct shape *shape;
    const struct mix *mix;
    uint32_t n_vocab, n_ctx, n_layers;
    uint64_t seed;
    struct tensor *tensors;
    size_t n_tensors;
    struct gguf *tokenizer; /* NULL: make one up */
};

/* ---- which type: the rules of the common quantiser for dense models ---- */

static bool use_more_bits(uint32_t layer, uint32_t n)
{
    return layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2;
}

static uint32_t value_type(const struct shape *s, const struct mix *mix, uint32_t layer)
{
    switch (mix->file_type) {
    case 10: /* Q2_K */
        return s->n_heads / s->n_kv_heads >= 4 ? QUANT_Q4_K : QUANT_Q3_K;
    case 12: /* Q3_K_M */
        return layer < 2 ? QUANT_Q5_K : QUANT_Q4_K;
    case 14: /* Q4_K_S */
        return layer < 4 ? QUANT_Q5_K : QUANT_Q4_K;
    case 15: /* Q4_K_M */
    case 17: /* Q5_K_M */
        return use_more_bits(layer, s->n_layers) ? QUANT_Q6_K : mix->type;
    default:
        return mix->type;
    }
}

static uint32_t down_type(const struct shape *s, const struct mix *mix, uint32_t layer)
{
    switch (mix->file_type) {
    case 10:
        return QUANT_Q3_K;
    case 12:
        return layer < s->n_layers / 16 ? QUANT_Q5_K : QUANT_Q4_K;
    case 14:
        return layer < s->n_layers / 8 ? QUANT_Q5_K : QUANT_Q4_K;
    default:
        return value_type(s, mix, layer);
    }
}

static uint32_t attention_output_type(const struct mix *mix)
{
    if (mix->file_type == 10)
        return QUANT_Q3_K;
    return mix->file_type == 12 ? QUANT_Q4_K : mix->type;
}

/* Rows that blocks of 256 do not divide get the type of 32 that is next in size. */
static uint32_t fitting_type(uint32_t type, uint64_t n_cols)
{
    if (n_cols % quant_traits(type)->block == 0)
        return type;
    switch (type) {
    case QUANT_Q6_K:
        type = QUANT_Q8_0;
        break;
    case QUANT_Q5_K:
        type = QUANT_Q5_1;
        break;
    case QUANT_Q4_K:
        type = QUANT_Q5_0;
        break;
    default:
        type = QUANT_IQ4_NL;
        break;
    }
    return n_cols % quant_traits(type)->block == 0 ? type : QUANT_F16;
}

static uint32_t matrix_type(const struct made_model *m, enum role role, uint32_t layer, uint64_t n_cols)
{
    const struct mix *mix = m->mix;
    if (role == ROLE_ROUTER)
        return QUANT_F32;
    if (quant_traits(mix->type)->block == 1)
        return mix->type;
    uint32_t type = mix->type;
    if (type == QUANT_MXFP4 && strcmp(m->shape->arch, "gpt-oss") == 0 && role != ROLE_GATE &&
        role != ROLE_UP && role != ROLE_DOWN)
        return fitting_type(QUANT_Q8_0, n_cols); /* only experts are MXFP4 */
    bool is_output = role == ROLE_OUTPUT || (role == ROLE_EMBD && m->shape->tied);
    if (is_output && type != QUANT_Q8_0)
        type = QUANT_Q6_K;
    else if (role == ROLE_V)
        type = value_type(m->shape, mix, layer);
    else if (role == ROLE_DOWN)
        type = down_type(m->shape, mix, layer);
    else if (role == ROLE_O)
        type = attention_output_type(mix);
    return fitting_type(type, n_cols);
}

/* ---- the list of tensors ---- */

static struct tensor *add_tensor(struct made_model *m, const char *name, int layer, enum role role)
{
    struct tensor *t = &m->tensors[m->n_tensors++];
    if (layer < 0)
        (void)snprintf(t->name, sizeof t->name, "%s", name);
    else
        (void)snprintf(t->name, sizeof t->name, "blk.%d.%s", layer, name);
    t->role = role;
    return t;
}

/* Values of about N(0, 1/sqrt(n_cols)): a product with a normed vector is about N(0, 1). */
static void add_matrix(struct made_model *m, const char *name, int layer, enum role role, uint64_t n_cols,
                       uint64_t n_rows)
{
    struct tensor *t = add_tensor(m, name, layer, role);
    t->n_cols = n_cols;
    t->n_rows = n_rows;
    t->type = matrix_type(m, role, layer < 0 ? 0 : (uint32_t)layer, n_cols);
    t->rms = 1 / sqrtf((float)n_cols);
    if (role == ROLE_OUTPUT || (role == ROLE_EMBD && m->shape->tied))
        t->rms *= 4; /* logits as far apart as a trained model's */
}

static void add_vector(struct made_model *m, const char *name, int layer, uint64_t n, float centre,
                       float spread)
{
    struct tensor *t = add_tensor(m, name, layer, ROLE_VECTOR);
    t->n_cols = n;
    t->type = QUANT_F32;
    t->centre = centre;
    t->rms = spread;
}

static bool is_arch(const struct shape *s, const char *name)
{
    return strcmp(s->arch, name) == 0;
}

static bool is_gemma(const struct shape *s)
{
    return is_arch(s, "gemma3") || is_arch(s, "gemma4");
}

/* gpt-oss: every second layer is full, Gemma: every sixth, Phi-3: none. */
static bool is_windowed(const struct shape *s, int i)
{
    return s->window && (is_arch(s, "phi3") || (is_arch(s, "gpt-oss") ? i % 2 == 0 : i % 6 < 5));
}

static void add_biases(struct made_model *m, int i, uint64_t q, uint64_t kv)
{
    add_vector(m, "attn_q.bias", i, q, 0, 0.3f);
    add_vector(m, "attn_k.bias", i, kv, 0, 0.3f);
    add_vector(m, "attn_v.bias", i, kv, 0, 0.1f);
}

static void add_heads_matrix(struct made_model *m, const char *name, int i, uint64_t n_cols, uint64_t n_rows)
{
    add_matrix(m, name, i, ROLE_K, n_cols, n_rows * m->shape->n_heads);
    m->tensors[m->n_tensors - 1].n_experts = m->shape->n_heads;
}

/* As DeepSeek V2 Lite: queries in one product. */
static void add_latent_attention(struct made_model *m, int i)
{
    const struct shape *s = m->shape;
    uint64_t rank = s->latent.rank, n = s->n_heads;
    add_vector(m, "attn_norm.weight", i, s->hidden, 1, 0.1f);
    add_matrix(m, "attn_q.weight", i, ROLE_Q, s->hidden, n * (s->latent.key + s->latent.rotated));
    add_matrix(m, "attn_kv_a_mqa.weight", i, ROLE_K, s->hidden, rank + s->latent.rotated);
    add_vector(m, "attn_kv_a_norm.weight", i, rank, 1, 0.1f);
    add_heads_matrix(m, "attn_k_b.weight", i, s->latent.key, rank);
    add_heads_matrix(m, "attn_v_b.weight", i, rank, s->latent.value);
    add_matrix(m, "attn_output.weight", i, ROLE_O, n * s->latent.value, s->hidden);
}

static void add_attention(struct made_model *m, int i)
{
    const struct shape *s = m->shape;
    if (s->latent.rank) {
        add_latent_attention(m, i);
        return;
    }
    uint32_t head_dim = is_windowed(s, i) && s->window_head_dim ? s->window_head_dim : s->head_dim;
    uint64_t q = (uint64_t)s->n_heads * head_dim, kv = (uint64_t)s->n_kv_heads * head_dim;
    add_vector(m, "attn_norm.weight", i, s->hidden, 1, 0.1f);
    if (is_arch(s, "phi3")) {
        add_matrix(m, "attn_qkv.weight", i, ROLE_Q, s->hidden, q + 2 * kv);
    } else {
        add_matrix(m, "attn_q.weight", i, ROLE_Q, s->hidden, s->delta.n_key_heads ? 2 * q : q);
        add_matrix(m, "attn_k.weight", i, ROLE_K, s->hidden, kv);
        add_matrix(m, "attn_v.weight", i, ROLE_V, s->hidden, kv);
    }
    add_matrix(m, "attn_output.weight", i, ROLE_O, q, s->hidden);
    if (is_arch(s, "qwen2") || is_arch(s, "gpt-oss"))
        add_biases(m, i, q, kv);
    if (is_arch(s, "gpt-oss")) {
        add_vector(m, "attn_output.bias", i, s->hidden, 0, 0.1f);
        add_vector(m, "attn_sinks.weight", i, s->n_heads, 0, 1);
    }
    if (strncmp(s->arch, "qwen3", 5) == 0 || is_gemma(s)) {
        add_vector(m, "attn_q_norm.weight", i, head_dim, 1, 0.1f);
        add_vector(m, "attn_k_norm.weight", i, head_dim, 1, 0.1f);
    }
    if (is_gemma(s))
        add_vector(m, "post_attention_norm.weight", i, s->hidden, 1, 0.1f);
}

#define DELTA_TAPS     4
#define DELTA_INTERVAL 4 /* of the layers with attention */

/* A layer without attention. The decays of trained models are slow: a softplus of about e^-4. */
static void add_delta_net(struct made_model *m, int i)
{
    const struct shape *s = m->shape;
    uint32_t keys = s->delta.n_key_heads * s->delta.dim, heads = s->delta.n_value_heads;
    uint32_t values = heads * s->delta.dim;
    add_vector(m, "attn_norm.weight", i, s->hidden, 1, 0.1f);
    add_matrix(m, "attn_qkv.weight", i, ROLE_Q, s->hidden, 2 * keys + values);
    add_matrix(m, "attn_gate.weight", i, ROLE_GATE, s->hidden, values);
    if (is_arch(s, "qwen3next")) {
        add_matrix(m, "ssm_ba.weight", i, ROLE_GATE, s->hidden, 2 * heads);
    } else {
        add_matrix(m, "ssm_beta.weight", i, ROLE_GATE, s->hidden, heads);
        add_matrix(m, "ssm_alpha.weight", i, ROLE_GATE, s->hidden, heads);
    }
    add_matrix(m, "ssm_conv1d.weight", i, ROLE_ROUTER, DELTA_TAPS, 2 * keys + values);
    add_vector(m, "ssm_a", i, heads, -4, 3);
    add_vector(m, "ssm_dt.bias", i, heads, -4, 1);
    add_vector(m, "ssm_norm.weight", i, s->delta.dim, 1, 0.1f);
    add_matrix(m, "ssm_out.weight", i, ROLE_O, values, s->hidden);
}

static void add_experts(struct made_model *m, const char *name, int i, enum role role, uint64_t n_cols,
                        uint64_t n_rows)
{
    add_matrix(m, name, i, role, n_cols, n_rows * m->shape->experts.n);
    m->tensors[m->n_tensors - 1].n_experts = m->shape->experts.n;
}

/* A table of floats, one row for each expert. */
static void add_expert_bias(struct made_model *m, const char *name, int i, uint64_t n)
{
    add_matrix(m, name, i, ROLE_ROUTER, n, m->shape->experts.n);
    m->tensors[m->n_tensors - 1].rms = 0.1f;
}

static void add_mixture(struct made_model *m, int i)
{
    const struct shape *s = m->shape;
    add_matrix(m, "ffn_gate_inp.weight", i, ROLE_ROUTER, s->hidden, s->experts.n);
    if (is_gemma(s)) { /* one tensor */
        add_experts(m, "ffn_gate_up_exps.weight", i, ROLE_GATE, s->hidden, 2 * s->experts.ffn);
    } else {
        add_experts(m, "ffn_gate_exps.weight", i, ROLE_GATE, s->hidden, s->experts.ffn);
        add_experts(m, "ffn_up_exps.weight", i, ROLE_UP, s->hidden, s->experts.ffn);
    }
    add_experts(m, "ffn_down_exps.weight", i, ROLE_DOWN, s->experts.ffn, s->hidden);
    if (is_arch(s, "gpt-oss")) {
        add_vector(m, "ffn_gate_inp.bias", i, s->experts.n, 0, 0.1f);
        add_expert_bias(m, "ffn_gate_exps.bias", i, s->experts.ffn);
        add_expert_bias(m, "ffn_up_exps.bias", i, s->experts.ffn);
        add_expert_bias(m, "ffn_down_exps.bias", i, s->hidden);
    }
    if (s->delta.n_key_heads) { /* a shared expert, of their width */
        add_vector(m, "ffn_gate_inp_shexp.weight", i, s->hidden, 0, 0.1f);
        add_matrix(m, "ffn_gate_shexp.weight", i, ROLE_GATE, s->hidden, s->experts.ffn);
        add_matrix(m, "ffn_up_shexp.weight", i, ROLE_UP, s->hidden, s->experts.ffn);
        add_matrix(m, "ffn_down_shexp.weight", i, ROLE_DOWN, s->experts.ffn, s->hidden);
    }
    if (is_gemma(s)) { /* the factors of the router's input are a norm's gain */
        add_vector(m, "ffn_gate_inp.scale", i, s->hidden, sqrtf((float)s->hidden), 1);
        add_vector(m, "ffn_down_exps.scale", i, s->experts.n, 1, 0.3f);
        add_vector(m, "pre_ffw_norm_2.weight", i, s->hidden, 1, 0.1f);
        add_vector(m, "post_ffw_norm_1.weight", i, s->hidden, 1, 0.1f);
        add_vector(m, "post_ffw_norm_2.weight", i, s->hidden, 1, 0.1f);
    }
}

static void add_feed_forward(struct made_model *m, int i)
{
    const struct shape *s = m->shape;
    bool post = is_arch(s, "gpt-oss") || s->delta.n_key_heads;
    add_vector(m, post ? "post_attention_norm.weight" : "ffn_norm.weight", i, s->hidden, 1, 0.1f);
    if (is_gemma(s))
        add_vector(m, "post_ffw_norm.weight", i, s->hidden, 1, 0.1f);
    if (is_arch(s, "gemma4"))
        add_vector(m, "layer_output_scale.weight", i, 1, 0.8f, 0.1f);
    bool dense = is_arch(s, "deepseek2") && i == 0;
    if (s->experts.n && !dense)
        add_mixture(m, i);
    if (s->experts.n && !is_gemma(s) && !dense)
        return;
    if (is_arch(s, "phi3")) {
        add_matrix(m, "ffn_up.weight", i, ROLE_UP, s->hidden, 2 * s->ffn);
    } else {
        add_matrix(m, "ffn_gate.weight", i, ROLE_GATE, s->hidden, s->ffn);
        add_matrix(m, "ffn_up.weight", i, ROLE_UP, s->hidden, s->ffn);
    }
    add_matrix(m, "ffn_down.weight", i, ROLE_DOWN, s->ffn, s->hidden);
}

static void list_tensors(struct made_model *m)
{
    const struct shape *s = m->shape;
    add_matrix(m, "token_embd.weight", -1, ROLE_EMBD, s->hidden, m->n_vocab);
    if (s->rope_factor > 0) {
        struct tensor *t = add_tensor(m, "rope_freqs.weight", -1, ROLE_ROPE);
        t->n_cols = s->head_dim / 2;
        t->type = QUANT_F32;
    }
    for (int i = 0; i < (int)m->n_layers; i++) {
        if (s->delta.n_key_heads && (i + 1) % DELTA_INTERVAL)
            add_delta_net(m, i);
        else
            add_attention(m, i);
        add_feed_forward(m, i);
    }
    add_vector(m, "output_norm.weight", -1, s->hidden, 1, 0.1f);
    if (!s->tied)
        add_matrix(m, "output.weight", -1, ROLE_OUTPUT, s->hidden, m->n_vocab);
}

/* ---- the keys ---- */

static const char *arch_key(const struct shape *s, const char *suffix)
{
    static char key[128];
    (void)snprintf(key, sizeof key, "%s.%s", s->arch, suffix);
    return key;
}

/* One bool a layer in the files of Gemma 4. */
static void write_windows(const struct made_model *m, struct gguf_write *w)
{
    const struct shape *s = m->shape;
    uint8_t pattern[256] = {0};
    for (uint32_t i = 0; i < m->n_layers; i++)
        pattern[i] = is_windowed(s, (int)i);
    gguf_write_u32(w, arch_key(s, "attention.sliding_window"), s->window);
    if (!is_arch(s, "gemma4"))
        return;
    uint32_t dim = s->window_head_dim ? s->window_head_dim : s->head_dim;
    gguf_write_array(w, arch_key(s, "attention.sliding_window_pattern"), GGUF_BOOL, m->n_layers, pattern,
                     m->n_layers);
    gguf_write_u32(w, arch_key(s, "attention.key_length_swa"), dim);
    gguf_write_u32(w, arch_key(s, "attention.value_length_swa"), dim);
    gguf_write_u32(w, arch_key(s, "rope.dimension_count"), s->head_dim);
    gguf_write_u32(w, arch_key(s, "rope.dimension_count_swa"), dim);
}

static void write_yarn(const struct shape *s, struct gguf_write *w)
{
    gguf_write_str(w, arch_key(s, "rope.scaling.type"), "yarn");
    gguf_write_f32(w, arch_key(s, "rope.scaling.factor"), s->yarn.factor);
    gguf_write_u32(w, arch_key(s, "rope.scaling.original_context_length"), s->yarn.n_ctx);
}

/* Keys beside the lengths of the cache. */
static void write_latent(const struct shape *s, struct gguf_write *w)
{
    gguf_write_u32(w, arch_key(s, "attention.kv_lora_rank"), s->latent.rank);
    gguf_write_u32(w, arch_key(s, "attention.key_length_mla"), s->latent.key + s->latent.rotated);
    gguf_write_u32(w, arch_key(s, "attention.value_length_mla"), s->latent.value);
    gguf_write_u32(w, arch_key(s, "rope.dimension_count"), s->latent.rotated);
    gguf_write_u32(w, arch_key(s, "leading_dense_block_count"), 1);
}

/* Qwen 3.5 turns pairs by the positions of time, height and width, which are equal in text. */
static void write_rope_sections(const struct shape *s, struct gguf_write *w)
{
    uint32_t pairs = s->n_rot / 2, sections[4] = {(pairs + 2) / 3, (pairs + 1) / 3, pairs / 3, 0};
    gguf_write_array(w, arch_key(s, "rope.dimension_sections"), GGUF_I32, 4, sections, sizeof sections);
}

static void write_delta(const struct shape *s, struct gguf_write *w)
{
    gguf_write_u32(w, arch_key(s, "rope.dimension_count"), s->n_rot);
    if (strncmp(s->arch, "qwen35", 6) == 0)
        write_rope_sections(s, w);
    gguf_write_u32(w, arch_key(s, "ssm.conv_kernel"), DELTA_TAPS);
    gguf_write_u32(w, arch_key(s, "ssm.state_size"), s->delta.dim);
    gguf_write_u32(w, arch_key(s, "ssm.group_count"), s->delta.n_key_heads);
    gguf_write_u32(w, arch_key(s, "ssm.time_step_rank"), s->delta.n_value_heads);
    gguf_write_u32(w, arch_key(s, "ssm.inner_size"), s->delta.n_value_heads * s->delta.dim);
    gguf_write_u32(w, arch_key(s, "full_attention_interval"), DELTA_INTERVAL);
    if (s->experts.n)
        gguf_write_u32(w, arch_key(s, "expert_shared_feed_forward_length"), s->experts.ffn);
}

static void write_keys(const struct made_model *m, struct gguf_write *w)
{
    const struct shape *s = m->shape;
    char name[64];
    (void)snprintf(name, sizeof name, "random-%s", s->name);
    gguf_write_str(w, "general.architecture", s->arch);
    gguf_write_str(w, "general.type", "model");
    gguf_write_str(w, "general.name", name);
    gguf_write_u32(w, arch_key(s, "block_count"), m->n_layers);
    gguf_write_u32(w, arch_key(s, "context_length"), m->n_ctx);
    gguf_write_u32(w, arch_key(s, "embedding_length"), s->hidden);
    gguf_write_u32(w, arch_key(s, "feed_forward_length"), s->ffn);
    gguf_write_u32(w, arch_key(s, "attention.head_count"), s->n_heads);
    gguf_write_u32(w, arch_key(s, "attention.head_count_kv"), s->n_kv_heads);
    gguf_write_f32(w, arch_key(s, "rope.freq_base"), s->rope_base);
    gguf_write_f32(w, arch_key(s, "attention.layer_norm_rms_epsilon"), s->eps);
    if (strcmp(s->arch, "qwen2") != 0) { /* there the head size is hidden / heads, and files do not say it */
        gguf_write_u32(w, arch_key(s, "attention.key_length"), s->head_dim);
        gguf_write_u32(w, arch_key(s, "attention.value_length"),
                       s->latent.rank ? s->latent.rank : s->head_dim);
    }
    if (s->experts.n) {
        gguf_write_u32(w, arch_key(s, "expert_count"), s->experts.n);
        gguf_write_u32(w, arch_key(s, "expert_used_count"), s->experts.n_used);
        gguf_write_u32(w, arch_key(s, "expert_feed_forward_length"), s->experts.ffn);
    }
    if (s->window)
        write_windows(m, w);
    if (s->yarn.factor > 0)
        write_yarn(s, w);
    if (s->latent.rank)
        write_latent(s, w);
    if (s->delta.n_key_heads)
        write_delta(s, w);
    if (strcmp(s->arch, "llama") == 0) {
        gguf_write_u32(w, arch_key(s, "vocab_size"), m->n_vocab);
        gguf_write_u32(w, arch_key(s, "rope.dimension_count"), s->head_dim);
    }
    gguf_write_u32(w, "general.file_type", m->mix->file_type);
    gguf_write_u32(w, "general.quantization_version", 2);
    if (m->tokenizer)
        made_vocab_copy(w, m->tokenizer, m->n_vocab);
    else
        made_vocab_write(w, s->vocab, m->n_vocab);
}

static size_t tensor_size(const struct tensor *t)
{
    return quant_size(t->type, t->n_cols * (t->n_rows ? t->n_rows : 1));
}

/* ---- the data ---- */

static int write_all(int fd, const void *bytes, size_t size)
{
    const uint8_t *p = bytes;
    while (size > 0) {
        ssize_t n = write(fd, p, size);
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n > 0) {
            p += n;
            size -= (size_t)n;
        }
    }
    return 0;
}

/* Llama 3's factors: waves longer than the original context are slowed by `rope_factor`, those much shorter
 * are left, between them the two are blended. */
static void rope_factors(const struct shape *s, float *out)
{
    const double context = 8192, low = 1,
                 high = 4; /* original context; waves in it that count as few and many */
    for (uint32_t i = 0; i < s->head_dim / 2; i++) {
        double wave = 2 * M_PI * pow((double)s->rope_base, 2.0 * i / s->head_dim);
        double blend = (context / wave - low) / (high - low);
        blend = blend < 0 ? 0 : blend > 1 ? 1 : blend;
        out[i] = (float)(1 / ((1 - blend) / (double)s->rope_factor + blend));
    }
}

static int write_vector(const struct made_model *m, const struct tensor *t, uint64_t seed, int fd)
{
    float *values = calloc(t->n_cols, sizeof *values);
    if (!values)
        return -ENOMEM;
    if (t->role == ROLE_ROPE)
        rope_factors(m->shape, values);
    for (uint64_t i = 0; t->role == ROLE_VECTOR && i < t->n_cols; i++)
        values[i] = t->centre + t->rms * random_unit(&seed);
    int rc = write_all(fd, values, t->n_cols * sizeof *values);
    free(values);
    return rc;
}

static int write_matrix(const struct tensor *t, uint64_t seed, int fd)
{
    struct random_blocks blocks;
    random_blocks_init(&blocks, t->type, t->rms, seed);
    size_t row_size = quant_size(t->type, t->n_cols);
    uint64_t rows = CHUNK / row_size ? CHUNK / row_size : 1;
    uint8_t *chunk = malloc(rows * row_size);
    int rc = chunk ? 0 : -ENOMEM;
    for (uint64_t done = 0; rc == 0 && done < t->n_rows; done += rows) {
        uint64_t n = t->n_rows - done < rows ? t->n_rows - done : rows;
        random_blocks_fill(&blocks, chunk, n * t->n_cols);
        rc = write_all(fd, chunk, n * row_size);
    }
    free(chunk);
    return rc;
}

static int write_tensors(const struct made_model *m, int fd)
{
    static const uint8_t zeros[32];
    for (size_t i = 0; i < m->n_tensors; i++) {
        const struct tensor *t = &m->tensors[i];
        uint64_t state = m->seed + i * 0x9e3779b97f4a7c15u, seed = random_u64(&state);
        int rc = t->n_rows ? write_matrix(t, seed, fd) : write_vector(m, t, seed, fd);
        size_t padding = -tensor_size(t) & 31;
        if (rc == 0)
            rc = write_all(fd, zeros, padding);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int write_model(const struct made_model *m, const char *path)
{
    struct gguf_write w = {0};
    struct gguf_bytes head = {0};
    write_keys(m, &w);
    for (size_t i = 0; i < m->n_tensors; i++) {
        const struct tensor *t = &m->tensors[i];
        uint64_t ne[3] = {t->n_cols, t->n_experts ? t->n_rows / t->n_experts : t->n_rows, t->n_experts};
        (void)gguf_write_tensor(&w, t->name, t->type,
                                t->n_experts ? 3
                                : t->n_rows  ? 2
                                             : 1,
                                ne, tensor_size(t));
    }
    gguf_write_head(&w, &head);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int rc = fd < 0 ? -errno : write_all(fd, head.p, head.n);
    if (rc == 0)
        rc = write_tensors(m, fd);
    if (fd >= 0 && close(fd) < 0 && rc == 0)
        rc = -errno;
    free(head.p);
    gguf_write_free(&w);
    return rc;
}

/* ---- the command line ---- */

static int usage(void)
{
    (void)fprintf(stderr,
                  "usage: mkmodel --shape SHAPE --quant MIX --out FILE [--seed N] [--tokenizer VOCAB.gguf] "
                  "[--n-ctx N] [--layers N]\nshapes:");
    for (size_t i = 0; i < N_SHAPES; i++)
        (void)fprintf(stderr, " %s", shapes[i].name);
    (void)fprintf(stderr, "\nmixes:");
    for (size_t i = 0; i < N_MIXES; i++)
        (void)fprintf(stderr, " %s", mixes[i].name);
    (void)fprintf(stderr, "\n");
    return 2;
}

static void pick(struct made_model *m, const char *shape, const char *mix)
{
    for (size_t i = 0; shape && i < N_SHAPES; i++)
        m->shape = strcmp(shapes[i].name, shape) == 0 ? &shapes[i] : m->shape;
    for (size_t i = 0; mix && i < N_MIXES; i++)
        m->mix = strcmp(mixes[i].name, mix) == 0 ? &mixes[i] : m->mix;
}

/* The vocabulary is as large as the shape's, or as the given tokenizer's where that is larger. */
static int open_tokenizer(struct made_model *m, const char *path)
{
    struct error err = {0};
    const struct gguf_value *tokens;
    m->n_vocab = m->shape->n_vocab;
    if (!path)
        return 0;
    int rc = gguf_open(&m->tokenizer, path, &err);
    if (rc == 0 &&
        (rc = gguf_get_array(m->tokenizer, "tokenizer.ggml.tokens", GGUF_STR, &tokens, &err)) == 0) {
        m->n_vocab = tokens->n > m->n_vocab ? (uint32_t)tokens->n : m->n_vocab;
        return 0;
    }
    (void)fprintf(stderr, "mkmodel: %s\n",
                  err.code ? err.text : "the tokenizer's file has no tokenizer.ggml.tokens");
    return rc;
}

static int run(struct made_model *m, const char *tokenizer, const char *out)
{
    m->tensors = calloc(3 + 24 * (size_t)m->shape->n_layers, sizeof *m->tensors);
    if (!m->tensors || open_tokenizer(m, tokenizer) < 0)
        return 1;
    if (!m->n_ctx)
        m->n_ctx = m->shape->n_ctx;
    if (!m->n_layers || m->n_layers > m->shape->n_layers)
        m->n_layers = m->shape->n_layers;
    list_tensors(m);
    int rc = write_model(m, out);
    if (rc < 0) {
        (void)fprintf(stderr, "mkmodel: %s: %s\n", out, strerror(-rc));
        (void)unlink(out);
    }
    return rc < 0;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"shape", required_argument, NULL, 's'},     {"quant", required_argument, NULL, 'q'},
        {"out", required_argument, NULL, 'o'},       {"seed", required_argument, NULL, 'r'},
        {"tokenizer", required_argument, NULL, 't'}, {"n-ctx", required_argument, NULL, 'c'},
        {"layers", required_argument, NULL, 'l'},    {0},
    };
    struct made_model m = {.seed = 1};
    const char *shape = NULL, *mix = NULL, *out = NULL, *tokenizer = NULL;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 's':
            shape = optarg;
            break;
        case 'q':
            mix = optarg;
            break;
        case 'o':
            out = optarg;
            break;
        case 'r':
            m.seed = strtoull(optarg, NULL, 10);
            break;
        case 't':
            tokenizer = optarg;
            break;
        case 'l': /* the first N of the shape's layers */
            m.n_layers = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'c':
            m.n_ctx = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        default:
            return usage();
        }
    }
    pick(&m, shape, mix);
    if (!m.shape || !m.mix || !out || optind < argc)
        return usage();
    int status = run(&m, tokenizer, out);
    gguf_close(m.tokenizer);
    free(m.tensors);
    return status;
}
