/* api_openai.c - the OpenAI dialect: GET /v1/models, POST /v1/completions and /v1/chat/completions.
 * Every field of the dialect's reference is known: what only labels is ignored, what changes the answer works
 * or is refused by name; /generate's own fields work too. */
#include "generation/chat_messages.h"
#include "generation/generation.h"
#include "model/model.h"
#include "base/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define AT(field) offsetof(struct params, field)
#define IGNORED(n)                                                                                           \
    {                                                                                                        \
        .name = n, .kind = FIELD_IGNORED                                                                     \
    }

/* --- fields --- */

/* Known, but only the value that asks for nothing is accepted: false, an empty array or string. */
static int read_inert(struct field_reader *r, const struct field *f, const json_t *value)
{
    if (json_is_false(value) || (json_is_string(value) && !json_string_length(value)) ||
        (json_is_array(value) && !json_array_size(value)))
        return 0;
    return api_invalid(r->err, f->name, "%s is not supported (got %s)", f->name, field_got(value));
}

/* The same of a member that takes one of a few words: false, or those that ask for nothing. */
static int read_word(struct field_reader *r, const struct field *f, const json_t *value)
{
    static const struct {
        const char *name, *inert[2], *known;
    } words[] = {{"tool_choice", {"auto", "none"}, "\"auto\" or \"none\""},
                 {"function_call", {"auto", "none"}, "\"auto\" or \"none\""},
                 {"reasoning_effort", {"medium", "none"}, "\"medium\" or \"none\""},
                 {"verbosity", {"medium", "medium"}, "\"medium\""}};
    const char *given = json_string_value(value);
    size_t i = 0;
    while (strcmp(f->name, words[i].name))
        i++;
    if (json_is_false(value) ||
        (given && (!strcmp(given, words[i].inert[0]) || !strcmp(given, words[i].inert[1]))))
        return 0;
    return api_invalid(r->err, f->name, "%s must be %s: nothing else is supported (got %s)", f->name,
                       words[i].known, field_got_word(value));
}

