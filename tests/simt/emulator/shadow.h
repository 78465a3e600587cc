/* shadow.h - the last accesses to each byte of memory, and whether they were ordered.
 *
 * One cell per 4-byte word, split into one per byte when an access covers part of a word. A cell keeps the
 * last write and all reads since it that no later read covers. Cells live for one run.
 * Thread: one per shadow. */
#pragma once
#include "clocks.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct access {
    uint32_t column, epoch; /* epoch 0: none; column 0: the host */
    /* enum simt_scope; SIMT_WEAK is a plain access. Two accesses whose scopes include each other's threads
     * never race (PTX ISA 8.0, 8.7, morally strong operations). */
    uint8_t scope;
    uint16_t block;
    const void *pc; /* in the kernel's code, or NULL */
    const struct simt_site *site;
};

/* The accessing agent: its knowledge, and how a new access of it is recorded. */
struct accessor {
    struct access self;
    const struct clock *seen; /* generic accesses that happened before */
    const struct clock
        *writes_seen;    /* the same for writes; differs from `seen` for bulk copies (async proxy) */
    uint32_t own_column; /* accesses of this column are in program order ... */
    uint32_t own_epoch;  /* ... up to this epoch (UINT32_MAX: all); for writes_seen the clock alone decides */
    bool own_writes;     /* own_column orders writes too */
};

struct shadow;

struct shadow *shadow_open(void);
void shadow_close(struct shadow *s);
/* Forgets all accesses. `random`: the run's number, which selects the readers that are dropped when there are
 * too many. */
void shadow_reset(struct shadow *s, uint32_t random);
/* Forgets the accesses to these bytes: they become another block's shared memory. Both ends are multiples of
 * 4. */
void shadow_forget(struct shadow *s, uintptr_t address, size_t size);

enum shadow_verdict { SHADOW_FINE, SHADOW_RACE, SHADOW_NEVER_WRITTEN };
/* Checks and records a read of [address, address+size). On SHADOW_RACE *other is the earlier access and
 * *other_is_write its kind. must_be_written: memory that the host did not fill. */
enum shadow_verdict shadow_read(struct shadow *s, uintptr_t address, size_t size, const struct accessor *by,
                                bool must_be_written, struct access *other, bool *other_is_write);
/* Returns the first address of the range with an access that `by` does not know to have happened before, or
 * 0; records nothing. */
uintptr_t shadow_find_unordered(struct shadow *s, uintptr_t address, size_t size, const struct accessor *by,
                                struct access *other, bool *other_is_write);
enum shadow_verdict shadow_write(struct shadow *s, uintptr_t address, size_t size, const struct accessor *by,
                                 struct access *other, bool *other_is_write);
