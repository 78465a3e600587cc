#include "pack.h"
#include "abi/arith.h"
#include "abi/device_abi.h"
#include "gguf/quant_super.h"

#include <assert.h>
#include <errno.h>

/* Tile type and bits per value of each quant type. */
static const struct form {
    uint8_t tile, bits;
    bool is_signed;
    bool widens; /* its integer scales are of 32 values, the tile's of 16 */
} forms[] = {
    [QUANT_Q4_K] = {TILE_Q4_K, 4, false},
    [QUANT_Q5_K] = {TILE_Q5_K, 5, false},
    [QUANT_Q6_K] = {TILE_Q6_K, 6, true},
    [QUANT_Q3_K] = {TILE_Q6_K, 6, true},
    [QUANT_Q2_K] = {TILE_Q2_K, 2, false},
    [QUANT_Q8_0] = {TILE_Q8_0, 8, true},
    [QUANT_Q5_0] = {TILE_Q5_0, 5, true},
    [QUANT_Q4_0] = {TILE_Q4_0, 4, true},
    [QUANT_Q4_1] = {TILE_Q5_1, 5, false},
    [QUANT_Q5_1] = {TILE_Q5_1, 5, false},
    [QUANT_MXFP4] = {TILE_MXFP4, 4, true},
    [QUANT_IQ4_NL] = {TILE_IQ4_NL, 4, true},
    [QUANT_NVFP4] = {TILE_NVFP4, 4, true},
    [QUANT_NVFP4_SCALED] = {TILE_NVFP4, 4, true},
    [QUANT_IQ4_XS] = {TILE_CODES, 4, true, .widens = true},
    [QUANT_IQ3_XXS] = {TILE_CODES, 4, true, .widens = true},
    [QUANT_IQ3_S] = {TILE_CODES, 4, true, .widens = true},
    [QUANT_IQ2_XXS] = {TILE_THREES, 3, true, .widens = true},
    [QUANT_IQ2_XS] = {TILE_THREES, 3, true},
    [QUANT_IQ2_S] = {TILE_THREES, 3, true},
    [QUANT_IQ1_S] = {TILE_THREES, 3, true, .widens = true},
    [QUANT_IQ1_M] = {TILE_THREES, 3, true},
    [QUANT_TQ1_0] = {TILE_THREES, 3, true, .widens = true},
    [QUANT_TQ2_0] = {TILE_THREES, 3, true, .widens = true},
    [QUANT_F16] = {TILE_F16, 16, true},
    [QUANT_BF16] = {TILE_BF16, 16, true},
    [QUANT_F32] = {TILE_F32, 32, true},
};

#define FLOAT_RUN  8   /* columns of floats that are packed together: 16 bytes of 16-bit ones */
#define MXFP4_NONE 256 /* in place of an exponent: a block that the row does not have */

int cuda_pack_layout(uint32_t type, uint32_t n, uint32_t k, struct decoder_matrix *out, struct error *err)
{
    if (type >= sizeof forms / sizeof *forms || forms[type].tile == TILE_NONE)
        return error_set(err, -ENOTSUP, "weight type %s is not supported on cuda", quant_name(type));
    uint32_t block = quant_traits(type)->block > ARITH_BLOCK ? quant_traits(type)->block : ARITH_BLOCK;
    block = tile_is_float(forms[type].tile) ? FLOAT_RUN : block;
    if (!n || !k || k % block)
        return error_set(err, -ENOTSUP,
                         "a %s weight of %u rows of %u values: rows must be multiples of %u values",
                         quant_name(type), n, k, block);
    *out = (struct decoder_matrix){
        .type = forms[type].tile,
        .n = n,
        .k = k,
        .n_tiles = (n + TILE_ROWS - 1) / TILE_ROWS,
        .n_supers = tile_supers(k),
        .super_bytes = tile_super_bytes(forms[type].tile),
    };
    return 0;
}

bool cuda_pack_is_bf16(const void *rows, size_t n_values)
{
    uint32_t low = 0, bits;
    for (size_t i = 0; i < n_values; i++) {
        memcpy(&bits, (const uint8_t *)rows + i * sizeof bits, sizeof bits);
        low |= bits;
    }
    return (low & 0xffff) == 0;
}

void cuda_pack_as_bf16(struct decoder_matrix *m)
{
    assert(m->type == TILE_F32);
    m->type = TILE_BF16;
    m->super_bytes = tile_super_bytes(TILE_BF16);
}

size_t cuda_pack_size(const struct decoder_matrix *m)
{
    return (size_t)m->n_tiles * m->n_supers * m->super_bytes;
}

