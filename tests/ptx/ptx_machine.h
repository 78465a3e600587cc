/* ptx_machine.h - the instructions of Hearth's PTX as C; included by what ptx_to_c writes, and by
 * ptx_floats.c. ptx_OPCODE is what OPCODE does, as PTX ISA 8.0 says in the section named. Arithmetic is
 * plain C on the host, which rounds as IEEE 754 says; memory that threads share, barriers and copies go to
 * the emulator (tests/simt/simt_host.h), whose sites then name the lines of the PTX. An instruction that is
 * missing here does not compile. Thread: the fibers of a grid. */
#pragma once
#include "device/simt.h"
#include "ptx/ptx_text.h"

/* A register that nothing has written holds these. */
#define PTX_POISON_pred true
#define PTX_POISON_b16  0xdeadu
#define PTX_POISON_b32  0xdeadbeefu
#define PTX_POISON_b64  0xdeadbeefdeadbeefu
#define PTX_POISON_f32  ptx_float(0xdeadbeefu)

/* Addresses (section 5.1): .shared is a window of its own, in which the arena does not begin at 0; .global
 * and parameters are the host's memory. */
#define PTX_ARENA     UINT64_C(1024)
#define PTX_SHARED(a) (shared + ((a)-PTX_ARENA))
#define PTX_GLOBAL(a) ((char *)(uintptr_t)(a))

#define PTX_LOOK_SPINS 1024 /* SIMT_LOOK_SPINS of simt_ptx.h, which the PTX was compiled with */

/* An entry with its launch bound and the bytes of its parameter, which each thread has a copy of. */
#define PTX_ENTRY(name_, threads_, bytes_)                                                                   \
    static void name_(const char *parameter, char *shared);                                                  \
    static void name_##_run(const void *args)                                                                \
    {                                                                                                        \
        _Alignas(16) char parameter[bytes_];                                                                 \
        __builtin_memcpy(parameter, args, bytes_);                                                           \
        name_(parameter, simt_emu_carve(SIMT_SITE("arena", 0), 0, simt_emu_shared_bytes()));                 \
    }                                                                                                        \
    static struct simt_kernel name_##_kernel __attribute__((section("simt_kernels"), aligned(8), used)) = {  \
        #name_, __BASE_FILE__, name_##_run, bytes_, threads_, SIMT_SM, PTX_LOOK_SPINS};                      \
    static void name_(const char *parameter __attribute__((unused)), char *shared __attribute__((unused)))

/* The text that was translated. */
#define PTX_TEXT(hash_, size_)                                                                               \
    static const struct ptx_text ptx_text                                                                    \
        __attribute__((section("ptx_texts"), aligned(16), used)) = {hash_, size_};

SIMT_INLINE float ptx_float(uint32_t bits)
{
    return simt_emu_bits_float(bits);
}
SIMT_INLINE uint32_t ptx_bits(float f)
{
    return simt_emu_float_bits(f);
}

/* ---- 9.7.1 integer arithmetic ---- */

#define PTX_OP2(opcode, type, expression)                                                                    \
    SIMT_INLINE type ptx_##opcode(type a, type b)                                                            \
    {                                                                                                        \
        return (type)(expression);                                                                           \
    }
#define PTX_OP1(opcode, type, from, expression)                                                              \
    SIMT_INLINE type ptx_##opcode(from a)                                                                    \
    {                                                                                                        \
        return (type)(expression);                                                                           \
    }
