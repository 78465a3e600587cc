/* api_llama.c - llama-server's dialect: POST /completion, /infill and /apply-template, GET /props and /slots.
 * A body is translated into /generate's fields; members that are not known here pass, as that server ignores
 * them. Streams end without [DONE]. */
#include "api.h"
#include "api_chat.h"
#include "api_openai_private.h"
#include "body_members.h"
#include "generation/fim_prompt.h"
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

/* --- the body --- */

static const struct body_member members[] = {
    {"prompt", "prompt"},
    {"stream", "stream"},
    {"stop", "stop"},
    {"n_predict", "max_tokens", NEGATIVE_NOTHING},
    {"max_tokens", "max_tokens", NEGATIVE_NOTHING},
    {"max_completion_tokens", "max_tokens", NEGATIVE_NOTHING},
    {"seed", "seed", NEGATIVE_NOTHING},
    {"top_k", "top_k", NEGATIVE_OFF},
    {"repeat_last_n", "penalty_last_n", NEGATIVE_ALL},
    {"n_probs", "logprobs", NEGATIVE_NOTHING},
    {"n_cmpl", "n"},
    {"n", "n"},
    {"temperature", "temperature"},
    {"top_p", "top_p"},
    {"min_p", "min_p"},
    {"typical_p", "typical_p"},
    {"repeat_penalty", "repetition_penalty"},
    {"presence_penalty", "presence_penalty"},
    {"frequency_penalty", "frequency_penalty"},
    {"ignore_eos", "ignore_eos"},
    {"cache_prompt", "cache_prompt"},
    {"top_n_sigma", "top_n_sigma", NEGATIVE_NOTHING},
    {"xtc_probability", "xtc_probability"},
    {"xtc_threshold", "xtc_threshold"},
    {"dynatemp_range", "dynatemp_range"},
    {"dynatemp_exponent", "dynatemp_exponent"},
    {"dry_multiplier", "dry_multiplier"},
    {"dry_base", "dry_base"},
    {"dry_allowed_length", "dry_allowed_length"},
    {"dry_penalty_last_n", "dry_penalty_last_n", NEGATIVE_NOTHING},
    {"dry_sequence_breakers", "dry_sequence_breakers"},
    {"mirostat", "mirostat"},
    {"mirostat_tau", "mirostat_tau"},
    {"mirostat_eta", "mirostat_eta"},
    {"adaptive_target", "adaptive_target", NEGATIVE_NOTHING},
    {"adaptive_decay", "adaptive_decay"},
    {"samplers", "samplers"},
    {"reasoning_budget_tokens", "thinking_budget", NEGATIVE_NOTHING},
    {"grammar", "grammar"},
    {"json_schema", "json_schema"},
    {"response_format", "response_format"},
    {"input_prefix", "input_prefix"},
    {"input_suffix", "input_suffix"},
    {"input_extra", "input_extra"},
    {0},
};

static const struct field_name names[] = {
    {"max_tokens", "n_predict"},
    {"max_tokens", "max_completion_tokens"},
    {"penalty_last_n", "repeat_last_n"},
    {"logprobs", "n_probs"},
    {"n", "n_cmpl"},
    {"repetition_penalty", "repeat_penalty"},
    {"thinking_budget", "reasoning_budget_tokens"},
    {0},
};

/* [[id, bias], [id, false]], or OpenAI's object. A bias of false never lets the token come. */
static json_t *read_bias(const json_t *list, struct api_error *err)
{
    json_t *out = json_object();
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *pair = json_array_get(list, i), *id = json_array_get(pair, 0);
        json_t *bias = json_array_get(pair, 1);
        char key[24];
        if (!json_is_integer(id) || !(json_is_number(bias) || json_is_false(bias))) {
            api_invalid(err, "logit_bias", "logit_bias[%zu] must be [token id, number or false]", i);
            break;
        }
        snprintf(key, sizeof key, "%lld", (long long)json_integer_value(id));
        json_object_set_new(out, key, json_is_false(bias) ? json_real(-100) : json_incref(bias));
    }
    return out;
}

