/* step_check.h - checks every index of a step before a decoder sees it.
 * Both backends call it in submit() and begin(). It keeps its own copy of the page tables as they will be
 * when the step runs, so it also refuses a row whose past has no page.
 * Thread: one at a time (the engine's). Memory: all is allocated in open. Errors: -EINVAL, -ENOMEM. */
#pragma once
#include "base/error.h"
#include "abi/step.h"

#include <stdbool.h>

struct step_limits {
    uint32_t n_slots, n_ctx, n_vocab, n_pages, max_rows;
    uint32_t n_windows; /* window pages, numbered behind the pages; 0: there are none */
    bool recurrent; /* a slot's rows stand together, and follow one another from position 0 or a state on */
    uint32_t n_states;    /* recurrent states of slots and snapshots; 0: there are no operations on them */
    uint64_t state_bytes; /* of one state */
    uint64_t transfer_bytes, page_bytes; /* bytes of the host's transfer buffer, and of a page in it */
    uint64_t window_bytes;               /* of a window page, the last bytes of a page */
};

struct step_checker; /* opaque: the fields are in step_check.c */

int step_checker_open(struct step_checker **out, const struct step_limits *limits, struct error *err);
void step_checker_close(struct step_checker *c); /* NULL is fine */

/* Sets the number of masks that steps may name from now on; at first there are none. */
void step_checker_masks(struct step_checker *c, uint32_t n_masks);

/* Returns 0, or -EINVAL with words that name entry, value and limit; the checker is then unchanged. */
int step_check(struct step_checker *c, const struct step *step, struct error *err);

/* Copies a checked step, of each array only the entries in use: a step is 70 KB, a decode step uses a few
 * hundred bytes. The remaining entries of `to` are unchanged. */
void step_copy(struct step *to, const struct step *from);
