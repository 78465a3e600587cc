/* toolcall_writing.h - how a format's models write calls and reasoning: for those that make a model write one
 * (daemon/schema/tool_grammar.h). Sources: the chat templates of the models themselves. Thread: any; data. */
#pragma once
#include "toolcall.h"

/* In `call` and `param` these bytes stand for what differs from call to call. */
#define WRITING_NAME '\1' /* the function's name; in `param` its parameter's */
#define WRITING_VALUE                                                                                        \
    '\2' /* the arguments as JSON, or all `param`s; in `param` its value: a string as it is,                 \
            else JSON */
#define WRITING_ID   '\3' /* nine letters and digits */
#define WRITING_TEXT '\4' /* true for a string, else false */

struct toolcall_writing {
    const char *format;
    const char *begin, *call, *end; /* begin call (between call)* end */
    const char *between;            /* NULL: one call is all that the format has */
    const char *param;              /* of one argument; NULL: arguments are JSON */
};

/* NULL: the format has no calls, or none that are described. */
const struct toolcall_writing *toolcall_writing_of(const struct toolcall_format *f);

/* A mark by which the scanner knows a call, number i; NULL beyond the last. Harmony's is TOOLCALL_RECIPIENT,
 * which counts in headers alone. */
#define TOOLCALL_RECIPIENT "to="
const char *toolcall_call_mark(const struct toolcall_format *f, size_t i);
/* True if such a mark counts inside of a reasoning, which it ends. */
bool toolcall_call_ends_reasoning(const struct toolcall_format *f);
/* True if a call is a whole text that begins as a JSON object. */
bool toolcall_is_bare(const struct toolcall_format *f);

/* By what the scanner knows the end of a text in tags, number i: `before` and `mark`, and behind blanks
 * `then`. False beyond the last, and where arguments are JSON. */
struct toolcall_end_mark {
    const char *before, *mark; /* `before` may be empty */
    const char *then;          /* NULL: anything */
};
bool toolcall_value_end(const struct toolcall_format *f, size_t i, struct toolcall_end_mark *out);

struct toolcall_reasoning {
    const char *open, *close; /* NULL: the format has none */
};
/* A mark that ends a reasoning or begins a call in it, number i; NULL beyond the last. */
const char *toolcall_mark_in_reasoning(const struct toolcall_format *f, size_t i);
/* Returns the header that a format writes between its reasoning and its answer, or "". */
const char *toolcall_answer_header(const struct toolcall_format *f);
struct toolcall_reasoning toolcall_reasoning_of(const struct toolcall_format *f);
/* Tells if a prompt of n bytes ends with the mark that opens a reasoning. */
bool toolcall_reasoning_is_open(const struct toolcall_format *f, const char *prompt, size_t n);
