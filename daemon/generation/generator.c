/* generator.c - the state of the server as requests see it, the model that they run on, and the one before it
 * that some still end on. */
#include "generator.h"
#include "generation.h"

#include <assert.h>

const char *server_state_name(enum server_state state)
{
    static const char *const names[] = {[SERVER_LOADING] = "loading",
                                        [SERVER_READY] = "ready",
                                        [SERVER_DRAINING] = "draining",
                                        [SERVER_STALLED] = "stalled",
                                        [SERVER_SUSPENDED] = "suspended"};
    return names[state];
}

void generator_set_state(struct generator *g, enum server_state state)
{
    if (!g->draining)
        g->state = state;
}

struct server_load generator_load(const struct generator *g)
{
    struct engine_stats e;
    generator_stats(g, &e);
    return (struct server_load){.running = e.running, .waiting = e.waiting + g->n_preparing};
}

/* Returns the length of a model's queue as its engine counts it: a request that will find a free slot is not
 * in it. NULL: the queue of requests that wait for models to be loaded; one alone is always let in. */
static uint32_t queue_depth(const struct generator *g, const struct server_model *m, uint32_t n_more)
{
    if (m)
        return engine_queue_depth(m->engine, m->n_preparing + n_more);
    return g->n_waiting ? g->n_waiting + n_more : 0;
}

int generator_refuses(const struct generator *g, struct api_error *e)
{
    switch (g->state) {
    case SERVER_LOADING:
        e->retry_after_s = 5;
        return api_fail(e, 503, "loading", NULL, "the model is being loaded (%.0f %%)",
                        atomic_load(&g->progress_ppm) / 1e4);
    case SERVER_DRAINING:
        e->retry_after_s = 1;
        e->close = true;
        return api_fail(e, 503, "draining", NULL, "the server is shutting down");
    case SERVER_STALLED:
        e->retry_after_s = 1;
        e->close = g->draining;
        return api_fail(e, 503, "stalled", NULL, "the decoder is not responding");
    case SERVER_SUSPENDED:
        e->retry_after_s = 60;
        return api_fail(e, 503, "suspended", NULL, "the model is suspended (POST /admin/resume loads it)");
    case SERVER_READY:
        break;
    }
    return 0;
}

static int refuse_waiting(struct generator *g, const struct server_model *m, struct api_error *e,
                          uint32_t n_more)
{
    generator_queue_full(g, m, e);
    e->queue_depth += n_more;
    return api_fail(e, 503, "queue_full", NULL, "%u request%s waiting, queue_limit is %u", e->queue_depth,
                    e->queue_depth == 1 ? " is" : "s are", e->queue_limit);
}

/* The first of the texts is being read, the others wait for it, and behind what waits to run: a generation
 * never finds the queue full of them. */
int generator_admits_text(struct generator *g, bool is_long, struct api_error *e)
{
    uint32_t n = g->n_texts ? g->n_texts - 1 : 0;
    if (g->draining)
        return generator_refuses(g, e);
    if (!is_long || !g->n_texts || queue_depth(g, g->model, 0) + n < g->cfg->queue_limit)
        return 0;
    return refuse_waiting(g, g->model, e, n);
}

int generator_admits_to(struct generator *g, const struct server_model *m, struct api_error *e)
{
    uint32_t depth = queue_depth(g, m, 1);
    if (depth > g->cfg->queue_limit)
        return refuse_waiting(g, m, e, 0);
    uint64_t tokens = depth ? generation_waiting_tokens(g, m) : 0;
    if (tokens < g->cfg->queue_tokens)
        return 0;
    generator_queue_full(g, m, e);
    return api_fail(e, 503, "queue_full", NULL, "%llu prompt tokens are waiting, queue_tokens is %llu",
                    (unsigned long long)tokens, (unsigned long long)g->cfg->queue_tokens);
}

/* The queue that a request joins is known once its body is there: before, it is enough that one has room. */
int generator_admits(struct generator *g, struct api_error *e)
{
    const struct server_model *m;
    if (generator_refuses(g, e) < 0)
        return -1;
    if (!g->source)
        return g->model ? generator_admits_to(g, g->model, e) : 0;
    LIST_FOREACH(m, &g->loaded, link) {
        struct api_error full = {0};
        if (generator_admits_to(g, m, &full) == 0)
            return 0;
    }
    return generator_admits_to(g, NULL, e);
}

void generator_queue_full(struct generator *g, const struct server_model *m, struct api_error *e)
{
    uint32_t at_once = m ? engine_at_once(m->engine) : g->cfg->slots;
    e->has_queue = true;
    e->queue_depth = queue_depth(g, m, 0);
    e->queue_limit = g->cfg->queue_limit;
    e->retry_after_s = retry_after_s(e->queue_depth, at_once, &g->http->stats.run);
}

/* --- models --- */

/* Adds the counters that outlive an engine. */
static void add_counts(struct engine_stats *sum, const struct engine_stats *e)
{
    sum->prompt_tokens += e->prompt_tokens;
    sum->cached_tokens += e->cached_tokens;
    sum->generated_tokens += e->generated_tokens;
    sum->drafted += e->drafted;
    sum->accepted += e->accepted;
    sum->forced += e->forced;
    sum->draft_steps += e->draft_steps;
    sum->steps_saved += e->steps_saved;
    sum->draft_requests += e->draft_requests;
    sum->turned_off += e->turned_off;
}

