/* Formulas of kernels/abi/arith.h that stand for others. */
#include "abi/arith.h"

#include <criterion/criterion.h>

/* Twice the dividend gives twice the quotient, with the same mantissa. So one exponent would do; here are the
 * least that a block's largest magnitude has, the most, and others between, each with all mantissas. */
Test(arith, a_division_by_127_is_three_operations)
{
    static const uint32_t exponents[] = {127 - 100, 64, 126, 127, 254};
    for (size_t i = 0; i < sizeof exponents / sizeof *exponents; i++) {
        uint32_t n_wrong = 0;
        for (uint32_t mantissa = 0; mantissa < 1u << 23; mantissa++) {
            float x = arith_from_bits(exponents[i] << 23 | mantissa);
            n_wrong += arith_to_bits(arith_over_127(x)) != arith_to_bits(x / 127.0f);
        }
        cr_assert_eq(n_wrong, 0, "exponent %u", exponents[i]);
    }
}
