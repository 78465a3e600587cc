/* choice.c - one text of a generation: from the engine's tokens to what the client has seen of it. */
#include "generation.h"

#include <assert.h>
#include <string.h>

/* Takes room for all tokens that may come; the system gives the memory as they do. */
static bool reserve(struct choice *c)
{
    struct engine_request *e = &c->e;
    struct arena *a = c->g->arena;
    size_t before = a->total;
    bool answers = c->g->dialect->event;
    e->out = arena_array(a, e->max_tokens, sizeof *e->out);
    e->top = e->n_top ? arena_array(a, (size_t)e->max_tokens * e->n_top, sizeof *e->top) : NULL;
    c->ends = c->g->p.stream || answers ? arena_array(a, e->max_tokens, sizeof *c->ends) : NULL;
    if (e->want_prompt_logprobs) {
        e->prompt_out = arena_array(a, e->n_prompt, sizeof *e->prompt_out);
        e->prompt_top = arena_array(a, (size_t)e->n_prompt * e->n_prompt_top, sizeof *e->prompt_top);
        for (uint32_t i = 0; e->prompt_out && i < e->n_prompt; i++)
            e->prompt_out[i].token = -1; /* of several prompts one may end before it was computed */
    }
    c->g->room += a->total - before;
    return e->out && (!e->n_top || e->top) && (!(c->g->p.stream || answers) || c->ends) &&
           (!e->want_prompt_logprobs || (e->prompt_out && e->prompt_top));
}

int choice_open(struct choice *c, struct api_error *err)
{
    struct arena *a = c->g->arena;
    uint32_t n_stops = c->g->p.n_stops;
    /* Each choice keeps how far its text has come into a stop string. */
    struct text_stop *stops = arena_array(a, n_stops, sizeof *stops);
    if (!stops || !reserve(c))
        return api_out_of_memory(err);
    if (n_stops)
        memcpy(stops, c->index ? c->g->choices->text.stops : c->g->p.stops, n_stops * sizeof *stops);
    if (text_open(&c->text, a, stops, n_stops) < 0)
        return api_out_of_memory(err);
    c->text.keeps_stop = c->g->p.include_stop_str_in_output;
    return c->g->dialect->event ? answer_open(c, err) : 0;
}

/* --- tokens --- */

static bool is_stop_id(const struct generation *g, int32_t token)
{
    for (uint32_t i = 0; i < g->p.n_stop_ids; i++)
        if (g->p.stop_ids[i] == token)
            return true;
    return false;
}

/* Returns whether token i ends the text and is no part of it. */
static bool ends_text(const struct choice *c, uint32_t i)
{
    const struct generation *g = c->g;
    int32_t token = c->e.out[i].token;
    if (i + 1 <= g->p.min_tokens)
        return false;
    return (is_stop_id(g, token) && !c->text.keeps_stop) ||
           (!g->p.ignore_eos && tokenizer_is_end(g->model->tokenizer, token));
}

static void take_token(struct choice *c)
{
    struct generation *g = c->g;
    uint32_t i = c->n_tokens++;
    struct tokenizer_piece piece = {0};
    int32_t token = c->e.out[i].token;
    bool mark = c->answer && answer_shows_token(c->answer, token);
    if (!ends_text(c, i))
        piece = tokenizer_piece(g->model->tokenizer, token, mark);
    if (text_add(&c->text, piece.s, piece.len))
        engine_cancel(g->model->engine, &c->e);
    if (c->text.out.failed)
        generation_starve(g);
    assert(c->text.safe <= UINT32_MAX); /* else a token's end would be cut to its lower half */
    if (c->ends)
        c->ends[i] = (uint32_t)c->text.safe;
}

void choice_take(struct choice *c)
{
    uint32_t n = atomic_load_explicit(&c->e.n_out, memory_order_acquire), n_new = n - c->n_tokens;
    assert(n >= c->n_tokens);     /* the engine's count only grows */
    assert(n <= c->e.max_tokens); /* `out` and `ends` have room for no more */
    if (!n_new || c->text.matched)
        return;
    uint64_t now = clock_ns();
    /* The first token of a text has no earlier one to measure from. */
    uint64_t from = c->last_ns ? c->last_ns : c->e.first_ns;
    uint32_t n_gaps = c->last_ns ? n_new : n_new - 1;
    if (n_gaps)
        histogram_add(&c->g->server->stats.inter_token, clock_ms_between(from, now) / n_gaps, n_gaps);
    c->last_ns = now;
    stream_times_take(c->g->server->times, n_new, now);
    while (c->n_tokens < n && !c->text.matched)
        take_token(c);
}

