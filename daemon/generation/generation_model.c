/* generation_model.c - the model that a generation runs on, where its body may name one of several: the name
 * is looked for before anything else is read, and the generation waits until that model is loaded. Thread:
 * loop; in a long body the name is looked for on the pool. */
#include "generation.h"
#include "json/json_member.h"

#define MS        1000000ull
#define LONG_BODY 65536 /* bytes that are searched in less than 0.1 ms */

/* The time that it waits for its model, of what it waits for the queue in all. */
static void read_limit(struct generation *g)
{
    const struct request *r = g->request;
    const struct config *cfg = g->server->cfg;
    double queue = json_member_number(r->body, r->body_len, "queue_timeout_ms", cfg->queue_timeout_ms),
           whole = json_member_number(r->body, r->body_len, "timeout_ms", cfg->timeout_ms);
    double ms = whole > 0 && (queue <= 0 || whole < queue) ? whole : queue;
    if (ms >= 1 && ms < UINT32_MAX) { /* others are refused when it is read */
        g->model_limit_ms = (uint32_t)ms;
        g->model_late_ns = r->accepted_ns + g->model_limit_ms * MS;
    }
}

static void read_name(struct request *r)
{
    struct generation *g = r->context;
    if (!json_member_text(r->body, r->body_len, "model", g->model_name, sizeof g->model_name))
        g->model_name[0] = '\0';
    read_limit(g);
}

static void begin(struct generation *g, struct server_model *m)
{
    m->n_users++;
    generation_begin_on(g, m);
}

static void wait(struct generation *g)
{
    struct generator *generator = g->server->generator;
    g->waits = true;
    TAILQ_INSERT_TAIL(&generator->waiting, g, waiting);
    g->request->phase = REQUEST_WAITING;
    request_suspend(g->request);
    generator_look(generator);
}

static void found(struct request *r)
{
    struct generation *g = r->context;
    struct generator *s = g->server->generator;
    struct server_model *m = NULL;
    bool given_up = !r->connection || g->cancelled || g->refused;
    if (!given_up)
        g->awaited = s->source->find(s->source_context, g->model_name, &r->error);
    if (!given_up && !r->error.status)
        m = s->source->get(s->source_context, g->awaited, &r->error);
    if (given_up || r->error.status)
        generation_end_without(g);
    else if (m)
        begin(g, m);
    else
        wait(g);
}

void generation_find_model(struct generation *g)
{
    struct request *r = g->request;
    if (r->body_len > LONG_BODY) {
        request_wait_for(r, POOL_LONG_PROMPT, read_name, found);
        return;
    }
    read_name(r);
    found(r);
}

/* True if it waits no longer; then *m is its model, or NULL where it ends. */
static bool waited(struct generation *g, uint64_t now_ns, struct server_model **m)
{
    const struct generator *s = g->server->generator;
    struct api_error *e = &g->request->error;
    *m = NULL;
    if (g->cancelled || g->refused || !g->request->connection)
        return true;
    *m = s->source->get(s->source_context, g->awaited, e);
    if (!*m && !e->status && g->model_late_ns && now_ns >= g->model_late_ns)
        api_fail(e, 504, "timeout", NULL, "queue_timeout_ms (%u) passed before the model was there",
                 g->model_limit_ms);
    return *m || e->status;
}

void generation_take_models(struct generator *generator)
{
    struct generation *next;
    uint64_t now_ns = clock_ns();
    for (struct generation *g = TAILQ_FIRST(&generator->waiting); g; g = next) {
        struct server_model *m;
        next = TAILQ_NEXT(g, waiting);
        if (!waited(g, now_ns, &m))
            continue;
        TAILQ_REMOVE(&generator->waiting, g, waiting);
        g->waits = false;
        if (m)
            begin(g, m);
        else
            generation_end_without(g);
    }
}
