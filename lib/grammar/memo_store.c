#include "memo_store.h"
#include "frame_memo.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MEMO_BYTES (8 << 20) /* of a grammar's */

int memo_store_open(struct vocabulary_memos **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return -ENOMEM;
    TAILQ_INIT(&(*out)->by_use);
    return 0;
}

void memo_free(struct memo *o)
{
    if (!o)
        return;
    free(o->mask);
    free(o->counts);
    free(o->exits);
    free(o);
}

void memo_store_close(struct vocabulary_memos *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; i < s->n; i++)
        memo_free(s->memo[i]);
    for (uint32_t i = 0; i < MEMO_BUCKETS; i++)
        for (struct memo *o = LIST_FIRST(&s->by_frame[i]), *next; o; o = next) {
            next = LIST_NEXT(o, by_frame);
            memo_free(o);
        }
    frames_close(s->frames);
    any_string_close(&s->any);
    free(s->memo);
    free(s);
}

static size_t memo_bytes(const struct memo *o, const struct vocabulary *v)
{
    size_t mask = o->mask ? (vocabulary_mask_words(v) + 1) * sizeof *o->mask : 0;
    return sizeof *o + mask + (o->counts ? v->n_tokens + 1 : 0) + o->exit_room * sizeof *o->exits;
}

void memo_take(struct matcher *m, struct vocabulary_memos *s, size_t n)
{
    s->n_bytes += n;
    if (s == m->g->memos)
        grammar_take(m->g, n);
}

static void forget(struct matcher *m, const struct vocabulary *v, struct memo *o)
{
    struct vocabulary_memos *s = m->g->memos;
    size_t n = memo_bytes(o, v);
    uint32_t n_recent = 0, n_kept = s->n_recent < MEMO_RECENT ? s->n_recent : MEMO_RECENT;
    for (uint32_t i = 0; i < n_kept; i++)
        if (s->recent[i] != o)
            s->recent[n_recent++] = s->recent[i];
    s->n_recent = n_recent;
    if (o->frame)
        LIST_REMOVE(o, by_frame);
    else
        s->memo[m->g->states[o->state].memo] = NULL;
    TAILQ_REMOVE(&s->by_use, o, by_use);
    s->n_bytes -= n;
    grammar_give(m->g, n);
    memo_free(o);
}

bool memo_room(struct matcher *m, const struct vocabulary *v, const struct vocabulary_memos *s)
{
    if (s != m->g->memos)
        return true;
    struct memo *o = TAILQ_FIRST(&s->by_use), *later;
    for (; s->n_bytes >= MEMO_BYTES && o; o = later) {
        later = TAILQ_NEXT(o, by_use);
        if (o->n_users == 0)
            forget(m, v, o);
    }
    return s->n_bytes < MEMO_BYTES;
}

static uint32_t bucket(uint64_t from, uint32_t state)
{
    return (uint32_t)((from * 2654435761u) ^ state) % MEMO_BUCKETS;
}

void memo_keep(struct matcher *m, const struct vocabulary *v, struct vocabulary_memos *s, struct memo *o)
{
    if (o->frame)
        LIST_INSERT_HEAD(&s->by_frame[bucket(o->from, o->state)], o, by_frame);
    else
        s->memo[m->g->states[o->state].memo] = o;
    o->id = ++s->n_made;
    memo_take(m, s, memo_bytes(o, v));
    if (s == m->g->memos)
        TAILQ_INSERT_TAIL(&s->by_use, o, by_use);
}

struct memo *memo_of_frame(const struct vocabulary_memos *s, uint64_t from, uint32_t state)
{
    struct memo *o;
    LIST_FOREACH(o, &s->by_frame[bucket(from, state)], by_frame)
        if (o->from == from && o->state == state)
            return o;
    return NULL;
}

void memo_used(struct vocabulary_memos *s, struct memo *o)
{
    TAILQ_REMOVE(&s->by_use, o, by_use);
    TAILQ_INSERT_TAIL(&s->by_use, o, by_use);
}
