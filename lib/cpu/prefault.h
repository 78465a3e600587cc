/* prefault.h - commits physical memory for a reserved block shortly before it is used.
 * The first touch of a page makes the kernel find and clear memory, and its host too where the kernel is a
 * guest: 3 ms for 2 MB were measured, 40 ms in the middle of a step for the KV pages of two prompts. A thread
 * touches the next pages while the block is idle, up to AHEAD_BYTES beyond the used part, and
 * sleeps otherwise. It never changes the contents. Where the kernel cannot do that (before Linux 5.14) it
 * does nothing, and the first use commits the memory.
 * Thread: open, close and ahead_use() from one thread; ahead_taken() from any. Memory: none but its own
 * state. */
#pragma once
#include "base/error.h"
#include "base/memory.h"

#define AHEAD_BYTES ((size_t)256 << 20)

struct ahead;

/* Starts the thread, which touches nothing before the first ahead_use(). The block must outlive it. */
int ahead_open(struct ahead **out, const struct memory_block *block, struct error *err);
void ahead_close(struct ahead *a); /* NULL is fine */
/* Call with every step: the first `used` bytes of the block are in use or will be at once. */
void ahead_use(struct ahead *a, size_t used);
/* The bytes from the block's start that are in use or were touched. Any thread. */
size_t ahead_taken(const struct ahead *a);
