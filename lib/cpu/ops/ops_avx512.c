/* ops_avx512.c - the operations of ops.h on vectors of 16 floats; ops_bf16_avx512.c compiles it with bf16
 * instructions. */
#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(__AVX512VNNI__)
#include "abi/arith.h"
#include "base/half.h"

#include <stdbool.h>
#include <string.h>

#include <immintrin.h>

#ifdef __AVX512BF16__
#define OPS_TABLE ops_bf16_avx512
#define OPS_NAME  "avx512bf16"
#else
#define OPS_TABLE ops_avx512
#define OPS_NAME  "avx512"
#endif
#define WIDTH 16

struct vec {
    __m512 f;
};

static inline struct vec vec_load(const float *p)
{
    return (struct vec){_mm512_loadu_ps(p)};
}

static inline void vec_store(float *p, struct vec v)
{
    _mm512_storeu_ps(p, v.f);
}

static inline struct vec vec_all(float f)
{
    return (struct vec){_mm512_set1_ps(f)};
}

static inline struct vec vec_add(struct vec a, struct vec b)
{
    return (struct vec){_mm512_add_ps(a.f, b.f)};
}

static inline struct vec vec_sub(struct vec a, struct vec b)
{
    return (struct vec){_mm512_sub_ps(a.f, b.f)};
}

static inline struct vec vec_mul(struct vec a, struct vec b)
{
    return (struct vec){_mm512_mul_ps(a.f, b.f)};
}

static inline struct vec vec_div(struct vec a, struct vec b)
{
    return (struct vec){_mm512_div_ps(a.f, b.f)};
}

static inline struct vec vec_fma(struct vec a, struct vec b, struct vec c)
{
    return (struct vec){_mm512_fmadd_ps(a.f, b.f, c.f)};
}

static inline struct vec vec_max(struct vec a, struct vec b)
{
    return (struct vec){_mm512_max_ps(a.f, b.f)};
}

static inline float vec_largest(struct vec a)
{
    return _mm512_reduce_max_ps(a.f);
}

/* Sums the lanes by the xor tree (arith.h). */
static inline float vec_tree(struct vec a)
{
    __m256 x = _mm256_add_ps(_mm512_castps512_ps256(a.f), _mm512_extractf32x8_ps(a.f, 1));
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

static inline float vec_first(struct vec a)
{
    return _mm512_cvtss_f32(a.f);
}

/* The polynomial of arith_exp2(). */
static inline __m512 exp2_part(__m512 f)
{
    __m512 p = _mm512_set1_ps(0x1.444p-13f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.5f48cp-10f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.3b2a1cp-7f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.c6aeccp-5f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ebfbep-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62e43p-1f));
    return _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
}

/* arith_exp2() lane by lane: min and max return their second operand if one is a NaN, as the comparisons in
 * arith.h do. */
static inline struct vec vec_exp2(struct vec x)
{
    __m512 c = _mm512_min_ps(x.f, _mm512_set1_ps(126.0f));
    c = _mm512_max_ps(c, _mm512_set1_ps(-125.0f));
    __m512 n = _mm512_roundscale_ps(c, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 p = exp2_part(_mm512_sub_ps(c, n));
    __m512i e = _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23);
    __m512i r = _mm512_add_epi32(_mm512_castps_si512(p), e);
    __mmask16 tiny = _mm512_cmp_ps_mask(x.f, _mm512_set1_ps(-125.0f), _CMP_LT_OQ);
    r = _mm512_mask_mov_epi32(r, tiny, _mm512_setzero_si512());
    __mmask16 nan = _mm512_cmp_ps_mask(x.f, x.f, _CMP_UNORD_Q);
    return (struct vec){_mm512_mask_mov_ps(_mm512_castsi512_ps(r), nan, x.f)};
}

