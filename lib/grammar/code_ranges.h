/* code_ranges.h - sets of code points as ranges: what a character class holds. Thread: one per workshop.
 * Memory: the workshop's arena. */
#pragma once
#include "dfa.h"

struct code_range {
    uint32_t lo, hi;
};
struct code_ranges {
    struct code_range *r;
    size_t n, room;
};

/* False when memory or budget has run out. */
bool ranges_add(struct dfa_workshop *shop, struct code_ranges *set, uint32_t lo, uint32_t hi);
bool ranges_add_all(struct dfa_workshop *shop, struct code_ranges *set, const struct code_ranges *more);
/* Sorts the ranges and joins those that touch. */
void ranges_sort(struct code_ranges *set);
/* Replaces a set by all other code points. */
bool ranges_invert(struct dfa_workshop *shop, struct code_ranges *set);
/* Adds the code points with a Unicode property, as \p{name} says it: 0, -EINVAL for an unknown name, -ENOMEM
 * when memory or budget has run out. */
int ranges_add_property(struct dfa_workshop *shop, struct code_ranges *set, const char *name, size_t n);
