/* api_tgi.c - TGI's dialect: POST /generate_stream, POST / and, for bodies with `inputs`, POST /generate. A
 * body {"inputs", "parameters"} is translated into /generate's fields; each event has one token. Where a
 * character takes several tokens its text comes with the last of them, so the texts of all tokens are the
 * text. */
#include "api.h"
#include "api_openai_private.h"
#include "body_members.h"
#include "generation/generation.h"

#include <string.h>

/* --- the body --- */

static const struct body_member members[] = {
    {"max_new_tokens", "max_tokens"},
    {"temperature", "temperature"},
    {"top_k", "top_k"},
    {"top_p", "top_p"},
    {"typical_p", "typical_p"},
    {"repetition_penalty", "repetition_penalty"},
    {"frequency_penalty", "frequency_penalty"},
    {"seed", "seed"},
    {"stop", "stop"},
    {"truncate", "truncate_prompt_tokens"},
    {"top_n_tokens", "logprobs"},
    {"return_full_text", "echo"},
    {"details", "details"},
    {0},
};
static const struct field_name names[] = {
    {"prompt", "inputs"},
    {"max_tokens", "parameters.max_new_tokens"},
    {"temperature", "parameters.temperature"},
    {"top_k", "parameters.top_k"},
    {"top_p", "parameters.top_p"},
    {"typical_p", "parameters.typical_p"},
    {"repetition_penalty", "parameters.repetition_penalty"},
    {"frequency_penalty", "parameters.frequency_penalty"},
    {"seed", "parameters.seed"},
    {"stop", "parameters.stop"},
    {"truncate_prompt_tokens", "parameters.truncate"},
    {"logprobs", "parameters.top_n_tokens"},
    {"echo", "parameters.return_full_text"},
    {"details", "parameters.details"},
    {"regex", "parameters.grammar.value"},
    {"json_schema", "parameters.grammar.value"},
    {0},
};
/* Fields of TGI that Hearth does not support; values that request nothing pass. */
static const char *const refused[] = {"adapter_id", "best_of", "decoder_input_details", "watermark"};

static bool asks(const json_t *value)
{
    return value && !json_is_null(value) && !json_is_false(value) &&
           !(json_is_integer(value) && json_integer_value(value) <= 1);
}

/* {"type": "json" or "json_schema" or "regex", "value"} */
static bool put_grammar(json_t *out, const json_t *grammar, struct api_error *err)
{
    const char *type = json_string_value(json_object_get(grammar, "type"));
    json_t *value = json_object_get(grammar, "value");
    bool regex = type && !strcmp(type, "regex");
    if (!grammar || json_is_null(grammar))
        return true;
    if (!regex && (!type || (strcmp(type, "json") && strcmp(type, "json_schema"))))
        api_invalid(err, "parameters.grammar",
                    "parameters.grammar must have type json, json_schema or regex");
    else if (!value || json_is_null(value)) /* else the text would be free */
        api_invalid(err, "parameters.grammar.value", "parameters.grammar.value is missing");
    return body_put(out, regex ? "regex" : "json_schema", value);
}