/* arith_exp2() lane by lane, of numbers that are at most 0 and of NaNs. */
static inline struct vec vec_exp2_falling(struct vec x)
{
    __mmask16 seen = _mm512_cmp_ps_mask(x.f, _mm512_set1_ps(-125.0f), _CMP_NLT_UQ);
    __m512 c = _mm512_max_ps(_mm512_set1_ps(-125.0f), x.f); /* a NaN stays one to the end */
    __m512 n = _mm512_roundscale_ps(c, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return (struct vec){_mm512_maskz_scalef_ps(seen, exp2_part(_mm512_sub_ps(c, n)), n)};
}

/* Adds, or takes the larger of, the halves, quarters, ... of 16 vectors by the xor tree (arith.h): lane j of
 * the result is vector j's. Each step of the tree halves the number of vectors. */
#define TREES(op, v)                                                                                         \
    do {                                                                                                     \
        for (int j = 0; j < 8; j++)                                                                          \
            (v)[j].f = op(_mm512_shuffle_f32x4((v)[j].f, (v)[j + 8].f, 0x44),                                \
                          _mm512_shuffle_f32x4((v)[j].f, (v)[j + 8].f, 0xee));                               \
        for (int j = 0; j < 4; j++)                                                                          \
            (v)[j].f = op(_mm512_shuffle_f32x4((v)[j].f, (v)[j + 4].f, 0x88),                                \
                          _mm512_shuffle_f32x4((v)[j].f, (v)[j + 4].f, 0xdd));                               \
        for (int j = 0; j < 2; j++)                                                                          \
            (v)[j].f = op(_mm512_shuffle_ps((v)[j].f, (v)[j + 2].f, 0x44),                                   \
                          _mm512_shuffle_ps((v)[j].f, (v)[j + 2].f, 0xee));                                  \
        (v)[0].f =                                                                                           \
            op(_mm512_shuffle_ps((v)[0].f, (v)[1].f, 0x88), _mm512_shuffle_ps((v)[0].f, (v)[1].f, 0xdd));    \
        const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);       \
        (v)[0].f = _mm512_permutexvar_ps(order, (v)[0].f);                                                   \
    } while (0)

/* Both overwrite v. */
static inline struct vec vec_trees(struct vec v[WIDTH])
{
    TREES(_mm512_add_ps, v);
    return v[0];
}

static inline struct vec vec_largests(struct vec v[WIDTH])
{
    TREES(_mm512_max_ps, v);
    return v[0];
}
#undef TREES

static inline struct vec vec_from_half(const uint16_t *p)
{
    return (struct vec){_mm512_cvtph_ps(_mm256_loadu_si256((const void *)p))};
}

static inline void vec_to_half(uint16_t *p, struct vec v)
{
    _mm256_storeu_si256((void *)p, _mm512_cvtps_ph(v.f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* Lanes of two bf16 (ops_bf16.h). */
struct pairs {
    __m512i i;
};

static inline struct pairs pairs_load(const uint16_t *p)
{
    return (struct pairs){_mm512_loadu_si512(p)};
}

static inline struct vec pairs_high(struct pairs a)
{
    return (struct vec){_mm512_castsi512_ps(_mm512_and_si512(a.i, _mm512_set1_epi32((int32_t)0xffff0000)))};
}

static inline struct vec pairs_low(struct pairs a)
{
    return (struct vec){_mm512_castsi512_ps(_mm512_slli_epi32(a.i, 16))};
}

static inline struct pairs pairs_all(const uint16_t *p)
{
    int32_t both;
    memcpy(&both, p, sizeof both);
    return (struct pairs){_mm512_set1_epi32(both)};
}

static inline struct pairs pairs_first(struct pairs a)
{
    return (struct pairs){_mm512_maskz_mov_epi16(0x55555555u, a.i)};
}

static inline void pairs_store_half(uint16_t *p, const uint16_t *elements, uint32_t half)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)elements));
    wide = _mm512_sll_epi32(wide, _mm_cvtsi32_si128((int)(16 * half)));
    _mm512_mask_storeu_epi16(p, 0x55555555u << half, wide);
}

#ifdef __AVX512BF16__
static inline void vec_to_bf16(uint16_t *p, struct vec v)
{
    _mm256_storeu_si256((void *)p, (__m256i)_mm512_cvtneps_pbh(v.f));
}

static inline struct vec vec_dot2(struct vec sum, struct pairs a, struct pairs b)
{
    return (struct vec){_mm512_dpbf16_ps(sum.f, (__m512bh)a.i, (__m512bh)b.i)};
}

enum { DOT2_FLUSHES = 1 };
#else
enum { DOT2_FLUSHES = 0 };

