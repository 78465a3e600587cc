/* A matrix op of a step: the groups that a member takes at once. */
#include "base/memory.h"
#include "base/team.h"
#include "cpu/matmul/matmul_pack.h"
#include "cpu/matmul/team_matmul.h"
#include "gguf/quant.h"

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define K         256
#define MOST      64 /* groups */
#define N_MEMBERS 2

/* A table that computes nothing and notes the groups that each of its runs took. */
static atomic_uint n_runs, of_groups[MOST + 1]; /* runs in all, and of so many groups */
static atomic_uint taken[MOST];

static void quantise(struct matmul_input *in, uint32_t panel, uint32_t first, uint32_t last,
                     const float *const *x, const float *gain, bool floats)
{
    matmul_scalar.quantise(in, panel, first, last, x, gain, floats);
}

static void run(const struct matmul_matrix *m, const struct matmul_input *in, uint32_t first, uint32_t last,
                float *out, size_t stride, void *scratch)
{
    (void)in, (void)stride, (void)scratch;
    memset(out, 0, (size_t)(last - first) * MATMUL_ROWS * sizeof *out);
    atomic_fetch_add(&n_runs, 1);
    atomic_fetch_add(&of_groups[last - first], 1);
    for (uint32_t i = first; i < last && i < m->n_groups; i++)
        atomic_fetch_add(&taken[i], 1);
}

static const struct matmul_kernels table = {.name = "noted", .quantise = quantise, .run = run};

static void *aligned(size_t size)
{
    void *p = aligned_alloc(64, round64(size));
    cr_assert_not_null(p);
    memset(p, 0, round64(size));
    return p;
}

struct rig {
    struct team *team;
    struct matmul_matrix m;
    struct product p;
    struct product_shared shared;
    struct product_scratch own[N_MEMBERS];
};

static void work(void *context, uint32_t member)
{
    struct rig *r = context;
    product_run(&r->p, &r->shared, &r->own[member], r->team, member);
}

/* Runs a product of one row with a matrix of n_groups groups, of which the second member's part begins with
 * number `second`. */
static void multiply(uint32_t n_groups, uint32_t second)
{
    struct rig r = {.shared = {.kernels = &table, .ops = ops_find("scalar")}};
    uint32_t n = n_groups * MATMUL_ROWS;
    void *packed = aligned(matmul_pack_size(QUANT_Q8_0, n, K));
    matmul_matrix_set(&r.m, QUANT_Q8_0, n, K, packed);
    r.p = (struct product){.matrices = {&r.m},
                           .n_matrices = 1,
                           .epilogue = PROGRAM_STORE,
                           .n_rows = 1,
                           .in = {aligned(K * sizeof(float)), K},
                           .out = {aligned(n * sizeof(float)), n},
                           .scale = 1};
    for (uint32_t i = 0; i < N_MEMBERS; i++)
        r.own[i] = (struct product_scratch){.input = aligned(matmul_input_size(K, PRODUCT_OWN_ROWS)),
                                            .tile = aligned(PRODUCT_TILE * sizeof(float)),
                                            .kernel = aligned(64)};
    cr_assert_eq(team_open(&r.team, N_MEMBERS, NULL), 0);
    team_run(r.team, work, &r);
    cr_assert_eq(product_begin(&r.p, r.team, 1), r.m.data + second * r.m.group_size);
    team_close(r.team);
    for (uint32_t i = 0; i < N_MEMBERS; i++) {
        free(r.own[i].input);
        free(r.own[i].tile);
        free(r.own[i].kernel);
    }
    free(r.p.in.data);
    free(r.p.out.data);
    free(packed);
}

Test(team_matmul, a_small_matrix_is_dealt_by_single_groups)
{
    multiply(2, 1);
    cr_assert_eq(n_runs, 2);
    cr_assert_eq(of_groups[1], 2);
    for (uint32_t i = 0; i < 2; i++)
        cr_assert_eq(taken[i], 1);
}

Test(team_matmul, a_larger_one_is_dealt_by_pairs_of_groups)
{
    multiply(23, 12);
    cr_assert_eq(n_runs, 12);
    cr_assert_eq(of_groups[2], 11);
    cr_assert_eq(of_groups[1], 1);
    for (uint32_t i = 0; i < 23; i++)
        cr_assert_eq(taken[i], 1);
}
