#include "team_experts.h"
#include "abi/step.h"
#include "base/memory.h"
#include "base/team.h"
#include "cpu/tuning/tuning.h"
#include "matmul_pack.h"

#include <assert.h>
#include <string.h>

#define UNIT  2  /* groups dealt together: kernels for many rows compute them in pairs */
#define PIECE 16 /* most units of a piece */

struct job {
    const struct experts *x;
    const struct product_shared *shared;
    const struct product_scratch *own;
    struct experts_order *order;
    uint32_t n, k, n_units; /* of one expert: rows of a matrix, columns, units of its groups */
    bool one_input;         /* one row, whose experts all read the same columns */
    uint8_t *input;         /* quantised columns of all experts */
    float *factors;         /* [n_rows] */
    uint32_t end;           /* end of the member's own units */
};

static bool wants_floats(const struct experts *x)
{
    return matmul_is_float(x->matrices[0]) || (x->n_matrices > 1 && matmul_is_float(x->matrices[1]));
}

static size_t columns_size(uint32_t k, uint32_t n_columns, bool floats)
{
    size_t quantised = (size_t)n_columns * matmul_n_super(k) * MATMUL_COLUMN_SUPER;
    return round64(quantised + (floats ? (size_t)n_columns * k * sizeof(float) : 0));
}

size_t experts_input_size(uint32_t k, uint32_t n_pairs, bool floats)
{
    uint32_t most = n_pairs < ROUTE_MAX_EXPERTS ? n_pairs : ROUTE_MAX_EXPERTS;
    return columns_size(k, n_pairs, floats) + most * (size_t)64; /* each expert's begin at a cache line */
}

/* Sorting pairs by expert. */

static uint32_t expert_of(const struct experts *x, uint32_t row, uint32_t u)
{
    return (uint32_t)row_at(x->choice, row)[u];
}

static void list_active(const struct job *j, const uint32_t *count, uint32_t *place)
{
    struct experts_order *o = j->order;
    bool floats = wants_floats(j->x);
    size_t at = 0;
    uint32_t n = 0, first = 0, panel = 0;
    for (uint32_t e = 0; e < j->x->n_experts; e++) {
        place[e] = first;
        if (!count[e])
            continue;
        o->expert[n] = (uint16_t)e;
        o->first[n] = first;
        o->panel[n] = panel;
        o->input[n++] = j->one_input ? 0 : at;
        first += count[e];
        panel += (count[e] + MATMUL_PANEL - 1) / MATMUL_PANEL;
        at += columns_size(j->k, count[e], floats);
    }
    o->first[n] = first;
    o->panel[n] = panel;
    o->n_active = n;
}

static void sort_pairs(const struct job *j)
{
    const struct experts *x = j->x;
    uint32_t count[ROUTE_MAX_EXPERTS], place[ROUTE_MAX_EXPERTS];
    memset(count, 0, x->n_experts * sizeof *count);
    for (uint32_t row = 0; row < x->n_rows; row++)
        for (uint32_t u = 0; u < x->n_used; u++)
            count[expert_of(x, row, u)]++;
    list_active(j, count, place);
    for (uint32_t row = 0; row < x->n_rows; row++)
        for (uint32_t u = 0; u < x->n_used; u++)
            j->order->pairs[place[expert_of(x, row, u)]++] = row * x->n_used + u;
}

static uint32_t n_columns(const struct job *j, uint32_t active)
{
    return j->order->first[active + 1] - j->order->first[active];
}

static uint32_t pair_at(const struct job *j, uint32_t active, uint32_t column)
{
    return j->order->pairs[j->order->first[active] + column];
}

/* Quantising columns. */

static struct matmul_input input_of(const struct job *j, uint32_t active)
{
    return (struct matmul_input){.k = j->k,
                                 .n_columns = j->one_input ? 1 : n_columns(j, active),
                                 .data = j->input + j->order->input[active]};
}

static const float *column_of(const struct experts *x, uint32_t pair, uint32_t k)
{
    uint32_t u = pair % x->n_used;
    return row_at(x->in, pair / x->n_used) +
           (x->own_input ? (size_t)u * (x->in_part ? x->in_part : k) + x->in_col : 0);
}

