/* model_config.c - the numbers of a model from the keys of its file. */
#include "abi/route.h"
#include "base/utf8.h"
#include "config_reader.h"
#include "model_private.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void model_copy_text(char *out, size_t size, const char *s, size_t len)
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

/* Reading keys. */

static const char *key_of(const struct config_reader *r, const char *name, char buf[96])
{
    (void)snprintf(buf, 96, "%s.%s", r->arch, name);
    return buf;
}

int config_fail(struct config_reader *r, int code, const char *fmt, ...)
{
    char words[300];
    va_list ap;
    if (r->rc < 0)
        return r->rc;
    va_start(ap, fmt);
    (void)vsnprintf(words, sizeof words, fmt, ap);
    va_end(ap);
    return r->rc = error_set(r->err, code, "%s: %s", r->path, words);
}

void config_u32(struct config_reader *r, const char *name, uint32_t *out)
{
    char key[96];
    if (r->rc < 0)
        return;
    int rc = gguf_get_u32(r->g, key_of(r, name, key), out, r->err);
    r->rc = rc == -ENOENT ? 0 : rc;
}

void config_f32(struct config_reader *r, const char *name, float *out)
{
    char key[96];
    if (r->rc < 0)
        return;
    int rc = gguf_get_f32(r->g, key_of(r, name, key), out, r->err);
    r->rc = rc == -ENOENT ? 0 : rc;
}

void config_bool(struct config_reader *r, const char *name, bool *out)
{
    char key[96];
    if (r->rc < 0)
        return;
    int rc = gguf_get_bool(r->g, key_of(r, name, key), out, r->err);
    r->rc = rc == -ENOENT ? 0 : rc;
}

void config_need_u32(struct config_reader *r, const char *name, uint32_t *out)
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

void config_layer_u32(struct config_reader *r, const char *name, uint32_t layer, uint32_t *out)
{
    char key[96];
    if (r->rc < 0)
        return;
    const struct gguf_value *v = gguf_find(r->g, key_of(r, name, key));
    if (!v || v->type != GGUF_ARR) {
        config_u32(r, name, out);
        return;
    }
    if (v->item_type != GGUF_U32 && v->item_type != GGUF_I32)
        config_fail(r, -EBADMSG, "key %s is not an array of whole numbers", key);
    else if (layer >= v->n)
        config_fail(r, -EBADMSG, "key %s has %llu numbers, one for each layer is expected", key,
                    (unsigned long long)v->n);
    else if (gguf_item_i32(v, layer) < 0)
        config_fail(r, -EBADMSG, "key %s[%u] is %d", key, layer, gguf_item_i32(v, layer));
    else
        *out = (uint32_t)gguf_item_i32(v, layer);
}

bool config_layer_bools(struct config_reader *r, const struct model_config *c, const char *name, bool *out)
{
    char key[96];
    const struct gguf_value *v = gguf_find(r->g, key_of(r, name, key));
    if (!v || r->rc < 0)
        return false;
    bool whole = v->type == GGUF_ARR && v->item_type == GGUF_BOOL && v->n >= c->n_layers;
    if (!whole)
        config_fail(r, -EBADMSG, "key %s is not an array with a bool for each of %u layers", key,
                    c->n_layers);
    for (uint32_t i = 0; whole && i < c->n_layers; i++)
        out[i] = v->data[i] != 0;
    return whole;
}

void config_factor(struct config_reader *r, const char *name, float *out)
{
    float value = 0;
    config_f32(r, name, &value);
    if (r->rc == 0 && value < 0)
        config_fail(r, -EBADMSG, "%s.%s is %g, expected a positive number", r->arch, name, (double)value);
    *out = value > 0 ? value : *out;
}

/* Checks that a number is positive and finite. */
static int check_f32(struct config_reader *r, const char *name, double v)
{
    if (isfinite(v) && v > 0)
        return r->rc;
    return config_fail(r, -EBADMSG, "%s.%s is %g, expected a positive number", r->arch, name, v);
}

/* Windows. */

/* True if the pattern gives a window to the layer. */
static bool is_windowed(struct config_reader *r, const struct gguf_value *pattern, uint32_t period,
                        uint32_t layer)
{
    if (!pattern)
        return layer % period < period - 1;
    if (layer < pattern->n)
        return pattern->data[layer] != 0;
    config_fail(r, -EBADMSG,
                "%s.attention.sliding_window_pattern has %llu values, one for each layer is expected",
                r->arch, (unsigned long long)pattern->n);
    return false;
}

