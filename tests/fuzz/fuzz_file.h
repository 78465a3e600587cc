/* fuzz_file.h - bytes as a file with a path, for what opens files by name. It lies in memory. */
#pragma once
#include "fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

struct fuzz_file {
    int fd;
    char path[40];
};

static inline struct fuzz_file fuzz_file_open(const void *bytes, size_t n)
{
    struct fuzz_file f = {.fd = memfd_create("fuzz", MFD_CLOEXEC)};
    CHECK(f.fd >= 0 && write(f.fd, bytes, n) == (ssize_t)n);
    snprintf(f.path, sizeof f.path, "/proc/self/fd/%d", f.fd);
    return f;
}

static inline void fuzz_file_close(struct fuzz_file *f)
{
    close(f->fd);
}
