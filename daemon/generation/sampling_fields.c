#include "sampling_fields.h"
#include "generation.h"
#include "toolcall/toolcall_writing.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void sampling_defaults(struct sampling *s)
{
    *s = (struct sampling){.dry_last_n = -1, .thinking_budget = -1};
    sampler_chain_defaults(&s->chain);
}

/* --- fields --- */

static const struct {
    const char *name;
    char letter;
    uint8_t filter; /* SAMPLER_N_FILTERS: known, and without effect */
} filters[] = {
    {"penalties", 'e', SAMPLER_PENALTIES},
    {"dry", 'd', SAMPLER_DRY},
    {"top_n_sigma", 's', SAMPLER_TOP_N_SIGMA},
    {"top_k", 'k', SAMPLER_TOP_K},
    {"typ_p", 'y', SAMPLER_TYPICAL_P},
    {"typical_p", 0, SAMPLER_TYPICAL_P},
    {"typical", 0, SAMPLER_TYPICAL_P},
    {"top_p", 'p', SAMPLER_TOP_P},
    {"min_p", 'm', SAMPLER_MIN_P},
    {"xtc", 'x', SAMPLER_XTC},
    {"temperature", 't', SAMPLER_TEMPERATURE},
    {"temp", 0, SAMPLER_TEMPERATURE},
    {"infill", 'i', SAMPLER_N_FILTERS},
    {"adaptive_p", 'a', SAMPLER_N_FILTERS}, /* always the last */
};
#define N_NAMES (sizeof filters / sizeof *filters)

static size_t named(const char *name)
{
    size_t i = 0;
    while (i < N_NAMES && strcmp(filters[i].name, name) != 0)
        i++;
    return i;
}

static size_t lettered(char letter)
{
    size_t i = 0;
    while (i < N_NAMES && filters[i].letter != letter)
        i++;
    return i;
}

static int add_filter(struct field_reader *r, const struct field *f, struct sampling *s, size_t name)
{
    struct sampler_chain *c = &s->chain;
    if (name == N_NAMES)
        return api_invalid(r->err, f->name,
                           "%s may have: penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc, "
                           "temperature, infill, adaptive_p",
                           f->name);
    if (filters[name].filter == SAMPLER_N_FILTERS)
        return 0;
    for (uint32_t i = 0; i < c->n_order; i++)
        if (c->order[i] == filters[name].filter)
            return api_invalid(r->err, f->name, "%s has %s twice", f->name, filters[name].name);
    c->order[c->n_order++] = filters[name].filter;
    return 0;
}

static int read_order(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct sampling *s = (struct sampling *)((char *)r->out + f->offset);
    const char *letters = json_string_value(value);
    if (!letters && !json_is_array(value))
        return api_invalid(r->err, f->name, "%s must be an array of names or a string of letters (got %s)",
                           f->name, field_got(value));
    s->has_order = true;
    s->chain.n_order = 0;
    for (; letters && *letters; letters++)
        if (add_filter(r, f, s, lettered(*letters)) < 0)
            return -1;
    for (size_t i = 0; i < json_array_size(value); i++) {
        const char *name = json_string_value(json_array_get(value, i));
        if (add_filter(r, f, s, name ? named(name) : N_NAMES) < 0)
            return -1;
    }
    return 0;
}

static int read_mirostat(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct sampling *s = (struct sampling *)((char *)r->out + f->offset);
    int64_t n;
    if (field_integer(r, f->name, value, 0, 2, &n) < 0)
        return -1;
    if (n == 1)
        return api_invalid(r->err, f->name, "mirostat must be 0 or 2: its first version is not supported");
    s->chain.mirostat = n == 2;
    return 0;
}

