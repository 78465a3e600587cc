#include "model.h"
#include "graph.h"
#include "gguf/quant.h"
#include "base/hash.h"
#include "base/utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct model {
    struct gguf *gguf;
    const struct arch *arch;
    struct model_config config;
    uint32_t n_weights;
    struct weight *weights; /* weight i is tensor i of the file */
    float *rope_factors;    /* what config.rope_factors points to */
};

#define ARCHS(X)                                                                                             \
    X(llama, "llama")                                                                                        \
    X(qwen2, "qwen2")                                                                                        \
    X(qwen3, "qwen3")                                                                                        \
    X(qwen2moe, "qwen2moe")                                                                                  \
    X(qwen3moe, "qwen3moe")                                                                                  \
    X(glm4moe, "glm4moe")
#define ARCH_ADDRESS(id, name) &arch_##id,
#define ARCH_TEXT(id, name)    ", " name

static const struct arch *const archs[] = {ARCHS(ARCH_ADDRESS)};

const struct arch *arch_find(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (strlen(archs[i]->name) == len && memcmp(archs[i]->name, name, len) == 0)
            return archs[i];
    return NULL;
}

const char *arch_names(void)
{
    return &(ARCHS(ARCH_TEXT))[2]; /* behind the first comma */
}

/* Text of the file for people: whole characters as far as they fit; what a terminal obeys and what is no
 * UTF-8 become '?'. */
static void copy_text(char *out, size_t size, const char *s, size_t len)
{
    size_t n = 0;
    while (len > 0) {
        size_t good = utf8_char(s, len), bytes = good ? good : 1;
        if (n + bytes >= size)
            break;
        bool shown = good && !utf8_is_obeyed(utf8_code(s, good));
        memcpy(out + n, shown ? s : "?", shown ? bytes : 1);
        n += shown ? bytes : 1;
        s += bytes;
        len -= bytes;
    }
    out[n] = 0;
}

/* Reading keys "<architecture>.<name>". */

struct reader {
    const struct gguf *g;
    const char *arch, *path;
    struct error *err;
    int rc; /* the first failure, after which calls do nothing */
};

static const char *key_of(const struct reader *r, const char *name, char buf[96])
{
    (void)snprintf(buf, 96, "%s.%s", r->arch, name);
    return buf;
}

/* Reads an optional number; if it is absent, *out keeps its default. */
static void read_u32(struct reader *r, const char *name, uint32_t *out)
{
    char key[96];
    if (r->rc < 0)
        return;
    int rc = gguf_get_u32(r->g, key_of(r, name, key), out, r->err);
    r->rc = rc == -ENOENT ? 0 : rc;
}

static void read_f32(struct reader *r, const char *name, float *out)
{
    char key[96];
    if (r->rc < 0)
        return;
    int rc = gguf_get_f32(r->g, key_of(r, name, key), out, r->err);
    r->rc = rc == -ENOENT ? 0 : rc;
}

/* Reads a required count, which must not be 0. */
static void need_u32(struct reader *r, const char *name, uint32_t *out)
{
    char key[96];
    if (r->rc < 0)
        return;
    *out = 0;
    r->rc = gguf_get_u32(r->g, key_of(r, name, key), out, r->err);
    if (r->rc == -ENOENT)
        r->rc = error_set(r->err, -EBADMSG, "%s: key %s is missing", r->path, key);
    else if (r->rc == 0 && *out == 0)
        r->rc = error_set(r->err, -EBADMSG, "%s: key %s is 0", r->path, key);
}

/* Checks that a number is positive and finite. */
static int check_f32(const struct reader *r, const char *name, double v)
{
    if (isfinite(v) && v > 0)
        return 0;
    return error_set(r->err, -EBADMSG, "%s: %s.%s is %g, expected a positive number", r->path, r->arch, name,
                     v);
}

