/* starve.h - what a test and the hearthd built for it share: which allocation shall fail, what came of it,
 * what time of day it is, and whether file systems answer. The daemon maps it from the descriptor that
 * STARVE_FD names; the test writes, the daemon counts. Thread: any. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>

#define STARVE_FD "STARVE_FD"

enum starve_whose {
    STARVE_OURS,   /* calls from lib/ and daemon/ */
    STARVE_THEIRS, /* those of the libraries, the C library's own included; not in a sanitized build */
    STARVE_WHOSE,
};

struct starve {
    _Atomic long fails_at[STARVE_WHOSE]; /* the number of the call that fails, from 0; negative: none does */
    _Atomic long n_calls[STARVE_WHOSE];
    _Atomic long n_failed;
    _Atomic long clock_ahead_s; /* CLOCK_REALTIME, as the daemon and its libraries see it */
    _Atomic long close_takes_s; /* how long closing an engine takes by CLOCK_MONOTONIC; no time passes */
    atomic_bool paths_hang;     /* realpath() returns when this is false again */
    _Atomic long n_paths_hung;
    atomic_bool pages_wait;   /* a page of the prefix cache is written once it may */
    _Atomic long n_pages_may; /* so many, as long as pages wait */
    _Atomic long n_held;      /* pieces of ours that have not been freed */
    atomic_bool all_later;    /* all after it fail too */
};
