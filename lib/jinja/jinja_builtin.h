/* jinja_builtin.h - filters, tests, functions and methods: one table each, arguments bound by name. Private
 * to lib/jinja*.c. */
#pragma once
#include "jinja_node.h"

#define JINJA_MAX_PARAMS 5

struct jinja_run;

struct jinja_args {
    struct jinja_value values[JINJA_MAX_PARAMS]; /* in the order of the parameters */
    bool given[JINJA_MAX_PARAMS];
    struct jinja_list more;  /* of variadic ones: every positional argument behind the parameters */
    struct jinja_dict named; /* and every named one that is no parameter */
};

struct jinja_builtin {
    const char *name;
    /* `self`: what a filter, test or method is applied to; undefined for functions. */
    bool (*call)(struct jinja_run *r, const struct jinja_value *self, const struct jinja_args *args,
                 struct jinja_value *out);
    const char *params[JINJA_MAX_PARAMS]; /* NULL after the last */
    unsigned n_required;
    bool variadic;
};

/* NULL when there is none. */
const struct jinja_builtin *jinja_find_filter(struct jinja_text name);
const struct jinja_builtin *jinja_find_test(struct jinja_text name);
const struct jinja_builtin *jinja_find_function(struct jinja_text name);
const struct jinja_builtin *jinja_find_method(struct jinja_text name, enum jinja_kind on);
/* Whether any kind has it. */
bool jinja_is_method(struct jinja_text name);
/* Which parameter has this name, or -1. */
int jinja_find_param(const struct jinja_builtin *b, struct jinja_text name);

/* The tables, each ended by a row without a name. */
extern const struct jinja_builtin jinja_text_filters[], jinja_list_filters[], jinja_tests[],
    jinja_functions[], jinja_text_methods[], jinja_dict_methods[], jinja_loop_methods[];
