/* jinja_builtin.h - tables of filters, tests, functions and methods. Private to lib/jinja*.c.
 * Thread: any; the tables are constant. Memory: static; the results lie in the arena of the render. */
#pragma once
#include "jinja_node.h"

#define JINJA_MAX_PARAMS 5

struct jinja_run;

struct jinja_args {
    struct jinja_value values[JINJA_MAX_PARAMS]; /* in the order of the parameters */
    bool given[JINJA_MAX_PARAMS];
    struct jinja_list more;  /* positional arguments behind the parameters, of a variadic builtin */
    struct jinja_dict named; /* named arguments that are no parameter, of a variadic builtin */
};

struct jinja_builtin {
    const char *name;
    /* `self` is the value to which a filter, test or method is applied; undefined for a function. */
    bool (*call)(struct jinja_run *r, const struct jinja_value *self, const struct jinja_args *args,
                 struct jinja_value *out);
    const char *params[JINJA_MAX_PARAMS]; /* NULL after the last */
    unsigned n_required;
    bool variadic;
};

/* Return NULL when there is none of this name. */
const struct jinja_builtin *jinja_find_filter(struct jinja_text name);
const struct jinja_builtin *jinja_find_test(struct jinja_text name);
const struct jinja_builtin *jinja_find_function(struct jinja_text name);
const struct jinja_builtin *jinja_find_method(struct jinja_text name, enum jinja_kind on);
/* Tells whether values of any kind have a method of this name. */
bool jinja_is_method(struct jinja_text name);
/* Returns the position of the parameter of this name, or -1. */
int jinja_find_param(const struct jinja_builtin *b, struct jinja_text name);

/* The tables; a row without a name ends each. */
extern const struct jinja_builtin jinja_text_filters[], jinja_list_filters[], jinja_tests[],
    jinja_functions[], jinja_text_methods[], jinja_dict_methods[], jinja_loop_methods[];
