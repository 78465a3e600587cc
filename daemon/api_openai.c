/* api_openai.c - the OpenAI dialect: GET /v1/models, POST /v1/completions and /v1/chat/completions.
 * Every field of the dialect's reference is known: what only labels is ignored, what changes the answer works
 * or is refused by name; /generate's own fields work too. */
#include "generate.h"
#include "model.h"
#include "utf8.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define AT(field) offsetof(struct params, field)
#define IGNORED(n)                                                                                           \
    {                                                                                                        \
        .name = n, .kind = FIELD_IGNORED                                                                     \
    }

/* --- fields --- */

/* Known, but only the value that asks for nothing is accepted: false, 0, an empty array or string, or the
 * word that means so. */
static int read_inert(struct field_reader *r, const struct field *f, const json_t *value)
{
    static const char *const inert[][2] = {{"refusal", ""},
                                           {"tool_choice", "none"},
                                           {"tool_choice", "auto"},
                                           {"function_call", "none"},
                                           {"function_call", "auto"},
                                           {"suffix", ""},
                                           {"reasoning_effort", "none"},
                                           {"reasoning_effort", "medium"},
                                           {"verbosity", "medium"}};
    for (size_t i = 0; i < sizeof inert / sizeof *inert; i++)
        if (!strcmp(f->name, inert[i][0]) && json_is_string(value) &&
            !strcmp(json_string_value(value), inert[i][1]))
            return 0;
    if (json_is_false(value) || (json_is_array(value) && !json_array_size(value)) ||
        (json_is_object(value) && !json_object_size(value)))
        return 0;
    const char *name = field_path(r, f->name);
    return api_invalid(r->err, name, "%s is not supported (got %s)", name, field_got(value));
}

static int read_response_format(struct field_reader *r, const struct field *f, const json_t *value)
{
    const json_t *type = json_object_get(value, "type");
    if (!json_is_object(value))
        return api_invalid(r->err, f->name, "response_format must be an object (got %s)", field_got(value));
    if (json_is_string(type) && !strcmp(json_string_value(type), "text"))
        return 0;
    return api_invalid(r->err, "response_format.type", "response_format.type must be \"text\" (got %s)",
                       field_got_word(type));
}

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

static int read_stream_options(struct field_reader *r, const struct field *f, const json_t *value)
{
    static const struct field rows[] = {
        {.name = "include_usage", .kind = FIELD_BOOL, .offset = AT(include_usage)},
        IGNORED("include_obfuscation"),
        {0},
    };
    const struct field *tables[] = {rows};
    struct field_reader inner = *r;
    if (!json_is_object(value))
        return api_invalid(r->err, f->name, "stream_options must be an object (got %s)", field_got(value));
    inner.within = "stream_options";
    return fields_read(&inner, value, tables, 1);
}

static int read_completion_logprobs(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    int64_t n;
    if (field_integer(r, f->name, value, 0, STEP_MAX_TOP, &n) < 0)
        return -1;
    p->has_logprobs = true; /* 0 asks for the chosen tokens alone */
    p->logprobs = (uint32_t)n;
    return 0;
}

#define INERT(n)                                                                                             \
    {                                                                                                        \
        .name = n, .kind = FIELD_CUSTOM, .read = read_inert                                                  \
    }

static int read_part_type(struct field_reader *r, const struct field *f, const json_t *value)
{
    const char *name = field_path(r, f->name);
    if (json_is_string(value) && !strcmp(json_string_value(value), "text"))
        return 0;
    return api_invalid(r->err, name, "%s must be \"text\": no other is supported (got %s)", name,
                       field_got_word(value));
}

static int read_part_text(struct field_reader *r, const struct field *f, const json_t *value)
{
    const char *name = field_path(r, f->name);
    if (!json_is_string(value))
        return api_invalid(r->err, name, "%s must be a string (got %s)", name, field_got(value));
    buf_put(r->out, json_string_value(value), json_string_length(value));
    return 0;
}

/* {"type":"text","text":...}: its text is added to *text. The type comes first, for it says what else a part
 * may hold. */
