/* generation.c - the way of a generation from its acceptance to its outcome, on the loop. */
#include "generation.h"
#include "grammar/matcher.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <time.h>

#define MS              1000000ull
#define POOL_BODY       65536 /* bytes that take no more than EFFORT_POOL may */
#define EXPENSIVE_CHATS 64

static void unlink_generation(struct generation *g)
{
    struct http_server *s = g->server;
    LIST_REMOVE(g, link);
    assert(s->generator->n_active > 0);
    s->generator->n_active--;
}

/* Called once the engine and the pool use g no longer. */
static void leave(struct generation *g, enum request_outcome outcome)
{
    struct http_server *s = g->server;
    struct request *r = g->request;
    g->state = GENERATION_FINISHED;
    if (g->outcome == OUTCOME_NONE)
        g->outcome = outcome;
    r->more = NULL;
    constraint_leave(g);
    unlink_generation(g);
    if (g->model)
        generator_unref_model(s->generator, g->model);
    if (r->connection)
        request_answered(r);
    request_unref(r);
    s->ops->ended(s);
}

static void fail(struct generation *g, const struct api_error *e, enum request_outcome outcome)
{
    struct request *r = g->request;
    g->outcome = outcome;
    if (!r->connection)
        return;
    r->more = NULL; /* events that the client has not taken yet are not written any more */
    if (!g->started) {
        request_fail(r, e);
    } else {
        buf_puts(&r->out, g->request->route->lines ? "" : "event: error\ndata: ");
        request_put_error(r, e); /* ends with a newline */
        buf_puts(&r->out, g->request->route->lines ? "" : "\n");
        request_wrote(r);
        r->stream_ended = true;
        request_hold_reply(r); /* queue_reply() does it for a whole reply */
        request_limit(r);
    }
    request_resume(r);
}

static void fail_with(struct generation *g, int status, const char *type, const char *words,
                      enum request_outcome outcome)
{
    struct api_error e = {0};
    api_fail(&e, status, type, NULL, "%s", words);
    fail(g, &e, outcome);
}

/* The server takes no work, and this has not begun. */
static void fail_refused(struct generation *g)
{
    struct api_error e = {0};
    int refused = generator_refuses(g->server->generator, &e);
    assert(refused < 0); /* ready again it is only after the last of these has got its answer */
    fail(g, &e, OUTCOME_NONE);
}

static void refuse_submit(struct generation *g, int rc, const struct error *words)
{
    struct api_error e = {0};
    struct http_server *s = g->server;
    if (rc == -EAGAIN) {
        generator_queue_full(s->generator, g->model, &e);
        api_fail(&e, 503, "queue_full", NULL, "%s", words->text[0] ? words->text : "the queue is full");
    } else if (rc == -EINVAL) {
        api_invalid(&e, NULL, "%s", words->text);
    } else {
        api_fail(&e, 500, "internal", NULL, "%s", words->text[0] ? words->text : "the decoder has failed");
    }
    fail(g, &e, rc == -EIO ? OUTCOME_FAILED : OUTCOME_NONE);
}

static void write_more(struct request *r);

static void submit(struct generation *g)
{
    struct error words = {0};
    int rc = generation_check_room(g, &words);
    if (rc == 0)
        rc = generation_submit_next(g, &words);
    if (rc < 0) {
        refuse_submit(g, rc, &words);
        leave(g, OUTCOME_NONE);
        return;
    }
    struct request *r = g->request;
    g->state = GENERATION_SUBMITTED;
    generation_fill_slots(g->server->generator, g->model);
    r->more = write_more;
    request_hold(r, generation_memory(g));
    constraint_count(g);
    request_wait(r);
    if (g->p.stream && g->server->cfg->keepalive_ms)
        request_start_ticks(r, g->server->cfg->keepalive_ms);
}

static void prepare(struct generation *g);

