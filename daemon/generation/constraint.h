/* constraint.h - texts that must stay in a language: the fields that ask for one, in the words of each
 * dialect, and the grammars that were compiled for a model, kept by content. Compiling happens on the pool: a
 * hostile schema costs its own request only. Fields: response_format (text, json_object, json_schema),
 * json_schema, grammar (GBNF), regex, guided_json, guided_regex, guided_choice, guided_grammar,
 * structured_outputs {json, regex, choice, grammar, json_object}; and bad_words, which cannot be completed. A
 * request may have one of them; a tool_choice that forces a call comes before it. Beside any it may have
 * banned_strings, which are withdrawn (sampler/banned.h). Thread: constraints_open and
 * constraints_close from the loader's, with no request left; the others from any. Memory: the cache holds at
 * most CONSTRAINT_CACHE grammars and a number of bytes of them and their texts; the least recently used goes
 * first, and a grammar larger than 1/CONSTRAINT_SHARE of the bytes is not kept.
 */
#pragma once
#include "base/error.h"
#include "json/json_fields.h"

#define CONSTRAINT_CACHE 32
#define CONSTRAINT_SHARE 8

struct constraints; /* of one model */
struct engine_request;
struct generation;
struct tokenizer;

enum constraint_kind {
    CONSTRAINT_NONE,
    CONSTRAINT_SCHEMA,
    CONSTRAINT_OBJECT,
    CONSTRAINT_REGEX,
    CONSTRAINT_GBNF,
    CONSTRAINT_CHOICE,
    CONSTRAINT_WITHOUT, /* texts that cannot be completed */
    CONSTRAINT_CALLS,   /* the calls that tool_choice wants */
};

struct constraint { /* of a request's body, while it is read */
    enum constraint_kind kind;
    const char *field;   /* the field of the body, for errors */
    const json_t *value; /* the body's */
};

struct banned_field { /* strings that are withdrawn; zeros: none */
    const char *field;
    const json_t *value;
};

extern const struct field constraint_fields[];

/* `n_rows`: of the embedding; tokens without a row are never allowed. `room`: the bytes of the cache.
 * -ENOMEM. */
int constraints_open(struct constraints **out, const struct tokenizer *t, uint32_t n_rows, size_t room,
                     struct error *err);
void constraints_close(struct constraints *c); /* NULL is fine */

/* Finds or compiles the grammar that the request asks for. 0, or -1 with *err, or with g->exceeded: it must
 * be compiled on the pool. */
int constraint_prepare(struct generation *g, struct api_error *err);
/* Bytes that the request's grammar, masks and matchers hold and that are not counted in reply_bytes yet: what
 * another request counts already is shared. Loop. */
size_t constraint_uncounted(const struct generation *g);
/* Counts all of them there, from now to constraint_leave(); called again it counts what they have grown by.
 * Returns whether they have. Loop. */
bool constraint_count(struct generation *g);
/* Bytes that are counted there for its grammar, an equal part each where requests share it. Loop. */
size_t constraint_part(const struct generation *g);
/* Gives a choice its matcher, which constraint_leave() frees, and its banned strings. 0 or -1 with *err. */
int constraint_begin(struct generation *g, struct engine_request *e, struct api_error *err);
void constraint_leave(struct generation *g);