static void merge_u8(uint8_t *p, uint32_t bits)
{
    *p = (uint8_t)(*p | bits);
}

/* Stores code `v` of word r. */
static void put_code(uint8_t *tile, uint32_t type, uint32_t lane, uint32_t j, uint32_t r, uint32_t i,
                     uint32_t v)
{
    uint32_t q = j % 2 * 16 + r * 4 + i, word = q / 8, byte = q % 8 / 2, shift = q % 2 * 4;
    if (tile_has_codes(type))
        merge_u8(tile + j / 2 * 512 + lane * 16 + word * 4 + byte, v << shift);
    else if (word < 3)
        merge_u8(tile + word * 512 + lane * 16 + j / 2 * 4 + byte, v << shift);
    else
        for (uint32_t b = 0; b < 3; b++)
            merge_u8(tile + b * 512 + lane * 16 + j / 2 * 4 + byte, (v >> b & 1) << (shift + 3));
}

/* Stores value `v` (its stored bits) of row `row` and column `c` in a tile's planes. */
static void put_value(const struct form *f, uint8_t *tile, uint32_t row, uint32_t c, uint32_t v)
{
    uint32_t lane = row % 8 * 4 + c % 16 / 4, j = c / 32, r = row / 8 + c % 32 / 16 * 2, byte = c % 4;
    if (tile_is_coded(f->tile)) {
        put_code(tile, f->tile, lane, j, r, byte, v);
        return;
    }
    if (f->bits == 8) {
        tile[j * 512 + lane * 16 + r * 4 + byte] = (uint8_t)v;
        return;
    }
    if (tile_is_stacked(f->tile)) {
        merge_u8(tile + j / 2 * 512 + lane * 16 + r * 4 + byte, v << 4 * (j % 2));
        return;
    }
    uint32_t small = f->bits > 4 ? f->bits - 4 : 0, low = v, nibble = 0;
    if (f->bits >= 4) {
        nibble = f->is_signed ? v >> small : v & 15;
        low = f->is_signed ? v & ((1u << small) - 1) : v >> 4;
        merge_u8(tile + j / 2 * 512 + lane * 16 + j % 2 * 8 + r % 2 * 4 + byte, nibble << 4 * (r / 2));
    }
    uint8_t *plane = tile + tile_small_plane(f->tile);
    if (tile_has_pairs(f->tile))
        merge_u8(plane + j / 4 * 512 + lane * 16 + j % 4 * 4 + byte, low << 2 * r);
    else if (tile_has_bits(f->tile))
        merge_u8(plane + lane * 16 + j / 2 * 4 + byte, low << (j % 2 * 4 + r));
}

static void put_six_bits(uint8_t *p, const struct quant_super *s)
{
    for (int i = 0; i < 4; i++) {
        int scale[2] = {s->scale[i], s->scale[i + 4]}, min[2] = {s->min[i], s->min[i + 4]};
        p[i] = (uint8_t)((scale[0] & 15) | (min[0] & 15) << 4);
        p[i + 4] = (uint8_t)((scale[1] & 15) | (min[1] & 15) << 4);
        p[i + 8] = (uint8_t)(scale[0] >> 4 | (min[0] >> 4) << 2 | (scale[1] >> 4) << 4 | (min[1] >> 4) << 6);
    }
}

/* The codebook is the same for all rows. */
static void put_book(uint32_t type, uint8_t *tile, uint32_t row, const struct quant_super *s)
{
    const struct quant_codebook_values *book = &quant_codebooks[quant_codebook(type)];
    float d = half_to_float(s->d) * book->unit;
    uint32_t at = tile_book(forms[type].tile);
    memcpy(tile + at - (TILE_ROWS - row) * 4, &d, 4);
    memcpy(tile + at, book->value, sizeof book->value);
}

