/* toolcall.h - tool calls and reasoning out of the text that a model writes, while it writes.
 * A format says how a family of models marks them. The scanner takes bytes in pieces of any size and emits
 * events; however the bytes were cut, the joined events are the same. It never fails on what a model writes:
 * what does not parse as a call is text. Text is held back only as long as it can become a delimiter (with up
 * to two newlines before it), a call until its name is known. Arguments are emitted as JSON while they come,
 * repaired where the model erred (json_repair.h).
 *
 * Thread: one at a time uses a scanner; formats are immutable. Memory: the arena's, about twice what is held.
 */
#pragma once
#include "base/arena.h"

#include <stdbool.h>
#include <stddef.h>

/* --- what the model may call --- */

struct toolcall_param {
    const char *name;
    bool is_text; /* its schema allows nothing but strings */
};

struct toolcall_tool {
    const char *name;
    const struct toolcall_param *params;
    size_t n_params;
};

struct toolcall_tools {
    const struct toolcall_tool *list;
    size_t n;
};

/* --- formats --- */

struct toolcall_format; /* opaque: toolcall_formats.c */

size_t toolcall_n_formats(void);
const struct toolcall_format *toolcall_format_at(size_t i);
const struct toolcall_format *toolcall_format_find(const char *name); /* NULL: there is none */
const char *toolcall_format_name(const struct toolcall_format *f);
/* The format whose marks a chat template of n bytes writes: "none" where it writes none that are known. */
const struct toolcall_format *toolcall_format_of_template(const char *source, size_t n);
/* The format's marks, NULL after the last: special tokens among them must be rendered as text. */
const char *toolcall_format_mark(const struct toolcall_format *f, size_t i);
bool toolcall_format_reasons(const struct toolcall_format *f);
bool toolcall_format_calls(const struct toolcall_format *f);

/* --- the scanner --- */

enum toolcall_kind {
    TOOLCALL_TEXT,
    TOOLCALL_REASONING,
    TOOLCALL_BEGIN,     /* s: the function's name, whole */
    TOOLCALL_ARGUMENTS, /* s: the next piece of its arguments, JSON */
    TOOLCALL_ID,        /* s: the id that the model wrote for the call that began last */
    TOOLCALL_END,       /* the call is complete */
};

struct toolcall_event {
    enum toolcall_kind kind;
    const char *s; /* n bytes, well-formed UTF-8; valid during the call */
    size_t n;
};

struct toolcall_scanner;

struct toolcall_options {
    const struct toolcall_format *format;
    const struct toolcall_tools *tools; /* must outlive the scanner; NULL: none */
    bool no_calls;                      /* none were offered: what looks like a call is text */
    bool verbatim;      /* behind the reasoning that begins it all is text, marks too: a schema's */
    const char *prompt; /* the end of the prompt, which may have opened the reasoning; or NULL */
    size_t prompt_len;
    void (*emit)(void *user, const struct toolcall_event *event);
    void *user;
};

/* NULL: out of memory. */
struct toolcall_scanner *toolcall_open(struct arena *a, const struct toolcall_options *options);
/* -ENOMEM: out of memory; nothing more is emitted. */
int toolcall_feed(struct toolcall_scanner *s, const char *bytes, size_t n);
/* No more bytes come. `cut`: the model was stopped in the middle, so that nothing is completed for it. */
int toolcall_end(struct toolcall_scanner *s, bool cut);