/* Its outcome by its status; a stream that has begun failed whatever the words are. */
static void fail_prepared(struct generation *g)
{
    const struct api_error *e = &g->request->error;
    bool late = e->status == 504;
    fail(g, e, late ? OUTCOME_TIMED_OUT : g->started ? OUTCOME_FAILED : OUTCOME_NONE);
}

/* The chats that come next may be as expensive: so many of them are not tried on the loop. */
static void prepare_again(struct generation *g)
{
    if (g->effort == EFFORT_LOOP && !g->grammar) /* with one its prompt was made */
        g->model->n_expensive = EXPENSIVE_CHATS;
    g->effort++;
    g->exceeded = false;
    prepare(g);
}

static void prepared(struct request *r)
{
    struct generation *g = r->context;
    if (g->exceeded && r->connection && !g->cancelled && !g->refused) {
        prepare_again(g);
        return;
    }
    assert(g->server->generator->n_preparing > 0);
    g->server->generator->n_preparing--;
    assert(!g->model || g->model->n_preparing > 0);
    if (g->model)
        g->model->n_preparing--;
    r->put_error = g->dialect->put_error;
    request_drop_body(r);
    if (!r->connection || g->cancelled) {
        fail_with(g, 499, "cancelled", "the request was cancelled", OUTCOME_CANCELLED);
        leave(g, OUTCOME_CANCELLED);
    } else if (g->refused) {
        fail_refused(g);
        leave(g, OUTCOME_NONE);
    } else if (r->error.status) {
        fail_prepared(g);
        leave(g, OUTCOME_NONE);
    } else if (g->dialect->counts) {
        g->dialect->reply(g, &r->out);
        request_reply(r, 200);
        request_resume(r);
        leave(g, OUTCOME_COMPLETED);
    } else {
        submit(g);
    }
}

void generation_end_without(struct generation *g)
{
    prepared(g->request);
}

static void prepare(struct generation *g)
{
    struct request *r = g->request;
    if (g->effort == EFFORT_LOOP) {
        generation_prepare(r);
        prepared(r);
    } else {
        request_wait_for(r, g->effort == EFFORT_POOL ? POOL_PROMPT : POOL_LONG_PROMPT, generation_prepare,
                         prepared);
    }
}

static enum generation_effort first_effort(const struct generation *g)
{
    size_t n = g->request->body_len;
    if (n > POOL_BODY)
        return EFFORT_LONG;
    if (g->dialect->event && g->model->n_expensive) {
        g->model->n_expensive--;
        return EFFORT_POOL;
    }
    return n > REQUEST_INLINE_BODY ? EFFORT_POOL : EFFORT_LOOP;
}

void generation_begin_on(struct generation *g, struct server_model *m)
{
    g->model = m;
    m->n_preparing++;
    g->effort = first_effort(g);
    prepare(g);
}

/* --- the stream --- */

/* The 200 is sent with what is written next. */
static void start_stream(struct generation *g)
{
    if (!g->started)
        g->request->phase = REQUEST_STREAM;
    g->started = true;
}

void generation_begin(struct generation *g)
{
    if (g->begun)
        return;
    if (g->dialect->begin)
        g->dialect->begin(g, &g->request->out);
    generation_wrote(g);
    g->begun = true;
    start_stream(g);
}

static void cancel_choices(struct generation *g)
{
    generation_end_unsubmitted(g, ENGINE_CANCELLED);
    for (uint32_t i = 0; i < g->n_choices; i++)
        if (!g->choices[i].done)
            engine_cancel(g->model->engine, &g->choices[i].e);
}

void generation_starve(struct generation *g)
{
    g->outcome = OUTCOME_FAILED;
    cancel_choices(g);
}

void generation_wrote(struct generation *g)
{
    if (!request_wrote(g->request))
        generation_starve(g);
}

/* Writes what comes after the ends of all choices. */
static void write_last(struct generation *g)
{
    struct request *r = g->request;
    for (uint32_t i = 0; i < g->n_choices; i++)
        if (!g->choices[i].told)
            return;
    g->dialect->last(g, &r->out);
    generation_wrote(g);
    g->ended = r->stream_ended = true;
}