bool config_windows(struct config_reader *r, struct model_config *c, uint32_t window, uint32_t period)
{
    char key[96];
    float base = (float)c->kinds[0].rope.base;
    config_factor(r, "rope.freq_base_swa", &base);
    config_u32(r, "attention.sliding_window", &window);
    if (r->rc < 0 || window == 0)
        return false;
    const struct gguf_value *pattern = gguf_find(r->g, key_of(r, "attention.sliding_window_pattern", key));
    if (pattern && (pattern->type != GGUF_ARR || pattern->item_type != GGUF_BOOL)) {
        config_need_u32(r, "attention.sliding_window_pattern", &period);
        pattern = NULL;
    } else if (!pattern && period == 0) {
        config_fail(r, -EBADMSG, "key %s is missing", key);
    }
    c->n_kinds = 2;
    c->kinds[1] = c->kinds[0];
    c->kinds[1].window = window;
    c->kinds[1].rope.base = (double)base;
    for (uint32_t i = 0; i < c->n_layers && r->rc == 0; i++)
        c->layers[i].kind = is_windowed(r, pattern, period, i);
    return true;
}

/* RoPE. */

static int read_scale(struct config_reader *r, struct model_rotation *rope)
{
    float factor = 1;
    config_f32(r, "rope.scale_linear", &factor); /* the older name of rope.scaling.factor */
    config_f32(r, "rope.scaling.factor", &factor);
    if (r->rc < 0)
        return r->rc;
    rope->scale = factor == 0 ? 1.0 : (double)factor;
    return check_f32(r, "rope.scaling.factor", rope->scale);
}

/* The factors of longrope are tensors; model.c reads them. */
static int read_rope_scaling(struct config_reader *r, struct model_config *c)
{
    char key[96], shown[40];
    struct gguf_str kind = {"linear", 6};
    struct model_rotation *rope = &c->kinds[0].rope;
    float attn_factor = 1;
    int rc = gguf_get_str(r->g, key_of(r, "rope.scaling.type", key), &kind, r->err);
    if (rc < 0 && rc != -ENOENT)
        return r->rc = rc;
    model_copy_text(shown, sizeof shown, kind.s, kind.len);
    rope->n_ctx_original = c->n_ctx_train;
    config_u32(r, "rope.scaling.original_context_length", &rope->n_ctx_original);
    config_factor(r, "rope.scaling.attn_factor", &attn_factor);
    rope->magnitude = (double)attn_factor;
    if (strcmp(shown, "none") == 0)
        return r->rc;
    rope->yarn = strcmp(shown, "yarn") == 0;
    if (!rope->yarn && strcmp(shown, "linear") != 0 && strcmp(shown, "longrope") != 0)
        return config_fail(r, -ENOTSUP,
                           "%s is \"%s\", which is not supported (supported: none, linear, yarn, longrope, "
                           "and the factors of rope_freqs.weight)",
                           key, shown);
    if (rope->yarn && rope->n_ctx_original == 0)
        return config_fail(r, -EBADMSG, "%s.rope.scaling.original_context_length is 0", r->arch);
    return read_scale(r, rope);
}

void config_yarn(struct config_reader *r, struct model_rotation *rope)
{
    float fast = (float)rope->beta_fast, slow = (float)rope->beta_slow, log = 0;
    config_factor(r, "rope.scaling.yarn_beta_fast", &fast);
    config_factor(r, "rope.scaling.yarn_beta_slow", &slow);
    config_factor(r, "rope.scaling.yarn_log_multiplier", &log);
    rope->beta_fast = (double)fast;
    rope->beta_slow = (double)slow;
    rope->log_multiplier = (double)log;
}

static int read_rope(struct config_reader *r, struct model_config *c)
{
    float base = 10000;
    struct model_rotation *rope = &c->kinds[0].rope;
    *rope = (struct model_rotation){.dim = c->head_dim, .scale = 1, .magnitude = 1};
    rope->beta_fast = 32; /* of the paper */
    rope->beta_slow = 1;
    config_f32(r, "rope.freq_base", &base);
    config_u32(r, "rope.dimension_count", &rope->dim);
    if (r->rc < 0)
        return r->rc;
    rope->base = (double)base;
    if (rope->dim == 0 || rope->dim % 2 || rope->dim > c->head_dim)
        return config_fail(r, -EBADMSG, "%s.rope.dimension_count is %u, expected an even number up to %u",
                           r->arch, rope->dim, c->head_dim);
    int rc = check_f32(r, "rope.freq_base", rope->base);
    return rc < 0 ? rc : read_rope_scaling(r, c);
}