static json_t *translate(const json_t *body, struct api_error *err)
{
    json_t *bias = json_object_get(body, "logit_bias");
    if (field_has_shape(bias, "logit_bias", SHAPE_OBJECT | SHAPE_ARRAY, err) < 0)
        return NULL;
    json_t *out = json_object();
    bool ok = out && body_copy(out, body, members);
    if (json_is_object(bias))
        ok = ok && json_object_set(out, "logit_bias", bias) == 0;
    else if (json_array_size(bias))
        ok = ok && json_object_set_new(out, "logit_bias", read_bias(bias, err)) == 0;
    if (!ok)
        api_out_of_memory(err);
    if (!err->status)
        return out;
    json_decref(out);
    return NULL;
}

static void defaults(struct params *p)
{
    p->max_tokens = UINT32_MAX; /* the rest of the context */
}

/* --- infill --- */

static int read_text(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct fim_text *out = (struct fim_text *)((char *)r->out + f->offset);
    if (!json_is_string(value))
        return api_invalid(r->err, f->name, "%s must be a string (got %s)", f->name, field_got(value));
    *out = (struct fim_text){json_string_value(value), json_string_length(value)};
    return 0;
}

static struct fim_text text_of(const json_t *value)
{
    return (struct fim_text){json_string_value(value), json_string_length(value)};
}

static int read_extra(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    size_t n = json_array_size(value);
    if (!json_is_array(value))
        return api_invalid(r->err, f->name, "%s must be an array of files (got %s)", f->name,
                           field_got(value));
    p->infill.files = arena_array(r->arena, n, sizeof *p->infill.files);
    if (!p->infill.files)
        return api_out_of_memory(r->err);
    for (size_t i = 0; i < n; i++) {
        const json_t *file = json_array_get(value, i), *text = json_object_get(file, "text");
        if (!json_is_string(text))
            return api_invalid(r->err, f->name, "%s[%zu].text must be a string (got %s)", f->name, i,
                               field_got(text));
        p->infill.files[i] = (struct fim_file){text_of(json_object_get(file, "filename")), text_of(text)};
    }
    p->infill.n_files = n;
    return 0;
}

static const struct field infill_fields[] = {
    {.name = "input_prefix", .kind = FIELD_CUSTOM, .offset = AT(infill.prefix), .read = read_text},
    {.name = "input_suffix", .kind = FIELD_CUSTOM, .offset = AT(infill.suffix), .read = read_text},
    {.name = "input_extra", .kind = FIELD_CUSTOM, .read = read_extra},
    {.name = "prompt", .kind = FIELD_CUSTOM, .offset = AT(infill.prompt), .read = read_text},
    {0},
};
/* In /completion they have no meaning. */
static const struct field completion_fields[] = {
    IGNORED("input_prefix"),
    IGNORED("input_suffix"),
    IGNORED("input_extra"),
    {0},
};

/* The text typed so far follows the prefix. */
static int prepare_infill(struct generation *g, struct api_error *err)
{
    struct infill *f = &g->p.infill;
    size_t len = f->prefix.len + f->prompt.len;
    char *before = arena_alloc(g->p.chat.arena, len + 1);
    if (!before)
        return api_out_of_memory(err);
    if (f->prefix.len)
        memcpy(before, f->prefix.s, f->prefix.len);
    if (f->prompt.len)
        memcpy(before + f->prefix.len, f->prompt.s, f->prompt.len);
    g->p.has_prompt = true;
    return fim_prompt_put(g, (struct fim_text){before, len}, f->suffix, f->files, f->n_files, "input_suffix",
                          err);
}

/* --- replies --- */

static void put_ms(struct buf *out, const char *name, double ms)
{
    buf_printf(out, ",\"%s\":", name);
    json_put_ms(out, ms);
}

