/* api_chat.c - POST /v1/chat/completions: OpenAI's chats, with reasoning and tool calls taken out of the
 * text. Every field of the dialect's reference is known; /generate's own fields work too. */
#include "api_chat.h"
#include "api_openai_private.h"
#include "generation/chat_messages.h"
#include "generation/chat_prepare.h"
#include "model/model.h"

#include <string.h>

/* --- fields --- */

static int read_modalities(struct field_reader *r, const struct field *f, const json_t *value)
{
    if (!json_is_array(value))
        return api_invalid(r->err, f->name, "modalities must be an array (got %s)", field_got(value));
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *kind = json_array_get(value, i);
        if (!json_is_string(kind) || strcmp(json_string_value(kind), "text"))
            return api_invalid(r->err, f->name, "modalities[%zu] must be \"text\" (got %s)", i,
                               field_got_word(kind));
    }
    return 0;
}

static int refuse_choice(struct field_reader *r, const struct field *f, const json_t *value)
{
    return api_invalid(r->err, f->name,
                       "%s must be \"auto\", \"none\", \"required\", {\"type\":\"function\",\"function\":"
                       "{\"name\":..}} or allowed_tools (got %s)",
                       f->name, field_got_word(value));
}

/* "auto" leaves it to the model, "none" keeps the tools from it. */
static int read_choice_word(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    const char *word = json_string_value(value);
    p->no_tools = !strcmp(word, "none");
    p->choice.forced = !strcmp(word, "required") || !strcmp(word, "any");
    return p->no_tools || p->choice.forced || !strcmp(word, "auto") ? 0 : refuse_choice(r, f, value);
}

/* {type: allowed_tools, allowed_tools: {mode, tools: [..]}}: some of the tools. Left to the model they are a
 * hint. */
static int read_allowed(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    const json_t *allowed = json_object_get(value, "allowed_tools"),
                 *list = json_object_get(allowed, "tools");
    const char *mode = json_string_value(json_object_get(allowed, "mode"));
    if (!mode || !json_array_size(list) || (strcmp(mode, "auto") && strcmp(mode, "required")))
        return refuse_choice(r, f, value);
    p->choice.forced = !strcmp(mode, "required");
    p->choice.of = list;
    return 0;
}

static int read_tool_choice(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    const char *type = json_string_value(json_object_get(value, "type"));
    const json_t *name = json_object_get(json_object_get(value, "function"), "name");
    if (json_is_string(value))
        return read_choice_word(r, f, value);
    if (json_is_false(value))
        return 0;
    if (type && !strcmp(type, "allowed_tools"))
        return read_allowed(r, f, value);
    if (!json_is_string(name))
        return refuse_choice(r, f, value);
    p->choice.forced = true;
    p->choice.one = arena_copy(r->arena, json_string_value(name), json_string_length(name));
    return p->choice.one ? 0 : api_out_of_memory(r->err);
}

static int read_parallel(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    if (!json_is_boolean(value))
        return api_invalid(r->err, f->name, "%s must be true or false (got %s)", f->name, field_got(value));
    p->one_call = json_is_false(value);
    return 0;
}

