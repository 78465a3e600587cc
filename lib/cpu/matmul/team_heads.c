#include "team_heads.h"
#include "base/team.h"
#include "matmul_pack.h"

#include <string.h>

/* Copies what the parts keep; the products go to other columns. The rows are not dealt: no barrier parts this
 * from the product. */
static void keep_values(const struct heads *h, uint32_t part, uint32_t out_part, const struct team *team,
                        uint32_t member)
{
    for (uint32_t row = member; row < h->n_rows; row += team_size(team))
        for (uint32_t i = 0; i < h->n_heads; i++)
            memcpy(row_at(h->out, row) + (size_t)i * out_part,
                   row_at(h->in, row) + (size_t)(i + 1) * part - h->keep, h->keep * sizeof(float));
}

void heads_run(const struct heads *h, const struct product_shared *shared, const struct product_scratch *own,
               struct experts_order *order, struct team *team, uint32_t member)
{
    float numbers[ROUTE_MAX_EXPERTS];
    uint32_t part = h->col + h->matrix->k + h->keep, out_part = h->keep + h->matrix->n / h->n_heads;
    for (uint32_t i = 0; i < h->n_heads; i++)
        numbers[i] = (float)i;
    struct experts x = {
        .matrices = {h->matrix},
        .n_matrices = 1,
        .end = EXPERTS_STORE,
        .n_experts = h->n_heads,
        .n_used = h->n_heads,
        .n_rows = h->n_rows,
        .in = h->in,
        .own_input = true,
        .in_part = part,
        .in_col = h->col,
        .out_part = out_part,
        .out_col = h->keep,
        .choice = {.data = numbers, .stride = 0}, /* every row's is the same */
        .out = h->out,
        .next = h->next,
    };
    if (h->keep)
        keep_values(h, part, out_part, team, member);
    experts_run(&x, shared, own, order, team, member);
}
