/* grammar.h - a language over bytes, compiled: what constrained text must be. Regular expressions, GBNF and
 * JSON schemas (daemon/schema) become one kind of automaton: a recursive transition network. States have
 * edges over bytes and moves without input; a call runs another state's language as a frame of its own and
 * goes on behind it. Each frame counts once (items, members, characters): some edges add one, and a state may
 * be entered only with a count inside its bounds. Invariant: from every state that a walk can reach, the end
 * can be reached, so a mask never leads into a dead end. Frames are at most GRAMMAR_MAX_DEPTH deep; a call
 * that could not be finished within that depth is not made. Thread: a builder belongs to one thread; a
 * grammar is immutable and shared by count (any thread). Memory: a grammar has one arena. Limits are counted
 * in states and steps of work, never in seconds: the same input is refused on every machine. */
#pragma once
#include "base/arena.h"
#include "base/error.h"
#include "dfa.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GRAMMAR_MAX_DEPTH    128
#define GRAMMAR_MAX_STATES   400000
#define GRAMMAR_MAX_DFA      20000               /* states of one regular part */
#define GRAMMAR_WORK         (40u * 1000 * 1000) /* steps of a compilation: about a second */
#define GRAMMAR_UNBOUNDED    UINT32_MAX
#define GRAMMAR_NO_MEMO      UINT32_MAX
#define GRAMMAR_STRING_MEMOS 128 /* memo keys below are those of a JSON string, the same in all grammars */

struct grammar_edge {
    uint8_t lo, hi;
    bool counts; /* adds one to the frame's count */
    uint32_t to;
};
struct grammar_call {
    uint32_t rule, back; /* the start of the language to run; the state to go on in */
    bool counts;         /* adds one to the caller's count */
};
struct grammar_state {
    uint32_t edge, empty, call; /* first of its edges, empty moves, calls; the next state's first ends them */
    uint32_t min, max;          /* the counts with which it may be entered */
    uint32_t words;             /* in an item that must be unique: the texts left, or DFA_INFINITE */
    uint32_t memo;              /* key under which its mask is remembered, or GRAMMAR_NO_MEMO */
    uint32_t part;              /* with a memo: bounds of the count in its part of the grammar */
    uint8_t height;             /* frames that the way to the end needs below this one */
    bool final;                 /* the frame may end here */
    bool nullable;              /* ... or behind moves without input */
    bool last;                  /* final, and in the frame of the whole text: nothing follows */
    bool unique;                /* returning here: the text of the callee must differ from its siblings' */
};
struct grammar_part { /* a string that is counted: `min` to leave it, `max` to go on */
    uint32_t min, max;
    uint32_t exit; /* the state behind its last character */
    bool counts;   /* its characters are what the frame counts */
};

struct vocabulary_memos;

/* For callers that count the grammar's memory once for all its users; zero at first. */
struct grammar_share {
    uint32_t n_users;
    size_t n_counted; /* bytes */
};

struct grammar {
    struct arena arena;
    uint32_t n_states, start, n_memos;
    struct grammar_state *states; /* [n_states + 1] */
    struct grammar_edge *edges;
    uint32_t *empties; /* targets */
    struct grammar_call *calls;
    struct grammar_part *parts;
    bool has_unique;
    struct vocabulary_memos *memos; /* masks remembered by the engine's thread (matcher.h) */
    atomic_uint n_refs;
    atomic_size_t n_bytes; /* of its arena, its remembered masks and its matchers */
    struct grammar_share share;
};

struct grammar *grammar_ref(struct grammar *g);
void grammar_unref(struct grammar *g); /* NULL is fine; the last reference frees it */
/* Bytes that it holds now, with its remembered masks and its matchers, which grow with their texts. */
size_t grammar_bytes(const struct grammar *g);
/* Counts memory that is taken for it, or given back. */
void grammar_take(struct grammar *g, size_t n);
void grammar_give(struct grammar *g, size_t n);

/* From end to end, as UTF-8. Errors as regex_compile(). */
int grammar_from_regex(struct grammar **out, const char *s, size_t n, struct error *err);
/* llama.cpp's GBNF: the rule `root`. -EINVAL: not a grammar, line and column in the words; -ENOTSUP: left
 * recursion, by the rule's name; -E2BIG, -ENOMEM. */
int grammar_from_gbnf(struct grammar **out, const char *s, size_t n, struct error *err);
/* Lark's: the rule `start`; terminals and rules, strings, regular expressions in Python's words as far as
 * ECMA-262 has them (\d, \w are ASCII), repetitions, %import of common terminals, %ignore. Templates, flags
 * but s, u and a string's i, and other directives are -ENOTSUP. Errors as above. */
int grammar_from_lark(struct grammar **out, const char *s, size_t n, struct error *err);
/* GBNF where ::= follows the first name, else Lark. */
int grammar_from_text(struct grammar **out, const char *s, size_t n, struct error *err);
/* One of n texts. */
int grammar_from_choice(struct grammar **out, const char *const *texts, const size_t *lens, size_t n,
                        struct error *err);
