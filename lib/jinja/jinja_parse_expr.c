/* jinja_parse_expr.c - parses expressions by the grammar of Jinja's own parser: one function for each
 * precedence. */
#include "jinja_builtin.h"
#include "jinja_parse.h"

#include <errno.h>
#include <string.h>

static struct jinja_node *parse_unary(struct jinja_parser *p, bool filters);

/* Makes a node of an operator and its operands. */
static struct jinja_node *join(struct jinja_parser *p, enum jinja_node_kind kind, int op,
                               struct jinja_node *a, struct jinja_node *b)
{
    struct jinja_node *n = jinja_node(p, kind);
    if (!n)
        return NULL;
    n->op = op;
    n->a = a;
    n->b = b;
    return jinja_seal(p, n);
}

static struct jinja_node *constant(struct jinja_parser *p, struct jinja_value value)
{
    struct jinja_node *n = jinja_node(p, NODE_CONST);
    if (n)
        n->value = value;
    return n;
}

/* --- the smallest parts --- */

static struct jinja_node *parse_name(struct jinja_parser *p)
{
    struct jinja_text name = p->now.text;
    struct jinja_node *n = NULL;
    bool yes = jinja_text_is(name, "true") || jinja_text_is(name, "True");
    if (yes || jinja_text_is(name, "false") || jinja_text_is(name, "False")) {
        n = constant(p, jinja_bool(yes));
    } else if (jinja_text_is(name, "none") || jinja_text_is(name, "None")) {
        n = constant(p, jinja_none());
    } else if ((n = jinja_node(p, NODE_NAME))) {
        n->text = name;
        n->symbol = jinja_symbol(p, name);
        if (!p->rc)
            p->t->symbols[n->symbol].reads = true;
    }
    jinja_next(p);
    return n;
}

/* Parses string literals; neighbours are joined: "a" "b" is "ab". */
static struct jinja_node *parse_strings(struct jinja_parser *p)
{
    struct jinja_node *n = constant(p, jinja_string(p->now.text.s, p->now.text.len, false));
    char *joined = NULL;
    size_t room = 0;
    jinja_next(p);
    while (!p->rc && n && p->now.kind == TOKEN_STRING) {
        struct jinja_text *text = &n->value.text;
        size_t wanted = text->len + p->now.text.len;
        if (!joined || wanted > room) {
            char *grown = arena_grow(&p->t->arena, joined, room, 2 * wanted + 1);
            if (!grown) {
                p->rc = error_set(p->err, -ENOMEM, "out of memory");
                return NULL;
            }
            if (!joined)
                memcpy(grown, text->s, text->len);
            joined = grown;
            room = 2 * wanted + 1;
        }
        memcpy(joined + text->len, p->now.text.s, p->now.text.len);
        *text = jinja_text_of(joined, wanted);
        jinja_next(p);
    }
    return n;
}

/* Parses the items of a list up to its closing bracket. */
static struct jinja_node *parse_list(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node(p, NODE_LIST), **end = n ? &n->list : NULL;
    jinja_next(p);
    while (!p->rc && !jinja_at_op(p, ']')) {
        *end = jinja_parse_expression(p, true);
        if (!*end)
            return NULL;
        end = &(*end)->next;
        if (!jinja_at_op(p, ']'))
            jinja_expect_op(p, ',');
    }
    jinja_expect_op(p, ']');
    return jinja_seal(p, n);
}

static struct jinja_node *parse_dict(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node(p, NODE_DICT), **end = n ? &n->list : NULL;
    jinja_next(p);
    while (!p->rc && !jinja_at_op(p, '}')) {
        struct jinja_node *key = jinja_parse_expression(p, true);
        jinja_expect_op(p, ':');
        struct jinja_node *value = jinja_parse_expression(p, true);
        *end = join(p, NODE_PAIR, 0, key, value);
        if (!*end)
            return NULL;
        end = &(*end)->next;
        if (!jinja_at_op(p, '}'))
            jinja_expect_op(p, ',');
    }
    jinja_expect_op(p, '}');
    return jinja_seal(p, n);
}

