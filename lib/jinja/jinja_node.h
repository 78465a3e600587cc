/* jinja_node.h - a parsed template: a tree of nodes and a table of its names. Private to lib/jinja*.c.
 * Thread: one thread parses; then the tree does not change, and any thread may read it. Memory: struct jinja
 * owns nodes, names and source in its arena. */
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
    NODE_CALL,    /* a(list): arguments; named ones are NODE_KEYWORD and come last */
    NODE_KEYWORD, /* text=a */
    NODE_FILTER,  /* a | builtin(list) */
    NODE_TEST,    /* a is builtin(list) */
    NODE_NOT,
    NODE_NEGATIVE,
    NODE_POSITIVE,
    NODE_BINARY,  /* a op b: arithmetic */
    NODE_AND,     /* a and b */
    NODE_OR,      /* a or b */
    NODE_COMPARE, /* a, then list of NODE_OPERAND */
    NODE_OPERAND, /* op a */
    NODE_CONCAT,  /* list, joined as texts */
    NODE_CHOICE,  /* a if b else c; c may be NULL */
    NODE_BLOCK,   /* the text of the block to which a filter is applied */
    /* Statements; `list` is a body. */
    NODE_DATA,     /* text */
    NODE_PRINT,    /* a */
    NODE_IF,       /* list: NODE_BRANCH */
    NODE_BRANCH,   /* a: condition or NULL */
    NODE_FOR,      /* for a in b if c; d: NODE_SCOPE of its else, or NULL */
    NODE_SET,      /* set a = b */
    NODE_CAPTURE,  /* set a | b, to the body's text; b may be NULL */
    NODE_MACRO,    /* symbol; a: list of NODE_PARAM; list: body */
    NODE_PARAM,    /* symbol; a: default or NULL */
    NODE_CALLING,  /* call (c: a NODE_MACRO without a name) b */
    NODE_FILTERED, /* filter b, of the body's text */
    NODE_WITH,     /* a: list of NODE_SET; list: body */
    NODE_SCOPE,    /* generation */
    NODE_BREAK,
    NODE_CONTINUE,
    NODE_MEMBER, /* target of an assignment: symbol.text, of a namespace */
};

/* Operators of tokens and nodes: one character, or two. */
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
    unsigned depth; /* levels of the subtree, this node included */
    struct jinja_node *a, *b, *c, *d, *list, *next;
    struct jinja_value value;
    struct jinja_text text;
    const struct jinja_builtin *builtin;
};

struct jinja_symbol {
    struct jinja_text name;
    const struct jinja_builtin *function; /* the builtin function of this name, or NULL */
    uint32_t called_line;                 /* line of the first call; 0: never called */
    bool reads;                           /* some expression reads it */
    bool assigned;                        /* some statement assigns it */
    bool asked;                           /* some expression tests whether it is defined */
};

struct jinja {
    struct arena arena;
    struct jinja_node *body;
    struct jinja_symbol *symbols;
    uint32_t n_symbols, room;
    uint32_t loop, caller; /* symbols of these names */
};
