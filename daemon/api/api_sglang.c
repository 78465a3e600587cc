/* api_sglang.c - SGLang's dialect of POST /generate: a body with `text` or `input_ids` in place of `prompt`,
 * and `sampling_params`, is translated into /generate's fields. Of its own members those that are not known
 * pass, as there; of sampling_params they are refused, as there. Each event has the text from its beginning,
 * and the ids and log-probabilities of the tokens that are new in it. */
#include "api_openai_private.h"
#include "body_members.h"
#include "generation/generation.h"

#include <stdio.h>
#include <string.h>

/* --- the body --- */

static const struct body_member members[] = {
    {"max_new_tokens", "max_tokens"},
    {"min_new_tokens", "min_tokens"},
    {"top_k", "top_k", NEGATIVE_OFF},
    {"sampling_seed", "seed"},
    {"max_thinking_tokens", "thinking_budget", NEGATIVE_NOTHING},
    {"no_stop_trim", "include_stop_str_in_output"},
};
static const struct field_name names[] = {
    {"prompt", "text"},
    {"prompt", "input_ids"},
    {"logprobs", "top_logprobs_num"},
    {"max_tokens", "sampling_params.max_new_tokens"},
    {"min_tokens", "sampling_params.min_new_tokens"},
    {"seed", "sampling_params.sampling_seed"},
    {"temperature", "sampling_params.temperature"},
    {"top_p", "sampling_params.top_p"},
    {"top_k", "sampling_params.top_k"},
    {"min_p", "sampling_params.min_p"},
    {"frequency_penalty", "sampling_params.frequency_penalty"},
    {"presence_penalty", "sampling_params.presence_penalty"},
    {"repetition_penalty", "sampling_params.repetition_penalty"},
    {"stop", "sampling_params.stop"},
    {"stop_token_ids", "sampling_params.stop_token_ids"},
    {"ignore_eos", "sampling_params.ignore_eos"},
    {"logit_bias", "sampling_params.logit_bias"},
    {"n", "sampling_params.n"},
    {"json_schema", "sampling_params.json_schema"},
    {"regex", "sampling_params.regex"},
    {"ebnf", "sampling_params.ebnf"},
    {"thinking_budget", "max_thinking_tokens"},
    {"include_stop_str_in_output", "sampling_params.no_stop_trim"},
    {0},
};
/* Where they ask for something. */
static const char *const refused[] = {
    "input_embeds", "image_data",        "audio_data",           "video_data", "session_id", "session_params",
    "lora_path",    "token_ids_logprob", "return_hidden_states", "background", "cache_salt", "extra_key"};
static const char *const refused_params[] = {"stop_regex", "structural_tag", "custom_params"};
/* Without effect on the text. */
static const char *const labels[] = {"spaces_between_special_tokens", "stream_interval"};

static bool has(const char *const *list, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(list[i], name))
            return true;
    return false;
}
#define HAS(list, name) has(list, sizeof list / sizeof *list, name)

static bool asks(const json_t *value)
{
    return json_is_true(value) || json_is_number(value) || json_string_length(value) ||
           json_array_size(value) || json_object_size(value);
}

/* One of sampling_params; what /generate has under the same name is read by its rows, which refuse others. */
static bool put_param(json_t *out, const char *name, json_t *value, struct api_error *err)
{
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if (!strcmp(members[i].there, name))
            return body_put_member(out, &members[i], value);
    bool hides = !strcmp(name, "skip_special_tokens");
    if (HAS(refused_params, name) ? asks(value) : hides && json_is_false(value)) {
        char path[64];
        snprintf(path, sizeof path, "sampling_params.%s", name);
        api_invalid(err, path, "%s is not supported", path);
    }
    return hides || HAS(refused_params, name) || HAS(labels, name) || body_put(out, name, value);
}

static bool put_params(json_t *out, json_t *params, struct api_error *err)
{
    const char *name;
    json_t *value;
    json_object_foreach(params, name, value) if (!put_param(out, name, value, err)) return false;
    return true;
}

