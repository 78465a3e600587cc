/* schema_read.c - the keywords of a schema as algebra on value sets. */
#include "base/hash.h"
#include "grammar/regex.h"
#include "schema_private.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define OPEN         UINT32_MAX
#define MAX_IN_PLACE 60 /* schemas inside each other that apply to one value */

static struct set refused(struct compiler *c, json_t *schema, const char *keyword, const char *why)
{
    schema_refuse(c, -ENOTSUP, schema, keyword, why);
    return set_failed();
}

static struct set invalid(struct compiler *c, json_t *schema, const char *keyword, const char *why)
{
    schema_refuse(c, -EINVAL, schema, keyword, why);
    return set_failed();
}

static struct set too_large(struct compiler *c, json_t *schema, const char *keyword)
{
    schema_exhausted(c, schema, keyword);
    return set_failed();
}

/* The values of its own kind that s allows, and every value of the other kinds. */
static struct set and_one(struct compiler *c, struct set all, struct shape *s)
{
    struct set others = set_one(c, s);
    for (int k = 0; s && k < N_KINDS; k++)
        if ((enum kind)k != s->kind)
            others = set_or(c, others, set_of(c, (enum kind)k));
    return set_and(c, all, others);
}

/* ---- literals ---- */

static json_t *const_schema(struct compiler *c, json_t *value)
{
    json_t *schema = json_pack("{s:O}", "const", value);
    if (!schema || json_array_append_new(c->made, schema) < 0) {
        c->b.shop.no_memory = true;
        schema_exhausted(c, NULL, "const");
        return json_null();
    }
    return schema;
}

static struct set text_set(struct compiler *c, enum kind kind, const struct dfa *text)
{
    struct shape *s = text ? shape_new(c, kind) : NULL;
    if (!s)
        return set_failed();
    s->text = text;
    return set_one(c, s);
}

static struct set literal_array(struct compiler *c, json_t *value)
{
    struct shape *s = shape_new(c, KIND_ARRAY);
    struct item *p = schema_take(c, json_array_size(value), sizeof *p);
    if (!s || !p)
        return set_failed();
    s->n_prefix = s->min = s->max = (uint32_t)json_array_size(value);
    s->prefix = p;
    s->rest.node = SCHEMA_FALSE;
    for (uint32_t i = 0; i < s->n_prefix; i++)
        p[i].node = node_of_schema(c, const_schema(c, json_array_get(value, i)));
    return set_one(c, s);
}

static struct set literal_object(struct compiler *c, json_t *value)
{
    struct shape *s = shape_new(c, KIND_OBJECT);
    const char *key;
    json_t *v;
    if (!s)
        return set_failed();
    s->classes[0].node = SCHEMA_FALSE;
    json_object_foreach(value, key, v)
    {
        int64_t i = shape_member(c, s, key);
        if (i < 0)
            return set_failed();
        s->members[i].node = node_of_schema(c, const_schema(c, v));
        s->members[i].required = true;
    }
    return set_one(c, s);
}

static struct set schema_literal(struct compiler *c, json_t *value, json_t *schema)
{
    (void)schema;
    switch (json_typeof(value)) {
    case JSON_NULL:
        return set_of(c, KIND_NULL);
    case JSON_TRUE:
        return set_of(c, KIND_TRUE);
    case JSON_FALSE:
        return set_of(c, KIND_FALSE);
    case JSON_INTEGER:
    case JSON_REAL:
        return text_set(c, KIND_NUMBER, number_literal(c, value));
    case JSON_STRING:
        return text_set(c, KIND_STRING,
                        dfa_utf8(&c->b.shop, json_string_value(value), json_string_length(value)));
    case JSON_ARRAY:
        return literal_array(c, value);
    default:
        return literal_object(c, value);
    }
}