int openai_read_effort(struct field_reader *r, const struct field *f, const json_t *value)
{
    static const char *const words[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    struct params *p = r->out;
    const char *given = json_string_value(value);
    for (size_t i = 0; given && i < sizeof words / sizeof *words; i++)
        if (!strcmp(given, words[i])) {
            p->reasoning_effort = words[i];
            return 0;
        }
    if (json_is_false(value))
        return 0;
    return api_invalid(r->err, f->name, "%s must be none, minimal, low, medium, high, xhigh or max (got %s)",
                       f->name, field_got_word(value));
}

static int read_chat_format(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    const char *name = json_string_value(value);
    p->format = name ? toolcall_format_find(name) : NULL;
    if (p->format || (name && !strcmp(name, "auto")))
        return 0;
    return api_invalid(r->err, f->name,
                       "%s must be auto or the name of a format, as hearthd parse knows them (got %s)",
                       f->name, field_got_word(value));
}

static int read_no_prompt(struct field_reader *r, const struct field *f, const json_t *value)
{
    (void)value;
    return api_invalid(r->err, f->name, "a chat needs messages, not %s", f->name);
}

const struct field chat_fields[] = {
    COMMON_FIELDS,
    {.name = "messages", .kind = FIELD_CUSTOM, .read = read_messages},
    {.name = "prompt", .kind = FIELD_CUSTOM, .read = read_no_prompt},
    {.name = "max_completion_tokens", .kind = FIELD_CUSTOM, .read = read_max_tokens},
    {.name = "logprobs", .kind = FIELD_BOOL, .offset = AT(chat_logprobs)},
    {.name = "top_logprobs", .kind = FIELD_U32, .offset = AT(logprobs), .max = STEP_MAX_TOP},
    {.name = "modalities", .kind = FIELD_CUSTOM, .read = read_modalities},
    {.name = "tools", .kind = FIELD_CUSTOM, .read = read_tools},
    {.name = "tool_choice", .kind = FIELD_CUSTOM, .read = read_tool_choice},
    {.name = "documents", .kind = FIELD_CUSTOM, .read = read_documents},
    {.name = "chat_template_kwargs", .kind = FIELD_CUSTOM, .read = read_template_variables},
    {.name = "continue_final_message", .kind = FIELD_BOOL, .offset = AT(continues)},
    {.name = "add_generation_prompt", .kind = FIELD_BOOL, .offset = AT(chat.add_generation_prompt)},
    INERT("functions"),
    WORD("function_call"),
    INERT("audio"),
    INERT("prediction"),
    INERT("web_search_options"),
    {.name = "parallel_tool_calls", .kind = FIELD_CUSTOM, .read = read_parallel},
    IGNORED("metadata"),
    IGNORED("store"),
    IGNORED("service_tier"),
    IGNORED("safety_identifier"),
    IGNORED("prompt_cache_key"),
    IGNORED("prompt_cache_retention"),
    IGNORED("prompt_cache_options"),
    IGNORED("moderation"),
    IGNORED("verbosity"),
    {.name = "reasoning_effort", .kind = FIELD_CUSTOM, .read = openai_read_effort},
    {.name = "chat_format", .kind = FIELD_CUSTOM, .read = read_chat_format},
    {0},
};

/* --- preparation --- */

void chat_defaults(struct params *p)
{
    p->max_tokens = UINT32_MAX; /* the rest of the context */
    p->chat.add_generation_prompt = true;
}

int chat_prepare_logprobs(struct params *p, struct api_error *err)
{
    if (p->logprobs && !p->chat_logprobs)
        return api_invalid(err, "top_logprobs", "top_logprobs needs logprobs to be true");
    p->has_logprobs = p->chat_logprobs;
    return 0;
}

int chat_dialect_prepare(struct generation *g, struct api_error *err)
{
    if (!g->p.chat.messages)
        return api_invalid(err, "messages", "messages is missing");
    return chat_prepare_logprobs(&g->p, err) < 0 ? -1 : chat_prepare(g, err);
}

/* --- replies --- */

void chat_put_model(struct buf *out, const struct generation *g)
{
    json_put_str(out, g->model->name);
}

void chat_put_input(struct buf *out, const struct answer_call *call)
{
    bool object = call->complete && call->arguments.len && *call->arguments.p == '{';
    if (object)
        buf_put(out, call->arguments.p, call->arguments.len);
    else
        buf_puts(out, "{}");
}

static void put_chat_token(struct buf *out, const struct generation *g, int32_t token, double logprob)
{
    struct tokenizer_piece piece = tokenizer_piece(g->model->tokenizer, token, true);
    buf_puts(out, "{\"token\":");
    openai_put_token_key(out, g, token);
    buf_puts(out, ",\"logprob\":");
    json_put_number(out, logprob, 7);
    buf_puts(out, ",\"bytes\":[");
    for (uint32_t i = 0; i < piece.len; i++)
        buf_printf(out, "%s%u", i ? "," : "", (unsigned char)piece.s[i]);
    buf_puts(out, "]");
}

static void put_chat_logprob(struct buf *out, struct reply_list *l)
{
    const struct choice *c = l->of;
    const struct engine_request *e = &c->e;
    put_chat_token(out, c->g, e->out[l->i].token, e->out[l->i].logprob);
    buf_puts(out, ",\"top_logprobs\":[");
    for (uint32_t k = 0; k < e->n_top; k++) {
        const struct step_top *top = &e->top[(size_t)l->i * e->n_top + k];
        buf_puts(out, k ? "," : "");
        put_chat_token(out, c->g, top->token, top->logprob);
        buf_puts(out, "}");
    }
    buf_puts(out, "]}");
}

void chat_put_logprobs(struct buf *out, const struct choice *c, const struct piece *piece)
{
    buf_puts(out, "[");
    put_items(c, piece->from, piece->to, put_chat_logprob);
    buf_puts(out, "]");
}

static void put_chat_logprobs(struct buf *out, const struct choice *c, const struct piece *piece)
{
    if (!c->g->p.has_logprobs || !piece) {
        buf_puts(out, "null");
        return;
    }
    buf_puts(out, "{\"content\":");
    chat_put_logprobs(out, c, piece);
    buf_puts(out, ",\"refusal\":null}");
}

static void put_calls(struct buf *out, const struct answer *a)
{
    buf_puts(out, ",\"tool_calls\":[");
    for (uint32_t i = 0; i < a->n_calls; i++) {
        const struct answer_call *call = &a->calls[i];
        buf_printf(out, "%s{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", i ? "," : "",
                   call->id);
        json_put_string(out, call->name.p, call->name.len);
        buf_puts(out, ",\"arguments\":");
        json_put_string(out, call->arguments.p, call->arguments.len);
        buf_puts(out, "}}");
    }
    buf_puts(out, "]");
}

/* A text without marks is written as the client takes it, however long. */
static void put_content(const struct choice *c, const struct piece *whole, struct buf *out)
{
    const struct answer *a = c->answer;
    if (a->n_calls && !a->content.len)
        buf_puts(out, "null");
    else if (a->content.len == whole->len)
        put_piece_text(c, whole);
    else
        json_put_string(out, a->content.p ? a->content.p : "", a->content.len);
}

static void put_message(struct choice *c, struct buf *out)
{
    struct piece whole = choice_whole(c);
    const struct answer *a = c->answer;
    answer_take_whole(c);
    buf_printf(out, "{\"index\":%u,\"message\":{\"role\":\"assistant\",\"content\":", c->index);
    put_content(c, &whole, out);
    buf_puts(out, ",\"refusal\":null");
    if (a->reasoning.len) {
        buf_puts(out, ",\"reasoning_content\":");
        json_put_string(out, a->reasoning.p, a->reasoning.len);
    }
    if (a->n_calls)
        put_calls(out, a);
    buf_puts(out, "},\"logprobs\":");
    put_chat_logprobs(out, c, &whole);
    buf_printf(out, ",\"finish_reason\":\"%s\"}", answer_finish(c));
}

static void chat_reply(struct generation *g, struct buf *out)
{
    openai_put_head(g, out, "chat.completion");
    for (uint32_t i = 0; i < g->n_choices; i++) {
        buf_puts(out, i ? "," : "");
        put_message(&g->choices[i], out);
    }
    buf_puts(out, "]");
    openai_put_prompt(g, out);
    buf_puts(out, ",\"usage\":");
    openai_put_usage(out, g);
    llama_put_timings(out, g->choices);
    buf_puts(out, "}\n");
}

/* --- the stream --- */

static void open_chunk(const struct choice *c, struct buf *out)
{
    buf_puts(out, "data: ");
    openai_put_head(c->g, out, "chat.completion.chunk");
    buf_printf(out, "{\"index\":%u,\"delta\":{", c->index);
}

/* The first chunk that a piece of text becomes has the log-probabilities of its tokens. */
static void close_delta(struct choice *c, struct buf *out)
{
    buf_puts(out, "},\"logprobs\":");
    put_chat_logprobs(out, c, c->answer->piece);
    c->answer->piece = NULL;
    buf_puts(out, ",\"finish_reason\":null}]");
    openai_close_chunk(c->g, out);
}

static void chat_begin(struct generation *g, struct buf *out)
{
    for (uint32_t i = 0; i < g->n_choices; i++) {
        open_chunk(&g->choices[i], out);
        buf_puts(out, "\"role\":\"assistant\",\"content\":\"\"");
        close_delta(&g->choices[i], out);
    }
}

static void put_call_delta(const struct answer *a, struct buf *out, const struct toolcall_event *e)
{
    bool begins = e->kind == TOOLCALL_BEGIN;
    buf_printf(out, "\"tool_calls\":[{\"index\":%u,", a->n_calls - 1);
    if (begins)
        buf_printf(out, "\"id\":\"%s\",\"type\":\"function\",", a->calls[a->n_calls - 1].id);
    buf_puts(out, begins ? "\"function\":{\"name\":" : "\"function\":{\"arguments\":");
    json_put_string(out, e->s, e->n);
    buf_puts(out, begins ? ",\"arguments\":\"\"}}]" : "}}]");
}

static void chat_event(struct choice *c, struct buf *out, const struct toolcall_event *e)
{
    if (e->kind == TOOLCALL_END)
        return;
    open_chunk(c, out);
    if (e->kind == TOOLCALL_TEXT || e->kind == TOOLCALL_REASONING) {
        buf_puts(out, e->kind == TOOLCALL_TEXT ? "\"content\":" : "\"reasoning_content\":");
        json_put_string(out, e->s, e->n);
    } else {
        put_call_delta(c->answer, out, e);
    }
    close_delta(c, out);
}

static void take(struct choice *c, struct buf *out, const struct piece *piece, bool last)
{
    bool tokens = c->g->p.has_logprobs && piece->to > piece->from;
    size_t before = out->len;
    answer_take(c, piece, last);
    if (!tokens || out->len != before) /* that is: some chunk has them */
        return;
    c->answer->piece = piece;
    open_chunk(c, out);
    close_delta(c, out);
}

static void chat_delta(struct choice *c, struct buf *out, const struct piece *piece)
{
    take(c, out, piece, false);
}

static void chat_end(struct choice *c, struct buf *out, const struct piece *piece)
{
    take(c, out, piece, true);
    open_chunk(c, out);
    buf_printf(out, "},\"logprobs\":null,\"finish_reason\":\"%s\"}]", answer_finish(c));
    if (choice_tells_last(c)) {
        openai_put_prompt(c->g, out);
        llama_put_timings(out, c);
    }
    openai_close_chunk(c->g, out);
}

static void chat_last(struct generation *g, struct buf *out)
{
    openai_put_last(g, out, "chat.completion.chunk");
}

#define COMMON                                                                                               \
    .id_prefix = "chatcmpl-", .fields = chat_fields, .own_fields = chat_extras, .extras = openai_extras,     \
    .defaults = chat_defaults, .prepare = chat_dialect_prepare, .event = chat_event, .mends = true,          \
    .clamps = true

const struct dialect dialect_chat = {
    COMMON,          .reply = chat_reply, .begin = chat_begin, .delta = chat_delta,
    .end = chat_end, .last = chat_last};
const struct dialect dialect_chat_count = {COMMON, .reply = openai_put_count, .counts = true,
                                           .counted = GENERATE_MAX_COUNTED};
