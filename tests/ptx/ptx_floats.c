/* ptx_floats.c - compares the conversions, comparisons and arithmetic of ptx_machine.h with the host's wider
 * types: every f16, and floats of every exponent and sign with fractions that round down, up, to even and
 * over; and integers of every length. These are all float instructions of the shipped PTX: none is
 * approximate, and one, fma, has a form that flushes. Prints what differs; exit code 0: nothing. */
#define SIMT_SM 90
#include "ptx/ptx_machine.h"

#include <math.h>
#include <stdio.h>

static unsigned n_checks, n_wrong;

static void check(bool right, const char *name, uint32_t a, uint32_t b)
{
    n_checks++;
    if (!right && n_wrong++ < 20)
        printf("FAILED  %s of %08x, %08x\n", name, a, b);
}

static bool same(float a, float b)
{
    return isnan(a) ? isnan(b) : ptx_bits(a) == ptx_bits(b);
}

/* Fractions about each place where a conversion rounds: f16 keeps 10 bits of 23, a subnormal one fewer. */
static const uint32_t fractions[] = {0,        1,        0xfff,    0x1000,   0x1001,   0x1fff,
                                     0x2000,   0x2fff,   0x3000,   0x3001,   0x3fffff, 0x400000,
                                     0x400001, 0x555555, 0x7fefff, 0x7ff000, 0x7ff001, 0x7fffff};
#define N_FRACTIONS (sizeof fractions / sizeof *fractions)
#define N_FLOATS    (2 * 256 * N_FRACTIONS)

static float float_at(size_t i)
{
    uint32_t sign = i & 1, exponent = i / 2 % 256;
    return ptx_float(sign << 31 | exponent << 23 | fractions[i / 512]);
}

static void check_f16(void)
{
    for (uint32_t h = 0; h < 65536; h++) {
        union {
            uint16_t bits;
            _Float16 f;
        } v = {.bits = (uint16_t)h};
        check(same(ptx_cvt_f32_f16((uint16_t)h), (float)v.f), "cvt.f32.f16", h, 0);
    }
    for (size_t i = 0; i < N_FLOATS; i++) {
        float f = float_at(i);
        union {
            _Float16 f;
            uint16_t bits;
        } v = {.f = (_Float16)f};
        uint16_t ours = ptx_cvt_rn_f16_f32(f);
        check(isnan(f) ? ours == 0x7fff : ours == v.bits, "cvt.rn.f16.f32", ptx_bits(f), ours);
    }
}

/* v rounded to 24 bits by integers alone, ties to even. */
static float nearest(uint64_t v)
{
    int below = v >> 24 ? 40 - __builtin_clzll(v) : 0; /* bits that no float of its size has */
    uint64_t kept = v >> below, rest = v - (kept << below), half = below ? UINT64_C(1) << (below - 1) : 1;
    return ldexpf((float)(kept + (rest > half || (rest == half && kept % 2))), below);
}

static void check_from_integer(uint64_t v)
{
    uint32_t low = (uint32_t)v, high = (uint32_t)(v >> 32);
    int32_t s = (int32_t)low;
    int16_t h = (int16_t)low;
    float magnitude = nearest(s < 0 ? 0u - low : low);
    check(same(ptx_cvt_rn_f32_u64(v), nearest(v)), "cvt.rn.f32.u64", low, high);
    check(same(ptx_cvt_rn_f32_s64((int64_t)v), (int64_t)v < 0 ? -nearest(0 - v) : nearest(v)),
          "cvt.rn.f32.s64", low, high);
    check(same(ptx_cvt_rn_f32_u32(low), nearest(low)), "cvt.rn.f32.u32", low, 0);
    check(same(ptx_cvt_rn_f32_s32(s), s < 0 ? -magnitude : magnitude), "cvt.rn.f32.s32", low, 0);
    check(same(ptx_cvt_rn_f32_u16((uint16_t)low), nearest(low & 0xffff)), "cvt.rn.f32.u16", low, 0);
    check(same(ptx_cvt_rn_f32_s16(h), h < 0 ? -nearest((uint64_t)-h) : nearest((uint64_t)h)),
          "cvt.rn.f32.s16", low, 0);
}

