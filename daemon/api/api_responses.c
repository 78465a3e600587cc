/* api_responses.c - OpenAI's newer dialect: POST /v1/responses, without a store; responses_reader.c has its
 * body. An answer is a list of items (reasoning, message, function_call) in the order in which the model
 * wrote them; the stream and the whole reply are made of the same list. */
#include "api.h"
#include "api_chat.h"
#include "api_openai_private.h"
#include "model/model.h"
#include "responses_private.h"

#include <string.h>
#include <time.h>

/* --- items --- */

struct item {
    enum toolcall_kind kind; /* TOOLCALL_TEXT, TOOLCALL_REASONING, TOOLCALL_BEGIN: a call */
    struct buf text;         /* the text or the reasoning */
    uint32_t call;           /* the number of the call */
    uint32_t from, to;       /* the tokens of a text */
};

/* Stored in answer.own. */
struct items {
    struct item *list;
    uint32_t n, n_events;
    bool open; /* the last one goes on */
};

/* NULL: out of memory, which the reply remembers. */
static struct items *items_of(struct choice *c)
{
    if (!c->answer->own)
        c->answer->own = arena_zalloc(c->g->arena, sizeof(struct items));
    c->g->request->out.failed |= !c->answer->own;
    return c->answer->own;
}

static struct item *add_item(struct choice *c, struct items *s, enum toolcall_kind kind)
{
    struct arena *a = c->g->arena;
    struct item *grown = arena_grow(a, s->list, s->n * sizeof *grown, (s->n + 1) * sizeof *grown);
    if (!grown) {
        c->g->request->out.failed = true;
        return NULL;
    }
    s->list = grown;
    s->open = true;
    grown[s->n] = (struct item){.kind = kind, .text.arena = a, .call = c->answer->n_calls - 1};
    return &grown[s->n++];
}

static const char *prefix_of(enum toolcall_kind kind)
{
    return kind == TOOLCALL_BEGIN ? "fc" : kind == TOOLCALL_TEXT ? "msg" : "rs";
}

static void put_item_id(struct buf *out, const struct choice *c, uint32_t i)
{
    const struct items *s = c->answer->own;
    buf_printf(out, "\"%s_%s_%u\"", prefix_of(s->list[i].kind), c->g->id, i);
}

/* "name":.., and "namespace":.. where the tool was of one. */
static void put_name(struct buf *out, const struct params *p, const struct buf *name)
{
    size_t skip = 0;
    for (uint32_t i = 0; i < p->n_namespaces && !skip; i++) {
        const struct namespaced *of = &p->namespaces[i];
        if (strlen(of->name) != name->len || memcmp(name->p, of->name, name->len) != 0)
            continue;
        buf_puts(out, "\"namespace\":");
        json_put_string(out, name->p, of->namespace_len);
        buf_puts(out, ",");
        skip = of->namespace_len + strlen(RESPONSES_BETWEEN);
    }
    buf_puts(out, "\"name\":");
    json_put_string(out, name->p + skip, name->len - skip);
}

static void put_text(struct buf *out, const struct buf *text)
{
    json_put_string(out, text->p ? text->p : "", text->len);
}

/* The log-probabilities of tokens [from, to), if they are asked for. */
static void put_logprobs(struct buf *out, const struct choice *c, uint32_t from, uint32_t to)
{
    const struct piece tokens = {.from = from, .to = c->g->p.has_logprobs ? to : from};
    buf_puts(out, ",\"logprobs\":");
    chat_put_logprobs(out, c, &tokens);
}

/* In a stream the deltas have the log-probabilities, and the response at its end all of them once more. */
static void put_part(struct buf *out, const struct choice *c, const struct item *item, bool filled,
                     bool scored)
{
    static const struct buf none = {0};
    bool text = item->kind == TOOLCALL_TEXT;
    buf_printf(out, "{\"type\":\"%s\",\"text\":", text ? "output_text" : "reasoning_text");
    put_text(out, filled ? &item->text : &none);
    if (text) {
        buf_puts(out, ",\"annotations\":[]");
        put_logprobs(out, c, item->from, scored ? item->to : item->from);
    }
    buf_puts(out, "}");
}

