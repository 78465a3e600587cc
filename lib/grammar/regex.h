/* regex.h - regular expressions of ECMA-262, as JSON Schema's `pattern` and clients' `regex` have them, as
 * automata over code points. Classes, \d \w \s (\d and \w are ASCII, \s is ECMA's), \p{...}, groups,
 * alternatives, quantifiers (lazy ones match the same texts) and anchors are held exactly; so is a negative
 * or positive lookahead in front, after ^. Refused by name: other lookaheads, lookbehind, backreferences, \b,
 * flags. Thread: one per workshop. Memory: the workshop's arena. */
#pragma once
#include "base/error.h"
#include "dfa.h"

enum regex_kind {
    REGEX_SEARCH, /* the texts that contain a match: `pattern` */
    REGEX_WHOLE,  /* the texts that match from end to end: `regex` of a request */
};
/* -EINVAL: no regular expression; -ENOTSUP: a construct that is not held; -E2BIG: beyond the workshop's
 * budget; -ENOMEM. The words name the construct and its byte. */
int regex_compile(struct dfa_workshop *shop, const char *s, size_t n, enum regex_kind kind,
                  const struct dfa **out, struct error *err);