/* All strings of a list at once: a set of a thousand names is one automaton. */
static struct set literal_strings(struct compiler *c, json_t *list)
{
    struct nfa n;
    size_t i;
    json_t *v;
    nfa_open(&n, &c->b.shop);
    json_array_foreach(list, i, v)
    {
        if (!json_is_string(v))
            continue;
        nfa_text(&n, json_string_value(v), json_string_length(v));
    }
    return text_set(c, KIND_STRING, nfa_dfa(&n));
}

static struct set literals(struct compiler *c, json_t *schema, json_t *list)
{
    struct set out = set_none();
    bool strings = false;
    size_t i;
    json_t *v;
    if (!json_is_array(list))
        return invalid(c, schema, "enum", "it must be a list");
    json_array_foreach(list, i, v)
    {
        if (json_is_string(v))
            strings = true;
        else
            out = set_or(c, out, schema_literal(c, v, schema));
    }
    return strings ? set_or(c, out, literal_strings(c, list)) : out;
}

/* ---- type ---- */

static struct set type_named(struct compiler *c, json_t *schema, const char *name)
{
    static const struct {
        const char *name;
        enum kind kind;
    } kinds[] = {{"null", KIND_NULL},
                 {"number", KIND_NUMBER},
                 {"string", KIND_STRING},
                 {"array", KIND_ARRAY},
                 {"object", KIND_OBJECT}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kinds[i].name, name))
            return set_of(c, kinds[i].kind);
    if (!strcmp(name, "boolean"))
        return set_or(c, set_of(c, KIND_FALSE), set_of(c, KIND_TRUE));
    if (!strcmp(name, "integer"))
        return text_set(c, KIND_NUMBER, c->integers);
    return invalid(c, schema, "type", "an unknown type");
}

static struct set read_type(struct compiler *c, json_t *schema, json_t *type)
{
    struct set out = set_none();
    size_t i;
    json_t *v;
    if (json_is_string(type))
        return type_named(c, schema, json_string_value(type));
    if (!json_is_array(type))
        return invalid(c, schema, "type", "it must be a name or a list of names");
    json_array_foreach(type, i, v)
    {
        if (!json_is_string(v))
            return invalid(c, schema, "type", "it must be a name or a list of names");
        /* "number" holds "integer": their union keeps the exponents of a number */
        out = set_or(c, out, type_named(c, schema, json_string_value(v)));
    }
    return out;
}

/* ---- numbers and strings ---- */

static struct set and_text(struct compiler *c, struct set all, enum kind kind, const struct dfa *text,
                           json_t *schema, const char *keyword)
{
    if (!text)
        return too_large(c, schema, keyword);
    struct shape *s = shape_new(c, kind);
    if (s)
        s->text = text;
    return and_one(c, all, s);
}

static struct set read_bound(struct compiler *c, struct set all, json_t *schema, const char *keyword,
                             bool least, bool strict)
{
    json_t *v = json_object_get(schema, keyword);
    if (!v || all.failed || json_is_boolean(v)) /* draft 4: true makes the other bound strict */
        return all;
    if (!json_is_number(v))
        return invalid(c, schema, keyword, "it must be a number");
    json_t *flag = json_object_get(schema, least ? "exclusiveMinimum" : "exclusiveMaximum");
    strict |= !strict && json_is_true(flag);
    return and_text(c, all, KIND_NUMBER, number_bound(c, v, least, strict), schema, keyword);
}

static struct set read_numbers(struct compiler *c, struct set all, json_t *schema)
{
    json_t *multiple = json_object_get(schema, "multipleOf");
    all = read_bound(c, all, schema, "minimum", true, false);
    all = read_bound(c, all, schema, "maximum", false, false);
    all = read_bound(c, all, schema, "exclusiveMinimum", true, true);
    all = read_bound(c, all, schema, "exclusiveMaximum", false, true);
    if (!multiple || all.failed)
        return all;
    if (!json_is_number(multiple) || json_number_value(multiple) <= 0)
        return invalid(c, schema, "multipleOf", "it must be a number above 0");
    const struct dfa *text = number_multiple(c, multiple);
    if (!text && !c->b.failed)
        return refused(c, schema, "multipleOf", "a divisor of so many digits needs too many states");
    return and_text(c, all, KIND_NUMBER, text, schema, "multipleOf");
}

