/* attend_layout.h - what host and device share about attention: its arguments and its memory.
 *
 * A past of several splits leaves a partial result per (row, head, split) in the scratch; a row's splits are
 * counted from the first one that it sees:
 *
 *   tickets   u32 [max_rows][n_heads], one for all heads of a unit: 0 between ops; the block that draws the
 *             last ticket merges the splits and sets it to 0 again
 *   folds     float [max_rows][n_heads][max_splits][2]: maximum, sum
 *   outs      float [max_rows][n_heads][max_splits][head_dim]
 *   handed    u64 [2: by layer % 2][ATTEND_HANDED_ROWS][n_heads][ATTEND_HANDED_SPLITS][ATTEND_HANDED_STATS +
 * head_dim]: the same, maximum and sum first, as words that say by themselves whether they are there
 * (attend.h); 0 between ops; the general attention has none
 *
 * The host zeroes tickets and handed words at load, and again after a launch that ended inside a step.
 * Thread: any, host or device; pure functions. */
#pragma once
#include "arith.h"
#include "device_abi.h"

/* The longest head. In the persistent decoder it must also be a multiple of 32: the host refuses other
 * sizes. */
#define ATTEND_MAX_HEAD_DIM   576u
#define ATTEND_PLAIN_HEAD_DIM 128u /* longer heads take the general attention */

/* The most rows of a step, and the most splits of a row, that are handed over without tickets. */
#define ATTEND_HANDED_ROWS   8u
#define ATTEND_HANDED_SPLITS 16u
#define ATTEND_HANDED_STATS  4u /* words before the values of a part */

/* Minimum shared memory in bytes for this head size; up to 40 KB more makes the kernel faster. */
static inline uint32_t attend_min_work(uint32_t head_dim)
{
    return 12288 + (head_dim > ATTEND_PLAIN_HEAD_DIM ? (head_dim - ATTEND_PLAIN_HEAD_DIM) * 56 : 0);
}

/* Arguments of one attention op, and the part of kernel `attention`'s parameter (node_args.h) that does not
 * depend on nodes. All addresses are device memory. in = [.. q .. k .. v ..] per row, out = [n_heads *
 * head_dim]. */
struct attend_args {
    uint64_t in, out;        /* float, rows in_stride and out_stride apart */
    uint64_t cosines, sines; /* float [n_ctx][rope_dim / 2] */
    uint64_t q_gain, k_gain; /* float [head_dim], or both 0 */
    uint64_t kv;             /* pages */
    uint64_t scratch;        /* attend_scratch_bytes() */
    struct kv_layout layout;
    struct decoder_slots slots;
    uint32_t max_rows; /* of a step, at most STEP_MAX_ROWS_CUDA */
    uint32_t ready;    /* q is rotated and K and V are in the cache already; no row is then lone */
    uint32_t in_stride, out_stride; /* multiples of 4 */
    uint32_t q_col, k_col, v_col;   /* columns where they begin in a row of `in`: multiples of 4 */
    uint32_t layer, n_heads;        /* n_heads: a multiple of layout.n_kv_heads */
    uint32_t rope_dim, neox;
    float eps, scale;
    uint32_t work, work_bytes; /* shared memory: offset, size >= attend_min_work() */
    /* Only the general attention reads these. */
    uint64_t temperatures; /* float [n_ctx]: factor of the queries, by position; or 0 */
    uint64_t sinks;        /* float [n_heads], or 0 */
    uint32_t window;       /* tokens that a position sees; 0: all */
    float cap;             /* of the scores; 0: none */
    uint32_t cached;       /* K and V are in the cache already, q is not rotated yet */
    uint32_t v_normed;     /* heads of V are normalised, without a gain */
};

/* The first position that a row at position p sees. */
static inline uint32_t attend_first_seen(uint32_t window, uint32_t p)
{
    return window && p >= window ? p - window + 1 : 0;
}

/* Query heads of a kv head in a unit of the general attention. Of more than 8, as a compressed cache has on
 * its only kv head, parts of up to four have units of their own, so that more blocks share the work. */
static inline uint32_t attend_unit_heads(uint32_t ratio)
{
    if (ratio <= 8)
        return ratio;
    return ratio % 4 == 0 ? 4 : ratio % 3 == 0 ? 3 : ratio % 2 == 0 ? 2 : 1;
}

/* The first split of which a row at position p sees a token, counted from position 0, and the one behind its
 * last. */
static inline uint32_t attend_first_split(uint32_t window, uint32_t p)
{
    return attend_first_seen(window, p) / arith_split(p, window);
}

static inline uint32_t attend_end_split(uint32_t window, uint32_t p)
{
    return p / arith_split(p, window) + 1;
}

/* The most splits that a row at any position below n_ctx sees: those of the last position that sees
 * everything, or of one just before splits double. Behind it the window may begin and end inside a split,
 * which makes one more. */
static inline uint32_t attend_max_splits(uint32_t n_ctx, uint32_t window)
{
    bool moves = window && window < n_ctx;
    uint32_t end = moves ? window : n_ctx, most = attend_end_split(0, end - 1);
    for (uint32_t limit = 1024; limit < end && limit < (1u << 30); limit *= 4)
        if (attend_end_split(0, limit - 1) > most)
            most = attend_end_split(0, limit - 1);
    return most + moves;
}

static inline uint64_t attend_folds_at(uint32_t max_rows, uint32_t n_heads)
{
    return ((uint64_t)max_rows * n_heads * 4 + 127) / 128 * 128;
}

static inline uint64_t attend_outs_at(uint32_t max_rows, uint32_t n_heads, uint32_t max_splits)
{
    uint64_t folds = (uint64_t)max_rows * n_heads * max_splits * 8;
    return attend_folds_at(max_rows, n_heads) + (folds + 127) / 128 * 128;
}

static inline uint64_t attend_handed_at(uint32_t max_rows, uint32_t n_heads, uint32_t head_dim,
                                        uint32_t max_splits)
{
    uint64_t outs = (uint64_t)max_rows * n_heads * max_splits * head_dim * 4;
    return attend_outs_at(max_rows, n_heads, max_splits) + (outs + 127) / 128 * 128;
}

/* Bytes of the handed words of one layer. */
static inline uint64_t attend_handed_bytes(uint32_t n_heads, uint32_t head_dim)
{
    return (uint64_t)ATTEND_HANDED_ROWS * n_heads * ATTEND_HANDED_SPLITS * (ATTEND_HANDED_STATS + head_dim) *
           8;
}

/* Bytes of scratch, `window` as in struct attend_args. Example: 256 rows, 32 heads of 128 and 8,192 tokens
 * need 142 MB. */
static inline uint64_t attend_scratch_bytes(uint32_t max_rows, uint32_t n_heads, uint32_t head_dim,
                                            uint32_t n_ctx, uint32_t window)
{
    uint32_t max_splits = attend_max_splits(n_ctx, window);
    return attend_handed_at(max_rows, n_heads, head_dim, max_splits) +
           2 * attend_handed_bytes(n_heads, head_dim);
}