/* Integers of every length, with the fractions of floats about each place where they round. */
static void check_from_integers(void)
{
    for (int length = 1; length <= 64; length++)
        for (size_t i = 0; i < N_FRACTIONS; i++)
            for (int64_t away = -3; away <= 3; away++) {
                uint64_t v =
                    (UINT64_C(1) << (length - 1)) + (((uint64_t)fractions[i] << 41) >> (64 - length));
                check_from_integer(v + (uint64_t)away);
                uint64_t half = length > 24 ? UINT64_C(1) << (length - 25) : 0;
                check_from_integer(v + half + (uint64_t)away);
                check_from_integer(0 - v - half + (uint64_t)away);
            }
}

/* f cut or rounded in double, which holds every float and every integer of 32 bits. */
static void check_integers(float f)
{
    double cut = isnan(f) ? 0 : trunc((double)f);
    check(ptx_cvt_rzi_s32_f32(f) == (int32_t)fmax(fmin(cut, INT32_MAX), INT32_MIN), "cvt.rzi.s32.f32",
          ptx_bits(f), 0);
    check(ptx_cvt_rzi_u32_f32(f) == (uint32_t)fmax(fmin(cut, UINT32_MAX), 0), "cvt.rzi.u32.f32", ptx_bits(f),
          0);
    int64_t wide = cut >= 0x1p63 ? INT64_MAX : cut <= -0x1p63 ? INT64_MIN : (int64_t)cut;
    check(ptx_cvt_rzi_s64_f32(f) == wide, "cvt.rzi.s64.f32", ptx_bits(f), 0);
    check(same(ptx_cvt_rni_f32_f32(f), nearbyintf(f)), "cvt.rni.f32.f32", ptx_bits(f), 0);
}

static void check_one(float f)
{
    check(same(ptx_rcp_rn_f32(f), (float)(1.0 / (double)f)) || fabs((double)f) > 0x1p125, "rcp.rn.f32",
          ptx_bits(f), 0);
    check(ptx_bits(ptx_neg_f32(f)) == (ptx_bits(f) ^ 1u << 31), "neg.f32", ptx_bits(f), 0);
    check(ptx_bits(ptx_abs_f32(f)) == (ptx_bits(f) & ~(1u << 31)), "abs.f32", ptx_bits(f), 0);
    float flushed = fpclassify(f) == FP_SUBNORMAL ? copysignf(0, f) : f;
    check(same(ptx_fma_rn_ftz_f32(f, 1, -0.0f), flushed), "fma.rn.ftz.f32", ptx_bits(f), 0);
    check(!isnan(f) || ptx_bits(ptx_add_rn_f32(f, 1)) == 0x7fffffffu, "add.rn.f32 of a NaN", ptx_bits(f), 0);
}

static void check_two(float a, float b)
{
    bool nan = isunordered(a, b);
    const struct {
        bool ours, host;
        const char *name;
    } compares[] = {
        {ptx_setp_lt_f32(a, b), isless(a, b), "lt"},    {ptx_setp_le_f32(a, b), islessequal(a, b), "le"},
        {ptx_setp_gt_f32(a, b), isgreater(a, b), "gt"}, {ptx_setp_ge_f32(a, b), isgreaterequal(a, b), "ge"},
        {ptx_setp_eq_f32(a, b), !nan && a == b, "eq"},  {ptx_setp_ne_f32(a, b), islessgreater(a, b), "ne"},
        {ptx_setp_equ_f32(a, b), nan || a == b, "equ"}, {ptx_setp_neu_f32(a, b), nan || a != b, "neu"},
        {ptx_setp_ltu_f32(a, b), nan || a < b, "ltu"},  {ptx_setp_leu_f32(a, b), nan || a <= b, "leu"},
        {ptx_setp_gtu_f32(a, b), nan || a > b, "gtu"},  {ptx_setp_geu_f32(a, b), nan || a >= b, "geu"},
        {ptx_setp_nan_f32(a, b), nan, "nan"},           {ptx_setp_num_f32(a, b), !nan, "num"},
    };
    for (size_t i = 0; i < sizeof compares / sizeof *compares; i++)
        check(compares[i].ours == compares[i].host, compares[i].name, ptx_bits(a), ptx_bits(b));
    if (a == 0 && b == 0) { /* fminf may return either zero */
        check(ptx_bits(ptx_min_f32(a, b)) == (ptx_bits(a) | ptx_bits(b)), "min.f32", ptx_bits(a),
              ptx_bits(b));
        check(ptx_bits(ptx_max_f32(a, b)) == (ptx_bits(a) & ptx_bits(b)), "max.f32", ptx_bits(a),
              ptx_bits(b));
        return;
    }
    if (nan) { /* fminf of a signalling NaN is a NaN */
        check(same(ptx_min_f32(a, b), isnan(a) ? b : a), "min.f32", ptx_bits(a), ptx_bits(b));
        check(same(ptx_max_f32(a, b), isnan(a) ? b : a), "max.f32", ptx_bits(a), ptx_bits(b));
        return;
    }
    check(same(ptx_min_f32(a, b), fminf(a, b)), "min.f32", ptx_bits(a), ptx_bits(b));
    check(same(ptx_max_f32(a, b), fmaxf(a, b)), "max.f32", ptx_bits(a), ptx_bits(b));
}

