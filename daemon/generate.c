/* generate.c - the way of a generation from its body to its outcome. */
#include "generate.h"
#include "log.h"
#include "model.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define SEED_MASK       ((1ull << 53) - 1)
#define MS              1000000ull
#define BYTES_PER_TOKEN 4  /* of a body: English text, and ids with their commas */
#define BYTES_PER_ENTRY 64 /* of a reply: a token or an alternative, with its log-probability */

/* --- preparing: on the loop or on the pool --- */

static void set_defaults(struct params *p)
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
}

static int context_exceeded(struct generation *g, struct api_error *err, size_t n_prompt, bool estimated)
{
    uint32_t n_ctx = g->model->n_ctx;
    if (err->status)
        return -1;
    err->has_context = true;
    err->estimated = estimated;
    err->n_prompt_tokens = n_prompt;
    err->n_ctx = n_ctx;
    if (n_prompt >= n_ctx)
        return api_fail(err, 400, "context_exceeded", "prompt", "the prompt has %s%zu tokens, the context %u",
                        estimated ? "at least " : "", n_prompt, n_ctx);
    return api_fail(err, 400, "context_exceeded", "max_tokens",
                    "%zu token%s of prompt and max_tokens %u are more than the context, %u", n_prompt,
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
    size_t n_ctx = g->model->n_ctx;
    size_t longest = tokenizer_max_piece(t), n = 0, n_before = g->p.n_ids;
    size_t at_least = n_before + (len + longest - 1) / (longest ? longest : 1);
    if (at_least > n_ctx)
        return context_exceeded(g, err, at_least, true);
    int32_t *ids = NULL;
    struct error words = {0};
    int rc = tokenizer_encode(t, text, len, flags, n_ctx - n_before + 1, &ids, &n, &words);
    if (rc == -E2BIG)
        return context_exceeded(g, err, n_ctx + 1, true);
    if (rc < 0)
        return rc == -ENOMEM ? api_out_of_memory(err) : api_invalid(err, "prompt", "%s", words.text);
    rc = append_ids(g, ids, n, err);
    free(ids);
    return rc;
}

int generation_too_long(struct generation *g, struct api_error *err)
{
    return context_exceeded(g, err, (size_t)g->model->n_ctx + 1, true);
}

static int make_ids(struct generation *g, struct api_error *err)
{
    struct params *p = &g->p;
    if (g->dialect->prepare && g->dialect->prepare(g, err) < 0)
        return -1;
    if (p->prompt) {
        struct tokenizer_flags flags = {.add_special = p->add_special, .parse_special = p->parse_special};
        if (generation_encode(g, p->prompt, p->prompt_len, flags, err) < 0)
            return -1;
    } else if (!p->has_prompt && !p->chat.messages) {
        return api_invalid(err, "prompt", "prompt is missing");
    }
    if (!p->n_ids)
        return api_invalid(err, "prompt", "the prompt is empty: at least one token is needed");
    return 0;
}

static int fit_context(struct generation *g, struct api_error *err)
{
    struct params *p = &g->p;
    uint32_t n_ctx = g->model->n_ctx;
    bool only_cache = p->has_max_tokens && !p->max_tokens;
    if (p->n_ids > n_ctx || (p->n_ids == n_ctx && !only_cache))
        return context_exceeded(g, err, p->n_ids, false);
    uint32_t left = n_ctx - (uint32_t)p->n_ids;
    if (!p->has_max_tokens) {
        uint32_t wanted = p->max_tokens ? p->max_tokens : GENERATE_MAX_TOKENS;
        p->max_tokens = wanted < left ? wanted : left;
    }
    if (p->max_tokens > left)
        return context_exceeded(g, err, p->n_ids, false);
    if (p->min_tokens > p->max_tokens)
        return api_invalid(err, "min_tokens", "min_tokens must not be above max_tokens, %u (got %u)",
                           p->max_tokens, p->min_tokens);
    return 0;
}

static uint64_t deadline(const struct request *r, uint64_t ms)
{
    return ms ? r->accepted_ns + ms * MS : 0;
}

/* What is given is within max_timeout_ms: check_limits(). */
static uint64_t timeout_ms(const struct generation *g)
{
    const struct config *cfg = g->server->cfg;
    uint32_t max = g->request->admin ? 0 : cfg->max_timeout_ms;
    if (g->p.has_timeout_ms)
        return g->p.timeout_ms;
    return max && (!cfg->timeout_ms || cfg->timeout_ms > max) ? max : cfg->timeout_ms;
}

static uint64_t queue_timeout_ms(const struct generation *g)
{
    return g->p.has_queue_timeout_ms ? g->p.queue_timeout_ms : g->server->cfg->queue_timeout_ms;
}

static void fill_request(struct choice *c)
{
    struct generation *g = c->g;
    struct params *p = &g->p;
    struct engine_request *e = &c->e;
    bool first = c->index == 0;
    *e = (struct engine_request){
        .prompt = p->ids,
        .n_prompt = (uint32_t)p->n_ids,
        .max_tokens = p->max_tokens,
        .min_tokens = p->min_tokens,
        .ignore_eos = p->ignore_eos,
        .cache_prompt = p->cache_prompt,
        .want_logprobs = p->has_logprobs,
        .n_top = p->logprobs,
        .want_prompt_logprobs = first && p->prompt_logprobs > 0,
        .n_prompt_top = first ? p->prompt_logprobs : 0,
        .stop_ids = p->stop_ids,
        .n_stop_ids = p->n_stop_ids,
        .biases = p->biases,
        .priority = p->priority,
        .salt = g->request->owner,
        .user = c,
    };
    e->sampling = (struct step_sampling){
        .seed = (p->seed + c->index) & SEED_MASK,
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
    e->deadline_ns = deadline(g->request, timeout_ms(g));
    e->queue_deadline_ns = deadline(g->request, queue_timeout_ms(g));
}

static int make_choices(struct generation *g, struct api_error *err)
{
    uint32_t n = g->p.n;
    g->choices = arena_zalloc(g->arena, n * sizeof *g->choices);
    if (!g->choices)
        return api_out_of_memory(err);
    for (uint32_t i = 0; i < n; i++) {
        struct choice *c = &g->choices[i];
        c->g = g;
        c->index = i;
        fill_request(c);
        c->e.next_choice = i + 1 < n ? &c[1].e : NULL;
        if (choice_open(c, err) < 0)
            return -1;
    }
    g->n_choices = g->n_running = n;
    return 0;
}

/* What another dialect calls otherwise. */
static const struct field renamed_fields[] = {{.name = "max_completion_tokens"}, {0}};

static int read_params(struct generation *g, struct arena *scratch, struct api_error *err)
{
    const struct request *r = g->request;
    struct json_list prompt = {.name = "prompt", .max = g->model->n_ctx};
    struct json_limits limits = {
        .max_values = (size_t)g->model->n_ctx + 4096, .max_depth = JSON_MAX_DEPTH_IN_BODY, .list = &prompt};
    g->body = json_read(r->body, r->body_len, &limits, err);
    if (!g->body)
        return prompt.over ? generation_too_long(g, err) : -1;
    const struct field *tables[] = {g->dialect->fields, generate_fields};
    const struct field_place elsewhere[] = {{renamed_fields, "here it is max_tokens"},
                                            {dialect_completions.fields, "POST /v1/completions takes it"},
                                            {dialect_chat.fields, "POST /v1/chat/completions takes it"},
                                            {0}};
    struct field_reader reader = {.out = &g->p,
                                  .arena = g->arena,
                                  .err = err,
                                  .ignore_unknown = g->server->cfg->unknown_fields == CONFIG_IGNORE,
                                  .elsewhere = elsewhere,
                                  .context = g->model};
    set_defaults(&g->p);
    g->p.chat.arena = scratch;
    if (g->dialect->defaults)
        g->dialect->defaults(&g->p);
    size_t skip = !g->dialect->fields;
    return fields_read(&reader, g->body, tables + skip, 2 - skip);
}

/* What only who has the admin key may ask for. */
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

static void prepare(struct request *r)
{
    struct generation *g = r->generation;
    struct api_error *err = &r->error;
    struct arena scratch = {0}; /* of what makes the prompt */
    if (read_params(g, &scratch, err) == 0 && check_limits(g, err) == 0 && make_ids(g, err) == 0 &&
        fit_context(g, err) == 0) {
        if (!g->p.has_seed && getrandom(&g->p.seed, sizeof g->p.seed, 0) != sizeof g->p.seed)
            g->p.seed = clock_ns();
        g->p.seed &= SEED_MASK;
        make_choices(g, err);
    }
    arena_close(&scratch);
    json_decref(g->body);
    g->body = NULL;
    g->p.prompt = NULL; /* went with the tree */
    g->p.chat = (struct chat){0};
}

/* --- on the loop --- */

static void unlink_generation(struct generation *g)
{
    struct server *s = g->server;
    if (g->next)
        g->next->prev = g->prev;
    if (g->prev)
        g->prev->next = g->next;
    else
        s->generations = g->next;
    s->n_active--;
}

/* The engine, or nobody, has it no more. */
static void leave(struct generation *g, enum generation_outcome outcome)
{
    struct server *s = g->server;
    struct request *r = g->request;
    g->state = GENERATION_FINISHED;
    if (g->outcome == GENERATION_NONE)
        g->outcome = outcome;
    unlink_generation(g);
    server_give_model(s, g->model);
    request_unref(r);
    server_check_drained(s);
}

static void fail(struct generation *g, const struct api_error *e, enum generation_outcome outcome)
{
    struct request *r = g->request;
    g->outcome = outcome;
    if (!r->connection)
        return;
    if (!g->started) {
        request_fail(r, e);
    } else {
        buf_puts(&r->out, "event: error\ndata: ");
        api_error_put(&r->out, e); /* ends with a newline */
        buf_puts(&r->out, "\n");
        request_wrote(r);
        r->stream_ended = true;
    }
    request_resume(r);
}

static void fail_with(struct generation *g, int status, const char *type, const char *words,
                      enum generation_outcome outcome)
{
    struct api_error e = {0};
    api_fail(&e, status, type, NULL, "%s", words);
    fail(g, &e, outcome);
}

/* The server takes no work, and this has not begun. */
static void fail_refused(struct generation *g)
{
    struct api_error e = {0};
    int refused = server_refuses(g->server, &e);
    assert(refused < 0); /* ready again it is only after the last of these has got its answer */
    fail(g, &e, GENERATION_NONE);
}

static void refuse_submit(struct generation *g, int rc, const struct error *words)
{
    struct api_error e = {0};
    struct server *s = g->server;
    if (rc == -EAGAIN) {
        server_queue_full(s, &e);
        api_fail(&e, 503, "queue_full", NULL, "%s", words->text[0] ? words->text : "the queue is full");
    } else if (rc == -EINVAL) {
        api_invalid(&e, NULL, "%s", words->text);
    } else {
        api_fail(&e, 500, "internal", NULL, "%s", words->text[0] ? words->text : "the decoder has failed");
    }
    fail(g, &e, rc == -EIO ? GENERATION_FAILED : GENERATION_NONE);
}

static bool is_queued(const struct generation *g)
{
    return g->state == GENERATION_SUBMITTED &&
           atomic_load_explicit(&g->choices->e.state, memory_order_acquire) == ENGINE_QUEUED;
}

uint64_t generation_waiting_tokens(const struct server *s)
{
    uint64_t n = 0;
    for (const struct generation *g = s->generations; g; g = g->next)
        if (is_queued(g))
            n += g->choices->e.n_prompt;
        else if (g->state == GENERATION_PREPARING)
            n += g->request->body_len / BYTES_PER_TOKEN + 1;
    return n;
}

/* A prompt is let in beside others only while all that wait stay within queue_tokens; alone it always is, and
 * so is one that need not wait. */
static int check_queue_tokens(const struct generation *g, struct error *words)
{
    const struct server *s = g->server;
    uint64_t waiting = 0;

    if (!engine_queue_depth(g->model->engine, 1))
        return 0;
    for (const struct generation *other = s->generations; other; other = other->next)
        if (is_queued(other))
            waiting += other->choices->e.n_prompt;
    if (waiting == 0 || waiting + g->choices->e.n_prompt <= s->cfg->queue_tokens)
        return 0;
    return error_set(words, -EAGAIN,
                     "%llu prompt tokens are waiting, this prompt has %u, queue_tokens is %llu",
                     (unsigned long long)waiting, (unsigned)g->choices->e.n_prompt,
                     (unsigned long long)s->cfg->queue_tokens);
}

/* Bytes of its reply that will come, however few tokens do. */
static uint64_t promised(const struct generation *g)
{
    const struct engine_request *e = &g->choices->e;
    return e->want_prompt_logprobs ? (uint64_t)e->n_prompt * (1 + e->n_prompt_top) * BYTES_PER_ENTRY : 0;
}

/* Megabytes at once, and memory of ours until the client has taken them: let in beside other long replies
 * only while all are within body_memory, alone always. */
static int check_replies(const struct generation *g, struct error *words)
{
    const struct server *s = g->server;
    uint64_t mine = promised(g), others = s->reply_bytes;

    if (mine <= REQUEST_LARGE_REPLY)
        return 0;
    for (const struct generation *other = s->generations; other; other = other->next)
        if (other->state == GENERATION_SUBMITTED || other->state == GENERATION_REPLYING)
            others += promised(other);
    if (!others || others + mine <= s->cfg->body_memory)
        return 0;
    return error_set(words, -EAGAIN,
                     "body_memory, %llu bytes, has no room for prompt_logprobs beside other long replies",
                     (unsigned long long)s->cfg->body_memory);
}

static void submit(struct generation *g)
{
    struct error words = {0};
    int rc = check_queue_tokens(g, &words);
    if (rc == 0)
        rc = check_replies(g, &words);
    if (rc == 0)
        rc = engine_submit(g->model->engine, &g->choices->e, &words);
    if (rc < 0) {
        refuse_submit(g, rc, &words);
        leave(g, GENERATION_NONE);
        return;
    }
    struct request *r = g->request;
    g->state = GENERATION_SUBMITTED;
    r->phase = REQUEST_WAITING;
    request_suspend(r);
    if (g->p.stream && g->server->cfg->keepalive_ms)
        connection_start_ticks(r->connection, g->server->cfg->keepalive_ms);
}

static void prepared(struct request *r)
{
    struct generation *g = r->generation;
    g->server->n_preparing--;
    request_drop_body(r);
    if (!r->connection || g->cancelled) {
        fail_with(g, 499, "cancelled", "the request was cancelled", GENERATION_CANCELLED);
        leave(g, GENERATION_CANCELLED);
    } else if (g->refused) {
        fail_refused(g);
        leave(g, GENERATION_NONE);
    } else if (r->error.status) {
        request_fail(r, &r->error);
        request_resume(r);
        leave(g, GENERATION_NONE);
    } else {
        submit(g);
    }
}

void api_generate(struct request *r)
{
    struct server *s = r->server;
    if (server_admits(s, &r->error) < 0) {
        request_fail(r, &r->error);
        return;
    }
    struct generation *g = arena_zalloc(&r->arena, sizeof *g);
    if (!g) {
        api_out_of_memory(&r->error);
        request_fail(r, &r->error);
        return;
    }
    g->request = r;
    g->server = s;
    g->model = server_take_model(s);
    g->arena = &r->arena;
    g->dialect = r->route->dialect;
    g->created = (int64_t)time(NULL);
    make_id(g->id, g->dialect->id_prefix);
    r->generation = g;
    request_ref(r);
    g->next = s->generations;
    if (g->next)
        g->next->prev = g;
    s->generations = g;
    s->n_active++;
    s->n_preparing++;
    request_prepare(r, prepare, prepared);
}

/* --- the stream --- */

void generation_begin(struct generation *g)
{
    if (g->started)
        return;
    if (g->dialect->begin)
        g->dialect->begin(g, &g->request->out);
    generation_wrote(g);
    g->started = true;
    g->request->phase = REQUEST_STREAM;
}

static void cancel_choices(struct generation *g)
{
    for (uint32_t i = 0; i < g->n_choices; i++)
        if (!g->choices[i].done)
            engine_cancel(g->model->engine, &g->choices[i].e);
}

void generation_starve(struct generation *g)
{
    g->outcome = GENERATION_FAILED;
    cancel_choices(g);
}

void generation_wrote(struct generation *g)
{
    if (!request_wrote(g->request))
        generation_starve(g);
}

/* --- the end --- */

static enum generation_outcome outcome_of(const struct generation *g)
{
    enum generation_outcome outcome = GENERATION_COMPLETED;
    for (uint32_t i = 0; i < g->n_choices; i++) {
        const struct choice *c = &g->choices[i];
        if (choice_ended_well(c))
            continue;
        if (c->e.finish == ENGINE_CANCELLED)
            return GENERATION_CANCELLED;
        outcome = GENERATION_TIMED_OUT;
    }
    return outcome;
}

/* What leaves nothing to show: a choice that failed, or an end before any choice had a token. */
static enum engine_finish spoilt_by(const struct generation *g)
{
    bool shows = false;
    for (uint32_t i = 0; i < g->n_choices; i++) {
        const struct choice *c = &g->choices[i];
        if (choice_ended_well(c) || c->n_tokens)
            shows = true;
        if (!c->text.matched && (c->e.finish == ENGINE_FAULT || c->e.finish == ENGINE_NOT_FINITE))
            return c->e.finish;
    }
    return shows ? ENGINE_RUNNING : g->choices->e.finish;
}

/* A 504 that names the limit and its value. */
static void fail_late(struct generation *g, const char *limit, uint64_t ms, const char *before)
{
    char words[96];
    snprintf(words, sizeof words, "%s (%llu) passed before %s", limit, (unsigned long long)ms, before);
    fail_with(g, 504, "timeout", words, GENERATION_TIMED_OUT);
}

static void fail_in_queue(struct generation *g)
{
    const struct engine_request *e = &g->choices->e;
    if (e->queue_deadline_ns && e->done_ns >= e->queue_deadline_ns)
        fail_late(g, "queue_timeout_ms", queue_timeout_ms(g), "the request could run");
    else
        fail_late(g, "timeout_ms", timeout_ms(g), "the request could run");
}

/* An end without a text to show; true when it was answered. */
static bool finish_badly(struct generation *g)
{
    struct error words = {0};
    switch (spoilt_by(g)) {
    case ENGINE_FAULT:
        server_set_state(g->server, SERVER_STALLED); /* now, not when the watch comes by next */
        engine_fault(g->model->engine, &words);
        fail_with(g, 500, "internal", words.text[0] ? words.text : "the decoder has failed",
                  GENERATION_FAILED);
        return true;
    case ENGINE_NOT_FINITE:
        fail_with(g, 500, "internal", "the model's logits were not finite", GENERATION_FAILED);
        return true;
    case ENGINE_QUEUE_TIMEOUT:
        fail_in_queue(g);
        return true;
    case ENGINE_TIMEOUT:
        fail_late(g, "timeout_ms", timeout_ms(g), "the first token");
        return true;
    case ENGINE_CANCELLED:
        if (g->refused)
            fail_refused(g);
        else
            fail_with(g, 499, "cancelled", "the request was cancelled", GENERATION_CANCELLED);
        return true;
    default:
        return false;
    }
}

static void record(const struct generation *g)
{
    struct stats *stats = &g->server->stats;
    uint64_t accepted = g->request->accepted_ns;
    const struct engine_request *e = &g->choices->e;
    if (e->started_ns)
        histogram_add(&stats->queue, clock_ms_between(accepted, e->started_ns), 1);
    if (e->first_ns)
        histogram_add(&stats->ttft, clock_ms_between(accepted, e->first_ns), 1);
    if (g->outcome == GENERATION_COMPLETED)
        histogram_add(&stats->total, clock_ms_between(accepted, clock_ns()), 1);
}

static void finished(struct generation *g)
{
    record(g);
    rate_add(&g->server->stats.finished, clock_ns() / 1000000000u);
    leave(g, g->outcome);
}

/* Tokens and alternatives that its end has still to show. */
static size_t n_entries(const struct generation *g)
{
    const struct engine_request *e = &g->choices->e;
    size_t n = e->want_prompt_logprobs ? (size_t)e->n_prompt * (1 + e->n_prompt_top) : 0;
    for (uint32_t i = 0; i < g->n_choices; i++)
        n += choice_n_unshown(&g->choices[i]);
    return n;
}

static void write_reply(struct request *r)
{
    struct generation *g = r->generation;
    if (!g->p.stream) {
        g->dialect->reply(g, &r->out);
        return;
    }
    for (uint32_t i = 0; i < g->n_choices; i++)
        if (!g->choices[i].told)
            choice_tell_end(&g->choices[i]);
    g->dialect->last(g, &r->out);
    (void)request_wrote(r); /* `out` remembers */
}

static void reply_written(struct request *r)
{
    struct generation *g = r->generation;
    if (r->out.failed)
        g->outcome = GENERATION_FAILED;
    if (r->connection) {
        if (g->p.stream) {
            r->stream_ended = true;
            request_hold(r);
        } else {
            request_reply(r, 200);
        }
        request_resume(r);
    }
    finished(g);
}

static void finish_well(struct generation *g)
{
    struct request *r = g->request;
    g->outcome = outcome_of(g);
    for (uint32_t i = 0; i < g->n_choices; i++)
        if (!g->choices[i].finish)
            choice_end(&g->choices[i]);
    if (!r->connection) {
        finished(g);
        return;
    }
    if (g->p.stream)
        generation_begin(g);
    g->state = GENERATION_REPLYING;
    request_run(r, n_entries(g) > GENERATE_INLINE_ENTRIES, write_reply, reply_written);
}

static bool out_of_memory(const struct generation *g)
{
    for (uint32_t i = 0; i < g->n_choices; i++)
        if (g->choices[i].text.out.failed)
            return true;
    return g->p.stream && g->request->out.failed;
}

static void fail_without_memory(struct generation *g)
{
    struct api_error e = {0};
    api_out_of_memory(&e);
    fail(g, &e, GENERATION_FAILED);
}

static void finish(struct generation *g)
{
    bool starved = out_of_memory(g);
    if (starved)
        fail_without_memory(g);
    if (starved || finish_badly(g))
        finished(g);
    else
        finish_well(g);
}

static void tell_one_end(struct choice *c)
{
    generation_begin(c->g);
    choice_tell_end(c);
    generation_wrote(c->g);
    request_resume(c->g->request);
}

/* One has ended and others go on, unless it has failed. What was cut short is left to the end of all: it may
 * be that there is nothing to show. */
static void finish_one(struct choice *c)
{
    struct generation *g = c->g;
    if (out_of_memory(g)) {
        cancel_choices(g);
    } else if (choice_ended_well(c)) {
        choice_end(c);
        if (g->p.stream && g->request->connection)
            tell_one_end(c);
    } else if (c->e.finish == ENGINE_FAULT || c->e.finish == ENGINE_NOT_FINITE) {
        cancel_choices(g);
    }
}

void generation_news(struct choice *c)
{
    struct generation *g = c->g;
    uint32_t state = atomic_load_explicit(&c->e.state, memory_order_acquire);
    if (!g->abandoned)
        choice_take(c);
    if (state != ENGINE_DONE || c->done)
        return;
    c->done = true;
    if (--g->n_running && !g->abandoned)
        finish_one(c);
    else if (!g->n_running && g->abandoned)
        leave(g, GENERATION_FAILED);
    else if (!g->n_running)
        finish(g);
}

void generation_cancel(struct generation *g)
{
    g->cancelled = true;
    if (g->state == GENERATION_SUBMITTED)
        cancel_choices(g);
}

void generation_abandon(struct generation *g, const char *words)
{
    if (g->state != GENERATION_SUBMITTED || g->abandoned)
        return;
    g->abandoned = true;
    fail_with(g, 500, "internal", words, GENERATION_FAILED);
}

void generation_refuse(struct generation *g)
{
    if (g->state == GENERATION_PREPARING) {
        g->refused = true;
    } else if (is_queued(g)) {
        g->refused = true;
        cancel_choices(g);
    }
}

void generation_tick(struct generation *g)
{
    uint64_t now = clock_ns(), every = g->server->cfg->keepalive_ms * MS;
    struct request *r = g->request;
    if (g->state != GENERATION_SUBMITTED || g->abandoned || now - g->sent_ns < every - every / 8)
        return;
    if (r->out.len > r->out_at) /* the client does not take what there is */
        return;
    generation_begin(g);
    buf_puts(&r->out, ": keep-alive\n\n");
    generation_wrote(g);
    g->sent_ns = now;
    request_resume(r);
}

enum generation_outcome generation_outcome(const struct generation *g)
{
    return g->outcome;
}
