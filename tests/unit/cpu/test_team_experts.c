/* The product of a mixture of experts: the tables and variants that it takes. */
#include "base/team.h"
#include "cpu/matmul/matmul_pack.h"
#include "cpu/matmul/team_experts.h"
#include "cpu/tuning/tuning.h"
#include "gguf/quant.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define N_EXPERTS 4
#define N_USED    2
#define N_ROWS    6
#define N         32
#define K         256

/* The experts that each row chose: 6, 1, 3 and 2 rows of experts 0 to 3. */
static const uint32_t chosen[N_ROWS][N_USED] = {{0, 1}, {0, 2}, {0, 2}, {0, 2}, {0, 3}, {0, 3}};

/* A table for each class of columns, which computes as the scalar one does and notes what it was asked for.
 */
struct asked {
    uint32_t n_columns, class;
    uint32_t first, last; /* the groups that a run took */
    struct matmul_variant variant;
};
static struct asked quantised[64], ran[64];
static uint32_t n_quantised, n_ran;

#define TABLE(c)                                                                                             \
    static void quantise_##c(struct matmul_input *in, uint32_t panel, uint32_t first, uint32_t last,         \
                             const float *const *x, const float *gain, bool floats)                          \
    {                                                                                                        \
        quantised[n_quantised++] = (struct asked){.n_columns = in->n_columns, .class = c};                   \
        matmul_scalar.quantise(in, panel, first, last, x, gain, floats);                                     \
    }                                                                                                        \
    static void run_##c(const struct matmul_matrix *m, const struct matmul_input *in, uint32_t first,        \
                        uint32_t last, float *out, size_t stride, void *scratch)                             \
    {                                                                                                        \
        ran[n_ran++] = (struct asked){in->n_columns, c, first, last, in->variant};                           \
        matmul_scalar.run(m, in, first, last, out, stride, scratch);                                         \
    }
TABLE(0)
TABLE(1)
TABLE(2)
TABLE(3)

static const struct matmul_kernels tables[TUNING_CLASSES] = {
    {.name = "0", .quantise = quantise_0, .run = run_0},
    {.name = "1", .quantise = quantise_1, .run = run_1},
    {.name = "2", .quantise = quantise_2, .run = run_2},
    {.name = "3", .quantise = quantise_3, .run = run_3},
};

static void *aligned(size_t size)
{
    void *p = aligned_alloc(64, (size + 63) / 64 * 64);
    cr_assert_not_null(p);
    memset(p, 0, (size + 63) / 64 * 64);
    return p;
}

struct mixture {
    struct matmul_matrix m;
    struct experts x;
    struct product_shared shared;
    struct product_scratch own;
    struct experts_order *order;
    struct team *team;
};

static void fill(float *x, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 16) / 32768.0f - 1.0f;
    }
}

static void fill_choice(float *choice)
{
    for (uint32_t row = 0; row < N_ROWS; row++)
        for (uint32_t u = 0; u < N_USED; u++) {
            choice[row * 2 * N_USED + u] = (float)chosen[row][u];
            choice[row * 2 * N_USED + N_USED + u] = 0.5f;
        }
}

static void mixture_open(struct mixture *x, const struct tuning *tuning)
{
    size_t size = quant_size(QUANT_Q8_0, (size_t)N_EXPERTS * N * K);
    uint8_t *rows = aligned(size), *packed = aligned(matmul_pack_size(QUANT_Q8_0, N_EXPERTS * N, K));
    for (size_t i = 0; i < size; i++)
        rows[i] = (uint8_t)(i * 7) & 0x3b;
    *x = (struct mixture){.order = aligned(sizeof *x->order)};
    matmul_matrix_set(&x->m, QUANT_Q8_0, N_EXPERTS * N, K, packed);
    matmul_pack(QUANT_Q8_0, N_EXPERTS * N, K, rows, packed, 0, x->m.n_groups);
    free(rows);
    x->order->pairs = aligned(N_ROWS * N_USED * sizeof(uint32_t));
    x->shared = (struct product_shared){.kernels = &matmul_scalar,
                                        .tuning = tuning,
                                        .ops = ops_find("scalar"),
                                        .input = aligned(experts_input_size(K, N_ROWS * N_USED, false)),
                                        .factors = aligned(N_ROWS * sizeof(float))};
    x->own = (struct product_scratch){.input = aligned(experts_input_size(K, N_USED, false)),
                                      .tile = aligned(PRODUCT_TILE * sizeof(float)),
                                      .kernel = aligned(matmul_scratch_size() + 64)};
    x->x = (struct experts){.matrices = {&x->m},
                            .n_matrices = 1,
                            .end = EXPERTS_STORE,
                            .n_experts = N_EXPERTS,
                            .n_used = N_USED,
                            .n_rows = N_ROWS,
                            .in = {aligned(N_ROWS * K * sizeof(float)), K},
                            .choice = {aligned(N_ROWS * 2 * N_USED * sizeof(float)), 2 * N_USED},
                            .out = {aligned(N_ROWS * N_USED * N * sizeof(float)), N_USED * N}};
    fill(x->x.in.data, N_ROWS * K, 1);
    fill_choice(x->x.choice.data);
    cr_assert_eq(team_open(&x->team, 1, NULL), 0);
}

