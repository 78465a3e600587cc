/* api_generate.c - POST /generate: its fields, which every other dialect knows too, and its replies. */
#include "api.h"
#include "generation/generation.h"
#include "model/model.h"
#include "base/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(field) offsetof(struct params, field)
#define NUMBER(f, lo, hi)                                                                                    \
    {                                                                                                        \
        .name = #f, .kind = FIELD_FLOAT, .offset = AT(f), .min = lo, .max = hi                               \
    }
#define COUNT(f, lo, hi)                                                                                     \
    {                                                                                                        \
        .name = #f, .kind = FIELD_U32, .offset = AT(f), .min = lo, .max = hi                                 \
    }
#define FLAG(f)                                                                                              \
    {                                                                                                        \
        .name = #f, .kind = FIELD_BOOL, .offset = AT(f)                                                      \
    }
#define CUSTOM(f, reader)                                                                                    \
    {                                                                                                        \
        .name = #f, .kind = FIELD_CUSTOM, .offset = AT(f), .read = reader                                    \
    }
#define MAX_TOKENS 2147483647u /* the context is checked with the prompt */

static uint32_t n_vocab(const struct field_reader *r)
{
    const struct server_model *m = r->context;
    return tokenizer_n_vocab(m->tokenizer);
}

/* --- readers --- */

static int read_ids(struct field_reader *r, const char *name, const json_t *array, int32_t **out, size_t *n)
{
    size_t count = json_array_size(array);
    int32_t *ids = arena_array(r->arena, count, sizeof *ids);
    if (!ids)
        return api_out_of_memory(r->err);
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(array, i);
        char place[64] = "";
        int64_t id = json_is_integer(item) ? json_integer_value(item) : -1;
        if (id < 0 || id >= (int64_t)n_vocab(r)) { /* words are made only where they are needed */
            snprintf(place, sizeof place, "%s[%zu]", name, i);
            if (field_integer(r, place, item, 0, n_vocab(r) - 1.0, &id) < 0)
                return -1;
        }
        ids[i] = (int32_t)id;
    }
    *out = ids;
    *n = count;
    return 0;
}

/* One of several prompts. */
static int read_one(struct field_reader *r, const char *name, const json_t *value, struct prompt_given *out)
{
    if (json_is_array(value))
        return read_ids(r, name, value, &out->ids, &out->n_ids);
    if (!json_is_string(value))
        return api_invalid(r->err, name, "%s must be a string or an array of token ids (got %s)", name,
                           field_got(value));
    out->text = json_string_value(value);
    out->len = json_string_length(value);
    return 0;
}

static int read_prompts(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    size_t n = json_array_size(value);
    char name[64];
    p->several = arena_zalloc(r->arena, n * sizeof *p->several);
    if (!p->several)
        return api_out_of_memory(r->err);
    for (p->n_several = 0; p->n_several < n; p->n_several++) {
        snprintf(name, sizeof name, "%s[%zu]", f->name, p->n_several);
        if (read_one(r, name, json_array_get(value, p->n_several), &p->several[p->n_several]) < 0)
            return -1;
    }
    return 0;
}

/* A list of one prompt is that prompt. */
static int read_only(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    struct prompt_given given = {0};
    if (read_one(r, f->name, value, &given) < 0)
        return -1;
    p->prompt = given.text;
    p->prompt_len = given.len;
    p->ids = given.ids;
    p->n_ids = given.n_ids;
    return 0;
}

int read_prompt(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    p->has_prompt = true;
    if (json_is_string(value)) {
        p->prompt = json_string_value(value);
        p->prompt_len = json_string_length(value);
        return 0;
    }
    if (!json_is_array(value))
        return api_invalid(r->err, f->name, "%s must be a string or an array of token ids (got %s)", f->name,
                           field_got(value));
    const json_t *first = json_array_get(value, 0);
    if (json_is_string(first) || json_is_array(first))
        return json_array_size(value) > 1 ? read_prompts(r, f, value) : read_only(r, f, first);
    return read_ids(r, f->name, value, &p->ids, &p->n_ids);
}

