/* matmul_tile_model.c - see matmul_tile_model.h. */
#include "matmul_tile_model.h"
#include "base/isa.h"
#include "cpu/matmul/matmul_512.h"
#include "support/tile_model.h"

#define tiles_base               matmul_avx512
#define tile_config(p)           tile_model_config(p)
#define tile_release()           tile_model_release()
#define tile_zero(i)             tile_model_zero(i)
#define tile_load(i, p, stride)  tile_model_load(i, p, stride)
#define tile_store(i, p, stride) tile_model_store(i, p, stride)
#define tile_dot(c, a, b)        tile_model_dot(c, a, b)

#include "cpu/matmul/matmul_tiles.h"

static bool supported(void)
{
    return isa_has(ISA_AVX512);
}

bool matmul_tile_model_live(void)
{
    return tile_model.live;
}

const struct matmul_kernels matmul_tile_model = {
    .name = "amx-model",
    .supported = supported,
    .quantise = tiles_quantise,
    .run = tiles_run,
    .scratch_size = sizeof(struct tile_scratch),
};
