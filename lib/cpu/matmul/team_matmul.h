/* team_matmul.h - a matrix op of a step, done by the whole team: rows are quantised, multiplied with up to
 * three matrices that share them, and finished (norm factor, bias, then stored, added or gated). Thread:
 * every member calls product_run() with the same product. */
#pragma once
#include "base/error.h"
#include "matmul.h"
#include "cpu/ops/ops.h"
#include "model/program.h"
#include "cpu/rows.h"

struct team;

struct product {
    const struct matmul_matrix *matrices[3];
    const float *bias[3]; /* or NULL */
    uint32_t n_matrices;
    enum program_epilogue epilogue;
    uint32_t n_rows;
    struct rows in;
    const uint16_t *gather; /* product row i reads row gather[i] of `in`; NULL: row i */
    const float *gain;      /* of a norm over the input, or NULL */
    float eps;
    const float *factors; /* by row of `in`: without a gain, multiplied after the product; NULL: 1 */
    struct rows out;
    uint32_t out_col[3]; /* where each output starts in a row; RESIDUAL and SWIGLU use the first */
    const uint8_t *next; /* product_begin() of what the member multiplies after this, or NULL */
};

/* One for the team. */
struct product_shared {
    const struct matmul_kernels *kernels;
    const struct ops *ops;
    void *input; /* matmul_input_size(max k, max rows) */
    float *factors;
};

/* One per member. */
struct product_scratch {
    void *input; /* of PRODUCT_OWN_ROWS rows */
    float *tile; /* PRODUCT_TILE floats */
    void *kernel;
};

/* Up to this many rows every member quantises for itself what it needs, which is cheaper than a barrier. */
#define PRODUCT_OWN_ROWS 2
/* Products of one piece of work before they are finished: stays in the second-level cache. */
#define PRODUCT_TILE 65536

/* Where the weights begin that a member of the team multiplies first: matrices, n_matrices and epilogue of
 * `p` say it. */
const uint8_t *product_begin(const struct product *p, const struct team *team, uint32_t member);

/* No barrier at the end; one between quantising and multiplying when there are many rows. */
void product_run(const struct product *p, const struct product_shared *shared,
                 const struct product_scratch *own, struct team *team, uint32_t member);