static int add_stop(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    size_t len = json_string_length(value);
    if (!json_is_string(value))
        return api_invalid(r->err, f->name, "%s must be a string or an array of strings (got %s)", f->name,
                           field_got(value));
    if (!len)
        return api_invalid(r->err, f->name, "%s must not contain an empty string", f->name);
    if (len > GENERATE_MAX_STOP)
        return api_invalid(r->err, f->name, "%s may contain strings of at most %d bytes (got one of %zu)",
                           f->name, GENERATE_MAX_STOP, len);
    struct text_stop *stop = &p->stops[p->n_stops];
    stop->s = arena_copy(r->arena, json_string_value(value), len);
    stop->len = (uint32_t)len;
    if (!stop->s)
        return api_out_of_memory(r->err);
    p->n_stops++;
    return 0;
}

static int read_stop(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    if (n > GENERATE_MAX_STOPS)
        return api_invalid(r->err, f->name, "%s may have at most %d strings (got %zu)", f->name,
                           GENERATE_MAX_STOPS, n);
    p->stops = arena_array(r->arena, n, sizeof *p->stops);
    if (!p->stops)
        return api_out_of_memory(r->err);
    if (!json_is_array(value))
        return add_stop(r, f, value);
    for (size_t i = 0; i < n; i++)
        if (add_stop(r, f, json_array_get(value, i)) < 0)
            return -1;
    return 0;
}

static int read_stop_ids(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    size_t n = 0;
    if (!json_is_array(value))
        return api_invalid(r->err, f->name, "%s must be an array of token ids (got %s)", f->name,
                           field_got(value));
    if (json_array_size(value) > GENERATE_MAX_STOP_IDS)
        return api_invalid(r->err, f->name, "%s may have at most %d ids (got %zu)", f->name,
                           GENERATE_MAX_STOP_IDS, json_array_size(value));
    int rc = read_ids(r, f->name, value, &p->stop_ids, &n);
    p->n_stop_ids = (uint32_t)n;
    return rc;
}

static int add_bias(struct field_reader *r, const struct field *f, const char *key, const json_t *value)
{
    struct params *p = r->out;
    char *end;
    long id = strtol(key, &end, 10);
    /* "011" would be a second name of 11, which a check for duplicates does not see. */
    bool canonical = *key && !*end && strspn(key, "0123456789") == strlen(key) && (key[0] != '0' || !key[1]);
    if (!canonical || id < 0 || id >= (long)n_vocab(r))
        return api_invalid(r->err, f->name, "logit_bias: \"%.20s\" is not a token id between 0 and %u", key,
                           n_vocab(r) - 1);
    double bias = json_is_number(value) ? json_number_value(value) : NAN;
    if (!(bias >= -100 && bias <= 100))
        return api_invalid(r->err, f->name, "logit_bias[%ld] must be a number between -100 and 100 (got %s)",
                           id, field_got(value));
    p->biases[p->n_biases++] = (struct step_bias){.token = (int32_t)id, .bias = (float)bias};
    return 0;
}

static int read_bias(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    const char *key;
    json_t *item;
    if (!json_is_object(value))
        return api_invalid(r->err, f->name, "logit_bias must be an object of token id to bias (got %s)",
                           field_got(value));
    size_t n = json_object_size(value);
    if (n > STEP_MAX_BIAS)
        return api_invalid(r->err, f->name, "logit_bias may have at most %d entries (got %zu)", STEP_MAX_BIAS,
                           n);
    p->biases = arena_array(r->arena, n, sizeof *p->biases);
    if (!p->biases)
        return api_out_of_memory(r->err);
    json_object_foreach((json_t *)value, key, item)
    {
        if (add_bias(r, f, key, item) < 0)
            return -1;
    }
    return 0;
}