/* A count, which may be written 2.0. *out is kept when the keyword is missing. No text has four billion of
 * anything: a maximum of so many is none. */
static bool read_count(struct compiler *c, json_t *schema, const char *keyword, uint32_t *out)
{
    json_t *v = json_object_get(schema, keyword);
    if (!v)
        return true;
    double x = json_number_value(v);
    if (!json_is_number(v) || x < 0 || x != floor(x)) {
        schema_refuse(c, -EINVAL, schema, keyword, "it must be a whole number from 0");
        return false;
    }
    *out = x < 4e9 ? (uint32_t)x : !strncmp(keyword, "max", 3) ? OPEN : OPEN - 1;
    return true;
}

static const struct dfa *read_pattern(struct compiler *c, json_t *schema, const char *keyword, const char *s,
                                      size_t n, enum regex_kind kind)
{
    const struct dfa *a = NULL;
    struct error err = {0};
    int rc = regex_compile(&c->b.shop, s, n, kind, &a, &err);
    if (rc < 0)
        schema_refuse(c, rc, schema, keyword, err.text);
    return a;
}

static struct set read_strings(struct compiler *c, struct set all, json_t *schema)
{
    json_t *pattern = json_object_get(schema, "pattern"), *format = json_object_get(schema, "format");
    struct shape *s = shape_new(c, KIND_STRING);
    if (!s || !read_count(c, schema, "minLength", &s->min) || !read_count(c, schema, "maxLength", &s->max))
        return set_failed();
    if (s->min > s->max)
        s->text = dfa_none(&c->b.shop);
    if (s->min > 0 || s->max != OPEN)
        all = s->min > s->max ? set_and(c, all, set_not(c, set_of(c, KIND_STRING))) : and_one(c, all, s);
    if (pattern && !json_is_string(pattern))
        return invalid(c, schema, "pattern", "it must be a string");
    if (pattern && !all.failed)
        all = and_text(c, all, KIND_STRING,
                       read_pattern(c, schema, "pattern", json_string_value(pattern),
                                    json_string_length(pattern), REGEX_SEARCH),
                       schema, "pattern");
    const char *regex =
        json_is_string(format) && c->assert_formats ? format_regex(json_string_value(format)) : NULL;
    if (json_is_string(format) && c->assert_formats && format_is_irregular(json_string_value(format)))
        return refused(c, schema, "format", "no regular expression describes all regular expressions");
    if (regex && !all.failed)
        all =
            and_text(c, all, KIND_STRING,
                     read_pattern(c, schema, "format", regex, strlen(regex), REGEX_WHOLE), schema, "format");
    return all;
}

/* ---- arrays ---- */

static bool read_items(struct compiler *c, json_t *schema, struct shape *s)
{
    json_t *prefix = json_object_get(schema, "prefixItems"), *items = json_object_get(schema, "items");
    json_t *rest = items;
    if (!prefix && json_is_array(items)) { /* until 2019-09 */
        prefix = items;
        rest = json_object_get(schema, "additionalItems");
    }
    size_t n = json_array_size(prefix);
    s->prefix = schema_take(c, n, sizeof *s->prefix);
    if (!s->prefix || n > 10000)
        return false;
    for (uint32_t i = 0; i < n; i++)
        s->prefix[i] = (struct item){node_of_schema(c, json_array_get(prefix, i)), true};
    s->n_prefix = (uint32_t)n;
    if (rest)
        s->rest = (struct item){node_of_schema(c, rest), true};
    return true;
}

static bool read_contains(struct compiler *c, json_t *schema, struct shape *s)
{
    json_t *contains = json_object_get(schema, "contains");
    struct contains k = {.min = 1, .max = OPEN};
    if (!contains)
        return true;
    if (!read_count(c, schema, "minContains", &k.min) || !read_count(c, schema, "maxContains", &k.max))
        return false;
    k.node = node_of_schema(c, contains);
    s->contains = schema_take(c, 1, sizeof k);
    if (!s->contains)
        return false;
    s->contains[0] = k;
    s->n_contains = k.min > 0 || k.max != OPEN || c->exact;
    return true;
}