static int read_rope_scaling(struct reader *r, struct model_config *c)
{
    char key[96];
    struct gguf_str kind = {"", 0};
    char name[40];
    int rc = gguf_get_str(r->g, key_of(r, "rope.scaling.type", key), &kind, r->err);
    if (rc < 0 && rc != -ENOENT)
        return rc;
    bool none = kind.len == 4 && memcmp(kind.s, "none", 4) == 0;
    bool linear = rc == -ENOENT || (kind.len == 6 && memcmp(kind.s, "linear", 6) == 0);
    copy_text(name, sizeof name, kind.s, kind.len);
    if (!none && !linear)
        return error_set(r->err, -ENOTSUP,
                         "%s: RoPE scaling kind \"%s\" is not supported (supported: none, linear, and the "
                         "factors of rope_freqs.weight)",
                         r->path, name);
    float factor = 1;
    read_f32(r, "rope.scale_linear", &factor); /* the older name of rope.scaling.factor */
    read_f32(r, "rope.scaling.factor", &factor);
    if (r->rc < 0)
        return r->rc;
    c->rope_scale = none || factor == 0 ? 1.0 : (double)factor;
    return check_f32(r, "rope.scaling.factor", c->rope_scale);
}

static int read_rope(struct reader *r, struct model_config *c)
{
    float base = 10000;
    c->rope_dim = c->head_dim;
    read_f32(r, "rope.freq_base", &base);
    read_u32(r, "rope.dimension_count", &c->rope_dim);
    if (r->rc < 0)
        return r->rc;
    c->rope_base = (double)base;
    if (c->rope_dim == 0 || c->rope_dim % 2 || c->rope_dim > c->head_dim)
        return error_set(r->err, -EBADMSG,
                         "%s: %s.rope.dimension_count is %u, expected an even number up to %u", r->path,
                         r->arch, c->rope_dim, c->head_dim);
    int rc = check_f32(r, "rope.freq_base", c->rope_base);
    return rc < 0 ? rc : read_rope_scaling(r, c);
}

static int read_heads(struct reader *r, struct model_config *c)
{
    need_u32(r, "attention.head_count", &c->n_heads);
    c->n_kv_heads = c->n_heads;
    read_u32(r, "attention.head_count_kv", &c->n_kv_heads);
    if (r->rc < 0)
        return r->rc;
    if (c->n_kv_heads == 0 || c->n_heads % c->n_kv_heads)
        return error_set(r->err, -EBADMSG, "%s: %u attention heads cannot share %u key/value heads", r->path,
                         c->n_heads, c->n_kv_heads);
    uint32_t key_length = 0, value_length = 0;
    read_u32(r, "attention.key_length", &key_length);
    read_u32(r, "attention.value_length", &value_length);
    if (r->rc < 0)
        return r->rc;
    if (!key_length && c->n_embd % c->n_heads)
        return error_set(r->err, -EBADMSG, "%s: embedding length %u is not a multiple of %u heads", r->path,
                         c->n_embd, c->n_heads);
    c->head_dim = key_length ? key_length : c->n_embd / c->n_heads;
    value_length = value_length ? value_length : c->head_dim;
    if (value_length != c->head_dim)
        return error_set(r->err, -ENOTSUP,
                         "%s: keys of length %u beside values of length %u are not supported", r->path,
                         c->head_dim, value_length);
    if (c->head_dim % 2 || c->head_dim > MODEL_MAX_HEAD_DIM)
        return error_set(r->err, -ENOTSUP, "%s: head length %u is not supported (even, up to %u)", r->path,
                         c->head_dim, MODEL_MAX_HEAD_DIM);
    return 0;
}

/* Refuses keys that change the arithmetic of a model in ways that Hearth does not support: ignoring one would
 * give wrong results. 0 and the neutral value mean the same as no key. */