/* A prompt over the context is refused with the prompt's length, when that is known. */
int read_max_tokens(struct field_reader *r, const struct field *f, const json_t *value)
{
    const struct server_model *m = r->context;
    struct params *p = r->out;
    double given = json_is_number(value) ? json_number_value(value) : 0;
    double max = given < 0 || given > MAX_TOKENS ? m->n_ctx : MAX_TOKENS;
    int64_t n;
    if (field_integer(r, f->name, value, 0, max, &n) < 0)
        return -1;
    if (p->has_max_tokens && p->max_tokens != n)
        return api_invalid(
            r->err, f->name,
            "max_tokens and max_completion_tokens are the same field, but %u and %lld are given",
            p->max_tokens, (long long)n);
    p->max_tokens = (uint32_t)n;
    p->has_max_tokens = true;
    return 0;
}

int read_truncation(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    int64_t n;
    if (field_integer(r, f->name, value, -1, MAX_TOKENS, &n) < 0)
        return -1;
    if (n == 0)
        return api_invalid(r->err, f->name, "%s must be -1 or at least 1 (got 0)", f->name);
    p->truncate_prompt_tokens = (int32_t)n;
    return 0;
}

static int read_logprobs(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    int64_t n;
    if (field_integer(r, f->name, value, 0, STEP_MAX_TOP, &n) < 0)
        return -1;
    p->logprobs = (uint32_t)n;
    p->has_logprobs = n > 0;
    return 0;
}

/* With several models, generation_model.c has looked at it before. */
int read_model_name(struct field_reader *r, const struct field *f, const json_t *value)
{
    if (json_is_string(value))
        return 0;
    return api_invalid(r->err, f->name, "%s must be a string (got %s)", f->name, field_got(value));
}

const struct field generate_fields[] = {
    {.name = "model", .kind = FIELD_CUSTOM, .read = read_model_name},
    CUSTOM(prompt, read_prompt),
    {.name = "max_tokens", .kind = FIELD_CUSTOM, .read = read_max_tokens},
    NUMBER(temperature, 0, 2),
    COUNT(top_k, 0, 2147483647),
    NUMBER(top_p, 0, 1),
    NUMBER(min_p, 0, 1),
    NUMBER(typical_p, 0, 1),
    NUMBER(repetition_penalty, 0.01, 10),
    NUMBER(presence_penalty, -2, 2),
    NUMBER(frequency_penalty, -2, 2),
    COUNT(penalty_last_n, 0, STEP_MAX_HISTORY),
    {.name = "seed", .kind = FIELD_U64, .offset = AT(seed), .max = 9007199254740991.0, .given = AT(has_seed)},
    {.name = "stop", .kind = FIELD_CUSTOM, .read = read_stop},
    {.name = "stop_token_ids", .kind = FIELD_CUSTOM, .read = read_stop_ids},
    FLAG(include_stop_str_in_output),
    FLAG(ignore_eos),
    COUNT(min_tokens, 0, MAX_TOKENS),
    {.name = "logit_bias", .kind = FIELD_CUSTOM, .read = read_bias},
    CUSTOM(logprobs, read_logprobs),
    COUNT(prompt_logprobs, 0, STEP_MAX_TOP),
    COUNT(n, 1, GENERATE_MAX_CHOICES),
    FLAG(stream),
    CUSTOM(truncate_prompt_tokens, read_truncation),
    FLAG(add_special),
    FLAG(parse_special),
    FLAG(cache_prompt),
    {.name = "timeout_ms",
     .kind = FIELD_U32,
     .offset = AT(timeout_ms),
     .max = GENERATE_MAX_MS,
     .given = AT(has_timeout_ms)},
    {.name = "queue_timeout_ms",
     .kind = FIELD_U32,
     .offset = AT(queue_timeout_ms),
     .max = GENERATE_MAX_MS,
     .given = AT(has_queue_timeout_ms)},
    {.name = "priority", .kind = FIELD_I32, .offset = AT(priority), .min = -100, .max = 100},
    {0},
};

/* --- log-probabilities --- */

