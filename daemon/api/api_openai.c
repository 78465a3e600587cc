/* api_openai.c - the OpenAI dialect: GET /v1/models, POST /v1/completions (its chats: api_chat.c).
 * Every field of the dialect's reference is known: what only labels is ignored, what changes the answer works
 * or is refused by name; /generate's own fields work too. */
#include "admin.h"
#include "api.h"
#include "api_openai_private.h"
#include "generation/generation.h"
#include "model/model.h"
#include "model_list.h"
#include "base/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* --- fields --- */

/* Known, but only the value that asks for nothing is accepted: false, an empty array or string. */
int openai_read_inert(struct field_reader *r, const struct field *f, const json_t *value)
{
    if (json_is_false(value) || (json_is_string(value) && !json_string_length(value)) ||
        (json_is_array(value) && !json_array_size(value)))
        return 0;
    return api_invalid(r->err, f->name, "%s is not supported (got %s)", f->name, field_got(value));
}

/* The same of a member that takes one of a few words: false, or those that ask for nothing. */
int openai_read_word(struct field_reader *r, const struct field *f, const json_t *value)
{
    const char *given = json_string_value(value);
    if (json_is_false(value) || (given && (!strcmp(given, "auto") || !strcmp(given, "none"))))
        return 0;
    return api_invalid(r->err, f->name, "%s must be \"auto\" or \"none\": nothing else is supported (got %s)",
                       f->name, field_got_word(value));
}

int openai_read_stream_options(struct field_reader *r, const struct field *f, const json_t *value)
{
    static const struct field rows[] = {
        {.name = "include_usage", .kind = FIELD_BOOL, .offset = AT(include_usage)},
        IGNORED("include_obfuscation"),
        IGNORED("continuous_usage_stats"), /* vLLM's; the usage comes at the end all the same */
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

int openai_read_suffix(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    if (!json_is_string(value))
        return api_invalid(r->err, f->name, "%s must be a string (got %s)", f->name, field_got(value));
    p->infill.suffix = (struct fim_text){json_string_value(value), json_string_length(value)};
    return 0;
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
    {.name = "echo", .kind = FIELD_BOOL, .offset = AT(echoes)},
    {.name = "suffix", .kind = FIELD_CUSTOM, .read = openai_read_suffix},
    {0},
};

/* --- errors --- */

/* Writes OpenAI's type of an error, and its code; if OpenAI has no code for it, /generate's type, which tells
 * more. */
static void put_kind(struct buf *out, const struct api_error *e)
{
    static const struct {
        int status;
        const char *type, *code;
    } kinds[] = {{401, "authentication_error", "invalid_api_key"},
                 {403, "permission_error", NULL},
                 {404, "not_found_error", NULL},
                 {429, "rate_limit_error", "rate_limit_exceeded"}};
    const char *type = e->status < 500 ? "invalid_request_error" : "server_error", *code = e->type;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].status == e->status) {
            type = kinds[i].type;
            code = kinds[i].code ? kinds[i].code : code;
        }
    if (e->has_context)
        code = "context_length_exceeded";
    else if (e->status == 404 && !strcmp(e->param, "model"))
        code = "model_not_found";
    buf_printf(out, "\"type\":\"%s\",\"code\":", type);
    json_put_str(out, strcmp(code, "invalid_request") ? code : NULL);
}

/* If the prompt does not fit, the message has the sentence that clients look for. */
void api_openai_put_error(struct buf *out, const struct api_error *e)
{
    struct buf words = {.arena = out->arena};
    if (e->has_context)
        buf_printf(&words,
                   "This model's maximum context length is %u tokens. However, you requested %s%llu tokens: ",
                   e->n_ctx, e->estimated ? "at least " : "", (unsigned long long)e->n_requested);
    buf_puts(&words, e->message);
    buf_puts(out, "{\"error\":{\"message\":");
    json_put_string(out, words.p ? words.p : "", words.len);
    buf_puts(out, ",\"param\":");
    json_put_str(out, e->param[0] ? e->param : NULL);
    buf_puts(out, ",");
    put_kind(out, e);
    api_error_put_context(out, e);
    buf_puts(out, "}}\n");
    out->failed |= words.failed;
}

/* --- preparation --- */

static void completion_defaults(struct params *p)
{
    p->max_tokens = 16;
}

