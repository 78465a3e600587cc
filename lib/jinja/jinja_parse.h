/* jinja_parse.h - the parser: declarations shared by statements and expressions. Private to lib/jinja*.c.
 * Thread: the one that opens the template. Memory: the nodes lie in the template's arena. */
#pragma once
#include "jinja_lex.h"

struct jinja_parser {
    struct jinja *t;
    struct jinja_lexer lexer;
    struct jinja_token now;
    unsigned depth;   /* nested calls of the parser's functions */
    unsigned n_loops; /* enclosing loops, for break and continue */
    struct error *err;
    int rc; /* of the first error; then every function returns NULL */
};

/* The functions that return a node return NULL after an error, and p->rc is negative. */
struct jinja_node *jinja_parse_expression(struct jinja_parser *p, bool choices);
/* Parses one expression, or several with commas as a tuple. `choices` allows "a if b else c". */
struct jinja_node *jinja_parse_tuple(struct jinja_parser *p, bool choices);
/* Parses the target of an assignment: a name, or several names, in brackets or not. `members` allows
 * namespace.name. */
struct jinja_node *jinja_parse_target(struct jinja_parser *p, bool members);
/* Parses name(arguments)|name(arguments)..., from the first name on; the first is applied to `input`. */
struct jinja_node *jinja_parse_filters(struct jinja_parser *p, struct jinja_node *input);
struct jinja_node *jinja_parse_primary_calls(struct jinja_parser *p);

/* Reads the next token into p->now. */
void jinja_next(struct jinja_parser *p);
bool jinja_at_op(const struct jinja_parser *p, int op);
bool jinja_at_name(const struct jinja_parser *p, const char *word);
/* Skip the operator or name and return true, if it is the current token. */
bool jinja_take_op(struct jinja_parser *p, int op);
bool jinja_take_name(struct jinja_parser *p, const char *word);
void jinja_expect_op(struct jinja_parser *p, int op);
struct jinja_text jinja_expect_name(struct jinja_parser *p);
/* Sets the error for an unexpected token, or for an unsupported construct; return NULL. */
void *jinja_unexpected(struct jinja_parser *p);
void *jinja_unsupported(struct jinja_parser *p, uint32_t line, const char *kind, struct jinja_text name);

/* Makes a node with the current token's line. jinja_seal() computes its depth when its parts are complete,
 * and refuses a tree that is too deep. */
struct jinja_node *jinja_node(struct jinja_parser *p, enum jinja_node_kind kind);
struct jinja_node *jinja_seal(struct jinja_parser *p, struct jinja_node *n);
/* Returns the number of a name, which is added when new. */
uint32_t jinja_symbol(struct jinja_parser *p, struct jinja_text name);
/* A node of the name that comes next; NULL when the parser has failed. */
struct jinja_node *jinja_named_node(struct jinja_parser *p, enum jinja_node_kind kind);
bool jinja_enter(struct jinja_parser *p); /* counts one nested call; false when there are too many */
void jinja_leave(struct jinja_parser *p);