void choice_trim(struct choice *c)
{
    struct engine_request *e = &c->e;
    struct arena *a = c->g->arena;
    size_t most = e->max_tokens, n = c->n_tokens;
    e->out = arena_shrink(a, e->out, most * sizeof *e->out, n * sizeof *e->out);
    if (e->top)
        e->top = arena_shrink(a, e->top, most * e->n_top * sizeof *e->top, n * e->n_top * sizeof *e->top);
    if (c->ends)
        c->ends = arena_shrink(a, c->ends, most * sizeof *c->ends, n * sizeof *c->ends);
}

/* --- events --- */

static size_t entries_per_token(const struct choice *c)
{
    const struct params *p = &c->g->p;
    return p->has_logprobs ? 2 + p->logprobs : 1;
}

size_t choice_n_unshown(const struct choice *c)
{
    if (c->e.embedding)
        return engine_n_embedding(c->g->model->engine);
    assert(c->event_tokens <= c->n_tokens);
    return (c->n_tokens - c->event_tokens) * entries_per_token(c);
}

/* Tokens [event_tokens, to) and the text up to byte `end`. */
static struct piece unseen(const struct choice *c, uint32_t to, size_t end)
{
    assert(end >= c->event_text); /* no event takes text back */
    assert(to >= c->event_tokens);
    return (struct piece){
        .text = c->text.out.p + c->event_text, .len = end - c->event_text, .from = c->event_tokens, .to = to};
}

/* Finds what its next event shows: all up to the first token that has text to show, so that it is the same
 * whenever it is written. The text that goes with a stop string is left to the last event. */
static bool next_piece(const struct choice *c, struct piece *out)
{
    uint32_t n = c->n_tokens - (c->text.matched != NULL);
    for (uint32_t i = c->event_tokens; i < n; i++) {
        size_t n_entries = (i + 1 - c->event_tokens) * entries_per_token(c);
        *out = unseen(c, i + 1, c->ends[i]);
        if (out->len || n_entries >= GENERATE_INLINE_ENTRIES)
            return true;
    }
    return false;
}

static void shown(struct choice *c, const struct piece *piece)
{
    c->event_text += piece->len;
    c->event_tokens = piece->to;
    c->g->sent_ns = c->last_ns;
}

bool choice_tell(struct choice *c)
{
    struct generation *g = c->g;
    struct piece piece;
    bool more = next_piece(c, &piece);
    if (!more && (!c->finish || c->told))
        return false;
    generation_begin(g);
    if (!more)
        piece = unseen(c, c->n_tokens, c->text.safe);
    (more ? g->dialect->delta : g->dialect->end)(c, &g->request->out, &piece);
    generation_wrote(g);
    shown(c, &piece);
    c->told |= !more;
    return true;
}

#define FEW_ENTRIES 32 /* are written at once in any list */

void put_items(const struct choice *c, uint32_t from, uint32_t to,
               void (*put)(struct buf *out, struct reply_list *l))
{
    struct reply_list list = {.i = from, .to = to, .between = ",", .put = put, .of = c};
    bool few = (to - from) * entries_per_token(c) <= FEW_ENTRIES;
    request_put_list(c->g->request, list, c->g->later && !few);
}

#define CHUNK 1024 /* bytes of a text that are written at once */

/* Returns where chunk i of the text begins: between two characters. */
static size_t chunk_at(const struct choice *c, size_t i)
{
    size_t at = i * CHUNK;
    while (at < c->text.safe && ((unsigned char)c->text.out.p[at] & 0xc0) == 0x80)
        at++;
    return at < c->text.safe ? at : c->text.safe;
}

static void put_chunk(struct buf *out, struct reply_list *l)
{
    const struct choice *c = l->of;
    size_t at = chunk_at(c, l->i);
    json_put_chars(out, c->text.out.p + at, chunk_at(c, l->i + (size_t)1) - at);
}

void put_piece_text(const struct choice *c, const struct piece *piece)
{
    struct request *r = c->g->request;
    bool whole = piece->text == c->text.out.p && piece->len == c->text.safe;
    if (!c->g->later || !whole || piece->len <= CHUNK) {
        json_put_string(&r->out, piece->text, piece->len);
        return;
    }
    struct reply_list list = {
        .to = (uint32_t)((piece->len + CHUNK - 1) / CHUNK), .between = "", .put = put_chunk, .of = c};
    buf_puts(&r->out, "\"");
    request_put_list(r, list, true);
    buf_puts(&r->out, "\"");
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
