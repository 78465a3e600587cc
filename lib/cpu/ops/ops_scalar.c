/* ops_scalar.c - the operations of ops.h in plain C: a vector is one float. */
#include "abi/arith.h"
#include "base/half.h"

#include <stdbool.h>

#define OPS_TABLE ops_scalar
#define OPS_NAME  "scalar"
#define WIDTH     1

struct vec {
    float f;
};

static inline struct vec vec_load(const float *p)
{
    return (struct vec){*p};
}

static inline void vec_store(float *p, struct vec v)
{
    *p = v.f;
}

static inline struct vec vec_all(float f)
{
    return (struct vec){f};
}

static inline struct vec vec_add(struct vec a, struct vec b)
{
    return (struct vec){a.f + b.f};
}

static inline struct vec vec_sub(struct vec a, struct vec b)
{
    return (struct vec){a.f - b.f};
}

static inline struct vec vec_mul(struct vec a, struct vec b)
{
    return (struct vec){a.f * b.f};
}

static inline struct vec vec_div(struct vec a, struct vec b)
{
    return (struct vec){a.f / b.f};
}

static inline struct vec vec_fma(struct vec a, struct vec b, struct vec c)
{
    return (struct vec){__builtin_fmaf(a.f, b.f, c.f)};
}

static inline struct vec vec_max(struct vec a, struct vec b)
{
    return (struct vec){a.f > b.f ? a.f : b.f};
}

static inline float vec_largest(struct vec a)
{
    return a.f;
}

/* Sums the lanes by the xor tree (arith.h). */
static inline float vec_tree(struct vec a)
{
    return a.f;
}

/* The sum and the largest of the lanes of WIDTH vectors. */
static inline struct vec vec_trees(struct vec v[WIDTH])
{
    return v[0];
}

static inline struct vec vec_largests(struct vec v[WIDTH])
{
    return v[0];
}

static inline float vec_first(struct vec a)
{
    return a.f;
}

static inline struct vec vec_exp2(struct vec x)
{
    return (struct vec){arith_exp2(x.f)};
}

/* The same for numbers that are at most 0 and NaNs, where less work is enough in some instruction sets. */
static inline struct vec vec_exp2_falling(struct vec x)
{
    return vec_exp2(x);
}

static inline struct vec vec_from_half(const uint16_t *p)
{
    return (struct vec){half_to_float(*p)};
}

static inline void vec_to_half(uint16_t *p, struct vec v)
{
    *p = half_from_float(v.f);
}

static inline void vec_to_bf16(uint16_t *p, struct vec v)
{
    *p = arith_bf16(v.f);
}

/* A lane of two bf16 (ops_bf16.h). */
struct pairs {
    uint16_t low, high;
};

static inline struct pairs pairs_load(const uint16_t *p)
{
    return (struct pairs){p[0], p[1]};
}

/* The same pair in all lanes. */
static inline struct pairs pairs_all(const uint16_t *p)
{
    return pairs_load(p);
}

/* Keeps the low elements; the others become 0. */
static inline struct pairs pairs_first(struct pairs a)
{
    return (struct pairs){a.low, 0};
}

/* Writes the low (0) or the high (1) elements of WIDTH pairs and nothing else. */
static inline void pairs_store_half(uint16_t *p, const uint16_t *elements, uint32_t half)
{
    p[half] = *elements;
}

static inline struct vec vec_dot2(struct vec sum, struct pairs a, struct pairs b)
{
    float f = arith_fma_flushed(arith_from_bf16(a.high), arith_from_bf16(b.high), sum.f);
    return (struct vec){arith_fma_flushed(arith_from_bf16(a.low), arith_from_bf16(b.low), f)};
}

/* arith_fma_flushed() flushes subnormal numbers: no mode is needed. */
enum { DOT2_FLUSHES = 1 };

static inline uint32_t flush_begin(void)
{
    return 0;
}

static inline void flush_end(uint32_t mode)
{
    (void)mode;
}

/* A lane of 32 bits, or of four bytes (ops_q8.h). */
struct ints {
    union {
        uint32_t whole;
        int32_t i;
        uint8_t bytes[4];
    };
};

static inline struct ints ints_zero(void)
{
    return (struct ints){.i = 0};
}

static inline struct ints ints_load(const uint8_t *p)
{
    return (struct ints){.bytes = {p[0], p[1], p[2], p[3]}};
}

/* The same four bytes in all lanes. */
static inline struct ints ints_all(const void *p)
{
    return ints_load(p);
}

/* The start of a dot product with keys; sum: of the query's values. */
static inline struct ints ints_start(int32_t sum)
{
    return (struct ints){.i = -128 * sum};
}

/* Multiplies unsigned by signed bytes. */
static inline struct ints ints_dot_keys(struct ints sum, struct ints keys, struct ints q)
{
    for (int i = 0; i < 4; i++)
        sum.i += keys.bytes[i] * (int8_t)q.bytes[i];
    return sum;
}

static inline struct ints ints_dot_values(struct ints sum, struct ints sevens, struct ints values)
{
    return ints_dot_keys(sum, sevens, values);
}

static inline struct vec vec_from_ints(struct ints a)
{
    return (struct vec){(float)a.i};
}

/* Rounds to nearest. */
static inline struct ints ints_from_vec(struct vec a)
{
    return (struct ints){.i = (int32_t)__builtin_rintf(a.f)};
}

static inline struct vec vec_mul_weight(struct vec w, struct vec scale)
{
    return (struct vec){arith_weight_product(w.f, scale.f)};
}

/* The larger of top and the bits of a without sign. */
static inline struct ints ints_max_magnitude(struct ints top, struct vec a)
{
    uint32_t bits = arith_to_bits(a.f) & 0x7fffffffu;
    return (struct ints){.whole = bits > top.whole ? bits : top.whole};
}

static inline uint32_t ints_largest(struct ints a)
{
    return a.whole;
}

/* Splits numbers of 14 bits into two bytes of seven bits; ints_join_sevens() joins their sums. */
static inline void ints_store_sevens(uint8_t *high, uint8_t *low, struct ints a)
{
    *high = (uint8_t)(a.i >> 7);
    *low = a.i & 127;
}

static inline struct ints ints_join_sevens(struct ints high, struct ints low)
{
    return (struct ints){.i = high.i * 128 + low.i};
}

/* Writes byte `quarter` of WIDTH lanes and no other byte. */
static inline void ints_store_quarter(uint8_t *p, const int8_t *elements, uint32_t quarter)
{
    p[quarter] = (uint8_t)*elements;
}

/* True if any lane is an infinity or a NaN. */
static inline bool vec_any_not_finite(struct vec v)
{
    return (arith_to_bits(v.f) & 0x7f800000u) == 0x7f800000u;
}

#include "ops_template.h"
