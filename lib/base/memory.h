/* memory.h - large blocks of memory, taken from the system whole, and how much of it there is. */
#pragma once
#include "error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct memory_block {
    void *data; /* zeroed, aligned to a page; physical memory is taken on first touch */
    size_t size;
};

/* `what` names the block in the error. Huge pages are asked for where the block is large enough to gain. */
int memory_take(struct memory_block *b, size_t size, const char *what, struct error *err);
void memory_give(struct memory_block *b); /* an empty one is fine */

/* Bytes a new user of memory can have: the system's estimate, bounded by the limits of our cgroups. */
uint64_t memory_available(void);