static struct set read_arrays(struct compiler *c, struct set all, json_t *schema)
{
    static const char *const words[] = {"items",    "prefixItems", "contains",
                                        "minItems", "maxItems",    "uniqueItems"};
    struct shape *s = shape_new(c, KIND_ARRAY);
    bool any = false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        any |= json_object_get(schema, words[i]) != NULL;
    if (!any || all.failed)
        return all;
    if (!s || !read_items(c, schema, s) || !read_contains(c, schema, s) ||
        !read_count(c, schema, "minItems", &s->min) || !read_count(c, schema, "maxItems", &s->max))
        return too_large(c, schema, "items");
    s->unique = json_is_true(json_object_get(schema, "uniqueItems"));
    return and_one(c, all, s);
}

/* ---- objects ---- */

static bool read_patterns(struct compiler *c, json_t *schema, struct shape *s)
{
    const char *key;
    json_t *v;
    json_object_foreach(json_object_get(schema, "patternProperties"), key, v)
    {
        const struct dfa *keys = read_pattern(c, schema, "patternProperties", key, strlen(key), REGEX_SEARCH);
        if (!keys || !shape_split_class(c, s, keys, node_of_schema(c, v)))
            return false;
    }
    return true;
}

static bool read_properties(struct compiler *c, json_t *schema, struct shape *s)
{
    const char *key;
    json_t *v;
    json_object_foreach(json_object_get(schema, "properties"), key, v)
    {
        int64_t i = shape_member(c, s, key);
        if (i < 0)
            return false;
        s->members[i].node = node_and(c, s->members[i].node, node_of_schema(c, v));
        s->members[i].evaluated = true;
    }
    return true;
}

static void read_additional(struct compiler *c, json_t *schema, struct shape *s)
{
    json_t *v = json_object_get(schema, "additionalProperties");
    for (uint32_t i = 0; v && i < s->n_classes; i++) {
        if (s->classes[i].evaluated)
            continue;
        s->classes[i].node = node_of_schema(c, v);
        s->classes[i].evaluated = true;
    }
}

static bool read_required(struct compiler *c, json_t *schema, struct shape *s)
{
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(schema, "required"), i, v)
    {
        int64_t m = shape_member(c, s, json_string_value(v));
        if (m < 0)
            return false;
        s->members[m].required = true;
    }
    return true;
}

/* The names that a schema of names allows, as one automaton. */
static const struct dfa *names_of(struct compiler *c, json_t *names)
{
    struct set set = schema_set(c, names, false);
    const struct dfa *out = dfa_none(&c->b.shop);
    for (uint32_t i = 0; i < set.n && out; i++) {
        if (set.s[i]->kind != KIND_STRING)
            continue;
        const struct dfa *text = set.s[i]->text ? set.s[i]->text : c->all;
        text = dfa_length(&c->b.shop, text, set.s[i]->min, set.s[i]->max);
        out = text ? dfa_combine(&c->b.shop, DFA_OR, out, text) : NULL;
    }
    return set.failed ? NULL : out;
}

static bool read_names(struct compiler *c, json_t *schema, struct shape *s)
{
    json_t *names = json_object_get(schema, "propertyNames");
    if (!names)
        return true;
    const struct dfa *allowed = names_of(c, names);
    const struct dfa *others = allowed ? dfa_not(&c->b.shop, allowed) : NULL;
    if (!others)
        return false;
    struct shape *only = shape_new(c, KIND_OBJECT);
    if (!only || !shape_split_class(c, only, others, SCHEMA_FALSE))
        return false;
    for (uint32_t i = 0; i < only->n_classes; i++)
        only->classes[i].evaluated = false;
    struct set both = set_and(c, set_one(c, s), set_one(c, only));
    if (both.failed)
        return false;
    if (both.n == 1)
        *s = *both.s[0];
    else
        s->max = 0, s->min = 1; /* nothing is left */
    return true;
}