/* The prompt's text as it was given, or that of its ids. */
static int keep_prompt(struct generation *g, struct api_error *err)
{
    const struct params *p = &g->p;
    struct prompt *out = &g->prompts[g->n_prompts - 1];
    char *text = NULL;
    int rc = 0;
    out->echo_len = p->prompt_len;
    if (!p->prompt)
        rc = tokenizer_detokenise(g->model->tokenizer, p->ids, p->n_ids, true, &text, &out->echo_len, NULL);
    if (rc == 0 && (p->prompt || text))
        out->echo = arena_copy(g->arena, p->prompt ? p->prompt : text, out->echo_len);
    free(text);
    return out->echo ? 0 : api_out_of_memory(err);
}

int openai_put_suffix(struct generation *g, struct api_error *err)
{
    struct params *p = &g->p;
    struct fim_text prefix = {p->prompt, p->prompt_len};
    if (!p->prompt)
        return api_invalid(err, "suffix", "suffix needs a prompt that is a string");
    p->prompt = NULL; /* its ids are there */
    return fim_prompt_put(g, prefix, p->infill.suffix, NULL, 0, "suffix", err);
}

/* Choosing among more texts than are shown is not offered. */
static int completion_prepare(struct generation *g, struct api_error *err)
{
    const struct params *p = &g->p;
    if (p->has_best_of && p->best_of != p->n)
        return api_invalid(err, "best_of", "best_of must be equal to n, %u (got %u)", p->n, p->best_of);
    if (p->echoes && p->has_prompt && keep_prompt(g, err) < 0)
        return -1;
    return p->infill.suffix.len ? openai_put_suffix(g, err) : 0;
}

/* --- replies --- */

/* The dialect's words: "stop" for an end token and a stop string alike, "length" for every text that was cut
 * short. */
static void put_finish(struct buf *out, const char *finish)
{
    bool ended = finish && (!strcmp(finish, "eos") || !strcmp(finish, "stop"));
    json_put_str(out, !finish ? NULL : ended ? "stop" : "length");
}

/* /generate's own member, beside the choices. */
void openai_put_prompt(struct generation *g, struct buf *out)
{
    if (!g->p.prompt_logprobs)
        return;
    buf_puts(out, ",\"prompt_logprobs\":");
    put_prompt_logprobs(g, out);
}

void openai_put_usage(struct buf *out, const struct generation *g)
{
    uint32_t n_prompt = generation_n_prompt(g), n_tokens = generation_n_tokens(g);
    buf_printf(out,
               "{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u,"
               "\"prompt_tokens_details\":{\"cached_tokens\":%u}",
               n_prompt, n_tokens, n_prompt + n_tokens, generation_n_cached(g));
    if (g->choices->answer)
        buf_printf(out, ",\"completion_tokens_details\":{\"reasoning_tokens\":%u}", answer_n_reasoning(g));
    buf_puts(out, "}");
}

void openai_put_head(struct generation *g, struct buf *out, const char *object)
{
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", g->id, object,
               (long long)g->created);
    json_put_str(out, g->model->name);
    buf_printf(out, ",\"system_fingerprint\":\"%s\",\"choices\":[", g->model->fingerprint);
}

/* The token's text, or the dialect's bytes:\xe2\x80 where it is not valid UTF-8 by itself: a key must differ.
 */
void openai_put_token_key(struct buf *out, const struct generation *g, int32_t token)
{
    struct tokenizer_piece piece = tokenizer_piece(g->model->tokenizer, token, true);
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
    openai_put_token_key(out, c->g, c->e.out[l->i].token);
}

static void put_logprob(struct buf *out, struct reply_list *l)
{
    const struct choice *c = l->of;
    json_put_number(out, c->e.out[l->i].logprob, 7);
}

static void put_tops(struct buf *out, const struct generation *g, const struct step_top *top, uint32_t n)
{
    buf_puts(out, "{");
    for (uint32_t k = 0; k < n; k++) {
        if (k)
            buf_puts(out, ",");
        openai_put_token_key(out, g, top[k].token);
        buf_puts(out, ":");
        json_put_number(out, top[k].logprob, 7);
    }
    buf_puts(out, "}");
}

static void put_top(struct buf *out, struct reply_list *l)
{
    const struct choice *c = l->of;
    put_tops(out, c->g, c->e.top + (size_t)l->i * c->e.n_top, c->e.n_top);
}

static size_t n_characters(const char *s, size_t len)
{
    size_t n = 0;
    for (size_t k = 0; k < len; k++)
        n += ((unsigned char)s[k] & 0xc0) != 0x80;
    return n;
}

/* Offsets go on from token to token and from event to event. They count the characters that begin in a token,
 * not bytes. (Of well-formed text: a stray byte in the middle of none is a U+FFFD that is not counted.) */
