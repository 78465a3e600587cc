/* generation_limits.c - the limits that a generation runs into: its shares of queue_tokens and body_memory,
 * its times, the work that a thread allows its preparation. Thread: loop; the last two also the pool. */
#include "generation.h"

#include <errno.h>

#define SMALL_REQUEST   32768 /* bytes: a chat with a hundred tools */
#define BYTES_PER_TOKEN 4     /* bytes of a body: English text, and ids with their commas */

bool generation_is_queued(const struct generation *g)
{
    return g->state == GENERATION_SUBMITTED &&
           atomic_load_explicit(&g->choices->e.state, memory_order_acquire) == ENGINE_QUEUED;
}

/* Tokens of its prompts that the engine has not got. Choices that follow find their prompt in the cache. */
static uint64_t n_unsubmitted(const struct generation *g)
{
    uint64_t n = 0;
    for (uint32_t i = (g->n_submitted + g->p.n - 1) / g->p.n; i < g->n_prompts; i++)
        n += g->prompts[i].n_ids;
    return n;
}

static uint64_t n_waiting(const struct generation *g)
{
    if (g->state != GENERATION_SUBMITTED)
        return 0;
    return generation_is_queued(g) ? generation_n_prompt(g) : n_unsubmitted(g);
}

uint64_t generation_waiting_tokens(const struct generator *s, const struct server_model *m)
{
    const struct generation *g;
    uint64_t n = 0;
    LIST_FOREACH(g, &s->generations, link)
        if (g->model == m)
            n += g->state == GENERATION_PREPARING ? g->request->body_len / BYTES_PER_TOKEN + 1 : n_waiting(g);
    return n;
}

/* A prompt is let in beside others only while all that wait stay within queue_tokens; alone it always is, and
 * so is one that need not wait. */
static int check_queue_tokens(const struct generation *g, struct error *words)
{
    const struct http_server *s = g->server;
    const struct generation *other;
    uint64_t waiting = 0;

    if (g->n_prompts == 1 && !engine_queue_depth(g->model->engine, 1))
        return 0;
    LIST_FOREACH(other, &s->generator->generations, link)
        if (other->model == g->model)
            waiting += n_waiting(other);
    if (waiting == 0 || waiting + generation_n_prompt(g) <= s->cfg->queue_tokens)
        return 0;
    return error_set(words, -EAGAIN,
                     "%llu prompt tokens are waiting, this prompt has %u, queue_tokens is %llu",
                     (unsigned long long)waiting, (unsigned)generation_n_prompt(g),
                     (unsigned long long)s->cfg->queue_tokens);
}

static size_t prompt_bytes(const struct generation *g)
{
    const struct engine_request *e = &g->choices->e;
    size_t per_token = sizeof *e->prompt_out + e->n_prompt_top * sizeof *e->prompt_top;
    return e->want_prompt_logprobs ? e->n_prompt * per_token : 0;
}

/* Bytes of log-probabilities or vectors that it may come to hold until its client has taken them. Text is not
 * promised: it takes a thousandth of its KV cache, and counts once it is whole. */
static size_t promised(const struct generation *g)
{
    const struct engine_request *e = &g->choices->e;
    if (g->n_prompts > 1) /* kept() counts all */
        return 0;
    size_t per_token = e->want_logprobs ? sizeof *e->out + e->n_top * sizeof *e->top : 0;
    size_t vector = e->pooling ? engine_n_embedding(g->model->engine) * sizeof *e->embedding : 0;
    return prompt_bytes(g) + g->n_choices * (e->max_tokens * per_token + vector);
}

/* Bytes that it has kept of its body (names of tools, stop strings, an echo), beside the ids of its prompt,
 * which queue_tokens bounds, and the room for tokens to come. With several prompts those count too: what is
 * known of one waits for the last. Up to SMALL_REQUEST they count for nothing: queue_limit bounds how many
 * wait.
 */
static size_t kept(const struct generation *g)
{
    size_t n = g->arena->total;
    if (g->n_prompts == 1)
        n -= g->room + generation_n_prompt(g) * sizeof *g->p.ids;
    return n > SMALL_REQUEST ? n : 0;
}

static const char *held_for(const struct generation *g, size_t promise, size_t grammar, size_t own)
{
    if (g->dialect->embeds)
        return "vectors";
    if (own)
        return "the request";
    if (!grammar)
        return "log-probabilities";
    return promise ? "log-probabilities and a compiled grammar" : "a compiled grammar";
}

/* A request that is large, or has log-probabilities or a grammar, is let in beside others' replies only while
 * all are within three quarters of body_memory (the rest is for text), alone always. So one that was let in
 * need not be given up for want of memory. */
static int check_replies(const struct generation *g, struct error *words)
{
    const struct http_server *s = g->server;
    uint64_t most = s->cfg->body_memory - s->cfg->body_memory / 4;
    size_t promise = promised(g), grammar = constraint_uncounted(g), own = kept(g);
    size_t mine = promise + grammar + own;
    if (!mine || s->reply_bytes <= REQUEST_LARGE_REPLY || s->reply_bytes + mine <= most)
        return 0;
    return error_set(words, -EAGAIN,
                     "body_memory, %llu bytes, has no room for %zu bytes of %s beside the replies of others",
                     (unsigned long long)s->cfg->body_memory, mine, held_for(g, promise, grammar, own));
}

int generation_check_room(const struct generation *g, struct error *words)
{
    int rc = check_queue_tokens(g, words);
    return rc < 0 ? rc : check_replies(g, words);
}

size_t generation_memory(const struct generation *g)
{
    return promised(g) + kept(g);
}

/* A timeout that is given is within max_timeout_ms: check_limits(). */
uint64_t generation_timeout_ms(const struct generation *g)
{
    const struct config *cfg = g->server->cfg;
    uint32_t max = g->request->admin ? 0 : cfg->max_timeout_ms;
    if (g->p.has_timeout_ms)
        return g->p.timeout_ms;
    return max && (!cfg->timeout_ms || cfg->timeout_ms > max) ? max : cfg->timeout_ms;
}

uint64_t generation_queue_timeout_ms(const struct generation *g)
{
    return g->p.has_queue_timeout_ms ? g->p.queue_timeout_ms : g->server->cfg->queue_timeout_ms;
}

int generation_exceeded(struct generation *g)
{
    g->exceeded = true;
    return -1;
}