static int read_breakers(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct sampling *s = (struct sampling *)((char *)r->out + f->offset);
    size_t n = json_array_size(value);
    if (!json_is_array(value) || n > SAMPLING_MAX_BREAKERS)
        return api_invalid(r->err, f->name, "%s must be an array of at most %d strings", f->name,
                           SAMPLING_MAX_BREAKERS);
    s->has_breakers = true;
    for (s->n_breakers = 0; s->n_breakers < n; s->n_breakers++) {
        const json_t *item = json_array_get(value, s->n_breakers);
        size_t len = json_string_length(item);
        if (!json_is_string(item) || !len || len > SAMPLING_MAX_BREAKER)
            return api_invalid(r->err, f->name, "%s may have strings of 1 to %d bytes (got %s)", f->name,
                               SAMPLING_MAX_BREAKER, field_got(item));
        s->breakers[s->n_breakers] = arena_copy(r->arena, json_string_value(item), len);
        if (!s->breakers[s->n_breakers])
            return api_out_of_memory(r->err);
    }
    return 0;
}

#define AT(member) offsetof(struct params, sampling.member)
#define NUMBER(n, member, lo, hi)                                                                            \
    {                                                                                                        \
        .name = n, .kind = FIELD_FLOAT, .offset = AT(member), .min = lo, .max = hi                           \
    }
#define BUDGET(n)                                                                                            \
    {                                                                                                        \
        .name = n, .kind = FIELD_I32, .offset = AT(thinking_budget), .min = -1, .max = 2147483647            \
    }
#define CUSTOM(n, reader)                                                                                    \
    {                                                                                                        \
        .name = n, .kind = FIELD_CUSTOM, .offset = offsetof(struct params, sampling), .read = reader         \
    }

const struct field sampling_fields[] = {
    NUMBER("top_n_sigma", chain.top_n_sigma, -1, 100),
    NUMBER("xtc_probability", chain.xtc_probability, 0, 1),
    NUMBER("xtc_threshold", chain.xtc_threshold, 0, 1),
    NUMBER("dynatemp_range", chain.dynatemp_range, 0, 2),
    NUMBER("dynatemp_exponent", chain.dynatemp_exponent, 0.01, 10),
    NUMBER("dry_multiplier", chain.dry_multiplier, 0, 100),
    NUMBER("dry_base", chain.dry_base, 1, 10),
    {.name = "dry_allowed_length",
     .kind = FIELD_U32,
     .offset = AT(chain.dry_allowed_length),
     .min = 1,
     .max = 1000000},
    {.name = "dry_penalty_last_n", .kind = FIELD_I32, .offset = AT(dry_last_n), .min = -1, .max = 2147483647},
    CUSTOM("dry_sequence_breakers", read_breakers),
    CUSTOM("mirostat", read_mirostat),
    NUMBER("mirostat_tau", chain.mirostat_tau, 0, 100),
    NUMBER("mirostat_eta", chain.mirostat_eta, 0, 10),
    NUMBER("adaptive_target", chain.adaptive_target, -1, 1),
    NUMBER("adaptive_decay", chain.adaptive_decay, 0, 0.99),
    CUSTOM("samplers", read_order),
    BUDGET("thinking_budget"),
    BUDGET("thinking_budget_tokens"),
    BUDGET("reasoning_budget_tokens"),
    BUDGET("thinking_token_budget"),
    BUDGET("max_thinking_tokens"),
    {0},
};

/* --- the order --- */

static bool listed(const struct sampler_chain *c, enum sampler_filter filter)
{
    for (uint32_t i = 0; i < c->n_order; i++)
        if (c->order[i] == filter)
            return true;
    return false;
}

/* A filter that the order leaves out is off. */
static void leave_out(struct params *p)
{
    const struct sampler_chain *c = &p->sampling.chain;
    if (!listed(c, SAMPLER_TOP_K))
        p->top_k = 0;
    if (!listed(c, SAMPLER_TYPICAL_P))
        p->typical_p = 1;
    if (!listed(c, SAMPLER_TOP_P))
        p->top_p = 1;
    if (!listed(c, SAMPLER_MIN_P))
        p->min_p = 0;
    if (!listed(c, SAMPLER_TEMPERATURE))
        p->temperature = 1;
    if (!listed(c, SAMPLER_PENALTIES)) {
        p->repetition_penalty = 1;
        p->presence_penalty = p->frequency_penalty = 0;
    }
}