/* Whatever the name, it is the loaded model that answers. */
static int read_model(struct field_reader *r, const struct field *f, const json_t *value)
{
    if (json_is_string(value))
        return 0;
    return api_invalid(r->err, f->name, "%s must be a string (got %s)", f->name, field_got(value));
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
#define WORD(n)                                                                                              \
    {                                                                                                        \
        .name = n, .kind = FIELD_CUSTOM, .read = read_word                                                   \
    }

/* "auto" leaves it to the model, "none" keeps the tools from it. */
static int read_tool_choice(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    p->no_tools = json_is_string(value) && !strcmp(json_string_value(value), "none");
    return read_word(r, f, value);
}

static int read_no_prompt(struct field_reader *r, const struct field *f, const json_t *value)
{
    (void)value;
    return api_invalid(r->err, f->name, "a chat needs messages, not %s", f->name);
}

#define COMMON_FIELDS                                                                                        \
    {.name = "model", .kind = FIELD_CUSTOM, .read = read_model}, IGNORED("user"),                            \
        {.name = "stream_options", .kind = FIELD_CUSTOM, .read = read_stream_options},                       \
    {                                                                                                        \
        .name = "max_tokens", .kind = FIELD_CUSTOM, .read = read_max_tokens                                  \
    }

static const struct field completion_fields[] = {
    COMMON_FIELDS,
    {.name = "logprobs", .kind = FIELD_CUSTOM, .read = read_completion_logprobs},
    {.name = "best_of",
     .kind = FIELD_U32,
     .offset = AT(best_of),
     .min = 1,
     .max = GENERATE_MAX_CHOICES,
     .given = AT(has_best_of)},
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
    {.name = "modalities", .kind = FIELD_CUSTOM, .read = read_modalities},
    {.name = "tools", .kind = FIELD_CUSTOM, .read = read_tools},
    {.name = "tool_choice", .kind = FIELD_CUSTOM, .read = read_tool_choice},
    {.name = "documents", .kind = FIELD_CUSTOM, .read = read_documents},
    {.name = "chat_template_kwargs", .kind = FIELD_CUSTOM, .read = read_template_variables},
    {.name = "add_generation_prompt", .kind = FIELD_BOOL, .offset = AT(chat.add_generation_prompt)},
    INERT("functions"),
    WORD("function_call"),
    INERT("audio"),
    INERT("prediction"),
    INERT("web_search_options"),
    IGNORED("parallel_tool_calls"), /* calls are part of the text here, as many as the model writes */
    IGNORED("metadata"),
    IGNORED("store"),
    IGNORED("service_tier"),
    IGNORED("safety_identifier"),
    IGNORED("prompt_cache_key"),
    IGNORED("prompt_cache_retention"),
    WORD("reasoning_effort"),
    WORD("verbosity"),
    {0},
};

/* --- chat --- */

static void chat_defaults(struct params *p)
{
    p->max_tokens = UINT32_MAX; /* the rest of the context */
    p->chat.add_generation_prompt = true;
}

static void completion_defaults(struct params *p)
{
    p->max_tokens = 16;
}

/* Choosing among more texts than are shown is not offered. */
static int completion_prepare(struct generation *g, struct api_error *err)
{
    const struct params *p = &g->p;
    if (!p->has_best_of || p->best_of == p->n)
        return 0;
    return api_invalid(err, "best_of", "best_of must be equal to n, %u (got %u)", p->n, p->best_of);
}

/* What is given and would have no effect is refused, as an unknown field is. */
static int check_template(const struct chat_template *c, const struct chat *chat, struct api_error *err)
{
    if (!c)
        return api_invalid(err, "chat_template", "the model has neither a chat_template nor ChatML tokens");
    if (chat->tools.kind != JINJA_UNDEFINED && !chat_template_reads(c, "tools"))
        return api_invalid(err, "tools", "the model's chat_template does not support tools");
    if (chat->documents.kind != JINJA_UNDEFINED && !chat_template_reads(c, "documents"))
        return api_invalid(err, "documents", "the model's chat_template does not support documents");
    return 0;
}

static int refuse_render(struct generation *g, int rc, const struct error *words, struct api_error *err)
{
    if (rc == -ENOMEM)
        return api_out_of_memory(err);
    if (rc == -E2BIG)
        return generation_too_long(g, err);
    if (rc == -EINVAL)
        return api_invalid(err, "messages", "the model's chat_template rejects the messages: %s",
                           words->text);
    return api_invalid(err, "chat_template", "the model's chat_template cannot render the messages: %s",
                       words->text);
}

/* The file's BOS comes first, whether the template writes it or not. */
static int put_prompt_text(struct generation *g, struct jinja_text text, struct api_error *err)
{
    const struct tokenizer *t = g->model->tokenizer;
    struct params *p = &g->p;
    int32_t bos = tokenizer_bos(t);
    bool adds = p->add_special && tokenizer_adds_bos(t);
    /* What users write never becomes a special token. */
    struct tokenizer_flags flags = {.parse_special = text.plain != jinja_all_plain};
    flags.plain = flags.parse_special ? text.plain : NULL;
    if ((adds && generation_append_id(g, bos, err) < 0) ||
        generation_encode(g, text.s, text.len, flags, err) < 0)
        return -1;
    if (adds && p->n_ids > 1 && p->ids[1] == bos)
        memmove(p->ids, p->ids + 1, --p->n_ids * sizeof *p->ids);
    return 0;
}

static int chat_prepare(struct generation *g, struct api_error *err)
{
    const struct server_model *m = g->model;
    struct params *p = &g->p;
    struct error words = {0};
    struct jinja_text text;
    if (!p->chat.messages)
        return api_invalid(err, "messages", "messages is missing");
    if (p->logprobs && !p->chat_logprobs)
        return api_invalid(err, "top_logprobs", "top_logprobs needs logprobs to be true");
    p->has_logprobs = p->chat_logprobs;
    if (p->no_tools)
        p->chat.tools = (struct jinja_value){0};
    if (check_template(m->chat, &p->chat, err) < 0)
        return -1;
    p->chat.now = g->created;
    struct jinja_limits limits = {.operations = generation_operations(g),
                                  .output = (size_t)m->n_ctx * tokenizer_max_piece(m->tokenizer)};
    struct arena scratch = {0}; /* not the request's: it would keep all that the render made for long */
    int rc = chat_template_render(m->chat, &p->chat, limits, &scratch, &text, &words);
    if (rc == -ELOOP && limits.operations)
        rc = generation_exceeded(g);
    else
        rc = rc < 0 ? refuse_render(g, rc, &words, err) : put_prompt_text(g, text, err);
    arena_close(&scratch);
    return rc;
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
    if (!g->choices->e.want_prompt_logprobs)
        return;
    buf_puts(out, ",\"prompt_logprobs\":");
    put_prompt_logprobs(g, out);
}

static void put_usage(struct buf *out, const struct generation *g)
{
    const struct engine_request *e = &g->choices->e;
    uint32_t n_tokens = generation_n_tokens(g);
    buf_printf(out,
               "{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u,"
               "\"prompt_tokens_details\":{\"cached_tokens\":%u}}",
               e->n_prompt, n_tokens, e->n_prompt + n_tokens, e->n_cached);
}

static void put_head(struct generation *g, struct buf *out, const char *object)
{
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", g->id, object,
               (long long)g->created);
    json_put_str(out, model_config(g->model->model)->name);
    buf_printf(out, ",\"system_fingerprint\":\"%s\",\"choices\":[", g->model->fingerprint);
}

