/* roofline_amx.c - int8 products of AMX tiles that stay in their registers. Hearth's products on tiles
 * (matmul_tiles.h) reach a part of that: a scale for every 32 values needs a tile store for every block,
 * which costs more than the dots. */
#include "roofline_loops.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define AMX __attribute__((target("amx-tile,amx-int8")))

/* The operand of ldtilecfg, palette 1: six tiles of 16 rows of 64 bytes. A constant, since GCC's intrinsic
 * says of its first 8 bytes alone that it reads them: stores to the others would be dropped. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} shapes __attribute__((aligned(64))) = {
    .palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16}};

/* Four sums of 16 x 16 int32 from tiles of 16 x 64 int8. */
static AMX double amx(uint64_t n)
{
    _tile_loadconfig(&shapes);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    for (uint64_t i = 0; i < n; i++) {
        _tile_dpbssd(0, 4, 5);
        _tile_dpbssd(1, 4, 5);
        _tile_dpbssd(2, 4, 5);
        _tile_dpbssd(3, 4, 5);
    }
    _tile_release();
    return (double)n * 4 * 16 * 16 * 64 * 2;
}

double (*const roofline_amx)(uint64_t n) = amx;
#else
double (*const roofline_amx)(uint64_t n) = 0;
#endif
