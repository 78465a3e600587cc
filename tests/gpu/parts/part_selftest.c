/* part_selftest.c - compares the device's arithmetic with integer and IEEE reference results, bit by bit. */
#include "gpu/gpu.h"
#include "abi/arith.h"
#include "base/half.h"
#include "gpu/kernels/gpu_kernels.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint32_t next(uint64_t *random)
{
    *random ^= *random << 13; /* xorshift64 (Marsaglia 2003) */
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return (uint32_t)(*random >> 32);
}

/* ---- mma ---- */

static int32_t dot(const uint8_t *a, const uint8_t *b, int n, bool a_signed)
{
    int32_t sum = 0;
    for (int k = 0; k < n; k++)
        sum += (a_signed ? (int8_t)a[k] : a[k]) * (int8_t)b[k];
    return sum;
}

static uint32_t count_wrong(const uint8_t *tile, const int32_t *answers)
{
    const uint8_t *b = tile + 16 * 32;
    int32_t c[128];
    uint32_t wrong = 0;
    memcpy(c, b + 8 * 32, sizeof c);
    for (int word = 0; word < 3; word++) /* u8s8, s8s8, and s8s8 of the first half */
        for (int row = 0; row < 16; row++)
            for (int col = 0; col < 8; col++) {
                int at = row * 8 + col;
                int32_t sum = dot(tile + row * 32, b + col * 32, word == 2 ? 16 : 32, word > 0);
                wrong += answers[word * 128 + at] != (int32_t)((uint32_t)c[at] + (uint32_t)sum);
            }
    return wrong;
}

/* ---- reductions ---- */

static uint32_t count_wrong_extremes(const uint8_t *tile, const int32_t *answers)
{
    uint32_t most = 0, least = UINT32_MAX, wrong = 0;
    for (int i = 0; i < 32; i++) {
        uint32_t word;
        memcpy(&word, tile + 4 * i, sizeof word);
        most = word > most ? word : most;
        least = word < least ? word : least;
    }
    for (int i = 0; i < 32; i++)
        wrong += ((uint32_t)answers[i] != most) + ((uint32_t)answers[32 + i] != least);
    return wrong;
}

/* ---- floats ---- */

/* Returns bits of every kind: arbitrary, subnormal, near 1, halves of integers, inputs of exp2. */
static uint32_t input(uint64_t *random, uint32_t kind)
{
    uint32_t bits = next(random);
    switch (kind % 6) {
    case 0:
        return bits;
    case 1:
        return bits & 0x807fffffu;
    case 2:
        return 0x3f800000u + (bits & 0xffffu) - 0x8000u;
    case 3:
        return arith_to_bits((float)((int32_t)bits >> 16) * 0.5f);
    case 4:
        return arith_to_bits((float)((int32_t)bits >> 8) * 0x1p-16f); /* -128 .. 128 */
    default:
        return (bits & 0x807fffffu) | (0x38000000u + (bits >> 3 & 0x0f800000u)); /* about the range of f16 */
    }
}

static uint32_t oracle(enum selftest_float what, uint32_t xbits, uint32_t ybits, uint32_t zbits)
{
    float x = arith_from_bits(xbits), y = arith_from_bits(ybits), z = arith_from_bits(zbits);
    float magnitude = arith_from_bits(xbits & 0x7fffffffu);
    switch (what) {
    case SELFTEST_FMA:
        return arith_to_bits(fmaf(x, y, z));
    case SELFTEST_DIVIDE:
        return arith_to_bits(x / y);
    case SELFTEST_ROOT:
        return arith_to_bits(sqrtf(magnitude));
    case SELFTEST_PRODUCT:
        return arith_to_bits(x * y + z);
    case SELFTEST_ROUND:
        return arith_to_bits(rintf(x));
    case SELFTEST_EXP2:
        return arith_to_bits(arith_exp2(z));
    case SELFTEST_LOG2:
        return arith_to_bits(arith_log2(magnitude));
    case SELFTEST_SILU:
        return arith_to_bits(arith_silu(z));
    case SELFTEST_TO_HALF:
        return half_from_float(x);
    case SELFTEST_FROM_HALF:
        return arith_to_bits(half_to_float((uint16_t)ybits));
    case SELFTEST_FLUSHED:
        return arith_to_bits(arith_fma_flushed(x, y, z));
    case SELFTEST_DP4A: {
        uint32_t sum = zbits;
        for (int i = 0; i < 32; i += 8)
            sum += (uint32_t)((int8_t)(xbits >> i) * (int8_t)(ybits >> i));
        return sum;
    }
    case SELFTEST_N_FLOATS:
        break;
    }
    return 0;
}

static const char *const float_names[SELFTEST_N_FLOATS] = {
    "fmaf", "division", "square root", "product and sum", "rint",         "exp2",
    "log2", "silu",     "to f16",      "from f16",        "flushed fmaf", "dp4a"};

/* The case that arith.h leaves open for a flushed fmaf: a result that rounds up to the least normal number
 * may count as subnormal. */
static bool open_end(uint32_t want, uint32_t got, uint32_t x, uint32_t y, uint32_t z)
{
    double exact = fma((double)arith_from_bits(x), (double)arith_from_bits(y), (double)arith_from_bits(z));
    return (want & 0x7fffffffu) == 0x00800000u && got == (want & 0x80000000u) && fabs(exact) < 0x1p-126;
}

/* All NaNs are equal: their payload is unspecified. */
static bool same(enum selftest_float what, uint32_t a, uint32_t b)
{
    if (what == SELFTEST_DP4A)
        return a == b;
    uint32_t infinity = what == SELFTEST_TO_HALF ? 0x7c00 : 0x7f800000u;
    uint32_t magnitude = what == SELFTEST_TO_HALF ? 0x7fff : 0x7fffffffu;
    return a == b || ((a & magnitude) > infinity && (b & magnitude) > infinity);
}

