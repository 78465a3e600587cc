/* jinja.h - chat templates: a small interpreter of Jinja, as model files use it.
 *
 * The language is Jinja 3.1's as the transformers library sets it up: trim_blocks and lstrip_blocks on, loop
 * controls, {% generation %} without effect, tojson as Python's json.dumps(ensure_ascii=False), objects that
 * cannot be changed. A construct that is not supported is an error when the template is opened, with its line
 * and name. upper, lower, title and capitalize change ASCII letters only. Integers have 64 bits,
 * where Python's have any length: a result that needs more is an error (-EBADMSG).
 *
 * A template is foreign code: what it may do is bounded by jinja_limits, and how deep it nests by
 * JINJA_MAX_NESTING when it is opened. Thread: immutable after open; any thread may render. Memory: a render
 * takes everything from the caller's arena. */
#pragma once
#include "base/arena.h"
#include "base/error.h"
#include "jinja_value.h"

#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#define JINJA_MAX_SOURCE     (1u << 20) /* bytes of a template */
#define JINJA_MAX_NESTING    100        /* of expressions and blocks in one another */
#define JINJA_MAX_OPERATIONS 100000
#define JINJA_MAX_MEMORY     ((size_t)64 << 20)
#define JINJA_MAX_OUTPUT     ((size_t)4 << 20)

struct jinja; /* opaque: the fields are in jinja_node.h */

/* -EBADMSG: not a template; -ENOTSUP: a construct that is not supported; -ENOMEM. The words begin with the
 * line. The source is copied. */
int jinja_open(struct jinja **out, const char *source, size_t len, struct error *err);
void jinja_close(struct jinja *t); /* NULL is fine */

/* Whether the template has a use for the variable of this name. */
bool jinja_reads(const struct jinja *t, const char *name);

struct jinja_limits { /* 0: the JINJA_MAX_ above */
    /* A statement, an iteration, a call, a filter or a test is one; other expressions an eighth of one, and
     * so are 512 bytes of text that are copied or compared, 64 that are searched for another text, 16 that
     * are walked character by character, 8 entries of a dict or 64 names of variables that are passed by. A
     * number costs by its digits; a float that is printed in full one for each length that has to be tried.
     * The weights are those of the time: whatever a template does, JINJA_MAX_OPERATIONS take 8 to 60 ms on a
     * core of a Zen 5. */
    unsigned operations;
    size_t output, memory; /* bytes */
};

struct jinja_input {
    const struct jinja_dict *variables; /* by name: messages, tools, add_generation_prompt, ... */
    const struct tm *now;               /* of strftime_now(); NULL: the function is undefined */
    struct jinja_limits limits;
};

/* Renders into *out, whose bytes lie in the arena; plain marks as jinja_value.h has them.
 * -EINVAL: the template said raise_exception(), in its words; -EBADMSG: it does what its values do not allow,
 * with its line; -E2BIG: more output; -ELOOP: more operations or nesting; -ENOSPC: more memory than allowed;
 * -ENOMEM. */
int jinja_render(const struct jinja *t, const struct jinja_input *in, struct arena *arena,
                 struct jinja_text *out, struct error *err);
