/* api_tokens.c - POST /tokenize and /detokenize: text to ids and back, without the engine. A conversation
 * goes the way of a chat up to its prompt. */
#include "api.h"
#include "api_chat.h"
#include "api_openai_private.h"
#include "base/utf8.h"
#include "json/json_fields.h"
#include "json/json_member.h"
#include "generation/generation.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define FEW_VALUES 64 /* beside a long list */

struct token_params {
    const char *content;
    size_t content_len;
    bool add_special, parse_special, counts; /* vLLM's: by `prompt`, whose reply has their number */
    bool strings, pieces;                    /* their texts too, as vLLM and llama-server show them */
    const json_t *tokens;
};

static int read_content(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct token_params *p = r->out;
    if (!json_is_string(value))
        return api_invalid(r->err, f->name, "%s must be a string (got %s)", f->name, field_got(value));
    if (p->content)
        return api_invalid(r->err, f->name, "content and prompt are the same field: one of them is allowed");
    p->content = json_string_value(value);
    p->content_len = json_string_length(value);
    return 0;
}

static int read_tokens(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct token_params *p = r->out;
    if (!json_is_array(value))
        return api_invalid(r->err, f->name, "tokens must be an array of token ids (got %s)",
                           field_got(value));
    p->tokens = value;
    return 0;
}

static int read_prompt_text(struct field_reader *r, const struct field *f, const json_t *value)
{
    ((struct token_params *)r->out)->counts = true;
    return read_content(r, f, value);
}

#define IN(field) offsetof(struct token_params, field)
static const struct field tokenize_fields[] = {
    {.name = "content", .kind = FIELD_CUSTOM, .read = read_content},
    {.name = "prompt", .kind = FIELD_CUSTOM, .read = read_prompt_text},
    {.name = "model", .kind = FIELD_IGNORED}, /* it was found before */
    {.name = "add_special", .kind = FIELD_BOOL, .offset = IN(add_special)},
    {.name = "add_special_tokens", .kind = FIELD_BOOL, .offset = IN(add_special)},
    {.name = "parse_special", .kind = FIELD_BOOL, .offset = IN(parse_special)},
    {.name = "return_token_strs", .kind = FIELD_BOOL, .offset = IN(strings)},
    {.name = "with_pieces", .kind = FIELD_BOOL, .offset = IN(pieces)},
    {0},
};
static const struct field detokenize_fields[] = {
    {.name = "model", .kind = FIELD_IGNORED},
    {.name = "tokens", .kind = FIELD_CUSTOM, .read = read_tokens},
    {0},
};

/* The tree is the caller's; NULL with r->error set. */
static json_t *read_body(struct request *r, const struct field *fields, const struct json_limits *limits,
                         struct token_params *p)
{
    json_t *body = json_read(r->body, r->body_len, limits, &r->error);
    struct field_reader reader = {.out = p,
                                  .arena = &r->arena,
                                  .err = &r->error,
                                  .ignore_unknown = r->server->cfg->unknown_fields == CONFIG_IGNORE};
    if (body && fields_read(&reader, body, &fields, 1) < 0) {
        json_decref(body);
        return NULL;
    }
    return body;
}

static void answer(struct request *r)
{
    if (r->model)
        generator_unref_model(r->server->generator, r->model);
    r->model = NULL;
    request_drop_body(r);
    if (!r->connection || r->gone)
        return;
    if (r->error.status || !request_has_room(r))
        request_fail(r, &r->error);
    else
        request_reply(r, 200);
    request_resume(r);
}

/* The text of each token; bytes that are no character by themselves are U+FFFD. */
static void put_strings(struct buf *out, const struct tokenizer *t, const int32_t *ids, size_t n)
{
    buf_puts(out, ",\"token_strs\":[");
    for (size_t i = 0; i < n; i++) {
        struct tokenizer_piece piece = tokenizer_piece(t, ids[i], true);
        buf_puts(out, i ? "," : "");
        json_put_string(out, piece.s, piece.len);
    }
    buf_puts(out, "]");
}