static int read_part(const struct field_reader *r, size_t i, const json_t *part, struct buf *text)
{
    static const struct field type = {.name = "type", .kind = FIELD_CUSTOM, .read = read_part_type};
    static const struct field rows[] = {
        IGNORED("type"), {.name = "text", .kind = FIELD_CUSTOM, .read = read_part_text}, {0}};
    const struct field *tables[] = {rows};
    struct field_reader inner = *r;
    char within[64];
    snprintf(within, sizeof within, "%s.content[%zu]", r->within, i);
    inner.within = within;
    inner.out = text;
    if (!json_is_object(part))
        return api_invalid(r->err, within, "%s must be an object (got %s)", within, field_got(part));
    if (read_part_type(&inner, &type, json_object_get(part, "type")) < 0)
        return -1;
    if (!json_is_string(json_object_get(part, "text")))
        return api_invalid(r->err, within, "%s.text must be a string", within);
    return fields_read(&inner, part, tables, 1);
}

/* A string, or an array of text parts. */
static int read_content(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct message *m = r->out;
    struct buf text = {.arena = r->arena};
    const char *name = field_path(r, f->name);
    if (json_is_string(value)) {
        m->content = json_string_value(value);
        m->content_len = json_string_length(value);
        return 0;
    }
    if (!json_is_array(value))
        return api_invalid(r->err, name, "%s must be a string or an array of text parts (got %s)", name,
                           field_got(value));
    for (size_t i = 0; i < json_array_size(value); i++)
        if (read_part(r, i, json_array_get(value, i), &text) < 0)
            return -1;
    if (text.failed)
        return api_out_of_memory(r->err);
    m->content = text.p ? text.p : "";
    m->content_len = text.len;
    return 0;
}

static int read_role(struct field_reader *r, const struct field *f, const json_t *value)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "function"};
    struct message *m = r->out;
    const char *role = json_string_value(value), *name = field_path(r, f->name);
    size_t i = 0;
    while (role && i < 6 && strcmp(role, roles[i]))
        i++;
    if (!role || i == 6)
        return api_invalid(r->err, name, "%s must be system, developer, user, assistant or tool (got %s)",
                           name, field_got_word(value));
    m->role = i == 1 ? "system" : i == 5 ? "tool" : roles[i];
    return 0;
}

static const struct field message_fields[] = {
    {.name = "role", .kind = FIELD_CUSTOM, .read = read_role},
    {.name = "content", .kind = FIELD_CUSTOM, .read = read_content},
    IGNORED("name"),
    IGNORED("annotations"),
    IGNORED("tool_call_id"), /* which call a tool's message answers: the order says it too */
    INERT("refusal"),
    INERT("audio"),
    INERT("tool_calls"),
    INERT("function_call"),
    {0},
};

static int read_message(struct field_reader *r, size_t i, const json_t *value, struct message *m)
{
    const struct field *tables[] = {message_fields};
    struct field_reader inner = *r;
    char within[32];
    snprintf(within, sizeof within, "messages[%zu]", i);
    inner.within = within;
    inner.out = m;
    *m = (struct message){0};
    if (!json_is_object(value))
        return api_invalid(r->err, within, "%s must be an object (got %s)", within, field_got(value));
    if (fields_read(&inner, value, tables, 1) < 0)
        return -1;
    if (!m->role)
        return api_invalid(r->err, field_path(&inner, "role"), "%s.role is missing", within);
    if (m->content)
        return 0;
    m->content = ""; /* what an assistant says beside a call of a tool may be null */
    if (!strcmp(m->role, "assistant"))
        return 0;
    return api_invalid(r->err, field_path(&inner, "content"),
                       "%s.content must be a string or an array of text parts (got null)", within);
}

static int read_messages(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    size_t n = json_array_size(value);
    if (!json_is_array(value) || !n)
        return api_invalid(r->err, f->name, "messages must be an array of at least one message (got %s)",
                           field_got(value));
    p->messages = arena_array(r->arena, n, sizeof *p->messages);
    if (!p->messages)
        return api_out_of_memory(r->err);
    for (size_t i = 0; i < n; i++)
        if (read_message(r, i, json_array_get(value, i), &p->messages[i]) < 0)
            return -1;
    p->n_messages = (uint32_t)n;
    return 0;
}

static int read_no_prompt(struct field_reader *r, const struct field *f, const json_t *value)
{
    (void)value;
    return api_invalid(r->err, f->name, "a chat takes messages, not %s", f->name);
}

