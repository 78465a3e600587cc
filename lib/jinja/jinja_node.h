/* jinja_node.h - a template after parsing: a tree, its names numbered. Private to lib/jinja*.c. */
#pragma once
#include "jinja.h"

enum jinja_node_kind {
    /* Expressions. */
    NODE_CONST,   /* value */
    NODE_NAME,    /* symbol */
    NODE_LIST,    /* list: items */
    NODE_TUPLE,   /* list: items */
    NODE_DICT,    /* list: NODE_PAIR */
    NODE_PAIR,    /* a: key, b: value */
    NODE_ATTR,    /* a.text */
    NODE_ITEM,    /* a[b] */
    NODE_SLICE,   /* a[b:c:d], each may be NULL */
    NODE_CALL,    /* a(list): arguments, the named ones as NODE_KEYWORD last */
    NODE_KEYWORD, /* text=a */
    NODE_FILTER,  /* a | builtin(list) */
    NODE_TEST,    /* a is builtin(list) */
    NODE_NOT,
    NODE_NEGATIVE,
    NODE_POSITIVE,
    NODE_BINARY,  /* a op b: the arithmetic ones */
    NODE_AND,     /* a and b */
    NODE_OR,      /* a or b */
    NODE_COMPARE, /* a, then list of NODE_OPERAND */
    NODE_OPERAND, /* op a */
    NODE_CONCAT,  /* list, joined as texts */
    NODE_CHOICE,  /* a if b else c; c may be NULL */
    NODE_BLOCK,   /* the text of the block that a filter is applied to */
    /* Statements; `list` is a body. */
    NODE_DATA,     /* text */
    NODE_PRINT,    /* a */
    NODE_IF,       /* list: NODE_BRANCH */
    NODE_BRANCH,   /* a: condition or NULL */
    NODE_FOR,      /* for a in b if c; d: what else says */
    NODE_SET,      /* set a = b */
    NODE_CAPTURE,  /* set a | b: of the body's text; b may be NULL */
    NODE_MACRO,    /* symbol; a: NODE_PARAMETERs; list: body */
    NODE_PARAM,    /* symbol; a: default or NULL */
    NODE_CALLING,  /* call (c: a NODE_MACRO without a name) b */
    NODE_FILTERED, /* filter b: of the body's text */
    NODE_WITH,     /* a: list of NODE_SET; list: body */
    NODE_SCOPE,    /* generation */
    NODE_BREAK,
    NODE_CONTINUE,
    NODE_MEMBER, /* target: symbol.text, of a namespace */
};

/* Operators, in tokens and nodes: a character, or two of them. */
#define JINJA_OP2(a, b) ((a) << 8 | (b))
enum {
    OP_EQ = JINJA_OP2('=', '='),
    OP_NE = JINJA_OP2('!', '='),
    OP_LE = JINJA_OP2('<', '='),
    OP_GE = JINJA_OP2('>', '='),
    OP_FLOOR = JINJA_OP2('/', '/'),
    OP_POWER = JINJA_OP2('*', '*'),
    OP_IN = JINJA_OP2('i', 'n'),
    OP_NOT_IN = JINJA_OP2('n', 'i'),
};

struct jinja_builtin; /* jinja_builtin.h */

struct jinja_node {
    enum jinja_node_kind kind;
    int op;
    uint32_t line, symbol;
    unsigned depth; /* of the tree below */
    struct jinja_node *a, *b, *c, *d, *list, *next;
    struct jinja_value value;
    struct jinja_text text;
    const struct jinja_builtin *builtin;
};

struct jinja_symbol {
    struct jinja_text name;
    const struct jinja_builtin *function; /* of this name, or NULL */
    uint32_t called_line;                 /* 0: nowhere called */
    bool reads;                           /* its value is wanted somewhere */
    bool assigned;                        /* and somewhere set */
    bool asked;                           /* "is defined" of it */
};

struct jinja {
    struct arena arena;
    struct jinja_node *body;
    struct jinja_symbol *symbols;
    uint32_t n_symbols, room;
    uint32_t loop, caller; /* symbols of these names */
};