/* Its engine is closed next. */
static void keep_counts(struct generator *g, const struct server_model *m)
{
    struct engine_stats e;
    assert(m->n_users == 0);
    engine_stats(m->engine, &e);
    add_counts(&g->past, &e);
}

static void forget_leaving(struct generator *g)
{
    keep_counts(g, g->leaving);
    g->leaving = NULL;
}

void generator_set_model(struct generator *g, const struct server_model *m)
{
    assert(!g->leaving);
    g->leaving = g->model;
    g->model = NULL;
    if (m) {
        g->model = &g->models[g->leaving == g->models];
        *g->model = *m;
        g->model->n_users = g->model->n_preparing = g->model->n_expensive = 0;
    }
    if (g->leaving && !g->leaving->n_users)
        forget_leaving(g);
}

struct server_model *generator_ref_model(struct generator *g)
{
    assert(g->model); /* http_ops.has_model has said so */
    g->model->n_users++;
    return g->model;
}

struct server_model *generator_ref_loaded(struct generator *g, const char *name, struct api_error *e)
{
    if (!g->source || !name[0])
        return generator_ref_model(g);
    int number = g->source->find(g->source_context, name, e);
    struct server_model *m = number < 0 ? NULL : g->source->get(g->source_context, number, e);
    if (m)
        m->n_users++;
    else if (!e->status)
        api_fail(e, 409, "conflict", "model",
                 "model %.100s is not loaded: a generation that names it loads it", name);
    return m;
}

void generator_unref_model(struct generator *g, struct server_model *m)
{
    assert(m->n_users > 0 && (g->source || m == g->model || m == g->leaving));
    if (--m->n_users)
        return;
    m->idle_ns = clock_ns();
    if (m == g->leaving) /* not here: its engine may be the one whose news are being taken */
        g->http->ops->wake(g->http);
    else if (g->source)
        generator_look(g);
}

void generator_read_names(const struct generator *g)
{
    if (g->source)
        g->source->read_names(g->source_context);
}

bool generator_next_model(const struct generator *g, int *i, struct model_view *out)
{
    *out = (struct model_view){0};
    while (g->source && g->source->view(g->source_context, (*i)++, out))
        if (out->name)
            return true;
    if (g->source || *i || !g->model)
        return false;
    (*i)++;
    *out = (struct model_view){.name = g->model->name, .state = "ready", .model = g->model};
    return true;
}

void generator_add_model(struct generator *g, struct server_model *m, bool first)
{
    m->n_users = m->n_preparing = m->n_expensive = 0;
    m->idle_ns = clock_ns();
    LIST_INSERT_HEAD(&g->loaded, m, link);
    if (first || !g->model)
        g->model = m;
}

void generator_remove_model(struct generator *g, struct server_model *m)
{
    keep_counts(g, m);
    LIST_REMOVE(m, link);
    if (m == g->model)
        g->model = LIST_FIRST(&g->loaded);
}

void generator_look(struct generator *g)
{
    g->look_due = true;
    g->http->ops->wake(g->http);
}

/* A look may begin requests and so make another due, for the next turn. */
static void take_news_of_all(struct generator *g)
{
    struct engine_request *e;
    const struct server_model *m;
    LIST_FOREACH(m, &g->loaded, link)
        while ((e = engine_next(m->engine)))
            generation_news(e->user);
    if (!g->look_due)
        return;
    g->look_due = false;
    generation_take_models(g);
    g->source->look(g->source_context);
}

void generator_take_news(struct generator *g)
{
    struct engine_request *e;
    if (g->source) {
        take_news_of_all(g);
        return;
    }
    while (g->leaving && (e = engine_next(g->leaving->engine)))
        generation_news(e->user);
    while (g->model && (e = engine_next(g->model->engine)))
        generation_news(e->user);
    if (!g->leaving || g->leaving->n_users)
        return;
    forget_leaving(g);
    if (g->left)
        g->left(g->left_context);
}

static void add_stats(struct engine_stats *sum, const struct server_model *m)
{
    struct engine_stats own;
    engine_stats(m->engine, &own);
    add_counts(sum, &own);
    sum->running += own.running;
    sum->waiting += own.waiting;
    sum->prompt_tokens_per_s += own.prompt_tokens_per_s;
    sum->tokens_per_s += own.tokens_per_s;
}

void generator_stats(const struct generator *g, struct engine_stats *out)
{
    const struct server_model *m;
    *out = (struct engine_stats){0};
    if (g->model)
        engine_stats(g->model->engine, out);
    add_counts(out, &g->past);
    if (g->leaving)
        add_stats(out, g->leaving);
    LIST_FOREACH(m, &g->loaded, link)
        if (m != g->model)
            add_stats(out, m);
}

void generator_refuse_leaving(struct generator *g)
{
    assert(g->leaving); /* else it would take those that have no model yet */
    struct generation *next;
    for (struct generation *it = LIST_FIRST(&g->generations); it; it = next) {
        next = LIST_NEXT(it, link);
        if (it->model == g->leaving)
            generation_refuse(it);
    }
}

void generator_cancel_leaving(struct generator *g)
{
    assert(g->leaving); /* else it would take those that have no model yet */
    struct generation *next;
    for (struct generation *it = LIST_FIRST(&g->generations); it; it = next) {
        next = LIST_NEXT(it, link);
        if (it->model == g->leaving && it->state == GENERATION_REPLYING && it->request->connection)
            request_give_up(it->request);
        else if (it->model == g->leaving)
            generation_cancel(it);
    }
}