static int refuse_unknown_arithmetic(struct reader *r, const struct model_config *c)
{
    const struct {
        const char *name;
        double neutral;
    } keys[] = {
        {"logit_scale", 1},
        {"embedding_scale", 1},
        {"residual_scale", 1},
        {"attention.clamp_kqv", 0},
        {"attention.max_alibi_bias", 0},
        {"attn_logit_softcapping", 0},
        {"final_logit_softcapping", 0},
        {"attention.scale", 1 / sqrt(c->head_dim)},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        float value = 0;
        read_f32(r, keys[i].name, &value);
        if (r->rc < 0)
            return r->rc;
        if (value != 0 && !(fabs((double)value - keys[i].neutral) < 1e-5))
            return error_set(r->err, -ENOTSUP, "%s: %s.%s = %g is not supported", r->path, r->arch,
                             keys[i].name, (double)value);
    }
    return 0;
}

static void read_bool(struct reader *r, const char *name, bool *out)
{
    char key[96];
    if (r->rc < 0)
        return;
    int rc = gguf_get_bool(r->g, key_of(r, name, key), out, r->err);
    r->rc = rc == -ENOENT ? 0 : rc;
}

static int bad_key(const struct reader *r, int rc, const char *name, uint32_t value, const char *expected)
{
    return error_set(r->err, rc, "%s: %s.%s is %u, expected %s", r->path, r->arch, name, value, expected);
}

/* Checks the choice of experts against the limits of kernels/abi/route.h. */
static int check_experts(const struct reader *r, const struct model_experts *e)
{
    if (e->n_experts > ROUTE_MAX_EXPERTS)
        return bad_key(r, -ENOTSUP, "expert_count", e->n_experts, "at most 512");
    if (e->gating != ROUTE_SOFTMAX && e->gating != ROUTE_SIGMOID)
        return bad_key(r, -ENOTSUP, "expert_gating_func", e->gating, "1 (softmax), 2 (sigmoid) or 3");
    if (e->n_groups == 0 || e->n_experts % e->n_groups)
        return bad_key(r, -EBADMSG, "expert_group_count", e->n_groups, "a divisor of expert_count");
    if (e->n_groups_used == 0 || e->n_groups_used > e->n_groups)
        return bad_key(r, -EBADMSG, "expert_group_used_count", e->n_groups_used, "1 to expert_group_count");
    if (e->n_used == 0 || e->n_used > e->n_experts / e->n_groups * e->n_groups_used)
        return bad_key(r, -EBADMSG, "expert_used_count", e->n_used, "1 to the number that can be chosen");
    if (e->n_used > ROUTE_MAX_USED)
        return bad_key(r, -ENOTSUP, "expert_used_count", e->n_used, "at most 32");
    if (e->n_ff == 0 || e->n_ff > (1u << 20))
        return bad_key(r, -EBADMSG, "expert_feed_forward_length", e->n_ff, "1 to 1048576");
    if (e->n_ff_shared > (1u << 20))
        return bad_key(r, -EBADMSG, "expert_shared_feed_forward_length", e->n_ff_shared, "at most 1048576");
    if (!isfinite(e->scale) || e->scale <= 0)
        return error_set(r->err, -EBADMSG, "%s: %s.expert_weights_scale is %g, expected a positive number",
                         r->path, r->arch, (double)e->scale);
    return 0;
}

/* A width that no key states follows from others. */
static void read_expert_widths(struct reader *r, const struct arch *arch, struct model_config *c)
{
    struct model_experts *e = &c->experts;
    uint32_t n_shared = 0;
    e->n_ff = arch->wide_experts || !e->n_used ? c->n_ff : c->n_ff / e->n_used;
    read_u32(r, "expert_feed_forward_length", &e->n_ff);
    read_u32(r, "expert_shared_count", &n_shared);
    e->n_ff_shared = n_shared < 64 ? n_shared * e->n_ff : UINT32_MAX;
    read_u32(r, "expert_shared_feed_forward_length", &e->n_ff_shared);
}