/* {"id", "piece"} of each token, the piece as a text or, where it is none by itself, as bytes. */
static void put_pieces(struct buf *out, const struct tokenizer *t, const int32_t *ids, size_t n)
{
    buf_puts(out, "[");
    for (size_t i = 0; i < n; i++) {
        struct tokenizer_piece piece = tokenizer_piece(t, ids[i], true);
        bool whole = utf8_valid(piece.s, piece.len) == piece.len;
        buf_printf(out, "%s{\"id\":%d,\"piece\":", i ? "," : "", ids[i]);
        if (whole)
            json_put_string(out, piece.s, piece.len);
        for (uint32_t k = 0; !whole && k < piece.len; k++)
            buf_printf(out, "%s%u", k ? "," : "[", (unsigned char)piece.s[k]);
        buf_puts(out, whole ? "}" : "]}");
    }
    buf_puts(out, "]");
}

/* What vLLM's reply has behind the ids. */
static void put_count(struct buf *out, size_t n, uint32_t n_ctx)
{
    buf_printf(out, ",\"count\":%zu,\"max_model_len\":%u", n, n_ctx);
}

static void encode(struct request *r, const struct token_params *p)
{
    struct tokenizer_flags flags = {.add_special = p->add_special, .parse_special = p->parse_special};
    struct error words = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    if (!p->content) {
        api_invalid(&r->error, "content", "content is missing");
        return;
    }
    int rc = tokenizer_encode(r->model->tokenizer, p->content, p->content_len, flags, 0, &ids, &n, &words);
    if (rc < 0) {
        if (rc == -ENOMEM)
            api_out_of_memory(&r->error);
        else
            api_invalid(&r->error, "content", "%s", words.text);
        return;
    }
    buf_puts(&r->out, "{\"tokens\":");
    if (p->pieces)
        put_pieces(&r->out, r->model->tokenizer, ids, n);
    else
        json_put_ids(&r->out, ids, n);
    if (p->counts)
        put_count(&r->out, n, r->model->n_ctx);
    if (p->strings)
        put_strings(&r->out, r->model->tokenizer, ids, n);
    buf_puts(&r->out, "}\n");
    free(ids);
}

static void tokenize(struct request *r)
{
    struct token_params p = {.add_special = true, .parse_special = true};
    const struct json_limits limits = {.max_values = FEW_VALUES, .max_depth = JSON_MAX_DEPTH_IN_BODY};
    json_t *body = read_body(r, tokenize_fields, &limits, &p);
    if (body)
        encode(r, &p);
    json_decref(body);
}

static void answer_long(struct request *r)
{
    assert(r->server->generator->n_texts > 0);
    r->server->generator->n_texts--;
    answer(r);
}

/* --- a conversation --- */

static const struct field chat_own_fields[] = {
    {.name = "return_token_strs", .kind = FIELD_BOOL, .offset = AT(include_usage)},
    INERT("add_special_tokens"),
    {0},
};

static void put_chat_tokens(struct generation *g, struct buf *out)
{
    const struct engine_request *e = &g->choices->e;
    buf_puts(out, "{\"tokens\":");
    json_put_ids(out, e->prompt, e->n_prompt);
    put_count(out, e->n_prompt, g->model->n_ctx);
    if (g->p.include_usage)
        put_strings(out, g->model->tokenizer, e->prompt, e->n_prompt);
    buf_puts(out, "}\n");
}

const struct dialect dialect_tokenize = {.id_prefix = "chatcmpl-",
                                         .fields = chat_fields,
                                         .own_fields = chat_extras,
                                         .extras = chat_own_fields,
                                         .defaults = chat_defaults,
                                         .prepare = chat_dialect_prepare,
                                         .reply = put_chat_tokens,
                                         .mends = true,
                                         .counts = true};

static void open_chat(struct request *r)
{
    if (!r->connection || r->gone) {
        request_drop_body(r);
    } else if (generator_admits(r->server->generator, &r->error) < 0) {
        request_drop_body(r);
        request_fail(r, &r->error);
        request_resume(r);
    } else {
        generation_open(r, &dialect_tokenize);
    }
}

/* --- where it is done --- */

struct text_work { /* the request's context */
    char model[256];
    bool chat;
    void (*work)(struct request *r);
};

/* What is known before the body is read. */
static void read_model(struct request *r)
{
    struct text_work *t = r->context;
    const char *value;
    size_t n;
    t->chat = t->work == tokenize && json_member_find(r->body, r->body_len, "messages", &value, &n);
    if (r->server->generator->source)
        generation_read_model(r, t->model, sizeof t->model);
}

static bool ref_model(struct request *r)
{
    const struct text_work *t = r->context;
    if (r->connection && !r->error.status)
        r->model = generator_ref_loaded(r->server->generator, t->model, &r->error);
    return r->model;
}

