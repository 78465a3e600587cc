/* jinja_value.h - what a chat template computes with: values as Python has them, texts that know where each
 * byte came from.
 *
 * A byte is *plain* when a user wrote it (a message's content, a tool's description), and no plain byte may
 * become part of a control token. Cutting and joining keep each byte's mark, so what a template makes of a
 * user's text stays the user's. Values are immutable once built, except namespaces, which only templates
 * make. Thread: any, for values nobody builds any more. Memory: of the arena they were built in. */
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
    /* Made by templates alone. */
    JINJA_NAMESPACE,
    JINJA_LOOP,
    JINJA_MACRO,
    JINJA_FUNCTION,
    JINJA_METHOD,
};

struct jinja_text { /* not NUL-terminated; UTF-8, or bytes that a file claims to be UTF-8 */
    const char *s;
    size_t len;
    const unsigned char *plain; /* 1 or 0 per byte; NULL: none is plain; jinja_all_plain: all are */
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
        struct jinja_text text; /* of JINJA_UNDEFINED: the name that had no value */
        struct jinja_list *list;
        struct jinja_dict *dict; /* also of a namespace */
        const void *object;      /* loop, macro, function, method: the interpreter's */
    };
};

struct jinja_list {
    size_t n, room;
    struct jinja_value *items;
    bool generated; /* by map, select and their kin: true even when it is empty, and no sequence */
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
/* The bytes are not copied. `plain`: a user wrote them. */
struct jinja_value jinja_string(const char *s, size_t len, bool plain);
struct jinja_value jinja_word(const char *s); /* NUL-terminated, not plain */

/* Empty ones; NULL when memory has run out. */
struct jinja_list *jinja_list_open(struct arena *a);
struct jinja_dict *jinja_dict_open(struct arena *a);
struct jinja_value jinja_list_value(struct jinja_list *list);
struct jinja_value jinja_dict_value(struct jinja_dict *dict);

/* 0 or -ENOMEM. jinja_dict_add() does not look for the key: the caller knows that it is new. */
int jinja_list_add(struct arena *a, struct jinja_list *list, struct jinja_value item);
int jinja_dict_add(struct arena *a, struct jinja_dict *dict, struct jinja_value key,
                   struct jinja_value value);
/* The value of a text key, or NULL. */
struct jinja_value *jinja_dict_find(const struct jinja_dict *dict, const char *key, size_t len);

/* As Python takes it for true. */
bool jinja_truth(const struct jinja_value *v);
const char *jinja_kind_name(const struct jinja_value *v); /* "a string", "undefined" */

/* --- texts --- */

struct jinja_text jinja_text_of(const char *s, size_t len);
struct jinja_text jinja_text_cut(struct jinja_text t, size_t from, size_t to); /* bytes */
bool jinja_text_is(struct jinja_text t, const char *word);
bool jinja_text_equal(struct jinja_text a, struct jinja_text b);
/* Whether c is one of these letters; strchr() would find the NUL that ends them as well. */
bool jinja_among(char c, const char *letters);
/* Bytes of the character at s (1..4); a byte that begins none counts as one. 0 only when n is 0. */
size_t jinja_char(const char *s, size_t n);
/* Bytes of the white space, as Unicode has it, at s or before its end; 0 when there is none. */
size_t jinja_space(const char *s, size_t n);
size_t jinja_space_before(const char *s, size_t n);
struct jinja_text jinja_strip(struct jinja_text t, bool left, bool right);
/* Characters. */
size_t jinja_text_length(struct jinja_text t);
/* The byte where character i begins; t.len when there are fewer. */
size_t jinja_text_at(struct jinja_text t, size_t i);
