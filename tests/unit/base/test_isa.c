/* Instruction sets, chosen from made answers of CPUID. */
#include "base/isa.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#define ALL_512 (ISA_AVX512 | ISA_AVX512_BF16 | ISA_AMX_INT8)
#define ALL     (ISA_AVX2 | ISA_AVXVNNI | ALL_512)

static const struct isa_words full = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT64_MAX, UINT32_MAX};

Test(isa, a_machine_with_every_feature_has_every_set)
{
    cr_assert_eq(isa_of(&full), ALL);
    cr_assert_eq(isa_of(&(struct isa_words){0}), 0);
}

struct feature {
    const char *name; /* an option of CMakeLists.txt, or what the operating system keeps */
    struct isa_words bit;
    uint32_t lost; /* sets that need it */
};

static const struct feature features[] = {
    {"fma", {.leaf1_ecx = 1u << 12}, ALL},
    {"osxsave", {.leaf1_ecx = 1u << 27}, ALL},
    {"f16c", {.leaf1_ecx = 1u << 29}, ALL},
    {"avx2", {.leaf7_ebx = 1u << 5}, ALL},
    {"bmi2", {.leaf7_ebx = 1u << 8}, ALL},
    {"upper halves of ymm", {.xcr0 = 1u << 2}, ALL},
    {"avxvnni", {.leaf7_1_eax = 1u << 4}, ISA_AVXVNNI},
    {"avx512f", {.leaf7_ebx = 1u << 16}, ALL_512},
    {"avx512dq", {.leaf7_ebx = 1u << 17}, ALL_512},
    {"avx512bw", {.leaf7_ebx = 1u << 30}, ALL_512},
    {"avx512vl", {.leaf7_ebx = 1u << 31}, ALL_512},
    {"avx512vbmi", {.leaf7_ecx = 1u << 1}, ALL_512},
    {"avx512vnni", {.leaf7_ecx = 1u << 11}, ALL_512},
    {"masks", {.xcr0 = 1u << 5}, ALL_512},
    {"upper halves of zmm", {.xcr0 = 1u << 6}, ALL_512},
    {"zmm16 to zmm31", {.xcr0 = 1u << 7}, ALL_512},
    {"avx512bf16", {.leaf7_1_eax = 1u << 5}, ISA_AVX512_BF16},
    {"amx-tile", {.leaf7_edx = 1u << 24}, ISA_AMX_INT8},
    {"amx-int8", {.leaf7_edx = 1u << 25}, ISA_AMX_INT8},
    {"configuration of tiles", {.xcr0 = 1u << 17}, ISA_AMX_INT8},
    {"tiles", {.xcr0 = 1u << 18}, ISA_AMX_INT8},
};

Test(isa, a_set_is_lost_with_any_feature_that_its_files_are_compiled_for)
{
    for (size_t i = 0; i < sizeof features / sizeof *features; i++) {
        struct isa_words w = full, bit = features[i].bit;
        w.leaf1_ecx &= ~bit.leaf1_ecx;
        w.leaf7_ebx &= ~bit.leaf7_ebx;
        w.leaf7_ecx &= ~bit.leaf7_ecx;
        w.leaf7_1_eax &= ~bit.leaf7_1_eax;
        w.xcr0 &= ~bit.xcr0;
        w.leaf7_edx &= ~bit.leaf7_edx;
        cr_assert_eq(isa_of(&w), ALL & ~features[i].lost, "without %s: %x", features[i].name, isa_of(&w));
    }
}

#if defined(__x86_64__)
/* True if /proc/cpuinfo has all these flags: Linux hides those whose registers it does not keep. */
static bool linux_has(const char *const *names, size_t n)
{
    static char line[16384];
    FILE *f = fopen("/proc/cpuinfo", "re");
    cr_assert_not_null(f);
    line[0] = '\0';
    while (strncmp(line, "flags", 5) != 0 && fgets(line, sizeof line, f)) {
    }
    fclose(f);
    line[strcspn(line, "\n")] = ' ';
    for (size_t i = 0; i < n; i++) {
        char word[32];
        snprintf(word, sizeof word, " %s ", names[i]);
        if (!strstr(line, word))
            return false;
    }
    return true;
}

Test(isa, this_machine_has_what_linux_says)
{
    static const char *const names[] = {"fma",      "f16c",        "avx2",     "bmi2",       "avx512f",
                                        "avx512dq", "avx512bw",    "avx512vl", "avx512vbmi", "avx512_vnni",
                                        "avx_vnni", "avx512_bf16", "amx_tile", "amx_int8"};
    bool avx2 = linux_has(names, 4), avx512 = linux_has(names, 10);
    cr_assert_eq(isa_has(ISA_AVX2), avx2);
    cr_assert_eq(isa_has(ISA_AVX512), avx512);
    cr_assert_eq(isa_has(ISA_AVXVNNI), avx2 && linux_has(names + 10, 1));
    cr_assert_eq(isa_has(ISA_AVX512_BF16), avx512 && linux_has(names + 11, 1));
    if (!linux_has(names + 12, 2)) /* a kernel may refuse them, too */
        cr_assert(!isa_has(ISA_AMX_INT8));
}
#endif
