/* jinja_parse.h - from tokens to the tree: what statements and expressions share. Private to lib/jinja*.c. */
#pragma once
#include "jinja_lex.h"

struct jinja_parser {
    struct jinja *t;
    struct jinja_lexer lexer;
    struct jinja_token now;
    unsigned depth;   /* of functions of the parser in one another */
    unsigned n_loops; /* that are open here, for break and continue */
    struct error *err;
    int rc; /* of the first error; then everything returns NULL */
};

/* All return NULL after an error. */
struct jinja_node *jinja_parse_expression(struct jinja_parser *p, bool choices);
/* One expression, or several with commas as a tuple; `choices`: "a if b else c" may stand there. */
struct jinja_node *jinja_parse_tuple(struct jinja_parser *p, bool choices);
/* What can be assigned to: a name, several, in brackets; with `members` also namespace.name. */
struct jinja_node *jinja_parse_target(struct jinja_parser *p, bool members);
/* name(arguments)|name(arguments)...: the current token is the first name. The innermost is applied to
 * `input`. */
struct jinja_node *jinja_parse_filters(struct jinja_parser *p, struct jinja_node *input);
struct jinja_node *jinja_parse_primary_calls(struct jinja_parser *p);

/* The next token becomes p->now. */
void jinja_next(struct jinja_parser *p);
bool jinja_at_op(const struct jinja_parser *p, int op);
bool jinja_at_name(const struct jinja_parser *p, const char *word);
/* Skips it if it is there. */
bool jinja_take_op(struct jinja_parser *p, int op);
bool jinja_take_name(struct jinja_parser *p, const char *word);
void jinja_expect_op(struct jinja_parser *p, int op);
struct jinja_text jinja_expect_name(struct jinja_parser *p);
/* Says what was not expected. */
void *jinja_unexpected(struct jinja_parser *p);
void *jinja_unsupported(struct jinja_parser *p, uint32_t line, const char *kind, struct jinja_text name);

/* A node with the current token's line, counted as deep as its parts by jinja_seal(). */
struct jinja_node *jinja_node(struct jinja_parser *p, enum jinja_node_kind kind);
struct jinja_node *jinja_seal(struct jinja_parser *p, struct jinja_node *n);
/* The number of a name. */
uint32_t jinja_symbol(struct jinja_parser *p, struct jinja_text name);
bool jinja_enter(struct jinja_parser *p); /* one function deeper; false when that is too deep */
void jinja_leave(struct jinja_parser *p);