/* Heads. */

static int bad_kv_heads(struct config_reader *r, uint32_t n_heads, uint32_t n_kv_heads)
{
    return config_fail(r, -EBADMSG,
                       "%s.attention.head_count_kv is %u: %u attention heads cannot share %u key/value heads",
                       r->arch, n_kv_heads, n_heads, n_kv_heads);
}

static int read_heads(struct config_reader *r, const struct arch *arch, struct model_config *c)
{
    config_need_u32(r, "attention.head_count", &c->n_heads);
    c->n_kv_heads = c->n_heads;
    config_layer_u32(r, "attention.head_count_kv", 0, &c->n_kv_heads);
    if (r->rc < 0)
        return r->rc;
    if (c->n_kv_heads == 0 || c->n_heads % c->n_kv_heads)
        return bad_kv_heads(r, c->n_heads, c->n_kv_heads);
    uint32_t key_length = 0, value_length = 0;
    config_u32(r, "attention.key_length", &key_length);
    config_u32(r, "attention.value_length", &value_length);
    if (r->rc < 0)
        return r->rc;
    if (!key_length && c->n_embd % c->n_heads)
        return config_fail(r, -EBADMSG,
                           "%s.embedding_length is %u, expected a multiple of %u attention heads", r->arch,
                           c->n_embd, c->n_heads);
    c->head_dim = key_length ? key_length : c->n_embd / c->n_heads;
    value_length = value_length ? value_length : c->head_dim;
    if (value_length != c->head_dim && !arch->latent)
        return config_fail(
            r, -ENOTSUP,
            "%s.attention.value_length is %u: keys of length %u beside values of length %u are not supported",
            r->arch, value_length, c->head_dim, value_length);
    if (c->head_dim % 2 || c->head_dim > MODEL_MAX_HEAD_DIM)
        return config_fail(r, -ENOTSUP, "%s.attention.%s: head length %u is not supported (even, up to %u)",
                           r->arch, key_length ? "key_length" : "head_count", c->head_dim,
                           MODEL_MAX_HEAD_DIM);
    return 0;
}

/* All layers are of one kind unless the architecture says otherwise. */
static void set_kind(struct model_config *c)
{
    c->n_kinds = 1;
    c->kinds[0].n_heads = c->n_heads;
    c->kinds[0].n_kv_heads = c->n_kv_heads;
    c->kinds[0].head_dim = c->head_dim;
    c->kinds[0].scale = (float)(1.0 / sqrt(c->head_dim));
    c->embedding_scale = c->residual_scale = c->logit_scale = 1;
}

/* Checks what the architecture has made of the kinds. */
static int check_kinds(struct config_reader *r, struct model_config *c)
{
    for (uint32_t i = 0; i < c->n_kinds; i++) {
        const struct model_attention *kind = &c->kinds[i];
        if (kind->n_kv_heads == 0 || kind->n_heads % kind->n_kv_heads)
            return bad_kv_heads(r, kind->n_heads, kind->n_kv_heads);
        if (kind->rope.yarn && kind->rope.base <= 1) /* its logarithm is a divisor */
            return config_fail(r, -EBADMSG, "%s.rope.freq_base%s is %g, expected more than 1 with yarn",
                               r->arch, i ? "_swa" : "", kind->rope.base);
    }
    c->n_kv_heads = c->kinds[0].n_kv_heads;
    uint32_t n_recurrent = 0;
    for (uint32_t i = 0; i < c->n_layers; i++)
        n_recurrent += c->layers[i].recurrent;
    if (n_recurrent == c->n_layers)
        return config_fail(
            r, -ENOTSUP,
            "%s.full_attention_interval: none of %u layers has attention, which is not supported", r->arch,
            c->n_layers);
    return r->rc;
}

/* Numbers the caches of each kind; a layer whose cache is set already shares that of an earlier one. */
static void number_caches(struct model_config *c)
{
    for (uint32_t i = 0; i < c->n_layers; i++) {
        struct model_attention *kind = &c->kinds[c->layers[i].kind];
        if (c->layers[i].recurrent)
            c->layers[i].cache = c->n_recurrent++;
        else if (c->layers[i].cache == MODEL_OWN_CACHE)
            c->layers[i].cache = kind->n_caches++;
    }
}