/* add, sub, mul.lo: modulo 2^n, for both signs. */
PTX_OP2(add_s16, uint16_t, a + b)
PTX_OP2(add_s32, uint32_t, a + b)
PTX_OP2(add_s64, uint64_t, a + b)
PTX_OP2(sub_s16, uint16_t, a - b)
PTX_OP2(sub_s32, uint32_t, a - b)
PTX_OP2(sub_s64, uint64_t, a - b)
PTX_OP2(mul_lo_s16, uint16_t, (uint32_t)a *b)
PTX_OP2(mul_lo_s32, uint32_t, a *b)
PTX_OP2(mul_lo_s64, uint64_t, a *b)
PTX_OP2(mul_hi_u32, uint32_t, (uint64_t)a *b >> 32)
PTX_OP2(mul_hi_u64, uint64_t, (unsigned __int128)a *b >> 64)
/* div, rem: by zero is unspecified. */
PTX_OP2(div_u32, uint32_t, b ? a / b : PTX_POISON_b32)
PTX_OP2(rem_u32, uint32_t, b ? a % b : PTX_POISON_b32)
PTX_OP2(div_u64, uint64_t, b ? a / b : PTX_POISON_b64)
PTX_OP2(rem_u64, uint64_t, b ? a % b : PTX_POISON_b64)
PTX_OP2(rem_u16, uint16_t, b ? a % b : PTX_POISON_b16)
PTX_OP2(div_u16, uint16_t, b ? a / b : PTX_POISON_b16)
PTX_OP2(min_u32, uint32_t, a < b ? a : b)
PTX_OP2(max_u32, uint32_t, a > b ? a : b)
PTX_OP2(min_s32, int32_t, a < b ? a : b)
PTX_OP2(max_s32, int32_t, a > b ? a : b)
PTX_OP2(min_u64, uint64_t, a < b ? a : b)
PTX_OP2(max_u64, uint64_t, a > b ? a : b)
PTX_OP1(neg_s32, uint32_t, uint32_t, 0 - a)
PTX_OP1(neg_s64, uint64_t, uint64_t, 0 - a)
PTX_OP1(popc_b32, uint32_t, uint32_t, __builtin_popcount(a))
PTX_OP1(clz_b32, uint32_t, uint32_t, a ? __builtin_clz(a) : 32)
PTX_OP1(clz_b64, uint32_t, uint64_t, a ? __builtin_clzll(a) : 64)

SIMT_INLINE uint64_t ptx_mul_wide_u32(uint32_t a, uint32_t b)
{
    return (uint64_t)a * b;
}
SIMT_INLINE int64_t ptx_mul_wide_s32(int32_t a, int32_t b)
{
    return (int64_t)a * b;
}
SIMT_INLINE uint32_t ptx_mul_wide_u16(uint16_t a, uint16_t b)
{
    return (uint32_t)a * b;
}
SIMT_INLINE uint32_t ptx_mad_lo_s32(uint32_t a, uint32_t b, uint32_t c)
{
    return a * b + c;
}
SIMT_INLINE uint64_t ptx_mad_lo_s64(uint64_t a, uint64_t b, uint64_t c)
{
    return a * b + c;
}
SIMT_INLINE uint64_t ptx_mad_wide_u32(uint32_t a, uint32_t b, uint64_t c)
{
    return (uint64_t)a * b + c;
}
/* bfe: position and length are bytes; bits above the highest are 0, or for .s32 the sign of the field. */
SIMT_INLINE uint32_t ptx_bfe_u32(uint32_t a, uint32_t position, uint32_t length)
{
    uint32_t d = 0;
    position &= 255;
    length &= 255;
    for (uint32_t i = 0; i < length && i < 32 && position + i < 32; i++)
        d |= (a >> (position + i) & 1) << i;
    return d;
}
SIMT_INLINE uint32_t ptx_bfe_s32(uint32_t a, uint32_t position, uint32_t length)
{
    position &= 255;
    length &= 255;
    uint32_t last = position + length - 1, sign = length ? a >> (last < 31 ? last : 31) & 1 : 0;
    uint32_t d = 0;
    for (uint32_t i = 0; i < 32; i++)
        d |= (i < length && position + i < 32 ? a >> (position + i) & 1 : sign) << i;
    return d;
}
SIMT_INLINE uint32_t ptx_dp4a_s32_s32(uint32_t a, uint32_t b, uint32_t c)
{
    for (uint32_t shift = 0; shift < 32; shift += 8)
        c += (uint32_t)((int8_t)(a >> shift) * (int8_t)(b >> shift));
    return c;
}

/* 9.7.8: byte i of the result is the byte of {b, a} that bits 0..2 of nibble i of c name, or, with bit 3, its
 * sign in all bits. */