static void put_offset(struct buf *out, struct reply_list *l)
{
    struct choice *c = (struct choice *)l->of;
    struct tokenizer_piece piece = tokenizer_piece(c->g->model->tokenizer, c->e.out[l->i].token, false);
    json_put_uint(out, c->event_offset);
    c->event_offset += n_characters(piece.s, piece.len);
}

/* The request whose prompt is echoed: the first choice of a prompt has its log-probabilities. */
static const struct engine_request *echoed(const struct choice *c)
{
    return &c->g->choices[c->index - c->index % c->g->p.n].e;
}

static void put_echo_key(struct buf *out, struct reply_list *l)
{
    const struct choice *c = l->of;
    openai_put_token_key(out, c->g, echoed(c)->prompt[l->i]);
}

/* False for the first token, which nothing precedes, and where the request ended before it was computed. */
static bool is_known(const struct engine_request *e, uint32_t i)
{
    return i && e->prompt_out[i].token >= 0;
}

static void put_echo_logprob(struct buf *out, struct reply_list *l)
{
    if (is_known(echoed(l->of), l->i))
        json_put_number(out, echoed(l->of)->prompt_out[l->i].logprob, 7);
    else
        buf_puts(out, "null");
}

static void put_echo_top(struct buf *out, struct reply_list *l)
{
    const struct choice *c = l->of;
    const struct engine_request *e = echoed(c);
    if (is_known(e, l->i))
        put_tops(out, c->g, e->prompt_top + (size_t)l->i * e->n_prompt_top, c->g->p.logprobs);
    else
        buf_puts(out, "null");
}

/* Bytes of the echo from c->echo_at on that a token of the prompt stands for. The tokenizer's own are not in
 * the text: a BOS, and the blank that SPM puts before the first word. */
static size_t echoed_len(const struct choice *c, uint32_t i)
{
    const struct prompt *p = choice_prompt(c);
    size_t left = p->echo_len - c->echo_at;
    if (i + 1 == p->n_ids)
        return left;
    struct tokenizer_piece piece = tokenizer_piece(c->g->model->tokenizer, p->ids[i], true);
    const char *text = p->echo + c->echo_at;
    if (piece.len && piece.s[0] == ' ' && left && text[0] != ' ') {
        piece.s++;
        piece.len--;
    }
    size_t n = piece.len < left ? piece.len : left;
    return c->echo_at || memcmp(text, piece.s, n) == 0 ? n : 0;
}

static void put_echo_offset(struct buf *out, struct reply_list *l)
{
    struct choice *c = (struct choice *)l->of;
    size_t n = echoed_len(c, l->i);
    json_put_uint(out, c->echo_offset);
    c->echo_offset += n_characters(choice_prompt(c)->echo + c->echo_at, n);
    c->echo_at += n;
}

/* The first text of a choice stands behind the prompt, if that is to be echoed. */
static bool is_echo(const struct choice *c)
{
    return choice_prompt(c)->echo && !c->event_text && !c->event_tokens;
}

static void put_completion_logprobs(struct buf *out, struct choice *c, const struct piece *piece)
{
    static const struct {
        const char *name;
        void (*put)(struct buf *out, struct reply_list *l);
        void (*put_echo)(struct buf *out, struct reply_list *l);
    } lists[] = {{"{\"tokens\":[", put_key, put_echo_key},
                 {"],\"token_logprobs\":[", put_logprob, put_echo_logprob},
                 {"],\"top_logprobs\":[", put_top, put_echo_top},
                 {"],\"text_offset\":[", put_offset, put_echo_offset}};
    if (!c->g->p.has_logprobs) {
        buf_puts(out, "null");
        return;
    }
    const struct prompt none = {0}, *p = is_echo(c) ? choice_prompt(c) : &none;
    c->event_offset += n_characters(p->echo, p->echo_len); /* a long list may be written after a short one */
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        buf_puts(out, lists[i].name);
        if (p->echo) {
            put_items(c, 0, p->n_ids, lists[i].put_echo);
            buf_puts(out, piece->from < piece->to ? "," : "");
        }
        put_items(c, piece->from, piece->to, lists[i].put);
    }
    buf_puts(out, "]}");
}

static void put_text(struct choice *c, struct buf *out, const struct piece *piece)
{
    const struct prompt *p = choice_prompt(c);
    if (!is_echo(c)) {
        put_piece_text(c, piece);
        return;
    }
    buf_puts(out, "\"");
    json_put_chars(out, p->echo, p->echo_len);
    json_put_chars(out, piece->text, piece->len);
    buf_puts(out, "\"");
}

