/* roofline_loops.h - the inner loops of roofline.c for one instruction set.
 * Thread: any; pure. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct roofline_loops {
    uint64_t (*read)(const void *p,
                     size_t size); /* 64-byte aligned, size a multiple of 1,024; returns any checksum */
    double (*int8)(uint64_t n);    /* n rounds; returns the operations done */
    double (*f32)(uint64_t n);     /* the same of fused multiply-adds */
};
extern const struct roofline_loops roofline_avx512, roofline_avxvnni, roofline_avx2;
/* Loops of units beside the vectors; NULL: not compiled. To be called where isa_has() says so. */
extern double (*const roofline_bf16)(uint64_t n), (*const roofline_amx)(uint64_t n);
