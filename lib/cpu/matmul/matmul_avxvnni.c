/* matmul_avxvnni.c - the matrix product on 256-bit vectors with VNNI: 8 rows per vector. */
#include "base/isa.h"
#include "matmul.h"

#if defined(__x86_64__)
#define PAIR_SUMS 0
#include "matmul_256.h"

#define dot _mm256_dpbusd_avx_epi32

#include "matmul_quantise.h"
#define QUANTISE_SUPER quantise_super

#include "matmul_template.h"

static bool supported(void)
{
    return isa_has(ISA_AVXVNNI);
}

const struct matmul_kernels matmul_avxvnni = {
    .name = "avxvnni",
    .supported = supported,
    .quantise = quantise,
    .run = run,
    .scratch_size = sizeof(struct scratch),
    .columns = MATMUL_PANEL,
};
#endif
