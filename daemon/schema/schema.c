#include "schema.h"
#include "base/hash.h"
#include "grammar/regex.h"
#include "json/json.h"
#include "schema_private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define MAX_VALUES 200000
#define MAX_DEPTH  200

void *schema_take(struct compiler *c, size_t n, size_t size)
{
    if (c->b.failed)
        return NULL;
    void *p = dfa_work(&c->b.shop, 1 + n * size / 256) ? arena_array(&c->b.arena, n + 1, size) : NULL;
    c->b.shop.no_memory |= !p && c->b.shop.work > 0;
    if (!p)
        builder_exhausted(&c->b);
    return p;
}

/* ---- refusals ---- */

/* Writes the pointer of an object of the document, depth first; false when it is not below v. */
static bool find_path(const json_t *v, const json_t *object, char *path, size_t len, size_t room)
{
    const char *key;
    json_t *w;
    size_t i;
    if (v == object)
        return true;
    if (json_is_object(v)) {
        json_object_foreach((json_t *)v, key, w)
        {
            int n = snprintf(path + len, room - len, "/%s", key);
            if ((json_is_object(w) || json_is_array(w)) && n > 0 && (size_t)n < room - len &&
                find_path(w, object, path, len + (size_t)n, room))
                return true;
        }
    } else
        json_array_foreach(v, i, w)
        {
            int n = snprintf(path + len, room - len, "/%zu", i);
            if ((json_is_object(w) || json_is_array(w)) && n > 0 && (size_t)n < room - len &&
                find_path(w, object, path, len + (size_t)n, room))
                return true;
        }
    path[len] = 0;
    return false;
}

int schema_refuse(struct compiler *c, int code, const json_t *schema, const char *keyword, const char *why)
{
    char path[200] = "#";
    if (c->b.failed)
        return code;
    if (schema && !find_path(c->root, schema, path, 1, sizeof path))
        snprintf(path, sizeof path, "#");
    c->named = true;
    if (code == -EINVAL)
        return builder_fail(&c->b, code, "%s at %s: %s", keyword, path, why);
    return builder_fail(&c->b, code, "%s at %s cannot be enforced exactly: %s", keyword, path, why);
}

int schema_exhausted(struct compiler *c, const json_t *schema, const char *keyword)
{
    if (c->b.shop.no_memory)
        return builder_exhausted(&c->b);
    if (!keyword[0]) { /* the schema's most costly keyword is the one to name */
        static const char *const words[] = {"oneOf",     "anyOf", "not", "allOf", "if", "patternProperties",
                                            "properties"};
        keyword = "schema";
        for (size_t i = sizeof words / sizeof *words; i-- > 0;)
            keyword = json_object_get(schema, words[i]) ? words[i] : keyword;
    }
    return schema_refuse(c, -E2BIG, schema, keyword, "it is too large (states, alternatives or work)");
}

/* ---- dialects ---- */

static bool has_key(const json_t *v, const char *name)
{
    const char *key;
    json_t *w;
    size_t i;
    bool found = json_object_get(v, name) != NULL;
    if (json_is_object(v))
        json_object_foreach((json_t *)v, key, w) found = found || has_key(w, name);
    else
        json_array_foreach(v, i, w) found = found || has_key(w, name);
    return found;
}

static int read_dialect(struct compiler *c)
{
    const char *uri = json_string_value(json_object_get(c->root, "$schema"));
    c->exact = has_key(c->root, "unevaluatedProperties") || has_key(c->root, "unevaluatedItems");
    c->assert_formats = true;
    if (!uri && json_object_get(c->root, "$schema"))
        return schema_refuse(c, -EINVAL, c->root, "$schema", "it must be a string");
    if (!uri)
        return 0;
    bool known = strstr(uri, "json-schema.org/") != NULL;
    c->old_refs = known && (strstr(uri, "draft-04") || strstr(uri, "draft-06") || strstr(uri, "draft-07"));
    c->assert_formats = c->old_refs;
    if (known && strstr(uri, "draft-03"))
        return schema_refuse(c, -ENOTSUP, c->root, "$schema", "draft 3 is not supported");
    return known ? 0 : schema_refuse(c, -ENOTSUP, c->root, "$schema", "an unknown dialect");
}

/* ---- rules that all use ---- */

/* Between tokens: nothing, a blank, or a new line with up to 20 blanks. */
static uint32_t emit_space(struct builder *b)
{
    uint32_t start = builder_state(b), line = builder_state(b), end = builder_state(b);
    builder_empty(b, start, end);
    builder_bytes(b, start, ' ', ' ', end, false);
    builder_bytes(b, start, '\n', '\n', line, false);
    builder_bytes(b, line, ' ', ' ', line, true);
    builder_bytes(b, line, '\t', '\t', line, true);
    builder_bounds(b, line, 0, 20);
    builder_empty(b, line, end);
    builder_final(b, end);
    return start;
}

bool schema_begin(struct compiler *c)
{
    struct builder *b = &c->b;
    c->seed = hash_seed();
    c->made = json_array();
    c->all = dfa_all(&b->shop);
    c->numbers = number_text(c, "-?(?:0|[1-9][0-9]*)(?:\\.[0-9]+)?(?:[eE][+-]?[0-9]+)?");
    c->decimals = number_text(c, "-?(?:0|[1-9][0-9]*)(?:\\.[0-9]+)?");
    c->written = number_text(c, "-?(?:0|[1-9][0-9]{0,63})(?:\\.[0-9]{1,32})?(?:[eE][+-]?[0-9]{1,3})?");
    c->digits = number_text(c, "0|-?[1-9][0-9]{0,63}");
    c->integers = number_text(c, "-?(?:0|[1-9][0-9]*)(?:\\.0+)?");
    node_of(c, NULL, 0);
    node_of(c, &(struct atom){json_false(), false}, 1);
    c->space = emit_space(b);
    if (!c->made || !c->all || !c->numbers || !c->decimals || !c->written || !c->digits || !c->integers)
        builder_exhausted(b);
    return !b->failed && read_dialect(c) == 0 && refs_open(c) == 0;
}

/* A limit that was met between keywords gets the name of the schema that was being read. */
static void name_limit(struct compiler *c)
{
    if (c->b.err.code != -E2BIG || c->named)
        return;
    c->b.failed = false;
    c->b.err.code = 0;
    schema_exhausted(c, c->where, "");
}

int schema_compile(struct grammar **out, json_t *schema, struct error *err)
{
    struct compiler c = {.root = schema};
    builder_open(&c.b);
    uint32_t start = 0;
    if (schema_begin(&c)) {
        start = emit_node(&c, node_of_schema(&c, schema));
        emit_all(&c);
    }
    if (c.b.failed)
        name_limit(&c);
    int rc = builder_finish(&c.b, start, out, err);
    json_decref(c.made);
    builder_close(&c.b);
    return rc;
}

int schema_compile_text(struct grammar **out, const char *s, size_t n, struct error *err)
{
    struct json_limits limits = {.max_values = MAX_VALUES, .max_depth = MAX_DEPTH};
    struct api_error refused = {0};
    size_t flags = JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES;
    json_error_t where;
    if (json_scan(s, n, &limits, &refused) < 0)
        return error_set(err, -E2BIG, "%s", refused.message);
    json_t *schema = json_load_wide(s, n, flags, &where);
    if (!schema)
        return error_set(err, -EINVAL, "line %d, column %d: %s", where.line, where.column, where.text);
    int rc = schema_compile(out, schema, err);
    json_decref(schema);
    return rc;
}