/* "text":"..." of one token, and "bytes":[...] when it is not valid UTF-8 by itself. */
static void put_token_text(struct buf *out, const struct tokenizer *t, int32_t token, const char *name)
{
    struct tokenizer_piece piece = tokenizer_piece(t, token, true);
    bool whole = utf8_valid(piece.s, piece.len) == piece.len;
    buf_printf(out, "\"%s\":", name);
    json_put_string(out, piece.s, whole ? piece.len : 0);
    if (whole)
        return;
    buf_puts(out, ",\"bytes\":[");
    for (uint32_t i = 0; i < piece.len; i++)
        buf_printf(out, "%s%u", i ? "," : "", (unsigned char)piece.s[i]);
    buf_puts(out, "]");
}

static void put_one(struct buf *out, const struct tokenizer *t, int32_t token, double logprob)
{
    buf_printf(out, "{\"id\":%d,", token);
    put_token_text(out, t, token, "text");
    buf_puts(out, ",\"logprob\":");
    json_put_number(out, logprob, 7);
}

static void put_entry(struct buf *out, const struct tokenizer *t, const struct engine_token *token,
                      const struct step_top *top, uint32_t n_top)
{
    put_one(out, t, token->token, token->logprob);
    buf_puts(out, ",\"top\":[");
    for (uint32_t i = 0; i < n_top; i++) {
        if (i)
            buf_puts(out, ",");
        put_one(out, t, top[i].token, top[i].logprob);
        buf_puts(out, "}");
    }
    buf_puts(out, "]}");
}

static void put_logprob(struct buf *out, struct reply_list *l)
{
    const struct choice *c = l->of;
    const struct engine_request *e = &c->e;
    put_entry(out, c->g->model->tokenizer, &e->out[l->i], e->top + (size_t)l->i * e->n_top, e->n_top);
}

/* {"id":..,"text":..,"logprob":..,"top":[..]} of each token. */
static void put_logprobs(const struct choice *c, struct buf *out, uint32_t from, uint32_t to)
{
    buf_puts(out, "[");
    put_items(c, from, to, put_logprob);
    buf_puts(out, "]");
}

static void put_prompt_logprob(struct buf *out, struct reply_list *l)
{
    const struct generation *g = l->of;
    const struct engine_request *e = &g->choices->e;
    struct engine_token token = {.token = e->prompt[l->i], .logprob = e->prompt_out[l->i].logprob};
    put_entry(out, g->model->tokenizer, &token, e->prompt_top + (size_t)l->i * e->n_prompt_top,
              g->p.prompt_logprobs);
}

void put_prompt_logprobs(struct generation *g, struct buf *out)
{
    struct reply_list list = {.i = 1,
                              .to = g->choices->e.n_prompt,
                              .between = ",",
                              .begun = true,
                              .put = put_prompt_logprob,
                              .of = g};
    buf_puts(out, "[null");
    request_put_list(g->request, list, g->later);
    buf_puts(out, "]");
}

/* --- replies --- */

static void put_id(struct buf *out, struct reply_list *l)
{
    const struct choice *c = l->of;
    json_put_int(out, c->e.out[l->i].token);
}

static void put_tokens(struct buf *out, const struct choice *c, uint32_t from, uint32_t to)
{
    buf_puts(out, ",\"tokens\":[");
    put_items(c, from, to, put_id);
    buf_puts(out, "]");
}

/* "text", "tokens" and, when asked, "logprobs"; before them "index", when there is more than one. */
static void put_piece(const struct choice *c, struct buf *out, const struct piece *piece)
{
    if (c->g->n_choices > 1)
        buf_printf(out, "\"index\":%u,", c->index);
    buf_puts(out, "\"text\":");
    put_piece_text(c, piece);
    put_tokens(out, c, piece->from, piece->to);
    if (c->g->p.has_logprobs) {
        buf_puts(out, ",\"logprobs\":");
        put_logprobs(c, out, piece->from, piece->to);
    }
}

/* Why this text ended, and the seed that gives it again. */
static void put_finish(const struct choice *c, struct buf *out)
{
    buf_puts(out, ",\"finish_reason\":");
    json_put_str(out, c->finish);
    buf_puts(out, ",\"stop\":");
    json_put_str(out, c->text.matched ? c->text.matched->s : NULL);
    buf_printf(out, ",\"seed\":%llu", (unsigned long long)c->e.sampling.seed);
}