static int read_experts(struct reader *r, const struct arch *arch, struct model_config *c)
{
    struct model_experts *e = &c->experts;
    read_u32(r, "expert_count", &e->n_experts);
    if (r->rc < 0)
        return r->rc;
    if (e->n_experts && !arch->gating)
        return error_set(r->err, -ENOTSUP,
                         "%s: %s.expert_count is %u: experts of this architecture are not supported", r->path,
                         r->arch, e->n_experts);
    if (!arch->gating)
        return 0;
    *e = (struct model_experts){
        .gating = arch->gating, .normalise = arch->normalise, .n_groups = 1, .scale = 1};
    need_u32(r, "expert_count", &e->n_experts);
    need_u32(r, "expert_used_count", &e->n_used);
    read_u32(r, "leading_dense_block_count", &e->n_dense);
    read_u32(r, "expert_gating_func", &e->gating);
    read_u32(r, "expert_group_count", &e->n_groups);
    e->n_groups_used = e->n_groups;
    read_u32(r, "expert_group_used_count", &e->n_groups_used);
    read_bool(r, "expert_weights_norm", &e->normalise);
    read_f32(r, "expert_weights_scale", &e->scale);
    read_expert_widths(r, arch, c);
    e->scale = e->scale == 0 ? 1 : e->scale; /* as no key */
    e->gating = e->gating ? e->gating : arch->gating;
    e->n_groups = e->n_groups ? e->n_groups : 1;
    e->n_groups_used = e->n_groups_used ? e->n_groups_used : e->n_groups;
    if (e->gating == 3) { /* softmax over the chosen logits: the same as normalised afterwards */
        e->gating = ROUTE_SOFTMAX;
        e->normalise = true;
    }
    return r->rc < 0 ? r->rc : check_experts(r, e);
}

static int check_sizes(struct reader *r, const struct model_config *c)
{
    if (c->n_layers > MODEL_MAX_LAYERS)
        return error_set(r->err, -ENOTSUP, "%s: %u layers, supported up to %u", r->path, c->n_layers,
                         MODEL_MAX_LAYERS);
    const uint32_t limit = 1u << 22; /* keeps every product of two sizes within 64 bits, a row's within 32 */
    if (c->n_embd > limit || c->n_ff > limit || c->n_heads > limit / c->head_dim)
        return error_set(r->err, -ENOTSUP, "%s: a row of %u, %u or %u x %u values is larger than %u", r->path,
                         c->n_embd, c->n_ff, c->n_heads, c->head_dim, limit);
    return check_f32(r, "attention.layer_norm_rms_epsilon", c->norm_eps);
}

static int read_config(struct model *m, struct error *err)
{
    struct model_config *c = &m->config;
    struct reader r = {.g = m->gguf, .arch = m->arch->name, .path = gguf_path(m->gguf), .err = err};
    uint32_t n_drafts = 0;
    need_u32(&r, "block_count", &c->n_layers);
    need_u32(&r, "embedding_length", &c->n_embd);
    need_u32(&r, "feed_forward_length", &c->n_ff);
    need_u32(&r, "context_length", &c->n_ctx_train);
    read_f32(&r, "attention.layer_norm_rms_epsilon", &c->norm_eps);
    read_u32(&r, "attention.sliding_window", &c->sliding_window);
    read_u32(&r, "nextn_predict_layers", &n_drafts);
    if (r.rc < 0)
        return r.rc;
    if (n_drafts >= c->n_layers)
        return error_set(err, -EBADMSG, "%s: %s.nextn_predict_layers is %u of %u blocks", r.path, r.arch,
                         n_drafts, c->n_layers);
    c->n_layers -= n_drafts; /* the last blocks predict further tokens, the model's own needs none of them */
    c->rope = m->arch->rope;
    int rc = read_experts(&r, m->arch, c);
    if (rc == 0)
        rc = read_heads(&r, c);
    if (rc == 0)
        rc = check_sizes(&r, c);
    if (rc == 0)
        rc = refuse_unknown_arithmetic(&r, c);
    return rc < 0 ? rc : read_rope(&r, c);
}

/* Names for display. */

