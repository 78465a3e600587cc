/* jinja_parse.c - parses statements; opens and closes a template. */
#include "jinja_parse.h"
#include "jinja_builtin.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NAMES 4096

/* --- tokens --- */

void jinja_next(struct jinja_parser *p)
{
    if (p->rc)
        return;
    p->rc = jinja_lexer_next(&p->lexer, &p->now);
}

bool jinja_at_op(const struct jinja_parser *p, int op)
{
    return !p->rc && p->now.kind == TOKEN_OP && p->now.op == op;
}

bool jinja_at_name(const struct jinja_parser *p, const char *word)
{
    return !p->rc && p->now.kind == TOKEN_NAME && jinja_text_is(p->now.text, word);
}

bool jinja_take_op(struct jinja_parser *p, int op)
{
    if (!jinja_at_op(p, op))
        return false;
    jinja_next(p);
    return true;
}

bool jinja_take_name(struct jinja_parser *p, const char *word)
{
    if (!jinja_at_name(p, word))
        return false;
    jinja_next(p);
    return true;
}

void jinja_expect_op(struct jinja_parser *p, int op)
{
    if (!jinja_take_op(p, op) && !p->rc)
        p->rc = error_set(p->err, -EBADMSG, "line %u: expected \"%c\"", p->now.line, op);
}

struct jinja_text jinja_expect_name(struct jinja_parser *p)
{
    struct jinja_text name = p->now.text;
    if (!p->rc && p->now.kind != TOKEN_NAME)
        p->rc = error_set(p->err, -EBADMSG, "line %u: expected a name", p->now.line);
    jinja_next(p);
    return name;
}

static void expect(struct jinja_parser *p, enum jinja_token_kind kind)
{
    if (!p->rc && p->now.kind != kind)
        jinja_unexpected(p);
    jinja_next(p);
}

void *jinja_unexpected(struct jinja_parser *p)
{
    const struct jinja_token *now = &p->now;
    if (p->rc)
        return NULL;
    if (now->kind == TOKEN_NAME || now->kind == TOKEN_STRING)
        p->rc = error_set(p->err, -EBADMSG, "line %u: unexpected \"%.*s\"", now->line,
                          (int)(now->text.len < 40 ? now->text.len : 40), now->text.s);
    else if (now->kind == TOKEN_OP)
        p->rc = error_set(p->err, -EBADMSG, "line %u: unexpected \"%.1s%c\"", now->line,
                          now->op > 255 ? (char[]){(char)(now->op >> 8), 0} : "", now->op & 255);
    else
        p->rc = error_set(p->err, -EBADMSG, "line %u: unexpected %s", now->line,
                          now->kind == TOKEN_INT || now->kind == TOKEN_FLOAT ? "number" : "end of a tag");
    return NULL;
}

void *jinja_unsupported(struct jinja_parser *p, uint32_t line, const char *kind, struct jinja_text name)
{
    if (!p->rc)
        p->rc = error_set(p->err, -ENOTSUP, "line %u: %s \"%.*s\" is not supported", line, kind,
                          (int)(name.len < 60 ? name.len : 60), name.s);
    return NULL;
}

/* --- nodes --- */

struct jinja_node *jinja_node(struct jinja_parser *p, enum jinja_node_kind kind)
{
    if (p->rc)
        return NULL;
    struct jinja_node *n = arena_zalloc(&p->t->arena, sizeof *n);
    if (!n) {
        p->rc = error_set(p->err, -ENOMEM, "out of memory");
        return NULL;
    }
    n->kind = kind;
    n->line = p->now.line;
    n->depth = 1;
    return n;
}

static void deepen(struct jinja_node *n, const struct jinja_node *part)
{
    if (part && part->depth >= n->depth)
        n->depth = part->depth + 1;
}

struct jinja_node *jinja_seal(struct jinja_parser *p, struct jinja_node *n)
{
    if (p->rc || !n)
        return NULL;
    const struct jinja_node *parts[] = {n->a, n->b, n->c, n->d};
    for (size_t i = 0; i < 4; i++)
        deepen(n, parts[i]);
    for (const struct jinja_node *one = n->list; one; one = one->next)
        deepen(n, one);
    if (n->depth <= JINJA_MAX_NESTING)
        return n;
    p->rc = error_set(p->err, -ENOTSUP, "line %u: more than %d nested levels", n->line, JINJA_MAX_NESTING);
    return NULL;
}

bool jinja_enter(struct jinja_parser *p)
{
    if (!p->rc && p->depth == JINJA_MAX_NESTING)
        p->rc = error_set(p->err, -ENOTSUP, "line %u: more than %d nested levels", p->now.line,
                          JINJA_MAX_NESTING);
    if (p->rc)
        return false;
    p->depth++;
    return true;
}

