/* ptx_image.h - the kernels' PTX inside the program, one image per source and device generation.
 * Thread: any; constant data. */
#pragma once
#include <stddef.h>

struct ptx_image {
    const char *name; /* name of the source, without .c; NULL ends a table */
    unsigned sm;      /* 80 or 90: runs on devices of that compute capability and later */
    const char *text; /* NUL-terminated, as cuModuleLoadData requires */
    size_t size;      /* without the NUL */
};

extern const struct ptx_image ptx_images[]; /* all of kernels/; empty if the build had no suitable clang */
