#include "arena.h"

#include <assert.h>
#include <stdalign.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct arena_block {
    LIST_ENTRY(arena_block) of_arena;
    size_t size; /* bytes behind this header */
    size_t reserved;
};
#define ARENA_ALIGN 16
_Static_assert(sizeof(struct arena_block) % ARENA_ALIGN == 0, "pieces are aligned");

static size_t round_up(size_t n)
{
    return (n + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
}

static struct arena_block *block_of(void *piece)
{
    return (struct arena_block *)piece - 1;
}

static void *alloc_large(struct arena *a, size_t n, bool zero)
{
    struct arena_block *b = NULL;
    if (n <= SIZE_MAX - sizeof *b)
        b = zero ? calloc(1, sizeof *b + n) : malloc(sizeof *b + n);
    if (!b)
        return NULL;
    b->size = n;
    LIST_INSERT_HEAD(&a->large, b, of_arena);
    a->total += n;
    return b + 1;
}

void *arena_alloc(struct arena *a, size_t n)
{
    if (n >= ARENA_LARGE)
        return alloc_large(a, n, false);
    n = round_up(n ? n : 1);
    struct arena_block *b = LIST_FIRST(&a->small);
    if (!b || a->used + n > b->size) {
        b = malloc(sizeof *b + ARENA_BLOCK);
        if (!b)
            return NULL;
        b->size = ARENA_BLOCK;
        LIST_INSERT_HEAD(&a->small, b, of_arena);
        a->used = 0;
        a->total += ARENA_BLOCK;
    }
    assert(a->used % ARENA_ALIGN == 0 && a->used + n <= b->size); /* else pieces overlap */
    void *piece = (char *)(b + 1) + a->used;
    a->used += n;
    return piece;
}

/* A large piece may be room for the worst case: the system gives calloc() its pages when they are used. */
void *arena_zalloc(struct arena *a, size_t n)
{
    if (n >= ARENA_LARGE)
        return alloc_large(a, n, true);
    void *p = arena_alloc(a, n);
    if (p)
        memset(p, 0, n);
    return p;
}

void *arena_array(struct arena *a, size_t n, size_t size)
{
    size_t bytes;
    return __builtin_mul_overflow(n, size, &bytes) ? NULL : arena_zalloc(a, bytes);
}

static void *resize_large(struct arena *a, void *p, size_t n)
{
    struct arena_block *b = block_of(p);
    size_t old = b->size;
    assert(a->total >= old);
    if (n > SIZE_MAX - sizeof *b)
        return NULL;
    LIST_REMOVE(b, of_arena);
    struct arena_block *resized = realloc(b, sizeof *b + n);
    LIST_INSERT_HEAD(&a->large, resized ? resized : b, of_arena);
    if (!resized)
        return NULL;
    resized->size = n;
    a->total = a->total - old + n;
    return resized + 1;
}

void *arena_grow(struct arena *a, void *p, size_t old, size_t n)
{
    if (n <= old)
        return p;
    if (p && old >= ARENA_LARGE)
        return resize_large(a, p, n);
    void *fresh = arena_alloc(a, n);
    if (fresh && old)
        memcpy(fresh, p, old);
    return fresh;
}

void *arena_shrink(struct arena *a, void *p, size_t old, size_t n)
{
    void *less = p && old >= ARENA_LARGE && n < old ? resize_large(a, p, n) : NULL;
    return less ? less : p;
}

char *arena_copy(struct arena *a, const char *s, size_t n)
{
    char *copy = n < SIZE_MAX ? arena_alloc(a, n + 1) : NULL;
    if (!copy)
        return NULL;
    if (n)
        memcpy(copy, s, n);
    copy[n] = '\0';
    return copy;
}

void arena_close(struct arena *a)
{
    struct arena_block *b;
    while ((b = LIST_FIRST(&a->small)) || (b = LIST_FIRST(&a->large))) {
        LIST_REMOVE(b, of_arena);
        free(b);
    }
    *a = (struct arena){0};
}