/* Layers that read the cache of an earlier one. */
static uint32_t n_shared_caches(const struct model_config *c)
{
    uint32_t n = c->n_layers - c->n_recurrent;
    for (uint32_t i = 0; i < c->n_kinds; i++)
        n -= c->kinds[i].n_caches;
    return n;
}

/* Layers. */

static int read_layers(struct config_reader *r, struct model_config *c)
{
    for (uint32_t i = 0; i < c->n_layers && r->rc == 0; i++) {
        c->layers[i] = (struct model_layer){.cache = MODEL_OWN_CACHE};
        uint32_t n_kv_heads = c->n_kv_heads, n_dense = 0, *n_ff = &c->layers[i].n_ff;
        config_layer_u32(r, "expert_feed_forward_length", i, n_ff);
        config_layer_u32(r, "feed_forward_length", i, &n_dense);
        *n_ff = n_dense ? n_dense : *n_ff; /* 0: the layer has experts alone */
        config_layer_u32(r, "attention.head_count_kv", i, &n_kv_heads);
        if (r->rc == 0 && *n_ff == 0)
            config_fail(r, -EBADMSG, "key %s.feed_forward_length is missing or 0", r->arch);
        if (n_kv_heads != c->n_kv_heads && strcmp(r->arch, "gemma4") != 0)
            config_fail(r, -ENOTSUP,
                        "%s.attention.head_count_kv differs between layers, which is not supported", r->arch);
        c->n_ff = *n_ff > c->n_ff ? *n_ff : c->n_ff;
    }
    return r->rc;
}

static int check_sizes(struct config_reader *r, const struct model_config *c)
{
    const uint32_t limit = 1u << 22; /* keeps every product of two sizes within 64 bits, a row's within 32 */
    if (c->n_embd > limit || c->n_ff > limit || c->n_heads > limit / c->head_dim)
        return config_fail(
            r, -ENOTSUP,
            "%s.embedding_length %u, feed_forward_length %u or attention.head_count %u x %u is "
            "larger than %u",
            r->arch, c->n_embd, c->n_ff, c->n_heads, c->head_dim, limit);
    return check_f32(r, "attention.layer_norm_rms_epsilon", (double)c->norm_eps);
}

/* Refuses keys that change the arithmetic of a model in ways that its architecture's file does not compute:
 * ignoring one would give wrong results. 0 and what is computed mean the same as no key. */
static void refuse_factors(struct config_reader *r, const struct model_config *c)
{
    const struct {
        const char *name;
        double computed;
    } keys[] = {
        {"logit_scale", 1 / (double)c->logit_scale},
        {"embedding_scale", (double)c->embedding_scale},
        {"residual_scale", (double)c->residual_scale},
        {"attention.clamp_kqv", 0},
        {"attention.max_alibi_bias", 0},
        {"attn_logit_softcapping", (double)c->kinds[0].cap},
        {"final_logit_softcapping", (double)c->logit_cap},
        {"router_logit_softcapping", 0},
        {"attention.scale", (double)c->kinds[0].scale},
        {"attention.output_scale", 1},
        {"attention.value_scale", 1},
        {"attention.temperature_scale", (double)c->kinds[0].temperature},
        {"rope.scaling.alpha", 0},
        {"expert_group_scale", 0},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys && r->rc == 0; i++) {
        float value = 0;
        config_f32(r, keys[i].name, &value);
        if (value != 0 && !(fabs((double)value - keys[i].computed) < 1e-5 * (1 + fabs(keys[i].computed))))
            config_fail(r, -ENOTSUP, "%s.%s = %g is not supported", r->arch, keys[i].name, (double)value);
    }
}

static void refuse_counts(struct config_reader *r, const struct model_config *c)
{
    const struct model_attention *windows = &c->kinds[c->n_kinds - 1];
    const struct {
        const char *name;
        uint32_t computed; /* UINT32_MAX: any */
    } keys[] = {
        {"attention.temperature_length",
         c->kinds[0].temperature > 0 ? c->kinds[0].temperature_step : UINT32_MAX},
        {"attention.shared_kv_layers", n_shared_caches(c)},
        {"attention.indexer.top_k", 0},
        {"attention.key_length_swa", windows->head_dim},
        {"attention.value_length_swa", windows->head_dim},
        {"rope.dimension_count_swa", windows->rope.dim},
        {"embedding_length_per_layer_input", c->n_embd_layer},
        {"interleave_moe_layer_step", 1},
        {"moe_every_n_layers", 1},
        {"experts_per_group", 0},
        {"rescale_every_n_layers", 0},
        {"token_shift_count", 0},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys && r->rc == 0; i++) {
        uint32_t value = 0;
        config_u32(r, keys[i].name, &value);
        if (value != 0 && value != keys[i].computed && keys[i].computed != UINT32_MAX)
            config_fail(r, -ENOTSUP, "%s.%s = %u is not supported", r->arch, keys[i].name, value);
    }
}

