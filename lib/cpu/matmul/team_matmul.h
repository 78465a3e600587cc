/* team_matmul.h - a matrix op of a step, computed by the whole team: it quantises rows, multiplies them with
 * up to three matrices that share them, and finishes the products (norm factor, bias, then store, add or
 * gate).
 * Thread: every member calls product_run() with the same product. Memory: the caller's; a product refers to
 * it. Errors: none. */
#pragma once
#include "base/error.h"
#include "matmul.h"
#include "cpu/ops/ops.h"
#include "model/program.h"
#include "cpu/rows.h"

struct team;
struct tuning;

struct product {
    const struct matmul_matrix *matrices[3];
    const float *bias[3]; /* or NULL */
    uint32_t n_matrices;
    enum program_epilogue epilogue;
    uint32_t n_rows;
    struct rows in;
    const uint16_t *gather; /* product row i reads row gather[i] of `in`; NULL: row i */
    const float *gain;      /* gain of a norm over the input, or NULL */
    float eps;
    const float *factors; /* per row of `in`, without a gain: applied after the product; NULL: 1 */
    /* Without a gain: the factor of a row is the sigmoid of the first value of its row here; data NULL: none.
     */
    struct rows gates;
    struct rows out;
    uint32_t out_col[3]; /* first column of each output in a row; RESIDUAL and SWIGLU use the first */
    float scale;         /* STORE, RESIDUAL: factor of the finished product; 1: none */
    float cap;           /* STORE: ops.soft_cap(); 0: none */
    const uint8_t *next; /* product_begin() of the member's next product, or NULL */
};

/* Shared by the team. */
struct product_shared {
    const struct matmul_kernels *kernels;
    const struct tuning *tuning; /* variants, and tables instead of `kernels`; or NULL */
    const struct ops *ops;
    void *input; /* matmul_input_size(max k, max rows) */
    float *factors;
};

/* One per member. */
struct product_scratch {
    void *input; /* for PRODUCT_OWN_ROWS rows */
    float *tile; /* PRODUCT_TILE floats */
    void *kernel;
};

/* Up to this many rows every member quantises all rows for itself, which is cheaper than a barrier. */
#define PRODUCT_OWN_ROWS 2
/* Floats of one piece of work before it is finished: they stay in the second-level cache. */
#define PRODUCT_TILE 65536

/* The table that quantises and multiplies n_columns columns together. */
const struct matmul_kernels *product_kernels(const struct product_shared *shared, uint32_t n_columns);

/* The address of the weights that a member of the team multiplies first. Uses matrices, n_matrices and
 * epilogue of `p`. */
const uint8_t *product_begin(const struct product *p, const struct team *team, uint32_t member);

/* Computes the product. It ends without a barrier; with more than PRODUCT_OWN_ROWS rows there is one between
 * quantising and multiplying. */
void product_run(const struct product *p, const struct product_shared *shared,
                 const struct product_scratch *own, struct team *team, uint32_t member);
