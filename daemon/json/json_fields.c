#include "json_fields.h"
#include "base/suggest.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_NAMES 256 /* fields of all tables together */
#define FEW_NAMES 8   /* are listed to who has got one wrong */

const char *field_got(const json_t *value)
{
    static _Thread_local char texts[2][40];
    static _Thread_local unsigned next;
    char *text = texts[next++ % 2];
    if (!value)
        return "nothing";
    switch (json_typeof(value)) {
    case JSON_INTEGER:
        snprintf(text, sizeof texts[0], "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return text;
    case JSON_REAL:
        snprintf(text, sizeof texts[0], "%.6g", json_real_value(value));
        return text;
    case JSON_STRING:
        return "a string";
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return json_array_size(value) ? "an array" : "an empty array";
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    default:
        return "null";
    }
}

const char *field_got_word(const json_t *value)
{
    static _Thread_local char text[48];
    if (!json_is_string(value))
        return field_got(value);
    snprintf(text, sizeof text, "\"%.40s\"", json_string_value(value));
    return text;
}

static unsigned shape_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_STRING:
        return SHAPE_STRING;
    case JSON_OBJECT:
        return SHAPE_OBJECT;
    case JSON_ARRAY:
        return SHAPE_ARRAY;
    case JSON_TRUE:
    case JSON_FALSE:
        return SHAPE_BOOL;
    case JSON_INTEGER:
        return SHAPE_INTEGER;
    default:
        return 0;
    }
}

int field_has_shape(const json_t *value, const char *path, unsigned kinds, struct api_error *err)
{
    static const char *const words[] = {"a string", "an object", "an array", "true or false", "an integer"};
    char wanted[80] = "";
    size_t n = 0;
    if (!value || json_is_null(value) || shape_of(value) & kinds)
        return 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (kinds >> i & 1)
            n += (size_t)snprintf(wanted + n, sizeof wanted - n, "%s%s", n ? " or " : "", words[i]);
    return api_invalid(err, path, "%s must be %s (got %s)", path, wanted, field_got(value));
}

int fields_have_shapes(const json_t *object, const struct field_shape *shapes, struct api_error *err)
{
    for (const struct field_shape *s = shapes; s->name; s++)
        if (field_has_shape(json_object_get(object, s->name), s->name, s->kinds, err) < 0)
            return -1;
    return 0;
}

const char *field_path(const struct field_reader *r, const char *name)
{
    static _Thread_local char texts[2][128];
    static _Thread_local unsigned next;
    if (!r->within)
        return name;
    char *text = texts[next++ % 2];
    snprintf(text, sizeof texts[0], "%s.%.60s", r->within, name);
    return text;
}

static int out_of_range(struct field_reader *r, const char *name, const json_t *value, double min, double max)
{
    if (min == max)
        return api_invalid(r->err, name, "%s must be %.16g (got %s)", name, min, field_got(value));
    return api_invalid(r->err, name, "%s must be between %.16g and %.16g (got %s)", name, min, max,
                       field_got(value));
}

int field_integer(struct field_reader *r, const char *name, const json_t *value, double min, double max,
                  int64_t *out)
{
    double real = json_is_number(value) ? json_number_value(value) : NAN;
    if (!json_is_integer(value) && real != nearbyint(real))
        return api_invalid(r->err, name, "%s must be an integer (got %s)", name, field_got(value));
    if (real < min || real > max)
        return out_of_range(r, name, value, min, max);
    *out = json_is_integer(value) ? json_integer_value(value) : (int64_t)real;
    return 0;
}

static int read_integer(struct field_reader *r, const struct field *f, const json_t *value, void *out)
{
    int64_t v;
    assert(f->min <= f->max &&
           (f->kind != FIELD_U32 || f->max <= UINT32_MAX)); /* the value fits its member */
    if (field_integer(r, field_path(r, f->name), value, f->min, f->max, &v) < 0)
        return -1;
    if (f->kind == FIELD_U64)
        *(uint64_t *)out = (uint64_t)v;
    else if (f->kind == FIELD_U32)
        *(uint32_t *)out = (uint32_t)v;
    else
        *(int32_t *)out = (int32_t)v;
    return 0;
}