static struct tokenizer_piece piece_of(const struct generation *g, int32_t token)
{
    return tokenizer_piece(g->model->tokenizer, token, true);
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

static void put_key(struct buf *out, struct reply_list *l)
{
    const struct choice *c = l->of;
    put_token_key(out, c->g, c->e.out[l->i].token);
}

static void put_logprob(struct buf *out, struct reply_list *l)
{
    const struct choice *c = l->of;
    json_put_number(out, c->e.out[l->i].logprob, 7);
}

static void put_top(struct buf *out, struct reply_list *l)
{
    const struct choice *c = l->of;
    const struct engine_request *e = &c->e;
    buf_puts(out, "{");
    for (uint32_t k = 0; k < e->n_top; k++) {
        const struct step_top *top = &e->top[(size_t)l->i * e->n_top + k];
        if (k)
            buf_puts(out, ",");
        put_token_key(out, c->g, top->token);
        buf_puts(out, ":");
        json_put_number(out, top->logprob, 7);
    }
    buf_puts(out, "}");
}

/* The characters that begin in a token: the dialect's offsets count those, not bytes. (Of well-formed text: a
 * stray byte in the middle of none is a U+FFFD that is not counted.) */
static size_t shown_len(const struct choice *c, uint32_t i)
{
    struct tokenizer_piece piece = tokenizer_piece(c->g->model->tokenizer, c->e.out[i].token, false);
    size_t n = 0;
    for (uint32_t k = 0; k < piece.len; k++)
        n += ((unsigned char)piece.s[k] & 0xc0) != 0x80;
    return n;
}

/* Offsets go on from token to token and from event to event. */
static void put_offset(struct buf *out, struct reply_list *l)
{
    struct choice *c = (struct choice *)l->of;
    json_put_uint(out, c->event_offset);
    c->event_offset += shown_len(c, l->i);
}

static void put_completion_logprobs(struct buf *out, struct choice *c, const struct piece *piece)
{
    static const struct {
        const char *name;
        void (*put)(struct buf *out, struct reply_list *l);
    } lists[] = {{"{\"tokens\":[", put_key},
                 {"],\"token_logprobs\":[", put_logprob},
                 {"],\"top_logprobs\":[", put_top},
                 {"],\"text_offset\":[", put_offset}};
    if (!c->g->p.has_logprobs) {
        buf_puts(out, "null");
        return;
    }
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        buf_puts(out, lists[i].name);
        put_items(c, piece->from, piece->to, lists[i].put);
    }
    buf_puts(out, "]}");
}

static void put_completion_choice(struct choice *c, struct buf *out, const struct piece *piece,
                                  const char *finish)
{
    buf_printf(out, "{\"index\":%u,\"text\":", c->index);
    put_piece_text(c, piece);
    buf_puts(out, ",\"logprobs\":");
    put_completion_logprobs(out, c, piece);
    buf_puts(out, ",\"finish_reason\":");
    put_finish(out, finish);
    buf_puts(out, "}");
}

