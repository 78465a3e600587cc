/* shadow.h - who touched each byte of memory last, and whether that was ordered.
 *
 * One cell per 4-byte word, split into one per byte when an access covers a word in part. A cell keeps the
 * last write and all reads since it that no later read covers. Cells live for one run. */
#pragma once
#include "clocks.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct access {
    uint32_t column, epoch; /* epoch 0: none */
    bool strong;            /* an ordered access (relaxed or better): no race with another such */
    const void *pc;         /* in the kernel, or NULL */
    const struct simt_site *site;
};

/* The accessing agent: what it knows, and what a new access of it is recorded as. */
struct accessor {
    struct access self;
    const struct clock *seen; /* generic accesses that happened before */
    const struct clock
        *writes_seen;    /* the same for writes; differs from `seen` for bulk copies (async proxy) */
    uint32_t own_column; /* accesses of this column are ordered by the program ... */
    uint32_t own_epoch;  /* ... up to this epoch (UINT32_MAX: all); for writes_seen the clock alone decides */
    bool own_writes;     /* own_column orders writes too */
};

struct shadow;

struct shadow *shadow_open(void);
void shadow_close(struct shadow *s);
/* All memory is as the host left it. `random`: of the run; it says which readers are forgotten when they are
 * too many. */
void shadow_reset(struct shadow *s, uint32_t random);
/* Nobody has touched these bytes: they become another block's shared memory. Both ends are multiples of 4. */
void shadow_forget(struct shadow *s, uintptr_t address, size_t size);

enum shadow_verdict { SHADOW_FINE, SHADOW_RACE, SHADOW_NEVER_WRITTEN };
/* Checks and records a read of [address, address+size). On SHADOW_RACE *other is the earlier access and
 * *other_is_write says what it was. must_be_written: memory that the host did not fill. */
enum shadow_verdict shadow_read(struct shadow *s, uintptr_t address, size_t size, const struct accessor *by,
                                bool must_be_written, struct access *other, bool *other_is_write);
enum shadow_verdict shadow_write(struct shadow *s, uintptr_t address, size_t size, const struct accessor *by,
                                 struct access *other, bool *other_is_write);