static void mixture_close(struct mixture *x)
{
    team_close(x->team);
    free((void *)x->m.data);
    free(x->order->pairs);
    free(x->order);
    free(x->shared.input);
    free(x->shared.factors);
    free(x->own.input);
    free(x->own.tile);
    free(x->own.kernel);
    free(x->x.in.data);
    free(x->x.choice.data);
    free(x->x.out.data);
}

static void work(void *context, uint32_t member)
{
    struct mixture *x = context;
    experts_run(&x->x, &x->shared, &x->own, x->order, x->team, member);
}

static void tuning_make(struct tuning *t)
{
    tuning_init(t, &matmul_scalar, 1);
    for (uint32_t c = 0; c < TUNING_CLASSES; c++) {
        t->kernels[c] = &tables[c];
        t->choice[MATMUL_Q8_0][c].variant =
            (struct matmul_variant){.hint = MATMUL_HINT_T0, .shape = MATMUL_SHAPE_PANEL, .ahead = 64 + c};
    }
}

static void expect_choice(const struct tuning *t, const struct asked *a, bool variant)
{
    uint32_t class = tuning_class(a->n_columns);
    cr_assert_eq(a->class, class, "%u columns on the table of class %u", a->n_columns, a->class);
    if (variant)
        cr_assert_eq(memcmp(&a->variant, &t->choice[MATMUL_Q8_0][class].variant, sizeof a->variant), 0,
                     "the variant of %u columns", a->n_columns);
}

Test(team_experts, each_expert_takes_the_table_and_the_variant_of_its_own_number_of_rows)
{
    struct mixture x;
    struct tuning t;
    tuning_make(&t);
    mixture_open(&x, &t);
    n_quantised = n_ran = 0;
    team_run(x.team, work, &x);
    cr_assert_geq(n_ran, N_EXPERTS);
    bool seen[N_ROWS + 1] = {0};
    for (uint32_t i = 0; i < n_quantised; i++)
        expect_choice(&t, &quantised[i], false);
    for (uint32_t i = 0; i < n_ran; i++) {
        expect_choice(&t, &ran[i], true);
        seen[ran[i].n_columns] = true;
    }
    cr_assert(seen[6] && seen[1] && seen[3] && seen[2]);
    mixture_close(&x);
}

Test(team_experts, a_row_alone_takes_the_table_and_the_variant_of_one_column)
{
    struct mixture x;
    struct tuning t;
    tuning_make(&t);
    mixture_open(&x, &t);
    n_quantised = n_ran = 0;
    x.x.n_rows = 1;
    team_run(x.team, work, &x);
    cr_assert_gt(n_ran, 0);
    for (uint32_t i = 0; i < n_ran; i++)
        expect_choice(&t, &ran[i], true);
    mixture_close(&x);
}

/* The rows of a step have 12 experts chosen, of which 4 differ. */
Test(team_experts, weights_of_a_chosen_expert_are_read_once_and_of_no_other)
{
    struct mixture x;
    struct tuning t;
    uint32_t n_read[N_EXPERTS * N / MATMUL_ROWS] = {0}, per_expert = N / MATMUL_ROWS;
    tuning_make(&t);
    mixture_open(&x, &t);
    for (uint32_t n_rows = 1; n_rows <= N_ROWS; n_rows++) {
        memset(n_read, 0, sizeof n_read);
        n_ran = 0;
        x.x.n_rows = n_rows;
        team_run(x.team, work, &x);
        for (uint32_t i = 0; i < n_ran; i++)
            for (uint32_t group = ran[i].first; group < ran[i].last; group++)
                n_read[group]++;
        for (uint32_t group = 0; group < N_EXPERTS * per_expert; group++) {
            bool wanted = false;
            for (uint32_t row = 0; row < n_rows; row++)
                wanted =
                    wanted || chosen[row][0] == group / per_expert || chosen[row][1] == group / per_expert;
            cr_assert_eq(n_read[group], wanted, "%u rows: group %u was read %u times", n_rows, group,
                         n_read[group]);
        }
    }
    mixture_close(&x);
}

/* All rows of the matrix are one expert's here, 8 groups. */
Test(team_experts, a_sum_begins_with_a_long_run_of_its_expert)
{
    struct mixture x;
    struct tuning t;
    tuning_make(&t);
    mixture_open(&x, &t);
    n_ran = 0;
    x.x.n_experts = x.x.n_used = x.x.n_rows = 1;
    x.x.end = EXPERTS_SUM;
    x.x.own_input = true;
    team_run(x.team, work, &x);
    cr_assert_eq(n_ran, 3);
    for (uint32_t i = 0; i < 3; i++)
        cr_assert(ran[i].first == (i ? 2 + 2 * i : 0) && ran[i].last == 4 + 2 * i, "run %u: groups %u to %u",
                  i, ran[i].first, ran[i].last);
    mixture_close(&x);
}

Test(team_experts, choices_change_no_bit)
{
    struct mixture plain, tuned;
    struct tuning t;
    tuning_init(&t, &matmul_scalar, 1);
    for (uint32_t c = 0; c < TUNING_CLASSES; c++)
        t.kernels[c] = c % 2 ? &matmul_scalar : matmul_find("auto");
    mixture_open(&plain, NULL);
    mixture_open(&tuned, &t);
    team_run(plain.team, work, &plain);
    team_run(tuned.team, work, &tuned);
    cr_assert_eq(memcmp(plain.x.out.data, tuned.x.out.data, N_ROWS * N_USED * N * sizeof(float)), 0);
    mixture_close(&plain);
    mixture_close(&tuned);
}
