/* mma_tiles.c - see toys.h. */
#include "toys.h"

static void fetch(SIMT_SHARED char *stage, const SIMT_GLOBAL char *tile)
{
    for (uint32_t i = simt_lane() * 16; i < MMA_TILES_BYTES; i += SIMT_LANES * 16)
        simt_cp_async16(stage + i, tile + i);
    simt_cp_async_commit();
}

static void multiply(int32_t c[4], const SIMT_SHARED char *stage)
{
    const SIMT_SHARED uint32_t *a = (const SIMT_SHARED uint32_t *)stage,
                               *b = a + 16 * 8; /* rows of 8 words */
    uint32_t g = simt_lane() / 4, t = simt_lane() % 4;
    uint32_t fa[4] = {a[g * 8 + t], a[(g + 8) * 8 + t], a[g * 8 + t + 4], a[(g + 8) * 8 + t + 4]};
    uint32_t fb[2] = {b[g * 8 + t], b[g * 8 + t + 4]};
    simt_mma_u8s8(c, fa, fb);
}

SIMT_KERNEL(mma_tiles, struct mma_tiles_args, SIMT_LANES, 1)
{
    uint32_t lane = simt_lane(), block = simt_block();
    const SIMT_GLOBAL char *tile = args.tiles + (size_t)block * args.n_tiles * MMA_TILES_BYTES;
    SIMT_SHARED char *stages = simt_carve(0, MMA_TILES_SHARED);
    int32_t c[4] = {0, 0, 0, 0};
    fetch(stages, tile);
    for (uint32_t i = 0; i < args.n_tiles; i++) {
        if (i + 1 < args.n_tiles) {
            fetch(stages + (i + 1) % 2 * MMA_TILES_BYTES, tile + (i + 1) * MMA_TILES_BYTES);
            simt_cp_async_wait(1);
        } else {
            simt_cp_async_wait(0);
        }
        simt_syncwarp(); /* the other lanes' pieces are there too */
        multiply(c, stages + i % 2 * MMA_TILES_BYTES);
        simt_syncwarp(); /* all have read: the stage may be filled again */
    }
    SIMT_GLOBAL int32_t *out = args.c + block * 128 + lane / 4 * 8 + lane % 4 * 2;
    out[0] = c[0];
    out[1] = c[1];
    out[64] = c[2];
    out[65] = c[3];
    uint32_t sum = (uint32_t)(c[0] + c[1] + c[2] + c[3]);
    for (uint32_t w = SIMT_LANES / 2; w; w /= 2)
        sum += simt_shfl_xor_u32(sum, w);
    uint32_t odd = simt_ballot(c[0] & 1);
    if (lane == 0) {
        args.sums[block] = (int32_t)sum;
        args.sums[simt_n_blocks() + block] = (int32_t)odd;
    }
}
