/* tile_model.h - AMX's tile instructions in plain C, as Intel's manual describes them (SDM volume 2,
 * LDTILECFG to TILEZERO; palette 1: eight tiles of at most 16 rows of 64 bytes). Whatever a CPU raises an
 * exception for ends the program here: use before a configuration, shapes that do not fit. Thread: each has
 * tiles of its own, as on a CPU. */
#ifndef HEARTH_TESTS_SUPPORT_TILE_MODEL_H
#define HEARTH_TESTS_SUPPORT_TILE_MODEL_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TILE_MODEL_TILES 8

struct tile_model {
    bool live; /* between a configuration and its release */
    struct {
        uint8_t rows;
        uint16_t row_bytes;
        uint8_t data[16][64];
    } tile[TILE_MODEL_TILES];
};
static _Thread_local struct tile_model tile_model;

/* The operand of 64 bytes: palette, start row, 14 reserved, 16 x row bytes, 16 x rows. All tiles become zero.
 */
static inline void tile_model_config(const void *operand)
{
    uint8_t bytes[64];
    memcpy(bytes, operand, 64);
    assert(bytes[0] == 1 && bytes[1] == 0);
    for (int i = 2; i < 16; i++)
        assert(bytes[i] == 0);
    memset(&tile_model, 0, sizeof tile_model);
    for (int i = 0; i < 16; i++) {
        uint16_t row_bytes;
        memcpy(&row_bytes, bytes + 16 + 2 * i, 2);
        uint8_t rows = bytes[48 + i];
        assert(rows <= 16 && row_bytes <= 64 && !rows == !row_bytes);
        assert(i < TILE_MODEL_TILES || !rows);
        if (i < TILE_MODEL_TILES) {
            tile_model.tile[i].rows = rows;
            tile_model.tile[i].row_bytes = row_bytes;
        }
    }
    tile_model.live = true;
}

static inline void tile_model_release(void)
{
    memset(&tile_model, 0, sizeof tile_model);
}

static inline void tile_model_check(int i)
{
    assert(tile_model.live && i >= 0 && i < TILE_MODEL_TILES && tile_model.tile[i].rows);
}

static inline void tile_model_zero(int i)
{
    tile_model_check(i);
    memset(tile_model.tile[i].data, 0, sizeof tile_model.tile[i].data);
}

/* Bytes and rows beyond the tile's shape become zero. */
static inline void tile_model_load(int i, const void *p, size_t stride)
{
    tile_model_zero(i);
    for (int r = 0; r < tile_model.tile[i].rows; r++)
        memcpy(tile_model.tile[i].data[r], (const uint8_t *)p + (size_t)r * stride,
               tile_model.tile[i].row_bytes);
}

static inline void tile_model_store(int i, void *p, size_t stride)
{
    tile_model_check(i);
    for (int r = 0; r < tile_model.tile[i].rows; r++)
        memcpy((uint8_t *)p + (size_t)r * stride, tile_model.tile[i].data[r], tile_model.tile[i].row_bytes);
}

/* TDPBSSD: c += a * b, four signed bytes at a time. */
static inline void tile_model_dot(int c, int a, int b)
{
    tile_model_check(a);
    tile_model_check(b);
    tile_model_check(c);
    int rows = tile_model.tile[c].rows, n = tile_model.tile[c].row_bytes / 4,
        k = tile_model.tile[a].row_bytes / 4;
    assert(c != a && c != b && a != b);
    assert(tile_model.tile[c].row_bytes % 4 == 0 && tile_model.tile[a].row_bytes % 4 == 0);
    assert(tile_model.tile[a].rows == rows && tile_model.tile[b].rows == k);
    assert(tile_model.tile[b].row_bytes == tile_model.tile[c].row_bytes);
    for (int m = 0; m < rows; m++) {
        int32_t sum[16];
        memcpy(sum, tile_model.tile[c].data[m], sizeof sum);
        for (int i = 0; i < k; i++)
            for (int j = 0; j < 4 * n; j++)
                sum[j / 4] +=
                    (int8_t)tile_model.tile[a].data[m][4 * i + j % 4] * (int8_t)tile_model.tile[b].data[i][j];
        memcpy(tile_model.tile[c].data[m], sum, sizeof sum);
    }
}

#endif
