/* schema_private.h - a schema's normal form. A value set is a union of shapes; a shape is what one type may
 * be. Sets are closed under and, or, not, so every in-place keyword is algebra on sets; the members and items
 * of a shape are nodes: conjunctions of schemas, positive or negated, which become rules of the grammar. All
 * lies in the builder's arena. Thread: that of schema_compile(). */
#pragma once
#include "grammar/grammar_builder.h"
#include "schema.h"

#define SCHEMA_MAX_SHAPES 200 /* of one set */
#define SCHEMA_MAX_NODES  20000
#define SCHEMA_TRUE       0 /* the node that allows everything */
#define SCHEMA_FALSE      1

enum kind { KIND_NULL, KIND_FALSE, KIND_TRUE, KIND_NUMBER, KIND_STRING, KIND_ARRAY, KIND_OBJECT, N_KINDS };

struct atom {
    json_t *schema;
    bool negated;
};
struct member { /* a named property */
    const char *key;
    uint32_t node;
    bool required, evaluated;
};
struct key_class { /* keys that no member names */
    const struct dfa *keys;
    uint32_t node;
    bool evaluated;
};
struct existence { /* some member has a key of these and a value of this node */
    const struct dfa *keys;
    uint32_t node;
};
struct item {
    uint32_t node;
    bool evaluated;
};
struct contains {
    uint32_t node, from, min, max;
};
struct member_index { /* members by key: open addressing */
    uint32_t *slots;  /* their numbers from 1, 0: empty */
    uint32_t n, mask; /* the first n members are in it */
};
struct shape {
    enum kind kind;
    const struct dfa *text;     /* of a number or a string's characters; NULL: all */
    uint32_t min, max;          /* characters, items, members */
    struct member *members;     /* [member_room] */
    struct member_index by_key; /* of this shape alone: a copy makes its own */
    struct key_class *classes;  /* disjoint; together all keys */
    struct existence *exist;
    struct item *prefix;
    struct item rest;
    struct contains *contains;
    uint32_t n_members, member_room, n_classes, n_exist, n_prefix, n_contains;
    bool unique;
};
struct set {
    struct shape **s;
    uint32_t n;
    bool failed;
};
struct node {
    struct atom *atoms;
    uint32_t n_atoms;
    uint32_t start; /* of its rule, or UINT32_MAX */
    struct set set;
    bool known;
    uint32_t negation; /* the node of what it does not allow, or UINT32_MAX */
};
struct memo_set {
    json_t *schema;
    struct set set;
    uint8_t state; /* 0 new, 1 being computed, 2 known */
};
struct resource { /* a schema with its own base URI */
    json_t *root;
    const char *uri;
};
struct owner { /* the resource that an object of the document belongs to */
    const json_t *object;
    uint32_t resource;
};

struct anchor { /* an object that a reference can name */
    const char *name;
    uint32_t resource; /* it lies in, or ANY_RESOURCE: of a dynamic anchor */
    json_t *object;
    uint32_t n; /* objects with this dynamic anchor */
};
#define ANY_RESOURCE UINT32_MAX

struct text_rule { /* the rule for the strings of one language */
    uint64_t hash;
    const struct dfa *text;
    uint32_t rule, next; /* the next one's number from 1 with the same slot, 0: the last */
};
#define TEXT_SLOTS 1024

