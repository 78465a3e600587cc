/* toy_cases.h - a launch of each toy kernel with its buffers, and its expected output. Thread: one per
 * case. */
#pragma once
#include "simt/emulator/emulator.h"

struct toy_case;

struct toy_kind {
    const char *kernel;
    uint32_t n_blocks;
    size_t shared_bytes;
    void (*open)(struct toy_case *c); /* allocates, fills args and maps */
    bool (*right)(const struct toy_case *c);
};

struct toy_case {
    const struct toy_kind *kind;
    struct simt_machine *machine;
    void *buffers[8];
    size_t sizes[8];
    uint32_t n_buffers, n_cleared; /* the first n_cleared are zeroed before each run */
    _Alignas(16) char args[256];
};

extern const struct toy_kind toy_kinds[];
extern const uint32_t n_toy_kinds;

void toy_open(struct toy_case *c, const struct toy_kind *kind);
void toy_close(struct toy_case *c);
/* Runs it once; a wrong result is a report too. Returns 0, or -1 with the report. */
int toy_run(struct toy_case *c, uint32_t sm, uint64_t seed, int mute, struct simt_report *report);
