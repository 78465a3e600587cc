/* generation_prepare.c - from a body to what the engine is asked: fields read and checked against the limits,
 * the prompt as ids, room for what comes out. On the pool when the body is large; until it is done no other
 * thread has the generation. */
#include "generation.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define SEED_MASK ((1ull << 53) - 1)
#define MS        1000000ull

/* Limits of a preparation: operations of the chat template, 60 ns each at worst an eighth (jinja.h);
 * bytes that the template has written, which are tokenised at 10 to 20 MB/s. */
static const struct limits {
    unsigned operations; /* 0: as many as a template has */
    size_t text;
} limits_of[] = {
    [EFFORT_LOOP] = {4096, (size_t)16 << 10},
    [EFFORT_POOL] = {32768, (size_t)256 << 10},
    [EFFORT_LONG] = {0, SIZE_MAX},
};

unsigned generation_operations(const struct generation *g)
{
    return limits_of[g->effort].operations;
}

void generation_defaults(struct params *p)
{
    *p = (struct params){
        .add_special = true,
        .parse_special = true,
        .cache_prompt = true,
        .temperature = 0.8f,
        .top_k = 40,
        .top_p = 0.95f,
        .min_p = 0.05f,
        .typical_p = 1,
        .repetition_penalty = 1,
        .penalty_last_n = 64,
        .n = 1,
    };
    sampling_defaults(&p->sampling);
}

/* The member that the prompt came in. */
static const char *prompt_param(const struct generation *g)
{
    bool named = g->dialect->prompts && g->dialect->embeds;
    return g->p.chat.messages ? "messages" : named ? g->dialect->prompts : "prompt";
}

size_t generation_most_ids(const struct generation *g)
{
    size_t n_ctx = g->model->n_ctx;
    return g->dialect->counted > n_ctx ? g->dialect->counted : n_ctx;
}

static int context_exceeded(struct generation *g, struct api_error *err, size_t n_prompt, bool estimated)
{
    uint32_t n_ctx = g->model->n_ctx;
    if (err->status)
        return -1;
    err->has_context = true;
    err->estimated = estimated;
    err->n_prompt_tokens = err->n_requested = n_prompt;
    err->n_ctx = n_ctx;
    if (g->dialect->counted)
        return api_fail(err, 400, "context_exceeded", prompt_param(g),
                        "the prompt has %s%zu tokens, of which at most %zu are counted",
                        estimated ? "at least " : "", n_prompt, generation_most_ids(g));
    if (n_prompt >= n_ctx)
        return api_fail(err, 400, "context_exceeded", prompt_param(g),
                        "the prompt has %s%zu tokens, the context has %u", estimated ? "at least " : "",
                        n_prompt, n_ctx);
    err->n_requested += g->p.max_tokens;
    return api_fail(err, 400, "context_exceeded", "max_tokens",
                    "%zu prompt token%s and max_tokens %u exceed the context of %u", n_prompt,
                    n_prompt == 1 ? "" : "s", g->p.max_tokens, n_ctx);
}

int generation_append_id(struct generation *g, int32_t id, struct api_error *err)
{
    struct params *p = &g->p;
    size_t size = sizeof *p->ids;
    int32_t *ids = arena_grow(g->arena, p->ids, p->n_ids * size, (p->n_ids + 1) * size);
    if (!ids)
        return api_out_of_memory(err);
    p->ids = ids;
    p->ids[p->n_ids++] = id;
    return 0;
}

static int append_ids(struct generation *g, const int32_t *ids, size_t n, struct api_error *err)
{
    struct params *p = &g->p;
    size_t size = sizeof *ids;
    if (!n)
        return 0;
    int32_t *grown = arena_grow(g->arena, p->ids, p->n_ids * size, (p->n_ids + n) * size);
    if (!grown)
        return api_out_of_memory(err);
    memcpy(grown + p->n_ids, ids, n * size);
    p->ids = grown;
    p->n_ids += n;
    return 0;
}

