/* api_requests.c - GET /requests lists what waits and runs; DELETE /requests/{id} ends one, by the id of its
 * reply or by its X-Request-Id, in any phase. Requests of other keys are as unknown as those that
 * never were; the admin key sees all. No prompt and no text is shown. */
#include "api.h"
#include "generation/generation.h"

#include <string.h>

static bool is_visible(const struct request *r, const struct generation *g)
{
    return r->admin || g->request->owner == r->owner;
}

/* The furthest of its prompts. */
static enum engine_state furthest(const struct generation *g)
{
    enum engine_state state = ENGINE_QUEUED;
    for (uint32_t i = 0; i < g->n_submitted; i++) {
        enum engine_state own = atomic_load_explicit(&g->choices[i].e.state, memory_order_acquire);
        state = own > state ? own : state;
    }
    return state;
}

static const char *state_of(const struct generation *g)
{
    if (g->state == GENERATION_PREPARING)
        return g->waits ? "loading" : "tokenising";
    switch (furthest(g)) {
    case ENGINE_PREFILL:
        return "prefill";
    case ENGINE_DECODE:
    case ENGINE_DONE:
        return "decode";
    default:
        return "queued";
    }
}

/* Prompt tokens that are computed; choices share those of their prompt. */
static uint32_t n_computed(const struct generation *g)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_submitted; i += g->p.n)
        n += atomic_load_explicit(&g->choices[i].e.n_prompt_done, memory_order_relaxed);
    return n;
}

/* Until it is submitted its figures are the pool's. */
static void put_figures(struct buf *out, const struct generation *g)
{
    const struct engine_request *e = &g->choices->e;
    buf_printf(out,
               ",\"prompts\":%u,\"prompt_tokens\":%u,\"computed\":%u,\"tokens\":%u,\"max_tokens\":%u,"
               "\"priority\":%d,"
               "\"stream\":%s}",
               g->n_prompts, generation_n_prompt(g), n_computed(g), generation_n_tokens(g), e->max_tokens,
               e->priority, g->p.stream ? "true" : "false");
}

static void put_request(struct buf *out, const struct generation *g, uint64_t now)
{
    const struct request *r = g->request;
    buf_puts(out, "{\"id\":");
    json_put_str(out, g->id);
    buf_puts(out, ",\"request_id\":");
    json_put_str(out, r->id);
    buf_printf(out, ",\"route\":\"%s\",\"state\":\"%s\",\"age_ms\":", r->route->path, state_of(g));
    json_put_ms(out, (double)(now - r->opened_ns) / 1e6);
    if (g->state != GENERATION_PREPARING)
        put_figures(out, g);
    else
        buf_puts(out, ",\"prompts\":0,\"prompt_tokens\":0,\"computed\":0,\"tokens\":0,\"max_tokens\":0,"
                      "\"priority\":0,\"stream\":false}");
}

void api_requests(struct request *r)
{
    uint64_t now = clock_ns();
    bool more = false;
    buf_puts(&r->out, "{\"requests\":[");
    for (const struct generation *g = LIST_FIRST(&r->server->generator->generations); g;
         g = LIST_NEXT(g, link)) {
        if (!is_visible(r, g) || g->state >= GENERATION_REPLYING)
            continue;
        if (more)
            buf_puts(&r->out, ",");
        put_request(&r->out, g, now);
        more = true;
    }
    buf_puts(&r->out, "]}\n");
    if (request_has_room(r))
        request_reply(r, 200);
    else
        request_fail(r, &r->error);
}

static struct generation *find(struct request *r, const char *id)
{
    for (struct generation *g = LIST_FIRST(&r->server->generator->generations); g; g = LIST_NEXT(g, link)) {
        bool named = !strcmp(g->id, id) || !strcmp(g->request->id, id);
        if (named && g->state < GENERATION_REPLYING && is_visible(r, g))
            return g;
    }
    return NULL;
}

void api_cancel(struct request *r)
{
    const char *id = route_id(r->route, r->path);
    struct generation *g = find(r, id);
    if (!g) {
        api_fail(&r->error, 404, "not_found", NULL, "no request %.80s is waiting or running", id);
        request_fail(r, &r->error);
        return;
    }
    buf_puts(&r->out, "{\"id\":");
    json_put_str(&r->out, g->id);
    buf_puts(&r->out, ",\"state\":\"cancelled\"}\n");
    generation_cancel(g);
    request_reply(r, 202);
}
