/* Memory that is promised but not touched yet. */
#include "base/memory.h"

#include <criterion/criterion.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE ((size_t)8 << 20)

Test(memory, a_promise_holds_until_the_block_is_touched_or_given_back)
{
    struct memory_block a, b;
    cr_assert_eq(memory_map(&a, SIZE, "a", NULL), 0);
    cr_assert_eq(memory_map(&b, SIZE, "b", NULL), 0);
    cr_assert_eq(memory_promised(), 0, "taken is not promised");
    memory_promise(&a);
    memory_promise(&b);
    cr_assert_eq(memory_promised(), 2 * SIZE);
    memset(a.data, 1, SIZE / 2);
    cr_assert_eq(memory_promised(), SIZE + SIZE / 2);
    memset(a.data, 1, SIZE);
    cr_assert_eq(memory_promised(), SIZE);
    memory_unmap(&b);
    cr_assert_eq(memory_promised(), 0);
    memory_unmap(&a);
    cr_assert_eq(memory_promised(), 0);
}

/* Whoever waits for a large block sees that it goes on. */
Test(memory, a_large_block_is_given_back_part_by_part)
{
    struct memory_block a, small;
    uint64_t before = memory_parts_given();
    cr_assert_eq(memory_map(&a, (size_t)1 << 30, "a", NULL), 0);
    cr_assert_eq(memory_map(&small, SIZE, "small", NULL), 0);
    uint8_t *at = a.data;
    at[0] = at[((size_t)1 << 30) - 1] = 1;
    memory_unmap(&a);
    uint64_t parts = memory_parts_given() - before;
    cr_assert_geq(parts, 4, "%llu", (unsigned long long)parts);
    for (size_t i = 0; i < (size_t)1 << 30; i += (size_t)64 << 20)
        cr_assert_neq(madvise(at + i, 4096, MADV_NORMAL), 0, "%zu is mapped", i);
    memory_unmap(&small);
    cr_assert_eq(memory_parts_given(), before + parts + 1);
}

static int count_as_nobody(void)
{
    struct memory_block a;
    if (geteuid() == 0 && setuid(65534) < 0)
        return 1;
    prctl(PR_SET_DUMPABLE, 1); /* setuid() took it away */
    memory_keep_pagemap();
    prctl(PR_SET_DUMPABLE, 0);
    if (memory_map(&a, SIZE, "a", NULL) < 0)
        return 2;
    memory_promise(&a);
    memset(a.data, 1, SIZE / 2);
    return memory_promised() == SIZE / 2 ? 0 : 3;
}

/* Its files in /proc belong to root. */
Test(memory, a_process_that_is_not_dumpable_still_counts)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0)
        _exit(count_as_nobody());
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0, "it ended with %d", WEXITSTATUS(status));
}