static struct set read_objects(struct compiler *c, struct set all, json_t *schema)
{
    static const char *const words[] = {"properties",   "patternProperties", "additionalProperties",
                                        "required",     "propertyNames",     "minProperties",
                                        "maxProperties"};
    struct shape *s = shape_new(c, KIND_OBJECT);
    bool any = false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        any |= json_object_get(schema, words[i]) != NULL;
    if (!any || all.failed)
        return all;
    if (!s || !read_patterns(c, schema, s) || !read_properties(c, schema, s))
        return too_large(c, schema, "properties");
    read_additional(c, schema, s);
    if (!read_required(c, schema, s) || !read_count(c, schema, "minProperties", &s->min) ||
        !read_count(c, schema, "maxProperties", &s->max) || !read_names(c, schema, s))
        return too_large(c, schema, "required");
    return and_one(c, all, s);
}

/* ---- in-place schemas ---- */

static struct set read_all_of(struct compiler *c, struct set all, json_t *list)
{
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) all = set_and(c, all, schema_set(c, v, false));
    return all;
}

/* Every branch that holds marks what it evaluates, so with unevaluated* each combination is its own set. */
static struct set any_of_exact(struct compiler *c, json_t *list)
{
    struct set some = set_none(), none = set_any(c);
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v)
    {
        struct set is = schema_set(c, v, false), not = schema_set(c, v, true);
        struct set more = set_or(c, set_and(c, some, is), set_and(c, some, not ));
        some = set_or(c, more, set_and(c, none, is));
        none = set_and(c, none, not );
    }
    return some;
}

static struct set read_any_of(struct compiler *c, json_t *list)
{
    struct set out = set_none();
    size_t i;
    json_t *v;
    if (c->exact)
        return any_of_exact(c, list);
    json_array_foreach(list, i, v) out = set_or(c, out, schema_set(c, v, false));
    return out;
}

static struct set read_one_of(struct compiler *c, json_t *list)
{
    struct set out = set_none();
    size_t n = json_array_size(list);
    for (size_t i = 0; i < n && !out.failed; i++) {
        struct set one = schema_set(c, json_array_get(list, i), false);
        for (size_t j = 0; j < n && !one.failed; j++) {
            json_t *other = json_array_get(list, j);
            struct set both = j == i ? set_none() : set_and(c, one, schema_set(c, other, false));
            if (both.failed)
                return both;
            if (both.n > 0)
                one = set_and(c, one, schema_set(c, other, true));
        }
        out = set_or(c, out, one);
    }
    return out;
}

static struct set read_condition(struct compiler *c, struct set all, json_t *schema)
{
    json_t *test = json_object_get(schema, "if"), *then = json_object_get(schema, "then");
    json_t *otherwise = json_object_get(schema, "else");
    if (!test || (!then && !otherwise && !c->exact) || all.failed)
        return all;
    struct set yes = set_and(c, all, schema_set(c, test, false)),
               no = set_and(c, all, schema_set(c, test, true));
    if (then)
        yes = set_and(c, yes, schema_set(c, then, false));
    if (otherwise)
        no = set_and(c, no, schema_set(c, otherwise, false));
    return set_or(c, yes, no);
}

/* Objects without the key, and those with it that are also of `more`; all other kinds. */
static struct set dependent(struct compiler *c, struct set all, const char *key, struct set more)
{
    struct shape *without = shape_new(c, KIND_OBJECT), *with = shape_new(c, KIND_OBJECT);
    int64_t i = without ? shape_member(c, without, key) : -1, j = with ? shape_member(c, with, key) : -1;
    if (i < 0 || j < 0)
        return set_failed();
    without->members[i].node = SCHEMA_FALSE;
    with->members[j].required = true;
    struct set others = set_none();
    for (int k = 0; k < N_KINDS; k++)
        if (k != KIND_OBJECT)
            others = set_or(c, others, set_of(c, (enum kind)k));
    others = set_or(c, others, set_one(c, without));
    return set_and(c, all, set_or(c, others, set_and(c, set_one(c, with), more)));
}