static void put_call(struct buf *out, const struct choice *c, const struct item *item, bool filled)
{
    static const struct buf none = {0};
    const struct answer_call *call = &c->answer->calls[item->call];
    buf_printf(out, ",\"call_id\":\"call_%s\",", call->id);
    put_name(out, &c->g->p, &call->name);
    buf_puts(out, ",\"arguments\":");
    put_text(out, filled ? &call->arguments : &none);
    buf_puts(out, "}");
}

static void put_item(struct buf *out, const struct choice *c, uint32_t i, const char *status, bool scored)
{
    const struct items *s = c->answer->own;
    const struct item *item = &s->list[i];
    bool filled = strcmp(status, "in_progress") != 0;
    buf_puts(out, "{\"id\":");
    put_item_id(out, c, i);
    buf_printf(out, ",\"status\":\"%s\"", status);
    if (item->kind == TOOLCALL_BEGIN) {
        buf_puts(out, ",\"type\":\"function_call\"");
        put_call(out, c, item, filled);
        return;
    }
    buf_puts(out, item->kind == TOOLCALL_TEXT
                      ? ",\"type\":\"message\",\"role\":\"assistant\",\"content\":["
                      : ",\"type\":\"reasoning\",\"summary\":[],\"encrypted_content\":null,\"content\":[");
    if (filled)
        put_part(out, c, item, true, scored);
    buf_puts(out, "]}");
}

/* --- the response --- */

static bool was_cut(const struct choice *c)
{
    return c->finish && !strcmp(answer_finish(c), "length");
}

static const char *status_of(const struct choice *c)
{
    return was_cut(c) ? "incomplete" : "completed";
}

/* The last item is the one that was cut. */
static const char *item_status(const struct choice *c, const struct items *s, uint32_t i)
{
    return i + 1 == s->n ? status_of(c) : "completed";
}

static void put_output(struct buf *out, const struct choice *c, bool ended)
{
    const struct items *s = c->answer->own;
    buf_puts(out, ",\"output\":[");
    for (uint32_t i = 0; ended && s && i < s->n; i++) {
        buf_puts(out, i ? "," : "");
        put_item(out, c, i, item_status(c, s, i), true);
    }
    buf_puts(out, "]");
}

static void put_usage(struct buf *out, const struct generation *g, bool ended)
{
    const struct choice *c = g->choices;
    uint32_t n_prompt = c->e.n_prompt;
    if (!ended) {
        buf_puts(out, ",\"usage\":null");
        return;
    }
    buf_printf(out,
               ",\"usage\":{\"input_tokens\":%u,\"input_tokens_details\":{\"cached_tokens\":%u,"
               "\"cache_write_tokens\":0},"
               "\"output_tokens\":%u,\"output_tokens_details\":{\"reasoning_tokens\":%u},"
               "\"total_tokens\":%u}",
               n_prompt, generation_n_cached(g), c->n_tokens, answer_n_reasoning(g), n_prompt + c->n_tokens);
}

/* The settings in force, and what the request said. */
static void put_settings(struct buf *out, const struct params *p)
{
    size_t n = strlen(p->echoed);
    buf_printf(out, ",\"error\":null,\"parallel_tool_calls\":%s,\"max_output_tokens\":",
               p->one_call ? "false" : "true");
    if (p->has_max_tokens)
        json_put_uint(out, p->max_tokens);
    else
        buf_puts(out, "null");
    buf_puts(out, ",\"temperature\":");
    json_put_number(out, p->temperature, 6);
    buf_puts(out, ",\"top_p\":");
    json_put_number(out, p->top_p, 6);
    buf_puts(out, ",\"previous_response_id\":null,\"store\":false,\"background\":false,\"top_logprobs\":");
    json_put_uint(out, p->logprobs);
    buf_puts(out, ",\"service_tier\":\"default\",\"truncation\":\"disabled\",");
    buf_put(out, p->echoed + 1, n - 2); /* without its braces */
}