static int read_float(struct field_reader *r, const struct field *f, const json_t *value, float *out)
{
    const char *name = field_path(r, f->name);
    if (!json_is_number(value))
        return api_invalid(r->err, name, "%s must be a number (got %s)", name, field_got(value));
    double v = json_number_value(value);
    if (!(v >= f->min && v <= f->max))
        return out_of_range(r, name, value, f->min, f->max);
    *out = (float)v;
    return 0;
}

static int read_bool(struct field_reader *r, const struct field *f, const json_t *value, bool *out)
{
    const char *name = field_path(r, f->name);
    if (!json_is_boolean(value))
        return api_invalid(r->err, name, "%s must be true or false (got %s)", name, field_got(value));
    *out = json_is_true(value);
    return 0;
}

static int read_kind(struct field_reader *r, const struct field *f, const json_t *value)
{
    void *out = (char *)r->out + f->offset;
    switch (f->kind) {
    case FIELD_BOOL:
        return read_bool(r, f, value, out);
    case FIELD_U32:
    case FIELD_I32:
    case FIELD_U64:
        return read_integer(r, f, value, out);
    case FIELD_FLOAT:
        return read_float(r, f, value, out);
    case FIELD_CUSTOM:
        return f->read(r, f, value);
    case FIELD_IGNORED:
        break;
    }
    return 0;
}

/* One value by one row, as fields_read() does. */
static int field_read(struct field_reader *r, const struct field *f, const json_t *value)
{
    if (json_is_null(value))
        return 0;
    if (read_kind(r, f, value) < 0)
        return -1;
    if (f->given)
        *(bool *)((char *)r->out + f->given) = true;
    return 0;
}

static const struct field *find(const struct field *const *tables, size_t n_tables, const char *name)
{
    for (size_t t = 0; t < n_tables; t++)
        for (const struct field *f = tables[t]; f->name; f++)
            if (!strcmp(f->name, name))
                return f;
    return NULL;
}

/* The advice for a member of the body that another route knows; or NULL. */
static const char *known_elsewhere(const struct field_reader *r, const char *name)
{
    for (const struct field_place *p = r->within ? NULL : r->elsewhere; p && p->fields; p++)
        if (find(&p->fields, 1, name))
            return p->words;
    return NULL;
}

static int unknown(struct field_reader *r, const struct field *const *tables, size_t n_tables,
                   const char *name)
{
    const char *names[MAX_NAMES];
    size_t n = 0;
    for (size_t t = 0; t < n_tables; t++)
        for (const struct field *f = tables[t]; f->name; f++) {
            assert(n < MAX_NAMES);
            names[n++] = f->name;
        }
    const char *meant = nearest(name, names, n), *path = field_path(r, name);
    const char *words = known_elsewhere(r, name);
    if (words)
        return api_invalid(r->err, path, "unknown field \"%.120s\" (%s)", path, words);
    if (meant)
        return api_invalid(r->err, path, "unknown field \"%.120s\" (did you mean \"%s\"?)", path,
                           field_path(r, meant));
    if (n > FEW_NAMES)
        return api_invalid(r->err, path, "unknown field \"%.120s\"", path);
    char known[FEW_NAMES * 32] = "";
    for (size_t i = 0; i < n; i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", names[i]);
    return api_invalid(r->err, path, "unknown field \"%.120s\" (known: %s)", path, known);
}

int fields_read(struct field_reader *r, const json_t *object, const struct field *const *tables,
                size_t n_tables)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value)
    {
        const struct field *f = find(tables, n_tables, name);
        if (!f) {
            if (r->ignore_unknown || json_is_null(value))
                continue;
            return unknown(r, tables, n_tables, name);
        }
        if (field_read(r, f, value) < 0)
            return -1;
    }
    return 0;
}
