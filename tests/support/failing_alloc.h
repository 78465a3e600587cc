/* failing_alloc.h - makes chosen allocations of the code under test fail. A test that includes it is linked
 * with
 * --wrap (tests/CMakeLists.txt looks for the name), so the calls of libhearth and of the test come here.
 *   for (long n = 0;; n++) {
 *       fail_alloc_after(n);              n calls succeed, all later ones fail
 *       int rc = thing_open(...);
 *       fail_alloc_never();
 *       ...
 * Thread: for tests with one thread. */
#pragma once
#include <errno.h>
#include <stddef.h>
#include <string.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);

static long allocs_left = -1; /* negative: all succeed */

static inline void fail_alloc_after(long n)
{
    allocs_left = n;
}

static inline void fail_alloc_never(void)
{
    allocs_left = -1;
}

static inline int alloc_fails(void)
{
    if (allocs_left < 0 || allocs_left-- > 0)
        return 0;
    allocs_left = 0;
    errno = ENOMEM;
    return 1;
}

void *__wrap_malloc(size_t size)
{
    return alloc_fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return alloc_fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t size)
{
    return alloc_fails() ? NULL : __real_realloc(p, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return alloc_fails() ? NULL : __real_aligned_alloc(alignment, size);
}

char *__wrap_strdup(const char *s)
{
    char *copy = alloc_fails() ? NULL : __real_malloc(strlen(s) + 1);
    return copy ? strcpy(copy, s) : NULL;
}
