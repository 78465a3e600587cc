/* generation_figures.c - what is told of a generation beside its text: its access line, its times. */
#include "generation.h"
#include "base/log.h"

#include <string.h>

/* Returns the end that says most about choices that all ended well: a limit before a stop before eos. */
static const char *worst_finish(const struct generation *g)
{
    static const char *const worst[] = {"length", "stop"};
    for (size_t i = 0; i < sizeof worst / sizeof *worst; i++)
        for (uint32_t k = 0; k < g->n_choices; k++)
            if (g->choices[k].finish && !strcmp(g->choices[k].finish, worst[i]))
                return worst[i];
    return g->choices->finish;
}

/* One word for all choices, as the request's outcome is counted: one that was cancelled or ran out of time
 * makes it that, however the others ended. */
static const char *log_finish(const struct generation *g)
{
    switch (g->outcome) {
    case OUTCOME_COMPLETED: /* the client may have left while its reply was written */
        return g->request->gone && !g->request->status ? "cancelled" : worst_finish(g);
    case OUTCOME_TIMED_OUT:
        return "timeout";
    case OUTCOME_CANCELLED:
        return "cancelled";
    case OUTCOME_FAILED:
        return "error";
    default: /* a client that leaves is seen here before the engine lets go */
        return g->request->gone ? "cancelled" : NULL;
    }
}

/* Until then the choices are the pool's, or there are none. */
static bool has_choices(const struct generation *g)
{
    return g->state != GENERATION_PREPARING && g->n_choices;
}

enum request_outcome generation_count(const struct generation *g, struct stats *stats)
{
    for (uint32_t i = 0; has_choices(g) && i < g->n_choices; i++)
        if (g->choices[i].finish)
            stats_count_finish(stats, g->choices[i].finish);
    return g->outcome;
}

void generation_log(const struct generation *g, struct log_access *line)
{
    line->finish = log_finish(g);
    line->generation = g->id;
    if (!has_choices(g))
        return;
    bool one_word = g->n_prompts > 1 || g->n_choices > LOG_MAX_CHOICES;
    line->n_choices = one_word ? 1 : g->n_choices;
    for (uint32_t i = 0; i < line->n_choices; i++)
        line->choices[i] = g->choices[i].finish ? g->choices[i].finish : line->finish;
    line->prompt_tokens = generation_n_prompt(g);
    line->tokens = generation_n_tokens(g);
    line->cached_tokens = generation_n_cached(g);
}

/* --- what replies are made of --- */

/* From the first token of any choice to the end of the last. */
static void decode_times(const struct generation *g, uint64_t *first_ns, uint64_t *done_ns)
{
    *first_ns = *done_ns = 0;
    for (uint32_t i = 0; i < g->n_choices; i++) {
        const struct engine_request *e = &g->choices[i].e;
        if (e->first_ns && (!*first_ns || e->first_ns < *first_ns))
            *first_ns = e->first_ns;
        if (e->done_ns > *done_ns)
            *done_ns = e->done_ns;
    }
}

void generation_timings(const struct generation *g, struct timings *t)
{
    const struct engine_request *e = &g->choices->e;
    uint64_t accepted = g->request->accepted_ns, first_ns, done_ns;
    uint32_t n_tokens = generation_n_tokens(g);
    decode_times(g, &first_ns, &done_ns);
    uint64_t computed = first_ns ? first_ns : done_ns;
    *t = (struct timings){.queue_ms = clock_ms_between(accepted, e->started_ns)};
    if (!e->started_ns)
        return;
    t->prefill_ms = clock_ms_between(e->started_ns, computed);
    if (t->prefill_ms > 0)
        t->prompt_tokens_per_s = (e->n_prompt - e->n_cached) / t->prefill_ms * 1e3;
    if (!first_ns)
        return;
    t->ttft_ms = clock_ms_between(accepted, first_ns);
    t->decode_ms = clock_ms_between(first_ns, done_ns);
    if (t->decode_ms > 0 && n_tokens > g->n_choices)
        t->tokens_per_s = (n_tokens - g->n_choices) / t->decode_ms * 1e3;
}

static uint32_t n_cached(const struct engine_request *e)
{
    bool known = atomic_load_explicit(&e->n_out, memory_order_acquire) ||
                 atomic_load_explicit(&e->state, memory_order_acquire) == ENGINE_DONE;
    return known ? e->n_cached : 0;
}

/* The first choice of a prompt computes it. */
uint32_t generation_n_cached(const struct generation *g)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_submitted; i += g->p.n)
        n += n_cached(&g->choices[i].e);
    return n;
}

uint32_t generation_n_prompt(const struct generation *g)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_prompts; i++)
        n += g->prompts[i].n_ids;
    return n;
}

uint32_t generation_n_tokens(const struct generation *g)
{
    uint32_t n = 0;
    if (g->state != GENERATION_PREPARING) /* until then the choices are the pool's */
        for (uint32_t i = 0; i < g->n_choices; i++)
            n += g->choices[i].n_tokens;
    return n;
}