void llama_put_timings(struct buf *out, const struct choice *c)
{
    const struct engine_request *e = &c->e;
    uint32_t n_cached = c->g->n_prompts > 1 ? e->n_cached : generation_n_cached(c->g);
    uint32_t n_prompt = e->n_prompt - n_cached;
    struct timings t;
    generation_timings(c->g, &t);
    buf_printf(out, ",\"timings\":{\"cache_n\":%u,\"prompt_n\":%u", n_cached, n_prompt);
    put_ms(out, "prompt_ms", t.prefill_ms);
    put_ms(out, "prompt_per_token_ms", n_prompt ? t.prefill_ms / n_prompt : 0);
    put_ms(out, "prompt_per_second", t.prompt_tokens_per_s);
    buf_printf(out, ",\"predicted_n\":%u", c->n_tokens);
    put_ms(out, "predicted_ms", t.decode_ms);
    put_ms(out, "predicted_per_token_ms", c->n_tokens ? t.decode_ms / c->n_tokens : 0);
    put_ms(out, "predicted_per_second", t.tokens_per_s);
    buf_puts(out, "}");
}

static void put_number(struct buf *out, const char *name, double v)
{
    buf_printf(out, ",\"%s\":", name);
    json_put_number(out, v, 6);
}

static void put_settings(struct buf *out, const struct params *p, uint64_t seed, uint32_t n_predict)
{
    buf_printf(out, "{\"n_predict\":%lld,\"seed\":%llu,\"top_k\":%u,\"repeat_last_n\":%u,\"stream\":%s",
               n_predict == UINT32_MAX ? -1ll : (long long)n_predict, (unsigned long long)seed, p->top_k,
               p->penalty_last_n, p->stream ? "true" : "false");
    put_number(out, "temperature", p->temperature);
    put_number(out, "top_p", p->top_p);
    put_number(out, "min_p", p->min_p);
    put_number(out, "typical_p", p->typical_p);
    put_number(out, "repeat_penalty", p->repetition_penalty);
    put_number(out, "presence_penalty", p->presence_penalty);
    put_number(out, "frequency_penalty", p->frequency_penalty);
    buf_puts(out, "}");
}

static void put_token(struct buf *out, const struct tokenizer *t, int32_t token, double logprob)
{
    struct tokenizer_piece piece = tokenizer_piece(t, token, true);
    buf_printf(out, "{\"id\":%d,\"token\":", token);
    json_put_string(out, piece.s, piece.len);
    buf_puts(out, ",\"bytes\":[");
    for (uint32_t i = 0; i < piece.len; i++)
        buf_printf(out, "%s%u", i ? "," : "", (unsigned char)piece.s[i]);
    buf_puts(out, "],\"logprob\":");
    json_put_number(out, logprob, 7);
}

static void put_probability(struct buf *out, struct reply_list *l)
{
    const struct choice *c = l->of;
    const struct engine_request *e = &c->e;
    put_token(out, c->g->model->tokenizer, e->out[l->i].token, e->out[l->i].logprob);
    buf_puts(out, ",\"top_logprobs\":[");
    for (uint32_t k = 0; k < e->n_top; k++) {
        const struct step_top *top = &e->top[(size_t)l->i * e->n_top + k];
        buf_puts(out, k ? "," : "");
        put_token(out, c->g->model->tokenizer, top->token, top->logprob);
        buf_puts(out, "}");
    }
    buf_puts(out, "]}");
}

static void put_id(struct buf *out, struct reply_list *l)
{
    const struct choice *c = l->of;
    json_put_int(out, c->e.out[l->i].token);
}

/* Writes the members that a piece and the whole reply share. */
static void put_piece(const struct choice *c, struct buf *out, const struct piece *piece, bool last)
{
    buf_printf(out, "{\"index\":%u,\"content\":", c->index);
    put_piece_text(c, piece);
    buf_puts(out, ",\"tokens\":[");
    put_items(c, piece->from, piece->to, put_id);
    buf_puts(out, "]");
    if (c->g->p.has_logprobs) {
        buf_puts(out, ",\"completion_probabilities\":[");
        put_items(c, piece->from, piece->to, put_probability);
        buf_puts(out, "]");
    }
    buf_printf(out, ",\"id_slot\":0,\"stop\":%s", last ? "true" : "false");
    buf_printf(out, ",\"tokens_predicted\":%u,\"tokens_evaluated\":%u", piece->to, c->e.n_prompt);
}

