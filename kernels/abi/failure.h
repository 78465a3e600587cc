/* failure.h - the record of a wait that failed: written by device/dependency.h, copied by the I/O warp into
 * decoder_control.error from FLOW_WHAT on, put into words by lib/cuda/cuda_watch.c.
 * Thread: any, host or device. */
#pragma once
#include <stdint.h>

/* The abort word and the record behind it, in device memory; the host clears them before a launch. The record
 * may be read after an acquire of the abort word. */
enum flow_word {
    FLOW_ABORT,   /* reason to end, or 0 */
    FLOW_CLAIMED, /* failures so far: only the first one's record counts */
    FLOW_WHAT,    /* the counter (words from the guard's first one), or one of these + a number */
    FLOW_VALUE,   /* its value */
    FLOW_TARGET,  /* the value that was waited for */
    FLOW_OP,
    FLOW_BLOCK,
    FLOW_WORDS,
};
#define FLOW_STAGE  0x80000000u /* + a stage of the ring */
#define FLOW_HEAD   0x40000000u /* + a head of attention, of which a split's part is missing */
#define FLOW_VALUES 0x20000000u /* values of the previous op (words.h) */
#define FLOW_GATE   0x10000000u /* a gate between the compute warps and the producer (step_gate.h) */