/* A double holds every product of two floats and has 2 * 24 + 2 bits and more, so that a sum, quotient or
 * root that is rounded to it first rounds to the same float (Figueroa 1995). */
static void check_arithmetic(float a, float b)
{
    double x = (double)a, y = (double)b;
    const struct {
        float ours;
        double host;
        const char *name;
    } results[] = {
        {ptx_add_rn_f32(a, b), x + y, "add.rn.f32"},  {ptx_sub_rn_f32(a, b), x - y, "sub.rn.f32"},
        {ptx_mul_rn_f32(a, b), x * y, "mul.rn.f32"},  {ptx_div_rn_f32(a, b), x / y, "div.rn.f32"},
        {ptx_sqrt_rn_f32(a), sqrt(x), "sqrt.rn.f32"},
    };
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        check(same(results[i].ours, (float)results[i].host), results[i].name, ptx_bits(a), ptx_bits(b));
}

static float flushed(float f)
{
    return fpclassify(f) == FP_SUBNORMAL ? copysignf(0, f) : f;
}

/* In 113 bits the product is exact, and so is the sum unless c lies far below the product: such a c is left
 * out. */
static void check_fma(float a, float b, float c)
{
    double product = (double)a * (double)b;
    if (c != 0 && fabs(product) > 0x1p60 * fabs((double)c))
        return;
    check(same(ptx_fma_rn_f32(a, b, c), (float)((__float128)a * b + c)), "fma.rn.f32", ptx_bits(a),
          ptx_bits(c));
    a = flushed(a), b = flushed(b), c = flushed(c);
    check(same(ptx_fma_rn_ftz_f32(a, b, c), flushed((float)((__float128)a * b + c))), "fma.rn.ftz.f32",
          ptx_bits(a), ptx_bits(c));
}

/* Shifts by 32 and more, and fields that reach beyond bit 31, against 64 bits. */
static void check_words(uint32_t a)
{
    for (uint32_t n = 0; n < 70; n++) {
        check(ptx_shl_b32(a, n) == (n < 64 ? (uint32_t)((uint64_t)a << n) : 0), "shl.b32", a, n);
        check(ptx_shr_u32(a, n) == (n < 64 ? (uint32_t)((uint64_t)a >> n) : 0), "shr.u32", a, n);
        check(ptx_shr_s32((int32_t)a, n) == (int32_t)((int64_t)(int32_t)a >> (n < 63 ? n : 63)), "shr.s32", a,
              n);
        for (uint32_t length = 0; n < 32 && length < 40; length++) {
            uint64_t mask = length < 32 ? (UINT64_C(1) << length) - 1 : UINT32_MAX;
            check(ptx_bfe_u32(a, n, length) == (a >> n & mask), "bfe.u32", a, n);
            uint32_t above = n + length < 64 ? 64 - n - length : 0;
            int64_t wide = length ? (int64_t)((uint64_t)(int64_t)(int32_t)a << above) >> (above + n) : 0;
            check(ptx_bfe_s32(a, n, length) == (uint32_t)wide, "bfe.s32", a, n);
        }
    }
}

int main(void)
{
    check_f16();
    check_from_integers();
    for (size_t i = 0; i < N_FLOATS; i++) {
        check_integers(float_at(i));
        check_one(float_at(i));
        for (size_t k = i % 211; k < N_FLOATS; k += 211) {
            check_two(float_at(i), float_at(k));
            check_arithmetic(float_at(i), float_at(k));
            check_fma(float_at(i), float_at(k), float_at((i * 7 + k * 13) % N_FLOATS));
        }
        check_two(float_at(i), float_at(i));
        check_two(float_at(i), -float_at(i));
    }
    static const uint32_t words[] = {0, 1, 0x80000000, 0x7fffffff, 0xffffffff, 0x12345678, 0xdeadbeef};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        check_words(words[i]);
    printf("%u checks, %u wrong\n", n_checks, n_wrong);
    return n_wrong != 0;
}
