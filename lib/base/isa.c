#include "isa.h"

#include <pthread.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* Bits of the CPUID words, from the manuals of Intel and AMD. Not __builtin_cpu_supports(): isa_of() is
 * tested with the words of CPUs that no test machine has. */
enum leaf1_ecx { FMA = 1 << 12, OSXSAVE = 1 << 27, F16C = 1 << 29 };
enum leaf7_ebx {
    AVX2 = 1 << 5,
    BMI2 = 1 << 8,
    AVX512F = 1 << 16,
    AVX512DQ = 1 << 17,
    AVX512BW = 1 << 30,
};
#define AVX512VL (1u << 31)
enum leaf7_ecx { AVX512VBMI = 1 << 1, AVX512VNNI = 1 << 11 };
enum leaf7_1_eax { AVXVNNI = 1 << 4, AVX512BF16 = 1 << 5 };
enum leaf7_edx { AMX_TILE = 1 << 24, AMX_INT8 = 1 << 25 };
enum xcr0 { YMM = 0x6, ZMM = 0xe6, TILES = 0x60000 };
#define ARCH_REQ_XCOMP_PERM 0x1023 /* asm/prctl.h of Linux 5.16 */
#define XFEATURE_XTILEDATA  18

static bool has_all(uint64_t word, uint64_t bits)
{
    return (word & bits) == bits;
}

uint32_t isa_of(const struct isa_words *w)
{
    if (!has_all(w->leaf1_ecx, FMA | OSXSAVE | F16C) || !has_all(w->leaf7_ebx, AVX2 | BMI2) ||
        !has_all(w->xcr0, YMM))
        return 0;
    uint32_t sets = ISA_AVX2;
    if (w->leaf7_1_eax & AVXVNNI)
        sets |= ISA_AVXVNNI;
    if (!has_all(w->leaf7_ebx, AVX512F | AVX512DQ | AVX512BW | AVX512VL) ||
        !has_all(w->leaf7_ecx, AVX512VBMI | AVX512VNNI) || !has_all(w->xcr0, ZMM))
        return sets;
    if (has_all(w->leaf7_edx, AMX_TILE | AMX_INT8) && has_all(w->xcr0, TILES))
        sets |= ISA_AMX_INT8;
    return sets | ISA_AVX512 | (w->leaf7_1_eax & AVX512BF16 ? ISA_AVX512_BF16 : 0);
}

static uint32_t sets;

static void read_sets(void)
{
#if defined(__x86_64__)
    struct isa_words w = {0};
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &w.leaf1_ecx, &d) || !(w.leaf1_ecx & OSXSAVE))
        return;
    if (__get_cpuid_count(7, 0, &a, &w.leaf7_ebx, &w.leaf7_ecx, &w.leaf7_edx) && a >= 1)
        __get_cpuid_count(7, 1, &w.leaf7_1_eax, &b, &c, &d);
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    w.xcr0 = (uint64_t)high << 32 | low;
    sets = isa_of(&w);
    if (sets & ISA_AMX_INT8 && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA))
        sets &= ~(uint32_t)ISA_AMX_INT8;
#endif
}

bool isa_has(enum isa_set set)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_sets);
    return sets & set;
}