#define COMMON_FIELDS                                                                                        \
    IGNORED("model"), IGNORED("user"),                                                                       \
        {.name = "stream_options", .kind = FIELD_CUSTOM, .read = read_stream_options},                       \
    {                                                                                                        \
        .name = "max_tokens", .kind = FIELD_CUSTOM, .read = read_max_tokens                                  \
    }

static const struct field completion_fields[] = {
    COMMON_FIELDS,
    {.name = "logprobs", .kind = FIELD_CUSTOM, .read = read_completion_logprobs},
    {.name = "best_of", .kind = FIELD_U32, .offset = AT(n), .min = 1, .max = 1},
    INERT("echo"),
    INERT("suffix"),
    {0},
};

static const struct field chat_fields[] = {
    COMMON_FIELDS,
    {.name = "messages", .kind = FIELD_CUSTOM, .read = read_messages},
    {.name = "prompt", .kind = FIELD_CUSTOM, .read = read_no_prompt},
    {.name = "max_completion_tokens", .kind = FIELD_CUSTOM, .read = read_max_tokens},
    {.name = "logprobs", .kind = FIELD_BOOL, .offset = AT(chat_logprobs)},
    {.name = "top_logprobs", .kind = FIELD_U32, .offset = AT(logprobs), .max = STEP_MAX_TOP},
    {.name = "response_format", .kind = FIELD_CUSTOM, .read = read_response_format},
    {.name = "modalities", .kind = FIELD_CUSTOM, .read = read_modalities},
    INERT("tools"),
    INERT("tool_choice"),
    INERT("functions"),
    INERT("function_call"),
    INERT("audio"),
    INERT("prediction"),
    INERT("web_search_options"),
    IGNORED("parallel_tool_calls"), /* without tools there is nothing to do in parallel */
    IGNORED("metadata"),
    IGNORED("store"),
    IGNORED("service_tier"),
    IGNORED("safety_identifier"),
    IGNORED("prompt_cache_key"),
    IGNORED("prompt_cache_retention"),
    INERT("reasoning_effort"),
    INERT("verbosity"),
    {0},
};

/* --- chat --- */

static void chat_defaults(struct params *p)
{
    p->max_tokens = UINT32_MAX; /* the rest of the context */
}

static void completion_defaults(struct params *p)
{
    p->max_tokens = 16;
}

static int check_template(const struct chat_template *c, struct api_error *err)
{
    switch (c->kind) {
    case CHAT_CHATML:
        return 0;
    case CHAT_FOREIGN:
        return api_invalid(err, "chat_template",
                           "the model's chat_template %s: nothing but ChatML is supported yet", c->unknown);
    case CHAT_ABSENT:
        break;
    }
    return api_invalid(err, "chat_template", "the model has no chat_template, and no ChatML tokens either");
}

/* What the template may write in a way that only running it would tell. */
static int check_messages(const struct chatml *form, const struct params *p, struct api_error *err)
{
    for (uint32_t i = 0; i < p->n_messages; i++) {
        const struct message *m = &p->messages[i];
        bool last = i + 1 == p->n_messages;
        if (form->changes_tools && !strcmp(m->role, "tool"))
            return api_invalid(err, "chat_template",
                               "messages: role tool is not supported yet with this model's chat_template");
        if (form->changes_answers && !strcmp(m->role, "assistant") &&
            (last || memmem(m->content, m->content_len, "</think>", 8)))
            return api_invalid(
                err, "chat_template",
                "messages: role assistant at the end or with </think> is not supported yet with "
                "this model's chat_template");
    }
    return 0;
}

static int put_text(struct generation *g, const char *text, size_t len, struct api_error *err)
{
    /* What users write never becomes a special token. */
    return generation_encode(g, text, len, (struct tokenizer_flags){0}, err);
}

/* <|im_start|>role\ncontent<|im_end|>\n: everything between two special tokens is encoded as one text. */
static int put_message(struct generation *g, const struct chat_template *c, const struct message *m,
                       struct api_error *err)
{
    struct buf text = {.arena = g->arena};
    buf_puts(&text, m->role);
    buf_puts(&text, "\n");
    buf_put(&text, m->content, m->content_len);
    if (text.failed)
        return api_out_of_memory(err);
    if (generation_append_id(g, c->start, err) < 0 || put_text(g, text.p, text.len, err) < 0 ||
        generation_append_id(g, c->end, err) < 0)
        return -1;
    return put_text(g, "\n", 1, err);
}