/* The log-probabilities, and what else stands beside sampling_params. */
static bool put_rest(json_t *out, const json_t *body, struct api_error *err)
{
    static const char *const same[] = {"model", "stream", "return_logprob", "return_text_in_logprobs",
                                       "priority"};
    json_t *top = json_object_get(body, "top_logprobs_num"),
           *start = json_object_get(body, "logprob_start_len");
    bool wanted = json_is_true(json_object_get(body, "return_logprob")), ok = true;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        json_t *value = json_object_get(body, same[i]);
        ok = ok && body_put(out, same[i], value);
    }
    if (wanted && json_is_number(start) && json_number_value(start) >= 0)
        api_invalid(err, "logprob_start_len",
                    "logprob_start_len is not supported: ask with prompt and prompt_logprobs instead");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (asks(json_object_get(body, refused[i])))
            api_invalid(err, refused[i], "%s is not supported", refused[i]);
    return ok && (!wanted || body_put(out, "logprobs", top));
}

static json_t *translate(const json_t *body, struct api_error *err)
{
    static const struct field_shape shapes[] = {
        {"sampling_params", SHAPE_OBJECT}, {"text", SHAPE_STRING | SHAPE_ARRAY},
        {"input_ids", SHAPE_ARRAY},        {"stream", SHAPE_BOOL},
        {"return_logprob", SHAPE_BOOL},    {0}};
    json_t *text = json_object_get(body, "text"), *ids = json_object_get(body, "input_ids");
    bool has_text = text && !json_is_null(text), has_ids = ids && !json_is_null(ids);
    if (fields_have_shapes(body, shapes, err) < 0)
        return NULL;
    if (has_text && has_ids)
        api_invalid(err, "input_ids", "text and input_ids: one of them is allowed");
    json_t *out = json_object();
    bool ok =
        out && put_params(out, json_object_get(body, "sampling_params"), err) && put_rest(out, body, err);
    if (ok && (has_text || has_ids))
        ok = body_put(out, "prompt", has_text ? text : ids);
    if (!ok)
        api_out_of_memory(err);
    if (!err->status)
        return out;
    json_decref(out);
    return NULL;
}

static const struct field fields[] = {
    {.name = "return_logprob", .kind = FIELD_BOOL, .offset = AT(chat_logprobs)},
    {.name = "return_text_in_logprobs", .kind = FIELD_BOOL, .offset = AT(include_usage)},
    {0},
};

static void defaults(struct params *p)
{
    p->max_tokens = 128;
    p->temperature = p->top_p = 1;
    p->top_k = 0;
    p->min_p = 0;
}

static int prepare(struct generation *g, struct api_error *err)
{
    (void)err;
    g->p.has_logprobs = g->p.chat_logprobs;
    return 0;
}

/* --- replies --- */

/* [log-probability, id, text or null] */
static void put_logprob(struct buf *out, const struct generation *g, int32_t token, double logprob)
{
    struct tokenizer_piece piece = tokenizer_piece(g->model->tokenizer, token, true);
    buf_puts(out, "[");
    json_put_number(out, logprob, 7);
    buf_printf(out, ",%d,", token);
    if (g->p.include_usage)
        json_put_string(out, piece.s, piece.len);
    else
        buf_puts(out, "null");
    buf_puts(out, "]");
}

static void put_drawn(struct buf *out, struct reply_list *l)
{
    const struct choice *c = l->of;
    put_logprob(out, c->g, c->e.out[l->i].token, c->e.out[l->i].logprob);
}

static void put_top(struct buf *out, struct reply_list *l)
{
    const struct choice *c = l->of;
    const struct step_top *top = c->e.top + (size_t)l->i * c->e.n_top;
    buf_puts(out, "[");
    for (uint32_t k = 0; k < c->e.n_top; k++) {
        buf_puts(out, k ? "," : "");
        put_logprob(out, c->g, top[k].token, top[k].logprob);
    }
    buf_puts(out, "]");
}

static void put_id(struct buf *out, struct reply_list *l)
{
    const struct choice *c = l->of;
    json_put_int(out, c->e.out[l->i].token);
}

