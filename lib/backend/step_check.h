/* step_check.h - every index of a step, checked before a decoder may see it.
 * Both backends call it in submit() and begin(). It keeps its own copy of the page tables, as they will be
 * when the step runs, so that a row whose past has no page is refused as well. Thread: one caller. Memory:
 * all is taken in open. */
#pragma once
#include "base/error.h"
#include "abi/step.h"

struct step_limits {
    uint32_t n_slots, n_ctx, n_vocab, n_pages, max_rows;
    uint64_t transfer_bytes, page_bytes; /* the host's transfer buffer, and a page in it */
};

struct step_checker; /* opaque: the fields are in step_check.c */

int step_checker_open(struct step_checker **out, const struct step_limits *limits, struct error *err);
void step_checker_close(struct step_checker *c); /* NULL is fine */

/* 0, or -EINVAL with words that name entry, value and limit; then the checker is as it was before. */
int step_check(struct step_checker *c, const struct step *step, struct error *err);

/* Copies a checked step, of each array only what is in use: a step is 70 KB, a decode step uses a few hundred
 * bytes. What lies behind in `to` stays as it was. */
void step_copy(struct step *to, const struct step *from);