/* arith_bf16() lane by lane. */
static inline void vec_to_bf16(uint16_t *p, struct vec v)
{
    __m512i u = _mm512_castps_si512(v.f), high = _mm512_srli_epi32(u, 16);
    __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    r = _mm512_srli_epi32(r, 16);
    __mmask16 tiny = _mm512_testn_epi32_mask(u, _mm512_set1_epi32(0x7f800000));
    r = _mm512_mask_and_epi32(r, tiny, r, _mm512_set1_epi32(0x8000));
    __mmask16 nan = _mm512_cmp_ps_mask(v.f, v.f, _CMP_UNORD_Q);
    r = _mm512_mask_or_epi32(r, nan, high, _mm512_set1_epi32(0x40));
    _mm256_storeu_si256((void *)p, _mm512_cvtepi32_epi16(r));
}

static inline struct vec vec_dot2(struct vec sum, struct pairs a, struct pairs b)
{
    return vec_fma(pairs_low(a), pairs_low(b), vec_fma(pairs_high(a), pairs_high(b), sum));
}
#endif

#include "cpu/flush_mode.h"

/* Lanes of 32 bits, or of four bytes (ops_q8.h). */
struct ints {
    __m512i i;
};

static inline struct ints ints_zero(void)
{
    return (struct ints){_mm512_setzero_si512()};
}

static inline struct ints ints_load(const uint8_t *p)
{
    return (struct ints){_mm512_loadu_si512(p)};
}

/* The same four bytes in all lanes. */
static inline struct ints ints_all(const void *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return (struct ints){_mm512_set1_epi32(four)};
}

/* The start of a dot product with keys; sum: of the query's values. */
static inline struct ints ints_start(int32_t sum)
{
    return (struct ints){_mm512_set1_epi32(-128 * sum)};
}

static inline struct ints ints_dot_keys(struct ints sum, struct ints keys, struct ints q)
{
    return (struct ints){_mm512_dpbusd_epi32(sum.i, keys.i, q.i)};
}

static inline struct ints ints_dot_values(struct ints sum, struct ints sevens, struct ints values)
{
    return (struct ints){_mm512_dpbusd_epi32(sum.i, sevens.i, values.i)};
}

static inline struct vec vec_from_ints(struct ints a)
{
    return (struct vec){_mm512_cvtepi32_ps(a.i)};
}

static inline struct ints ints_from_vec(struct vec a)
{
    return (struct ints){_mm512_cvtps_epi32(a.f)};
}

/* arith_weight_product() lane by lane. */
static inline struct vec vec_mul_weight(struct vec w, struct vec scale)
{
    __mmask16 any = _mm512_cmp_ps_mask(w.f, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    return (struct vec){_mm512_maskz_mul_ps(any, w.f, scale.f)};
}

/* The larger of top and the bits of a without sign. */
static inline struct ints ints_max_magnitude(struct ints top, struct vec a)
{
    __m512i bits = _mm512_and_si512(_mm512_castps_si512(a.f), _mm512_set1_epi32(0x7fffffff));
    return (struct ints){_mm512_max_epu32(top.i, bits)};
}

static inline uint32_t ints_largest(struct ints a)
{
    return _mm512_reduce_max_epu32(a.i);
}

/* Splits numbers of 14 bits into two bytes of seven bits; ints_join_sevens() joins their sums. */
static inline void ints_store_sevens(uint8_t *high, uint8_t *low, struct ints a)
{
    __m512i l = _mm512_and_si512(a.i, _mm512_set1_epi32(127));
    _mm_storeu_si128((void *)high, _mm512_cvtepi32_epi8(_mm512_srli_epi32(a.i, 7)));
    _mm_storeu_si128((void *)low, _mm512_cvtepi32_epi8(l));
}

static inline struct ints ints_join_sevens(struct ints high, struct ints low)
{
    return (struct ints){_mm512_add_epi32(_mm512_slli_epi32(high.i, 7), low.i)};
}

/* Writes byte `quarter` of WIDTH lanes and no other byte. */
static inline void ints_store_quarter(uint8_t *p, const int8_t *elements, uint32_t quarter)
{
    __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)elements));
    wide = _mm512_sll_epi32(wide, _mm_cvtsi32_si128((int)(8 * quarter)));
    _mm512_mask_storeu_epi8(p, 0x1111111111111111u << quarter, wide);
}

static inline bool vec_any_not_finite(struct vec v)
{
    __m512i exponent = _mm512_set1_epi32(0x7f800000);
    return _mm512_cmpeq_epi32_mask(_mm512_and_si512(_mm512_castps_si512(v.f), exponent), exponent) != 0;
}

#include "ops_template.h"
#else
extern const int ops_avx512_is_not_built;
const int ops_avx512_is_not_built = 1;
#endif