/* What the template says in place of a system message at the beginning. */
static int put_default_system(struct generation *g, const struct chat_template *c, struct api_error *err)
{
    struct message m = {.role = "system", .content = c->form.system, .content_len = c->form.n_system};
    if (!c->form.n_system || !strcmp(g->p.messages[0].role, "system"))
        return 0;
    return put_message(g, c, &m, err);
}

static int chat_prepare(struct generation *g, struct api_error *err)
{
    const struct tokenizer *t = g->server->model.tokenizer;
    struct params *p = &g->p;
    const struct chat_template *c = &g->server->model.chat;
    if (!p->messages)
        return api_invalid(err, "messages", "messages is missing");
    if (p->logprobs && !p->chat_logprobs)
        return api_invalid(err, "top_logprobs", "top_logprobs needs logprobs to be true");
    p->has_logprobs = p->chat_logprobs;
    if (check_template(c, err) < 0 || check_messages(&c->form, p, err) < 0)
        return -1;
    if (p->add_special && tokenizer_adds_bos(t) && generation_append_id(g, tokenizer_bos(t), err) < 0)
        return -1;
    if (put_default_system(g, c, err) < 0)
        return -1;
    for (uint32_t i = 0; i < p->n_messages; i++)
        if (put_message(g, c, &p->messages[i], err) < 0)
            return -1;
    if (generation_append_id(g, c->start, err) < 0)
        return -1;
    return put_text(g, "assistant\n", 10, err);
}

/* --- replies --- */

/* The dialect's words: "stop" for an end token and a stop string alike, "length" for whatever cut the text
 * short. */
static void put_finish(struct buf *out, const char *finish)
{
    bool ended = finish && (!strcmp(finish, "eos") || !strcmp(finish, "stop"));
    json_put_str(out, !finish ? NULL : ended ? "stop" : "length");
}

/* /generate's own member, beside the choices. */
static void put_prompt(struct generation *g, struct buf *out)
{
    if (!g->e.want_prompt_logprobs)
        return;
    buf_puts(out, ",\"prompt_logprobs\":");
    put_prompt_logprobs(g, out);
}

static void put_usage(struct buf *out, const struct generation *g)
{
    buf_printf(out,
               "{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u,"
               "\"prompt_tokens_details\":{\"cached_tokens\":%u}}",
               g->e.n_prompt, g->n_tokens, g->e.n_prompt + g->n_tokens, g->e.n_cached);
}

static void put_head(struct generation *g, struct buf *out, const char *object)
{
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", g->id, object,
               (long long)g->created);
    json_put_str(out, model_config(g->server->model.model)->name);
    buf_printf(out, ",\"system_fingerprint\":\"%s\",\"choices\":[", g->server->fingerprint);
}

static struct tokenizer_piece piece_of(const struct generation *g, int32_t token)
{
    return tokenizer_piece(g->server->model.tokenizer, token, true);
}

/* The token's text, or the dialect's bytes:\xe2\x80 where it is not valid UTF-8 by itself: a key must differ.
 */
static void put_token_key(struct buf *out, const struct generation *g, int32_t token)
{
    struct tokenizer_piece piece = piece_of(g, token);
    if (utf8_valid(piece.s, piece.len) == piece.len) {
        json_put_string(out, piece.s, piece.len);
        return;
    }
    buf_puts(out, "\"bytes:");
    for (uint32_t i = 0; i < piece.len; i++)
        buf_printf(out, "\\\\x%02x", (unsigned char)piece.s[i]);
    buf_puts(out, "\"");
}

static void put_completion_top(struct buf *out, const struct generation *g, uint32_t i)
{
    const struct engine_request *e = &g->e;
    buf_puts(out, "{");
    for (uint32_t k = 0; k < e->n_top; k++) {
        const struct step_top *top = &e->top[(size_t)i * e->n_top + k];
        if (k)
            buf_puts(out, ",");
        put_token_key(out, g, top->token);
        buf_puts(out, ":");
        json_put_number(out, top->logprob, 7);
    }
    buf_puts(out, "}");
}

