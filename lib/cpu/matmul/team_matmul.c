#include "team_matmul.h"
#include "abi/arith.h"
#include "abi/step.h"
#include "base/team.h"
#include "cpu/tuning/tuning.h"

#include <assert.h>
#include <stdbool.h>

#define UNIT  2  /* most groups of a unit: kernels for many rows compute them in pairs */
#define PIECE 16 /* most units of a piece: for a few rows their results stay in the first-level cache */

static_assert(PRODUCT_OWN_ROWS <= MATMUL_PANEL, "own rows are one panel");
static_assert(PRODUCT_TILE >= 2 * UNIT * MATMUL_ROWS * STEP_MAX_ROWS,
              "the tile holds one unit of a full step");

struct job {
    const struct product *p;
    const struct product_shared *shared;
    const struct matmul_kernels *kernels;
    const struct product_scratch *own;
    struct matmul_input input;
    const float *factors; /* [n_rows] */
    uint32_t end;         /* end of the member's own groups: later ones belong to others */
};

static bool is_gated(const struct product *p)
{
    return p->epilogue == PROGRAM_SWIGLU || p->epilogue == PROGRAM_GEGLU;
}

static bool wants_floats(const struct product *p)
{
    for (uint32_t i = 0; i < p->n_matrices; i++)
        if (matmul_is_float(p->matrices[i]))
            return true;
    return false;
}

static const float *row_of(const struct product *p, uint32_t row)
{
    return row_at(p->in, p->gather ? p->gather[row] : row);
}

static float factor_of(const struct job *j, uint32_t row)
{
    const struct product *p = j->p;
    if (p->gain)
        return j->shared->ops->rms_inverse(row_of(p, row), j->input.k, p->eps);
    if (p->gates.data)
        return arith_sigmoid(row_at(p->gates, row)[0]);
    return p->factors ? p->factors[p->gather ? p->gather[row] : row] : 1.0f;
}

/* Quantises super-blocks [first, last) of a panel of rows. */
static void quantise_panel(struct job *j, uint32_t panel, uint32_t first, uint32_t last)
{
    const float *x[MATMUL_PANEL];
    for (uint32_t c = 0, row = panel * MATMUL_PANEL; c < MATMUL_PANEL && row < j->p->n_rows; c++, row++)
        x[c] = row_of(j->p, row);
    j->kernels->quantise(&j->input, panel, first, last, x, j->p->gain, wants_floats(j->p));
}

/* Quantises all rows, dealt by super-blocks: members that share one would write to the same cache lines. The
 * rows' factors are dealt with them in turn. */
static void quantise_dealt(struct job *j, struct team *team, uint32_t member, float *factors)
{
    uint32_t n_super = matmul_input_supers(&j->input), n_panels = matmul_input_panels(&j->input);
    struct team_deal pieces = team_deal(team, member, n_panels * n_super, 1);
    for (uint32_t i, last; team_next(&pieces, &i, &last);) {
        uint32_t panel = i / n_super, super = i % n_super, end = (panel + 1) * MATMUL_PANEL;
        for (uint32_t row = panel * MATMUL_PANEL + super; row < end && row < j->p->n_rows; row += n_super)
            factors[row] = factor_of(j, row);
        quantise_panel(j, panel, super, super + 1);
    }
}

/* Computes the products of groups [first, last) of one matrix into tile[row][stride]. Returns the number of
 * their rows. next: as in struct matmul_input. */
static uint32_t multiply(const struct job *j, const struct matmul_matrix *m, uint32_t first, uint32_t last,
                         const uint8_t *next, float *tile, size_t stride)
{
    uint32_t start = first * MATMUL_ROWS, end = last * MATMUL_ROWS < m->n ? last * MATMUL_ROWS : m->n;
    struct matmul_input input = j->input;
    input.next = next;
    input.variant = tuning_variant(j->shared->tuning, m->kind, input.n_columns);
    j->kernels->run(m, &input, first, last, tile, stride, j->own->kernel);
    return end - start;
}

static const uint8_t *group_at(const struct matmul_matrix *m, uint32_t group)
{
    return m->data + group * m->group_size;
}

/* Finishes a row of the products y: factor, bias, scale, then residual or cap. */
static void finish_row(const struct job *j, float *out, float *y, uint32_t n, float r, const float *bias)
{
    const struct product *p = j->p;
    const struct ops *ops = j->shared->ops;
    bool residual = p->epilogue == PROGRAM_RESIDUAL, silu = p->epilogue == PROGRAM_TIMES_SILU;
    if (silu || p->epilogue == PROGRAM_TIMES_SIGMOID) {
        (silu ? ops->gate_silu : ops->gate_sigmoid)(out, y, n, r);
        return;
    }
    if (residual && p->scale == 1) {
        ops->residual(out, y, n, r, bias);
        return;
    }
    float *to = residual ? y : out;
    ops->store(to, y, n, r, bias);
    if (p->scale != 1)
        ops->scale(to, to, n, p->scale);
    if (residual)
        ops->add(out, out, to, n);
    else if (p->cap > 0)
        ops->soft_cap(to, to, n, p->cap);
}

static void finish_one(const struct job *j, uint32_t matrix, uint32_t first, uint32_t last,
                       const uint8_t *next)
{
    const struct product *p = j->p;
    size_t stride = (size_t)(last - first) * MATMUL_ROWS;
    uint32_t n = multiply(j, p->matrices[matrix], first, last, next, j->own->tile, stride);
    uint32_t start = first * MATMUL_ROWS;
    const float *bias = p->bias[matrix] ? p->bias[matrix] + start : NULL;
    for (uint32_t row = 0; row < p->n_rows; row++) {
        float *out = row_at(p->out, row) + p->out_col[matrix] + start;
        finish_row(j, out, j->own->tile + row * stride, n, j->factors[row], bias);
    }
}

