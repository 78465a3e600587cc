/* tool_case.h - tools, the grammar of their calls in a format, and which texts it takes. Thread: one. */
#pragma once
#include "chat/tool_list.h"
#include "grammar/matcher.h"
#include "schema/tool_grammar.h"
#include "toolcall/toolcall_writing.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

/* Arguments that are all written, none of them bounded. */
#define OPEN_TOOLS                                                                                           \
    "[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":{\"type\":\"object\","            \
    "\"properties\":{\"n\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":9},"                              \
    "\"word\":{\"type\":\"string\"},\"more\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},"          \
    "\"unit\":{\"enum\":[\"C\",\"F\"]}},\"required\":[\"n\",\"word\",\"more\",\"unit\"],"                    \
    "\"additionalProperties\":false}}},{\"type\":\"function\",\"function\":{\"name\":\"list\"}}]"

static struct arena arena;
static json_t *list;
static struct toolcall_tools tools;

static inline void open_tools(const char *text)
{
    list = json_loads(text, 0, NULL);
    cr_assert(list);
    cr_assert_eq(tool_list_read(&arena, list, &tools), 0);
}

static inline void close_tools(void)
{
    json_decref(list);
    arena_close(&arena);
}

static inline bool none_is_control(const void *context, const char *mark)
{
    (void)context;
    (void)mark;
    return false;
}

static inline struct tool_grammar_options options_of(const char *format)
{
    return (struct tool_grammar_options){
        .format = toolcall_format_find(format), .list = list, .tools = &tools, .is_control = none_is_control};
}

/* Bytes of a text that the grammar takes; -1 when all are taken and the text may not end there. */
static inline long taken(const struct tool_grammar_options *o, const char *text)
{
    struct grammar *g = NULL;
    struct matcher *m = NULL;
    struct error err = {0};
    cr_assert_eq(tool_grammar_compile(&g, o, &err), 0, "%s: %s", toolcall_format_name(o->format), err.text);
    cr_assert_eq(matcher_open(&m, g), 0);
    size_t n = matcher_bytes(m, text, strlen(text));
    bool whole = n == strlen(text) && !matcher_can_end(m);
    matcher_close(m);
    grammar_unref(g);
    return whole ? -1 : (long)n;
}

static inline void expect_taken(const struct tool_grammar_options *o, const char *text)
{
    cr_assert_eq(taken(o, text), (long)strlen(text), "%s: %ld of %s", toolcall_format_name(o->format),
                 taken(o, text), text);
}

static inline void expect_refused(const struct tool_grammar_options *o, const char *text)
{
    cr_assert_neq(taken(o, text), (long)strlen(text), "%s: %s", toolcall_format_name(o->format), text);
}

static inline int refusal(const char *format, const char *text, struct error *err)
{
    struct grammar *g = NULL;
    open_tools(text);
    struct tool_grammar_options o = options_of(format);
    int rc = tool_grammar_compile(&g, &o, err);
    grammar_unref(g);
    close_tools();
    arena = (struct arena){0};
    return rc;
}