static void put_end(const struct choice *c, struct buf *out)
{
    const struct generation *g = c->g;
    bool eos = !strcmp(c->finish, "eos"), word = c->text.matched != NULL;
    buf_puts(out, ",\"model\":");
    chat_put_model(out, g);
    buf_printf(out, ",\"stop_type\":\"%s\",\"stopping_word\":", word ? "word" : eos ? "eos" : "limit");
    json_put_str(out, word ? c->text.matched->s : "");
    buf_printf(out, ",\"truncated\":false,\"tokens_cached\":%u,\"generation_settings\":",
               c->e.n_prompt + c->n_tokens);
    put_settings(out, &g->p, c->e.sampling.seed, c->e.max_tokens);
    llama_put_timings(out, c);
    buf_puts(out, "}");
}

/* Several texts are an array. */
static void reply(struct generation *g, struct buf *out)
{
    buf_puts(out, g->n_choices > 1 ? "[" : "");
    for (const struct choice *c = g->choices; c < g->choices + g->n_choices; c++) {
        struct piece whole = choice_whole(c);
        buf_puts(out, c->index ? "," : "");
        put_piece(c, out, &whole, true);
        put_end(c, out);
    }
    buf_puts(out, g->n_choices > 1 ? "]\n" : "\n");
}

static void delta(struct choice *c, struct buf *out, const struct piece *piece)
{
    buf_puts(out, "data: ");
    put_piece(c, out, piece, false); /* the text may have ended, where the client is behind */
    buf_puts(out, "}\n\n");
}

static void end(struct choice *c, struct buf *out, const struct piece *piece)
{
    buf_puts(out, "data: ");
    put_piece(c, out, piece, true);
    put_end(c, out);
    buf_puts(out, "\n\n");
}

static void last(struct generation *g, struct buf *out)
{
    (void)g;
    (void)out;
}

#define COMMON                                                                                               \
    .id_prefix = "cmpl-", .translate = translate, .names = names, .defaults = defaults, .reply = reply,      \
    .delta = delta, .end = end, .last = last, .clamps = true

const struct dialect dialect_llama = {COMMON, .own_fields = completion_fields, .prompts = "prompt"};
const struct dialect dialect_infill = {COMMON, .own_fields = infill_fields, .prepare = prepare_infill};

/* --- the template --- */

/* The text of the prompt's tokens, without the BOS that the tokenizer adds. */
static void put_prompt(struct generation *g, struct buf *out)
{
    const struct engine_request *e = &g->choices->e;
    const struct tokenizer *t = g->model->tokenizer;
    bool bos = tokenizer_adds_bos(t) && e->n_prompt && e->prompt[0] == tokenizer_bos(t);
    char *text = NULL;
    size_t len = 0;
    int rc = tokenizer_detokenise(t, e->prompt + bos, e->n_prompt - bos, true, &text, &len, NULL);
    out->failed |= rc < 0;
    buf_puts(out, "{\"prompt\":");
    json_put_string(out, text ? text : "", len);
    buf_puts(out, "}\n");
    free(text);
}

const struct dialect dialect_template = {.id_prefix = "chatcmpl-",
                                         .fields = chat_fields,
                                         .defaults = chat_defaults,
                                         .prepare = chat_dialect_prepare,
                                         .reply = put_prompt,
                                         .counts = true};

/* --- the server --- */

static void put_special(struct buf *out, const char *name, const struct tokenizer *t, int32_t token)
{
    struct tokenizer_piece piece = tokenizer_piece(t, token, true);
    buf_printf(out, ",\"%s\":", name);
    json_put_string(out, token < 0 ? "" : piece.s, token < 0 ? 0 : piece.len);
}

