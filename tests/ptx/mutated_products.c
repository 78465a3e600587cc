/* mutated_products.c - MUL_MAT, on the emulator without the race detector: wrong products show in its result.
 * See mutations.h. */
#include "simt/products/product_node_case.h"
#include "ptx/mutations.h"

static void *open_nothing(void)
{
    return NULL;
}

static void close_nothing(void *context)
{
    (void)context;
}

static int run_mul_mat(void *context, uint32_t sm, uint64_t seed, struct simt_report *report)
{
    const struct product_node of = {.seed = seed, .sm = sm, .small = true};
    (void)context;
    return product_node_multiply(&of, -1, report);
}

const struct mutated_kernel mutated_kernels[] = {{"mul_mat", open_nothing, close_nothing, run_mul_mat}};
const uint32_t n_mutated_kernels = sizeof mutated_kernels / sizeof *mutated_kernels;
