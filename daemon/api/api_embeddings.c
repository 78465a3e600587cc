/* api_embeddings.c - vectors of texts: POST /v1/embeddings (OpenAI), /api/embed and /api/embeddings (Ollama),
 * /embedding and /embeddings (llama-server), /embed (TEI).
 * The engine pools the hidden states behind the last norm, as the model's file says; here a vector gets its
 * length, 1, and its form. Sums of squares are made in double, in the order of the values, so equal texts
 * have equal vectors, bit for bit. */
#include "api.h"
#include "api_chat.h"
#include "api_openai_private.h"
#include "base/base64.h"
#include "generation/generation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- fields --- */

static int read_encoding(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    const char *given = json_string_value(value);
    p->embed.base64 = given && !strcmp(given, "base64");
    if (p->embed.base64 || (given && !strcmp(given, "float")))
        return 0;
    return api_invalid(r->err, f->name, "encoding_format must be \"float\" or \"base64\" (got %s)",
                       field_got_word(value));
}

static int read_normalize(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    if (!json_is_boolean(value))
        return api_invalid(r->err, f->name, "%s must be true or false (got %s)", f->name, field_got(value));
    p->embed.as_sums = json_is_false(value);
    return 0;
}

/* llama-server's: -1 none, 2 the Euclidean length; its other norms are not offered. */
static int read_norm(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    int64_t norm;
    if (field_integer(r, f->name, value, -1, 2, &norm) < 0)
        return -1;
    if (norm != -1 && norm != 2)
        return api_invalid(r->err, f->name, "embd_normalize must be -1 (none) or 2 (Euclidean) (got %lld)",
                           (long long)norm);
    p->embed.as_sums = norm == -1;
    return 0;
}

#define EMBED_FIELDS                                                                                         \
    {.name = "timeout_ms",                                                                                   \
     .kind = FIELD_U32,                                                                                      \
     .offset = AT(timeout_ms),                                                                               \
     .max = GENERATE_MAX_MS,                                                                                 \
     .given = AT(has_timeout_ms)},                                                                           \
        {.name = "queue_timeout_ms",                                                                         \
         .kind = FIELD_U32,                                                                                  \
         .offset = AT(queue_timeout_ms),                                                                     \
         .max = GENERATE_MAX_MS,                                                                             \
         .given = AT(has_queue_timeout_ms)},                                                                 \
        {.name = "priority", .kind = FIELD_I32, .offset = AT(priority), .min = -100, .max = 100},            \
        {.name = "add_special", .kind = FIELD_BOOL, .offset = AT(add_special)},                              \
        {.name = "truncate_prompt_tokens", .kind = FIELD_CUSTOM, .read = read_truncation},                   \
    {                                                                                                        \
        .name = "cache_prompt", .kind = FIELD_BOOL, .offset = AT(cache_prompt)                               \
    }
#define PROMPTS(n)                                                                                           \
    {                                                                                                        \
        .name = n, .kind = FIELD_CUSTOM, .read = read_prompt                                                 \
    }
#define DIMENSIONS                                                                                           \
    {                                                                                                        \
        .name = "dimensions", .kind = FIELD_U32, .offset = AT(embed.dimensions), .min = 1, .max = 1u << 22   \
    }

static const struct field openai_fields[] = {
    PROMPTS("input"),
    {.name = "model", .kind = FIELD_CUSTOM, .read = read_model_name},
    {.name = "encoding_format", .kind = FIELD_CUSTOM, .read = read_encoding},
    DIMENSIONS,
    IGNORED("user"),
    EMBED_FIELDS,
    {0},
};
static const struct field ollama_fields[] = {
    PROMPTS("input"),
    {.name = "model", .kind = FIELD_CUSTOM, .read = read_model_name},
    {.name = "truncate", .kind = FIELD_BOOL, .offset = AT(embed.truncates)},
    DIMENSIONS,
    IGNORED("options"),
    IGNORED("keep_alive"),
    EMBED_FIELDS,
    {0},
};
static const struct field ollama_old_fields[] = {
    PROMPTS("prompt"),  {.name = "model", .kind = FIELD_CUSTOM, .read = read_model_name},
    IGNORED("options"), IGNORED("keep_alive"),
    EMBED_FIELDS,       {0},
};
static const struct field llama_fields[] = {
    PROMPTS("content"),
    PROMPTS("input"), /* its other name */
    {.name = "model", .kind = FIELD_CUSTOM, .read = read_model_name},
    {.name = "embd_normalize", .kind = FIELD_CUSTOM, .read = read_norm},
    {.name = "encoding_format", .kind = FIELD_CUSTOM, .read = read_encoding},
    EMBED_FIELDS,
    {0},
};
static const struct field tei_fields[] = {
    PROMPTS("inputs"),
    {.name = "model", .kind = FIELD_CUSTOM, .read = read_model_name},
    {.name = "normalize", .kind = FIELD_CUSTOM, .read = read_normalize},
    {.name = "truncate", .kind = FIELD_BOOL, .offset = AT(embed.truncates)},
    DIMENSIONS,
    EMBED_FIELDS,
    {0},
};

static void truncating_defaults(struct params *p)
{
    p->embed.truncates = true;
}

static void old_defaults(struct params *p)
{
    p->embed.truncates = p->embed.as_sums = true; /* as its server had it */
}

/* Dimensions beyond the model's cannot be had; fewer are the first ones, which models trained for it
 * (Matryoshka) have. */
