/* jinja_exec.c - runs statements and macros; renders a template. */
#include "jinja_run.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

enum step { STEP_ON, STEP_FAILED, STEP_BREAK, STEP_CONTINUE }; /* the end of a statement */

static enum step run_body(struct jinja_run *r, const struct jinja_node *n);

/* Runs a body in a scope of its own. */
static enum step run_scope(struct jinja_run *r, const struct jinja_node *body)
{
    struct jinja_frame *outer = r->frame;
    if (!jinja_open_frame(r, outer, &r->frame))
        return STEP_FAILED;
    enum step step = run_body(r, body);
    r->frame = outer;
    return step;
}

static bool run_captured(struct jinja_run *r, const struct jinja_node *body, struct jinja_value *out)
{
    struct jinja_out text = {.max = r->limits.memory}, *outer = r->out;
    r->out = &text;
    bool ok = run_body(r, body) != STEP_FAILED;
    r->out = outer;
    *out = jinja_written(&text);
    return ok;
}

/* Renders a body in a scope of its own into a text. */
static bool capture(struct jinja_run *r, const struct jinja_node *body, struct jinja_value *out)
{
    struct jinja_frame *outer = r->frame;
    if (!jinja_open_frame(r, outer, &r->frame))
        return false;
    bool ok = run_captured(r, body, out);
    r->frame = outer;
    return ok;
}

/* --- assignments --- */

static bool assign(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *target,
                   const struct jinja_value *value);

static bool assign_each(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *target,
                        const struct jinja_value *value)
{
    const struct jinja_node *one = target->list;
    struct jinja_list *items;
    size_t i = 0;
    if (!jinja_items(r, value, &items))
        return false;
    for (; one && i < items->n; one = one->next, i++)
        if (!assign(r, f, one, &items->items[i]))
            return false;
    if (one || i < items->n)
        return jinja_fail(r, -EBADMSG, "%zu values cannot be assigned to another number of names", items->n);
    return true;
}

static bool assign_member(struct jinja_run *r, const struct jinja_node *target,
                          const struct jinja_value *value)
{
    struct jinja_value space;
    if (!jinja_look_up(r, target->symbol, &space))
        return false;
    if (space.kind != JINJA_NAMESPACE)
        return jinja_fail(r, -EBADMSG, "only a namespace can be changed, not %s", jinja_kind_name(&space));
    return jinja_put_pair(r, space.dict, jinja_string(target->text.s, target->text.len, false), *value);
}

static bool assign(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *target,
                   const struct jinja_value *value)
{
    if (target->kind == NODE_TUPLE)
        return assign_each(r, f, target, value);
    if (target->kind == NODE_MEMBER)
        return assign_member(r, target, value);
    return jinja_assign(r, f, target->symbol, *value);
}

/* Renders a body into a text and applies `filters`, which may be NULL. */
static bool capture_filtered(struct jinja_run *r, const struct jinja_node *body,
                             const struct jinja_node *filters, struct jinja_value *out)
{
    const struct jinja_value *outer = r->block;
    struct jinja_value text;
    if (!capture(r, body, &text))
        return false;
    *out = text;
    if (!filters)
        return true;
    r->block = &text;
    bool ok = jinja_eval(r, filters, out);
    r->block = outer;
    return ok;
}

/* --- statements --- */

static enum step run_if(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_value test;
    for (const struct jinja_node *branch = n->list; branch; branch = branch->next) {
        if (branch->a && !jinja_eval(r, branch->a, &test))
            return STEP_FAILED;
        if (!branch->a || jinja_truth(&test))
            return run_body(r, branch->list);
    }
    return STEP_ON;
}

/* Replaces *items by those for which the loop's own condition holds. */
static bool filter_items(struct jinja_run *r, const struct jinja_node *n, struct jinja_list **items)
{
    struct jinja_frame *outer = r->frame;
    struct jinja_value kept, test;
    bool ok = jinja_open_list(r, &kept);
    for (size_t i = 0; ok && i < (*items)->n; i++) {
        const struct jinja_value *item = &(*items)->items[i];
        ok = jinja_work(r, JINJA_OPERATION) && jinja_open_frame(r, outer, &r->frame) &&
             assign(r, r->frame, n->a, item) && jinja_eval(r, n->c, &test) &&
             (!jinja_truth(&test) || jinja_push(r, kept.list, *item));
        r->frame = outer;
    }
    *items = kept.list;
    return ok;
}

static bool open_loop(struct jinja_run *r, const struct jinja_list *items, struct jinja_loop **out)
{
    struct jinja_value around;
    struct jinja_loop *loop = jinja_alloc(r, sizeof *loop);
    if (!loop || !jinja_look_up(r, r->t->loop, &around))
        return false;
    *loop = (struct jinja_loop){.items = items};
    if (around.kind == JINJA_LOOP)
        loop->depth = ((const struct jinja_loop *)around.object)->depth + 1;
    *out = loop;
    return true;
}