struct compiler {
    struct builder b;
    json_t *root;
    json_t *made;  /* schemas that the compiler wrote itself */
    uint64_t seed; /* of hashes: a client chooses keys and the sizes of what is allocated */
    struct node *nodes;
    uint32_t n_nodes, node_room;
    uint32_t *node_slots, node_mask;
    struct memo_set *memos[2]; /* positive, negated: open addressing */
    uint32_t n_memos[2], memo_mask[2];
    struct resource *resources;
    uint32_t n_resources, resource_room;
    struct owner *owners;
    uint32_t owner_mask;
    struct anchor *anchors; /* open addressing; made when the first is asked for */
    uint32_t anchor_mask;
    const struct dfa *all, *numbers, *decimals, *integers;
    uint32_t any_number, any_integer;   /* their rules; 0: not made yet */
    const struct dfa *written, *digits; /* numbers and integers as a model may write them */
    bool old_refs;                      /* drafts 4 to 7: $ref hides its siblings */
    bool assert_formats;
    bool exact; /* unevaluated* is used: alternatives are told apart */
    unsigned depth;
    json_t *where;                /* the schema that is being read */
    bool named;                   /* the first error names a keyword */
    uint32_t any, space, strings; /* rules; strings: the unbounded one */
    uint32_t *queue, n_queue, queue_room;
    struct text_rule *texts;
    uint32_t n_texts, text_room;
    uint32_t *text_slots; /* [TEXT_SLOTS]: numbers from 1 */
};

/* Prepares a compiler with a root and an open builder. False: the builder says why. */
bool schema_begin(struct compiler *c);
void *schema_take(struct compiler *c, size_t n, size_t size);
/* Refuses by keyword; the path is that of `schema`, an object of the document. Returns `code`. */
int schema_refuse(struct compiler *c, int code, const json_t *schema, const char *keyword, const char *why);
int schema_exhausted(struct compiler *c, const json_t *schema, const char *keyword);

/* schema_set.c */
struct set set_none(void);
struct set set_failed(void);
struct set set_any(struct compiler *c);
struct set set_of(struct compiler *c, enum kind kind);
struct set set_one(struct compiler *c, struct shape *s);
struct set set_and(struct compiler *c, struct set a, struct set b);
struct set set_or(struct compiler *c, struct set a, struct set b);
struct set set_not(struct compiler *c, struct set a);
struct shape *shape_new(struct compiler *c, enum kind kind);
struct shape *shape_copy(struct compiler *c, const struct shape *s);
/* The member's index, or -1. */
int64_t shape_find(struct compiler *c, struct shape *s, const char *key);
/* The member's index, made from its class when it is not there; -1 on failure. */
int64_t shape_member(struct compiler *c, struct shape *s, const char *key);
/* Applies a node to every key of a class language that is not evaluated, or to all when `only_rest` is false.
 */
bool shape_split_class(struct compiler *c, struct shape *s, const struct dfa *keys, uint32_t node);

/* schema_node.c */
uint32_t node_of(struct compiler *c, const struct atom *atoms, uint32_t n);
uint32_t node_of_schema(struct compiler *c, json_t *schema);
uint32_t node_and(struct compiler *c, uint32_t a, uint32_t b);
uint32_t node_not(struct compiler *c, uint32_t a);
struct set node_set(struct compiler *c, uint32_t node);

/* schema_read.c */
struct set schema_set(struct compiler *c, json_t *schema, bool negated);

/* schema_keywords.c: false when a keyword has another JSON type than it must have; it is refused by name. */
bool keywords_fit(struct compiler *c, json_t *schema);

/* schema_number.c */
const struct dfa *number_text(struct compiler *c, const char *regex);
const struct dfa *number_literal(struct compiler *c, json_t *value);
const struct dfa *number_bound(struct compiler *c, json_t *value, bool least, bool strict);
const struct dfa *number_multiple(struct compiler *c, json_t *value); /* NULL also when it is too fine */

/* schema_format.c */
const char *format_regex(const char *name); /* NULL: an annotation */
bool format_is_irregular(const char *name); /* it asserts what no automaton can hold */

/* schema_ref.c */
int refs_open(struct compiler *c);
json_t *refs_find(struct compiler *c, json_t *from, const char *ref);
/* True when a dynamic reference can only mean the target that refs_find() found. */
bool refs_is_static(struct compiler *c, const json_t *target, const char *ref);

/* schema_emit.c: the rule of a node; its body is made later, from the queue. */
uint32_t emit_node(struct compiler *c, uint32_t node);
int emit_all(struct compiler *c);
/* schema_array.c */
void emit_array(struct compiler *c, const struct shape *s, uint32_t from, uint32_t to, json_t *where);
