/* jinja_lex.h - a template's source as tokens: text between tags with the white space taken away that tags
 * and trim_blocks and lstrip_blocks say, and what stands in tags. Private to lib/jinja*.c. */
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
    TOKEN_STRING, /* text, without quotes and escapes */
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
    enum jinja_token_kind within; /* TOKEN_DATA, TOKEN_BLOCK_BEGIN or TOKEN_PRINT_BEGIN */
    bool line_starting;           /* the text from `at` on begins a line */
    char closers[JINJA_MAX_NESTING];
    unsigned n_closers; /* brackets that are open in this tag */
    struct error *err;
};

/* Copies the source. */
int jinja_lexer_open(struct jinja_lexer *l, struct arena *a, const char *source, size_t len,
                     struct error *err);
/* The next token; -EBADMSG or -ENOTSUP with words that begin with the line, -ENOMEM. */
int jinja_lexer_next(struct jinja_lexer *l, struct jinja_token *out);