static void put_default_settings(struct buf *out, uint32_t n_ctx)
{
    struct params p;
    generation_defaults(&p);
    buf_printf(out, "{\"default_generation_settings\":{\"n_ctx\":%u,\"params\":", n_ctx);
    put_settings(out, &p, 0, UINT32_MAX);
    buf_puts(out, "}");
}

void api_llama_props(struct request *r)
{
    const struct server_model *m = r->server->generator->model;
    const struct model_config *c = model_config(m->model);
    struct buf *out = &r->out;
    size_t len = 0;
    const char *template = m->chat ? chat_template_source(m->chat, &len) : "";
    put_default_settings(out, m->n_ctx);
    buf_printf(out, ",\"total_slots\":%u,\"model_path\":", r->server->cfg->slots);
    json_put_str(out, c->name);
    buf_puts(out, ",\"model_alias\":");
    json_put_str(out, c->name);
    buf_puts(out, ",\"chat_template\":");
    json_put_string(out, template, len);
    bool tools = m->chat && chat_template_reads(m->chat, "tools") && toolcall_format_calls(m->format);
    buf_printf(out, ",\"chat_template_caps\":{\"supports_tools\":%s,\"supports_tool_calls\":%s}",
               tools ? "true" : "false", tools ? "true" : "false");
    buf_printf(out, ",\"chat_format\":\"%s\"", toolcall_format_name(m->format));
    put_special(out, "bos_token", m->tokenizer, tokenizer_bos(m->tokenizer));
    put_special(out, "eos_token", m->tokenizer, tokenizer_eos(m->tokenizer));
    buf_puts(out,
             ",\"modalities\":{\"vision\":false,\"audio\":false},\"build_info\":\"hearthd " HEARTH_VERSION
             "\",\"is_sleeping\":false}\n");
    request_reply(r, 200);
}

/* A slot of the table, busy with a generation or free. */
static void put_slot(struct buf *out, uint32_t i, uint32_t n_ctx, const struct generation *g)
{
    const struct engine_request *e = g ? &g->choices->e : NULL;
    uint32_t n = e ? atomic_load_explicit(&e->n_out, memory_order_acquire) : 0;
    buf_printf(out,
               "%s{\"id\":%u,\"id_task\":%d,\"n_ctx\":%u,\"speculative\":false,\"is_processing\":%s,"
               "\"next_token\":{\"has_next_token\":%s,\"n_remain\":%u,\"n_decoded\":%u}",
               i ? "," : "", i, e ? (int)i : -1, n_ctx, e ? "true" : "false", e ? "true" : "false",
               e ? e->max_tokens - n : 0, n);
    if (e) {
        buf_puts(out, ",\"params\":");
        put_settings(out, &g->p, e->sampling.seed, e->max_tokens);
    }
    buf_puts(out, "}");
}

static bool runs(const struct request *r, const struct generation *g)
{
    if (g->state != GENERATION_SUBMITTED || !(r->admin || g->request->owner == r->owner))
        return false;
    int state = (int)atomic_load_explicit(&g->choices->e.state, memory_order_acquire);
    return state == ENGINE_PREFILL || state == ENGINE_DECODE;
}

/* Requests of other keys are as unknown as in GET /requests: their slots look free. */
void api_llama_slots(struct request *r)
{
    const struct generation *g = LIST_FIRST(&r->server->generator->generations);
    uint32_t n = r->server->cfg->slots, n_ctx = r->server->generator->model->n_ctx;
    buf_puts(&r->out, "[");
    for (uint32_t i = 0; i < n; i++) {
        while (g && !runs(r, g))
            g = LIST_NEXT(g, link);
        put_slot(&r->out, i, n_ctx, g);
        g = g ? LIST_NEXT(g, link) : NULL;
    }
    buf_puts(&r->out, "]\n");
    request_reply(r, 200);
}
