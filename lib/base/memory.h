/* memory.h - large blocks of memory mapped from the system, and the memory that is available.
 * Thread: any; a block belongs to its owner, and the process keeps a list of those that are promised. Memory:
 * a block lives from memory_map() to memory_unmap(). */
#pragma once
#include "error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns n rounded up to whole cache lines of 64 bytes. */
static inline size_t round64(size_t n)
{
    return (n + 63) / 64 * 64;
}

struct memory_block {
    void *data; /* zeroed, page-aligned; physical memory is committed at first touch */
    size_t size;
};

/* Maps at least `size` bytes into *b. `what` names the block in the error. Blocks of a huge page or more ask
 * for huge pages. Returns 0 or -ENOMEM. */
int memory_map(struct memory_block *b, size_t size, const char *what, struct error *err);
void memory_unmap(struct memory_block *b); /* unmaps it, part by part; an empty block is fine */
/* Parts that were given back since the process began: grows while the kernel takes its time for a large
 * block. */
uint64_t memory_parts_given(void);
/* Reserves what is untouched of the block: memory_available() subtracts it until it is touched or given
 * back. Without memory for the record nothing is reserved. */
void memory_promise(const struct memory_block *b);
/* Bytes of promised blocks that were not touched yet (/proc/self/pagemap; where that cannot be read, all). */
uint64_t memory_promised(void);
/* Opens that file for good: a process that is not dumpable may not later. Before other threads start. */
void memory_keep_pagemap(void);

/* The bytes that a new allocation can use: the system's MemAvailable, bounded by the cgroup limits of this
 * process, less what is promised. UINT64_MAX when neither is known. */
uint64_t memory_available(void);
