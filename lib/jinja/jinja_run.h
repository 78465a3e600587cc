/* jinja_run.h - the state of one render: its limits, the work left, its names and its output. Private to
 * lib/jinja*.c. A function that returns bool returns false on failure, with r->rc and the message set.
 * Thread: a render belongs to one thread. Memory: all of it comes from the caller's arena and stays until the
 * caller closes that. */
#pragma once
#include "jinja_builtin.h"

#define JINJA_MAX_FRAMES 500 /* of evaluation, macros included, in one another */
#define JINJA_NAMES      64  /* names that are passed by for one of work, in looking for another */

/* The units of cost: an operation is 8 of work, and one of work is what 512 bytes cost that are copied or
 * compared. Measured on a Zen 4, one of work takes 10 to 60 ns for all kinds of work, so the limit of
 * operations bounds the time of a render. */
#define JINJA_OPERATION 8
#define JINJA_BYTES     512
#define JINJA_SEARCH    8   /* cost of a searched byte, in copied bytes */
#define JINJA_WALK      32  /* the same, of one that is walked character by character */
#define JINJA_PIECE     128 /* bytes that the call for a piece of text counts as, beside the text's own */

struct jinja_out { /* a text that grows */
    char *s;
    unsigned char *plain; /* marks; NULL as long as no byte is plain */
    size_t len, room, max;
};

struct jinja_variable {
    uint32_t symbol;
    struct jinja_value value;
    struct jinja_variable *next;
};

struct jinja_frame { /* a scope's variables; other names are looked up in `outer` */
    struct jinja_frame *outer;
    struct jinja_variable *variables;
};

struct jinja_run {
    const struct jinja *t;
    struct arena *arena;
    size_t arena_start; /* the arena's bytes before the render */
    struct jinja_limits limits;
    uint64_t work_left; /* in bytes that are copied: JINJA_BYTES for one of work */
    unsigned depth;
    struct jinja_out *out;
    struct jinja_frame *frame;
    const struct jinja_value *block; /* value of NODE_BLOCK */
    const struct tm *now;
    uint32_t line;
    struct error *err;
    int rc;
};

struct jinja_loop { /* object of JINJA_LOOP */
    const struct jinja_list *items;
    size_t i;
    unsigned depth;
};

struct jinja_macro { /* object of JINJA_MACRO */
    const struct jinja_node *node;
    struct jinja_frame *frame; /* the scope of its definition */
};

struct jinja_method { /* object of JINJA_METHOD */
    struct jinja_value self;
    const struct jinja_builtin *builtin;
};

/* --- failing and counting --- */