/* The first events are of one that has not ended, also where its text has when they are written. */
static void put_response(struct buf *out, const struct generation *g, const char *status)
{
    const struct choice *c = g->choices;
    bool ended = strcmp(status, "in_progress");
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"model\":",
               g->id, (long long)g->created, status);
    chat_put_model(out, g);
    buf_puts(out, ",\"completed_at\":");
    if (ended && !was_cut(c))
        json_put_uint(out, (uint64_t)time(NULL));
    else
        buf_puts(out, "null");
    buf_puts(out, ",\"incomplete_details\":");
    if (ended && was_cut(c))
        buf_printf(out, "{\"reason\":\"%s\"}", strcmp(c->finish, "length") ? c->finish : "max_output_tokens");
    else
        buf_puts(out, "null");
    put_settings(out, &g->p);
    put_output(out, c, ended);
    put_usage(out, g, ended);
    buf_puts(out, "}");
}

/* --- the stream --- */

static void open_event(struct buf *out, struct items *s, const char *type)
{
    buf_printf(out, "event: response.%s\ndata: {\"type\":\"response.%s\",\"sequence_number\":%u", type, type,
               s->n_events++);
}

static void put_response_event(struct choice *c, struct buf *out, const char *type, const char *status)
{
    struct items *s = items_of(c);
    if (!s)
        return;
    open_event(out, s, type);
    buf_puts(out, ",\"response\":");
    put_response(out, c->g, status);
    buf_puts(out, "}\n\n");
}

static void put_item_event(struct choice *c, struct buf *out, const char *type, const char *status)
{
    struct items *s = c->answer->own;
    open_event(out, s, type);
    buf_printf(out, ",\"output_index\":%u,\"item\":", s->n - 1);
    put_item(out, c, s->n - 1, status, false);
    buf_puts(out, "}\n\n");
}

/* Opens an event inside of the last item: its part, or a call's arguments. */
static void open_inner(struct choice *c, struct buf *out, const char *type)
{
    struct items *s = c->answer->own;
    open_event(out, s, type);
    buf_puts(out, ",\"item_id\":");
    put_item_id(out, c, s->n - 1);
    buf_printf(out, ",\"output_index\":%u", s->n - 1);
    if (s->list[s->n - 1].kind != TOOLCALL_BEGIN)
        buf_puts(out, ",\"content_index\":0");
}

static void put_part_event(struct choice *c, struct buf *out, const char *type, bool filled)
{
    struct items *s = c->answer->own;
    open_inner(c, out, type);
    buf_puts(out, ",\"part\":");
    put_part(out, c, &s->list[s->n - 1], filled, false);
    buf_puts(out, "}\n\n");
}

static void start_item(struct choice *c, struct buf *out)
{
    const struct items *s = c->answer->own;
    put_item_event(c, out, "output_item.added", "in_progress");
    if (s->list[s->n - 1].kind != TOOLCALL_BEGIN)
        put_part_event(c, out, "content_part.added", false);
}

static void put_done(struct choice *c, struct buf *out)
{
    const struct items *s = c->answer->own;
    const struct item *item = &s->list[s->n - 1];
    if (item->kind == TOOLCALL_BEGIN) {
        const struct answer_call *call = &c->answer->calls[item->call];
        open_inner(c, out, "function_call_arguments.done");
        buf_puts(out, ",");
        put_name(out, &c->g->p, &call->name);
        buf_puts(out, ",\"arguments\":");
        put_text(out, &call->arguments);
    } else {
        bool text = item->kind == TOOLCALL_TEXT;
        open_inner(c, out, text ? "output_text.done" : "reasoning_text.done");
        buf_puts(out, text ? ",\"logprobs\":[],\"text\":" : ",\"text\":");
        put_text(out, &item->text);
    }
    buf_puts(out, "}\n\n");
}

