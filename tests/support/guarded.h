/* guarded.h - memory that ends at a page without access.
 *
 * A kernel that reads or writes a cache line behind its data ends the process, whatever it was compiled with:
 * this takes the place of AddressSanitizer where sanitized SIMD code takes minutes to compile. One thread; at
 * most GUARDED_LIVE areas at a time.
 */
#ifndef HEARTH_TESTS_SUPPORT_GUARDED_H
#define HEARTH_TESTS_SUPPORT_GUARDED_H

#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#define GUARDED_LIVE 32

static struct {
    void *data, *map;
    size_t size;
} guarded_areas[GUARDED_LIVE];

/* size bytes, aligned to a cache line; less than a line behind them is there, then comes the guard. NULL when
 * memory is short. */
static inline void *guarded_alloc(size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), lines = (size + 63) / 64 * 64;
    size_t bytes = (lines + page - 1) / page * page;
    size_t i = 0;
    while (i < GUARDED_LIVE && guarded_areas[i].data)
        i++;
    if (i == GUARDED_LIVE)
        return NULL;
    char *map = mmap(NULL, bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return NULL;
    if (mprotect(map + bytes, page, PROT_NONE) != 0) {
        munmap(map, bytes + page);
        return NULL;
    }
    guarded_areas[i].map = map;
    guarded_areas[i].size = bytes + page;
    return guarded_areas[i].data = map + bytes - lines;
}

/* NULL is allowed. */
static inline void guarded_free(void *data)
{
    for (size_t i = 0; data && i < GUARDED_LIVE; i++)
        if (guarded_areas[i].data == data) {
            munmap(guarded_areas[i].map, guarded_areas[i].size);
            guarded_areas[i].data = NULL;
            return;
        }
}

#endif