/* The string or the token that ended the text is `matched`. */
static void put_finish(const struct choice *c, struct buf *out)
{
    if (!strcmp(c->finish, "length")) {
        buf_printf(out, "{\"type\":\"length\",\"length\":%u}", c->n_tokens);
    } else if (strcmp(c->finish, "eos") && strcmp(c->finish, "stop")) {
        buf_puts(out, "{\"type\":\"abort\",\"message\":");
        json_put_str(out, c->finish);
        buf_puts(out, "}");
    } else {
        buf_puts(out, "{\"type\":\"stop\",\"matched\":");
        if (c->text.matched)
            json_put_str(out, c->text.matched->s);
        else if (c->n_tokens)
            buf_printf(out, "%d", c->e.out[c->n_tokens - 1].token);
        else
            buf_puts(out, "null");
        buf_puts(out, "}");
    }
}

static void put_meta(const struct choice *c, struct buf *out, const struct piece *tokens, bool last)
{
    const struct generation *g = c->g;
    struct timings t;
    buf_printf(out, "\"meta_info\":{\"id\":\"%s\",\"finish_reason\":", g->id);
    if (last)
        put_finish(c, out);
    else
        buf_puts(out, "null");
    buf_printf(out, ",\"prompt_tokens\":%u,\"completion_tokens\":%u,\"cached_tokens\":%u", c->e.n_prompt,
               tokens->to, c->e.n_cached);
    if (last) {
        generation_timings(g, &t);
        buf_puts(out, ",\"e2e_latency\":");
        json_put_number(out, (t.ttft_ms + t.decode_ms) / 1e3, 6);
    }
    if (g->p.has_logprobs) {
        buf_puts(out, ",\"input_token_logprobs\":[],\"output_token_logprobs\":[");
        put_items(c, tokens->from, tokens->to, put_drawn);
        buf_puts(out, "]");
    }
    if (g->p.has_logprobs && c->e.n_top) {
        buf_puts(out, ",\"output_top_logprobs\":[");
        put_items(c, tokens->from, tokens->to, put_top);
        buf_puts(out, "]");
    }
    buf_puts(out, "}}");
}

static void put_rest_of(const struct choice *c, struct buf *out, const struct piece *tokens, bool last)
{
    buf_puts(out, ",\"output_ids\":[");
    put_items(c, tokens->from, tokens->to, put_id);
    buf_puts(out, "],");
    put_meta(c, out, tokens, last);
}

static void put_whole(const struct choice *c, struct buf *out)
{
    struct piece whole = choice_whole(c);
    buf_puts(out, "{\"text\":");
    put_piece_text(c, &whole);
    put_rest_of(c, out, &whole, true);
}

/* A list, where there is more than one text. */
static void reply(struct generation *g, struct buf *out)
{
    buf_puts(out, g->n_choices > 1 ? "[" : "");
    for (uint32_t i = 0; i < g->n_choices; i++) {
        buf_puts(out, i ? "," : "");
        put_whole(&g->choices[i], out);
    }
    buf_puts(out, g->n_choices > 1 ? "]\n" : "\n");
}

static void put_event(const struct choice *c, struct buf *out, const struct piece *piece, bool last)
{
    buf_puts(out, "data: {");
    if (c->g->n_choices > 1)
        buf_printf(out, "\"index\":%u,", c->index);
    buf_puts(out, "\"text\":");
    json_put_string(out, c->text.out.p, c->event_text + piece->len);
    put_rest_of(c, out, piece, last);
    buf_puts(out, "\n\n");
}

static void delta(struct choice *c, struct buf *out, const struct piece *piece)
{
    put_event(c, out, piece, false);
}

static void end(struct choice *c, struct buf *out, const struct piece *piece)
{
    put_event(c, out, piece, true);
}

static void last(struct generation *g, struct buf *out)
{
    (void)g;
    buf_puts(out, "data: [DONE]\n\n");
}

const struct dialect dialect_sglang = {.id_prefix = "gen-",
                                       .own_fields = fields,
                                       .translate = translate,
                                       .names = names,
                                       .prompts = "prompt",
                                       .defaults = defaults,
                                       .prepare = prepare,
                                       .reply = reply,
                                       .delta = delta,
                                       .end = end,
                                       .last = last,
                                       .clamps = true};