int generation_encode(struct generation *g, const char *text, size_t len, struct tokenizer_flags flags,
                      struct api_error *err)
{
    const struct tokenizer *t = g->model->tokenizer;
    size_t n_ctx = generation_most_ids(g);
    size_t longest = tokenizer_max_piece(t), n = 0, n_before = g->p.n_ids;
    size_t at_least = n_before + (len + longest - 1) / (longest ? longest : 1);
    bool cuts = g->p.embed.truncates || g->p.truncate_prompt_tokens;
    if (at_least > n_ctx && !cuts)
        return context_exceeded(g, err, at_least, true);
    if (len > limits_of[g->effort].text)
        return generation_exceeded(g);
    int32_t *ids = NULL;
    struct error words = {0};
    int rc = tokenizer_encode(t, text, len, flags, cuts ? 0 : n_ctx - n_before + 1, &ids, &n, &words);
    if (rc == -E2BIG)
        return context_exceeded(g, err, n_ctx + 1, true);
    if (rc < 0)
        return rc == -ENOMEM ? api_out_of_memory(err) : api_invalid(err, prompt_param(g), "%s", words.text);
    if (g->p.embed.truncates && n > n_ctx) { /* the last token, which may end the text, stays the last */
        ids[n_ctx - 1] = ids[n - 1];
        n = n_ctx;
    }
    rc = append_ids(g, ids, n, err);
    free(ids);
    return rc;
}

int generation_too_long(struct generation *g, struct api_error *err)
{
    return context_exceeded(g, err, generation_most_ids(g) + 1, true);
}

/* Leaves the prompt's last tokens, as many as the client wants; the tokenizer's BOS before them stays. */
static int truncate_prompt(struct generation *g, const struct prompt *out, struct api_error *err)
{
    struct params *p = &g->p;
    const struct tokenizer *t = g->model->tokenizer;
    size_t n_ctx = g->model->n_ctx;
    size_t reserve = g->dialect->embeds ? 0 : p->has_max_tokens ? p->max_tokens : 1;
    size_t most = p->truncate_prompt_tokens > 0 ? (size_t)p->truncate_prompt_tokens
                  : reserve < n_ctx             ? n_ctx - reserve
                                                : 1;
    if (!p->truncate_prompt_tokens || p->n_ids <= most)
        return 0;
    if (out->echo)
        return api_invalid(err, "truncate_prompt_tokens", "a prompt that is echoed cannot be truncated");
    int32_t first = p->ids[0];
    p->ids += p->n_ids - most;
    p->n_ids = most;
    if (tokenizer_adds_bos(t) && first == tokenizer_bos(t))
        p->ids[0] = first;
    return 0;
}

static int make_ids(struct generation *g, struct prompt *out, struct api_error *err)
{
    struct params *p = &g->p;
    if (g->dialect->prepare && g->dialect->prepare(g, err) < 0)
        return -1;
    if (p->prompt) {
        struct tokenizer_flags flags = {.add_special = p->add_special, .parse_special = p->parse_special};
        if (generation_encode(g, p->prompt, p->prompt_len, flags, err) < 0)
            return -1;
    } else if (!p->has_prompt && !p->chat.messages) {
        return api_invalid(err, prompt_param(g), "%s is missing", prompt_param(g));
    }
    if (!p->n_ids)
        return api_invalid(err, prompt_param(g), "%s gives an empty prompt: at least one token is needed",
                           prompt_param(g));
    if (truncate_prompt(g, out, err) < 0)
        return -1;
    out->ids = p->ids;
    out->n_ids = (uint32_t)p->n_ids;
    return 0;
}

static int make_prompt(struct generation *g, struct prompt *out, struct api_error *err)
{
    g->n_prompts++; /* a dialect finds the prompt that it prepares as the last */
    return make_ids(g, out, err);
}