static struct set required_set(struct compiler *c, json_t *names)
{
    struct shape *s = shape_new(c, KIND_OBJECT);
    size_t i;
    json_t *v;
    json_array_foreach(names, i, v)
    {
        int64_t m = s ? shape_member(c, s, json_string_value(v)) : -1;
        if (m < 0)
            return set_failed();
        s->members[m].required = true;
    }
    return set_one(c, s);
}

static struct set read_dependents(struct compiler *c, struct set all, json_t *schema)
{
    static const char *const words[] = {"dependentRequired", "dependentSchemas", "dependencies"};
    for (size_t w = 0; w < 3; w++) {
        const char *key;
        json_t *v;
        json_object_foreach(json_object_get(schema, words[w]), key, v)
        {
            struct set more = json_is_array(v) ? required_set(c, v) : schema_set(c, v, false);
            all = dependent(c, all, key, more);
        }
    }
    return all;
}

/* ---- what no keyword has looked at ---- */

static struct set read_unevaluated(struct compiler *c, struct set all, json_t *schema)
{
    json_t *members = json_object_get(schema, "unevaluatedProperties");
    json_t *items = json_object_get(schema, "unevaluatedItems");
    if ((!members && !items) || all.failed)
        return all;
    uint32_t node_m = members ? node_of_schema(c, members) : SCHEMA_TRUE;
    uint32_t node_i = items ? node_of_schema(c, items) : SCHEMA_TRUE;
    struct set out = set_none();
    for (uint32_t i = 0; i < all.n; i++) {
        struct shape *s = shape_copy(c, all.s[i]);
        if (!s)
            return set_failed();
        if (items && s->n_contains)
            return refused(c, schema, "unevaluatedItems", "together with contains");
        for (uint32_t k = 0; members && k < s->n_members; k++)
            if (!s->members[k].evaluated)
                s->members[k] = (struct member){s->members[k].key, node_and(c, s->members[k].node, node_m),
                                                s->members[k].required, true};
        for (uint32_t k = 0; members && k < s->n_classes; k++)
            if (!s->classes[k].evaluated)
                s->classes[k] =
                    (struct key_class){s->classes[k].keys, node_and(c, s->classes[k].node, node_m), true};
        for (uint32_t k = 0; items && k < s->n_prefix; k++)
            if (!s->prefix[k].evaluated)
                s->prefix[k] = (struct item){node_and(c, s->prefix[k].node, node_i), true};
        if (items && s->kind == KIND_ARRAY && !s->rest.evaluated)
            s->rest = (struct item){node_and(c, s->rest.node, node_i), true};
        out = set_or(c, out, set_one(c, s));
    }
    return set_and(c, out, set_any(c)); /* removes shapes that have become empty */
}

/* ---- a schema ---- */

static struct set read_ref(struct compiler *c, struct set all, json_t *schema, const char *keyword)
{
    json_t *ref = json_object_get(schema, keyword);
    if (!ref || all.failed)
        return all;
    if (!json_is_string(ref))
        return invalid(c, schema, keyword, "it must be a string");
    json_t *target = refs_find(c, schema, json_string_value(ref));
    if (!target && !c->b.shop.work) /* the search has ended early */
        return too_large(c, schema, keyword);
    if (!target)
        return refused(c, schema, keyword, "its target is not in this document");
    if (strcmp(keyword, "$ref") != 0 && !refs_is_static(c, target, json_string_value(ref)))
        return refused(c, schema, keyword, "its target depends on where it is used");
    return set_and(c, all, schema_set(c, target, false));
}