/* Writes events of a stream, the choices in turns, a window ahead of the client. */
static void write_events(struct generation *g)
{
    struct request *r = g->request;
    for (bool more = true; more && !r->out.failed;) {
        more = false;
        for (uint32_t i = 0; i < g->n_choices; i++) {
            if (request_n_ahead(r) >= REPLY_WINDOW)
                return;
            more |= choice_tell(&g->choices[i]);
        }
    }
    if (g->state == GENERATION_REPLYING && !g->ended && !r->out.failed)
        write_last(g);
}

/* The client has taken all that was written. */
static void write_more(struct request *r)
{
    struct generation *g = r->context;
    if (g->p.stream && !g->ended)
        write_events(g);
    else if (g->ended && STAILQ_EMPTY(&r->lists))
        leave(g, g->outcome);
}

static void show_news(struct generation *g)
{
    struct request *r = g->request;
    if (!g->p.stream || !r->connection)
        return;
    write_events(g);
    if (r->out.len > r->out_at || r->out.failed)
        request_resume(r);
}

/* --- the end --- */

static enum request_outcome outcome_of(const struct generation *g)
{
    enum request_outcome outcome = OUTCOME_COMPLETED;
    for (uint32_t i = 0; i < g->n_choices; i++) {
        const struct choice *c = &g->choices[i];
        if (choice_ended_well(c))
            continue;
        if (c->e.finish == ENGINE_CANCELLED)
            return OUTCOME_CANCELLED;
        outcome = OUTCOME_TIMED_OUT;
    }
    return outcome;
}

/* Returns the end that leaves nothing to show: a choice that failed, or an end before any choice had a token.
 */
static enum engine_finish spoilt_by(const struct generation *g)
{
    bool shows = false;
    for (uint32_t i = 0; i < g->n_choices; i++) {
        const struct choice *c = &g->choices[i];
        if (choice_ended_well(c) || c->n_tokens)
            shows = true;
        if (!c->text.matched &&
            (c->e.finish == ENGINE_FAULT || c->e.finish == ENGINE_NOT_FINITE || c->e.finish == ENGINE_STUCK))
            return c->e.finish;
        if (g->dialect->embeds && !choice_ended_well(c)) /* vectors are shown all or none */
            return c->e.finish;
    }
    return shows ? ENGINE_RUNNING : g->choices->e.finish;
}

/* A 504 that names the limit and its value. */
static void fail_late(struct generation *g, const char *limit, uint64_t ms, const char *before)
{
    char words[96];
    snprintf(words, sizeof words, "%s (%llu) passed before %s", limit, (unsigned long long)ms, before);
    fail_with(g, 504, "timeout", words, OUTCOME_TIMED_OUT);
}

static void fail_in_queue(struct generation *g)
{
    const struct engine_request *e = &g->choices->e;
    if (e->started_ns) /* a later prompt of several has waited too long */
        fail_late(g, "timeout_ms", generation_timeout_ms(g), "all prompts could run");
    else if (e->queue_deadline_ns && e->done_ns >= e->queue_deadline_ns)
        fail_late(g, "queue_timeout_ms", generation_queue_timeout_ms(g), "the request could run");
    else
        fail_late(g, "timeout_ms", generation_timeout_ms(g), "the request could run");
}

static void refuse_banned(const struct generation *g, struct api_error *e)
{
    const char *field = g->p.banned.field;
    if (g->grammar)
        api_invalid(e, field, "%s: no text without them was found that %s allows", field,
                    g->p.constraint.field);
    else
        api_invalid(e, field, "%s: no text without them was found, however often tokens were withdrawn",
                    field);
}

/* A grammar that has run out of tokens, or its matcher out of work or memory; or banned strings that left
 * none. */