static struct jinja_node *parse_primary(struct jinja_parser *p)
{
    struct jinja_node *n = NULL;
    switch (p->now.kind) {
    case TOKEN_NAME:
        return parse_name(p);
    case TOKEN_STRING:
        return parse_strings(p);
    case TOKEN_INT:
    case TOKEN_FLOAT:
        n = constant(p, p->now.kind == TOKEN_INT ? jinja_int(p->now.integer) : jinja_float(p->now.real));
        jinja_next(p);
        return n;
    default:
        break;
    }
    if (jinja_at_op(p, '['))
        return parse_list(p);
    if (jinja_at_op(p, '{'))
        return parse_dict(p);
    if (!jinja_at_op(p, '('))
        return jinja_unexpected(p);
    jinja_next(p);
    if (jinja_at_op(p, ')')) /* the empty tuple */
        n = jinja_node(p, NODE_TUPLE);
    else
        n = jinja_parse_tuple(p, true);
    jinja_expect_op(p, ')');
    return p->rc ? NULL : n;
}

/* --- what follows them --- */

/* Parses arguments up to the closing bracket and appends them to *end. */
static void parse_arguments(struct jinja_parser *p, struct jinja_node **end)
{
    bool named = false;
    jinja_expect_op(p, '(');
    while (!p->rc && !jinja_at_op(p, ')')) {
        if (jinja_at_op(p, '*') || jinja_at_op(p, OP_POWER)) {
            jinja_unsupported(p, p->now.line, "unpacking of arguments", jinja_text_of("*", 1));
            return;
        }
        struct jinja_node *n = jinja_parse_expression(p, true);
        if (n && n->kind == NODE_NAME && jinja_at_op(p, '=')) {
            jinja_next(p);
            n->kind = NODE_KEYWORD;
            n->a = jinja_parse_expression(p, true);
            named = true;
            jinja_seal(p, n);
        } else if (named) {
            jinja_unexpected(p);
        }
        if (p->rc)
            return;
        *end = n;
        end = &n->next;
        if (!jinja_at_op(p, ')'))
            jinja_expect_op(p, ',');
    }
    jinja_expect_op(p, ')');
}

/* Refuses an unknown method now, not when its line is rendered; check_calls() does so for functions. */
static void check_callee(struct jinja_parser *p, const struct jinja_node *callee)
{
    if (callee->kind == NODE_NAME) {
        struct jinja_symbol *s = &p->t->symbols[callee->symbol];
        if (!s->called_line)
            s->called_line = callee->line;
    } else if (callee->kind == NODE_ATTR && !jinja_is_method(callee->text)) {
        jinja_unsupported(p, callee->line, "method", callee->text);
    }
}

static struct jinja_node *parse_call(struct jinja_parser *p, struct jinja_node *callee)
{
    struct jinja_node *n = jinja_node(p, NODE_CALL);
    if (!n)
        return NULL;
    n->a = callee;
    check_callee(p, callee);
    parse_arguments(p, &n->list);
    return jinja_seal(p, n);
}

/* Parses [b], or [b:c:d] of which any part may be absent. */
static struct jinja_node *parse_item(struct jinja_parser *p, struct jinja_node *object)
{
    struct jinja_node *n = jinja_node(p, NODE_ITEM), *parts[3] = {0};
    int i = 0;
    jinja_next(p);
    while (!p->rc && !jinja_at_op(p, ']')) {
        if (!jinja_at_op(p, ':'))
            parts[i] = i ? jinja_parse_expression(p, true) : jinja_parse_tuple(p, true);
        else if (++i > 2)
            return jinja_unexpected(p);
        else
            jinja_next(p);
        if (parts[i] && !jinja_at_op(p, ':') && !jinja_at_op(p, ']'))
            return jinja_unexpected(p);
    }
    if (!i && !parts[0])
        return jinja_unexpected(p);
    jinja_expect_op(p, ']');
    if (p->rc)
        return NULL;
    n->kind = i ? NODE_SLICE : NODE_ITEM;
    n->a = object;
    n->b = parts[0];
    n->c = parts[1];
    n->d = parts[2];
    return jinja_seal(p, n);
}

static struct jinja_node *parse_attr(struct jinja_parser *p, struct jinja_node *object)
{
    struct jinja_node *n = jinja_node(p, NODE_ATTR);
    jinja_next(p);
    if (p->rc || !n)
        return NULL;
    n->a = object;
    if (p->now.kind == TOKEN_INT) { /* a.0 is a[0] */
        n->kind = NODE_ITEM;
        n->b = constant(p, jinja_int(p->now.integer));
        jinja_next(p);
    } else {
        n->text = jinja_expect_name(p);
    }
    return jinja_seal(p, n);
}

