/* ptx_mutants.h - what mutated PTX needs beyond ptx_machine.h: the choice of the mutation, and roundings that
 * no kernel uses (PTX ISA 8.0, section 9.7.3). */
#pragma once
#include "ptx/ptx_machine.h"

extern int ptx_mutation; /* the number of a row of mutations.txt; 0: none */

/* Orders at a scope that is too small, which no kernel uses (8.5). */
#define ptx_ld_relaxed_cta_global_u32(p)    SIMT_LD("ld_relaxed_cta", 0, PTX_U32(p), SIMT_CTA)
#define ptx_ld_acquire_cta_global_u32(p)    SIMT_LD("ld_acquire_cta", SIMT_ACQUIRE, PTX_U32(p), SIMT_CTA)
#define ptx_ld_relaxed_cta_global_u64(p)    SIMT_LD64("ld_relaxed_cta_u64", 0, PTX_U64(p), SIMT_CTA)
#define ptx_ld_relaxed_cta_global_v4_u32(p) SIMT_LD4("ld_relaxed_cta_u4", 0, PTX_U32(p), SIMT_CTA)
#define ptx_st_relaxed_cta_global_u64(p, v) SIMT_ST64("st_relaxed_cta_u64", 0, PTX_U64(p), v, SIMT_CTA)
#define ptx_st_release_cta_global_u32(p, v) SIMT_ST("st_release_cta", SIMT_RELEASE, PTX_U32(p), v, SIMT_CTA)
#define ptx_red_release_cta_global_add_u32(p, v)                                                             \
    ((void)SIMT_ADD("red_release_cta_add", SIMT_RELEASE, PTX_U32(p), v, SIMT_CTA))
#define ptx_atom_acq_rel_cta_global_add_u32(p, v)                                                            \
    SIMT_ADD("atom_acq_rel_cta_add", SIMT_ACQUIRE | SIMT_RELEASE, PTX_U32(p), v, SIMT_CTA)
#define ptx_fence_acq_rel_cta() SIMT_FENCE("fence_acq_rel_cta", SIMT_CTA)

/* The double nearest to the exact value, rounded toward zero; its magnitude is a normal float's or 0. */
SIMT_INLINE float ptx_toward_zero(double exact)
{
    float f = (float)exact;
    if (f != f || exact == 0 || f == 0)
        return ptx_canonical(f);
    bool further = exact > 0 ? (double)f > exact : (double)f < exact;
    return further ? ptx_float(ptx_bits(f) - 1) : f;
}
SIMT_INLINE float ptx_cvt_rzi_f32_f32(float a)
{
    return ptx_canonical(__builtin_truncf(a));
}
SIMT_INLINE float ptx_add_rz_f32(float a, float b)
{
    return ptx_toward_zero((double)a + b);
}
SIMT_INLINE float ptx_mul_rz_f32(float a, float b)
{
    return ptx_toward_zero((double)a * b);
}
SIMT_INLINE float ptx_fma_rz_f32(float a, float b, float c)
{
    return ptx_toward_zero((double)a * b + c);
}
