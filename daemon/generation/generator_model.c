/* generator_model.c - the model that requests run on, and the one before it that some still end on. */
#include "generation.h"
#include "generator.h"

#include <assert.h>

/* What goes on counting when an engine is gone. */
static void add_counts(struct engine_stats *sum, const struct engine_stats *e)
{
    sum->prompt_tokens += e->prompt_tokens;
    sum->cached_tokens += e->cached_tokens;
    sum->generated_tokens += e->generated_tokens;
    sum->drafted += e->drafted;
    sum->accepted += e->accepted;
    sum->draft_steps += e->draft_steps;
    sum->steps_saved += e->steps_saved;
    sum->draft_requests += e->draft_requests;
    sum->turned_off += e->turned_off;
}

static void forget_leaving(struct generator *g)
{
    struct engine_stats e;
    assert(g->leaving && g->leaving->n_users == 0); /* its engine is closed next */
    engine_stats(g->leaving->engine, &e);
    add_counts(&g->past, &e);
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
        g->model->n_users = g->model->n_expensive = 0;
    }
    if (g->leaving && !g->leaving->n_users)
        forget_leaving(g);
}

struct server_model *generator_take_model(struct generator *g)
{
    assert(g->model); /* generator_admits() has said so */
    g->model->n_users++;
    return g->model;
}

void generator_give_model(struct generator *g, struct server_model *m)
{
    assert(m->n_users > 0 && (m == g->model || m == g->leaving));
    if (!--m->n_users && m == g->leaving)
        g->http->ops->wake(g->http); /* not here: its engine may be the one whose news are being taken */
}

void generator_take_news(struct generator *g)
{
    struct engine_request *e;
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

void generator_stats(const struct generator *g, struct engine_stats *out)
{
    struct engine_stats before;
    *out = (struct engine_stats){0};
    if (g->model)
        engine_stats(g->model->engine, out);
    add_counts(out, &g->past);
    if (!g->leaving)
        return;
    engine_stats(g->leaving->engine, &before);
    add_counts(out, &before);
    out->running += before.running;
    out->waiting += before.waiting;
    out->prompt_tokens_per_s += before.prompt_tokens_per_s;
    out->tokens_per_s += before.tokens_per_s;
}

void generator_refuse_leaving(struct generator *g)
{
    assert(g->leaving); /* else it would take those that have no model yet */
    struct generation *next;
    for (struct generation *it = g->generations; it; it = next) {
        next = it->next;
        if (it->model == g->leaving)
            generation_refuse(it);
    }
}

void generator_cancel_leaving(struct generator *g)
{
    assert(g->leaving); /* else it would take those that have no model yet */
    struct generation *next;
    for (struct generation *it = g->generations; it; it = next) {
        next = it->next;
        if (it->model == g->leaving && it->state == GENERATION_REPLYING && it->request->connection)
            connection_give_up(it->request->connection);
        else if (it->model == g->leaving)
            generation_cancel(it);
    }
}
