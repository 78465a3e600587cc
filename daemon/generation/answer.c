#include "answer.h"
#include "base/hash.h"
#include "generation.h"

#include <string.h>

/* --- opening --- */

static void add_mark(struct answer *a, const struct tokenizer *t, const char *mark)
{
    int32_t id = tokenizer_find(t, mark, strlen(mark));
    if (id >= 0 && (tokenizer_attr(t, id) & TOKEN_CONTROL) && a->n_marks < ANSWER_MAX_MARKS)
        a->marks[a->n_marks++] = id;
}

bool answer_shows_token(const struct answer *a, int32_t token)
{
    for (uint32_t i = 0; i < a->n_marks; i++)
        if (a->marks[i] == token)
            return true;
    return false;
}

static void on_event(void *user, const struct toolcall_event *event);

int answer_open(struct choice *c, struct api_error *err)
{
    const struct generation *g = c->g;
    const struct params *p = &g->p;
    struct arena *arena = g->arena;
    struct answer *a = arena_zalloc(arena, sizeof *a);
    if (!a)
        return api_out_of_memory(err);
    struct toolcall_options o = {.format = p->format,
                                 .tools = p->tools.n ? &p->tools : NULL,
                                 .no_calls = !p->tools.n,
                                 .verbatim = p->constraint.kind == CONSTRAINT_SCHEMA ||
                                             p->constraint.kind == CONSTRAINT_OBJECT,
                                 .prompt = p->prompt_end,
                                 .prompt_len = p->prompt_end_len,
                                 .emit = on_event,
                                 .user = a};
    a->choice = c;
    a->content.arena = a->reasoning.arena = arena;
    a->scanner = toolcall_open(arena, &o);
    if (!a->scanner)
        return api_out_of_memory(err);
    const char *mark;
    for (size_t i = 0; (mark = toolcall_format_mark(p->format, i)); i++)
        add_mark(a, g->model->tokenizer, mark);
    c->answer = a;
    return 0;
}

/* --- events --- */

/* An id that no other call has: of letters and digits, from the reply's own. */
static void make_call_id(struct answer *a, char id[CALL_ID + 1])
{
    const char *reply = a->choice->g->id;
    uint64_t number = (uint64_t)a->choice->index << 32 | a->n_calls;
    call_id_write(id, hash_bytes(hash_word(0, number), reply, strlen(reply)));
    id[CALL_ID] = '\0';
}

static struct answer_call *begin_call(struct answer *a)
{
    struct arena *arena = a->choice->g->arena;
    struct answer_call *grown =
        arena_grow(arena, a->calls, a->n_calls * sizeof *grown, (a->n_calls + 1) * sizeof *grown);
    if (!grown) {
        a->failed = true;
        return NULL;
    }
    a->calls = grown;
    struct answer_call *call = &grown[a->n_calls];
    *call = (struct answer_call){.name.arena = arena, .arguments.arena = arena};
    make_call_id(a, call->id);
    a->n_calls++;
    return call;
}

static void collect(struct answer *a, const struct toolcall_event *e)
{
    const struct generation *g = a->choice->g;
    struct answer_call *call = a->n_calls ? &a->calls[a->n_calls - 1] : NULL;
    bool whole = !g->p.stream, calls = whole || g->dialect->whole_calls;
    if (e->kind == TOOLCALL_TEXT && whole)
        buf_put(&a->content, e->s, e->n);
    if (e->kind == TOOLCALL_REASONING && whole)
        buf_put(&a->reasoning, e->s, e->n);
    if (e->kind == TOOLCALL_BEGIN)
        buf_put(&call->name, e->s, e->n);
    if (e->kind == TOOLCALL_ARGUMENTS && calls)
        buf_put(&call->arguments, e->s, e->n);
    if (e->kind == TOOLCALL_END)
        call->complete = true;
    a->failed |=
        a->content.failed || a->reasoning.failed || (call && (call->name.failed || call->arguments.failed));
}

static void on_event(void *user, const struct toolcall_event *e)
{
    struct answer *a = user;
    struct generation *g = a->choice->g;
    if (e->kind == TOOLCALL_BEGIN)
        a->passed_over = g->p.one_call && a->n_calls;
    bool of_call = e->kind != TOOLCALL_TEXT && e->kind != TOOLCALL_REASONING;
    a->reasoning_last = e->kind == TOOLCALL_REASONING;
    /* The id of a reply is known before its arguments: the model's own comes too late. */
    if (a->failed || (of_call && a->passed_over) || e->kind == TOOLCALL_ID)
        return;
    if (e->kind == TOOLCALL_BEGIN && !begin_call(a))
        return;
    collect(a, e);
    if ((g->p.stream || g->dialect->whole_events) && !a->failed)
        g->dialect->event(a->choice, &g->request->out, e);
}

/* --- text --- */

/* A text that was cut short keeps its calls as they are. */
static bool was_cut(const struct choice *c)
{
    return c->finish && strcmp(c->finish, "eos") && strcmp(c->finish, "stop");
}

static void feed(struct choice *c, const char *text, size_t n, uint32_t n_tokens)
{
    struct answer *a = c->answer;
    bool before = a->reasoning_last;
    if (toolcall_feed(a->scanner, text, n) < 0)
        a->failed = true;
    a->n_reasoning_tokens += before && a->reasoning_last ? n_tokens : 0;
}

static void end(struct choice *c)
{
    struct answer *a = c->answer;
    if (!a->ended && toolcall_end(a->scanner, was_cut(c)) < 0)
        a->failed = true;
    a->ended = true;
}

void answer_take(struct choice *c, const struct piece *piece, bool last)
{
    c->answer->piece = piece;
    feed(c, piece->text, piece->len, piece->to - piece->from);
    if (last)
        end(c);
    c->answer->piece = NULL;
    c->g->request->out.failed |= c->answer->failed; /* the stream ends with the event that needs no memory */
}

void answer_take_whole(struct choice *c)
{
    size_t from = 0;
    uint32_t n_fed = 0; /* a token that is the beginning of a character has no bytes yet */
    struct piece piece = {0};
    c->answer->piece = &piece;
    for (uint32_t i = 0; i < c->n_tokens; i++) {
        size_t to = c->ends[i] < c->text.safe ? c->ends[i] : c->text.safe;
        if (to <= from)
            continue;
        piece = (struct piece){c->text.out.p + from, to - from, n_fed, i + 1};
        feed(c, piece.text, piece.len, i + 1 - n_fed);
        from = to;
        n_fed = i + 1;
    }
    piece = (struct piece){c->text.out.p + from, c->text.safe - from, n_fed, c->n_tokens};
    if (c->text.safe > from)
        feed(c, piece.text, piece.len, 0);
    end(c);
    c->answer->piece = NULL;
    c->g->request->out.failed |= c->answer->failed;
}

uint32_t answer_n_reasoning(const struct generation *g)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_choices; i++)
        n += g->choices[i].answer->n_reasoning_tokens;
    return n;
}

const char *answer_finish(const struct choice *c)
{
    if (was_cut(c))
        return "length";
    return c->answer->n_calls ? "tool_calls" : "stop";
}