static void begin_long(struct request *r)
{
    const struct text_work *t = r->context;
    if (t->chat) {
        assert(r->server->generator->n_texts > 0);
        r->server->generator->n_texts--;
        open_chat(r);
    } else if (ref_model(r)) {
        request_wait_for(r, POOL_TEXT, t->work, answer_long);
    } else {
        answer_long(r);
    }
}

/* On the spot, or when the body is large on the pool, as one of those that queue_limit lets wait. */
static void work_on(struct request *r, void (*work)(struct request *))
{
    struct http_server *s = r->server;
    bool is_long = r->body_len > REQUEST_INLINE_BODY;
    if (generator_admits_text(s->generator, is_long, &r->error) < 0) {
        request_drop_body(r);
        request_fail(r, &r->error);
        return;
    }
    struct text_work *t = arena_zalloc(&r->arena, sizeof *t);
    if (!t) {
        api_out_of_memory(&r->error);
        request_drop_body(r);
        request_fail(r, &r->error);
        return;
    }
    t->work = work;
    r->context = t;
    if (is_long) {
        s->generator->n_texts++;
        request_wait_for(r, POOL_TEXT, read_model, begin_long);
    } else {
        read_model(r);
        if (t->chat) {
            open_chat(r);
            return;
        }
        if (ref_model(r))
            work(r);
        answer(r);
    }
}

void api_tokenize(struct request *r)
{
    work_on(r, tokenize);
}

/* Most token ids of a request, so that an array of ids cannot exhaust memory. */
static size_t most_ids(const struct request *r)
{
    return r->model->n_ctx + (size_t)4096;
}

static int too_many_ids(struct request *r)
{
    return api_invalid(&r->error, "tokens", "tokens may have at most %zu ids (n_ctx + 4096)", most_ids(r));
}

static int32_t *read_ids(struct request *r, const json_t *tokens, size_t *n)
{
    const struct tokenizer *t = r->model->tokenizer;
    struct field_reader reader = {.arena = &r->arena, .err = &r->error};
    *n = json_array_size(tokens);
    if (*n > most_ids(r)) {
        too_many_ids(r);
        return NULL;
    }
    int32_t *ids = arena_array(&r->arena, *n, sizeof *ids);
    if (!ids) {
        api_out_of_memory(&r->error);
        return NULL;
    }
    for (size_t i = 0; i < *n; i++) {
        int64_t id;
        char name[32];
        snprintf(name, sizeof name, "tokens[%zu]", i);
        if (field_integer(&reader, name, json_array_get(tokens, i), 0, tokenizer_n_vocab(t) - 1.0, &id) < 0)
            return NULL;
        ids[i] = (int32_t)id;
    }
    return ids;
}

static void decode(struct request *r, const json_t *tokens)
{
    struct error words = {0};
    char *text = NULL;
    size_t n = 0, len = 0;
    if (!tokens) {
        api_invalid(&r->error, "tokens", "tokens is missing");
        return;
    }
    int32_t *ids = read_ids(r, tokens, &n);
    if (!ids)
        return;
    int rc = tokenizer_detokenise(r->model->tokenizer, ids, n, true, &text, &len, &words);
    if (rc < 0) {
        if (rc == -ENOMEM)
            api_out_of_memory(&r->error);
        else
            api_fail(&r->error, 500, "internal", NULL, "%s", words.text);
        return;
    }
    buf_puts(&r->out, "{\"content\":");
    json_put_string(&r->out, text ? text : "", len);
    buf_puts(&r->out, ",\"prompt\":"); /* vLLM's name of it */
    json_put_string(&r->out, text ? text : "", len);
    buf_puts(&r->out, "}\n");
    free(text);
}

static void detokenize(struct request *r)
{
    struct token_params p = {0};
    struct json_list tokens = {.name = "tokens", .max = most_ids(r)};
    const struct json_limits limits = {
        .max_values = tokens.max + FEW_VALUES, .max_depth = JSON_MAX_DEPTH_IN_BODY, .list = &tokens};
    json_t *body = read_body(r, detokenize_fields, &limits, &p);
    if (tokens.over)
        too_many_ids(r);
    if (body)
        decode(r, p.tokens);
    json_decref(body);
}

void api_detokenize(struct request *r)
{
    work_on(r, detokenize);
}