struct selftest {
    struct selftest_args args;
    uint8_t *tiles;
    int32_t *answers;
    uint32_t *inputs, *results;
};

static int run(struct gpu *g, struct selftest *s, struct error *err)
{
    size_t tiles = s->args.n_tiles * (size_t)SELFTEST_TILE_BYTES,
           answers = s->args.n_tiles * sizeof(int32_t[SELFTEST_ANSWERS]);
    size_t inputs = s->args.n_inputs * (size_t)12,
           results = s->args.n_inputs * (size_t)(4 * SELFTEST_N_FLOATS);
    struct gpu_launch launch = {.n_blocks = g->device.n_sms, .n_threads = SELFTEST_THREADS, .args = &s->args};
    int rc = gpu_function(g, gpu_ptx_images, "selftest", "gpu_selftest", 0, &launch.function, err);
    if (rc == 0)
        rc = gpu_memory(g, &s->args.tiles, tiles, err);
    if (rc == 0)
        rc = gpu_memory(g, &s->args.answers, answers, err);
    if (rc == 0)
        rc = gpu_memory(g, &s->args.inputs, inputs, err);
    if (rc == 0)
        rc = gpu_memory(g, &s->args.results, results, err);
    if (rc == 0)
        rc = gpu_write(g, s->args.tiles, s->tiles, tiles, err);
    if (rc == 0)
        rc = gpu_write(g, s->args.inputs, s->inputs, inputs, err);
    if (rc == 0)
        rc = gpu_start(g, &launch, err);
    if (rc == 0)
        rc = gpu_finish(g, GPU_LIMIT_S, err);
    if (rc == 0)
        rc = gpu_read(g, s->answers, s->args.answers, answers, err);
    return rc < 0 ? rc : gpu_read(g, s->results, s->args.results, results, err);
}

static void make_inputs(struct selftest *s)
{
    uint64_t random = 88172645463325252u;
    for (size_t i = 0; i < s->args.n_tiles * (size_t)SELFTEST_TILE_BYTES; i++)
        s->tiles[i] = (uint8_t)next(&random);
    for (uint32_t i = 0; i < s->args.n_inputs; i++)
        for (uint32_t k = 0; k < 3; k++) /* kinds are paired by i; f16 patterns run through all values */
            s->inputs[k * s->args.n_inputs + i] = input(&random, k == 0 ? i : k == 1 ? i / 6 : i / 36);
}

static int compare(const struct selftest *s, json_t *out, struct error *err)
{
    uint32_t n = s->args.n_inputs, wrong_mma = 0, wrong_redux = 0, wrong_all = 0;
    for (uint32_t i = 0; i < s->args.n_tiles; i++) {
        const uint8_t *tile = s->tiles + i * (size_t)SELFTEST_TILE_BYTES;
        const int32_t *answers = s->answers + i * (size_t)SELFTEST_ANSWERS;
        wrong_mma += count_wrong(tile, answers);
        wrong_redux += count_wrong_extremes(tile, answers + 3 * 128);
    }
    gpu_put(out, "mma_tiles", json_integer(s->args.n_tiles));
    gpu_put(out, "mma_wrong", json_integer(wrong_mma));
    if (wrong_mma)
        error_set(err, -EIO, "%u results of the mma instructions are wrong", wrong_mma);
    gpu_put(out, "redux_wrong", json_integer(wrong_redux));
    if (wrong_redux)
        error_set(err, -EIO, "%u results of the redux instructions are wrong", wrong_redux);
    json_t *list = json_object();
    for (uint32_t k = 0; k < SELFTEST_N_FLOATS; k++) {
        uint32_t wrong = 0;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t x = s->inputs[i], y = s->inputs[n + i], z = s->inputs[2 * n + i];
            uint32_t want = oracle((enum selftest_float)k, x, y, z), got = s->results[k * (size_t)n + i];
            if (same((enum selftest_float)k, want, got) ||
                (k == SELFTEST_FLUSHED && open_end(want, got, x, y, z)))
                continue;
            if (!wrong++)
                error_set(err, -EIO, "%s of %08x %08x %08x is %08x, expected %08x", float_names[k], x, y, z,
                          got, want);
        }
        json_object_set_new(list, float_names[k], json_integer(wrong));
        wrong_all += wrong;
    }
    gpu_put(out, "inputs", json_integer(n));
    gpu_put(out, "wrong", list);
    return wrong_mma || wrong_redux || wrong_all ? -EIO : 0;
}

int part_selftest(struct gpu *g, json_t *out, struct error *err)
{
    struct selftest s = {
        .args = {.n_tiles = g->emulated ? 12 : 4096, .n_inputs = g->emulated ? 4000 : 1 << 20}};
    s.tiles = malloc(s.args.n_tiles * (size_t)SELFTEST_TILE_BYTES);
    s.answers = malloc(s.args.n_tiles * sizeof(int32_t[SELFTEST_ANSWERS]));
    s.inputs = malloc(s.args.n_inputs * (size_t)12);
    s.results = malloc(s.args.n_inputs * (size_t)(4 * SELFTEST_N_FLOATS));
    int rc = s.tiles && s.answers && s.inputs && s.results ? 0 : error_set(err, -ENOMEM, "out of memory");
    if (rc == 0) {
        make_inputs(&s);
        rc = run(g, &s, err);
    }
    if (rc == 0)
        rc = compare(&s, out, err);
    free(s.tiles);
    free(s.answers);
    free(s.inputs);
    free(s.results);
    return rc;
}
