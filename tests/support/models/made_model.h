/* made_model.h - a small model with random weights of any type, by the mkmodel that was built beside the
 * test. */
#pragma once
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Writes the file with mkmodel's further flags ("--n-ctx 1024"). */
static inline void make_model(const char *path, const char *shape, const char *quant, const char *flags)
{
    char self[512] = {0}, command[2048];
    cr_assert_gt(readlink("/proc/self/exe", self, sizeof self - 1), 0);
    *strrchr(self, '/') = 0;
    (void)snprintf(command, sizeof command, "%s/mkmodel --shape %s --quant %s --out %s %s 2>/dev/null", self,
                   shape, quant, path, flags);
    cr_assert_eq(system(command), 0, "%s", command);
}

/* The file's name into `path`, for the caller to unlink. */
static inline void made_model(const char *shape, const char *quant, char path[64])
{
    strcpy(path, "/tmp/hearth-made-XXXXXX");
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    close(fd);
    make_model(path, shape, quant, "");
}