static int refuse_unknown_arithmetic(struct config_reader *r, const struct model_config *c)
{
    static const char *const flags[] = {"use_parallel_residual", "swin_norm"};
    static const char *const arrays[] = {"swiglu_clamp_exp", "swiglu_clamp_shexp"};
    char key[96];
    refuse_factors(r, c);
    refuse_counts(r, c);
    for (size_t i = 0; i < sizeof flags / sizeof *flags && r->rc == 0; i++) {
        bool set = false;
        config_bool(r, flags[i], &set);
        if (set)
            config_fail(r, -ENOTSUP, "%s.%s = true is not supported", r->arch, flags[i]);
    }
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays && r->rc == 0; i++)
        if (gguf_find(r->g, key_of(r, arrays[i], key)))
            config_fail(r, -ENOTSUP, "%s is not supported", key);
    return r->rc;
}

/* Experts. */

static int bad_key(struct config_reader *r, int rc, const char *name, uint32_t value, const char *expected)
{
    return config_fail(r, rc, "%s.%s is %u, expected %s", r->arch, name, value, expected);
}

/* Checks the choice of experts against the limits of kernels/abi/route.h. */
static int check_experts(struct config_reader *r, const struct model_experts *e)
{
    if (e->n_experts > ROUTE_MAX_EXPERTS)
        return bad_key(r, -ENOTSUP, "expert_count", e->n_experts, "at most 512");
    if (e->gating != ROUTE_SOFTMAX && e->gating != ROUTE_SIGMOID)
        return bad_key(r, -ENOTSUP, "expert_gating_func", e->gating, "1 (softmax), 2 (sigmoid) or 3");
    if (e->n_groups == 0 || e->n_experts % e->n_groups)
        return config_fail(r, -EBADMSG, "%s.expert_group_count is %u, expected a divisor of %u experts",
                           r->arch, e->n_groups, e->n_experts);
    if (e->n_groups_used == 0 || e->n_groups_used > e->n_groups)
        return config_fail(r, -EBADMSG, "%s.expert_group_used_count is %u of %u groups", r->arch,
                           e->n_groups_used, e->n_groups);
    if (e->n_used == 0 || e->n_used > e->n_experts / e->n_groups * e->n_groups_used)
        return config_fail(r, -EBADMSG, "%s.expert_used_count is %u of %u experts that can be chosen",
                           r->arch, e->n_used, e->n_experts / e->n_groups * e->n_groups_used);
    if (e->n_used > ROUTE_MAX_USED)
        return bad_key(r, -ENOTSUP, "expert_used_count", e->n_used, "at most 32");
    if (e->n_ff == 0 || e->n_ff > (1u << 20))
        return bad_key(r, -EBADMSG, "expert_feed_forward_length", e->n_ff, "1 to 1048576");
    if (e->n_ff_shared > (1u << 20))
        return bad_key(r, -EBADMSG, "expert_shared_feed_forward_length", e->n_ff_shared, "at most 1048576");
    if (!isfinite(e->scale) || e->scale <= 0)
        return config_fail(r, -EBADMSG, "%s.expert_weights_scale is %g, expected a positive number", r->arch,
                           (double)e->scale);
    return 0;
}

/* The width of the experts: a number, or an array that has it for each layer, and 0 for dense ones. */
static void read_expert_width(struct config_reader *r, const struct model_config *c, uint32_t *out)
{
    char key[96];
    const struct gguf_value *v = gguf_find(r->g, key_of(r, "expert_feed_forward_length", key));
    if (!v || v->type != GGUF_ARR) {
        config_u32(r, "expert_feed_forward_length", out);
        return;
    }
    for (uint32_t i = 0, first = 0; i < c->n_layers && r->rc == 0; i++) {
        uint32_t width = 0;
        config_layer_u32(r, "expert_feed_forward_length", i, &width);
        if (width && first && width != first)
            config_fail(r, -ENOTSUP, "%s is %u and %u: experts of several widths are not supported", key,
                        first, width);
        first = width ? width : first;
        *out = first;
    }
}

