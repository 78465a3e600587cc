/* choice.c - one text of a generation: from the engine's tokens to what the client has seen of it. */
#include "generation.h"

#include <string.h>

int choice_open(struct choice *c, struct api_error *err)
{
    struct engine_request *e = &c->e;
    struct arena *a = c->g->arena;
    uint32_t n_stops = c->g->p.n_stops;
    /* How far the text has come into a stop string is each choice's own. */
    struct text_stop *stops = arena_array(a, n_stops, sizeof *stops);
    e->out = arena_array(a, e->max_tokens, sizeof *e->out);
    e->top = e->n_top ? arena_array(a, (size_t)e->max_tokens * e->n_top, sizeof *e->top) : NULL;
    if (e->want_prompt_logprobs) {
        e->prompt_out = arena_array(a, e->n_prompt, sizeof *e->prompt_out);
        e->prompt_top = arena_array(a, (size_t)e->n_prompt * e->n_prompt_top, sizeof *e->prompt_top);
    }
    bool missing = !e->out || !stops || (e->n_top && !e->top) ||
                   (e->want_prompt_logprobs && (!e->prompt_out || !e->prompt_top));
    if (missing)
        return api_out_of_memory(err);
    if (n_stops)
        memcpy(stops, c->index ? c->g->choices->text.stops : c->g->p.stops, n_stops * sizeof *stops);
    return text_open(&c->text, a, stops, n_stops) < 0 ? api_out_of_memory(err) : 0;
}

/* --- tokens --- */

static bool is_stop_id(const struct generation *g, int32_t token)
{
    for (uint32_t i = 0; i < g->p.n_stop_ids; i++)
        if (g->p.stop_ids[i] == token)
            return true;
    return false;
}

/* A token that ends the text is no part of it. */
static bool ends_text(const struct choice *c, uint32_t i)
{
    const struct generation *g = c->g;
    int32_t token = c->e.out[i].token;
    if (i + 1 <= g->p.min_tokens)
        return false;
    return is_stop_id(g, token) || (!g->p.ignore_eos && tokenizer_is_end(g->model->tokenizer, token));
}

/* What the text has gained and no event has shown. */
static struct piece unseen(const struct choice *c)
{
    return (struct piece){.text = c->text.out.p + c->event_text,
                          .len = c->text.safe - c->event_text,
                          .from = c->event_tokens,
                          .to = c->n_tokens};
}

size_t choice_n_unshown(const struct choice *c)
{
    const struct params *p = &c->g->p;
    return (size_t)(c->n_tokens - c->event_tokens) * (p->has_logprobs ? 2 + p->logprobs : 1);
}

static void shown(struct choice *c)
{
    c->event_text = c->text.safe;
    c->event_tokens = c->n_tokens;
    c->g->sent_ns = c->last_ns;
}

static void write_delta(struct choice *c)
{
    struct generation *g = c->g;
    struct piece piece = unseen(c);
    if ((!piece.len && choice_n_unshown(c) < GENERATE_INLINE_ENTRIES) || !g->request->connection)
        return;
    generation_begin(g);
    g->dialect->delta(c, &g->request->out, &piece);
    generation_wrote(g);
    shown(c);
}

static void take_token(struct choice *c)
{
    struct generation *g = c->g;
    uint32_t i = c->n_tokens++;
    struct tokenizer_piece piece = {0};
    if (!ends_text(c, i))
        piece = tokenizer_piece(g->model->tokenizer, c->e.out[i].token, false);
    if (text_add(&c->text, piece.s, piece.len))
        engine_cancel(g->model->engine, &c->e);
    if (c->text.out.failed)
        generation_starve(g);
    /* The text that goes with an end is left to the last event. */
    else if (g->p.stream && !c->text.matched)
        write_delta(c);
}

void choice_take(struct choice *c)
{
    struct request *r = c->g->request;
    uint32_t n = atomic_load_explicit(&c->e.n_out, memory_order_acquire), n_new = n - c->n_tokens;
    if (!n_new || c->text.matched)
        return;
    uint64_t now = clock_ns();
    /* Of several tokens seen at once, the first of all has none before it to measure from. */
    uint64_t from = c->last_ns ? c->last_ns : c->e.first_ns;
    uint32_t n_gaps = c->last_ns ? n_new : n_new - 1;
    if (n_gaps)
        histogram_add(&c->g->server->stats.inter_token, clock_ms_between(from, now) / n_gaps, n_gaps);
    c->last_ns = now;
    while (c->n_tokens < n && !c->text.matched)
        take_token(c);
    if (c->g->p.stream && (r->out.len > r->out_at || r->out.failed))
        request_resume(r);
}

/* --- the end --- */

bool choice_ended_well(const struct choice *c)
{
    return c->text.matched || c->e.finish == ENGINE_EOS || c->e.finish == ENGINE_LENGTH;
}

static const char *finish_reason(const struct choice *c)
{
    const struct tokenizer *t = c->g->model->tokenizer;
    if (c->text.matched)
        return "stop";
    switch (c->e.finish) {
    case ENGINE_EOS:
        return c->n_tokens && tokenizer_is_end(t, c->e.out[c->n_tokens - 1].token) ? "eos" : "stop";
    case ENGINE_LENGTH:
        return "length";
    case ENGINE_TIMEOUT:
    case ENGINE_QUEUE_TIMEOUT:
        return "timeout";
    default:
        return "cancelled";
    }
}

void choice_end(struct choice *c)
{
    text_end(&c->text);
    c->finish = finish_reason(c);
}

void choice_tell_end(struct choice *c)
{
    struct generation *g = c->g;
    struct piece piece = unseen(c);
    g->dialect->end(c, &g->request->out, &piece);
    (void)request_wrote(g->request); /* `out` remembers */
    shown(c);
    c->told = true;
}

bool choice_tells_last(const struct choice *c)
{
    const struct generation *g = c->g;
    for (uint32_t i = 0; i < g->n_choices; i++)
        if (i != c->index && !g->choices[i].told)
            return false;
    return true;
}

struct piece choice_whole(const struct choice *c)
{
    return (struct piece){.text = c->text.out.p, .len = c->text.safe, .from = 0, .to = c->n_tokens};
}