static void name_model(struct model *m)
{
    struct gguf_str s;
    struct model_config *c = &m->config;
    copy_text(c->arch, sizeof c->arch, m->arch->name, strlen(m->arch->name));
    if (gguf_get_str(m->gguf, "general.name", &s, NULL) == 0 && s.len > 0) {
        copy_text(c->name, sizeof c->name, s.s, s.len);
        return;
    }
    const char *path = gguf_path(m->gguf), *slash = strrchr(path, '/');
    const char *file = slash ? slash + 1 : path;
    size_t len = strlen(file);
    if (len > 5 && strcmp(file + len - 5, ".gguf") == 0)
        len -= 5;
    copy_text(c->name, sizeof c->name, file, len);
}

/* The names of the values of general.file_type. */
static const char *file_type_name(uint32_t type)
{
    static const char *const names[] = {
        [0] = "F32",     [1] = "F16",      [2] = "Q4_0",       [3] = "Q4_1",     [7] = "Q8_0",
        [8] = "Q5_0",    [9] = "Q5_1",     [10] = "Q2_K",      [11] = "Q3_K_S",  [12] = "Q3_K_M",
        [13] = "Q3_K_L", [14] = "Q4_K_S",  [15] = "Q4_K_M",    [16] = "Q5_K_S",  [17] = "Q5_K_M",
        [18] = "Q6_K",   [21] = "Q2_K_S",  [32] = "BF16",      [19] = "IQ2_XXS", [20] = "IQ2_XS",
        [22] = "IQ3_XS", [23] = "IQ3_XXS", [24] = "IQ1_S",     [25] = "IQ4_NL",  [26] = "IQ3_S",
        [27] = "IQ3_M",  [28] = "IQ2_S",   [29] = "IQ2_M",     [30] = "IQ4_XS",  [31] = "IQ1_M",
        [36] = "TQ1_0",  [37] = "TQ2_0",   [38] = "MXFP4_MOE", [39] = "NVFP4",
    };
    return type < sizeof names / sizeof *names ? names[type] : NULL;
}

static void name_quantization(struct model *m)
{
    uint32_t file_type;
    const char *name = NULL;
    if (gguf_get_u32(m->gguf, "general.file_type", &file_type, NULL) == 0)
        name = file_type_name(file_type & ~1024u); /* 1024: flag that the converter guessed it */
    uint64_t count[64] = {0}, best = 0;
    for (uint32_t i = 0; !name && i < m->n_weights; i++)
        if (m->weights[i].n > 1 && m->weights[i].type < 64)
            count[m->weights[i].type] += (uint64_t)m->weights[i].n * m->weights[i].k;
    for (uint32_t type = 0; !name && type < 64; type++)
        if (count[type] > count[best])
            best = type;
    copy_text(m->config.quantization, sizeof m->config.quantization, name ? name : quant_name((uint32_t)best),
              strlen(name ? name : quant_name((uint32_t)best)));
}

/* Weights. */

static int list_weights(struct model *m, struct error *err)
{
    size_t n = gguf_n_tensors(m->gguf);
    if (n == 0 || n >= MODEL_NO_WEIGHT)
        return error_set(err, -EBADMSG, "%s: %zu tensors: not a model that can run", gguf_path(m->gguf), n);
    m->weights = calloc(n, sizeof *m->weights);
    if (!m->weights)
        return error_set(err, -ENOMEM, "%s: no memory for %zu tensors", gguf_path(m->gguf), n);
    m->n_weights = (uint32_t)n;
    for (uint32_t i = 0; i < m->n_weights; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(m->gguf, i);
        struct weight *w = &m->weights[i];
        w->name = t->name;
        w->type = t->type;
        w->size = t->size;
        m->config.n_params += t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
        w->n_experts = 1;
        if (t->ne[0] <= UINT32_MAX && t->ne[1] <= UINT32_MAX && t->ne[2] <= ROUTE_MAX_EXPERTS &&
            t->ne[1] * t->ne[2] <= UINT32_MAX && t->ne[3] == 1) {
            w->k = (uint32_t)t->ne[0];
            w->n = (uint32_t)(t->ne[1] * t->ne[2]);
            w->n_experts = (uint32_t)t->ne[2];
        } /* else 0 x 0: a shape that no model wants */
    }
    return 0;
}

