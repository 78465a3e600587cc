/* team_heads.h - the products of heads with matrices of their own (graph.h, MUL_MAT_HEADS), computed by the
 * whole team as those of experts that every row chooses, all in their order (team_experts.h). Thread: every
 * member calls heads_run() with the same product. Memory: the caller's; experts_input_size() with n_heads
 * pairs a row. Errors: none. */
#pragma once
#include "team_experts.h"

struct heads {
    const struct matmul_matrix *matrix; /* [n_heads * n, k] */
    uint32_t n_heads, n_rows;
    uint32_t col, keep; /* of a part of `in`, which has col + k + keep values */
    struct rows in, out;
    const uint8_t *next; /* weights that the member reads afterwards, or NULL */
};

void heads_run(const struct heads *h, const struct product_shared *shared, const struct product_scratch *own,
               struct experts_order *order, struct team *team, uint32_t member);