static void fail_stuck(struct generation *g)
{
    const char *field = g->p.constraint.field;
    for (uint32_t i = 0; i < g->n_choices; i++) {
        const struct matcher *m = g->choices[i].e.constraint;
        struct api_error e = {0};
        bool failed = m && matcher_has_failed(m);
        if (g->choices[i].e.finish != ENGINE_STUCK || (!failed && !g->p.banned.field))
            continue;
        if (!failed)
            refuse_banned(g, &e);
        else if (matcher_is_ambiguous(m))
            api_invalid(&e, field, "%s: too ambiguous, too many alternatives at once", field);
        else
            api_out_of_memory(&e);
        fail(g, &e, OUTCOME_FAILED);
        return;
    }
    fail_with(g, 500, "internal", "no token of the model continues the text as the grammar asks",
              OUTCOME_FAILED);
}

/* Its grammar grew beside replies and grammars of others until all exceeded body_memory. */
static void fail_outgrown(struct generation *g)
{
    struct error words = {0};
    error_set(&words, -EAGAIN, "body_memory, %llu bytes, has no room for the growing grammar",
              (unsigned long long)g->server->cfg->body_memory);
    refuse_submit(g, -EAGAIN, &words);
}

/* An end without a text to show; true when it was answered. */
static bool finish_badly(struct generation *g)
{
    struct error words = {0};
    if (g->outgrown && outcome_of(g) == OUTCOME_CANCELLED) {
        fail_outgrown(g);
        return true;
    }
    if (g->late_rc < 0) {
        refuse_submit(g, g->late_rc, &g->late);
        return true;
    }
    switch (spoilt_by(g)) {
    case ENGINE_FAULT:
        generator_set_state(g->server->generator, SERVER_STALLED); /* now, not when the watch comes by next */
        engine_fault(g->model->engine, &words);
        fail_with(g, 500, "internal", words.text[0] ? words.text : "the decoder has failed", OUTCOME_FAILED);
        return true;
    case ENGINE_NOT_FINITE:
        fail_with(g, 500, "internal", "the model's logits were not finite", OUTCOME_FAILED);
        return true;
    case ENGINE_STUCK:
        fail_stuck(g);
        return true;
    case ENGINE_QUEUE_TIMEOUT:
        fail_in_queue(g);
        return true;
    case ENGINE_TIMEOUT:
        fail_late(g, "timeout_ms", generation_timeout_ms(g), "the first token");
        return true;
    case ENGINE_CANCELLED:
        if (g->refused)
            fail_refused(g);
        else
            fail_with(g, 499, "cancelled", "the request was cancelled", OUTCOME_CANCELLED);
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
    if (e->started_ns) {
        histogram_add(&stats->queue, clock_ms_between(accepted, e->started_ns), 1);
        recent_add(&stats->run, clock_ms_between(e->started_ns, clock_ns()));
        recent_add(&stats->stay, clock_ms_between(accepted, clock_ns()));
    }
    if (e->first_ns)
        histogram_add(&stats->ttft, clock_ms_between(accepted, e->first_ns), 1);
    if (g->outcome == OUTCOME_COMPLETED)
        histogram_add(&stats->total, clock_ms_between(accepted, clock_ns()), 1);
}

/* The engine has let go of it: its reply needs no grammar. */
static void settle(struct generation *g)
{
    constraint_leave(g);
    record(g);
}

static void finished(struct generation *g)
{
    settle(g);
    leave(g, g->outcome);
}

/* Tokens and alternatives that it has still to show. */
static size_t n_entries(const struct generation *g)
{
    uint32_t n_echoes = g->p.echoes ? g->p.n : 1;
    size_t n = 0;
    for (uint32_t i = 0; i < g->n_choices; i++) {
        const struct engine_request *e = &g->choices[i].e;
        if (e->want_prompt_logprobs)
            n += (size_t)e->n_prompt * (1 + e->n_prompt_top) * n_echoes;
        n += choice_n_unshown(&g->choices[i]);
    }
    return n;
}

static void write_reply(struct generation *g)
{
    struct request *r = g->request;
    g->dialect->reply(g, &r->out);
    if (r->out.failed)
        g->outcome = OUTCOME_FAILED;
    g->ended = true;
    request_reply(r, 200);
}

/* A reply that is all bytes needs its generation no longer. */
static void finish_well(struct generation *g)
{
    struct request *r = g->request;
    g->outcome = outcome_of(g);
    for (uint32_t i = 0; i < g->n_choices; i++) {
        if (!g->choices[i].finish)
            choice_end(&g->choices[i]);
        choice_trim(&g->choices[i]);
    }
    settle(g);
    if (!r->connection) {
        leave(g, g->outcome);
        return;
    }
    g->state = GENERATION_REPLYING;
    g->later = n_entries(g) > GENERATE_INLINE_ENTRIES;
    if (g->p.stream)
        write_events(g);
    else
        write_reply(g);
    if (g->p.stream) { /* queue_reply() does it for a whole reply */
        request_hold_reply(r);
        request_limit(r);
    }
    request_answered(r);
    request_resume(r);
    if ((g->ended && STAILQ_EMPTY(&r->lists)) || r->out.failed)
        leave(g, g->outcome);
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
    fail(g, &e, OUTCOME_FAILED);
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

/* Tells if the request's time is over. Those that the engine has end by it as well. */
static bool is_late(const struct choice *c)
{
    const struct engine_request *e = &c->e;
    return (e->finish == ENGINE_TIMEOUT || e->finish == ENGINE_QUEUE_TIMEOUT) && e->deadline_ns &&
           e->done_ns >= e->deadline_ns;
}

/* One has ended and others go on, unless it has failed. A text that was cut short waits for the end of all:
 * it may have nothing to show. */
static void finish_one(struct choice *c)
{
    struct generation *g = c->g;
    if (out_of_memory(g)) {
        cancel_choices(g);
    } else if (choice_ended_well(c)) {
        choice_end(c);
        show_news(g);
    } else if (is_late(c) && !g->dialect->embeds) {
        generation_end_unsubmitted(g, ENGINE_QUEUE_TIMEOUT);
    } else if (c->e.finish == ENGINE_FAULT || c->e.finish == ENGINE_NOT_FINITE ||
               c->e.finish == ENGINE_STUCK || c->e.finish == ENGINE_QUEUE_TIMEOUT || g->dialect->embeds) {
        cancel_choices(g);
    }
}

/* The memory held once the texts that outgrew the limit have ended. */
static uint64_t held_soon(const struct http_server *s)
{
    const struct generation *g;
    uint64_t held = s->reply_bytes;
    LIST_FOREACH(g, &s->generator->generations, link)
        if (g->outgrown)
            held -= constraint_part(g);
    assert(held <= s->reply_bytes); /* all parts were counted */
    return held;
}

/* A grammar's matchers and masks grow while a text is written. One that grows when all that is held exceeds
 * body_memory ends its text, unless it is alone. */
static void bound_grammar(struct generation *g)
{
    const struct http_server *s = g->server;
    bool grew = constraint_count(g);
    if (!grew || g->outgrown || s->reply_bytes <= s->cfg->body_memory)
        return;
    uint64_t held = held_soon(s), mine = constraint_part(g) + g->request->held;
    assert(held >= mine);
    if (held <= s->cfg->body_memory || held - mine <= REQUEST_LARGE_REPLY)
        return;
    g->outgrown = true;
    cancel_choices(g);
}

void generation_news(struct choice *c)
{
    struct generation *g = c->g;
    uint32_t state = atomic_load_explicit(&c->e.state, memory_order_acquire);
    bound_grammar(g);
    if (!g->abandoned) {
        choice_take(c);
        show_news(g);
    }
    if (state != ENGINE_DONE || c->done)
        return;
    c->done = true;
    if (--g->n_running && !g->abandoned) {
        finish_one(c);
        generation_replace(g);
    }
    generation_fill_slots(g->server->generator, g->model);
    if (!g->n_running && g->abandoned)
        leave(g, OUTCOME_FAILED);
    else if (!g->n_running)
        finish(g);
}

/* On the pool, or while it waits for its model. It ends in a later turn of the loop. */
static void stop_preparing(struct generation *g)
{
    request_cancel_work(g->request);
    if (g->waits)
        generator_look(g->server->generator);
}

void generation_cancel(struct generation *g)
{
    g->cancelled = true;
    if (g->state == GENERATION_SUBMITTED)
        cancel_choices(g);
    else if (g->state == GENERATION_PREPARING)
        stop_preparing(g);
}

static void forget_lists(struct request *r)
{
    struct generation *g = r->context;
    STAILQ_INIT(&r->lists);
    leave(g, g->outcome);
}

/* The pool reads the tokens and the model until it has written the items it is at. */
static void drop_request(struct request *r)
{
    struct generation *g = r->context;
    generation_cancel(g);
    if (g->state != GENERATION_REPLYING)
        return;
    r->more = NULL;
    if (r->writing)
        r->dropped = forget_lists;
    else
        forget_lists(r);
}

void generation_abandon(struct generation *g, const char *words)
{
    if (g->state != GENERATION_SUBMITTED || g->abandoned)
        return;
    g->abandoned = true;
    generation_end_unsubmitted(g, ENGINE_FAULT);
    fail_with(g, 500, "internal", words, OUTCOME_FAILED);
}

void generation_refuse(struct generation *g)
{
    if (g->state == GENERATION_PREPARING) {
        g->refused = true;
        stop_preparing(g);
    } else if (generation_is_queued(g)) {
        g->refused = true;
        cancel_choices(g);
    }
}

/* While the pool prepares it, its memory is the pool's. */
static bool may_comment(const struct generation *g)
{
    return g->waits || (g->state == GENERATION_SUBMITTED && !g->abandoned);
}

static void tick_request(struct request *r)
{
    struct generation *g = r->context;
    uint64_t now = clock_ns(), every = g->server->cfg->keepalive_ms * MS;
    if (r->route->lines) /* they have no comments */
        return;
    if (!may_comment(g) || now - g->sent_ns < every - every / 8)
        return;
    if (request_n_ahead(r)) /* the client does not take what there is */
        return;
    if (g->waits) /* what precedes the first event shows the model */
        start_stream(g);
    else
        generation_begin(g);
    buf_puts(&r->out, ": keep-alive\n\n");
    generation_wrote(g);
    g->sent_ns = now;
    request_resume(r);
}

static void log_request(const struct request *r, struct log_access *line)
{
    generation_log(r->context, line);
}

static enum request_outcome count_request(const struct request *r, struct stats *stats)
{
    return generation_count(r->context, stats);
}

static const struct request_ops ops = {
    .drop = drop_request, .tick = tick_request, .log = log_request, .count = count_request};

/* --- its beginning --- */

static void link_generation(struct generation *g)
{
    struct http_server *s = g->server;
    LIST_INSERT_HEAD(&s->generator->generations, g, link);
    s->generator->n_active++;
    s->generator->n_preparing++;
}

void generation_open(struct request *r, const struct dialect *dialect)
{
    struct generation *g = arena_zalloc(&r->arena, sizeof *g);
    if (!g) {
        api_out_of_memory(&r->error);
        request_fail(r, &r->error);
        return;
    }
    g->request = r;
    g->server = r->server;
    g->arena = &r->arena;
    g->dialect = dialect;
    g->created = (int64_t)time(NULL);
    make_id(g->id, dialect->id_prefix);
    r->context = g;
    r->ops = &ops;
    request_ref(r);
    link_generation(g);
    if (r->server->generator->source)
        generation_find_model(g);
    else
        generation_begin_on(g, generator_ref_model(r->server->generator));
}