uint32_t model_find_weight(const struct model *m, const char *name)
{
    const struct gguf_tensor *t = gguf_find_tensor(m->gguf, name);
    return t ? (uint32_t)(t - gguf_tensor_at(m->gguf, 0))
             : MODEL_NO_WEIGHT; /* weights have the file's order */
}

/* Checks that Hearth can compute with this weight: matrices have whole blocks, vectors are F32. */
static int check_type(const struct model *m, const struct weight *w, const struct model_want *want,
                      struct error *err)
{
    const char *path = gguf_path(m->gguf);
    const struct quant_traits *t = quant_traits(w->type);
    if (!t)
        return error_set(err, -ENOTSUP, "%s: tensor %s has type %s (%u), which is not supported", path,
                         w->name, quant_name(w->type), w->type);
    if ((w->n == 1 || want->table) && w->type != QUANT_F32)
        return error_set(err, -ENOTSUP, "%s: tensor %s is a %s of type %s, only F32 is supported", path,
                         w->name, want->table ? "table" : "vector", t->name);
    if (w->n > 1 && !want->table && (w->k % t->block || (w->k % 32 && !(want->any_k && t->block == 1))))
        return error_set(err, -ENOTSUP, "%s: rows of tensor %s have %u values, not a multiple of %u (%s)",
                         path, w->name, w->k, t->block > 32 ? t->block : 32, t->name);
    return 0;
}

int model_want(const struct model *m, uint32_t *out, struct model_want want, struct error *err,
               const char *fmt, ...)
{
    char name[128];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    uint32_t index = model_find_weight(m, name);
    if (index == MODEL_NO_WEIGHT && !want.optional)
        return error_set(err, -EBADMSG, "%s: tensor %s is missing", gguf_path(m->gguf), name);
    if (index != MODEL_NO_WEIGHT) {
        const struct weight *w = &m->weights[index];
        uint32_t n_experts = want.n_experts ? want.n_experts : 1;
        if (w->n != want.n || w->k != want.k || w->n_experts != n_experts) {
            const struct gguf_tensor *t = gguf_tensor_at(m->gguf, index);
            return error_set(err, -EBADMSG,
                             "%s: tensor %s has shape [%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64
                             "], expected [%u, %u, %u, 1]",
                             gguf_path(m->gguf), name, t->ne[0], t->ne[1], t->ne[2], t->ne[3], want.k,
                             want.n / n_experts, n_experts);
        }
        int rc = check_type(m, w, &want, err);
        if (rc < 0)
            return rc;
    }
    *out = index;
    return 0;
}

static int read_rope_factors(struct model *m, struct error *err)
{
    struct model_config *c = &m->config;
    uint32_t factors, n = c->rope_dim / 2;
    int rc = model_want(m, &factors, (struct model_want){.n = 1, .k = n, .optional = true}, err,
                        "rope_freqs.weight");
    if (rc < 0 || factors == MODEL_NO_WEIGHT)
        return rc;
    m->rope_factors = malloc(n * sizeof *m->rope_factors);
    if (!m->rope_factors)
        return error_set(err, -ENOMEM, "%s: no memory for rope_freqs.weight", gguf_path(m->gguf));
    rc = model_read_weight(m, factors, 0, m->rope_factors, n * sizeof *m->rope_factors, err);
    for (uint32_t i = 0; i < n && rc == 0; i++)
        if (!isfinite(m->rope_factors[i]) || m->rope_factors[i] <= 0)
            rc = error_set(err, -EBADMSG, "%s: rope_freqs.weight[%u] is %g, expected a positive number",
                           gguf_path(m->gguf), i, (double)m->rope_factors[i]);
    c->rope_factors = m->rope_factors;
    return rc;
}

