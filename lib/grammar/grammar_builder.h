/* grammar_builder.h - makes a grammar state by state. After the first failure every call does nothing and
 * builder_finish() reports it. Thread, memory: one thread; the builder's arena is scratch, freed by
 * builder_close(). */
#pragma once
#include "grammar.h"

struct builder_edge {
    uint32_t from, to;
    uint8_t lo, hi;
    uint8_t kind; /* enum builder_kind */
    bool counts;
    uint32_t back; /* of a call */
};
enum builder_kind { BUILDER_BYTES, BUILDER_EMPTY, BUILDER_CALL };

struct utf8_suffix { /* a state that reads the rest of a character, shared by all who need the same */
    uint32_t key[4];
    uint32_t state;
};

struct builder {
    struct arena arena;
    struct dfa_workshop shop;
    uint32_t n_states, state_room;
    struct grammar_state *states;
    uint32_t n_edges, edge_room;
    struct builder_edge *edges;
    uint32_t n_parts, part_room;
    struct grammar_part *parts;
    struct utf8_suffix *suffixes; /* open addressing */
    uint32_t n_suffixes, suffix_mask;
    uint32_t n_memos;
    bool failed;
    struct error err; /* of the first failure */
    /* Names the rule that begins with a state, or says NULL: for the words of an error. */
    const char *(*rule_name)(const void *context, uint32_t state);
    const void *context;
};

void builder_open(struct builder *b);
void builder_close(struct builder *b);
/* Records why the grammar cannot be made; returns `code`. The first one is kept. */
int builder_fail(struct builder *b, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int builder_exhausted(struct builder *b); /* the workshop returned NULL */

uint32_t builder_state(struct builder *b);
void builder_final(struct builder *b, uint32_t state);
/* The same of a state that only the whole text can end in: no rule that is called has it. */
void builder_last(struct builder *b, uint32_t state);
void builder_bounds(struct builder *b, uint32_t state, uint32_t min, uint32_t max);
void builder_bytes(struct builder *b, uint32_t from, uint8_t lo, uint8_t hi, uint32_t to, bool counts);
void builder_empty(struct builder *b, uint32_t from, uint32_t to);
void builder_call(struct builder *b, uint32_t from, uint32_t rule, uint32_t back, bool counts);
/* Returns the state behind the bytes of a text. */
uint32_t builder_text(struct builder *b, uint32_t from, const char *s, size_t n);
/* Reads one character of lo..hi as UTF-8. */
void builder_codes(struct builder *b, uint32_t from, uint32_t lo, uint32_t hi, uint32_t to, bool counts);

enum builder_spelling {
    SPELL_RAW,    /* UTF-8 as it is */
    SPELL_JSON,   /* the inside of a JSON string: controls, quote and backslash escaped; others raw, and above
                     ASCII also as \u */
    SPELL_UNIQUE, /* the same with one spelling each */
};
/* Puts an automaton between `from` and `to`. With a memo its states' masks are remembered. Returns the first
 * of its states, which follow each other in the order of the automaton's, or `to`. */
uint32_t builder_dfa(struct builder *b, const struct dfa *a, enum builder_spelling spell, uint32_t from,
                     uint32_t to, bool memo);

/* Checks that all is productive and nothing is left-recursive, drops what is not needed and sets *out.
 * `start` is the first state. -EDOM: the language is empty; -ENOTSUP: left recursion. *err gets the words.
 */
int builder_finish(struct builder *b, uint32_t start, struct grammar **out, struct error *err);
/* Returns the start of a rule that reads a JSON string of min to max characters, quotes included. All such
 * strings share memo keys: their masks are the same but for the count. */
uint32_t builder_string(struct builder *b, uint32_t min, uint32_t max);
