/* jinja.h - chat templates: an interpreter of the part of Jinja that model files use.
 *
 * The language is Jinja 3.1 as the transformers library configures it: trim_blocks and lstrip_blocks, loop
 * controls,
 * {% generation %} without effect, tojson as json.dumps(ensure_ascii=False), immutable lists and dicts. A
 * construct that is not supported is an error of jinja_open(), with its line and name. upper, lower, title
 * and capitalize change ASCII letters only. Integers have 64 bits, where Python's have any length: a result
 * that needs more is an error
 * (-EBADMSG).
 *
 * A template is foreign code: jinja_limits bounds its time, output and memory, and JINJA_MAX_NESTING bounds
 * its nesting when it is opened. Thread: one thread opens and closes; between the two any threads may render
 * at once, each with an arena of its own, as an open template does not change. Memory: struct jinja owns a
 * copy of the source; a render takes all its memory from the caller's arena. */
#pragma once
#include "base/arena.h"
#include "base/error.h"
#include "jinja_value.h"

#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#define JINJA_MAX_SOURCE     (1u << 20) /* bytes of a template */
#define JINJA_MAX_NESTING    100        /* levels of nested expressions and blocks */
#define JINJA_MAX_OPERATIONS 100000
#define JINJA_MAX_MEMORY     ((size_t)64 << 20)
#define JINJA_MAX_OUTPUT     ((size_t)4 << 20)

struct jinja; /* opaque: the fields are in jinja_node.h */

/* Parses a template and copies its source. -EBADMSG: a syntax error; -ENOTSUP: a construct that is not
 * supported; -ENOMEM. The message begins with the line. */
int jinja_open(struct jinja **out, const char *source, size_t len, struct error *err);
void jinja_close(struct jinja *t); /* NULL is fine */

/* Tells whether the template reads the variable of this name. */
bool jinja_reads(const struct jinja *t, const char *name);

struct jinja_limits { /* a limit of 0 is the JINJA_MAX_ above */
    /* A statement, an iteration, a call, a filter or a test is one; other expressions an eighth of one, and
     * so are 512 bytes of text that are copied or compared, 64 that are searched for another text, 16 that
     * are walked character by character, 8 entries of a dict or 64 names of variables that are passed by. A
     * number costs by its digits; a float that is printed in full one for each length that has to be tried.
     * The weights follow the time taken: in any template JINJA_MAX_OPERATIONS take 8 to 60 ms on a
     * core of a Zen 4. */
    unsigned operations;
    size_t output, memory; /* bytes */
};

struct jinja_input {
    const struct jinja_dict *variables; /* by name: messages, tools, add_generation_prompt, ... */
    const struct tm *now;               /* for strftime_now(); NULL: the function is undefined */
    struct jinja_limits limits;
};

/* Renders into *out, whose bytes and marks (see jinja_value.h) lie in the arena. -EINVAL: the template called
 * raise_exception(), whose argument is the message; -EBADMSG: an operation that its values do not allow, with
 * the line; -E2BIG, -ELOOP, -ENOSPC: it exceeds the limit of output, of operations or nesting, of memory;
 * -ENOMEM. */
int jinja_render(const struct jinja *t, const struct jinja_input *in, struct arena *arena,
                 struct jinja_text *out, struct error *err);