/* Makes the ids of several prompts in turn, each as if it were the only one. */
static int make_several(struct generation *g, struct api_error *err)
{
    struct params *p = &g->p;
    for (size_t i = 0; i < p->n_several; i++) {
        const struct prompt_given *given = &p->several[i];
        p->prompt = given->text;
        p->prompt_len = given->len;
        p->ids = given->ids;
        p->n_ids = given->n_ids;
        if (make_prompt(g, &g->prompts[i], err) < 0)
            return -1;
    }
    return 0;
}

static int make_prompts(struct generation *g, struct api_error *err)
{
    size_t n = g->p.n_several ? g->p.n_several : 1;
    size_t most = g->dialect->embeds ? GENERATE_MAX_INPUTS : GENERATE_MAX_PROMPTS;
    if (n > 1 && !g->dialect->prompts)
        return api_invalid(err, "prompt", "several prompts in one request are not supported here: send one");
    if (n > most)
        return api_invalid(err, prompt_param(g), "at most %zu prompts may come in one request (got %zu)",
                           most, n);
    if (!g->dialect->embeds && n * g->p.n > GENERATE_MAX_PROMPTS) /* each takes memory for max_tokens */
        return api_invalid(err, "n", "%zu prompts times n, %u, must be at most %d texts", n, g->p.n,
                           GENERATE_MAX_PROMPTS);
    if (n > 1 && g->p.prompt_logprobs)
        return api_invalid(err, "prompt_logprobs", "prompt_logprobs needs a single prompt (got %zu)", n);
    g->n_prompts = 0;
    g->prompts = arena_zalloc(g->arena, n * sizeof *g->prompts);
    if (!g->prompts)
        return api_out_of_memory(err);
    return n > 1 ? make_several(g, err) : make_prompt(g, g->prompts, err);
}

static int fit_prompt(struct generation *g, struct prompt *prompt, struct api_error *err)
{
    struct params *p = &g->p;
    uint32_t n_ctx = (uint32_t)generation_most_ids(g), max_tokens = p->max_tokens;
    bool only_cache = g->dialect->embeds || g->dialect->counted || (p->has_max_tokens && !p->max_tokens);
    if (prompt->n_ids > n_ctx || (prompt->n_ids == n_ctx && !only_cache))
        return context_exceeded(g, err, prompt->n_ids, false);
    uint32_t left = n_ctx - prompt->n_ids;
    if (g->dialect->counts ||
        g->dialect->embeds) { /* nothing comes: room for it would count against others */
        p->min_tokens = 0;
        return 0;
    }
    if (!p->has_max_tokens) {
        uint32_t wanted = max_tokens ? max_tokens : GENERATE_MAX_TOKENS;
        max_tokens = wanted < left ? wanted : left;
    }
    if (max_tokens > left && g->dialect->clamps)
        max_tokens = left;
    if (max_tokens > left)
        return context_exceeded(g, err, prompt->n_ids, false);
    if (p->min_tokens > max_tokens)
        return api_invalid(err, "min_tokens", "min_tokens must not be above max_tokens, %u (got %u)",
                           max_tokens, p->min_tokens);
    prompt->max_tokens = max_tokens;
    return 0;
}

static int fit_context(struct generation *g, struct api_error *err)
{
    for (uint32_t i = 0; i < g->n_prompts; i++)
        if (fit_prompt(g, &g->prompts[i], err) < 0)
            return -1;
    return 0;
}

/* The choices of a prompt that are submitted as one. */
static uint32_t n_together(const struct generation *g)
{
    uint32_t n_slots = g->server->cfg->slots,
             most = n_slots < ENGINE_MAX_CHOICES ? n_slots : ENGINE_MAX_CHOICES;
    return g->p.n < most ? g->p.n : most;
}

static uint64_t deadline(const struct request *r, uint64_t ms)
{
    return ms ? r->accepted_ns + ms * MS : 0;
}

