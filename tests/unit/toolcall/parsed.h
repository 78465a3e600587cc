/* parsed.h - what a scanner made of a text: its joined events, and what each event must be. */
#pragma once
#include "base/utf8.h"
#include "toolcall/bytes.h"
#include "toolcall/toolcall.h"

#include <criterion/criterion.h>
#include <string.h>

#define MAX_CALLS 16

struct parsed_call {
    struct bytes name, id, arguments;
    bool ended;
};

struct parsed {
    struct arena arena;
    struct bytes content, reasoning;
    struct parsed_call calls[MAX_CALLS];
    size_t n_calls;
    struct toolcall_scanner *s;
};

static inline void parsed_event(void *user, const struct toolcall_event *e)
{
    struct parsed *p = user;
    struct parsed_call *c = p->n_calls ? &p->calls[p->n_calls - 1] : NULL;
    cr_assert_eq(utf8_valid(e->s, e->n), e->n, "an event is no UTF-8");
    cr_assert(e->n || e->kind == TOOLCALL_END, "an event of kind %d says nothing", e->kind);
    switch (e->kind) {
    case TOOLCALL_TEXT:
        bytes_put(&p->content, e->s, e->n);
        break;
    case TOOLCALL_REASONING:
        bytes_put(&p->reasoning, e->s, e->n);
        break;
    case TOOLCALL_BEGIN:
        cr_assert_lt(p->n_calls, MAX_CALLS);
        c = &p->calls[p->n_calls++];
        c->name.arena = c->id.arena = c->arguments.arena = &p->arena;
        bytes_put(&c->name, e->s, e->n);
        break;
    case TOOLCALL_ID:
        cr_assert(c && !c->id.n);
        bytes_put(&c->id, e->s, e->n);
        break;
    case TOOLCALL_ARGUMENTS:
        cr_assert(c && !c->ended);
        bytes_put(&c->arguments, e->s, e->n);
        break;
    case TOOLCALL_END:
        cr_assert(c && !c->ended);
        c->ended = true;
        break;
    }
}

static inline struct parsed *parsed_open(const struct toolcall_format *format,
                                         const struct toolcall_tools *tools, const char *prompt)
{
    struct parsed *p = calloc(1, sizeof *p);
    cr_assert(p);
    p->content.arena = p->reasoning.arena = &p->arena;
    struct toolcall_options o = {.format = format,
                                 .tools = tools,
                                 .prompt = prompt,
                                 .prompt_len = strlen(prompt),
                                 .emit = parsed_event,
                                 .user = p};
    p->s = toolcall_open(&p->arena, &o);
    cr_assert(p->s);
    return p;
}

static inline void parsed_close(struct parsed *p)
{
    arena_close(&p->arena);
    free(p);
}

/* A piece of its own, so that the sanitizer sees a read past its end. */
static inline void parsed_feed(struct parsed *p, const char *s, size_t n)
{
    char *copy = malloc(n ? n : 1);
    cr_assert(copy);
    if (n)
        memcpy(copy, s, n);
    cr_assert_eq(toolcall_feed(p->s, copy, n), 0);
    free(copy);
}

static inline bool same_bytes(const struct bytes *a, const struct bytes *b)
{
    return a->n == b->n && (!a->n || !memcmp(a->p, b->p, a->n));
}

static inline bool parsed_same(const struct parsed *a, const struct parsed *b)
{
    bool same = a->n_calls == b->n_calls && same_bytes(&a->content, &b->content) &&
                same_bytes(&a->reasoning, &b->reasoning);
    for (size_t i = 0; same && i < a->n_calls; i++)
        same = same_bytes(&a->calls[i].name, &b->calls[i].name) &&
               same_bytes(&a->calls[i].id, &b->calls[i].id) &&
               same_bytes(&a->calls[i].arguments, &b->calls[i].arguments);
    return same;
}
