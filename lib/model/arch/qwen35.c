/* qwen35.c - Qwen 3.5, dense: three of four layers are gated delta nets, the fourth has attention whose
 * output is gated; both behind attn_norm. The norm before the feed-forward is called post_attention_norm. Its
 * siblings qwen35moe and qwen3next share this file. */
#include "arch.h"
#include "model/config_reader.h"

#include <errno.h>

/* Checks a number against what the delta net computes (kernels/abi/delta.h). */
static void check(struct config_reader *r, const char *name, uint32_t value, bool good, const char *expected)
{
    if (!good)
        config_fail(r, -ENOTSUP, "%s.%s is %u, expected %s", r->arch, name, value, expected);
}

static void read_shape(struct config_reader *r, struct delta_shape *s)
{
    uint32_t width = 0;
    config_need_u32(r, "ssm.conv_kernel", &s->n_taps);
    config_need_u32(r, "ssm.state_size", &s->key_dim);
    config_need_u32(r, "ssm.group_count", &s->n_key_heads);
    config_need_u32(r, "ssm.time_step_rank", &s->n_value_heads);
    config_need_u32(r, "ssm.inner_size", &width);
    if (r->rc < 0)
        return;
    s->value_dim = width / s->n_value_heads;
    check(r, "ssm.conv_kernel", s->n_taps, s->n_taps >= 2 && s->n_taps <= DELTA_MAX_TAPS, "2 to 8");
    check(r, "ssm.state_size", s->key_dim, s->key_dim % DELTA_COLUMNS == 0 && s->key_dim <= DELTA_MAX_DIM,
          "a multiple of 16 up to 256");
    check(r, "ssm.time_step_rank", s->n_value_heads,
          s->n_value_heads % s->n_key_heads == 0 && s->n_value_heads <= DELTA_MAX_HEADS,
          "a multiple of ssm.group_count up to 256");
    check(r, "ssm.inner_size", width,
          width == s->value_dim * s->n_value_heads && s->value_dim % DELTA_COLUMNS == 0 && s->value_dim &&
              s->value_dim <= DELTA_MAX_DIM,
          "ssm.time_step_rank heads of a multiple of 16 up to 256");
}

int arch_configure_hybrid(struct config_reader *r, struct model_config *c)
{
    uint32_t interval = 4;
    bool recurrent[MODEL_MAX_LAYERS];
    read_shape(r, &c->delta);
    config_u32(r, "full_attention_interval", &interval);
    check(r, "full_attention_interval", interval, interval > 0, "at least 1");
    bool listed = config_layer_bools(r, c, "attention.recurrent_layers", recurrent);
    for (uint32_t i = 0; i < c->n_layers && r->rc == 0; i++)
        c->layers[i].recurrent = listed ? recurrent[i] : (i + 1) % interval != 0;
    c->gated_attention = true;
    return r->rc;
}

static uint32_t mix(struct arch_builder *b, uint32_t x)
{
    uint32_t h = arch_norm(b, x, "attn_norm");
    bool recurrent = model_config(b->m)->layers[b->layer].recurrent;
    uint32_t out = recurrent ? arch_delta_net(b, h) : arch_gated_heads(b, h);
    return arch_add(b, x, out, "attn_residual");
}

static uint32_t feed_forward(struct arch_builder *b, uint32_t x)
{
    uint32_t h = arch_norm(b, x, "post_attention_norm");
    if (model_config(b->m)->experts.n_experts)
        return arch_experts(b, x, h, ARCH_SHARED_GATE);
    return arch_add(b, x, arch_swiglu(b, h, ARCH_NO_BIAS), "ffn_residual");
}

int arch_build_hybrid(const struct model *m, struct graph *g, struct error *err)
{
    struct arch_builder b = {.m = m, .g = g, .err = err};
    uint32_t x = arch_embed(&b);
    for (b.layer = 0; b.layer < model_config(m)->n_layers; b.layer++) {
        x = mix(&b, x);
        x = feed_forward(&b, x);
    }
    return arch_end(&b, x);
}

const struct arch arch_qwen35 = {.name = "qwen35",
                                 .build = arch_build_hybrid,
                                 .rope = MODEL_ROPE_NEOX,
                                 .configure = arch_configure_hybrid};
