/* isa.h - detects the instruction sets that files of this library are compiled for.
 * A set stands for every option that CMakeLists.txt compiles such a file with, since a compiler uses them
 * all, and for the registers that the operating system must save. CPUID is read once, by the first caller: in
 * a virtual machine each read traps to the hypervisor.
 * Thread: any. Memory: one static word. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum isa_set {
    ISA_AVX2 = 1 << 0,        /* *_avx2.c */
    ISA_AVXVNNI = 1 << 1,     /* *_avxvnni.c */
    ISA_AVX512 = 1 << 2,      /* *_avx512.c */
    ISA_AVX512_BF16 = 1 << 3, /* *_bf16_avx512.c */
    ISA_AMX_INT8 = 1 << 4,    /* *_amx.c; the kernel must also permit the process its tiles */
};

/* True if this machine has the set. The first call asks the kernel for AMX's tiles where there are any. */
bool isa_has(enum isa_set set);

/* The CPUID words that detection reads, and xcr0: the register states that the operating system saves. */
struct isa_words {
    uint32_t leaf1_ecx, leaf7_ebx, leaf7_ecx, leaf7_1_eax;
    uint64_t xcr0;
    uint32_t leaf7_edx;
};

/* The sets (a mask of enum isa_set) of a machine with these words. Pure; split off so that tests can pass
 * words of other machines. */
uint32_t isa_of(const struct isa_words *w);
