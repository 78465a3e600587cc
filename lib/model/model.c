#include "model_private.h"
#include "graph.h"
#include "gguf/quant.h"
#include "base/hash.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARCHS(X)                                                                                             \
    X(llama, "llama")                                                                                        \
    X(qwen2, "qwen2")                                                                                        \
    X(qwen3, "qwen3")                                                                                        \
    X(qwen2moe, "qwen2moe")                                                                                  \
    X(qwen3moe, "qwen3moe")                                                                                  \
    X(qwen35, "qwen35")                                                                                      \
    X(qwen35moe, "qwen35moe")                                                                                \
    X(qwen3next, "qwen3next")                                                                                \
    X(glm4moe, "glm4moe")                                                                                    \
    X(deepseek2, "deepseek2")                                                                                \
    X(gemma2, "gemma2")                                                                                      \
    X(gemma3, "gemma3")                                                                                      \
    X(gemma4, "gemma4")                                                                                      \
    X(gptoss, "gpt-oss")                                                                                     \
    X(granite, "granite")                                                                                    \
    X(granitemoe, "granitemoe")                                                                              \
    X(mistral3, "mistral3")                                                                                  \
    X(phi3, "phi3")                                                                                          \
    X(smollm3, "smollm3")
#define ARCH_ADDRESS(id, name) &arch_##id,
#define ARCH_TEXT(id, name)    ", " name

static const struct arch *const archs[] = {ARCHS(ARCH_ADDRESS)};

/* The architecture of this name, or NULL. */
static const struct arch *arch_find(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (strlen(archs[i]->name) == len && memcmp(archs[i]->name, name, len) == 0)
            return archs[i];
    return NULL;
}

const struct arch *arch_at(size_t i)
{
    return i < sizeof archs / sizeof *archs ? archs[i] : NULL;
}

const char *arch_names(void)
{
    return &(ARCHS(ARCH_TEXT))[2]; /* behind the first comma */
}

/* Names for display. */

static void name_model(struct model *m)
{
    struct gguf_str s;
    struct model_config *c = &m->config;
    model_copy_text(c->arch, sizeof c->arch, m->arch->name, strlen(m->arch->name));
    if (gguf_get_str(m->gguf, "general.name", &s, NULL) == 0 && s.len > 0) {
        model_copy_text(c->name, sizeof c->name, s.s, s.len);
        return;
    }
    const char *path = gguf_path(m->gguf), *slash = strrchr(path, '/');
    const char *file = slash ? slash + 1 : path;
    size_t len = strlen(file);
    if (len > 5 && strcmp(file + len - 5, ".gguf") == 0)
        len -= 5;
    model_copy_text(c->name, sizeof c->name, file, len);
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
    for (uint32_t i = 0; !name && i < m->n_tensors; i++) {
        uint32_t type = gguf_tensor_at(m->gguf, i)->type;
        if (m->weights[i].n > 1 && type < 64)
            count[type] += (uint64_t)m->weights[i].n * m->weights[i].k;
    }
    for (uint32_t type = 0; !name && type < 64; type++)
        if (count[type] > count[best])
            best = type;
    model_copy_text(m->config.quantization, sizeof m->config.quantization,
                    name ? name : quant_name((uint32_t)best),
                    strlen(name ? name : quant_name((uint32_t)best)));
}

/* Weights. */

