/* prefault.h - physical memory for a block that was only reserved, taken a little before it is used.
 * The first touch of a page makes the kernel find and clear memory, and where the kernel is a guest its host
 * too: 3 ms for 2 MB have been seen, 40 ms in the middle of a step for the KV pages of two prompts. A thread
 * of low priority touches what comes next while nothing is used, up to AHEAD_BYTES beyond what is in use,
 * and sleeps otherwise. It never changes what the memory holds. Where the kernel cannot do that (before
 * Linux 5.14) nothing happens, and the first use takes the memory as ever. */
#pragma once
#include "base/error.h"
#include "base/memory.h"

#define AHEAD_BYTES ((size_t)256 << 20)

struct ahead;

/* Nothing is touched before the first ahead_use(). The block outlives it. */
int ahead_open(struct ahead **out, const struct memory_block *block, struct error *err);
void ahead_close(struct ahead *a); /* NULL is fine */
/* With every step: the first `used` bytes of the block are in use, or will be at once. Thread: one. */
void ahead_use(struct ahead *a, size_t used);
/* Bytes from the beginning that are in use or were touched. Thread: any. */
size_t ahead_taken(const struct ahead *a);