static enum step run_items(struct jinja_run *r, const struct jinja_node *n, const struct jinja_list *items)
{
    struct jinja_frame *outer = r->frame;
    struct jinja_loop *loop;
    enum step step = open_loop(r, items, &loop) ? STEP_ON : STEP_FAILED;
    for (size_t i = 0; i < items->n && (step == STEP_ON || step == STEP_CONTINUE); i++) {
        struct jinja_value state = {.kind = JINJA_LOOP, .object = loop};
        loop->i = i;
        if (jinja_work(r, JINJA_OPERATION) && jinja_open_frame(r, outer, &r->frame) &&
            jinja_assign(r, r->frame, r->t->loop, state) && assign(r, r->frame, n->a, &items->items[i]))
            step = run_body(r, n->list);
        else
            step = STEP_FAILED;
        r->frame = outer;
    }
    return step == STEP_FAILED ? STEP_FAILED : STEP_ON;
}

static enum step run_for(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_value all;
    struct jinja_list *items;
    if (!jinja_eval(r, n->b, &all) || !jinja_items(r, &all, &items) || (n->c && !filter_items(r, n, &items)))
        return STEP_FAILED;
    if (!items->n)
        return n->d ? run_scope(r, n->d->list) : STEP_ON;
    return run_items(r, n, items);
}

static bool run_set(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_value v;
    bool ok = n->kind == NODE_SET ? jinja_eval(r, n->b, &v) : capture_filtered(r, n->list, n->b, &v);
    return ok && assign(r, r->frame, n->a, &v);
}

static enum step run_with(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_frame *outer = r->frame, *inner;
    struct jinja_value v;
    if (!jinja_open_frame(r, outer, &inner))
        return STEP_FAILED;
    for (const struct jinja_node *one = n->a; one; one = one->next)
        if (!jinja_eval(r, one->b, &v) || !assign(r, inner, one->a, &v))
            return STEP_FAILED;
    r->frame = inner;
    enum step step = run_body(r, n->list);
    r->frame = outer;
    return step;
}

static bool print(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_value v;
    return jinja_eval(r, n->a, &v) && jinja_print(r, r->out, &v);
}

static bool run_filtered(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_value v;
    return capture_filtered(r, n->list, n->b, &v) && jinja_print(r, r->out, &v);
}

/* --- macros --- */

static bool make_macro(struct jinja_run *r, const struct jinja_node *n, struct jinja_value *out)
{
    struct jinja_macro *m = jinja_alloc(r, sizeof *m);
    if (!m)
        return false;
    *m = (struct jinja_macro){.node = n, .frame = r->frame};
    *out = (struct jinja_value){.kind = JINJA_MACRO, .object = m};
    return true;
}

static bool run_macro(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_value v;
    return make_macro(r, n, &v) && jinja_assign(r, r->frame, n->symbol, v);
}

/* Assigns parameter i from the arguments or its default. *n_named counts the named arguments used. */
static bool parameter(struct jinja_run *r, const struct jinja_node *param, size_t i,
                      const struct jinja_list *args, const struct jinja_dict *named, size_t *n_named)
{
    struct jinja_value v = {.kind = JINJA_UNDEFINED, .text = param->text};
    const struct jinja_value *by_name = jinja_dict_find(named, param->text.s, param->text.len);
    *n_named += by_name != NULL;
    if (i < args->n && by_name)
        return jinja_fail(r, -EBADMSG, "argument %.*s is given twice", (int)param->text.len, param->text.s);
    if (i < args->n)
        v = args->items[i];
    else if (by_name)
        v = *by_name;
    else if (param->a && !jinja_eval(r, param->a, &v))
        return false;
    return jinja_assign(r, r->frame, param->symbol, v);
}

static bool parameters(struct jinja_run *r, const struct jinja_node *n, const struct jinja_list *args,
                       const struct jinja_dict *named)
{
    const struct jinja_value *caller = jinja_dict_find(named, "caller", 6);
    size_t i = 0, n_named = caller != NULL;
    for (const struct jinja_node *param = n->a; param; param = param->next, i++)
        if (!parameter(r, param, i, args, named, &n_named))
            return false;
    if (args->n > i || named->n > n_named)
        return jinja_fail(r, -EBADMSG, "macro %.*s has no such argument", (int)n->text.len, n->text.s);
    return !caller || jinja_assign(r, r->frame, r->t->caller, *caller);
}

