/* matmul_amx.c - the matrix product on the tiles of AMX, with the fold on 512-bit vectors.
 * The tuner offers it beside the other tables (tuning.h); `auto` alone never takes it. The operating system
 * must permit the process its tiles: isa_has() asks for that. */
#include "base/isa.h"
#include "matmul.h"

#if defined(__x86_64__)
#include "matmul_512.h"

#define tiles_base matmul_avx512

/* GCC's intrinsics do not say that they read the memory at p: stores to it must neither be moved behind them
 * nor be dropped. */
#define STORED(p) __asm__ volatile("" : : "r"(p) : "memory")
#define tile_config(p)                                                                                       \
    do {                                                                                                     \
        STORED(p);                                                                                           \
        _tile_loadconfig(p);                                                                                 \
    } while (0)
#define tile_load(i, p, stride)                                                                              \
    do {                                                                                                     \
        STORED(p);                                                                                           \
        _tile_loadd(i, p, stride);                                                                           \
    } while (0)
#define tile_zero(i)             _tile_zero(i)
#define tile_store(i, p, stride) _tile_stored(i, p, stride)
#define tile_dot(c, a, b)        _tile_dpbssd(c, a, b)
#define tile_release()           _tile_release()

#include "matmul_tiles.h"

static bool supported(void)
{
    return isa_has(ISA_AMX_INT8) && isa_has(ISA_AVX512);
}

const struct matmul_kernels matmul_amx = {
    .name = "amx",
    .supported = supported,
    .quantise = tiles_quantise,
    .run = tiles_run,
    .scratch_size = sizeof(struct tile_scratch),
    .columns = TILE_COLUMNS,
};
#endif
