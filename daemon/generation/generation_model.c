/* generation_model.c - the model that a generation runs on, where its body may name one of several: the name
 * is looked for before anything else is read, and the generation waits until that model is loaded. Thread:
 * loop; in a long body the name is looked for on the pool. */
#include "generation.h"
#include "json/json_member.h"

#include <assert.h>

#define MS        1000000ull
#define LONG_BODY 65536 /* bytes that are searched in less than 0.1 ms */

/* A time of the body; false: none is given, or one that is refused when the body is read. */
static bool read_ms(const struct request *r, const char *name, uint32_t most, uint32_t *ms)
{
    double n = json_member_number(r->body, r->body_len, name, -1);
    bool fits = n >= 0 && n <= most;
    if (fits)
        *ms = (uint32_t)n;
    return fits;
}

/* The time that it waits for its model: what it waits for the queue, or has in all. */
static void read_limit(struct generation *g)
{
    const struct request *r = g->request;
    uint32_t max = r->admin ? 0 : g->server->cfg->max_timeout_ms;
    struct params *p = &g->p; /* set again when the body is read */
    p->has_queue_timeout_ms = read_ms(r, "queue_timeout_ms", GENERATE_MAX_MS, &p->queue_timeout_ms);
    p->has_timeout_ms = read_ms(r, "timeout_ms", max ? max : GENERATE_MAX_MS, &p->timeout_ms);
    if (max && !p->timeout_ms)
        p->has_timeout_ms = false;
    uint64_t queue = generation_queue_timeout_ms(g), whole = generation_timeout_ms(g);
    bool ends = whole && (!queue || whole < queue);
    g->model_limit = ends ? "timeout_ms" : "queue_timeout_ms";
    g->model_limit_ms = ends ? whole : queue;
    g->model_late_ns = g->model_limit_ms ? r->accepted_ns + g->model_limit_ms * MS : 0;
}

void generation_read_model(struct request *r, char *name, size_t room)
{
    const char *value;
    size_t n;
    name[0] = '\0';
    if (json_member_text(r->body, r->body_len, "model", name, room))
        return;
    if (json_member_find(r->body, r->body_len, "model", &value, &n) && *value != 'n')
        api_invalid(&r->error, "model", "model must be a string");
}

/* A body that is refused later may be taken for one that asks for a stream. */
static bool asks_for_stream(const struct generation *g)
{
    const struct request *r = g->request;
    const char *value = "n";
    size_t n;
    bool given = json_member_find(r->body, r->body_len, "stream", &value, &n);
    if (!g->dialect->delta || g->dialect->counts)
        return false;
    return g->dialect->streams ? !given || *value != 'f' : *value == 't';
}

static void read_name(struct request *r)
{
    struct generation *g = r->context;
    generation_read_model(r, g->model_name, sizeof g->model_name);
    g->wants_stream = asks_for_stream(g);
    read_limit(g);
}

static void begin(struct generation *g, struct server_model *m)
{
    m->n_users++;
    generation_begin_on(g, m);
}

/* Bodies that wait have half of body_memory at most, so that those of loaded models still find room; one
 * alone may have all. */
static int check_bodies(const struct generation *g, struct api_error *e)
{
    struct generator *s = g->server->generator;
    uint64_t most = s->cfg->body_memory / 2;
    if (!s->n_waiting || s->waiting_bytes + g->request->body_cap <= most)
        return 0;
    generator_queue_full(s, NULL, e);
    return api_fail(e, 503, "queue_full", NULL,
                    "half of body_memory, %llu bytes for bodies that wait for models, is used up",
                    (unsigned long long)most);
}

static void wait(struct generation *g)
{
    struct generator *generator = g->server->generator;
    g->waits = true;
    TAILQ_INSERT_TAIL(&generator->waiting, g, waiting);
    generator->n_waiting++;
    generator->waiting_bytes += g->request->body_cap;
    request_wait(g->request);
    if (g->wants_stream && g->server->cfg->keepalive_ms)
        request_start_ticks(g->request, g->server->cfg->keepalive_ms);
    generator_look(generator);
}

static void found(struct request *r)
{
    struct generation *g = r->context;
    struct generator *s = g->server->generator;
    struct server_model *m = NULL;
    bool given_up = !r->connection || g->cancelled || g->refused;
    if (!given_up && !r->error.status)
        g->awaited = s->source->find(s->source_context, g->model_name, &r->error);
    if (!given_up && !r->error.status)
        m = s->source->get(s->source_context, g->awaited, &r->error);
    if (!given_up && !r->error.status && generator_admits_to(s, m, &r->error) == 0 && !m)
        check_bodies(g, &r->error);
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
    if (*m || e->status || !g->model_late_ns || now_ns < g->model_late_ns)
        return *m || e->status;
    s->source->late(s->source_context, g->awaited);
    api_fail(e, 504, "timeout", NULL, "%s (%llu) passed before the model was loaded", g->model_limit,
             (unsigned long long)g->model_limit_ms);
    return true;
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
        assert(generator->n_waiting > 0);
        generator->n_waiting--;
        assert(generator->waiting_bytes >= g->request->body_cap); /* it waits with the body it came with */
        generator->waiting_bytes -= g->request->body_cap;
        if (m)
            begin(g, m);
        else
            generation_end_without(g);
    }
}