static struct jinja_node *parse_postfix(struct jinja_parser *p, struct jinja_node *n)
{
    while (!p->rc && n) {
        if (jinja_at_op(p, '.'))
            n = parse_attr(p, n);
        else if (jinja_at_op(p, '['))
            n = parse_item(p, n);
        else if (jinja_at_op(p, '('))
            n = parse_call(p, n);
        else
            return n;
    }
    return NULL;
}

/* --- filters and tests --- */

/* Refuses a named argument that is no parameter, and too many or too few arguments. */
static void check_arguments(struct jinja_parser *p, const struct jinja_node *n, const char *kind)
{
    const struct jinja_builtin *b = n->builtin;
    unsigned n_params = 0, n_given = 0;
    while (n_params < JINJA_MAX_PARAMS && b->params[n_params])
        n_params++;
    for (const struct jinja_node *a = n->list; a && !p->rc; a = a->next, n_given++) {
        if (a->kind == NODE_KEYWORD ? !b->variadic && jinja_find_param(b, a->text) < 0
                                    : !b->variadic && n_given >= n_params)
            p->rc = error_set(p->err, -ENOTSUP, "line %u: %s %s with argument %.*s is not supported", n->line,
                              kind, b->name, a->kind == NODE_KEYWORD ? (int)a->text.len : 8,
                              a->kind == NODE_KEYWORD ? a->text.s : "too many");
    }
    if (!p->rc && n_given < b->n_required)
        p->rc = error_set(p->err, -EBADMSG, "line %u: %s %s needs %u arguments", n->line, kind, b->name,
                          b->n_required);
}

/* Refuses an unknown filter or test that is named by a string, as in map('upper') and select('odd'). */
static void check_named(struct jinja_parser *p, const struct jinja_node *n)
{
    bool attr = jinja_text_is(n->text, "selectattr") || jinja_text_is(n->text, "rejectattr");
    bool test = attr || jinja_text_is(n->text, "select") || jinja_text_is(n->text, "reject");
    const struct jinja_node *name = attr && n->list ? n->list->next : n->list;
    if ((!test && !jinja_text_is(n->text, "map")) || !name || name->kind != NODE_CONST ||
        name->value.kind != JINJA_TEXT)
        return;
    if (test ? !jinja_find_test(name->value.text) : !jinja_find_filter(name->value.text))
        jinja_unsupported(p, n->line, test ? "test" : "filter", name->value.text);
}

static struct jinja_node *parse_filter(struct jinja_parser *p, struct jinja_node *input)
{
    struct jinja_node *n = jinja_node(p, NODE_FILTER);
    struct jinja_text name = jinja_expect_name(p);
    if (p->rc || !n)
        return NULL;
    n->a = input;
    n->text = name;
    n->builtin = jinja_find_filter(name);
    if (!n->builtin || jinja_at_op(p, '.'))
        return jinja_unsupported(p, n->line, "filter", name);
    if (jinja_at_op(p, '('))
        parse_arguments(p, &n->list);
    if (!p->rc)
        check_arguments(p, n, "filter");
    if (!p->rc)
        check_named(p, n);
    return jinja_seal(p, n);
}

struct jinja_node *jinja_parse_filters(struct jinja_parser *p, struct jinja_node *input)
{
    do
        input = parse_filter(p, input);
    while (input && jinja_take_op(p, '|'));
    return input;
}

/* Tells whether an argument without brackets follows, as in "is divisibleby 3". */
static bool at_test_argument(const struct jinja_parser *p)
{
    if (p->now.kind == TOKEN_STRING || p->now.kind == TOKEN_INT || p->now.kind == TOKEN_FLOAT)
        return true;
    if (p->now.kind == TOKEN_NAME)
        return !jinja_at_name(p, "else") && !jinja_at_name(p, "or") && !jinja_at_name(p, "and");
    return jinja_at_op(p, '[') || jinja_at_op(p, '{');
}

/* Tells whether the current token is a keyword that goes on after a test. Jinja would take "if", "in", "not"
 * or "is" for the test's argument, and fail. */
static bool at_word_of_grammar(const struct jinja_parser *p)
{
    return jinja_at_name(p, "if") || jinja_at_name(p, "in") || jinja_at_name(p, "not") ||
           jinja_at_name(p, "is") || jinja_at_name(p, "recursive");
}