void jinja_leave(struct jinja_parser *p)
{
    assert(p->depth > 0);
    p->depth--;
}

uint32_t jinja_symbol(struct jinja_parser *p, struct jinja_text name)
{
    struct jinja *t = p->t;
    for (uint32_t i = 0; i < t->n_symbols; i++)
        if (jinja_text_equal(t->symbols[i].name, name))
            return i;
    if (t->n_symbols == MAX_NAMES) {
        jinja_unsupported(p, p->now.line, "one name more than 4096,", name);
        return 0;
    }
    if (t->n_symbols == t->room) {
        uint32_t room = t->room * 2 + 32;
        struct jinja_symbol *grown =
            arena_grow(&t->arena, t->symbols, t->room * sizeof *t->symbols, room * sizeof *t->symbols);
        if (!grown) {
            p->rc = error_set(p->err, -ENOMEM, "out of memory");
            return 0;
        }
        t->symbols = grown;
        t->room = room;
    }
    t->symbols[t->n_symbols] = (struct jinja_symbol){.name = name, .function = jinja_find_function(name)};
    return t->n_symbols++;
}

struct jinja_node *jinja_named_node(struct jinja_parser *p, enum jinja_node_kind kind)
{
    struct jinja_node *n = jinja_node(p, kind);
    struct jinja_text name = jinja_expect_name(p);
    if (p->rc || !n)
        return NULL;
    n->text = name;
    n->symbol = jinja_symbol(p, name);
    return p->rc ? NULL : n;
}

/* --- statements --- */

/* Parses up to a tag that begins with one of the names `ends` (NULL-terminated), which is then the current
 * token, or up to the end of the template when `ends` is NULL. */
static struct jinja_node *parse_body(struct jinja_parser *p, const char *const *ends);

#define ENDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void end_tag(struct jinja_parser *p, const char *word)
{
    if (!jinja_take_name(p, word))
        jinja_unexpected(p);
    expect(p, TOKEN_BLOCK_END);
}

/* Parses the rest of a statement: the end of its tag, its body, and its last tag. */
static struct jinja_node *body_until(struct jinja_parser *p, const char *word)
{
    expect(p, TOKEN_BLOCK_END);
    struct jinja_node *body = parse_body(p, ENDS(word));
    end_tag(p, word);
    return body;
}

static struct jinja_node *parse_if(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node(p, NODE_IF), **end = n ? &n->list : NULL;
    bool otherwise = false;
    do {
        struct jinja_node *branch = jinja_node(p, NODE_BRANCH);
        if (!branch)
            return NULL;
        if (!otherwise)
            branch->a = jinja_parse_tuple(p, true);
        expect(p, TOKEN_BLOCK_END);
        branch->list = parse_body(p, otherwise ? ENDS("endif") : ENDS("elif", "else", "endif"));
        *end = jinja_seal(p, branch);
        if (!*end)
            return NULL;
        end = &branch->next;
        otherwise = jinja_at_name(p, "else");
    } while (jinja_take_name(p, "elif") || jinja_take_name(p, "else"));
    end_tag(p, "endif");
    return n;
}

static struct jinja_node *parse_for(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node(p, NODE_FOR);
    struct jinja_node *target = jinja_parse_target(p, false);
    if (!jinja_take_name(p, "in"))
        jinja_unexpected(p);
    struct jinja_node *all = jinja_parse_tuple(p, false);
    struct jinja_node *test = jinja_take_name(p, "if") ? jinja_parse_expression(p, true) : NULL;
    if (jinja_at_name(p, "recursive"))
        return jinja_unsupported(p, p->now.line, "loop", p->now.text);
    expect(p, TOKEN_BLOCK_END);
    if (p->rc || !n)
        return NULL;
    n->a = target;
    n->b = all;
    n->c = test;
    p->n_loops++;
    n->list = parse_body(p, ENDS("else", "endfor"));
    p->n_loops--;
    if (jinja_take_name(p, "else")) {
        expect(p, TOKEN_BLOCK_END);
        n->d = jinja_node(p, NODE_SCOPE);
        struct jinja_node *otherwise = parse_body(p, ENDS("endfor"));
        if (!p->rc)
            n->d->list = otherwise;
        jinja_seal(p, n->d);
    }
    end_tag(p, "endfor");
    return n;
}

static struct jinja_node *parse_set(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node(p, NODE_SET);
    struct jinja_node *target = jinja_parse_target(p, true);
    if (p->rc || !n)
        return NULL;
    n->a = target;
    if (jinja_take_op(p, '=')) {
        n->b = jinja_parse_tuple(p, true);
        expect(p, TOKEN_BLOCK_END);
        return n;
    }
    n->kind = NODE_CAPTURE;
    if (jinja_take_op(p, '|'))
        n->b = jinja_parse_filters(p, jinja_node(p, NODE_BLOCK));
    n->list = body_until(p, "endset");
    return n;
}

