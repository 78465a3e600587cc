/* generation_turns.c - the turns in which the engine gets the prompts and choices of a generation: its first
 * at once, each further one in the place of one that has ended, or in a slot that is free. None of them is to
 * wait in the engine's queue but the first: they would fill it for others. Thread: loop. */
#include "generation.h"

#include <assert.h>

void generation_end_unsubmitted(struct generation *g, enum engine_finish finish)
{
    for (; g->n_submitted < g->n_choices; g->n_submitted++, g->n_running--) {
        struct choice *c = &g->choices[g->n_submitted];
        assert(g->n_running > 0);
        c->e.finish = finish;
        c->done = true;
    }
}

/* The choices that are submitted next. */
static uint32_t n_next(const struct generation *g)
{
    uint32_t n = 0;
    for (const struct engine_request *e = &g->choices[g->n_submitted].e; e; e = e->next_choice)
        n++;
    return n;
}

int generation_submit_next(struct generation *g, struct error *words)
{
    struct engine_request *e = &g->choices[g->n_submitted].e;
    e->begun = g->n_submitted > 0;
    int rc = engine_submit(g->model->engine, e, words);
    if (rc == 0)
        g->n_submitted += n_next(g);
    return rc;
}

static void submit_one(struct generation *g)
{
    g->late_rc = generation_submit_next(g, &g->late);
    if (g->late_rc < 0)
        generation_end_unsubmitted(g, ENGINE_CANCELLED);
}

/* True if the next may follow: it has no more at the engine than there are slots. */
static bool may_follow(const struct generation *g)
{
    if (g->n_submitted == g->n_choices)
        return false;
    assert(g->n_running >= g->n_choices - g->n_submitted); /* n_running counts unsubmitted ones, too */
    uint32_t at_work = g->n_running - (g->n_choices - g->n_submitted);
    return !at_work || at_work + n_next(g) <= g->server->cfg->slots;
}

/* The oldest that runs on m and of which more would find a slot at once. */
static struct generation *next_in_turn(const struct generator *s, const struct server_model *m)
{
    struct generation *g, *oldest = NULL;
    LIST_FOREACH(g, &s->generations, link)
        if (g->model == m && g->state == GENERATION_SUBMITTED && !g->abandoned && may_follow(g) &&
            !engine_queue_depth(m->engine, n_next(g)) &&
            (!oldest || g->request->accepted_ns <= oldest->request->accepted_ns))
            oldest = g;
    return oldest;
}

void generation_fill_slots(const struct generator *s, const struct server_model *m)
{
    for (struct generation *g; (g = next_in_turn(s, m));)
        submit_one(g);
}

void generation_replace(struct generation *g)
{
    if (may_follow(g))
        submit_one(g);
}