/* The table of an expert's own number of columns: its columns are its alone, whatever the step's rows take.
 */
static const struct matmul_kernels *kernels_of(const struct job *j, uint32_t active)
{
    return product_kernels(j->shared, input_of(j, active).n_columns);
}

static void quantise_panel(const struct job *j, uint32_t active, uint32_t panel, uint32_t first,
                           uint32_t last)
{
    const float *x[MATMUL_PANEL];
    struct matmul_input in = input_of(j, active);
    for (uint32_t c = 0, at = panel * MATMUL_PANEL; c < MATMUL_PANEL && at < in.n_columns; c++, at++)
        x[c] = column_of(j->x, pair_at(j, active, at), j->k);
    kernels_of(j, active)->quantise(&in, panel, first, last, x, j->x->gain, wants_floats(j->x));
}

static float factor_of(const struct job *j, uint32_t row)
{
    const struct experts *x = j->x;
    if (x->gain)
        return j->shared->ops->rms_inverse(row_at(x->in, row), j->k, x->eps);
    return x->factors ? x->factors[row] : 1.0f;
}

/* The active expert of a panel. */
static uint32_t active_of(const struct experts_order *o, uint32_t panel)
{
    uint32_t low = 0, high = o->n_active;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        *(o->panel[middle] <= panel ? &low : &high) = middle;
    }
    return low;
}

/* Quantises the columns of one row for the member alone. */
static void quantise_alone(struct job *j)
{
    uint32_t n_super = matmul_n_super(j->k), n = j->one_input ? 1 : j->order->n_active;
    for (uint32_t a = 0; a < n; a++)
        quantise_panel(j, a, 0, 0, n_super);
    j->factors[0] = factor_of(j, 0);
}

/* Quantises all columns, dealt by super-blocks of panels; the rows' factors are dealt apart. */
static void quantise_dealt(struct job *j, struct team *team, uint32_t member)
{
    uint32_t n_super = matmul_n_super(j->k), n_panels = j->order->panel[j->order->n_active];
    uint32_t n_rows = j->x->n_rows;
    struct team_deal pieces = team_deal(team, member, n_panels * n_super + n_rows, 1);
    for (uint32_t i, last; team_next(&pieces, &i, &last);) {
        if (i < n_rows) {
            j->factors[i] = factor_of(j, i);
            continue;
        }
        uint32_t panel = (i - n_rows) / n_super, super = (i - n_rows) % n_super;
        uint32_t active = active_of(j->order, panel);
        quantise_panel(j, active, panel - j->order->panel[active], super, super + 1);
    }
}

/* Multiplying. */

/* Groups of a matrix that hold rows of one expert: the first and the last may hold rows of its neighbours
 * too. */
struct span {
    uint32_t first, last; /* groups */
    uint32_t skip;        /* rows of the neighbour at the front */
    uint32_t start, n;    /* the expert's own rows: the first, and how many */
};

/* Units [first, last) of an expert's groups. */
static struct span span_of(const struct job *j, uint32_t active, uint32_t first, uint32_t last)
{
    uint32_t begin = j->order->expert[active] * j->n, end = begin + j->n;
    struct span s = {.first = begin / MATMUL_ROWS + first * UNIT};
    s.last = matmul_min(begin / MATMUL_ROWS + last * UNIT, (end + MATMUL_ROWS - 1) / MATMUL_ROWS);
    s.first = matmul_min(s.first, s.last);
    uint32_t from = s.first * MATMUL_ROWS > begin ? s.first * MATMUL_ROWS : begin;
    s.skip = from - s.first * MATMUL_ROWS;
    s.start = from - begin;
    s.n = s.last > s.first ? matmul_min(s.last * MATMUL_ROWS, end) - from : 0;
    return s;
}

static uint32_t tile_stride(const struct span *s)
{
    return (s->last - s->first) * MATMUL_ROWS;
}

static const uint8_t *unit_at(const struct job *j, uint32_t matrix, uint32_t active, uint32_t unit)
{
    const struct matmul_matrix *m = j->x->matrices[matrix];
    return m->data + (size_t)span_of(j, active, unit, unit + 1).first * m->group_size;
}

