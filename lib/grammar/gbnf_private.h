/* gbnf_private.h - the text of a grammar as it is read, for gbnf.c, gbnf_regular.c and lark.c. Thread: the
 * one that compiles the grammar. */
#pragma once
#include "code_ranges.h"
#include "grammar_builder.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gbnf_span { /* states */
    uint32_t in, out;
};
struct gbnf_rule {
    const char *name;
    uint32_t start, end;
    size_t used_at; /* byte of the first use */
    size_t body;    /* byte behind its ::=; 0: it was not read as GBNF */
    size_t body_end;
    struct gbnf_span span; /* linked to start and end when all rules are known */
    bool defined, recursive;
};
/* An element that repeats. Its states are linked to those around it when all rules are known. */
struct gbnf_loop {
    struct gbnf_span around, element;
    size_t from, end; /* bytes, with the repetition */
    uint32_t min, max;
    bool unused; /* it stands in a rule that is an automaton */
};
struct gbnf {
    struct builder *b;
    const char *s;
    size_t n, at;
    unsigned depth;
    struct gbnf_rule *rules;
    uint32_t n_rules, room;
    struct gbnf_loop *loops; /* an inner one stands before the outer one */
    uint32_t n_loops, loop_room;
    uint32_t *slots; /* rules by name: their numbers from 1, 0: empty; open addressing */
    uint64_t seed;   /* for hashes of names, which a client chooses */
};

/* The text is s[n]; gbnf_finish() checks that all rules are there and makes the grammar that begins with
 * `name`. It closes the builder. */
void gbnf_open(struct gbnf *p, struct builder *b, const char *s, size_t n);
int gbnf_finish(struct gbnf *p, const char *name, struct grammar **out, struct error *err);
/* Fails with line and column of a byte of the text. Returns false. */
bool gbnf_fail(struct gbnf *p, size_t at, int code, const char *what, const char *name);
/* The rule's number; a new rule where there is none; 0 after a failure. */
uint32_t gbnf_rule_of(struct gbnf *p, const char *name);
/* False, and a failure: the rule has a definition. Otherwise it has one now, for gbnf_define(). */
bool gbnf_may_define(struct gbnf *p, uint32_t rule, size_t at);
void gbnf_define(struct gbnf *p, uint32_t rule, struct gbnf_span s);
struct gbnf_span gbnf_new_span(struct gbnf *p);
/* The element as often as it may come. */
struct gbnf_span gbnf_repeated(struct gbnf *p, struct gbnf_span x, uint32_t min, uint32_t max);

/* Parts of the text; the place moves behind what was taken. A failure goes to the builder. */
bool gbnf_looking_at(const struct gbnf *p, const char *text);
bool gbnf_take(struct gbnf *p, const char *text);
void gbnf_skip_space(struct gbnf *p, bool newlines);
uint32_t gbnf_take_char(struct gbnf *p);
const char *gbnf_take_name(struct gbnf *p);
/* The class behind its [. */
void gbnf_take_class(struct gbnf *p, struct code_ranges *set);
bool gbnf_take_number(struct gbnf *p, uint32_t *out);
bool gbnf_take_repetition(struct gbnf *p, uint32_t *min, uint32_t *max);
/* The rule of that name, or NULL. */
struct gbnf_rule *gbnf_find(const struct gbnf *p, const char *name);

/* gbnf_regular.c: the texts of a loop as an automaton, where rules below it do not call themselves and it has
 * few states. NULL: it is none. Call when the whole text was read without a failure. */
const struct dfa *gbnf_regular(const struct gbnf *p, const struct gbnf_loop *loop);
/* The same of a rule that may begin with many characters, as a name does. */
const struct dfa *gbnf_regular_rule(const struct gbnf *p, struct gbnf_rule *rule);
