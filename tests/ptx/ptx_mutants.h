/* ptx_mutants.h - what mutated PTX needs beyond ptx_machine.h: the choice of the mutation, and roundings that
 * no kernel uses (PTX ISA 8.0, section 9.7.3). */
#pragma once
#include "ptx/ptx_machine.h"

extern int ptx_mutation; /* the number of a row of mutations.txt; 0: none */

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
