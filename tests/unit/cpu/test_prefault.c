/* Memory that is taken before it is used: how far, and that what it holds stays. */
#include "cpu/prefault.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static bool resident(const void *p)
{
    unsigned char seen = 0;
    void *page = (void *)((uintptr_t)p / 4096 * 4096);
    return mincore(page, 1, &seen) == 0 && seen & 1;
}

/* True if this kernel can do it at all. */
static bool able(void)
{
    struct memory_block b;
    cr_assert_eq(memory_map(&b, 4096, "a try", NULL), 0);
    bool able = madvise(b.data, 4096, 23 /* MADV_POPULATE_WRITE */) == 0;
    memory_unmap(&b);
    return able;
}

static void wait_taken(const struct ahead *a, size_t bytes)
{
    for (int left = 20000; ahead_taken(a) < bytes; left--) {
        cr_assert_gt(left, 0, "%zu of %zu", ahead_taken(a), bytes);
        usleep(1000);
    }
}

Test(ahead, nothing_is_taken_before_the_first_use)
{
    struct memory_block b;
    struct ahead *a;
    cr_assert_eq(memory_map(&b, 8 * MIB, "a block", NULL), 0);
    cr_assert_eq(ahead_open(&a, &b, NULL), 0);
    usleep(20000);
    cr_assert_eq(ahead_taken(a), 0);
    cr_assert_not(resident(b.data));
    ahead_close(a);
    memory_unmap(&b);
}

/* The thread of this process that has the name, or 0. */
static pid_t thread_named(const char *wanted)
{
    pid_t found = 0;
    DIR *tasks = opendir("/proc/self/task");
    cr_assert_not_null(tasks);
    for (struct dirent *d; !found && (d = readdir(tasks));) {
        char path[300], name[32] = "";
        (void)snprintf(path, sizeof path, "/proc/self/task/%s/comm", d->d_name);
        FILE *f = fopen(path, "re");
        if (f && fgets(name, sizeof name, f) && strncmp(name, wanted, strlen(wanted)) == 0)
            found = (pid_t)atoi(d->d_name);
        if (f)
            (void)fclose(f);
    }
    closedir(tasks);
    return found;
}

/* It holds the address space's lock while it finds memory, so it must not starve beside busy processes. */
Test(ahead, the_thread_has_its_share_of_a_busy_machine)
{
    struct memory_block b;
    struct ahead *a;
    cr_assert_eq(memory_map(&b, 4 * MIB, "a block", NULL), 0);
    cr_assert_eq(ahead_open(&a, &b, NULL), 0);
    ahead_use(a, 1);
    if (able()) {
        wait_taken(a, b.size);
        pid_t thread = thread_named("memory-ahead");
        cr_assert_gt(thread, 0);
        cr_assert_neq(sched_getscheduler(thread), SCHED_IDLE);
    }
    ahead_close(a);
    memory_unmap(&b);
}

Test(ahead, a_small_block_is_taken_whole_and_keeps_what_it_holds)
{
    struct memory_block b;
    struct ahead *a;
    cr_assert_eq(memory_map(&b, 5 * MIB, "a block", NULL), 0);
    char *data = b.data;
    strcpy(data, "here");
    strcpy(data + 3 * MIB, "and there");
    cr_assert_eq(ahead_open(&a, &b, NULL), 0);
    ahead_use(a, 1);
    if (able()) {
        wait_taken(a, b.size);
        cr_assert(resident(data + b.size - 1));
    }
    ahead_close(a);
    cr_assert_str_eq(data, "here");
    cr_assert_str_eq(data + 3 * MIB, "and there");
    cr_assert_eq(data[4 * MIB], 0);
    memory_unmap(&b);
}

Test(ahead, no_more_is_taken_than_said)
{
    struct memory_block b;
    struct ahead *a;
    cr_assert_eq(memory_map(&b, AHEAD_BYTES + 64 * MIB, "a block", NULL), 0);
    cr_assert_eq(ahead_open(&a, &b, NULL), 0);
    ahead_use(a, 2 * MIB);
    if (able()) {
        wait_taken(a, AHEAD_BYTES + 2 * MIB);
        usleep(20000);
        cr_assert_eq(ahead_taken(a), AHEAD_BYTES + 2 * MIB);
        cr_assert_not(resident((char *)b.data + AHEAD_BYTES + 8 * MIB));
    }
    ahead_use(a, b.size);
    cr_assert_eq(ahead_taken(a), b.size); /* in use, touched or not */
    ahead_close(a);
    memory_unmap(&b);
}

Test(ahead, closing_does_not_wait_for_the_rest)
{
    struct memory_block b;
    struct ahead *a;
    cr_assert_eq(memory_map(&b, AHEAD_BYTES, "a block", NULL), 0);
    cr_assert_eq(ahead_open(&a, &b, NULL), 0);
    ahead_use(a, 1);
    ahead_close(a);
    memory_unmap(&b);
    ahead_close(NULL);
}