static void put_completion_choice(struct choice *c, struct buf *out, const struct piece *piece,
                                  const char *finish)
{
    buf_printf(out, "{\"index\":%u,\"text\":", c->index);
    put_text(c, out, piece);
    buf_puts(out, ",\"logprobs\":");
    put_completion_logprobs(out, c, piece);
    buf_puts(out, ",\"finish_reason\":");
    put_finish(out, finish);
    buf_puts(out, "}");
}

static void completion_reply(struct generation *g, struct buf *out)
{
    openai_put_head(g, out, "text_completion");
    for (uint32_t i = 0; i < g->n_choices; i++) {
        struct choice *c = &g->choices[i];
        struct piece whole = choice_whole(c);
        buf_puts(out, i ? "," : "");
        put_completion_choice(c, out, &whole, c->finish);
    }
    buf_puts(out, "]");
    openai_put_prompt(g, out);
    buf_puts(out, ",\"usage\":");
    openai_put_usage(out, g);
    buf_puts(out, "}\n");
}

void openai_put_count(struct generation *g, struct buf *out)
{
    buf_printf(out, "{\"object\":\"response.input_tokens\",\"input_tokens\":%u}\n", generation_n_prompt(g));
}

/* In a stream that ends with a usage event the others say that theirs is not known. */
void openai_close_chunk(const struct generation *g, struct buf *out)
{
    buf_puts(out, g->p.include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
}

void openai_put_last(struct generation *g, struct buf *out, const char *object)
{
    if (g->p.include_usage) {
        buf_puts(out, "data: ");
        openai_put_head(g, out, object);
        buf_puts(out, "],\"usage\":");
        openai_put_usage(out, g);
        buf_puts(out, "}\n\n");
    }
    buf_puts(out, "data: [DONE]\n\n");
}

static void completion_chunk(struct choice *c, struct buf *out, const struct piece *piece, const char *finish)
{
    struct generation *g = c->g;
    buf_puts(out, "data: ");
    openai_put_head(g, out, "text_completion");
    put_completion_choice(c, out, piece, finish);
    buf_puts(out, "]");
    if (finish && choice_tells_last(c))
        openai_put_prompt(g, out);
    openai_close_chunk(g, out);
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
    openai_put_last(g, out, "text_completion");
}

const struct dialect dialect_completions = {
    .id_prefix = "cmpl-",
    .fields = completion_fields,
    .extras = openai_extras,
    .prompts = "prompt",
    .defaults = completion_defaults,
    .prepare = completion_prepare,
    .reply = completion_reply,
    .delta = completion_delta,
    .end = completion_end,
    .last = completion_last,
};

/* The members that OpenAI's and Anthropic's clients read, and the context's length under vLLM's and other
 * names; it is known of a model that is loaded. */
static void put_model(struct request *r, const struct model_view *v)
{
    time_t created = v->modified ? (time_t)v->modified : (time_t)r->server->api->created;
    char when[32];
    struct tm t;
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&created, &t));
    buf_puts(&r->out, "{\"id\":");
    json_put_str(&r->out, v->name);
    buf_printf(&r->out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"hearth\"", (long long)created);
    buf_puts(&r->out, ",\"type\":\"model\",\"display_name\":");
    json_put_str(&r->out, v->name);
    buf_printf(&r->out, ",\"created_at\":\"%s\",\"status\":{\"value\":\"%s\"}", when,
               v->model ? "loaded" : "unloaded");
    if (v->model)
        buf_printf(&r->out, ",\"max_model_len\":%u,\"context_length\":%u", v->model->n_ctx, v->model->n_ctx);
    buf_puts(&r->out, "}");
}

static void put_listed(struct request *r, struct model_list *l, const struct model_view *v)
{
    buf_puts(&r->out, l->n ? "," : "");
    l->first = l->n ? l->first : v->name;
    l->last = v->name;
    put_model(r, v);
}

static void end_list(struct request *r, struct model_list *l)
{
    buf_puts(&r->out, "],\"has_more\":false,\"first_id\":");
    json_put_str(&r->out, l->first);
    buf_puts(&r->out, ",\"last_id\":");
    json_put_str(&r->out, l->last);
    buf_puts(&r->out, "}\n");
}

void api_models(struct request *r)
{
    static const struct model_list_part parts[] = {{.put = put_listed, .end = end_list}, {0}};
    buf_puts(&r->out, "{\"object\":\"list\",\"data\":[");
    model_list_reply(r, parts);
}

void api_model(struct request *r)
{
    struct model_view v;
    if (!model_list_find(r, route_id(r->route, r->path), &v)) {
        request_fail(r, &r->error);
        return;
    }
    put_model(r, &v);
    buf_puts(&r->out, "\n");
    request_reply(r, 200);
}