/* A width that no key states follows from others. */
static void read_expert_widths(struct config_reader *r, const struct arch *arch, struct model_config *c)
{
    struct model_experts *e = &c->experts;
    uint32_t n_shared = 0;
    e->n_ff = arch->wide_experts || !e->n_used ? c->n_ff : c->n_ff / e->n_used;
    read_expert_width(r, c, &e->n_ff);
    config_u32(r, "expert_shared_count", &n_shared);
    e->n_ff_shared = n_shared < 64 ? n_shared * e->n_ff : UINT32_MAX;
    config_u32(r, "expert_shared_feed_forward_length", &e->n_ff_shared);
}

static int read_experts(struct config_reader *r, const struct arch *arch, struct model_config *c)
{
    struct model_experts *e = &c->experts;
    config_u32(r, "expert_count", &e->n_experts);
    if (r->rc < 0)
        return r->rc;
    if (e->n_experts && !arch->gating)
        return config_fail(r, -ENOTSUP,
                           "%s.expert_count is %u: experts of this architecture are not supported", r->arch,
                           e->n_experts);
    if (!arch->gating || (arch->may_have_experts && !e->n_experts))
        return 0;
    *e = (struct model_experts){
        .gating = arch->gating, .normalise = arch->normalise, .n_groups = 1, .scale = 1};
    config_need_u32(r, "expert_count", &e->n_experts);
    config_need_u32(r, "expert_used_count", &e->n_used);
    config_u32(r, "leading_dense_block_count", &e->n_dense);
    config_u32(r, "expert_gating_func", &e->gating);
    config_u32(r, "expert_group_count", &e->n_groups);
    e->n_groups_used = e->n_groups;
    config_u32(r, "expert_group_used_count", &e->n_groups_used);
    config_bool(r, "expert_weights_norm", &e->normalise);
    config_f32(r, "expert_weights_scale", &e->scale);
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

/* Attention that sees later tokens too is that of encoders. */
static int read_pooling(struct config_reader *r, struct model_config *c)
{
    bool causal = true;
    config_bool(r, "attention.causal", &causal);
    config_u32(r, "pooling_type", &c->pooling);
    if (r->rc == 0 && !causal)
        config_fail(r, -ENOTSUP, "%s.attention.causal is false: attention to later tokens is not supported",
                    r->arch);
    if (r->rc == 0 && c->pooling >= MODEL_N_POOLS)
        bad_key(r, -ENOTSUP, "pooling_type", c->pooling, "0 (none), 1 (mean), 2 (cls), 3 (last) or 4 (rank)");
    return r->rc;
}

int model_read_config(struct model_config *c, const struct gguf *g, const struct arch *arch,
                      struct error *err)
{
    struct config_reader r = {.g = g, .arch = arch->name, .path = gguf_path(g), .err = err};
    uint32_t n_drafts = 0;
    config_need_u32(&r, "block_count", &c->n_layers);
    config_need_u32(&r, "embedding_length", &c->n_embd);
    config_need_u32(&r, "context_length", &c->n_ctx_train);
    config_f32(&r, "attention.layer_norm_rms_epsilon", &c->norm_eps);
    config_u32(&r, "attention.sliding_window", &c->sliding_window);
    config_u32(&r, "nextn_predict_layers", &n_drafts);
    if (r.rc == 0 && c->n_layers > MODEL_MAX_LAYERS)
        config_fail(&r, -ENOTSUP, "%s.block_count is %u: at most %u layers are supported", r.arch,
                    c->n_layers, MODEL_MAX_LAYERS);
    if (r.rc == 0 && n_drafts >= c->n_layers)
        config_fail(&r, -EBADMSG, "%s.nextn_predict_layers is %u of %u blocks", r.arch, n_drafts,
                    c->n_layers);
    c->n_layers -= n_drafts; /* the last blocks predict further tokens, the model's own needs none of them */
    c->rope = arch->rope;
    int rc = r.rc < 0 ? r.rc : read_heads(&r, arch, c);
    if (rc == 0)
        rc = read_layers(&r, c);
    if (rc == 0)
        rc = read_experts(&r, arch, c);
    if (rc == 0)
        rc = check_sizes(&r, c);
    if (rc == 0)
        rc = read_pooling(&r, c);
    if (rc < 0)
        return rc;
    set_kind(c);
    rc = read_rope(&r, c);
    if (rc == 0 && arch->configure)
        rc = arch->configure(&r, c);
    if (rc == 0)
        rc = check_kinds(&r, c);
    if (rc == 0)
        number_caches(c);
    return rc < 0 ? rc : refuse_unknown_arithmetic(&r, c);
}