static void completion_reply(struct generation *g, struct buf *out)
{
    put_head(g, out, "text_completion");
    for (uint32_t i = 0; i < g->n_choices; i++) {
        struct choice *c = &g->choices[i];
        struct piece whole = choice_whole(c);
        buf_puts(out, i ? "," : "");
        put_completion_choice(c, out, &whole, c->finish);
    }
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

static void completion_chunk(struct choice *c, struct buf *out, const struct piece *piece, const char *finish)
{
    struct generation *g = c->g;
    buf_puts(out, "data: ");
    put_head(g, out, "text_completion");
    put_completion_choice(c, out, piece, finish);
    buf_puts(out, "]");
    if (finish && choice_tells_last(c))
        put_prompt(g, out);
    close_chunk(g, out);
}

static void completion_delta(struct choice *c, struct buf *out, const struct piece *piece)
{
    completion_chunk(c, out, piece, NULL);
}

static void completion_end(struct choice *c, struct buf *out, const struct piece *piece)
{
    completion_chunk(c, out, piece, c->finish);
}

static void completion_last(struct generation *g, struct buf *out)
{
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

static void put_chat_logprobs(struct buf *out, const struct choice *c, const struct piece *piece)
{
    if (!c->g->p.has_logprobs) {
        buf_puts(out, "null");
        return;
    }
    buf_puts(out, "{\"content\":[");
    put_items(c, piece->from, piece->to, put_chat_logprob);
    buf_puts(out, "],\"refusal\":null}");
}

static void put_message(const struct choice *c, struct buf *out)
{
    struct piece whole = choice_whole(c);
    buf_printf(out, "{\"index\":%u,\"message\":{\"role\":\"assistant\",\"content\":", c->index);
    put_piece_text(c, &whole);
    buf_puts(out, ",\"refusal\":null},\"logprobs\":");
    put_chat_logprobs(out, c, &whole);
    buf_puts(out, ",\"finish_reason\":");
    put_finish(out, c->finish);
    buf_puts(out, "}");
}

static void chat_reply(struct generation *g, struct buf *out)
{
    put_head(g, out, "chat.completion");
    for (uint32_t i = 0; i < g->n_choices; i++) {
        buf_puts(out, i ? "," : "");
        put_message(&g->choices[i], out);
    }
    buf_puts(out, "]");
    put_prompt(g, out);
    buf_puts(out, ",\"usage\":");
    put_usage(out, g);
    buf_puts(out, "}\n");
}

static void open_chat_chunk(const struct choice *c, struct buf *out)
{
    buf_puts(out, "data: ");
    put_head(c->g, out, "chat.completion.chunk");
    buf_printf(out, "{\"index\":%u,\"delta\":", c->index);
}

static void chat_begin(struct generation *g, struct buf *out)
{
    for (uint32_t i = 0; i < g->n_choices; i++) {
        open_chat_chunk(&g->choices[i], out);
        buf_puts(out, "{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]");
        close_chunk(g, out);
    }
}

static void chat_delta(struct choice *c, struct buf *out, const struct piece *piece)
{
    open_chat_chunk(c, out);
    buf_puts(out, "{\"content\":");
    put_piece_text(c, piece);
    buf_puts(out, "},\"logprobs\":");
    put_chat_logprobs(out, c, piece);
    buf_puts(out, ",\"finish_reason\":null}]");
    close_chunk(c->g, out);
}

static void chat_end(struct choice *c, struct buf *out, const struct piece *piece)
{
    bool more = piece->len || (c->g->p.has_logprobs && piece->to > piece->from);
    if (more)
        chat_delta(c, out, piece);
    open_chat_chunk(c, out);
    buf_puts(out, "{},\"logprobs\":null,\"finish_reason\":");
    put_finish(out, c->finish);
    buf_puts(out, "}]");
    if (choice_tells_last(c))
        put_prompt(c->g, out);
    close_chunk(c->g, out);
}

static void chat_last(struct generation *g, struct buf *out)
{
    put_last(g, out, "chat.completion.chunk");
}

const struct dialect dialect_completions = {
    .id_prefix = "cmpl-",
    .fields = completion_fields,
    .defaults = completion_defaults,
    .prepare = completion_prepare,
    .reply = completion_reply,
    .delta = completion_delta,
    .end = completion_end,
    .last = completion_last,
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
    .last = chat_last,
};

static void put_model(struct request *r)
{
    buf_puts(&r->out, "{\"id\":");
    json_put_str(&r->out, model_config(r->server->model->model)->name);
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
    const char *name = model_config(r->server->model->model)->name, *id = route_id(r->route, r->path);
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