static void fill_request(struct choice *c)
{
    struct generation *g = c->g;
    struct params *p = &g->p;
    const struct prompt *prompt = choice_prompt(c);
    struct engine_request *e = &c->e;
    bool first = c->index % p->n == 0, echo = p->echoes && p->has_logprobs;
    uint32_t n_echo_top = echo ? p->logprobs : 0;
    *e = (struct engine_request){
        .prompt = prompt->ids,
        .n_prompt = prompt->n_ids,
        .max_tokens = prompt->max_tokens,
        .min_tokens = p->min_tokens,
        .ignore_eos = p->ignore_eos,
        .cache_prompt = p->cache_prompt,
        .want_logprobs = p->has_logprobs,
        .n_top = p->logprobs,
        .want_prompt_logprobs = first && (p->prompt_logprobs > 0 || echo),
        .n_prompt_top = !first                            ? 0
                        : n_echo_top > p->prompt_logprobs ? n_echo_top
                                                          : p->prompt_logprobs,
        .stop_ids = p->stop_ids,
        .n_stop_ids = p->n_stop_ids,
        .biases = p->biases,
        .priority = p->priority,
        .salt = g->request->owner,
        .user = c,
    };
    e->sampling = (struct step_sampling){
        .seed = (p->seed + c->index % p->n) & SEED_MASK,
        .temperature = p->temperature,
        .top_p = p->top_p,
        .min_p = p->min_p,
        .typical_p = p->typical_p,
        .repetition_penalty = p->repetition_penalty,
        .presence_penalty = p->presence_penalty,
        .frequency_penalty = p->frequency_penalty,
        .top_k = (int32_t)p->top_k,
        .penalty_last_n = p->penalty_last_n,
        .n_bias = p->n_biases,
    };
    e->deadline_ns = deadline(g->request, generation_timeout_ms(g));
    bool waits = c->index < n_together(g); /* with these the request has begun to run */
    e->queue_deadline_ns = waits ? deadline(g->request, generation_queue_timeout_ms(g)) : 0;
}

/* A vector in place of text. */
static int ask_embedding(struct choice *c, struct api_error *err)
{
    const struct server_model *m = c->g->model;
    c->e.pooling = m->pooling;
    size_t before = c->g->arena->total;
    c->e.embedding = arena_array(c->g->arena, engine_n_embedding(m->engine), sizeof *c->e.embedding);
    c->g->room += c->g->arena->total - before;
    return c->e.embedding ? 0 : api_out_of_memory(err);
}

static bool is_among(int32_t token, const int32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (tokens[i] == token)
            return true;
    return false;
}

/* Adds the tokens that the model's file wants in no text, each once, to the biases. A client's own bias of
 * such a token is left out. */
static int suppress_tokens(struct generation *g, struct api_error *err)
{
    struct params *p = &g->p;
    const int32_t *ids;
    size_t n = tokenizer_suppressed(g->model->tokenizer, &ids), room = p->n_biases + n, n_all = 0;
    if (n == 0)
        return 0;
    struct step_bias *all = arena_array(g->arena, room, sizeof *all);
    if (!all)
        return api_out_of_memory(err);
    for (size_t i = 0; i < p->n_biases; i++)
        if (!is_among(p->biases[i].token, ids, n))
            all[n_all++] = p->biases[i];
    for (size_t i = 0; i < n; i++)
        if (!is_among(ids[i], ids, i) && (uint32_t)ids[i] < model_config(g->model->model)->n_vocab)
            all[n_all++] = (struct step_bias){.token = ids[i], .bias = -INFINITY};
    if (n_all > STEP_MAX_BIAS)
        return api_invalid(err, "logit_bias",
                           "logit_bias may have at most %zu entries with this model (got %u)",
                           STEP_MAX_BIAS - n, p->n_biases);
    p->biases = all;
    p->n_biases = (uint32_t)n_all;
    return 0;
}

