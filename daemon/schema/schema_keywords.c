/* schema_keywords.c - the JSON types of keywords. A keyword of another type would be passed over, and the
 * grammar would be looser than the schema says: it is refused by name. */
#include "schema_private.h"

#include <errno.h>

enum form { OBJECT, LIST, STRING, FLAG, NAMES, LISTS_OF_NAMES, BOUND };

static const struct {
    const char *name;
    enum form form;
    const char *words;
} keywords[] = {
    {"properties", OBJECT, "it must be an object"},
    {"patternProperties", OBJECT, "it must be an object"},
    {"dependentSchemas", OBJECT, "it must be an object"},
    {"dependentRequired", LISTS_OF_NAMES, "it must be an object of lists of names"},
    {"dependencies", OBJECT, "it must be an object"},
    {"required", NAMES, "it must be a list of names"},
    {"allOf", LIST, "it must be a list"},
    {"anyOf", LIST, "it must be a list"},
    {"oneOf", LIST, "it must be a list"},
    {"prefixItems", LIST, "it must be a list"},
    {"uniqueItems", FLAG, "it must be true or false"},
    {"format", STRING, "it must be a string"},
    {"minimum", BOUND, "it must be a number"},
    {"maximum", BOUND, "it must be a number"},
};

static bool are_names(const json_t *list)
{
    bool names = json_is_array(list);
    for (size_t i = 0; names && i < json_array_size(list); i++)
        names = json_is_string(json_array_get(list, i));
    return names;
}

static bool are_lists_of_names(const json_t *object)
{
    bool lists = json_is_object(object);
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)object, key, v) lists = lists && are_names(v);
    return lists;
}

static bool fits(const json_t *v, enum form form)
{
    switch (form) {
    case OBJECT:
        return json_is_object(v);
    case LIST:
        return json_is_array(v);
    case STRING:
        return json_is_string(v);
    case FLAG:
        return json_is_boolean(v);
    case NAMES:
        return are_names(v);
    case LISTS_OF_NAMES:
        return are_lists_of_names(v);
    default:
        return json_is_number(v);
    }
}

/* In dependencies a list holds names; all else is a schema. */
static bool dependencies_fit(const json_t *object)
{
    const char *key;
    json_t *v;
    bool fit = true;
    json_object_foreach((json_t *)object, key, v) fit = fit && (!json_is_array(v) || are_names(v));
    return fit;
}

bool keywords_fit(struct compiler *c, json_t *schema)
{
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++) {
        const json_t *v = json_object_get(schema, keywords[i].name);
        if (v && !fits(v, keywords[i].form)) {
            schema_refuse(c, -EINVAL, schema, keywords[i].name, keywords[i].words);
            return false;
        }
    }
    if (dependencies_fit(json_object_get(schema, "dependencies")))
        return true;
    schema_refuse(c, -EINVAL, schema, "dependencies", "a list in it must hold names");
    return false;
}
