/* tool_grammar.h - calls of tools as a grammar: what a model must write, in its format, to call one of them.
 * First what it reasons, if its format has that, then one call or several; or, `lazy`, any text in which
 * calls may come: what opens one in the format's scanner comes only with the whole call, also where the mark
 * is a control token and the model writes its letters. In a reasoning that begins the text such marks are
 * words, unless the scanner hears calls there too. Arguments are what
 * the tool's schema allows, without members that it does not name where it has only `properties`; a schema
 * that cannot be enforced exactly is a JSON object of any members, unless the tool is `strict`. A mark that
 * is a control token of the vocabulary is TOOL_GRAMMAR_CONTROL and its text, a byte that no other text has:
 * so the model writes the token itself, and in no string. Thread: any. Memory: bounded by grammar.h's limits.
 */
#pragma once
#include "base/error.h"
#include "grammar/grammar.h"
#include "toolcall/toolcall.h"

#include <jansson.h>

#define TOOL_GRAMMAR_CONTROL "\xff"

enum tool_grammar_reasoning { REASONING_NONE, REASONING_POSSIBLE, REASONING_OPEN };

struct tool_grammar_options {
    const struct toolcall_format *format;
    const json_t *list;                 /* functions, as OpenAI writes them */
    const struct toolcall_tools *tools; /* the same, by number */
    const json_t *only;                 /* names that may be called; NULL: all */
    bool one;                           /* one call, no more */
    bool lazy; /* calls are optional, with any text around them; of `reasoning` only REASONING_OPEN has an
                  effect */
    enum tool_grammar_reasoning reasoning;
    bool (*is_control)(const void *context, const char *mark);
    const void *context;
};

/* 0, -ENOTSUP (the format's calls are not described; a strict schema), -EINVAL (a name that cannot be
 * written; a strict tool's schema is none), -EDOM (nothing may be called), -E2BIG, -ENOMEM. */
int tool_grammar_compile(struct grammar **out, const struct tool_grammar_options *o, struct error *err);
/* Any text that contains none of n texts; the marks of the format that are control tokens may stand in it. It
 * reads only the options format (or NULL) and is_control. -E2BIG, -ENOMEM. */
int tool_grammar_without(struct grammar **out, const struct tool_grammar_options *o, const char *const *texts,
                         size_t n, struct error *err);
/* Texts of a schema, behind what is reasoned and the header of the answer where the format has one: of the
 * options only format, reasoning and is_control count. Errors as schema_compile(). */
int tool_grammar_of_schema(struct grammar **out, const struct tool_grammar_options *o, json_t *schema,
                           struct error *err);