/* Parses (a, b=1) into the list n->a. */
static void parse_parameters(struct jinja_parser *p, struct jinja_node *n)
{
    struct jinja_node **end = &n->a;
    jinja_expect_op(p, '(');
    while (!p->rc && !jinja_at_op(p, ')')) {
        struct jinja_node *one = jinja_named_node(p, NODE_PARAM);
        if (!one)
            return;
        p->t->symbols[one->symbol].assigned = true;
        if (jinja_take_op(p, '='))
            one->a = jinja_parse_expression(p, true);
        *end = jinja_seal(p, one);
        if (!*end)
            return;
        end = &one->next;
        if (!jinja_at_op(p, ')'))
            jinja_expect_op(p, ',');
    }
    jinja_expect_op(p, ')');
}

/* A macro's depth includes its parameters, which are a list in n->a. */
static struct jinja_node *seal_macro(struct jinja_parser *p, struct jinja_node *n)
{
    for (const struct jinja_node *one = n->a; one && !p->rc; one = one->next)
        deepen(n, one);
    return jinja_seal(p, n);
}

/* Parses a macro's body, where break and continue do not leave an enclosing loop. */
static struct jinja_node *macro_body(struct jinja_parser *p, const char *word)
{
    unsigned n_loops = p->n_loops;
    p->n_loops = 0;
    struct jinja_node *body = body_until(p, word);
    p->n_loops = n_loops;
    return body;
}

static struct jinja_node *parse_macro(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_named_node(p, NODE_MACRO);
    if (!n)
        return NULL;
    p->t->symbols[n->symbol].assigned = true;
    parse_parameters(p, n);
    n->list = macro_body(p, "endmacro");
    return seal_macro(p, n);
}

static struct jinja_node *parse_calling(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node(p, NODE_CALLING), *macro = jinja_node(p, NODE_MACRO);
    if (!macro)
        return NULL;
    macro->text = jinja_text_of("caller", 6);
    macro->symbol = p->t->caller;
    if (jinja_at_op(p, '('))
        parse_parameters(p, macro);
    n->b = jinja_parse_primary_calls(p);
    if (!p->rc && n->b->kind != NODE_CALL)
        return jinja_unexpected(p);
    macro->list = macro_body(p, "endcall");
    n->c = seal_macro(p, macro);
    return n;
}

static struct jinja_node *parse_filtered(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node(p, NODE_FILTERED);
    struct jinja_node *filters = jinja_parse_filters(p, jinja_node(p, NODE_BLOCK));
    if (p->rc || !n)
        return NULL;
    n->b = filters;
    n->list = body_until(p, "endfilter");
    return n;
}

static struct jinja_node *parse_with(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node(p, NODE_WITH), **end = n ? &n->a : NULL;
    while (!p->rc && p->now.kind != TOKEN_BLOCK_END) {
        struct jinja_node *one = jinja_node(p, NODE_SET);
        struct jinja_node *target = jinja_parse_target(p, false);
        jinja_expect_op(p, '=');
        struct jinja_node *value = jinja_parse_expression(p, true);
        if (p->rc)
            return NULL;
        one->a = target;
        one->b = value;
        *end = jinja_seal(p, one);
        if (!*end)
            return NULL;
        end = &one->next;
        if (p->now.kind != TOKEN_BLOCK_END)
            jinja_expect_op(p, ',');
    }
    struct jinja_node *body = body_until(p, "endwith");
    if (p->rc)
        return NULL;
    n->list = body;
    return seal_macro(p, n);
}

static struct jinja_node *parse_scope(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node(p, NODE_SCOPE);
    struct jinja_node *body = body_until(p, "endgeneration");
    if (n && !p->rc)
        n->list = body;
    return n;
}

static struct jinja_node *parse_leave(struct jinja_parser *p, bool breaks)
{
    struct jinja_node *n = jinja_node(p, breaks ? NODE_BREAK : NODE_CONTINUE);
    if (!p->rc && !p->n_loops)
        p->rc = error_set(p->err, -EBADMSG, "line %u: %s outside of a loop", p->now.line,
                          breaks ? "break" : "continue");
    expect(p, TOKEN_BLOCK_END);
    return n;
}