SIMT_INLINE uint32_t ptx_prmt_b32(uint32_t a, uint32_t b, uint32_t c)
{
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t d = 0;
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t nibble = c >> 4 * i & 15, byte = (uint32_t)(both >> (nibble & 7) * 8) & 0xff;
        d |= (nibble & 8 ? byte >> 7 ? 0xffu : 0 : byte) << 8 * i;
    }
    return d;
}

/* ---- 9.7.3 floating point. A NaN that an instruction makes is 0x7fffffff. ---- */

SIMT_INLINE float ptx_canonical(float f)
{
    return f != f ? ptx_float(0x7fffffffu) : f;
}
/* .ftz: subnormal inputs and results become zeros of their sign. */
SIMT_INLINE float ptx_flushed(float f)
{
    return (ptx_bits(f) & 0x7f800000u) == 0 ? ptx_float(ptx_bits(f) & 0x80000000u) : f;
}
PTX_OP2(add_rn_f32, float, ptx_canonical(a + b))
PTX_OP2(sub_rn_f32, float, ptx_canonical(a - b))
PTX_OP2(mul_rn_f32, float, ptx_canonical(a *b))
PTX_OP2(div_rn_f32, float, ptx_canonical(a / b))
PTX_OP1(rcp_rn_f32, float, float, ptx_canonical(1.0f / a))
PTX_OP1(sqrt_rn_f32, float, float, ptx_canonical(__builtin_sqrtf(a)))
PTX_OP1(neg_f32, float, float, ptx_float(ptx_bits(a) ^ 0x80000000u))
PTX_OP1(abs_f32, float, float, ptx_float(ptx_bits(a) & 0x7fffffffu))
SIMT_INLINE float ptx_fma_rn_f32(float a, float b, float c)
{
    return ptx_canonical(__builtin_fmaf(a, b, c));
}
SIMT_INLINE float ptx_fma_rn_ftz_f32(float a, float b, float c)
{
    return ptx_flushed(ptx_fma_rn_f32(ptx_flushed(a), ptx_flushed(b), ptx_flushed(c)));
}
/* min, max: of a number and a NaN the number; -0 is less than +0. */
SIMT_INLINE float ptx_min_f32(float a, float b)
{
    if (a != a || b != b)
        return a != a ? ptx_canonical(b) : a;
    return a < b || (a == b && ptx_bits(a) >> 31) ? a : b;
}
SIMT_INLINE float ptx_max_f32(float a, float b)
{
    if (a != a || b != b)
        return a != a ? ptx_canonical(b) : a;
    return a > b || (a == b && !(ptx_bits(a) >> 31)) ? a : b;
}

/* ---- 9.7.5 comparison and selection ---- */

#define PTX_SETP(compare, type, c, expression)                                                               \
    SIMT_INLINE bool ptx_setp_##compare##_##type(c a, c b)                                                   \
    {                                                                                                        \
        return expression;                                                                                   \
    }
#define PTX_SETP_ORDER(type, c)                                                                              \
    PTX_SETP(lt, type, c, a < b)                                                                             \
    PTX_SETP(le, type, c, a <= b) PTX_SETP(gt, type, c, a > b) PTX_SETP(ge, type, c, a >= b)
#define PTX_SETP_EQUAL(type, c) PTX_SETP(eq, type, c, a == b) PTX_SETP(ne, type, c, a != b)
PTX_SETP_EQUAL(b16, uint16_t)
PTX_SETP_EQUAL(b32, uint32_t)
PTX_SETP_EQUAL(b64, uint64_t)
PTX_SETP_EQUAL(s16, int16_t)
PTX_SETP_ORDER(s16, int16_t)
PTX_SETP_EQUAL(u16, uint16_t)
PTX_SETP_ORDER(u16, uint16_t)
PTX_SETP_EQUAL(s32, int32_t)
PTX_SETP_ORDER(s32, int32_t)
PTX_SETP_EQUAL(u32, uint32_t)
PTX_SETP_ORDER(u32, uint32_t)
PTX_SETP_EQUAL(s64, int64_t)
PTX_SETP_ORDER(s64, int64_t)
PTX_SETP_EQUAL(u64, uint64_t)
PTX_SETP_ORDER(u64, uint64_t)
/* Comparisons of floats: false with a NaN, except the forms with u, which are true. */
PTX_SETP_ORDER(f32, float)
PTX_SETP(eq, f32, float, a == b)
PTX_SETP(ne, f32, float, a<b || a> b)
PTX_SETP(equ, f32, float, !(a < b || a > b))
PTX_SETP(neu, f32, float, a != b)
PTX_SETP(ltu, f32, float, !(a >= b))
PTX_SETP(leu, f32, float, !(a > b))
PTX_SETP(gtu, f32, float, !(a <= b))
PTX_SETP(geu, f32, float, !(a < b))
PTX_SETP(num, f32, float, a == a && b == b)
PTX_SETP(nan, f32, float, a != a || b != b)

