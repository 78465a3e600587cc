/* dfa.h - regular languages over Unicode code points, and their algebra: what a pattern, a range of numbers
 * or a list of names allows. An automaton is deterministic and trimmed: every state reaches acceptance, so a
 * walk that has not ended can always be completed. State 0 is the start; the empty language is one state
 * without edges that does not accept. Automata are immutable and may be shared. Every function that builds
 * returns NULL when the workshop's budget or memory has run out; the workshop says which. Thread: one thread
 * per workshop. Memory: the workshop's arena owns every automaton. */
#pragma once
#include "base/arena.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DFA_MAX_CODE 0x10ffffu
#define DFA_BEGIN    0x110000u /* stands before a text while a pattern is compiled: what ^ matches */
#define DFA_END      0x110001u /* stands behind it: $ */
#define DFA_INFINITE UINT32_MAX

#define DFA_MAX_MEMORY (192u << 20) /* bytes of a workshop's arena */

struct dfa_workshop {
    struct arena *arena;
    uint32_t max_states; /* of one automaton */
    uint64_t work;       /* steps left; one is about 20 ns, so the budget bounds the time */
    uint64_t seed;       /* of hashes, from hash_seed(); automata and work do not depend on it */
    bool no_memory;      /* why NULL was returned: memory, or else the budget */
};

struct dfa_edge {
    uint32_t lo, hi, to; /* code points lo..hi lead to state `to` */
};

struct dfa {
    uint32_t n_states;
    const uint32_t *first; /* [n_states + 1]: the edges of state s are [first[s], first[s + 1]), ascending */
    const struct dfa_edge *edges;
    const bool *accept; /* [n_states] */
};

/* An automaton while it is described, deterministic or not. Without-input moves are edges with lo > hi. */
struct nfa_edge {
    uint32_t from, lo, hi, to;
};
struct nfa {
    struct dfa_workshop *shop;
    uint32_t n_states, n_edges, room;
    struct nfa_edge *edges;
    bool failed; /* out of budget or memory: nfa_dfa() will say NULL */
};

#define NFA_START  0
#define NFA_ACCEPT 1
void nfa_open(struct nfa *n, struct dfa_workshop *shop); /* states NFA_START and NFA_ACCEPT */
uint32_t nfa_state(struct nfa *n);
void nfa_edge(struct nfa *n, uint32_t from, uint32_t lo, uint32_t hi, uint32_t to);
void nfa_empty(struct nfa *n, uint32_t from, uint32_t to);
/* A way from NFA_START to NFA_ACCEPT that reads this UTF-8, as dfa_utf8() does. */
void nfa_text(struct nfa *n, const char *s, size_t len);
/* Makes it deterministic, trims and minimises it. */
const struct dfa *nfa_dfa(struct nfa *n);

const struct dfa *dfa_none(struct dfa_workshop *shop);
const struct dfa *dfa_all(struct dfa_workshop *shop);
/* The one text that these bytes are; bytes that are no character stand for U+FFFD. */
const struct dfa *dfa_utf8(struct dfa_workshop *shop, const char *s, size_t n);
enum dfa_op { DFA_AND, DFA_OR, DFA_MINUS };
const struct dfa *dfa_combine(struct dfa_workshop *shop, enum dfa_op op, const struct dfa *a,
                              const struct dfa *b);
const struct dfa *dfa_not(struct dfa_workshop *shop, const struct dfa *a);
/* The texts of `a` with min to max code points. */
const struct dfa *dfa_length(struct dfa_workshop *shop, const struct dfa *a, uint32_t min, uint32_t max);
/* Drops DFA_BEGIN in front and DFA_END behind: from texts with their ends marked to plain ones. */
const struct dfa *dfa_strip(struct dfa_workshop *shop, const struct dfa *a);

bool dfa_is_none(const struct dfa *a);
bool dfa_accepts(const struct dfa *a, const char *utf8, size_t n);
/* The number of texts, DFA_INFINITE for as many as that or more. */
uint32_t dfa_count(struct dfa_workshop *shop, const struct dfa *a);
/* Takes steps of the budget; false when it is spent. */
bool dfa_work(struct dfa_workshop *shop, uint64_t steps);
