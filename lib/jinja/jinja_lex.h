/* jinja_lex.h - cuts a template's source into tokens: the text between tags, and the tokens of each tag.
 * White space beside tags is removed by their signs, trim_blocks and lstrip_blocks. Private to lib/jinja*.c.
 * Thread: the one that parses. Memory: the arena owns the copy of the source and the tokens' texts. */
#pragma once
#include "jinja_node.h"

enum jinja_token_kind {
    TOKEN_END,
    TOKEN_DATA,        /* text */
    TOKEN_BLOCK_BEGIN, /* {% */
    TOKEN_BLOCK_END,
    TOKEN_PRINT_BEGIN, /* {{ */
    TOKEN_PRINT_END,
    TOKEN_NAME,   /* text */
    TOKEN_STRING, /* text: quotes removed, escapes replaced */
    TOKEN_INT,    /* integer */
    TOKEN_FLOAT,  /* real */
    TOKEN_OP,     /* op */
};

struct jinja_token {
    enum jinja_token_kind kind;
    int op;
    uint32_t line;
    struct jinja_text text;
    int64_t integer;
    double real;
};

struct jinja_lexer {
    struct arena *arena;
    const char *s; /* the source; ends of lines are \n */
    size_t len, at;
    uint32_t line;
    enum jinja_token_kind within;    /* TOKEN_DATA, TOKEN_BLOCK_BEGIN or TOKEN_PRINT_BEGIN */
    bool line_starting;              /* the text at `at` begins a line */
    char closers[JINJA_MAX_NESTING]; /* the closing brackets that this tag still needs, innermost last */
    unsigned n_closers;
    struct error *err;
};

/* Copies the source. -ENOTSUP: it is too long; -ENOMEM. */
int jinja_lexer_open(struct jinja_lexer *l, struct arena *a, const char *source, size_t len,
                     struct error *err);
/* Reads the next token. -EBADMSG or -ENOTSUP, with a message that begins with the line; -ENOMEM. */
int jinja_lexer_next(struct jinja_lexer *l, struct jinja_token *out);
