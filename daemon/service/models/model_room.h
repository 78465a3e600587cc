/* model_room.h - the loaded model that makes room for another. Thread: any; pure. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct model_room_candidate {
    bool ready;       /* it is loaded, and may be closed */
    bool fills;       /* its decoder fills a device: no other can live there beside it */
    bool busy, first; /* it has requests; it serves those that name no model */
    uint64_t idle_ns; /* its last request ended; CLOCK_MONOTONIC */
};

/* The place of the one to go, of those that fill a device, or with `any` of all: without requests, not the
 * first, idle for longest. -1: there is none, and another may be loaded beside them. */
int model_room_choose(const struct model_room_candidate *c, int n, bool any);
