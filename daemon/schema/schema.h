/* schema.h - JSON schemas as grammars: drafts 4 to 2020-12, exact or refused by name. A grammar accepts the
 * JSON texts of the instances that the schema allows, with the members in the order of the schema's
 * properties (its own, then those of allOf, anyOf, oneOf, $ref; unknown ones last), whitespace bounded (none,
 * a blank, or a new line with up to 20 blanks) and constrained numbers without exponents. A schema that the
 * automaton cannot enforce is -ENOTSUP, with the keyword and its JSON path: never a looser grammar. `format`
 * asserts in drafts up to 7 and where no $schema is given; formats without a regular form are annotations.
 * Thread: any. Memory: bounded by grammar.h's limits. */
#pragma once
#include "base/error.h"
#include "grammar/grammar.h"

#include <jansson.h>

/* 0, -EINVAL (no schema), -EDOM (nothing satisfies it), -ENOTSUP, -E2BIG, -ENOMEM. */
int schema_compile(struct grammar **out, json_t *schema, struct error *err);
/* The same from text, which is refused when it is deeper or larger than json_scan()'s limits here. */
int schema_compile_text(struct grammar **out, const char *s, size_t n, struct error *err);