static struct jinja_node *parse_test(struct jinja_parser *p, struct jinja_node *input)
{
    struct jinja_node *n = jinja_node(p, NODE_TEST);
    jinja_next(p);
    bool negated = jinja_take_name(p, "not");
    struct jinja_text name = jinja_expect_name(p);
    if (p->rc || !n)
        return NULL;
    n->a = input;
    n->text = name;
    n->builtin = jinja_find_test(name);
    if (!n->builtin)
        return jinja_unsupported(p, n->line, "test", name);
    if (jinja_at_op(p, '('))
        parse_arguments(p, &n->list);
    else if (at_test_argument(p) && !at_word_of_grammar(p))
        n->list = parse_postfix(p, parse_primary(p));
    if (!p->rc)
        check_arguments(p, n, "test");
    if (!p->rc && input->kind == NODE_NAME &&
        (jinja_text_is(name, "defined") || jinja_text_is(name, "undefined")))
        p->t->symbols[input->symbol].asked = true;
    n = jinja_seal(p, n);
    return negated ? join(p, NODE_NOT, 0, n, NULL) : n;
}

static struct jinja_node *parse_filters_and_tests(struct jinja_parser *p, struct jinja_node *n)
{
    while (!p->rc && n) {
        if (jinja_take_op(p, '|'))
            n = parse_filter(p, n);
        else if (jinja_at_name(p, "is"))
            n = parse_test(p, n);
        else if (jinja_at_op(p, '('))
            n = parse_call(p, n);
        else
            return n;
    }
    return NULL;
}

/* --- operators --- */

static struct jinja_node *parse_sign(struct jinja_parser *p)
{
    enum jinja_node_kind kind = jinja_at_op(p, '-') ? NODE_NEGATIVE : NODE_POSITIVE;
    if (!jinja_enter(p))
        return NULL;
    jinja_next(p);
    struct jinja_node *n = join(p, kind, 0, parse_unary(p, false), NULL);
    jinja_leave(p);
    return n;
}

static struct jinja_node *parse_unary(struct jinja_parser *p, bool filters)
{
    bool sign = jinja_at_op(p, '-') || jinja_at_op(p, '+');
    struct jinja_node *n = parse_postfix(p, sign ? parse_sign(p) : parse_primary(p));
    return filters ? parse_filters_and_tests(p, n) : n;
}

static struct jinja_node *parse_power(struct jinja_parser *p)
{
    struct jinja_node *n = parse_unary(p, true);
    while (n && jinja_take_op(p, OP_POWER))
        n = join(p, NODE_BINARY, OP_POWER, n, parse_unary(p, true));
    return n;
}

static struct jinja_node *parse_product(struct jinja_parser *p)
{
    struct jinja_node *n = parse_power(p);
    while (n &&
           (jinja_at_op(p, '*') || jinja_at_op(p, '/') || jinja_at_op(p, OP_FLOOR) || jinja_at_op(p, '%'))) {
        int op = p->now.op;
        jinja_next(p);
        n = join(p, NODE_BINARY, op, n, parse_power(p));
    }
    return n;
}

/* Parses a ~ b ~ c. */
static struct jinja_node *parse_concat(struct jinja_parser *p)
{
    struct jinja_node *n = parse_product(p);
    if (!n || !jinja_at_op(p, '~'))
        return n;
    struct jinja_node *all = jinja_node(p, NODE_CONCAT), **end;
    if (!all)
        return NULL;
    all->list = n;
    for (end = &n->next; jinja_take_op(p, '~'); end = &(*end)->next) {
        *end = parse_product(p);
        if (!*end)
            return NULL;
    }
    return jinja_seal(p, all);
}

static struct jinja_node *parse_sum(struct jinja_parser *p)
{
    struct jinja_node *n = parse_concat(p);
    while (n && (jinja_at_op(p, '+') || jinja_at_op(p, '-'))) {
        int op = p->now.op;
        jinja_next(p);
        n = join(p, NODE_BINARY, op, n, parse_concat(p));
    }
    return n;
}

/* Skips a comparison operator and returns it; 0 when there is none. */
static int take_comparison(struct jinja_parser *p)
{
    static const int ops[] = {OP_EQ, OP_NE, OP_LE, OP_GE, '<', '>'};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (jinja_take_op(p, ops[i]))
            return ops[i];
    if (jinja_take_name(p, "in"))
        return OP_IN;
    if (!jinja_at_name(p, "not"))
        return 0;
    jinja_next(p);
    if (jinja_take_name(p, "in"))
        return OP_NOT_IN;
    jinja_unexpected(p);
    return 0;
}