static void put_scales(uint32_t type, uint8_t *scales, uint32_t row, const struct quant_super *s)
{
    uint32_t tile_type = forms[type].tile;
    uint8_t *mine = scales + row * TILE_ROW_SCALES, *after = scales + TILE_ROWS * TILE_ROW_SCALES;
    switch (tile_type) {
    case TILE_Q4_K:
    case TILE_Q5_K:
        memcpy(mine, &s->d, 2);
        memcpy(mine + 2, &s->dmin, 2);
        put_six_bits(mine + 4, s);
        break;
    case TILE_Q6_K:
        memcpy(after + 2 * row, &s->d, 2);
        memcpy(mine, s->scale, 16);
        break;
    case TILE_NVFP4:
        memcpy(after + 4 * row, &s->factor, 4);
        memcpy(mine, s->scale, 16);
        break;
    case TILE_CODES:
    case TILE_THREES:
        for (int i = 0; i < 16; i++)
            mine[i] = (uint8_t)s->scale[forms[type].widens ? i / 2 : i];
        break;
    case TILE_Q2_K:
        for (int i = 0; i < 16; i++)
            mine[i] = (uint8_t)(s->scale[i] | s->min[i] << 4);
        memcpy(after + 4 * row, &s->d, 2);
        memcpy(after + 4 * row + 2, &s->dmin, 2);
        break;
    case TILE_Q5_1:
        memcpy(after + row * TILE_ROW_SCALES, s->m, 16);
        memcpy(mine, s->s, 16);
        break;
    case TILE_MXFP4: /* a power of two, subnormal ones too, has its bits in the upper half */
        for (uint32_t j = 0; j < 8; j++) {
            uint32_t bits = s->s[j] == MXFP4_NONE ? 0 : arith_to_bits(quant_super_scale(type, s, j)) >> 16;
            memcpy(mine + 2 * j, &(uint16_t){(uint16_t)bits}, 2);
        }
        break;
    default:
        memcpy(mine, s->s, 16);
    }
}

static void pack_integer_row(uint32_t type, const uint8_t *src, uint32_t n_blocks, uint8_t *tile,
                             uint32_t row)
{
    const struct form *f = &forms[type];
    struct quant_super s = {0};
    for (uint32_t j = n_blocks; j < 8; j++)
        s.s[j] = type == QUANT_MXFP4 ? MXFP4_NONE : 0;
    quant_super_read(type, src, n_blocks, &s);
    bool meant = f->is_signed && !tile_is_coded(f->tile);
    uint32_t mask = (1u << f->bits) - 1;
    for (uint32_t c = 0; c < n_blocks * ARITH_BLOCK; c++)
        put_value(f, tile, row, c, (meant ? (uint32_t)quant_super_value(type, s.q[c]) : s.q[c]) & mask);
    put_scales(type, tile + tile_scales(f->tile), row, &s);
    if (tile_has_book(f->tile))
        put_book(type, tile, row, &s);
}

static void pack_float_row(uint32_t size, const uint8_t *src, uint32_t n_columns, uint8_t *tile, uint32_t row)
{
    uint32_t run = 16 / size; /* adjacent columns */
    for (uint32_t c = 0; c < n_columns; c += run)
        memcpy(tile + (c / run * TILE_ROWS + row) * 16, src + c * size, 16);
}

/* Packs the upper half of each value. */
static void pack_bf16_row(const uint8_t *src, uint32_t n_columns, uint8_t *tile, uint32_t row)
{
    for (uint32_t c = 0; c < n_columns; c++)
        memcpy(tile + (c / 8 * TILE_ROWS + row) * 16 + c % 8 * 2, src + c * 4 + 2, 2);
}

void cuda_pack(uint32_t type, const struct decoder_matrix *m, const void *rows, void *out, uint32_t first,
               uint32_t last)
{
    bool as_bf16 = type == QUANT_F32 && m->type == TILE_BF16;
    assert((as_bf16 || m->type == forms[type].tile) && first <= last && last <= m->n_tiles);
    size_t row_size = quant_size(type, m->k), tile_bytes = (size_t)m->n_supers * m->super_bytes;
    memset(out, 0, (last - first) * tile_bytes);
    for (uint32_t tile = first; tile < last; tile++)
        for (uint32_t row = 0; row < TILE_ROWS && tile * TILE_ROWS + row < m->n; row++)
            for (uint32_t super = 0; super < m->n_supers; super++) {
                const uint8_t *from = (const uint8_t *)rows +
                                      ((size_t)(tile - first) * TILE_ROWS + row) * row_size +
                                      super * quant_size(type, TILE_COLUMNS);
                uint8_t *to = (uint8_t *)out + (tile - first) * tile_bytes + (size_t)super * m->super_bytes;
                uint32_t left = m->k - super * TILE_COLUMNS;
                uint32_t n_columns = left < TILE_COLUMNS ? left : TILE_COLUMNS;
                if (as_bf16)
                    pack_bf16_row(from, n_columns, to, row);
                else if (tile_is_float(m->type))
                    pack_float_row(forms[type].bits / 8, from, n_columns, to, row);
                else
                    pack_integer_row(type, from, n_columns / ARITH_BLOCK, to, row);
            }
}
