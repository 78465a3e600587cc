/* isa.h - which of the instruction sets that files of this library are compiled for this machine has. A set
 * stands for every option that CMakeLists.txt compiles such a file with, since a compiler uses them all, and
 * for the registers that the operating system must keep. CPUID is read once, by the first who asks: in a
 * virtual machine every reading leaves it. Thread: any. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum isa_set {
    ISA_AVX2 = 1 << 0,        /* *_avx2.c */
    ISA_AVXVNNI = 1 << 1,     /* *_avxvnni.c */
    ISA_AVX512 = 1 << 2,      /* *_avx512.c */
    ISA_AVX512_BF16 = 1 << 3, /* *_bf16_avx512.c */
};

bool isa_has(enum isa_set set);

/* What is read: of CPUID's leaves the words named here, and the states that the operating system keeps. */
struct isa_words {
    uint32_t leaf1_ecx, leaf7_ebx, leaf7_ecx, leaf7_1_eax;
    uint64_t xcr0;
};

/* The sets of a machine with these words. Pure. */
uint32_t isa_of(const struct isa_words *w);