static struct jinja_node *parse_statement(struct jinja_parser *p)
{
    struct jinja_text word = p->now.text;
    uint32_t line = p->now.line;
    if (p->now.kind != TOKEN_NAME)
        return jinja_unexpected(p);
    jinja_next(p);
    if (jinja_text_is(word, "if"))
        return parse_if(p);
    if (jinja_text_is(word, "for"))
        return parse_for(p);
    if (jinja_text_is(word, "set"))
        return parse_set(p);
    if (jinja_text_is(word, "macro"))
        return parse_macro(p);
    if (jinja_text_is(word, "call"))
        return parse_calling(p);
    if (jinja_text_is(word, "filter"))
        return parse_filtered(p);
    if (jinja_text_is(word, "with"))
        return parse_with(p);
    if (jinja_text_is(word, "generation"))
        return parse_scope(p);
    if (jinja_text_is(word, "break") || jinja_text_is(word, "continue"))
        return parse_leave(p, jinja_text_is(word, "break"));
    if ((word.len > 3 && !memcmp(word.s, "end", 3)) || jinja_text_is(word, "else") ||
        jinja_text_is(word, "elif"))
        p->rc = error_set(p->err, -EBADMSG, "line %u: unexpected %.*s", line,
                          (int)(word.len < 40 ? word.len : 40), word.s);
    return jinja_unsupported(p, line, "statement", word);
}

static struct jinja_node *parse_print(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node(p, NODE_PRINT);
    jinja_next(p);
    struct jinja_node *value = jinja_parse_tuple(p, true);
    expect(p, TOKEN_PRINT_END);
    if (n)
        n->a = value;
    return n;
}

static struct jinja_node *parse_data(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node(p, NODE_DATA);
    if (n)
        n->text = p->now.text;
    jinja_next(p);
    return n;
}

/* Tells whether the current token is one of the names `ends`. */
static bool at_end(const struct jinja_parser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (jinja_at_name(p, *ends))
            return true;
    return false;
}

/* Parses the next statement; returns NULL at the end of the body, too. */
static struct jinja_node *parse_next(struct jinja_parser *p, const char *const *ends)
{
    switch (p->now.kind) {
    case TOKEN_DATA:
        return parse_data(p);
    case TOKEN_PRINT_BEGIN:
        return parse_print(p);
    case TOKEN_BLOCK_BEGIN:
        jinja_next(p);
        return p->rc || at_end(p, ends) ? NULL : parse_statement(p);
    default:
        if (ends)
            p->rc = error_set(p->err, -EBADMSG, "line %u: the template ends before %s", p->now.line, *ends);
        return NULL;
    }
}

static struct jinja_node *parse_body(struct jinja_parser *p, const char *const *ends)
{
    struct jinja_node *first = NULL, **end = &first, *n;
    if (!jinja_enter(p))
        return NULL;
    while (!p->rc && (n = parse_next(p, ends))) {
        *end = jinja_seal(p, n);
        end = &n->next;
    }
    jinja_leave(p);
    return p->rc ? NULL : first;
}

/* --- the whole --- */

/* Refuses the call of a name that the template never assigns and never tests with "is defined": it can only
 * fail. */
static void check_calls(struct jinja_parser *p)
{
    for (uint32_t i = 0; i < p->t->n_symbols && !p->rc; i++) {
        const struct jinja_symbol *s = &p->t->symbols[i];
        if (s->called_line && !s->function && !s->assigned && !s->asked && i != p->t->caller)
            jinja_unsupported(p, s->called_line, "function", s->name);
    }
}

static int parse(struct jinja *t, const char *source, size_t len, struct error *err)
{
    struct jinja_parser p = {.t = t, .err = err};
    p.rc = jinja_lexer_open(&p.lexer, &t->arena, source, len, err);
    if (!p.rc)
        t->loop = jinja_symbol(&p, jinja_text_of("loop", 4));
    if (!p.rc)
        t->caller = jinja_symbol(&p, jinja_text_of("caller", 6));
    jinja_next(&p);
    if (!p.rc)
        t->body = parse_body(&p, NULL);
    if (!p.rc)
        check_calls(&p);
    assert(p.depth == 0 && p.n_loops == 0); /* every jinja_enter() had its jinja_leave() */
    return p.rc;
}

int jinja_open(struct jinja **out, const char *source, size_t len, struct error *err)
{
    struct jinja *t = calloc(1, sizeof *t);
    if (!t)
        return error_set(err, -ENOMEM, "out of memory");
    struct error words = {0}; /* keeps the first error, also when err is NULL */
    int rc = parse(t, source, len, &words);
    if (rc < 0) {
        jinja_close(t);
        return error_set(err, rc, "%s", words.text);
    }
    *out = t;
    return 0;
}

void jinja_close(struct jinja *t)
{
    if (!t)
        return;
    arena_close(&t->arena);
    free(t);
}

bool jinja_reads(const struct jinja *t, const char *name)
{
    for (uint32_t i = 0; i < t->n_symbols; i++)
        if (jinja_text_is(t->symbols[i].name, name))
            return t->symbols[i].reads;
    return false;
}
