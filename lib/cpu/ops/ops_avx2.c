/* ops_avx2.c - the operations of ops.h on vectors of 8 floats. */
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "abi/arith.h"
#include "base/half.h"

#include <stdbool.h>
#include <string.h>

#include <immintrin.h>

#define OPS_TABLE ops_avx2
#define OPS_NAME  "avx2"
#define WIDTH     8

struct vec {
    __m256 f;
};

static inline struct vec vec_load(const float *p)
{
    return (struct vec){_mm256_loadu_ps(p)};
}

static inline void vec_store(float *p, struct vec v)
{
    _mm256_storeu_ps(p, v.f);
}

static inline struct vec vec_all(float f)
{
    return (struct vec){_mm256_set1_ps(f)};
}

static inline struct vec vec_add(struct vec a, struct vec b)
{
    return (struct vec){_mm256_add_ps(a.f, b.f)};
}

static inline struct vec vec_sub(struct vec a, struct vec b)
{
    return (struct vec){_mm256_sub_ps(a.f, b.f)};
}

static inline struct vec vec_mul(struct vec a, struct vec b)
{
    return (struct vec){_mm256_mul_ps(a.f, b.f)};
}

static inline struct vec vec_div(struct vec a, struct vec b)
{
    return (struct vec){_mm256_div_ps(a.f, b.f)};
}

static inline struct vec vec_fma(struct vec a, struct vec b, struct vec c)
{
    return (struct vec){_mm256_fmadd_ps(a.f, b.f, c.f)};
}

static inline struct vec vec_max(struct vec a, struct vec b)
{
    return (struct vec){_mm256_max_ps(a.f, b.f)};
}

static inline float vec_largest(struct vec a)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a.f), _mm256_extractf128_ps(a.f, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_movehdup_ps(m));
    return _mm_cvtss_f32(m);
}

/* Sums the lanes by the xor tree (arith.h). */
static inline float vec_tree(struct vec a)
{
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(a.f), _mm256_extractf128_ps(a.f, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

static inline float vec_first(struct vec a)
{
    return _mm256_cvtss_f32(a.f);
}

/* arith_exp2() lane by lane: min and max return their second operand if one is a NaN, as the comparisons in
 * arith.h do. */
static inline struct vec vec_exp2(struct vec x)
{
    __m256 c = _mm256_min_ps(x.f, _mm256_set1_ps(126.0f));
    c = _mm256_max_ps(c, _mm256_set1_ps(-125.0f));
    __m256 n = _mm256_round_ps(c, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 f = _mm256_sub_ps(c, n);
    __m256 p = _mm256_set1_ps(0x1.444p-13f);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.5f48cp-10f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.3b2a1cp-7f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.c6aeccp-5f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.ebfbep-3f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.62e43p-1f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    __m256i e = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    __m256 r = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), e));
    r = _mm256_andnot_ps(_mm256_cmp_ps(x.f, _mm256_set1_ps(-125.0f), _CMP_LT_OQ), r);
    return (struct vec){_mm256_blendv_ps(r, x.f, _mm256_cmp_ps(x.f, x.f, _CMP_UNORD_Q))};
}

/* The same for numbers that are at most 0 and NaNs, where less work is enough in some instruction sets. */
static inline struct vec vec_exp2_falling(struct vec x)
{
    return vec_exp2(x);
}

/* Adds, or takes the larger of, the halves and quarters of 8 vectors by the xor tree (arith.h): lane j of the
 * result is vector j's. Each step of the tree halves the number of vectors. */
#define TREES(op, v)                                                                                         \
    do {                                                                                                     \
        for (int j = 0; j < 4; j++)                                                                          \
            (v)[j].f = op(_mm256_permute2f128_ps((v)[j].f, (v)[j + 4].f, 0x20),                              \
                          _mm256_permute2f128_ps((v)[j].f, (v)[j + 4].f, 0x31));                             \
        for (int j = 0; j < 2; j++)                                                                          \
            (v)[j].f = op(_mm256_shuffle_ps((v)[j].f, (v)[j + 2].f, 0x44),                                   \
                          _mm256_shuffle_ps((v)[j].f, (v)[j + 2].f, 0xee));                                  \
        (v)[0].f =                                                                                           \
            op(_mm256_shuffle_ps((v)[0].f, (v)[1].f, 0x88), _mm256_shuffle_ps((v)[0].f, (v)[1].f, 0xdd));    \
        const __m256i order = _mm256_setr_epi32(0, 2, 1, 3, 4, 6, 5, 7);                                     \
        (v)[0].f = _mm256_permutevar8x32_ps((v)[0].f, order);                                                \
    } while (0)

/* Both overwrite v. */
static inline struct vec vec_trees(struct vec v[WIDTH])
{
    TREES(_mm256_add_ps, v);
    return v[0];
}

static inline struct vec vec_largests(struct vec v[WIDTH])
{
    TREES(_mm256_max_ps, v);
    return v[0];
}
#undef TREES

static inline struct vec vec_from_half(const uint16_t *p)
{
    return (struct vec){_mm256_cvtph_ps(_mm_loadu_si128((const void *)p))};
}

