#include "memory.h"
#include "cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/queue.h>
#include <unistd.h>

#define HUGE_PAGE ((size_t)2 << 20)
#define GIVE_PART ((size_t)256 << 20) /* of huge pages */

int memory_map(struct memory_block *b, size_t size, const char *what, struct error *err)
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

/* --- promises --- */

#define PAGE_HELD  (UINT64_C(3) << 62) /* of an entry of pagemap: the page is in memory or swapped out */
#define PAGES_READ 4096

struct promise {
    const uint8_t *data;
    size_t size;
    LIST_ENTRY(promise) link;
};
static LIST_HEAD(promises, promise) promises = LIST_HEAD_INITIALIZER(promises);
static pthread_mutex_t promises_lock = PTHREAD_MUTEX_INITIALIZER;

void memory_promise(const struct memory_block *b)
{
    struct promise *p = malloc(sizeof *p);
    if (!p)
        return;
    pthread_mutex_lock(&promises_lock);
    *p = (struct promise){.data = b->data, .size = b->size};
    LIST_INSERT_HEAD(&promises, p, link);
    pthread_mutex_unlock(&promises_lock);
}

static void forget(const struct memory_block *b)
{
    pthread_mutex_lock(&promises_lock);
    struct promise *p;
    LIST_FOREACH(p, &promises, link)
        if (p->data == b->data)
            break;
    if (p)
        LIST_REMOVE(p, link);
    pthread_mutex_unlock(&promises_lock);
    free(p);
}

static uint64_t untouched(int pagemap, const struct promise *p)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), n = p->size / page, n_held = 0;
    uint64_t entries[PAGES_READ], first = (uintptr_t)p->data / page;
    for (uint64_t i = 0; i < n;) {
        uint64_t ask = n - i < PAGES_READ ? n - i : PAGES_READ;
        ssize_t got = pread(pagemap, entries, ask * sizeof *entries, (off_t)((first + i) * sizeof *entries));
        if (got < (ssize_t)sizeof *entries)
            break;
        size_t n_got = (size_t)got / sizeof *entries;
        for (size_t k = 0; k < n_got; k++)
            n_held += (entries[k] & PAGE_HELD) != 0;
        i += n_got;
    }
    return p->size - n_held * page;
}

static int kept_pagemap = -1;

static int open_pagemap(void)
{
    return open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
}

void memory_keep_pagemap(void)
{
    if (kept_pagemap < 0)
        kept_pagemap = open_pagemap();
}

uint64_t memory_promised(void)
{
    uint64_t sum = 0;
    int pagemap = kept_pagemap >= 0 ? kept_pagemap : open_pagemap();
    pthread_mutex_lock(&promises_lock);
    const struct promise *p;
    LIST_FOREACH(p, &promises, link)
        sum += untouched(pagemap, p);
    pthread_mutex_unlock(&promises_lock);
    if (pagemap >= 0 && pagemap != kept_pagemap)
        close(pagemap);
    return sum;
}

static _Atomic uint64_t n_parts_given;

void memory_unmap(struct memory_block *b)
{
    if (b->data)
        forget(b);
    for (size_t at = 0; b->data && at < b->size; at += GIVE_PART) {
        munmap((uint8_t *)b->data + at, b->size - at < GIVE_PART ? b->size - at : GIVE_PART);
        atomic_fetch_add(&n_parts_given, 1);
    }
    *b = (struct memory_block){0};
}

uint64_t memory_parts_given(void)
{
    return atomic_load(&n_parts_given);
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
    uint64_t most = system < group ? system : group, promised = memory_promised();
    if (most == UINT64_MAX)
        return most;
    return most > promised ? most - promised : 0;
}
