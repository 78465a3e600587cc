#include "tool_list.h"

#include <errno.h>
#include <string.h>

static bool all_strings(const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!json_is_string(json_array_get(list, i)))
            return false;
    return json_array_size(list) > 0;
}

static bool is_string_type(const json_t *type)
{
    if (json_is_array(type) && json_array_size(type) == 1)
        type = json_array_get(type, 0);
    return json_is_string(type) && !strcmp(json_string_value(type), "string");
}

/* Tells if a schema allows strings alone. */
static bool is_text(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type"), *any = json_object_get(schema, "anyOf");
    if (type)
        return is_string_type(type);
    if (json_is_string(json_object_get(schema, "const")) || all_strings(json_object_get(schema, "enum")))
        return true;
    for (size_t i = 0; i < json_array_size(any); i++)
        if (!is_string_type(json_object_get(json_array_get(any, i), "type")))
            return false;
    return json_array_size(any) > 0;
}

static int read_params(struct arena *a, const json_t *properties, struct toolcall_tool *out)
{
    const char *name;
    const json_t *schema;
    struct toolcall_param *params = arena_array(a, json_object_size(properties), sizeof *params);
    if (!params)
        return -ENOMEM;
    out->params = params;
    json_object_foreach((json_t *)properties, name, schema)
    {
        struct toolcall_param *p = &params[out->n_params++];
        *p = (struct toolcall_param){arena_copy(a, name, strlen(name)), is_text(schema)};
        if (!p->name)
            return -ENOMEM;
    }
    return 0;
}

int tool_list_read(struct arena *a, const json_t *tools, struct toolcall_tools *out)
{
    struct toolcall_tool *list = arena_array(a, json_array_size(tools), sizeof *list);
    *out = (struct toolcall_tools){.list = list};
    if (!list)
        return -ENOMEM;
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        const json_t *name = json_object_get(function, "name");
        struct toolcall_tool *tool = &list[out->n];
        if (!json_is_string(name))
            continue;
        out->n++;
        tool->name = arena_copy(a, json_string_value(name), json_string_length(name));
        const json_t *parameters = json_object_get(function, "parameters");
        if (!tool->name || read_params(a, json_object_get(parameters, "properties"), tool) < 0)
            return -ENOMEM;
    }
    return 0;
}