static struct set read_applicators(struct compiler *c, struct set all, json_t *schema)
{
    json_t *not = json_object_get(schema, "not"), *any_of = json_object_get(schema, "anyOf");
    json_t *one_of = json_object_get(schema, "oneOf");
    all = read_all_of(c, all, json_object_get(schema, "allOf"));
    if (any_of && !all.failed)
        all = set_and(c, all, read_any_of(c, any_of));
    if (one_of && !all.failed)
        all = set_and(c, all, read_one_of(c, one_of));
    if (not &&!all.failed)
        all = set_and(c, all, schema_set(c, not, true));
    all = read_condition(c, all, schema);
    return read_dependents(c, all, schema);
}

static struct set read_schema(struct compiler *c, json_t *schema)
{
    if (json_is_true(schema))
        return set_any(c);
    if (json_is_false(schema))
        return set_none();
    if (!json_is_object(schema))
        return invalid(c, schema, "schema", "it must be an object, true or false");
    if (json_is_boolean(json_object_get(schema, "required")))
        return refused(c, schema, "required", "draft 3 is not supported");
    json_t *type = json_object_get(schema, "type"), *list = json_object_get(schema, "enum");
    json_t *value = json_object_get(schema, "const");
    if (c->old_refs && json_object_get(schema, "$ref"))
        return read_ref(c, set_any(c), schema, "$ref");
    if (!keywords_fit(c, schema))
        return set_failed();
    struct set all = type ? read_type(c, schema, type) : set_any(c);
    if (list && !all.failed)
        all = set_and(c, all, literals(c, schema, list));
    if (value && !all.failed)
        all = set_and(c, all, schema_literal(c, value, schema));
    all = read_numbers(c, all, schema);
    all = all.failed ? all : read_strings(c, all, schema);
    all = read_arrays(c, all, schema);
    all = read_objects(c, all, schema);
    all = read_ref(c, all, schema, "$ref");
    all = read_ref(c, all, schema, "$dynamicRef");
    all = read_ref(c, all, schema, "$recursiveRef");
    all = all.failed ? all : read_applicators(c, all, schema);
    all = read_unevaluated(c, all, schema);
    return c->b.failed ? set_failed() : all;
}

static struct memo_set *memo_slot(struct compiler *c, json_t *schema, bool negated)
{
    if (2 * (c->n_memos[negated] + 1) > c->memo_mask[negated]) {
        uint32_t old = c->memo_mask[negated] ? c->memo_mask[negated] + 1 : 0, size = old ? 2 * old : 256;
        struct memo_set *m = schema_take(c, size, sizeof *m), *before = c->memos[negated];
        if (!m)
            return NULL;
        c->memos[negated] = m;
        c->memo_mask[negated] = size - 1;
        for (uint32_t i = 0; i < old; i++)
            if (before[i].schema)
                *memo_slot(c, before[i].schema, negated) = before[i];
    }
    for (uint64_t h = hash_word(c->seed, (uintptr_t)schema);; h++) {
        struct memo_set *m = &c->memos[negated][h & c->memo_mask[negated]];
        if (!m->schema || m->schema == schema)
            return m;
    }
}

struct set schema_set(struct compiler *c, json_t *schema, bool negated)
{
    struct memo_set *m = c->b.failed ? NULL : memo_slot(c, schema, negated);
    if (!m)
        return set_failed();
    if (m->schema && m->state == 2)
        return m->set;
    if (m->schema)
        return refused(c, schema, "$ref", "it refers to itself without a member or an item between");
    c->where = schema;
    m->schema = schema;
    m->state = 1;
    c->n_memos[negated]++;
    if (++c->depth > MAX_IN_PLACE)
        return too_large(c, schema, "$ref");
    struct set set = negated ? set_not(c, schema_set(c, schema, false)) : read_schema(c, schema);
    c->depth--;
    if (set.failed && !c->b.failed)
        schema_exhausted(c, schema, "");
    m = memo_slot(c, schema, negated);
    if (m) {
        m->schema = schema;
        m->set = set;
        m->state = 2;
    }
    return set;
}
