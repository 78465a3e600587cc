/* suggest.h - "did you mean": the candidate closest to a mistyped word. Pure; any thread. */
#pragma once
#include <stddef.h>

/* Insertions, deletions, substitutions and swaps of neighbours between two words, letter case aside; words
 * longer than 127 bytes are compared by their first 127. */
size_t nearest_distance(const char *a, const char *b);
/* The closest candidate, or NULL when none is close enough to be meant: more than a third of the word (at
 * least 2) would have to change. */
const char *nearest(const char *word, const char *const *candidates, size_t n);
