/* embed.h - rows of a packed matrix as floats, times a factor: the embedding of a token, gathered from the
 * tiles, which are also the output head's if the model ties them. The same bits as quant_dequantise() of the
 * file and matmul_row() of lib/cpu.
 *
 * A warp does one super-block of one row: lane l its columns 4 l .. + 3 and 128 + 4 l .. + 3, each a word of
 * a fragment (tile.h). Floor: reads one sixteenth of the row's tiles once (Q4_K: 144 bytes in 256 values),
 * though not whole sectors, since a row is scattered over its tile; writes 4 bytes a value. Tested as a node
 * (tests/simt/products/product_nodes.c), and as an op by tests/cuda/test_cuda_twin.c.
 *
 * Thread: embed_super(): all lanes of one warp; embed_op(): all compute threads of every block. */
#pragma once
#include "device/f16.h"
#include "abi/tile.h"
#include "device/interpreter.h"

/* Word r of lane `lane` in block j of a tile with codes: the codes' values. */
SIMT_INLINE uint32_t embed_look_up(uint32_t type, const SIMT_GLOBAL char *tile, uint32_t j, uint32_t lane,
                                   uint32_t r)
{
    const SIMT_GLOBAL uint32_t *book = (const SIMT_GLOBAL uint32_t *)(tile + tile_book(type));
    const SIMT_GLOBAL uint32_t *words = (const SIMT_GLOBAL uint32_t *)(tile + lane * 16);
    uint32_t w = j % 2 * 2 + r / 2, codes, value = 0;
    if (tile_has_codes(type))
        codes = words[j / 2 * 128 + w];
    else if (w < 3)
        codes = words[w * 128 + j / 2] & 0x77777777u;
    else
        codes = (words[j / 2] >> 3 & 0x11111111u) | (words[128 + j / 2] >> 2 & 0x22222222u) |
                (words[256 + j / 2] >> 1 & 0x44444444u);
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t code = codes >> (r % 2 * 16 + 4 * i) & 15;
        uint32_t from = tile_has_book(type) ? book[code / 4] : tile_fixed_book(type, code / 4);
        value |= (from >> code % 4 * 8 & 0xffu) << 8 * i;
    }
    return value;
}

/* Word `quad` (columns 4 quad .. + 3) of row `row` of an integer tile: bytes as they are stored. */
SIMT_INLINE uint32_t embed_word(uint32_t type, const SIMT_GLOBAL char *tile, uint32_t row, uint32_t quad)
{
    uint32_t j = quad / 8, r = row / 8 + quad % 8 / 4 * 2, lane = row % 8 * 4 + quad % 4, word = 0;
    const SIMT_GLOBAL char *mine = tile + lane * 16, *plane = mine + tile_small_plane(type);
    if (type == TILE_Q8_0)
        return *(const SIMT_GLOBAL uint32_t *)(mine + j * 512 + r * 4);
    if (tile_is_coded(type))
        return embed_look_up(type, tile, j, lane, r);
    uint32_t n_small = tile_has_pairs(type) ? 2 : tile_has_bits(type) ? 1 : 0, small = 0;
    bool high = type == TILE_Q6_K || type == TILE_Q5_0 || type == TILE_Q4_0;
    if (tile_has_pairs(type))
        small = *(const SIMT_GLOBAL uint32_t *)(plane + j / 4 * 512 + j % 4 * 4) >> 2 * r & 0x03030303u;
    else if (tile_has_bits(type))
        small = *(const SIMT_GLOBAL uint32_t *)(plane + j / 2 * 4) >> (j % 2 * 4 + r) & 0x01010101u;
    if (tile_is_stacked(type))
        return *(const SIMT_GLOBAL uint32_t *)(mine + j / 2 * 512 + r * 4) >> j % 2 * 4 & 0x0f0f0f0fu;
    if (tile_has_nibbles(type))
        word = *(const SIMT_GLOBAL uint32_t *)(mine + j / 2 * 512 + j % 2 * 8 + r % 2 * 4) >> r / 2 * 4 &
               0x0f0f0f0fu;
    if (!high)
        return tile_has_nibbles(type) ? word | small << 4 : small;
    word = word << n_small | small;
    uint32_t sign = 0x08080808u << n_small; /* widens to a signed byte: (x ^ sign) - sign in each */
    word ^= sign;
    return ((word | 0x80808080u) - sign) ^ 0x80808080u;
}