static int prepare(struct generation *g, struct api_error *err)
{
    uint32_t n = engine_n_embedding(g->model->engine);
    if (!n)
        return api_fail(
            err, 501, "not_supported", NULL,
            "vectors need the cpu backend with executor = persistent: others keep no hidden states");
    if (g->model->pooling == ENGINE_POOL_NONE)
        return api_fail(err, 501, "not_supported", NULL,
                        "the model ranks texts (pooling_type is rank): it has no vectors");
    if (g->p.embed.dimensions > n)
        return api_invalid(err, "dimensions", "dimensions must be at most %u, the model's (got %u)", n,
                           g->p.embed.dimensions);
    return 0;
}

/* --- a vector --- */

static uint32_t n_values(const struct generation *g)
{
    return g->p.embed.dimensions ? g->p.embed.dimensions : engine_n_embedding(g->model->engine);
}

/* The divisor of its values: 1, or the length of the first n of them. */
static double divisor(const struct choice *c, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)c->e.embedding[i] * (double)c->e.embedding[i];
    return c->g->p.embed.as_sums || sum <= 0 ? 1 : sqrt(sum);
}

static float value_at(const struct choice *c, uint32_t i, double by)
{
    return (float)((double)c->e.embedding[i] / by);
}

static void put_floats(struct buf *out, const struct choice *c, uint32_t n)
{
    double by = divisor(c, n);
    for (uint32_t i = 0; i < n; i++) {
        buf_puts(out, i ? "," : "[");
        json_put_number(out, (double)value_at(c, i, by), 9); /* as many digits as tell floats apart */
    }
    buf_puts(out, "]");
}

/* Little-endian floats, as the host has them. */
static void put_base64(struct buf *out, const struct choice *c, uint32_t n)
{
    double by = divisor(c, n);
    float *values = malloc(n * sizeof *values);
    for (uint32_t i = 0; values && i < n; i++)
        values[i] = value_at(c, i, by);
    buf_puts(out, "\"");
    if (values)
        buf_put_base64(out, values, n * sizeof *values);
    buf_puts(out, "\"");
    out->failed |= !values;
    free(values);
}

static void put_vector(struct buf *out, struct reply_list *l)
{
    const struct generation *g = l->of;
    const struct choice *c = &g->choices[l->i];
    (g->p.embed.base64 ? put_base64 : put_floats)(out, c, n_values(g));
}

static void put_vectors(struct generation *g, struct buf *out, const char *open,
                        void (*put)(struct buf *out, struct reply_list *l), const char *close)
{
    struct reply_list list = {.to = g->n_choices, .between = ",", .put = put, .of = g};
    buf_puts(out, open);
    request_put_list(g->request, list, g->later);
    buf_puts(out, close);
}

/* --- replies --- */

static void put_openai_item(struct buf *out, struct reply_list *l)
{
    buf_printf(out, "{\"object\":\"embedding\",\"index\":%u,\"embedding\":", l->i);
    put_vector(out, l);
    buf_puts(out, "}");
}

static void openai_reply(struct generation *g, struct buf *out)
{
    uint32_t n = generation_n_prompt(g);
    buf_printf(out,
               "{\"object\":\"list\",\"id\":\"%s\",\"model\":", g->id); /* Mistral's client asks for it */
    chat_put_model(out, g);
    put_vectors(g, out, ",\"data\":[", put_openai_item, "]");
    buf_printf(out, ",\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u}}\n", n, n);
}

static void ollama_reply(struct generation *g, struct buf *out)
{
    struct timings t;
    generation_timings(g, &t);
    buf_puts(out, "{\"model\":");
    chat_put_model(out, g);
    put_vectors(g, out, ",\"embeddings\":[", put_vector, "]");
    buf_printf(out, ",\"total_duration\":%llu,\"load_duration\":0,\"prompt_eval_count\":%u}\n",
               (unsigned long long)((t.queue_ms + t.prefill_ms) * 1e6), generation_n_prompt(g));
}

static void ollama_old_reply(struct generation *g, struct buf *out)
{
    put_vectors(g, out, "{\"embedding\":", put_vector, "}\n");
}

static void put_llama_item(struct buf *out, struct reply_list *l)
{
    const struct generation *g = l->of;
    buf_printf(out, "{\"index\":%u,\"embedding\":%s", l->i, g->p.embed.base64 ? "" : "[");
    put_vector(out, l);
    buf_puts(out, g->p.embed.base64 ? "}" : "]}");
}

static void llama_reply(struct generation *g, struct buf *out)
{
    put_vectors(g, out, "[", put_llama_item, "]\n");
}

static void tei_reply(struct generation *g, struct buf *out)
{
    put_vectors(g, out, "[", put_vector, "]\n");
}

const struct dialect dialect_embeddings = {.id_prefix = "embd-",
                                           .embeds = true,
                                           .prompts = "input",
                                           .fields = openai_fields,
                                           .prepare = prepare,
                                           .reply = openai_reply};
const struct dialect dialect_ollama_embed = {.id_prefix = "embd-",
                                             .embeds = true,
                                             .prompts = "input",
                                             .fields = ollama_fields,
                                             .defaults = truncating_defaults,
                                             .prepare = prepare,
                                             .reply = ollama_reply};
const struct dialect dialect_ollama_embeddings = {.id_prefix = "embd-",
                                                  .embeds = true,
                                                  .fields = ollama_old_fields,
                                                  .defaults = old_defaults,
                                                  .prepare = prepare,
                                                  .reply = ollama_old_reply};
const struct dialect dialect_llama_embedding = {.id_prefix = "embd-",
                                                .embeds = true,
                                                .prompts = "content",
                                                .fields = llama_fields,
                                                .prepare = prepare,
                                                .reply = llama_reply};
const struct dialect dialect_tei_embed = {.id_prefix = "embd-",
                                          .embeds = true,
                                          .prompts = "inputs",
                                          .fields = tei_fields,
                                          .prepare = prepare,
                                          .reply = tei_reply};