static void multiply(const struct job *j, uint32_t matrix, uint32_t active, const struct span *s,
                     const uint8_t *next, float *tile)
{
    const struct matmul_matrix *m = j->x->matrices[matrix];
    struct matmul_input input = input_of(j, active);
    input.next = next;
    input.variant = tuning_variant(j->shared->tuning, m->kind, input.n_columns);
    kernels_of(j, active)->run(m, &input, s->first, s->last, tile, tile_stride(s), j->own->kernel);
}

static const float *bias_of(const struct job *j, uint32_t matrix, uint32_t active, uint32_t start)
{
    const float *bias = j->x->bias[matrix];
    return bias ? bias + (size_t)j->order->expert[active] * j->n + start : NULL;
}

static bool is_gated(const struct experts *x)
{
    return x->end == EXPERTS_SWIGLU || x->end == EXPERTS_SWIGLU_CLAMPED || x->end == EXPERTS_GEGLU;
}

static bool is_summed(const struct experts *x)
{
    return x->end == EXPERTS_SUM || x->end == EXPERTS_ADD;
}

/* Computes one expert's products for all of its columns and writes each pair's. */
static void finish_pairs(const struct job *j, uint32_t active, const struct span *s, uint32_t unit,
                         const uint8_t *next)
{
    const struct experts *x = j->x;
    const struct ops *ops = j->shared->ops;
    uint32_t stride = tile_stride(s), columns = n_columns(j, active);
    bool gated = is_gated(x);
    float *gate = j->own->tile, *up = gate + (size_t)stride * columns;
    const float *bias[2] = {bias_of(j, 0, active, s->start), bias_of(j, 1, active, s->start)};
    multiply(j, 0, active, s, gated ? unit_at(j, 1, active, unit) : next, gate);
    if (gated)
        multiply(j, 1, active, s, next, up);
    for (uint32_t c = 0; c < columns; c++) {
        uint32_t pair = pair_at(j, active, c), row = pair / x->n_used;
        uint32_t part = x->out_part ? x->out_part : j->n;
        float *out = row_at(x->out, row) + (size_t)(pair % x->n_used) * part + x->out_col + s->start;
        size_t at = (size_t)c * stride + s->skip;
        if (gated)
            (x->end == EXPERTS_SWIGLU ? ops->swiglu
             : x->end == EXPERTS_GEGLU
                 ? ops->geglu
                 : ops->swiglu_clamped)(out, gate + at, up + at, s->n, j->factors[row], bias[0], bias[1]);
        else
            ops->store(out, gate + at, s->n, j->factors[row], bias[0]);
    }
}

/* Computes units [first, last), counted over all active experts, in parts that the tile holds. */
static void do_pairs(const struct job *j, uint32_t first, uint32_t last)
{
    uint32_t n_tiles = is_gated(j->x) ? 2 : 1;
    while (first < last) {
        uint32_t active = first / j->n_units, unit = first % j->n_units;
        uint32_t fits = PRODUCT_TILE / (UNIT * MATMUL_ROWS * n_tiles * n_columns(j, active));
        uint32_t some = matmul_min(matmul_min(j->n_units - unit, last - first), fits);
        struct span s = span_of(j, active, unit, unit + some);
        first += some;
        const uint8_t *next =
            first < j->end ? unit_at(j, 0, first / j->n_units, first % j->n_units) : j->x->next;
        if (s.n)
            finish_pairs(j, active, &s, unit, next);
    }
}

/* Adds one expert's products to the sums of the rows that chose it. */
static void add_expert(const struct job *j, uint32_t active, const struct span *s, const uint8_t *next,
                       float *sums, float *y)
{
    const struct experts *x = j->x;
    const struct ops *ops = j->shared->ops;
    const float *bias = bias_of(j, 0, active, s->start);
    multiply(j, 0, active, s, next, y);
    for (uint32_t c = 0; c < n_columns(j, active); c++) {
        uint32_t pair = pair_at(j, active, c), row = pair / x->n_used;
        float *product = y + (size_t)c * s->n;
        if (bias || j->factors[row] != 1.0f)
            ops->store(product, product, s->n, j->factors[row], bias);
        ops->add_scaled(sums + (size_t)row * s->n, product, s->n,
                        row_at(x->choice, row)[x->n_used + pair % x->n_used]);
    }
}

