/* load_notice.h - when a load that goes on is worth a message to the service manager: with every percent, so
 * that its status is true, and else every few seconds in which the loading thread got anywhere, so that it
 * goes on waiting for a large tensor on a slow disk. A load that stands still is not heard of. Thread: one.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define LOAD_NOTICE_MS 5000

/* Begins with percent = UINT32_MAX, all else 0. */
struct load_notice {
    uint32_t percent; /* as last said */
    uint64_t moves, said_ns;
};

/* fraction: 0..1 of the load; moves: a number that has grown if the loading thread got anywhere. True: say it
 * now (and it counts as said). */
bool load_notice_due(struct load_notice *n, double fraction, uint64_t moves, uint64_t now_ns);