/* Sets the error: the line and the message. Returns false. */
bool jinja_fail(struct jinja_run *r, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Sets the error: the message alone. Returns false. */
bool jinja_fail_with(struct jinja_run *r, int code, struct jinja_text words);
bool jinja_work(struct jinja_run *r, size_t n);
/* For n bytes that are copied or compared; nothing is lost by rounding. */
bool jinja_work_bytes(struct jinja_run *r, size_t n);
/* For n characters that a number was printed as. */
bool jinja_work_digits(struct jinja_run *r, size_t n);
/* For looking a key up: all keys of a text's length may have to be compared to their last byte. */
bool jinja_work_keys(struct jinja_run *r, const struct jinja_dict *d, const struct jinja_value *key);
bool jinja_deeper(struct jinja_run *r); /* then r->depth-- */
void *jinja_alloc(struct jinja_run *r, size_t n);
bool jinja_push(struct jinja_run *r, struct jinja_list *list, struct jinja_value item);
/* Sets the value of a key, which is added when new. */
bool jinja_put_pair(struct jinja_run *r, struct jinja_dict *dict, struct jinja_value key,
                    struct jinja_value value);
bool jinja_open_list(struct jinja_run *r, struct jinja_value *out);
bool jinja_open_dict(struct jinja_run *r, struct jinja_value *out);

/* --- names --- */

bool jinja_open_frame(struct jinja_run *r, struct jinja_frame *outer, struct jinja_frame **out);
bool jinja_assign(struct jinja_run *r, struct jinja_frame *f, uint32_t symbol, struct jinja_value value);
bool jinja_look_up(struct jinja_run *r, uint32_t symbol, struct jinja_value *out);

/* --- texts --- */

bool jinja_put(struct jinja_run *r, struct jinja_out *out, struct jinja_text text);
bool jinja_put_bytes(struct jinja_run *r, struct jinja_out *out, const char *s, size_t n, bool plain);
bool jinja_is_plain(struct jinja_text t, size_t i);
struct jinja_value jinja_written(const struct jinja_out *out);
/* Appends the value to out as str() writes it: nothing for an undefined value. */
bool jinja_print(struct jinja_run *r, struct jinja_out *out, const struct jinja_value *v);
bool jinja_to_text(struct jinja_run *r, const struct jinja_value *v, struct jinja_text *out);
struct jinja_json_style {
    int64_t indent;              /* spaces per level; -1: all on one line */
    struct jinja_text item, key; /* separators */
    bool ascii, sorted;
};
bool jinja_json(struct jinja_run *r, struct jinja_out *out, const struct jinja_value *v,
                const struct jinja_json_style *style);

/* --- values --- */

/* Writes *out on failure, too. */
bool jinja_equal(struct jinja_run *r, const struct jinja_value *a, const struct jinja_value *b, bool *out);
/* Sets *out to <0, 0 or >0 in Python's order; fails for values without an order. */
bool jinja_order(struct jinja_run *r, const struct jinja_value *a, const struct jinja_value *b, int *out);
bool jinja_contains(struct jinja_run *r, const struct jinja_value *in, const struct jinja_value *what,
                    bool *out);
/* Sets *out to the items of a loop over v: a list's items, a dict's keys, a text's characters. */
bool jinja_items(struct jinja_run *r, const struct jinja_value *v, struct jinja_list **out);
bool jinja_is_number(const struct jinja_value *v);
double jinja_number(const struct jinja_value *v);
/* Takes a bool or an integer. */
int64_t jinja_integer(const struct jinja_value *v);
bool jinja_attribute(struct jinja_run *r, const struct jinja_value *v, struct jinja_text name,
                     struct jinja_value *out);
bool jinja_item(struct jinja_run *r, const struct jinja_value *v, const struct jinja_value *key,
                struct jinja_value *out);
/* Follows a path such as "a.b.0", or an index, from v. */
bool jinja_path(struct jinja_run *r, const struct jinja_value *v, const struct jinja_value *path,
                struct jinja_value *out);
/* Sets the error for an integer that does not fit into 64 bits. Returns false. */
bool jinja_too_large(struct jinja_run *r);
/* Rounds f towards zero; fails when 64 bits do not hold the result, and for NaN. */
bool jinja_truncate(struct jinja_run *r, double f, int64_t *out);
/* Rounds i to a multiple of 10 to the power of `zeros` (1 to 15), halves to the even multiple. */
bool jinja_round_integer(struct jinja_run *r, int64_t i, unsigned zeros, int64_t *out);
/* Reads argument i as the most replacements or cuts that are allowed; a negative one allows any number,
 * SIZE_MAX. *out stays when the argument is not given. */
bool jinja_limit_argument(struct jinja_run *r, const struct jinja_args *args, int i, size_t *out);
struct jinja_range { /* from, from + step, ... as far as they lie before `to` */
    int64_t from, to, step;
};
/* Writes the next one to *i; false behind the last. Any bounds and any step but 0 are safe. */
bool jinja_range_next(struct jinja_range *range, int64_t *i);
bool jinja_binary(struct jinja_run *r, int op, const struct jinja_value *a, const struct jinja_value *b,
                  struct jinja_value *out);
bool jinja_compare(struct jinja_run *r, int op, const struct jinja_value *a, const struct jinja_value *b,
                   bool *out);
/* Format a text with "%s" or with "{}" from positional and named arguments. jinja_percent() takes NULL for
 * either. */
bool jinja_percent(struct jinja_run *r, struct jinja_text format, const struct jinja_list *args,
                   const struct jinja_dict *named, struct jinja_value *out);
bool jinja_braces(struct jinja_run *r, struct jinja_text format, const struct jinja_list *args,
                  const struct jinja_dict *named, struct jinja_value *out);
/* Sets *out to a list of (key, value). */
bool jinja_pairs(struct jinja_run *r, const struct jinja_dict *d, struct jinja_value *out);
/* Changes the case of ASCII letters. */
enum jinja_case { JINJA_LOWER, JINJA_UPPER, JINJA_CAPITAL, JINJA_TITLE, JINJA_TITLE_WORDS };
bool jinja_recase(struct jinja_run *r, struct jinja_text text, enum jinja_case how, struct jinja_value *out);
/* Returns the end of the line that begins at `from`, and sets *next to the beginning of the next line, behind
 * the line end. Without a line end both are t.len. */
size_t jinja_line(struct jinja_text t, size_t from, size_t *next);
/* Strips white space, or the characters of `chars`, from the ends. */
bool jinja_trim(struct jinja_run *r, struct jinja_text text, const struct jinja_value *chars, bool left,
                bool right, struct jinja_value *out);
bool jinja_replace(struct jinja_run *r, struct jinja_text text, struct jinja_text old, struct jinja_text by,
                   size_t max, struct jinja_value *out);

/* --- running --- */

bool jinja_eval(struct jinja_run *r, const struct jinja_node *n, struct jinja_value *out);
/* Evaluates the arguments of a call into two lists, which the caller has zeroed. */
bool jinja_eval_arguments(struct jinja_run *r, const struct jinja_node *list, struct jinja_list *args,
                          struct jinja_dict *named);
bool jinja_call_macro(struct jinja_run *r, const struct jinja_macro *m, const struct jinja_list *args,
                      const struct jinja_dict *named, struct jinja_value *out);
/* Calls a builtin with positional and named arguments. */
bool jinja_call_builtin(struct jinja_run *r, const struct jinja_builtin *b, const struct jinja_value *self,
                        const struct jinja_list *args, const struct jinja_dict *named,
                        struct jinja_value *out);