/* Tells if the decoder's filters come in the decoder's order. */
static bool is_usual(const struct sampler_chain *c)
{
    for (uint32_t i = 1; i < c->n_order; i++)
        if (c->order[i] < c->order[i - 1])
            return false;
    return true;
}

static bool needs_chain(const struct sampling *s)
{
    const struct sampler_chain *c = &s->chain;
    return (c->top_n_sigma > 0 && listed(c, SAMPLER_TOP_N_SIGMA)) ||
           (c->xtc_probability > 0 && listed(c, SAMPLER_XTC)) ||
           (c->dry_multiplier > 0 && listed(c, SAMPLER_DRY)) ||
           (c->dynatemp_range > 0 && listed(c, SAMPLER_TEMPERATURE)) || c->mirostat ||
           c->adaptive_target >= 0 || !is_usual(c) || c->budget.on;
}

/* --- tokens of strings --- */

static int encode(const struct generation *g, const char *text, struct sampler_tokens *out,
                  struct api_error *err)
{
    int32_t *ids = NULL;
    size_t n = 0;
    struct error words = {0};
    struct tokenizer_flags flags = {.parse_special = true};
    int rc = tokenizer_encode(g->model->tokenizer, text, strlen(text), flags, 0, &ids, &n, &words);
    if (rc == -ENOMEM)
        return api_out_of_memory(err);
    int32_t *copy = arena_array(g->arena, n, sizeof *copy);
    if (copy && n)
        memcpy(copy, ids, n * sizeof *copy);
    free(ids);
    *out = (struct sampler_tokens){copy, (uint32_t)n};
    return copy ? 0 : api_out_of_memory(err);
}

/* The texts by their first bytes, so that a vocabulary is looked through in one pass over its bytes. */
struct breaker_texts {
    const char *const *texts;
    size_t lens[SAMPLING_MAX_BREAKERS];
    uint32_t n;
    bool begins[256];
};

static struct breaker_texts texts_of(const char *const *texts, uint32_t n)
{
    struct breaker_texts b = {.texts = texts, .n = n};
    for (uint32_t i = 0; i < n; i++) {
        b.lens[i] = strlen(texts[i]);
        b.begins[(uint8_t)texts[i][0]] = true;
    }
    return b;
}

static bool contains_one(struct tokenizer_piece piece, const struct breaker_texts *b)
{
    for (uint32_t at = 0; at < piece.len; at++)
        for (uint32_t i = 0; b->begins[(uint8_t)piece.s[at]] && i < b->n; i++)
            if (b->lens[i] <= piece.len - at && !memcmp(piece.s + at, b->texts[i], b->lens[i]))
                return true;
    return false;
}

/* A token that has a breaker in it breaks by itself; and so do the tokens that a longer one is written in. */
static int make_breakers(struct generation *g, struct sampling *s, struct api_error *err)
{
    static const char *const usual[] = {"\n", ":", "\"", "*"};
    const struct tokenizer *t = g->model->tokenizer;
    const char *const *texts = s->has_breakers ? s->breakers : usual;
    uint32_t n = s->has_breakers ? s->n_breakers : sizeof usual / sizeof *usual,
             n_vocab = tokenizer_n_vocab(t);
    uint32_t *single = arena_zalloc(g->arena, (n_vocab + 31) / 32 * sizeof *single);
    struct sampler_tokens *several = arena_array(g->arena, n, sizeof *several);
    if (!single || !several)
        return api_out_of_memory(err);
    const struct breaker_texts all = texts_of(texts, n);
    for (uint32_t token = 0; token < n_vocab; token++)
        if (contains_one(tokenizer_piece(t, (int32_t)token, true), &all))
            single[token / 32] |= 1u << (token % 32);
    s->chain.single = single;
    s->chain.n_single = n_vocab;
    s->chain.breakers = several;
    for (uint32_t i = 0; i < n; i++) {
        struct sampler_tokens *b = &several[s->chain.n_breakers];
        if (encode(g, texts[i], b, err) < 0)
            return -1;
        s->chain.n_breakers += b->n > 1;
    }
    return 0;
}

