/* jinja_builtin.c - finds filters, tests, functions and methods by name. */
#include "jinja_builtin.h"

static const struct jinja_builtin *find(const struct jinja_builtin *table, struct jinja_text name)
{
    for (; table->name; table++)
        if (jinja_text_is(name, table->name))
            return table;
    return NULL;
}

const struct jinja_builtin *jinja_find_filter(struct jinja_text name)
{
    const struct jinja_builtin *b = find(jinja_text_filters, name);
    return b ? b : find(jinja_list_filters, name);
}

const struct jinja_builtin *jinja_find_test(struct jinja_text name)
{
    return find(jinja_tests, name);
}

const struct jinja_builtin *jinja_find_function(struct jinja_text name)
{
    return find(jinja_functions, name);
}

const struct jinja_builtin *jinja_find_method(struct jinja_text name, enum jinja_kind on)
{
    if (on == JINJA_TEXT)
        return find(jinja_text_methods, name);
    if (on == JINJA_DICT)
        return find(jinja_dict_methods, name);
    return on == JINJA_LOOP ? find(jinja_loop_methods, name) : NULL;
}

bool jinja_is_method(struct jinja_text name)
{
    /* append() and pop() fail when they are called, as in transformers' immutable sandbox. They are no error
     * of jinja_open(), as most of Kimi K2's template works without them. */
    return find(jinja_text_methods, name) || find(jinja_dict_methods, name) ||
           find(jinja_loop_methods, name) || jinja_text_is(name, "append") || jinja_text_is(name, "pop");
}

int jinja_find_param(const struct jinja_builtin *b, struct jinja_text name)
{
    for (int i = 0; i < JINJA_MAX_PARAMS && b->params[i]; i++)
        if (jinja_text_is(name, b->params[i]))
            return i;
    return -1;
}