static int list_weights(struct model *m, struct error *err)
{
    size_t n = gguf_n_tensors(m->gguf);
    if (n == 0 || n >= MODEL_NO_WEIGHT)
        return error_set(err, -EBADMSG, "%s: %zu tensors: not a model that can run", gguf_path(m->gguf), n);
    size_t n_parts = (size_t)m->config.n_layers * MODEL_LAYER_PARTS;
    m->weights = calloc(n + n_parts, sizeof *m->weights);
    m->part_names = calloc(n_parts, sizeof *m->part_names);
    if (!m->weights || !m->part_names)
        return error_set(err, -ENOMEM, "%s: no memory for %zu tensors", gguf_path(m->gguf), n);
    m->n_tensors = m->n_weights = (uint32_t)n;
    for (uint32_t i = 0; i < m->n_weights; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(m->gguf, i);
        struct weight *w = &m->weights[i];
        w->name = t->name;
        w->type = t->type;
        w->size = t->size;
        w->tensor = i;
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
    for (uint32_t i = m->n_tensors; i < m->n_weights; i++)
        if (strcmp(m->weights[i].name, name) == 0)
            return i;
    const struct gguf_tensor *t = gguf_find_tensor(m->gguf, name);
    return t ? (uint32_t)(t - gguf_tensor_at(m->gguf, 0)) : MODEL_NO_WEIGHT;
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

static int fail_missing(const struct model *m, const char *name, struct error *err)
{
    const struct gguf_tensor *t = model_fused_tensor(m, name);
    if (!t)
        return error_set(err, -EBADMSG, "%s: tensor %s is missing", gguf_path(m->gguf), name);
    return error_set(err, -EBADMSG,
                     "%s: tensor %s is missing: %s, of shape [%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64
                     "], does not hold it",
                     gguf_path(m->gguf), name, t->name, t->ne[0], t->ne[1], t->ne[2], t->ne[3]);
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
        return fail_missing(m, name, err);
    if (index != MODEL_NO_WEIGHT) {
        const struct weight *w = &m->weights[index];
        uint32_t n_experts = want.n_experts ? want.n_experts : 1;
        if (w->n != want.n || w->k != want.k || w->n_experts != n_experts) {
            const struct gguf_tensor *t = gguf_tensor_at(m->gguf, w->tensor);
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

/* Reads a tensor of divisors of the frequencies, if the file has it. */
static int read_factors(struct model *m, const char *name, float **out, struct error *err)
{
    uint32_t factors, n = m->config.kinds[0].rope.dim / 2;
    int rc = model_want(m, &factors, (struct model_want){.n = 1, .k = n, .optional = true}, err, "%s", name);
    if (rc < 0 || factors == MODEL_NO_WEIGHT)
        return rc;
    *out = malloc(n * sizeof **out);
    if (!*out)
        return error_set(err, -ENOMEM, "%s: no memory for %s", gguf_path(m->gguf), name);
    rc = model_read_weight(m, factors, 0, *out, n * sizeof **out, err);
    for (uint32_t i = 0; i < n && rc == 0; i++)
        if (!isfinite((*out)[i]) || (*out)[i] <= 0)
            rc = error_set(err, -EBADMSG, "%s: %s[%u] is %g, expected a positive number", gguf_path(m->gguf),
                           name, i, (double)(*out)[i]);
    return rc;
}

static int read_rope_factors(struct model *m, struct error *err)
{
    struct model_rotation *rope = &m->config.kinds[0].rope;
    bool is_long = model_find_weight(m, "rope_factors_long.weight") != MODEL_NO_WEIGHT;
    struct gguf_str type = {"", 0};
    char key[64];
    (void)snprintf(key, sizeof key, "%s.rope.scaling.type", m->arch->name);
    (void)gguf_get_str(m->gguf, key, &type, NULL);
    if (!is_long && type.len == 8 && memcmp(type.s, "longrope", 8) == 0)
        return error_set(err, -EBADMSG, "%s: tensor rope_factors_long.weight is missing", gguf_path(m->gguf));
    if (rope->dim == 0)
        return 0;
    int rc = read_factors(m, is_long ? "rope_factors_short.weight" : "rope_freqs.weight", &m->rope_factors[0],
                          err);
    if (rc == 0 && is_long)
        rc = read_factors(m, "rope_factors_long.weight", &m->rope_factors[1], err);
    if (rc == 0 && is_long && !m->rope_factors[0])
        rc = error_set(err, -EBADMSG, "%s: tensor rope_factors_short.weight is missing", gguf_path(m->gguf));
    rope->factors = m->rope_factors[0];
    rope->long_factors = m->rope_factors[1];
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
    if (c->tied && m->arch->untied)
        return error_set(err, -EBADMSG, "%s: tensor output.weight is missing", gguf_path(m->gguf));
    model_split_fused(m);
    int rc = model_find_factors(m, err);
    return rc < 0 ? rc : read_rope_factors(m, err);
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
    model_copy_text(shown, sizeof shown, name.s, name.len);
    m->arch = arch_find(name.s, name.len);
    if (!m->arch)
        return error_set(err, -ENOTSUP, "%s: architecture \"%s\" is not supported (supported: %s)",
                         gguf_path(m->gguf), shown, arch_names());
    return 0;
}

/* Checks every tensor of the architecture by building the graph once, and that it needs no others. */
static int check_weights(const struct model *m, struct error *err)
{
    struct graph *g = NULL;
    int rc = graph_open(&g, m, err);
    if (rc == 0)
        rc = model_refuse_unused(g, err);
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
        rc = model_read_config(&m->config, m->gguf, m->arch, err);
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
    free(m->part_names);
    free(m->rope_factors[0]);
    free(m->rope_factors[1]);
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

static struct kv_layout kind_layout(const struct model_config *c, uint32_t kind, uint32_t kv_type)
{
    return (struct kv_layout){.n_layers = c->kinds[kind].n_caches,
                              .n_kv_heads = c->kinds[kind].n_kv_heads,
                              .head_dim = c->kinds[kind].head_dim,
                              .type = kv_type};
}

struct kv_layout model_kv_layout(const struct model_config *c, uint32_t kind, uint32_t kv_type)
{
    struct kv_layout layout = kind_layout(c, kind, kv_type);
    uint64_t all = 0;
    for (uint32_t i = 0; i < c->n_kinds; i++) {
        struct kv_layout part = kind_layout(c, i, kv_type);
        layout.at = i == kind ? all : layout.at;
        all += kv_part_size(&part);
    }
    layout.page_bytes = c->n_kinds > 1 ? all : 0;
    return layout;
}

size_t model_state_size(const struct model_config *c)
{
    return c->n_recurrent * delta_state_floats(&c->delta) * sizeof(float);
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
    for (size_t i = 0; i < 2; i++)
        if (m->rope_factors[i])
            h = hash_bytes(h, m->rope_factors[i],
                           m->config.kinds[0].rope.dim / 2 * sizeof *m->rope_factors[i]);
    return hash_word(h, weights_sum);
}