static int make_choices(struct generation *g, struct api_error *err)
{
    uint32_t n = g->p.n * g->n_prompts, n_first = n_together(g);
    if (suppress_tokens(g, err) < 0)
        return -1;
    g->choices = arena_zalloc(g->arena, n * sizeof *g->choices);
    if (!g->choices)
        return api_out_of_memory(err);
    for (uint32_t i = 0; i < n; i++) {
        struct choice *c = &g->choices[i];
        c->g = g;
        c->index = i;
        fill_request(c);
        c->e.next_choice = i % g->p.n + 1 < n_first ? &c[1].e : NULL;
        if (g->dialect->embeds && ask_embedding(c, err) < 0)
            return -1;
        if (sampling_begin(g, &c->e, err) < 0 || constraint_begin(g, &c->e, err) < 0 ||
            choice_open(c, err) < 0)
            return -1;
    }
    g->n_choices = g->n_running = n;
    return 0;
}

/* Sets a member as `from` has it, unless it is set or `from` has none. */
static int add_member(json_t *object, const json_t *from, const char *name)
{
    json_t *value = json_object_get(from, name);
    return value && !json_object_get(object, name) ? json_object_set(object, name, value) : 0;
}

/* Settings that all chats take by these names; the tables of the dialect read them. */
static const struct field chat_settings[] = {
    {.name = "temperature"},
    {.name = "top_k"},
    {.name = "top_p"},
    {.name = "min_p"},
    {.name = "typical_p"},
    {.name = "repetition_penalty"},
    {.name = "presence_penalty"},
    {.name = "frequency_penalty"},
    {.name = "penalty_last_n"},
    {.name = "seed"},
    {.name = "stop_token_ids"},
    {.name = "ignore_eos"},
    {.name = "min_tokens"},
    {.name = "logit_bias"},
    {.name = "cache_prompt"},
    {.name = "timeout_ms"},
    {.name = "queue_timeout_ms"},
    {.name = "priority"},
    {.name = "chat_format"},
    {.name = "chat_template_kwargs"},
    {0},
};

/* Adds to a translated body what every route takes, where the dialect has no such member of its own. */
static int add_common(json_t *out, const json_t *body, struct api_error *err)
{
    const struct field *const tables[] = {constraint_fields, sampling_fields, chat_settings};
    size_t n = sizeof tables / sizeof *tables - !json_object_get(out, "messages");
    for (size_t t = 0; t < n; t++)
        for (const struct field *f = tables[t]; f->name; f++)
            if (add_member(out, body, f->name) < 0)
                return api_out_of_memory(err);
    return 0;
}

/* Makes g->body what the dialect reads in it. */
static int translate(struct generation *g, struct api_error *err)
{
    json_t *out = g->dialect->translate(g->body, err);
    int rc = out ? add_common(out, g->body, err) : -1;
    g->sent = g->body;
    g->body = out;
    return rc;
}

static void choose_dialect(struct generation *g)
{
    const struct dialect_of_body *d = json_object_get(g->body, "prompt") ? NULL : g->dialect->others;
    while (d && d->member && !json_object_get(g->body, d->member))
        d++;
    if (d && d->member)
        g->dialect = d->dialect;
}

/* Fields that another dialect calls otherwise. */
static const struct field renamed_fields[] = {{.name = "max_completion_tokens"}, {0}};
static const struct field tgi_names[] = {{.name = "inputs"}, {.name = "parameters"}, {0}};

