/* close_watch.h - tells closing models that goes on, however slowly, from one that hangs. Looks are counted,
 * not time, so that a process that was stopped and goes on is not called hung. Thread: one. */
#pragma once
#include <stdint.h>

#define CLOSE_LOOK_MS    500 /* between two looks */
#define CLOSE_STILL_MOST 20  /* looks in a row without a move: much longer than a disk takes for a page */

/* Begins with all 0. */
struct close_watch {
    uint64_t moves;
    uint32_t n_still;
};

enum close_verdict { CLOSE_MOVED, CLOSE_STILL, CLOSE_HANGS };

/* moves: a number that has grown if closing got anywhere. */
enum close_verdict close_watch_look(struct close_watch *w, uint64_t moves);