/* Ends the open item, if there is one. */
static void stop_item(struct choice *c, struct buf *out, const char *status)
{
    struct items *s = c->answer->own;
    if (!s || !s->open)
        return;
    s->open = false;
    if (!c->g->p.stream)
        return;
    put_done(c, out);
    if (s->list[s->n - 1].kind != TOOLCALL_BEGIN)
        put_part_event(c, out, "content_part.done", true);
    put_item_event(c, out, "output_item.done", status);
}

/* A text's delta has the log-probabilities of its tokens from `from` on. */
static void put_delta(struct choice *c, struct buf *out, const struct toolcall_event *e, uint32_t from)
{
    static const char *const types[] = {[TOOLCALL_TEXT] = "output_text.delta",
                                        [TOOLCALL_REASONING] = "reasoning_text.delta",
                                        [TOOLCALL_ARGUMENTS] = "function_call_arguments.delta"};
    const struct items *s = c->answer->own;
    open_inner(c, out, types[e->kind]);
    if (e->kind == TOOLCALL_TEXT)
        put_logprobs(out, c, from, s->list[s->n - 1].to);
    buf_puts(out, ",\"delta\":");
    json_put_string(out, e->s, e->n);
    buf_puts(out, "}\n\n");
}

/* Also called for a whole reply, when nothing is written yet. */
static void event(struct choice *c, struct buf *out, const struct toolcall_event *e)
{
    struct items *s = items_of(c);
    bool text = e->kind == TOOLCALL_TEXT || e->kind == TOOLCALL_REASONING, stream = c->g->p.stream;
    if (!s || out->failed)
        return;
    bool goes_on = s->open && (text ? s->list[s->n - 1].kind == e->kind : e->kind != TOOLCALL_BEGIN);
    if (e->kind == TOOLCALL_END || !goes_on)
        stop_item(c, out, "completed");
    if (e->kind == TOOLCALL_END || (!goes_on && !text && e->kind != TOOLCALL_BEGIN))
        return;
    const struct piece *tokens = c->answer->piece;
    if (!goes_on) {
        struct item *item = add_item(c, s, e->kind);
        if (!item)
            return;
        item->from = item->to = tokens->from;
        if (stream)
            start_item(c, out);
    }
    uint32_t from = s->list[s->n - 1].to;
    s->list[s->n - 1].to = tokens->to;
    if (text)
        buf_put(&s->list[s->n - 1].text, e->s, e->n);
    if (stream && e->kind != TOOLCALL_BEGIN)
        put_delta(c, out, e, from);
}

static void begin(struct generation *g, struct buf *out)
{
    put_response_event(g->choices, out, "created", "in_progress");
    put_response_event(g->choices, out, "in_progress", "in_progress");
}

static void delta(struct choice *c, struct buf *out, const struct piece *piece)
{
    (void)out;
    answer_take(c, piece, false);
}

static void end(struct choice *c, struct buf *out, const struct piece *piece)
{
    answer_take(c, piece, true);
    stop_item(c, out, status_of(c));
    put_response_event(c, out, status_of(c), status_of(c));
}

static void last(struct generation *g, struct buf *out)
{
    (void)g;
    (void)out;
}

static void reply(struct generation *g, struct buf *out)
{
    answer_take_whole(g->choices);
    put_response(out, g, status_of(g->choices));
    buf_puts(out, "\n");
}

#define COMMON                                                                                               \
    .id_prefix = "resp_", .fields = chat_fields, .own_fields = responses_fields, .defaults = chat_defaults,  \
    .translate = responses_translate, .names = responses_names, .prepare = chat_dialect_prepare,             \
    .event = event, .whole_calls = true, .whole_events = true, .mends = true, .clamps = true

const struct dialect dialect_responses = {COMMON,         .reply = reply, .begin = begin,
                                          .delta = delta, .end = end,     .last = last};
const struct dialect dialect_responses_count = {COMMON, .reply = openai_put_count, .counts = true,
                                                .counted = GENERATE_MAX_COUNTED};