/* The vocabulary's size stands in no required key: it is the number of rows of the embedding. */
static int read_vocab(struct model *m, struct error *err)
{
    struct model_config *c = &m->config;
    uint32_t embedding = model_find_weight(m, "token_embd.weight");
    if (embedding == MODEL_NO_WEIGHT)
        return error_set(err, -EBADMSG, "%s: tensor token_embd.weight is missing", gguf_path(m->gguf));
    c->n_vocab = m->weights[embedding].n;
    if (c->n_vocab < 2 || c->n_vocab > (1u << 24))
        return error_set(err, -EBADMSG, "%s: tensor token_embd.weight has %u rows, expected 2 to %u",
                         gguf_path(m->gguf), c->n_vocab, 1u << 24);
    c->tied = model_find_weight(m, "output.weight") == MODEL_NO_WEIGHT;
    return read_rope_factors(m, err);
}

static int find_arch(struct model *m, struct error *err)
{
    struct gguf_str name;
    int rc = gguf_get_str(m->gguf, "general.architecture", &name, err);
    if (rc == -ENOENT)
        return error_set(err, -EBADMSG, "%s: key general.architecture is missing", gguf_path(m->gguf));
    if (rc < 0)
        return rc;
    char shown[40];
    copy_text(shown, sizeof shown, name.s, name.len);
    m->arch = arch_find(name.s, name.len);
    if (!m->arch)
        return error_set(err, -ENOTSUP, "%s: architecture \"%s\" is not supported (supported: %s)",
                         gguf_path(m->gguf), shown, arch_names());
    return 0;
}

/* Checks every tensor of the architecture by building the graph once. */
static int check_weights(const struct model *m, struct error *err)
{
    struct graph *g = NULL;
    int rc = graph_open(&g, m, err);
    graph_close(g);
    return rc;
}

int model_open(struct model **out, const char *path, struct error *err)
{
    struct model *m = calloc(1, sizeof *m);
    if (!m)
        return error_set(err, -ENOMEM, "%s: out of memory", path);
    int rc = gguf_open(&m->gguf, path, err);
    if (rc == 0)
        rc = find_arch(m, err);
    if (rc == 0)
        rc = read_config(m, err);
    if (rc == 0)
        rc = list_weights(m, err);
    if (rc == 0)
        rc = read_vocab(m, err);
    if (rc == 0)
        rc = check_weights(m, err);
    if (rc < 0) {
        model_close(m);
        return rc;
    }
    name_model(m);
    name_quantization(m);
    *out = m;
    return 0;
}

void model_close(struct model *m)
{
    if (!m)
        return;
    gguf_close(m->gguf);
    free(m->weights);
    free(m->rope_factors);
    free(m);
}

void model_release(struct model *m)
{
    gguf_release(m->gguf);
}

const struct model_config *model_config(const struct model *m)
{
    return &m->config;
}

const struct gguf *model_gguf(const struct model *m)
{
    return m->gguf;
}

const struct arch *model_arch(const struct model *m)
{
    return m->arch;
}

uint32_t model_n_weights(const struct model *m)
{
    return m->n_weights;
}

const struct weight *model_weight(const struct model *m, uint32_t index)
{
    return index < m->n_weights ? &m->weights[index] : NULL;
}

int model_read_weight(const struct model *m, uint32_t index, size_t at, void *out, size_t n,
                      struct error *err)
{
    return gguf_read(m->gguf, gguf_tensor_at(m->gguf, index), at, out, n, err);
}

uint64_t model_hash(const struct model *m, uint64_t weights_sum)
{
    uint64_t h = 0;
    for (size_t i = 0; i < gguf_n_values(m->gguf); i++) {
        const struct gguf_value *v = gguf_value_at(m->gguf, i);
        h = hash_bytes(h, v->key.s, v->key.len);
        h = hash_word(h, (uint64_t)v->type << 32 | v->item_type);
        h = hash_bytes(h, v->data, v->size);
    }
    for (size_t i = 0; i < gguf_n_tensors(m->gguf); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(m->gguf, i);
        h = hash_bytes(h, t->name, strlen(t->name));
        h = hash_bytes(h, t->ne, sizeof t->ne);
        h = hash_word(h, t->type);
    }
    if (m->rope_factors)
        h = hash_bytes(h, m->rope_factors, m->config.rope_dim / 2 * sizeof *m->rope_factors);
    return hash_word(h, weights_sum);
}
