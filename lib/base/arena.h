/* arena.h - memory of one request or one object: taken piece by piece, freed whole.
 * Small pieces come from blocks of ARENA_BLOCK bytes; a large one has its own allocation, so that growing it
 * is a realloc and leaves nothing behind. Thread: one at a time (for a request: the loop, or the pool thread
 * that prepares it). Memory: everything is gone with arena_close(). */
#pragma once
#include <stddef.h>

#define ARENA_BLOCK 4096
#ifndef ARENA_LARGE      /* 1 for the fuzzers, whose sanitizer then sees what reads beyond a piece */
#define ARENA_LARGE 1024 /* bytes from which a piece has its own allocation */
#endif

struct arena_block;

struct arena { /* zero-initialised is an empty arena */
    struct arena_block *small, *large;
    size_t used;  /* of the newest small block */
    size_t total; /* bytes taken from the system */
};

/* 16-byte aligned; NULL when memory has run out. Zero bytes give a pointer all the same. */
void *arena_alloc(struct arena *a, size_t n);
void *arena_zalloc(struct arena *a, size_t n);
/* n items of `size` bytes; NULL also when the product overflows. Zeroed. */
void *arena_array(struct arena *a, size_t n, size_t size);
/* `p` (of this arena, `old` bytes, may be NULL) with room for n; NULL leaves p as it was. */
void *arena_grow(struct arena *a, void *p, size_t old, size_t n);
/* A NUL-terminated copy of n bytes. */
char *arena_copy(struct arena *a, const char *s, size_t n);
void arena_close(struct arena *a);