static int read_params(struct generation *g, struct arena *scratch, struct api_error *err)
{
    const struct request *r = g->request;
    const char *several = g->dialect->prompts;
    size_t n_ctx = g->model->n_ctx, most = several ? 4 * n_ctx : n_ctx; /* values of all prompts */
    struct json_list prompt = {.name = several ? several : "prompt", .max = most};
    bool counts = g->dialect->counted > 0; /* a conversation may be longer than the context */
    struct json_limits limits = {.max_values = most + (counts ? 65536 : 4096),
                                 .max_depth = JSON_MAX_DEPTH_IN_BODY,
                                 .list = counts ? NULL : &prompt};
    if (g->dialect->mends)
        json_mend_escapes(r->body, r->body_len);
    g->body = json_read(r->body, r->body_len, &limits, err);
    if (!g->body)
        return prompt.over ? generation_too_long(g, err) : -1;
    choose_dialect(g);
    if (g->dialect->translate && translate(g, err) < 0)
        return -1;
    const struct field *tables[6];
    size_t n_tables = 0;
    if (g->dialect->extras)
        tables[n_tables++] = g->dialect->extras;
    if (g->dialect->own_fields)
        tables[n_tables++] = g->dialect->own_fields;
    if (g->dialect->fields)
        tables[n_tables++] = g->dialect->fields;
    if (!g->dialect->embeds) {
        tables[n_tables++] = generate_fields;
        tables[n_tables++] = constraint_fields;
        tables[n_tables++] = sampling_fields;
    }
    const struct field_place elsewhere[] = {{renamed_fields, "use max_tokens"},
                                            {tgi_names, "supported by POST / and POST /generate_stream"},
                                            {dialect_completions.fields, "supported by POST /v1/completions"},
                                            {dialect_chat.fields, "supported by POST /v1/chat/completions"},
                                            {0}};
    struct field_reader reader = {.out = &g->p,
                                  .arena = g->arena,
                                  .err = err,
                                  .ignore_unknown = g->server->cfg->unknown_fields == CONFIG_IGNORE,
                                  .elsewhere = elsewhere,
                                  .context = g->model};
    generation_defaults(&g->p);
    g->p.chat.arena = scratch;
    if (g->dialect->defaults)
        g->dialect->defaults(&g->p);
    return fields_read(&reader, g->body, tables, n_tables);
}

/* Checks what only a client with the admin key may ask for. */
static int check_limits(const struct generation *g, struct api_error *err)
{
    const struct config *cfg = g->server->cfg;
    const struct params *p = &g->p;
    if (g->request->admin)
        return 0;
    if (p->priority > (int32_t)cfg->max_priority)
        return api_invalid(err, "priority", "priority must not be above max_priority, %u (got %d)",
                           cfg->max_priority, p->priority);
    if (!cfg->max_timeout_ms || !p->has_timeout_ms || (p->timeout_ms && p->timeout_ms <= cfg->max_timeout_ms))
        return 0;
    return api_invalid(err, "timeout_ms", "timeout_ms must be between 1 and max_timeout_ms, %u (got %u)",
                       cfg->max_timeout_ms, p->timeout_ms);
}

void generation_prepare(struct request *r)
{
    struct generation *g = r->context;
    struct api_error *err = &r->error;
    struct arena scratch = {0}; /* of what makes the prompt */
    /* The constraint depends on what the prompt has opened. */
    if (read_params(g, &scratch, err) == 0 && check_limits(g, err) == 0 && make_prompts(g, err) == 0 &&
        sampling_prepare(g, err) == 0 && constraint_prepare(g, err) == 0 && fit_context(g, err) == 0) {
        if (!g->p.has_seed && getrandom(&g->p.seed, sizeof g->p.seed, 0) != sizeof g->p.seed)
            g->p.seed = clock_ns();
        g->p.seed &= SEED_MASK;
        make_choices(g, err);
    }
    if (err->status)
        field_names_apply(g->dialect->names, g->sent, err);
    arena_close(&scratch);
    json_decref(g->sent);
    g->sent = NULL;
    json_decref(g->body);
    g->body = NULL;
    g->p.prompt = NULL; /* went with the tree */
    g->p.several = NULL;
    g->p.n_several = 0;
    g->p.chat = (struct chat){0};
    g->p.constraint.value = NULL;
    g->p.banned.value = NULL;
    json_decref(g->p.tool_list);
    g->p.tool_list = NULL;
    json_decref(g->p.schema);
    g->p.schema = NULL;
    g->p.infill = (struct infill){0};
    g->p.choice.of = NULL;
}
