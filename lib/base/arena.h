/* arena.h - an allocator for one request or one object: memory is allocated in pieces and freed as a whole.
 * Small pieces come from blocks of ARENA_BLOCK bytes. A large piece has its own allocation, so growing it is
 * a realloc that leaves no hole.
 * Thread: one at a time (for a request: the event loop, or the pool thread that prepares it). Memory:
 * arena_close() frees every piece. Errors: NULL when memory runs out; the arena stays usable. */
#pragma once
#include <stddef.h>

#define ARENA_BLOCK 4096
#ifndef ARENA_LARGE      /* 1 for the fuzzers: the sanitizer then detects reads beyond a piece */
#define ARENA_LARGE 1024 /* bytes; a piece of this size or more has its own allocation */
#endif

struct arena_block;

struct arena { /* zero-initialised is an empty arena */
    struct arena_block *small, *large;
    size_t used;  /* bytes, of the newest small block */
    size_t total; /* bytes allocated from the system */
};

/* n bytes, 16-byte aligned. A piece of zero bytes has an address too. arena_zalloc() zeroes it. */
void *arena_alloc(struct arena *a, size_t n);
void *arena_zalloc(struct arena *a, size_t n);
/* n zeroed items of `size` bytes. NULL also when the product overflows. */
void *arena_array(struct arena *a, size_t n, size_t size);
/* Grows `p` (`old` bytes of this arena, or NULL) to n bytes and returns its new address. On NULL, p is
 * unchanged. */
void *arena_grow(struct arena *a, void *p, size_t old, size_t n);
/* A NUL-terminated copy of n bytes. */
char *arena_copy(struct arena *a, const char *s, size_t n);
void arena_close(struct arena *a);
