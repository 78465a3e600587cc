/* jinja_render.h - renders a template with variables written as JSON, for tests. Strings of the JSON are a
 * user's (plain), except roles and tokens. The result lies in `rendered`, which the next call reuses.
 */
#pragma once
#include "jinja/jinja.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <string.h>

static struct {
    struct arena arena;
    struct jinja_text text;
    struct error err;
    struct jinja_limits limits; /* of the next renders */
    int rc;                     /* of opening or rendering */
    bool opened;
} rendered;

static inline struct jinja_value value_of(const json_t *j)
{
    struct arena *a = &rendered.arena;
    const char *name;
    json_t *member;
    switch (json_typeof(j)) {
    case JSON_NULL:
        return jinja_none();
    case JSON_TRUE:
    case JSON_FALSE:
        return jinja_bool(json_is_true(j));
    case JSON_INTEGER:
        return jinja_int(json_integer_value(j));
    case JSON_REAL:
        return jinja_float(json_real_value(j));
    case JSON_STRING:
        return jinja_string(arena_copy(a, json_string_value(j), json_string_length(j)), json_string_length(j),
                            true);
    case JSON_ARRAY: {
        struct jinja_list *list = jinja_list_open(a);
        for (size_t i = 0; i < json_array_size(j); i++)
            cr_assert_eq(jinja_list_add(a, list, value_of(json_array_get(j, i))), 0);
        return jinja_list_value(list);
    }
    default: {
        struct jinja_dict *dict = jinja_dict_open(a);
        json_object_foreach((json_t *)j, name, member)
        {
            struct jinja_value value = value_of(member);
            if (value.kind == JINJA_TEXT && (!strcmp(name, "role") || strstr(name, "_token")))
                value.text.plain = NULL;
            cr_assert_eq(jinja_dict_add(a, dict, jinja_word(arena_copy(a, name, strlen(name))), value), 0);
        }
        return jinja_dict_value(dict);
    }
    }
}

/* 2024-07-26 01:02:03 */
static struct tm test_now = {
    .tm_year = 124, .tm_mon = 6, .tm_mday = 26, .tm_hour = 1, .tm_min = 2, .tm_sec = 3, .tm_wday = 5};

static inline int render_bytes(const char *template, size_t len, const char *json)
{
    struct jinja *t = NULL;
    arena_close(&rendered.arena);
    rendered.err = (struct error){0};
    rendered.rc = jinja_open(&t, template, len, &rendered.err);
    rendered.opened = rendered.rc == 0;
    if (!rendered.opened)
        return rendered.rc;
    json_t *root = json_loads(json, 0, NULL);
    cr_assert_not_null(root, "%s", json);
    struct jinja_input in = {.variables = value_of(root).dict, .now = &test_now, .limits = rendered.limits};
    rendered.rc = jinja_render(t, &in, &rendered.arena, &rendered.text, &rendered.err);
    json_decref(root);
    jinja_close(t);
    return rendered.rc;
}

/* The template's text is exactly this. */
static inline void expect_text(const char *template, const char *json, const char *expected)
{
    int rc = render_bytes(template, strlen(template), json);
    cr_assert_eq(rc, 0, "%s\n%s", template, rendered.err.text);
    cr_assert(jinja_text_is(rendered.text, expected), "%s\ngives\n%.*s\nnot\n%s", template,
              (int)rendered.text.len, rendered.text.s, expected);
}

/* It cannot be opened, and the words say why. */
static inline void expect_refused(const char *template, int rc, const char *words)
{
    render_bytes(template, strlen(template), "{}");
    cr_assert(!rendered.opened && rendered.rc == rc, "%s: %d %s", template, rendered.rc, rendered.err.text);
    cr_assert_not_null(strstr(rendered.err.text, words), "%s: %s", template, rendered.err.text);
}

/* It is opened and fails when it is rendered. */
static inline void expect_fails(const char *template, const char *json, int rc, const char *words)
{
    render_bytes(template, strlen(template), json);
    cr_assert(rendered.opened && rendered.rc == rc, "%s: %d %s", template, rendered.rc, rendered.err.text);
    cr_assert_not_null(strstr(rendered.err.text, words), "%s: %s", template, rendered.err.text);
}

/* Each line of the table is an expression and its text. */
struct expression {
    const char *source, *text;
};

static inline void expect_expressions(const struct expression *all, size_t n, const char *json)
{
    char template[1024];
    for (size_t i = 0; i < n; i++) {
        snprintf(template, sizeof template, "{{ %s }}", all[i].source);
        expect_text(template, json, all[i].text);
    }
}

#define EXPECT_ALL(json, ...)                                                                                \
    expect_expressions((const struct expression[]){__VA_ARGS__},                                             \
                       sizeof((const struct expression[]){__VA_ARGS__}) / sizeof(struct expression), json)
