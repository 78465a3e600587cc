/* team_experts.h - the product of a mixture of experts, computed by the whole team: the pairs of a row and an
 * expert that it chose are sorted by expert; each expert's weights are read once and multiply the rows that
 * chose it. Experts that no row chose are not read.
 *
 * A pair is row * n_used + u: expert u of the row's choice. Every column is quantised and multiplied as in
 * team_matmul.h, so that a row's result does not depend on the other rows.
 * Thread: every member calls experts_run() with the same product. Memory: the caller's, sized below. Errors:
 * none. */
#pragma once
#include "abi/route.h"
#include "team_matmul.h"

/* How the experts' products y end. */
enum experts_end {
    EXPERTS_STORE,          /* columns [u n, (u + 1) n) of the row of out = y of expert u */
    EXPERTS_SWIGLU,         /* the same of silu(y_0) * y_1 */
    EXPERTS_SWIGLU_CLAMPED, /* the same with arith_swiglu_clamped() */
    EXPERTS_ADD,            /* out += sum of weight * y, experts ascending; out has n columns */
};

struct experts {
    const struct matmul_matrix *matrices[2]; /* [n_experts * n, k]; both of the same shape */
    const float *bias[2];                    /* [n_experts][n], or NULL */
    uint32_t n_matrices;
    enum experts_end end;
    uint32_t n_experts, n_used, n_rows;
    struct rows in;
    bool own_input; /* expert u of a row reads columns [u k, (u + 1) k); else all read the same k */
    /* With own_input, parts that are not k wide: expert u reads the k columns from u in_part + in_col on.
     * EXPERTS_STORE: the n columns from u out_part + out_col on are written. 0: k and n. */
    uint32_t in_part, in_col, out_part, out_col;
    struct rows choice; /* numbers [n_used], ascending, then weights [n_used] (route.h) */
    const float *gain;  /* gain of a norm over the input, or NULL */
    float eps;
    const float *factors; /* per row, without a gain: applied after the product; NULL: 1 */
    struct rows out;
    const uint8_t *next; /* weights that the member reads afterwards, or NULL */
};

/* The pairs of a step in the order of their experts; one per member, which sorts for itself. */
struct experts_order {
    uint32_t n_active;                     /* experts with pairs */
    uint16_t expert[ROUTE_MAX_EXPERTS];    /* [n_active], ascending */
    uint32_t first[ROUTE_MAX_EXPERTS + 1]; /* [n_active + 1]: of its pairs */
    uint32_t panel[ROUTE_MAX_EXPERTS + 1]; /* [n_active + 1]: of its panels of columns */
    size_t input[ROUTE_MAX_EXPERTS];       /* [n_active]: bytes to its quantised columns */
    uint32_t *pairs;                       /* [most pairs], rows ascending in each expert */
};

/* The bytes of quantised columns that n_pairs pairs take, in product_shared.input; with n_rows = 1 in
 * product_scratch.input. */
size_t experts_input_size(uint32_t k, uint32_t n_pairs, bool floats);

/* Computes the product. It ends without a barrier; with more than one row there is one inside. `order`: the
 * member's. */
void experts_run(const struct experts *x, const struct product_shared *shared,
                 const struct product_scratch *own, struct experts_order *order, struct team *team,
                 uint32_t member);