static size_t shown_len(const struct generation *g, uint32_t i)
{
    return tokenizer_piece(g->server->model.tokenizer, g->e.out[i].token, false).len;
}

static void put_completion_logprobs(struct buf *out, struct generation *g, const struct piece *piece)
{
    size_t offset = piece->from ? g->event_offset : 0;
    if (!g->p.has_logprobs) {
        buf_puts(out, "null");
        return;
    }
    buf_puts(out, "{\"tokens\":[");
    for (uint32_t i = piece->from; i < piece->to; i++) {
        buf_puts(out, i > piece->from ? "," : "");
        put_token_key(out, g, g->e.out[i].token);
    }
    buf_puts(out, "],\"token_logprobs\":[");
    for (uint32_t i = piece->from; i < piece->to; i++) {
        buf_puts(out, i > piece->from ? "," : "");
        json_put_number(out, g->e.out[i].logprob, 7);
    }
    buf_puts(out, "],\"top_logprobs\":[");
    for (uint32_t i = piece->from; i < piece->to; i++) {
        buf_puts(out, i > piece->from ? "," : "");
        put_completion_top(out, g, i);
    }
    buf_puts(out, "],\"text_offset\":[");
    for (uint32_t i = piece->from; i < piece->to; i++) {
        buf_printf(out, "%s%zu", i > piece->from ? "," : "", offset);
        offset += shown_len(g, i);
    }
    g->event_offset = offset;
    buf_puts(out, "]}");
}

static void put_completion_choice(struct generation *g, struct buf *out, const struct piece *piece,
                                  const char *finish)
{
    buf_puts(out, "{\"index\":0,\"text\":");
    json_put_string(out, piece->text, piece->len);
    buf_puts(out, ",\"logprobs\":");
    put_completion_logprobs(out, g, piece);
    buf_puts(out, ",\"finish_reason\":");
    put_finish(out, finish);
    buf_puts(out, "}");
}

static void completion_reply(struct generation *g, struct buf *out)
{
    struct piece whole = generation_whole(g);
    put_head(g, out, "text_completion");
    put_completion_choice(g, out, &whole, g->finish);
    buf_puts(out, "]");
    put_prompt(g, out);
    buf_puts(out, ",\"usage\":");
    put_usage(out, g);
    buf_puts(out, "}\n");
}