bool jinja_call_macro(struct jinja_run *r, const struct jinja_macro *m, const struct jinja_list *args,
                      const struct jinja_dict *named, struct jinja_value *out)
{
    struct jinja_frame *outer = r->frame;
    bool ok = jinja_work(r, JINJA_OPERATION) && jinja_open_frame(r, m->frame, &r->frame) &&
              parameters(r, m->node, args, named) && run_captured(r, m->node->list, out);
    r->frame = outer;
    return ok;
}

/* Runs {% call f(x) %}: the body is the macro `caller` of f. */
static bool run_calling(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_list args = {0};
    struct jinja_dict named = {0};
    struct jinja_value callee, caller, v;
    if (!jinja_eval(r, n->b->a, &callee))
        return false;
    if (callee.kind != JINJA_MACRO)
        return jinja_fail(r, -EBADMSG, "call needs a macro, not %s", jinja_kind_name(&callee));
    return jinja_eval_arguments(r, n->b->list, &args, &named) && make_macro(r, n->c, &caller) &&
           jinja_put_pair(r, &named, jinja_word("caller"), caller) &&
           jinja_call_macro(r, callee.object, &args, &named, &v) && jinja_print(r, r->out, &v);
}

/* --- all --- */

static enum step step_of(bool ok)
{
    return ok ? STEP_ON : STEP_FAILED;
}

static enum step run_statement(struct jinja_run *r, const struct jinja_node *n)
{
    switch (n->kind) {
    case NODE_DATA:
        return step_of(jinja_put(r, r->out, n->text));
    case NODE_PRINT:
        return step_of(print(r, n));
    case NODE_IF:
        return run_if(r, n);
    case NODE_FOR:
        return run_for(r, n);
    case NODE_SET:
    case NODE_CAPTURE:
        return step_of(run_set(r, n));
    case NODE_MACRO:
        return step_of(run_macro(r, n));
    case NODE_CALLING:
        return step_of(run_calling(r, n));
    case NODE_FILTERED:
        return step_of(run_filtered(r, n));
    case NODE_WITH:
        return run_with(r, n);
    case NODE_SCOPE:
        return run_scope(r, n->list);
    case NODE_BREAK:
        return STEP_BREAK;
    case NODE_CONTINUE:
        return STEP_CONTINUE;
    default:
        return step_of(jinja_fail(r, -EBADMSG, "no statement"));
    }
}

static enum step run_body(struct jinja_run *r, const struct jinja_node *n)
{
    enum step step = STEP_ON;
    if (!jinja_deeper(r))
        return STEP_FAILED;
    for (; n && step == STEP_ON; n = n->next) {
        r->line = n->line;
        step = jinja_work(r, JINJA_OPERATION) ? run_statement(r, n) : STEP_FAILED;
    }
    r->depth--;
    return step;
}

static bool give_variables(struct jinja_run *r, const struct jinja_dict *variables)
{
    size_t n = variables ? variables->n : 0;
    if (!jinja_work(r, r->t->n_symbols * n / 8))
        return false;
    for (uint32_t i = 0; n && i < r->t->n_symbols; i++) {
        struct jinja_text name = r->t->symbols[i].name;
        const struct jinja_value *v = jinja_dict_find(variables, name.s, name.len);
        if (v && !jinja_assign(r, r->frame, i, *v))
            return false;
    }
    return jinja_open_frame(r, r->frame, &r->frame);
}

int jinja_render(const struct jinja *t, const struct jinja_input *in, struct arena *arena,
                 struct jinja_text *out, struct error *err)
{
    struct error words = {0};
    struct jinja_out text = {0};
    struct jinja_run r = {.t = t,
                          .arena = arena,
                          .arena_start = arena->total,
                          .limits = in->limits,
                          .out = &text,
                          .now = in->now,
                          .line = 1,
                          .err = &words};
    if (!r.limits.operations)
        r.limits.operations = JINJA_MAX_OPERATIONS;
    if (!r.limits.output)
        r.limits.output = JINJA_MAX_OUTPUT;
    if (!r.limits.memory)
        r.limits.memory = JINJA_MAX_MEMORY;
    text.max = r.limits.output;
    r.work_left = (uint64_t)r.limits.operations * JINJA_OPERATION * JINJA_BYTES;
    if (jinja_open_frame(&r, NULL, &r.frame) && give_variables(&r, in->variables) &&
        run_body(&r, t->body) != STEP_FAILED) {
        assert(r.depth == 0 && r.out == &text && r.rc == 0); /* every evaluation and capture has ended */
        *out = jinja_written(&text).text;
        return 0;
    }
    assert(r.depth == 0 && r.out == &text && r.rc < 0);
    return error_set(err, r.rc, "%s", words.text);
}