/* The scale and minimum (0: none) of columns 4 quad .. + 3. */
SIMT_INLINE void embed_scale(uint32_t type, const SIMT_GLOBAL char *tile, uint32_t row, uint32_t quad,
                             float *scale, float *min)
{
    const SIMT_GLOBAL char *scales = tile + tile_scales(type), *after = scales + TILE_ROWS * TILE_ROW_SCALES;
    const SIMT_GLOBAL uint8_t *bytes = (const SIMT_GLOBAL uint8_t *)(scales + row * TILE_ROW_SCALES);
    const SIMT_GLOBAL uint16_t *halves = (const SIMT_GLOBAL uint16_t *)bytes;
    uint32_t j = quad / 8, i = quad / 4;
    *min = 0;
    if (type == TILE_Q4_K || type == TILE_Q5_K) {
        const SIMT_GLOBAL uint8_t *p = bytes + 4;
        uint32_t low = p[j], high = (uint32_t)p[8 + j % 4] >> j / 4 * 4;
        *scale = f16_to_float(halves[0]) * (float)((low & 15) | (high & 3) << 4);
        *min = f16_to_float(halves[1]) * (float)(low >> 4 | (high & 12) << 2);
    } else if (type == TILE_Q6_K) {
        *scale = f16_to_float(((const SIMT_GLOBAL uint16_t *)after)[row]) * (float)(int8_t)bytes[i];
    } else if (type == TILE_Q2_K) {
        const SIMT_GLOBAL uint16_t *d = (const SIMT_GLOBAL uint16_t *)after + 2 * row;
        *scale = f16_to_float(d[0]) * (float)(bytes[i] & 15);
        *min = f16_to_float(d[1]) * (float)(bytes[i] >> 4);
    } else if (tile_has_book(type)) {
        *scale = ((const SIMT_GLOBAL float *)after)[row] * (float)(int8_t)bytes[i];
    } else if (type == TILE_NVFP4) {
        *scale =
            ((const SIMT_GLOBAL float *)after)[row] * (arith_from_bits((uint32_t)bytes[i] << 20) * 0x1p119f);
    } else {
        *scale = type == TILE_MXFP4 ? arith_from_bits((uint32_t)halves[j] << 16) : f16_to_float(halves[j]);
        if (type == TILE_Q5_1)
            *min = f16_to_float(((const SIMT_GLOBAL uint16_t *)(after + row * TILE_ROW_SCALES))[j]);
    }
}

/* Columns 4 quad .. + 3 of row `row` (0..15) of a tile. */
SIMT_INLINE simt_u4 embed_quad(uint32_t type, const SIMT_GLOBAL char *tile, uint32_t row, uint32_t quad)
{
    simt_u4 out;
    if (type == TILE_F32)
        return *(const SIMT_GLOBAL simt_u4 *)(tile + (quad * TILE_ROWS + row) * 16);
    if (tile_is_float(type)) {
        const SIMT_GLOBAL uint16_t *h =
            (const SIMT_GLOBAL uint16_t *)(tile + (quad / 2 * TILE_ROWS + row) * 16 + quad % 2 * 8);
        for (uint32_t e = 0; e < 4; e++)
            out[e] = type == TILE_F16 ? arith_to_bits(f16_to_float(h[e])) : (uint32_t)h[e] << 16;
        return out;
    }
    bool is_signed = type == TILE_Q6_K || type == TILE_Q8_0 || type == TILE_Q5_0 || type == TILE_Q4_0 ||
                     tile_is_coded(type);
    uint32_t word = embed_word(type, tile, row, quad);
    float scale, min;
    embed_scale(type, tile, row, quad, &scale, &min);
    for (uint32_t e = 0; e < 4; e++) {
        uint32_t byte = word >> 8 * e & 0xffu;
        float v = scale * (is_signed ? (float)(int8_t)byte : (float)byte);
        if (type == TILE_Q5_1)
            v = v + min;
        else if (!is_signed)
            v = v - min;
        out[e] = arith_to_bits(v);
    }
    return out;
}

/* Writes super-block `super` of row `row` of a matrix, times `scale`, to out[k], by a warp. out is 16-byte
 * aligned. */
SIMT_INLINE void embed_super(const SIMT_GLOBAL char *tiles, uint32_t type, uint32_t k, uint32_t row,
                             uint32_t super, float scale, SIMT_GLOBAL float *out)
{
    uint32_t n_supers = tile_supers(k);
    const SIMT_GLOBAL char *tile =
        tiles + ((size_t)(row / TILE_ROWS) * n_supers + super) * tile_super_bytes(type);
    for (uint32_t quad = simt_lane(); quad < TILE_COLUMNS / 4; quad += SIMT_LANES) {
        uint32_t column = super * TILE_COLUMNS + quad * 4;
        if (column >= k)
            continue;
        simt_u4 v = embed_quad(type, tile, row % TILE_ROWS, quad);
        for (uint32_t e = 0; e < 4; e++)
            v[e] = arith_to_bits(arith_from_bits(v[e]) * scale);
        *(SIMT_GLOBAL simt_u4 *)(out + column) = v;
    }
}

/* The op EMBED of the persistent decoder. False: end, as interpreter.h says. */
SIMT_INLINE bool embed_op(struct walk *w)
{
    const SIMT_GLOBAL struct decoder_matrix *m =
        DECODER_AT(const struct decoder_matrix, w->args->matrices) + w->op->weight[0];
    const SIMT_GLOBAL char *tiles = DECODER_AT(const char, m->tiles);
    uint32_t type = m->type, k = m->k, n_supers = m->n_supers, n_warps = w->crew.n_warps;
    float scale = w->op->scale;
    if (!walk_wait(w))
        return false;
    if (w->op->n_empties &&
        simt_warp() + 1 == n_warps) /* all rows that words are for: the last step may have had more */
        walk_empty(w, w->op->empties, w->op->n_empties, STEP_MAX_ROWS);
    for (uint32_t unit = simt_block() * n_warps + simt_warp(); unit < w->n_rows * n_supers;
         unit += simt_n_blocks() * n_warps) {
        uint32_t row = unit / n_supers;
        embed_super(tiles, type, k, (uint32_t)w->seen->tokens[row], unit % n_supers, scale,
                    walk_row(w, w->op->out, row));
    }
    return true;
}
