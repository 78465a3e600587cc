/* arena.h - memory of one request or one object: allocated piece by piece, freed all at once.
 * Small pieces come from blocks of ARENA_BLOCK bytes. A large piece has its own allocation, so growing it is
 * a realloc() that leaves no old copy in the arena. Thread: one thread at a time uses an arena and its pieces
 * (for a request the loop thread, or the pool thread that prepares it). Memory: the arena owns every piece;
 * arena_close() frees them all. */
#pragma once
#include <stddef.h>
#include <sys/queue.h>

#define ARENA_BLOCK 4096
#ifndef ARENA_LARGE      /* the fuzz build sets 1, so that the sanitizer sees a read past any piece */
#define ARENA_LARGE 1024 /* a piece of this many bytes or more has its own allocation */
#endif

struct arena { /* zero-initialised is an empty arena */
    LIST_HEAD(, arena_block) small, large;
    size_t used;  /* bytes of the newest small block */
    size_t total; /* bytes of all blocks and large pieces */
};

/* Returns n bytes, 16-byte aligned, or NULL when memory has run out. For n == 0 the pointer is valid too. */
void *arena_alloc(struct arena *a, size_t n);
void *arena_zalloc(struct arena *a, size_t n); /* the same, zeroed */
/* Returns n items of `size` bytes, zeroed; NULL when memory has run out or the product overflows. */
void *arena_array(struct arena *a, size_t n, size_t size);
/* Makes room for n bytes in piece p, which arena_alloc() or arena_grow() returned for `old` bytes (p may be
 * NULL: a new piece). The result may be another address; NULL leaves p as it was. */
void *arena_grow(struct arena *a, void *p, size_t old, size_t n);
/* Gives back what piece p, of `old` bytes, has beyond its first n; a small piece stays as it is. The result
 * may be another address. */
void *arena_shrink(struct arena *a, void *p, size_t old, size_t n);
/* Returns a NUL-terminated copy of n bytes, or NULL. */
char *arena_copy(struct arena *a, const char *s, size_t n);
/* Frees every piece; the arena is empty and usable again. */
void arena_close(struct arena *a);