static struct jinja_node *parse_comparison(struct jinja_parser *p)
{
    struct jinja_node *n = parse_sum(p), *all = NULL, **end = NULL;
    int op;
    while (n && !p->rc && (op = take_comparison(p))) {
        if (!all) {
            all = join(p, NODE_COMPARE, 0, n, NULL);
            if (!all)
                return NULL;
            end = &all->list;
        }
        *end = join(p, NODE_OPERAND, op, parse_sum(p), NULL);
        if (!*end)
            return NULL;
        end = &(*end)->next;
    }
    return all ? jinja_seal(p, all) : n;
}

static struct jinja_node *parse_not(struct jinja_parser *p)
{
    if (!jinja_at_name(p, "not"))
        return parse_comparison(p);
    if (!jinja_enter(p))
        return NULL;
    jinja_next(p);
    struct jinja_node *n = join(p, NODE_NOT, 0, parse_not(p), NULL);
    jinja_leave(p);
    return n;
}

static struct jinja_node *parse_and(struct jinja_parser *p)
{
    struct jinja_node *n = parse_not(p);
    while (n && jinja_take_name(p, "and"))
        n = join(p, NODE_AND, 0, n, parse_not(p));
    return n;
}

static struct jinja_node *parse_or(struct jinja_parser *p)
{
    struct jinja_node *n = parse_and(p);
    while (n && jinja_take_name(p, "or"))
        n = join(p, NODE_OR, 0, n, parse_and(p));
    return n;
}

struct jinja_node *jinja_parse_expression(struct jinja_parser *p, bool choices)
{
    if (p->rc || !jinja_enter(p))
        return NULL;
    struct jinja_node *n = parse_or(p);
    while (n && choices && jinja_take_name(p, "if")) {
        n = join(p, NODE_CHOICE, 0, n, parse_or(p));
        if (n && jinja_take_name(p, "else")) {
            n->c = jinja_parse_expression(p, true);
            n = jinja_seal(p, n);
        }
    }
    jinja_leave(p);
    return p->rc ? NULL : n;
}

static bool at_tuple_end(const struct jinja_parser *p)
{
    return p->now.kind == TOKEN_BLOCK_END || p->now.kind == TOKEN_PRINT_END || jinja_at_op(p, ')') ||
           jinja_at_op(p, ']') || jinja_at_name(p, "in") || jinja_at_op(p, '=');
}

/* Parses one element, or a tuple of elements with commas. */
static struct jinja_node *parse_elements(struct jinja_parser *p, bool flag,
                                         struct jinja_node *(*element)(struct jinja_parser *p, bool flag))
{
    struct jinja_node *n = element(p, flag), *all, **end;
    if (!n || !jinja_at_op(p, ','))
        return n;
    all = jinja_node(p, NODE_TUPLE);
    if (!all)
        return NULL;
    all->list = n;
    for (end = &n->next; jinja_take_op(p, ',') && !at_tuple_end(p); end = &(*end)->next) {
        *end = element(p, flag);
        if (!*end)
            return NULL;
    }
    return jinja_seal(p, all);
}

struct jinja_node *jinja_parse_tuple(struct jinja_parser *p, bool choices)
{
    return parse_elements(p, choices, jinja_parse_expression);
}

/* --- targets --- */

static struct jinja_node *parse_one_target(struct jinja_parser *p, bool members)
{
    if (jinja_at_op(p, '(')) {
        if (!jinja_enter(p))
            return NULL;
        jinja_next(p);
        struct jinja_node *n = jinja_parse_target(p, members);
        jinja_expect_op(p, ')');
        jinja_leave(p);
        return p->rc ? NULL : n;
    }
    struct jinja_node *n = jinja_named_node(p, NODE_NAME);
    if (!n)
        return NULL;
    if (members && jinja_take_op(p, '.')) {
        n->kind = NODE_MEMBER;
        n->text = jinja_expect_name(p);
    } else {
        p->t->symbols[n->symbol].assigned = true;
    }
    return p->rc ? NULL : n;
}

struct jinja_node *jinja_parse_target(struct jinja_parser *p, bool members)
{
    return parse_elements(p, members, parse_one_target);
}

struct jinja_node *jinja_parse_primary_calls(struct jinja_parser *p)
{
    return parse_postfix(p, parse_primary(p));
}