#define PTX_SELP(type, c)                                                                                    \
    SIMT_INLINE c ptx_selp_##type(c a, c b, bool p)                                                          \
    {                                                                                                        \
        return p ? a : b;                                                                                    \
    }
PTX_SELP(b16, uint16_t)
PTX_SELP(u16, uint16_t)
PTX_SELP(s16, int16_t)
PTX_SELP(b32, uint32_t)
PTX_SELP(u32, uint32_t)
PTX_SELP(s32, int32_t)
PTX_SELP(b64, uint64_t)
PTX_SELP(u64, uint64_t)
PTX_SELP(s64, int64_t)
PTX_SELP(f32, float)

/* ---- 9.7.7 logic and shift. A shift by the width or more is a shift by the width. ---- */

#define PTX_LOGIC(type, c)                                                                                   \
    PTX_OP2(and_##type, c, a &b)                                                                             \
    PTX_OP2(or_##type, c, a | b)                                                                             \
    PTX_OP2(xor_##type, c, a ^ b)
PTX_LOGIC(b16, uint16_t)
PTX_LOGIC(b32, uint32_t)
PTX_LOGIC(b64, uint64_t)
PTX_LOGIC(pred, bool)
PTX_OP1(not_b16, uint16_t, uint16_t, ~a)
PTX_OP1(not_b32, uint32_t, uint32_t, ~a)
PTX_OP1(not_b64, uint64_t, uint64_t, ~a)
PTX_OP1(not_pred, bool, bool, !a)
#define PTX_SHIFT(opcode, c, width, expression, beyond)                                                      \
    SIMT_INLINE c ptx_##opcode(c a, uint32_t n)                                                              \
    {                                                                                                        \
        return (c)(n < (width) ? (expression) : (beyond));                                                   \
    }
PTX_SHIFT(shl_b16, uint16_t, 16, (uint32_t)a << n, 0)
PTX_SHIFT(shl_b32, uint32_t, 32, a << n, 0)
PTX_SHIFT(shl_b64, uint64_t, 64, a << n, 0)
PTX_SHIFT(shr_u16, uint16_t, 16, a >> n, 0)
PTX_SHIFT(shr_u32, uint32_t, 32, a >> n, 0)
PTX_SHIFT(shr_u64, uint64_t, 64, a >> n, 0)
PTX_SHIFT(shr_s16, int16_t, 16, a >> n, a >> 15)
PTX_SHIFT(shr_s32, int32_t, 32, a >> n, a >> 31)
PTX_SHIFT(shr_s64, int64_t, 64, a >> n, a >> 63)

/* shf.l.wrap: the upper word of b:a shifted to the left by c modulo 32. */
SIMT_INLINE uint32_t ptx_shf_l_wrap_b32(uint32_t a, uint32_t b, uint32_t c)
{
    return (uint32_t)(((uint64_t)b << 32 | a) << (c & 31) >> 32);
}

/* ---- 9.7.8 data movement and conversion ---- */

PTX_OP1(mov_pred, bool, bool, a)
PTX_OP1(mov_b16, uint16_t, uint16_t, a)
PTX_OP1(mov_u16, uint16_t, uint16_t, a)
PTX_OP1(mov_b32, uint32_t, uint32_t, a)
PTX_OP1(mov_u32, uint32_t, uint32_t, a)
PTX_OP1(mov_b64, uint64_t, uint64_t, a)
PTX_OP1(mov_u64, uint64_t, uint64_t, a)
PTX_OP1(mov_f32, float, float, a)
PTX_OP1(cvta_to_global_u64, uint64_t, uint64_t, a) /* global addresses are generic ones */
/* Only the null pointer is ever converted to .shared: it points nowhere there. */
PTX_OP1(cvta_to_shared_u64, uint64_t, uint64_t, a ? PTX_POISON_b64 : 0)
#define ptx_piece_b32(v, i) ((uint32_t)((v) >> 32 * (i)))
#define ptx_piece_b16(v, i) ((uint16_t)((v) >> 16 * (i)))
#define ptx_pack_b32(a, b)  ((uint64_t)(b) << 32 | (a))
#define ptx_pack_b16(a, b)  ((uint32_t)(uint16_t)(b) << 16 | (uint16_t)(a))

/* cvt of integers: chopped, or extended by the source's sign; then the register's width. */
#define PTX_CVT(to, from, to_c, from_c) PTX_OP1(cvt_##to##_##from, to_c, from_c, a)
PTX_CVT(u16, u32, uint16_t, uint32_t)
PTX_CVT(u16, u64, uint16_t, uint64_t)
PTX_CVT(u16, u8, uint16_t, uint8_t)
PTX_CVT(u32, u16, uint32_t, uint16_t)
PTX_CVT(u32, u8, uint32_t, uint8_t)
PTX_CVT(u32, u64, uint32_t, uint64_t)
PTX_CVT(u64, u32, uint64_t, uint32_t)
PTX_CVT(u64, u16, uint64_t, uint16_t)
PTX_CVT(s8, s32, int8_t, int32_t)
PTX_CVT(s16, s8, int16_t, int8_t)
PTX_CVT(s32, s8, int32_t, int8_t)
PTX_CVT(s32, s16, int32_t, int16_t)
PTX_CVT(s64, s32, int64_t, int32_t)
/* .rn of an integer: the nearest float, ties to even. */
PTX_CVT(rn_f32, u16, float, uint16_t)
PTX_CVT(rn_f32, s16, float, int16_t)
PTX_CVT(rn_f32, u32, float, uint32_t)
PTX_CVT(rn_f32, s32, float, int32_t)
PTX_CVT(rn_f32, u64, float, uint64_t)
PTX_CVT(rn_f32, s64, float, int64_t)
/* .rni: to an integer's value, ties to even. */
PTX_OP1(cvt_rni_f32_f32, float, float, ptx_canonical(__builtin_rintf(a)))
/* .rzi: towards zero, limited to the type's range; a NaN becomes 0. */
PTX_OP1(cvt_rzi_s32_f32, int32_t, float,
        a != a          ? 0
        : a >= 0x1p31f  ? INT32_MAX
        : a <= -0x1p31f ? INT32_MIN
                        : (int32_t)a)
PTX_OP1(cvt_rzi_u32_f32, uint32_t, float, a != a || a <= 0 ? 0 : a >= 0x1p32f ? UINT32_MAX : (uint32_t)a)
PTX_OP1(cvt_rzi_s64_f32, int64_t, float,
        a != a          ? 0
        : a >= 0x1p63f  ? INT64_MAX
        : a <= -0x1p63f ? INT64_MIN
                        : (int64_t)a)

/* f16 is 1 sign, 5 exponent, 10 fraction bits. To f32 is exact; a NaN becomes the canonical one. */
SIMT_INLINE float ptx_cvt_f32_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 31)
        return fraction ? ptx_float(0x7fffffffu) : ptx_float(sign | 0x7f800000u);
    float magnitude =
        exponent ? ptx_float((exponent + 112) << 23 | fraction << 13) : (float)fraction * 0x1p-24f;
    return ptx_float(sign | ptx_bits(magnitude));
}
/* .rn: ties to even, beyond 65504 by half a step to infinity; a NaN becomes 0x7fff. */
SIMT_INLINE uint16_t ptx_cvt_rn_f16_f32(float f)
{
    uint32_t bits = ptx_bits(f), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return 0x7fff;
    if (magnitude >= 0x477ff000u)
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) /* below 2^-14: adding 2^-1 rounds to multiples of 2^-24 */
        return (uint16_t)(sign | (ptx_bits(ptx_float(magnitude) + 0.5f) - 0x3f000000u));
    return (uint16_t)(sign | ((magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13));
}

/* ld, st without an order: weak accesses. volatile: the host's compiler neither merges nor repeats them. An
 * address is a multiple of the access's size, or the launch ends. */
SIMT_INLINE void ptx_check_aligned(const char *p, uintptr_t size)
{
    if ((uintptr_t)p % size)
        __builtin_trap();
}
typedef uint16_t ptx_u16x4 __attribute__((vector_size(8)));
typedef uint32_t ptx_u32x2 __attribute__((vector_size(8)));
typedef uint32_t ptx_u32x4 __attribute__((vector_size(16)));
typedef float ptx_f32x2 __attribute__((vector_size(8)));
typedef float ptx_f32x4 __attribute__((vector_size(16)));
typedef uint64_t ptx_u64x2 __attribute__((vector_size(16)));
#define PTX_LD(opcode, c)                                                                                    \
    SIMT_INLINE c ptx_ld_##opcode(const char *p)                                                             \
    {                                                                                                        \
        ptx_check_aligned(p, sizeof(c));                                                                     \
        return *(const volatile c *)(const void *)p;                                                         \
    }
#define PTX_ST(opcode, c)                                                                                    \
    SIMT_INLINE void ptx_st_##opcode(char *p, c v)                                                           \
    {                                                                                                        \
        ptx_check_aligned(p, sizeof(c));                                                                     \
        *(volatile c *)(void *)p = v;                                                                        \
    }
#define PTX_LD_ALL(space)                                                                                    \
    PTX_LD(space##_s8, int8_t)                                                                               \
    PTX_LD(space##_u8, uint8_t)                                                                              \
    PTX_LD(space##_b8, uint8_t)                                                                              \
    PTX_LD(space##_b16, uint16_t)                                                                            \
    PTX_LD(space##_u16, uint16_t)                                                                            \
    PTX_LD(space##_s16, int16_t)                                                                             \
    PTX_LD(space##_u32, uint32_t)                                                                            \
    PTX_LD(space##_b32, uint32_t)                                                                            \
    PTX_LD(space##_s32, int32_t)                                                                             \
    PTX_LD(space##_u64, uint64_t)                                                                            \
    PTX_LD(space##_b64, uint64_t)                                                                            \
    PTX_LD(space##_f32, float)                                                                               \
    PTX_LD(space##_v4_u16, ptx_u16x4)                                                                        \
    PTX_LD(space##_v2_u32, ptx_u32x2)                                                                        \
    PTX_LD(space##_v2_f32, ptx_f32x2)                                                                        \
    PTX_LD(space##_v2_u64, ptx_u64x2) PTX_LD(space##_v4_u32, ptx_u32x4) PTX_LD(space##_v4_f32, ptx_f32x4)
PTX_LD_ALL(param)
PTX_LD_ALL(global)
PTX_LD_ALL(shared)
#define PTX_ST_ALL(space)                                                                                    \
    PTX_ST(space##_u8, uint8_t)                                                                              \
    PTX_ST(space##_b8, uint8_t)                                                                              \
    PTX_ST(space##_b16, uint16_t)                                                                            \
    PTX_ST(space##_u16, uint16_t)                                                                            \
    PTX_ST(space##_u32, uint32_t)                                                                            \
    PTX_ST(space##_b32, uint32_t)                                                                            \
    PTX_ST(space##_u64, uint64_t)                                                                            \
    PTX_ST(space##_b64, uint64_t)                                                                            \
    PTX_ST(space##_f32, float)                                                                               \
    SIMT_INLINE void ptx_st_##space##_v2_u32(char *p, uint32_t a, uint32_t b)                                \
    {                                                                                                        \
        ptx_check_aligned(p, 8);                                                                             \
        *(volatile ptx_u32x2 *)(void *)p = (ptx_u32x2){a, b};                                                \
    }                                                                                                        \
    SIMT_INLINE void ptx_st_##space##_v2_f32(char *p, float a, float b)                                      \
    {                                                                                                        \
        ptx_check_aligned(p, 8);                                                                             \
        *(volatile ptx_f32x2 *)(void *)p = (ptx_f32x2){a, b};                                                \
    }                                                                                                        \
    SIMT_INLINE void ptx_st_##space##_v4_u32(char *p, uint32_t a, uint32_t b, uint32_t c, uint32_t d)        \
    {                                                                                                        \
        ptx_check_aligned(p, 16);                                                                            \
        *(volatile ptx_u32x4 *)(void *)p = (ptx_u32x4){a, b, c, d};                                          \
    }                                                                                                        \
    SIMT_INLINE void ptx_st_##space##_v4_f32(char *p, float a, float b, float c, float d)                    \
    {                                                                                                        \
        ptx_check_aligned(p, 16);                                                                            \
        *(volatile ptx_f32x4 *)(void *)p = (ptx_f32x4){a, b, c, d};                                          \
    }
PTX_ST_ALL(global)
PTX_ST_ALL(shared)

/* ---- the emulator's part. Macros: each use is a site of its own. ---- */

/* A constant that the translator passes on must have this value. */
#define PTX_CONSTANT(value, wanted) ((void)sizeof(char[(value) == (wanted) ? 1 : -1]))

/* ld and st with an order and a scope (8, memory consistency model). */
#define PTX_U32(p)                          ((uint32_t *)(void *)(p))
#define PTX_U64(p)                          ((uint64_t *)(void *)(p))
#define ptx_ld_relaxed_gpu_global_u32(p)    simt_ld_relaxed_gpu(PTX_U32(p))
#define ptx_ld_acquire_gpu_global_u32(p)    simt_ld_acquire_gpu(PTX_U32(p))
#define ptx_ld_relaxed_sys_global_u32(p)    simt_ld_relaxed_sys(PTX_U32(p))
#define ptx_ld_acquire_sys_global_u32(p)    simt_ld_acquire_sys(PTX_U32(p))
#define ptx_ld_relaxed_gpu_global_u64(p)    simt_ld_relaxed_gpu_u64(PTX_U64(p))
#define ptx_ld_relaxed_sys_global_u64(p)    simt_ld_relaxed_sys_u64(PTX_U64(p))
#define ptx_ld_relaxed_gpu_global_v4_u32(p) simt_ld_relaxed_gpu_u4(PTX_U32(p))
#define ptx_ld_acquire_sys_global_u64(p)    simt_ld_acquire_sys_u64(PTX_U64(p))
#define ptx_st_relaxed_gpu_global_u32(p, v) simt_st_relaxed_gpu(PTX_U32(p), v)
#define ptx_st_release_gpu_global_u32(p, v) simt_st_release_gpu(PTX_U32(p), v)
#define ptx_st_relaxed_sys_global_u32(p, v) simt_st_relaxed_sys(PTX_U32(p), v)
#define ptx_st_release_sys_global_u32(p, v) simt_st_release_sys(PTX_U32(p), v)
#define ptx_st_relaxed_gpu_global_u64(p, v) simt_st_relaxed_gpu_u64(PTX_U64(p), v)
#define ptx_st_relaxed_sys_global_u64(p, v) simt_st_relaxed_sys_u64(PTX_U64(p), v)
#define ptx_st_release_sys_global_u64(p, v) simt_st_release_sys_u64(PTX_U64(p), v)

/* 9.7.12 synchronisation. A whole warp takes part in each: the full mask alone is translated. */
#define ptx_bar_sync(id, n)                       simt_bar_sync(id, n)
#define ptx_bar_red_or_pred(id, n, p)             simt_bar_or(id, n, p)
#define ptx_bar_warp_sync(mask)                   (PTX_CONSTANT(mask, 0xffffffffu), simt_syncwarp())
#define ptx_vote_sync_ballot_b32(p, mask)         (PTX_CONSTANT(mask, 0xffffffffu), simt_ballot(p))
#define ptx_fence_acq_rel_gpu()                   simt_fence_acq_rel_gpu()
#define ptx_fence_acq_rel_sys()                   simt_fence_acq_rel_sys()
#define ptx_red_relaxed_gpu_global_add_u32(p, v)  simt_red_relaxed_gpu_add(PTX_U32(p), v)
#define ptx_red_release_gpu_global_add_u32(p, v)  simt_red_release_gpu_add(PTX_U32(p), v)
#define ptx_atom_relaxed_gpu_global_add_u32(p, v) simt_atom_relaxed_gpu_add(PTX_U32(p), v)
#define ptx_atom_acq_rel_gpu_global_add_u32(p, v) simt_atom_acq_rel_gpu_add(PTX_U32(p), v)
#define ptx_atom_relaxed_cta_shared_add_u32(p, v) simt_atom_shared_add(PTX_U32(p), v)

/* 9.7.8 shfl.sync: clamp 0x1f keeps the warp whole. */
#define ptx_shfl_sync_idx_b32(v, lane, clamp, mask)                                                          \
    (PTX_CONSTANT(clamp, 0x1f), PTX_CONSTANT(mask, 0xffffffffu), simt_shfl_u32(v, lane))
#define ptx_shfl_sync_bfly_b32(v, lanes, clamp, mask)                                                        \
    (PTX_CONSTANT(clamp, 0x1f), PTX_CONSTANT(mask, 0xffffffffu), simt_shfl_xor_u32(v, lanes))

/* 9.7.12 redux.sync */
#define ptx_redux_sync_max_u32(v, mask) (PTX_CONSTANT(mask, 0xffffffffu), simt_redux_max_u32(v))
#define ptx_redux_sync_min_u32(v, mask) (PTX_CONSTANT(mask, 0xffffffffu), simt_redux_min_u32(v))

/* 9.7.13 mma: c[] += a[] * b[], fragments as simt.h describes. */
#define PTX_S32(words)                                               ((int32_t *)(void *)(words))
#define ptx_mma_sync_aligned_m16n8k32_row_col_s32_s8_s8_s32(c, a, b) simt_mma_s8s8(PTX_S32(c), a, b)
#define ptx_mma_sync_aligned_m16n8k32_row_col_s32_u8_s8_s32(c, a, b) simt_mma_u8s8(PTX_S32(c), a, b)
#define ptx_mma_sync_aligned_m16n8k16_row_col_s32_s8_s8_s32(c, a, b) simt_mma16_s8s8(PTX_S32(c), a, (b)[0])

/* 9.7.12 mbarrier, 9.7.8 cp.async and cp.async.bulk. try_wait's limit of time is the system's affair. */
#define ptx_mbarrier_init_shared_b64(p, n)                  simt_mbar_init(PTX_U64(p), n)
#define ptx_mbarrier_arrive_shared_b64(p)                   (simt_mbar_arrive(PTX_U64(p)), UINT64_C(0))
#define ptx_mbarrier_test_wait_parity_shared_b64(p, parity) simt_mbar_try_wait(PTX_U64(p), parity)
#define ptx_cp_async_commit_group()                         simt_cp_async_commit()
#define ptx_cp_async_wait_group(n)                          simt_cp_async_wait(n)
#define ptx_cp_async_mbarrier_arrive_noinc_shared_b64(p)    simt_cp_async_arrive(PTX_U64(p))
#define ptx_cp_async_cg_shared_global(to, from, n)          (PTX_CONSTANT(n, 16), simt_cp_async16(to, from))
#if SIMT_SM >= 90
#define ptx_mbarrier_try_wait_parity_shared_b64(p, parity, limit)                                            \
    ((void)(limit), simt_mbar_try_wait(PTX_U64(p), parity))
#define ptx_mbarrier_arrive_expect_tx_shared_b64(p, n)                                                       \
    (simt_mbar_arrive_expect_tx(PTX_U64(p), n), UINT64_C(0))
#define ptx_fence_mbarrier_init_release_cluster() simt_fence_mbar_init()
#define ptx_fence_proxy_async()                   simt_fence_proxy_async()
#define ptx_cp_async_bulk_sharedcluster_global_mbarriercomplete_txbytes(to, from, n, p)                      \
    simt_bulk_copy(to, from, n, PTX_U64(p))
#endif
#define ptx_prefetch_global_L2(p) simt_prefetch_l2(p)
#define ptx_nanosleep_u32(ns)     simt_nanosleep(ns)
