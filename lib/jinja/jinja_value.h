/* jinja_value.h - the values of chat templates: Python's kinds, and texts that know the origin of each byte.
 *
 * A byte is *plain* when a user wrote it (a message's content, a tool's description). No plain byte may
 * become part of a control token. Slicing and joining keep each byte's mark, so a user's text stays marked
 * through any template. Thread: one thread builds a value; a finished value does not change, except a
 * namespace, and any thread may read it. Memory: a value lies in the arena it was built in, or points to the
 * caller's bytes (jinja_string()). */
#pragma once
#include "base/arena.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum jinja_kind {
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_FLOAT,
    JINJA_TEXT,
    JINJA_LIST,
    JINJA_TUPLE,
    JINJA_DICT,
    /* Only templates make these. */
    JINJA_NAMESPACE,
    JINJA_LOOP,
    JINJA_MACRO,
    JINJA_FUNCTION,
    JINJA_METHOD,
};

struct jinja_text { /* not NUL-terminated; UTF-8, though a model file may have other bytes */
    const char *s;
    size_t len;
    const unsigned char *plain; /* 1 or 0 per byte; NULL: no byte is plain; jinja_all_plain: every byte is */
};
extern const unsigned char jinja_all_plain[1];

struct jinja_list;
struct jinja_dict;

struct jinja_value {
    enum jinja_kind kind;
    union {
        bool b;
        int64_t i;
        double f;
        struct jinja_text text; /* for JINJA_UNDEFINED the name without a value */
        struct jinja_list *list;
        struct jinja_dict *dict; /* of a dict or a namespace */
        const void *object;      /* a loop, macro, function or method of the interpreter */
    };
};

struct jinja_list {
    size_t n, room;
    struct jinja_value *items;
    bool generated; /* by map, select or the like: as a generator it is true when empty, and no sequence */
};

struct jinja_pair {
    struct jinja_value key, value;
};

struct jinja_dict { /* in the order of insertion */
    size_t n, room;
    struct jinja_pair *pairs;
};

struct jinja_value jinja_none(void);
struct jinja_value jinja_bool(bool b);
struct jinja_value jinja_int(int64_t i);
struct jinja_value jinja_float(double f);
/* Does not copy the bytes. `plain`: a user wrote them. */
struct jinja_value jinja_string(const char *s, size_t len, bool plain);
struct jinja_value jinja_word(const char *s); /* NUL-terminated, not plain */

/* Return an empty list or dict, or NULL when memory has run out. */
struct jinja_list *jinja_list_open(struct arena *a);
struct jinja_dict *jinja_dict_open(struct arena *a);
struct jinja_value jinja_list_value(struct jinja_list *list);
struct jinja_value jinja_dict_value(struct jinja_dict *dict);

/* Return 0 or -ENOMEM. jinja_dict_add() does not search for the key: the caller knows that it is new. */
int jinja_list_add(struct arena *a, struct jinja_list *list, struct jinja_value item);
int jinja_dict_add(struct arena *a, struct jinja_dict *dict, struct jinja_value key,
                   struct jinja_value value);
/* Returns the value of a text key, or NULL. */
struct jinja_value *jinja_dict_find(const struct jinja_dict *dict, const char *key, size_t len);

/* Tells whether Python takes the value for true. */
bool jinja_truth(const struct jinja_value *v);
const char *jinja_kind_name(const struct jinja_value *v); /* "a string", "an undefined value" */

/* --- texts --- */

struct jinja_text jinja_text_of(const char *s, size_t len);                    /* no byte is plain */
struct jinja_text jinja_text_cut(struct jinja_text t, size_t from, size_t to); /* bytes [from, to) */
bool jinja_text_is(struct jinja_text t, const char *word);
bool jinja_text_equal(struct jinja_text a, struct jinja_text b);
/* Tells whether c is one of the letters. strchr() would also find the NUL at their end. */
bool jinja_among(char c, const char *letters);
/* Returns the bytes (1..4) of the character at s; a byte that begins none is a character. 0 for n == 0. */
size_t jinja_char(const char *s, size_t n);
/* Return the bytes of one character of Unicode's white space at s, or before s + n; 0 without one. */
size_t jinja_space(const char *s, size_t n);
size_t jinja_space_before(const char *s, size_t n);
struct jinja_text jinja_strip(struct jinja_text t, bool left, bool right);
size_t jinja_text_length(struct jinja_text t); /* characters */
/* Returns the byte at which character i begins; t.len when there are fewer characters. */
size_t jinja_text_at(struct jinja_text t, size_t i);