/* Computes gate and up of the same columns, so that both are in the cache when they are multiplied. */
static void finish_gated(const struct job *j, uint32_t first, uint32_t last)
{
    const struct product *p = j->p;
    size_t stride = (size_t)(last - first) * MATMUL_ROWS;
    float *gate = j->own->tile, *up = gate + stride * p->n_rows;
    const uint8_t *next = last < j->end ? group_at(p->matrices[0], last) : p->next;
    uint32_t start = first * MATMUL_ROWS;
    uint32_t n = multiply(j, p->matrices[0], first, last, group_at(p->matrices[1], first), gate, stride);
    multiply(j, p->matrices[1], first, last, next, up, stride);
    const struct ops *ops = j->shared->ops;
    for (uint32_t row = 0; row < p->n_rows; row++)
        (p->epilogue == PROGRAM_SWIGLU ? ops->swiglu : ops->geglu)(
            row_at(p->out, row) + p->out_col[0] + start, gate + row * stride, up + row * stride, n,
            j->factors[row], p->bias[0] ? p->bias[0] + start : NULL, p->bias[1] ? p->bias[1] + start : NULL);
}

/* Computes groups [first, last), counted over all matrices; those of gate and up go together. */
static void do_piece(const struct job *j, uint32_t first, uint32_t last)
{
    const struct product *p = j->p;
    if (is_gated(p)) {
        finish_gated(j, first, last);
        return;
    }
    for (uint32_t i = 0, base = 0; i < p->n_matrices && base < last; base += p->matrices[i++]->n_groups) {
        uint32_t end = base + p->matrices[i]->n_groups, to = last < end ? last : end;
        const uint8_t *next = to >= j->end                         ? p->next
                              : to == end && i + 1 < p->n_matrices ? p->matrices[i + 1]->data
                                                                   : NULL;
        if (first < end)
            finish_one(j, i, (first > base ? first : base) - base, to - base, next);
        first = first > end ? first : end;
    }
}

static uint32_t count_groups(const struct product *p)
{
    uint32_t n = p->matrices[0]->n_groups;
    for (uint32_t i = 1; !is_gated(p) && i < p->n_matrices; i++)
        n += p->matrices[i]->n_groups;
    return n;
}

/* The groups of a unit: one where each member gets one at most, as of a small router. Kernels that compute
 * groups in pairs take as long for one as for two, so with more groups than members pairs end earlier. */
static uint32_t unit_of(uint32_t n_groups, uint32_t n_members)
{
    return n_groups <= n_members ? 1 : UNIT;
}

/* The first group of a member's own part; all of them for member == team_size(). */
static uint32_t first_group(const struct team *team, uint32_t member, uint32_t n_groups, uint32_t unit)
{
    return team_part(team, member, (n_groups + unit - 1) / unit) * unit;
}

/* Units per piece: as many as the tile holds, but several pieces for each member, so that others can take
 * over from a slow one. */
static uint32_t chunk_of(const struct product *p, uint32_t n_units, uint32_t n_members)
{
    uint32_t per_row = UNIT * MATMUL_ROWS * (is_gated(p) ? 2 : 1);
    uint32_t fits = PRODUCT_TILE / (per_row * p->n_rows), even = n_units / (n_members * 8);
    uint32_t chunk = fits < even ? fits : even;
    return !chunk ? 1 : chunk < PIECE ? chunk : PIECE;
}

const uint8_t *product_begin(const struct product *p, const struct team *team, uint32_t member)
{
    uint32_t n_groups = count_groups(p), unit = unit_of(n_groups, team_size(team)), i = 0;
    uint32_t group = first_group(team, member, n_groups, unit);
    for (; !is_gated(p) && i + 1 < p->n_matrices && group >= p->matrices[i]->n_groups; i++)
        group -= p->matrices[i]->n_groups;
    return group_at(p->matrices[i], group);
}

const struct matmul_kernels *product_kernels(const struct product_shared *shared, uint32_t n_columns)
{
    return shared->tuning ? shared->tuning->kernels[tuning_class(n_columns)] : shared->kernels;
}

/* Tried without gain: prefetching the first weights before quantising, and rows of the output before they are
 * stored. */
void product_run(const struct product *p, const struct product_shared *shared,
                 const struct product_scratch *own, struct team *team, uint32_t member)
{
    if (p->n_rows == 0)
        return;
    struct job j = {.p = p, .shared = shared, .own = own, .kernels = product_kernels(shared, p->n_rows)};
    j.input = (struct matmul_input){.k = p->matrices[0]->k, .n_columns = p->n_rows};
    float own_factors[PRODUCT_OWN_ROWS];
    if (p->n_rows <= PRODUCT_OWN_ROWS) {
        j.input.data = own->input;
        j.factors = own_factors;
        for (uint32_t row = 0; row < p->n_rows; row++)
            own_factors[row] = factor_of(&j, row);
        quantise_panel(&j, 0, 0, matmul_input_supers(&j.input));
    } else {
        j.input.data = shared->input;
        j.factors = shared->factors;
        quantise_dealt(&j, team, member, shared->factors);
        team_barrier(team, member);
    }
    uint32_t n_groups = count_groups(p), unit = unit_of(n_groups, team_size(team));
    uint32_t n_units = (n_groups + unit - 1) / unit;
    j.end = first_group(team, member + 1, n_groups, unit);
    struct team_deal pieces = team_deal(team, member, n_units, chunk_of(p, n_units, team_size(team)));
    for (uint32_t first, last; team_next(&pieces, &first, &last);)
        do_piece(&j, first * unit, last * unit < n_groups ? last * unit : n_groups);
}