static void put_ms(struct buf *out, const char *name, double v, const char *after)
{
    buf_printf(out, "\"%s\":", name);
    json_put_ms(out, v);
    buf_puts(out, after);
}

static void put_timings(struct buf *out, const struct generation *g)
{
    struct timings t;
    generation_timings(g, &t);
    buf_puts(out, ",\"timings\":{");
    put_ms(out, "queue_ms", t.queue_ms, ",");
    put_ms(out, "prefill_ms", t.prefill_ms, ",");
    put_ms(out, "ttft_ms", t.ttft_ms, ",");
    put_ms(out, "decode_ms", t.decode_ms, ",");
    put_ms(out, "prompt_tokens_per_s", t.prompt_tokens_per_s, ",");
    put_ms(out, "tokens_per_s", t.tokens_per_s, "}");
}

/* Writes what concerns all choices. */
static void put_end(struct generation *g, struct buf *out)
{
    const struct engine_request *e = &g->choices->e;
    buf_printf(out, ",\"system_fingerprint\":\"%s\"", g->model->fingerprint);
    buf_printf(out, ",\"usage\":{\"prompt_tokens\":%u,\"cached_tokens\":%u,\"completion_tokens\":%u}",
               generation_n_prompt(g), generation_n_cached(g), generation_n_tokens(g));
    put_timings(out, g);
    if (e->want_prompt_logprobs) {
        buf_puts(out, ",\"prompt_logprobs\":");
        put_prompt_logprobs(g, out);
    }
}

static void put_head(struct generation *g, struct buf *out)
{
    buf_printf(out, "{\"id\":\"%s\",\"model\":", g->id);
    json_put_str(out, g->model->name);
}

static void put_whole(const struct choice *c, struct buf *out)
{
    struct piece whole = choice_whole(c);
    put_piece(c, out, &whole);
    put_finish(c, out);
}

static void reply(struct generation *g, struct buf *out)
{
    put_head(g, out);
    buf_puts(out, ",");
    if (g->n_choices == 1) {
        put_whole(g->choices, out);
    } else {
        buf_puts(out, "\"choices\":[");
        for (uint32_t i = 0; i < g->n_choices; i++) {
            buf_puts(out, i ? ",{" : "{");
            put_whole(&g->choices[i], out);
            buf_puts(out, "}");
        }
        buf_printf(out, "],\"seed\":%llu", (unsigned long long)g->p.seed);
    }
    put_end(g, out);
    buf_puts(out, "}\n");
}

static void delta(struct choice *c, struct buf *out, const struct piece *piece)
{
    buf_puts(out, "data: {");
    put_piece(c, out, piece);
    buf_puts(out, "}\n\n");
}

/* The only choice's end is the end of all. */
static void end(struct choice *c, struct buf *out, const struct piece *piece)
{
    bool only = c->g->n_choices == 1;
    buf_puts(out, "data: ");
    if (only)
        put_head(c->g, out);
    buf_puts(out, only ? "," : "{");
    put_piece(c, out, piece);
    put_finish(c, out);
    if (only)
        put_end(c->g, out);
    buf_puts(out, "}\n\n");
}

static void last(struct generation *g, struct buf *out)
{
    if (g->n_choices > 1) {
        buf_puts(out, "data: ");
        put_head(g, out);
        buf_printf(out, ",\"seed\":%llu", (unsigned long long)g->p.seed);
        put_end(g, out);
        buf_puts(out, "}\n\n");
    }
    buf_puts(out, "data: [DONE]\n\n");
}

static const struct dialect_of_body others[] = {
    {"inputs", &dialect_tgi_generate},
    {"text", &dialect_sglang},
    {"input_ids", &dialect_sglang},
    {0},
};

const struct dialect dialect_generate = {
    .id_prefix = "gen-", .others = others, .reply = reply, .delta = delta, .end = end, .last = last};

void api_generate(struct request *r)
{
    if (generator_admits(r->server->generator, &r->error) < 0)
        request_fail(r, &r->error);
    else
        generation_open(r, r->route->dialect);
}
