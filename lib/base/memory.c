#include "memory.h"
#include "cgroup.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)

int memory_take(struct memory_block *b, size_t size, const char *what, struct error *err)
{
    /* The extra bytes let the block start on a huge page boundary, so that the kernel can use huge pages from
     * the first byte. */
    size_t rounded = (size + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE,
           extra = size >= HUGE_PAGE ? HUGE_PAGE : 0;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    uint8_t *p = mmap(NULL, rounded + extra, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (p == MAP_FAILED)
        return error_set(err, -ENOMEM, "cannot reserve %zu bytes for %s: %s", size, what, strerror(errno));
    if (extra) {
        size_t head = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
        if (head)
            munmap(p, head);
        p += head;
        if (extra > head)
            munmap(p + rounded, extra - head);
        madvise(p, rounded, MADV_HUGEPAGE); /* a hint: fails where the kernel has no huge pages */
    }
    *b = (struct memory_block){.data = p, .size = rounded};
    return 0;
}

void memory_give(struct memory_block *b)
{
    if (b->data)
        munmap(b->data, b->size);
    *b = (struct memory_block){0};
}

static uint64_t meminfo_available(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    if (!f)
        return UINT64_MAX;
    char line[128];
    unsigned long long kib = 0;
    uint64_t available = UINT64_MAX;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            available = kib * 1024;
    fclose(f);
    return available;
}

uint64_t memory_available(void)
{
    uint64_t system = meminfo_available(), group = cgroup_memory_available("");
    return system < group ? system : group;
}