/* The likeliest token, unless one of these asks for a drawn one. */
static bool draws(const json_t *parameters)
{
    static const char *const words[] = {"temperature", "top_k", "top_p", "typical_p"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (json_is_number(json_object_get(parameters, words[i])))
            return true;
    return !parameters || json_is_true(json_object_get(parameters, "do_sample"));
}

static json_t *translate_for(const json_t *body, bool streams, struct api_error *err)
{
    static const struct field_shape shapes[] = {{"parameters", SHAPE_OBJECT}, {"stream", SHAPE_BOOL}, {0}};
    const json_t *parameters = json_object_get(body, "parameters");
    if (fields_have_shapes(body, shapes, err) < 0)
        return NULL;
    json_t *out = json_object();
    bool ok = out && body_put(out, "prompt", json_object_get(body, "inputs")) &&
              json_object_set_new(out, "stream", json_boolean(streams)) == 0 &&
              body_copy(out, parameters, members);
    ok = ok && put_grammar(out, json_object_get(parameters, "grammar"), err);
    if (ok && !draws(parameters) && !json_object_get(out, "temperature"))
        ok = json_object_set_new(out, "temperature", json_integer(0)) == 0;
    if (!ok)
        api_out_of_memory(err);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (asks(json_object_get(parameters, refused[i])))
            api_invalid(err, refused[i], "parameters.%s is not supported", refused[i]);
    if (!err->status)
        return out;
    json_decref(out);
    return NULL;
}

static json_t *translate(const json_t *body, struct api_error *err)
{
    return translate_for(body, !json_is_false(json_object_get(body, "stream")), err);
}

static json_t *translate_root(const json_t *body, struct api_error *err)
{
    return translate_for(body, json_is_true(json_object_get(body, "stream")), err);
}

static const struct field fields[] = {
    {.name = "echo", .kind = FIELD_BOOL, .offset = AT(echoes)},
    {.name = "details", .kind = FIELD_BOOL, .offset = AT(include_usage)},
    {0},
};

static void defaults(struct params *p)
{
    p->max_tokens = 1024;
    p->temperature = p->top_p = 1;
    p->top_k = 0;
    p->min_p = 0;
}

/* Every event shows the token's log-probability. */
static int prepare(struct generation *g, struct api_error *err)
{
    struct params *p = &g->p;
    p->has_logprobs = true;
    if (!p->echoes || !p->prompt)
        return 0;
    g->prompts->echo = arena_copy(g->arena, p->prompt, p->prompt_len);
    g->prompts->echo_len = p->prompt_len;
    return g->prompts->echo ? 0 : api_out_of_memory(err);
}

/* --- replies --- */

static const char *finish_of(const struct choice *c)
{
    if (!strcmp(c->finish, "eos"))
        return "eos_token";
    return !strcmp(c->finish, "stop") ? "stop_sequence" : "length";
}

static void put_one(struct buf *out, const struct choice *c, int32_t token, double logprob, const char *text,
                    size_t len)
{
    bool special = tokenizer_piece(c->g->model->tokenizer, token, false).len == 0;
    buf_printf(out, "{\"id\":%d,\"text\":", token);
    json_put_string(out, text, len);
    buf_puts(out, ",\"logprob\":");
    json_put_number(out, logprob, 7);
    buf_printf(out, ",\"special\":%s}", special ? "true" : "false");
}

static void put_token(struct buf *out, const struct choice *c, uint32_t i, const char *text, size_t len)
{
    put_one(out, c, c->e.out[i].token, c->e.out[i].logprob, text, len);
}

/* The likeliest tokens in place of token i. */
static void put_top(struct buf *out, const struct choice *c, uint32_t i)
{
    const struct step_top *top = c->e.top + (size_t)i * c->e.n_top;
    buf_puts(out, "[");
    for (uint32_t k = 0; k < c->e.n_top; k++) {
        struct tokenizer_piece piece = tokenizer_piece(c->g->model->tokenizer, top[k].token, true);
        buf_puts(out, k ? "," : "");
        put_one(out, c, top[k].token, top[k].logprob, piece.s, piece.len);
    }
    buf_puts(out, "]");
}

static void put_whole(struct buf *out, const struct choice *c)
{
    const struct prompt *p = choice_prompt(c);
    buf_puts(out, "\"");
    if (p->echo)
        json_put_chars(out, p->echo, p->echo_len);
    json_put_chars(out, c->text.out.p, c->text.safe);
    buf_puts(out, "\"");
}

static void put_details(struct buf *out, const struct choice *c)
{
    buf_printf(out, "{\"finish_reason\":\"%s\",\"generated_tokens\":%u,\"input_length\":%u,\"seed\":%llu",
               finish_of(c), c->n_tokens, c->e.n_prompt, (unsigned long long)c->e.sampling.seed);
}

static void put_item(struct buf *out, struct reply_list *l)
{
    const struct choice *c = l->of;
    struct tokenizer_piece piece = tokenizer_piece(c->g->model->tokenizer, c->e.out[l->i].token, true);
    put_token(out, c, l->i, piece.s, piece.len);
}

static void put_top_item(struct buf *out, struct reply_list *l)
{
    put_top(out, l->of, l->i);
}

static void reply(struct generation *g, struct buf *out)
{
    const struct choice *c = g->choices;
    buf_puts(out, "{\"generated_text\":");
    put_whole(out, c);
    if (g->p.include_usage) {
        buf_puts(out, ",\"details\":");
        put_details(out, c);
        buf_puts(out, ",\"prefill\":[],\"tokens\":[");
        put_items(c, 0, c->n_tokens, put_item);
        if (c->e.n_top) {
            buf_puts(out, "],\"top_tokens\":[");
            put_items(c, 0, c->n_tokens, put_top_item);
        }
        buf_puts(out, "]}");
    }
    buf_puts(out, "}\n");
}

/* A list of one. */
static void reply_root(struct generation *g, struct buf *out)
{
    buf_puts(out, "[");
    reply(g, out);
    buf_puts(out, "]\n");
}

static void put_event(struct choice *c, struct buf *out, uint32_t i, const char *text, size_t len, bool last)
{
    buf_printf(out, "data: {\"index\":%u,\"token\":", i + 1);
    put_token(out, c, i, text, len);
    if (c->e.n_top) {
        buf_puts(out, ",\"top_tokens\":");
        put_top(out, c, i);
    }
    buf_puts(out, ",\"generated_text\":");
    if (last)
        put_whole(out, c);
    else
        buf_puts(out, "null");
    buf_puts(out, ",\"details\":");
    if (last)
        put_details(out, c);
    buf_puts(out, last ? "}}\n\n" : "null}\n\n");
}

static void delta(struct choice *c, struct buf *out, const struct piece *piece)
{
    for (uint32_t i = piece->from; i < piece->to; i++)
        put_event(c, out, i, piece->text, i + 1 == piece->to ? piece->len : 0, false);
}

/* The last event has a token too: the last one again, without a text, where none is left. */
static void end(struct choice *c, struct buf *out, const struct piece *piece)
{
    struct piece before = *piece;
    if (piece->to > piece->from) {
        before.to--;
        before.len = 0;
        delta(c, out, &before);
    }
    if (c->n_tokens)
        put_event(c, out, c->n_tokens - 1, piece->text, piece->len, true);
}

static void last(struct generation *g, struct buf *out)
{
    (void)g;
    (void)out;
}

void api_tgi_put_error(struct buf *out, const struct api_error *e)
{
    buf_puts(out, "{\"error\":");
    json_put_str(out, e->message);
    buf_puts(out, ",\"error_type\":");
    json_put_str(out, e->type);
    buf_puts(out, "}\n");
}

#define COMMON                                                                                               \
    .id_prefix = "gen-", .own_fields = fields, .defaults = defaults, .prepare = prepare, .delta = delta,     \
    .end = end, .last = last, .clamps = true

const struct dialect dialect_tgi = {COMMON, .translate = translate, .names = names, .reply = reply,
                                    .streams = true};
const struct dialect dialect_tgi_root = {COMMON, .translate = translate_root, .names = names,
                                         .reply = reply_root};
const struct dialect dialect_tgi_generate = {COMMON, .translate = translate_root, .names = names,
                                             .reply = reply, .put_error = api_tgi_put_error};
