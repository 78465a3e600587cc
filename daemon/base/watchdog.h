/* watchdog.h - whether engine and decoder still live, judged by their heartbeats alone.
 * A decoder lives while its heartbeat changes or it is idle. The engine thread lives while its own changes
 * (it is asked with engine_ping()), or while the decoder's does: on cpu the engine thread is one of the team
 * and may be inside a long step. Silence is counted check by check, and of a gap between two checks at most
 * a quarter of the limit, so a process that was stopped and goes on is not called stalled. Thread: one. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct watchdog {
    uint64_t limit_ns;                            /* 0: everything is alive */
    uint64_t engine_silent_ns, decoder_silent_ns; /* as of the last check */
    /* Private. */
    bool begun, decoder_idle;
    uint64_t checked_ns, engine_ns, decoder_ns;
};

struct watchdog_signs {
    uint64_t now_ns;
    uint64_t engine_ns, decoder_ns; /* times of the last heartbeats; only their change counts */
    bool decoder_idle;              /* nothing in flight */
};

enum watchdog_verdict { WATCHDOG_ALIVE, WATCHDOG_ENGINE_STALLED, WATCHDOG_DECODER_STALLED };

enum watchdog_verdict watchdog_check(struct watchdog *w, const struct watchdog_signs *signs);