/* Computes units [first, last) of the sums, all experts of them one after the other. An expert has whole
 * groups here: its rows are the residual stream's, multiples of 32. */
static void do_sums(const struct job *j, uint32_t first, uint32_t last)
{
    const struct experts *x = j->x;
    const struct experts_order *o = j->order;
    struct span s = span_of(j, 0, first, last);
    float *sums = j->own->tile, *y = sums + (size_t)x->n_rows * s.n;
    memset(sums, 0, (size_t)x->n_rows * s.n * sizeof *sums);
    for (uint32_t a = 0; a < o->n_active; a++) {
        const uint8_t *next = a + 1 < o->n_active ? unit_at(j, 0, a + 1, first)
                              : last < j->end     ? unit_at(j, 0, 0, last)
                                                  : x->next;
        s = span_of(j, a, first, last);
        add_expert(j, a, &s, next, sums, y);
    }
    for (uint32_t row = 0; row < x->n_rows; row++)
        (x->end == EXPERTS_SUM ? j->shared->ops->store : j->shared->ops->residual)(
            row_at(x->out, row) + s.start, sums + (size_t)row * s.n, s.n, 1.0f, NULL);
}

/* The units of sums that the tile holds for all rows. */
static uint32_t sums_that_fit(const struct job *j)
{
    return PRODUCT_TILE / (2 * UNIT * MATMUL_ROWS * j->x->n_rows);
}

/* Units per piece: several pieces for each member. */
static uint32_t chunk_of(const struct job *j, uint32_t n_units, uint32_t n_members)
{
    uint32_t even = n_units / (n_members * 8);
    uint32_t fits = is_summed(j->x) ? matmul_min(PIECE, sums_that_fit(j)) : PIECE;
    uint32_t chunk = matmul_min(fits, even);
    return chunk ? chunk : 1;
}

/* Units of a member's first piece. A piece of sums reads a run of weights of every expert, and a jump from
 * one to the next costs as much as 10 KB of a run (a Xeon: runs of 57 KB 26.8 GB/s, of 230 KB 28.7): half of
 * the member's part at once. The other half evens out members of which one is a third as fast as the others.
 * Pairs have whole experts, or half of one, in a piece. */
static uint32_t lead_of(const struct job *j, uint32_t n_units, uint32_t n_members)
{
    return is_summed(j->x) ? matmul_min(sums_that_fit(j), n_units / n_members / 2) : 0;
}

static void open_job(struct job *j, float *own_factor)
{
    const struct experts *x = j->x;
    bool alone = x->n_rows == 1;
    j->k = x->matrices[0]->k;
    j->n = x->matrices[0]->n / x->n_experts;
    uint32_t n_groups = j->n / MATMUL_ROWS + (j->n % MATMUL_ROWS ? 2 : 0); /* at most */
    j->n_units = (n_groups + UNIT - 1) / UNIT;
    j->one_input = alone && !x->own_input;
    j->input = alone ? j->own->input : j->shared->input;
    j->factors = alone ? own_factor : j->shared->factors;
    assert(!is_summed(x) || j->n % MATMUL_ROWS == 0);
}

void experts_run(const struct experts *x, const struct product_shared *shared,
                 const struct product_scratch *own, struct experts_order *order, struct team *team,
                 uint32_t member)
{
    if (x->n_rows == 0)
        return;
    float own_factor[1];
    struct job j = {.x = x, .shared = shared, .own = own, .order = order};
    open_job(&j, own_factor);
    sort_pairs(&j);
    if (x->n_rows == 1)
        quantise_alone(&j);
    else {
        quantise_dealt(&j, team, member);
        team_barrier(team, member);
    }
    uint32_t n_units = j.n_units * (is_summed(x) ? 1 : order->n_active);
    j.end = team_part(team, member + 1, n_units);
    uint32_t n_members = team_size(team);
    struct team_deal pieces = team_deal_lead(team, member, n_units, lead_of(&j, n_units, n_members),
                                             chunk_of(&j, n_units, n_members));
    for (uint32_t first, last; team_next(&pieces, &first, &last);)
        (is_summed(x) ? do_sums : do_pairs)(&j, first, last);
}
