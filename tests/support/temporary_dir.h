/* temporary_dir.h - a directory of a test's own below /tmp, and what tests do to the files in it. */
#pragma once
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static inline char *temporary_dir(void)
{
    char *dir = strdup("/tmp/hearth-test-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    return dir;
}

/* Calls visit for every file; how many there are. */
static inline unsigned temporary_dir_each(const char *dir, void (*visit)(int dir, const char *name, void *),
                                          void *context)
{
    unsigned n = 0;
    DIR *d = opendir(dir);
    cr_assert_not_null(d);
    for (const struct dirent *e; (e = readdir(d));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) {
            n++;
            if (visit)
                visit(dirfd(d), e->d_name, context);
        }
    closedir(d);
    return n;
}

static inline unsigned temporary_dir_count(const char *dir)
{
    return temporary_dir_each(dir, NULL, NULL);
}

static inline void temporary_dir_unlink(int dir, const char *name, void *context)
{
    (void)context;
    unlinkat(dir, name, 0);
}

static inline void temporary_dir_remove(char *dir)
{
    temporary_dir_each(dir, temporary_dir_unlink, NULL);
    rmdir(dir);
    free(dir);
}

/* Changes the last byte of the page file whose key begins with `key`; 0: of all. */
static inline void temporary_dir_spoil_one(int dir, const char *name, void *context)
{
    char hex[20], byte;
    uint64_t key = *(const uint64_t *)context;
    snprintf(hex, sizeof hex, "-%016" PRIx64, key);
    if (key && !strstr(name, hex))
        return;
    int fd = openat(dir, name, O_RDWR);
    off_t last = lseek(fd, -1, SEEK_END);
    cr_assert_eq(pread(fd, &byte, 1, last), 1);
    byte ^= 1;
    cr_assert_eq(pwrite(fd, &byte, 1, last), 1);
    close(fd);
}

static inline void temporary_dir_spoil(const char *dir, uint64_t key)
{
    temporary_dir_each(dir, temporary_dir_spoil_one, &key);
}
