/* ptx_image.h - the kernels inside the program: PTX, one image per source and device generation, and, where
 * the build had ptxas and HEARTH_CUBINS named compute capabilities, machine code for these. Thread: any;
 * constant data. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct ptx_image {
    const char *name; /* name of the source, without .c; NULL ends a table */
    /* PTX: 80 or 90; runs on devices of that compute capability and later. A cubin runs on devices of its
     * major number and of its minor one or later. */
    unsigned sm;
    const char *text; /* PTX, NUL-terminated, as cuModuleLoadData requires; or a cubin: an ELF file */
    size_t size;      /* without the NUL */
    bool is_cubin;
};

extern const struct ptx_image ptx_images[]; /* all of kernels/; empty if the build had no suitable clang */
