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
    const unsigned char *packed; /* gzip's output for the file: PTX, or a cubin, which is an ELF file */
    size_t packed_size, size;    /* packed, and of the file */
    bool is_cubin;
};

/* The file's bytes and a NUL behind them, as cuModuleLoadData() requires, aligned for any type; the caller
 * frees them, once the module is loaded. NULL without memory. */
char *ptx_image_unpack(const struct ptx_image *image);

extern const struct ptx_image ptx_images[]; /* all of kernels/; empty if the build had no suitable clang */