static inline void vec_to_half(uint16_t *p, struct vec v)
{
    _mm_storeu_si128((void *)p, _mm256_cvtps_ph(v.f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* arith_bf16() lane by lane. */
static inline void vec_to_bf16(uint16_t *p, struct vec v)
{
    __m256i u = _mm256_castps_si256(v.f), high = _mm256_srli_epi32(u, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    r = _mm256_srli_epi32(r, 16);
    __m256i normal = _mm256_and_si256(u, _mm256_set1_epi32(0x7f800000));
    __m256i tiny = _mm256_cmpeq_epi32(normal, _mm256_setzero_si256());
    r = _mm256_andnot_si256(_mm256_and_si256(tiny, _mm256_set1_epi32(0x7fff)), r);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v.f, v.f, _CMP_UNORD_Q));
    r = _mm256_blendv_epi8(r, _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
    __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
    _mm_storeu_si128((void *)p, packed);
}

/* Lanes of two bf16 (ops_bf16.h). */
struct pairs {
    __m256i i;
};

static inline struct pairs pairs_load(const uint16_t *p)
{
    return (struct pairs){_mm256_loadu_si256((const void *)p)};
}

static inline struct vec pairs_high(struct pairs a)
{
    return (struct vec){_mm256_castsi256_ps(_mm256_and_si256(a.i, _mm256_set1_epi32((int32_t)0xffff0000)))};
}

static inline struct vec pairs_low(struct pairs a)
{
    return (struct vec){_mm256_castsi256_ps(_mm256_slli_epi32(a.i, 16))};
}

static inline struct pairs pairs_all(const uint16_t *p)
{
    int32_t both;
    memcpy(&both, p, sizeof both);
    return (struct pairs){_mm256_set1_epi32(both)};
}

static inline struct pairs pairs_first(struct pairs a)
{
    return (struct pairs){_mm256_and_si256(a.i, _mm256_set1_epi32(0xffff))};
}

static inline void pairs_store_half(uint16_t *p, const uint16_t *elements, uint32_t half)
{
    for (int i = 0; i < WIDTH; i++)
        p[2 * i + (int)half] = elements[i];
}

static inline struct vec vec_dot2(struct vec sum, struct pairs a, struct pairs b)
{
    return vec_fma(pairs_low(a), pairs_low(b), vec_fma(pairs_high(a), pairs_high(b), sum));
}

enum { DOT2_FLUSHES = 0 };

#include "cpu/flush_mode.h"

/* Lanes of 32 bits, or of four bytes (ops_q8.h). */
struct ints {
    __m256i i;
};

static inline struct ints ints_zero(void)
{
    return (struct ints){_mm256_setzero_si256()};
}

static inline struct ints ints_load(const uint8_t *p)
{
    return (struct ints){_mm256_loadu_si256((const void *)p)};
}

static inline struct ints ints_all(const void *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return (struct ints){_mm256_set1_epi32(four)};
}

static inline struct ints ints_start(int32_t sum)
{
    (void)sum; /* ints_dot_keys() undoes the addition to the keys */
    return ints_zero();
}

/* Multiplies unsigned bytes up to 127 by signed ones: a sum of two products always fits 16 bits. */
static inline struct ints ints_dot_values(struct ints sum, struct ints sevens, struct ints values)
{
    __m256i pairs = _mm256_maddubs_epi16(sevens.i, values.i);
    return (struct ints){_mm256_add_epi32(sum.i, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
}

static inline struct ints ints_dot_keys(struct ints sum, struct ints keys, struct ints q)
{
    __m256i k = _mm256_xor_si256(keys.i, _mm256_set1_epi8(-128));
    return ints_dot_values(sum, (struct ints){_mm256_abs_epi8(q.i)}, (struct ints){_mm256_sign_epi8(k, q.i)});
}

static inline struct vec vec_from_ints(struct ints a)
{
    return (struct vec){_mm256_cvtepi32_ps(a.i)};
}

static inline struct ints ints_from_vec(struct vec a)
{
    return (struct ints){_mm256_cvtps_epi32(a.f)};
}

/* arith_weight_product() lane by lane. */
static inline struct vec vec_mul_weight(struct vec w, struct vec scale)
{
    __m256 none = _mm256_cmp_ps(w.f, _mm256_setzero_ps(), _CMP_EQ_OQ);
    return (struct vec){_mm256_andnot_ps(none, _mm256_mul_ps(w.f, scale.f))};
}

static inline struct ints ints_max_magnitude(struct ints top, struct vec a)
{
    __m256i bits = _mm256_and_si256(_mm256_castps_si256(a.f), _mm256_set1_epi32(0x7fffffff));
    return (struct ints){_mm256_max_epu32(top.i, bits)};
}

static inline uint32_t ints_largest(struct ints a)
{
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(a.i), _mm256_extracti128_si256(a.i, 1));
    m = _mm_max_epu32(m, _mm_unpackhi_epi64(m, m));
    m = _mm_max_epu32(m, _mm_srli_epi64(m, 32));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

/* The low bytes of eight lanes. */
static inline void store_low_bytes(uint8_t *p, __m256i a)
{
    __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    _mm_storel_epi64((void *)p, _mm_packus_epi16(words, words));
}

static inline void ints_store_sevens(uint8_t *high, uint8_t *low, struct ints a)
{
    store_low_bytes(high, _mm256_srli_epi32(a.i, 7));
    store_low_bytes(low, _mm256_and_si256(a.i, _mm256_set1_epi32(127)));
}

static inline struct ints ints_join_sevens(struct ints high, struct ints low)
{
    return (struct ints){_mm256_add_epi32(_mm256_slli_epi32(high.i, 7), low.i)};
}

static inline void ints_store_quarter(uint8_t *p, const int8_t *elements, uint32_t quarter)
{
    for (int i = 0; i < WIDTH; i++)
        p[4 * i + (int)quarter] = (uint8_t)elements[i];
}

static inline bool vec_any_not_finite(struct vec v)
{
    __m256i exponent = _mm256_set1_epi32(0x7f800000);
    __m256i bad = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_castps_si256(v.f), exponent), exponent);
    return !_mm256_testz_si256(bad, bad);
}

#include "ops_template.h"
#else
extern const int ops_avx2_is_not_built;
const int ops_avx2_is_not_built = 1;
#endif