/* In a stream that ends with a usage event the others say that theirs is not known. */
static void close_chunk(const struct generation *g, struct buf *out)
{
    buf_puts(out, g->p.include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
}

static void put_last(struct generation *g, struct buf *out, const char *object)
{
    if (g->p.include_usage) {
        buf_puts(out, "data: ");
        put_head(g, out, object);
        buf_puts(out, "],\"usage\":");
        put_usage(out, g);
        buf_puts(out, "}\n\n");
    }
    buf_puts(out, "data: [DONE]\n\n");
}

static void completion_chunk(struct generation *g, struct buf *out, const struct piece *piece,
                             const char *finish)
{
    buf_puts(out, "data: ");
    put_head(g, out, "text_completion");
    put_completion_choice(g, out, piece, finish);
    buf_puts(out, "]");
    if (finish)
        put_prompt(g, out);
    close_chunk(g, out);
}

static void completion_delta(struct generation *g, struct buf *out, const struct piece *piece)
{
    completion_chunk(g, out, piece, NULL);
}

static void completion_end(struct generation *g, struct buf *out, const struct piece *piece)
{
    completion_chunk(g, out, piece, g->finish);
    put_last(g, out, "text_completion");
}

static void put_chat_token(struct buf *out, const struct generation *g, int32_t token, double logprob)
{
    struct tokenizer_piece piece = piece_of(g, token);
    buf_puts(out, "{\"token\":");
    put_token_key(out, g, token);
    buf_puts(out, ",\"logprob\":");
    json_put_number(out, logprob, 7);
    buf_puts(out, ",\"bytes\":[");
    for (uint32_t i = 0; i < piece.len; i++)
        buf_printf(out, "%s%u", i ? "," : "", (unsigned char)piece.s[i]);
    buf_puts(out, "]");
}

static void put_chat_logprobs(struct buf *out, const struct generation *g, const struct piece *piece)
{
    const struct engine_request *e = &g->e;
    if (!g->p.has_logprobs) {
        buf_puts(out, "null");
        return;
    }
    buf_puts(out, "{\"content\":[");
    for (uint32_t i = piece->from; i < piece->to; i++) {
        buf_puts(out, i > piece->from ? "," : "");
        put_chat_token(out, g, e->out[i].token, e->out[i].logprob);
        buf_puts(out, ",\"top_logprobs\":[");
        for (uint32_t k = 0; k < e->n_top; k++) {
            const struct step_top *top = &e->top[(size_t)i * e->n_top + k];
            buf_puts(out, k ? "," : "");
            put_chat_token(out, g, top->token, top->logprob);
            buf_puts(out, "}");
        }
        buf_puts(out, "]}");
    }
    buf_puts(out, "],\"refusal\":null}");
}

static void chat_reply(struct generation *g, struct buf *out)
{
    struct piece whole = generation_whole(g);
    put_head(g, out, "chat.completion");
    buf_puts(out, "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":");
    json_put_string(out, whole.text, whole.len);
    buf_puts(out, ",\"refusal\":null},\"logprobs\":");
    put_chat_logprobs(out, g, &whole);
    buf_puts(out, ",\"finish_reason\":");
    put_finish(out, g->finish);
    buf_puts(out, "}]");
    put_prompt(g, out);
    buf_puts(out, ",\"usage\":");
    put_usage(out, g);
    buf_puts(out, "}\n");
}

static void chat_begin(struct generation *g, struct buf *out)
{
    buf_puts(out, "data: ");
    put_head(g, out, "chat.completion.chunk");
    buf_puts(out, "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
                  "\"finish_reason\":null}]");
    close_chunk(g, out);
}

static void chat_delta(struct generation *g, struct buf *out, const struct piece *piece)
{
    buf_puts(out, "data: ");
    put_head(g, out, "chat.completion.chunk");
    buf_puts(out, "{\"index\":0,\"delta\":{\"content\":");
    json_put_string(out, piece->text, piece->len);
    buf_puts(out, "},\"logprobs\":");
    put_chat_logprobs(out, g, piece);
    buf_puts(out, ",\"finish_reason\":null}]");
    close_chunk(g, out);
}

static void chat_end(struct generation *g, struct buf *out, const struct piece *piece)
{
    bool more = piece->len || (g->p.has_logprobs && piece->to > piece->from);
    if (more)
        chat_delta(g, out, piece);
    buf_puts(out, "data: ");
    put_head(g, out, "chat.completion.chunk");
    buf_puts(out, "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":");
    put_finish(out, g->finish);
    buf_puts(out, "}]");
    put_prompt(g, out);
    close_chunk(g, out);
    put_last(g, out, "chat.completion.chunk");
}

const struct dialect dialect_completions = {
    .id_prefix = "cmpl-",
    .fields = completion_fields,
    .defaults = completion_defaults,
    .reply = completion_reply,
    .delta = completion_delta,
    .end = completion_end,
};

const struct dialect dialect_chat = {
    .id_prefix = "chatcmpl-",
    .fields = chat_fields,
    .defaults = chat_defaults,
    .prepare = chat_prepare,
    .reply = chat_reply,
    .begin = chat_begin,
    .delta = chat_delta,
    .end = chat_end,
};

static void put_model(struct request *r)
{
    buf_puts(&r->out, "{\"id\":");
    json_put_str(&r->out, model_config(r->server->model.model)->name);
    buf_printf(&r->out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"hearth\"}",
               (long long)r->server->created);
}

void api_models(struct request *r)
{
    buf_puts(&r->out, "{\"object\":\"list\",\"data\":[");
    put_model(r);
    buf_puts(&r->out, "]}\n");
    request_reply(r, 200);
}

void api_model(struct request *r)
{
    const char *name = model_config(r->server->model.model)->name, *id = route_id(r->route, r->path);
    if (strcmp(id, name)) {
        api_fail(&r->error, 404, "not_found", "model", "no model %.100s (the loaded one is %.100s)", id,
                 name);
        request_fail(r, &r->error);
        return;
    }
    put_model(r);
    buf_puts(&r->out, "\n");
    request_reply(r, 200);
}