static const char *marked_piece(const void *context, int32_t token, uint32_t *len)
{
    struct tokenizer_piece p = tokenizer_piece(context, token, true);
    *len = p.len;
    return p.s;
}

/* The longest token that spells the beginning of a text, or -1. */
static int32_t longest_token(const struct tokenizer *t, const char *text, size_t n)
{
    for (; n > 0; n--) {
        int32_t token = tokenizer_find(t, text, n);
        struct tokenizer_piece p = token < 0 ? (struct tokenizer_piece){0} : tokenizer_piece(t, token, true);
        if (p.len == n && !memcmp(p.s, text, n))
            return token;
    }
    return -1;
}

/* Finds the tokens that go on behind any part of the mark: where the tokenizer cuts it, its own. */
static int make_mark(const struct generation *g, const char *text, struct sampler_mark *out,
                     struct api_error *err)
{
    const struct tokenizer *t = g->model->tokenizer;
    struct sampler_tokens own;
    uint32_t n = (uint32_t)strlen(text), at = 0;
    int32_t *next = arena_array(g->arena, n, sizeof *next);
    if (!next)
        return api_out_of_memory(err);
    if (encode(g, text, &own, err) < 0)
        return -1;
    for (uint32_t i = 0; i < n; i++)
        next[i] = longest_token(t, text + i, n - i);
    for (uint32_t i = 0; i < own.n && at < n; i++) {
        struct tokenizer_piece p = tokenizer_piece(t, own.ids[i], true);
        if (p.len == 0 || p.len > n - at || memcmp(p.s, text + at, p.len) != 0)
            break; /* a blank in front, say */
        next[at] = own.ids[i];
        at += p.len;
    }
    *out = (struct sampler_mark){text, n, next};
    return 0;
}

/* A model without marks of a reasoning has none to bound. */
static int make_budget(struct generation *g, struct sampling *s, struct api_error *err)
{
    const struct toolcall_format *f = g->p.format ? g->p.format : g->model->format;
    struct toolcall_reasoning marks = {0};
    struct sampler_budget *b = &s->chain.budget;
    if (f)
        marks = toolcall_reasoning_of(f);
    if (!marks.open || !marks.close)
        return 0;
    if (make_mark(g, marks.close, &b->close, err) < 0)
        return -1;
    b->open = (struct sampler_mark){.text = marks.open, .n = (uint32_t)strlen(marks.open)};
    b->piece = marked_piece;
    b->context = g->model->tokenizer;
    b->on = b->close.n > 0;
    b->limit = (uint32_t)s->thinking_budget;
    b->begins_inside = g->p.prompt_end && toolcall_reasoning_is_open(f, g->p.prompt_end, g->p.prompt_end_len);
    return 0;
}

int sampling_prepare(struct generation *g, struct api_error *err)
{
    struct sampling *s = &g->p.sampling;
    if (s->has_order)
        leave_out(&g->p);
    s->chain.dry_last_n = s->dry_last_n < 0 ? UINT32_MAX : (uint32_t)s->dry_last_n;
    if (s->thinking_budget >= 0 && make_budget(g, s, err) < 0)
        return -1;
    s->chained = needs_chain(s);
    if (!s->chained || !(s->chain.dry_multiplier > 0))
        return 0;
    return g->effort == EFFORT_LOOP ? generation_exceeded(g) : make_breakers(g, s, err);
}

int sampling_begin(struct generation *g, struct engine_request *e, struct api_error *err)
{
    if (!g->p.sampling.chained)
        return 0;
    e->chain = arena_zalloc(g->arena, sizeof *e->chain);
    if (!e->chain)
        return api_out_of_memory(err);
    *e->chain = g->p.sampling.chain;
    sampler_chain_begin(e->chain);
    return 0;
}
