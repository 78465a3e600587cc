/* The persistent decoder's plan (lib/cuda/plan.h, kernels/abi/schedule.h): for all models and devices, every
 * byte of a weight is fetched once a step, every output is computed once, each wait is for the arrivals
 * before it, and no wait lasts for ever. The decoder's own code walks the plans (decoder_walk.h). */
#include "support/decoder_walk.h"
#include "cuda/plan.h"
#include "abi/tile.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BLOCKS 200
#define LAYERS     2
#ifdef __SANITIZE_ADDRESS__ /* which makes it slow: of the large numbers of blocks only some */
#define SPARSE      12u
#define SHAPE_STEPS 3 /* walking a schedule: of the shapes, too */
#else
#define SPARSE      MAX_BLOCKS
#define SHAPE_STEPS 1
#endif

/* The models mkmodel knows, and odd ones. */
static const struct shape {
    uint32_t n_embd, n_ff, n_heads, n_kv_heads, head_dim, n_vocab;
} shapes[] = {
    {1024, 3072, 16, 8, 128, 151936},  {2048, 6144, 16, 8, 128, 151936},  {2560, 9728, 32, 8, 128, 151936},
    {4096, 12288, 32, 8, 128, 151936}, {2048, 8192, 32, 8, 64, 128256},   {4096, 14336, 32, 8, 128, 128256},
    {896, 4864, 14, 2, 64, 151936},    {3584, 18944, 28, 4, 128, 152064}, {256, 512, 4, 2, 64, 512},
    {256, 256, 4, 1, 64, 512},         {224, 608, 7, 1, 32, 384},         {32, 32, 1, 1, 32, 1},
    {4128, 11040, 3, 3, 96, 32001},    {288, 16, 9, 3, 32, 17},
};
#define N_SHAPES (sizeof shapes / sizeof *shapes)

static const struct device {
    const char *name;
    uint32_t shared_bytes;
} devices[] = {{"sm_86", 99 * 1024}, {"sm_80", 163 * 1024}, {"sm_90", 227 * 1024}};
#define N_DEVICES (sizeof devices / sizeof *devices)

struct model {
    struct program *program;
    struct decoder_matrix matrices[16];
    uint32_t n_matrices;
    uint64_t state;
    uint32_t type; /* of all matrices; TILE_NONE: mixed */
};

static uint32_t next(struct model *m)
{
    m->state = m->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(m->state >> 33);
}

static uint32_t add_matrix(struct model *m, uint32_t n, uint32_t k)
{
    uint32_t type = m->type ? m->type : TILE_Q4_K + next(m) % (TILE_F16 - TILE_Q4_K);
    m->matrices[m->n_matrices] = (struct decoder_matrix){.type = type,
                                                         .n = n,
                                                         .k = k,
                                                         .n_tiles = (n + 15) / 16,
                                                         .n_supers = (k + 255) / 256,
                                                         .super_bytes = tile_super_bytes(type)};
    return m->n_matrices++;
}

static struct program_op *add_op(struct model *m, uint32_t opcode)
{
    struct program_op *op = &m->program->ops[m->program->n_ops++];
    *op = (struct program_op){.opcode = (uint16_t)opcode, .scale = 1};
    return op;
}

static struct program_op *add_product(struct model *m, uint32_t epilogue, uint32_t first, uint32_t n)
{
    struct program_op *op = add_op(m, PROGRAM_MATMUL);
    op->epilogue = (uint16_t)epilogue;
    op->n_weights = (uint16_t)n;
    op->k = m->matrices[first].k;
    op->gain = PROGRAM_NONE;
    for (uint32_t i = 0, at = 0; i < n; i++) {
        op->weight[i] = first + i;
        op->bias[i] = PROGRAM_NONE;
        op->out_col[i] = epilogue == PROGRAM_STORE ? at : 0;
        at += m->matrices[first + i].n;
    }
    return op;
}

static void open_model(struct model *m, const struct shape *s, uint32_t type, uint64_t seed)
{
    *m = (struct model){.state = seed, .type = type};
    m->program = calloc(1, sizeof *m->program + 40 * sizeof *m->program->ops);
    cr_assert(m->program);
    uint32_t q = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim;
    uint32_t qkv = add_matrix(m, q, s->n_embd);
    add_matrix(m, kv, s->n_embd);
    add_matrix(m, kv, s->n_embd);
    uint32_t o = add_matrix(m, s->n_embd, q), gate = add_matrix(m, s->n_ff, s->n_embd);
    add_matrix(m, s->n_ff, s->n_embd);
    uint32_t down = add_matrix(m, s->n_embd, s->n_ff), head = add_matrix(m, s->n_vocab, s->n_embd);
    add_op(m, PROGRAM_EMBED)->weight[0] = head;
    for (uint32_t l = 0; l < LAYERS; l++) {
        add_product(m, PROGRAM_STORE, qkv, 3);
        add_op(m, PROGRAM_ATTEND);
        add_product(m, PROGRAM_RESIDUAL, o, 1);
        add_product(m, PROGRAM_SWIGLU, gate, 2);
        add_product(m, PROGRAM_RESIDUAL, down, 1);
    }
    add_product(m, PROGRAM_STORE, head, 1)->flags = PROGRAM_HEAD;
    add_op(m, PROGRAM_SAMPLE)->flags = PROGRAM_HEAD;
}

/* Mixtures of experts, and a dense expert beside them: a row's experts have rarely as many groups as there
 * are blocks. */
static const struct mixture_shape {
    uint32_t n_embd, n_ff, n_experts, n_used;
} mixtures[] = {{2048, 768, 128, 8}, {2880, 2880, 32, 4}, {256, 160, 8, 3}, {64, 16, 2, 1}, {512, 304, 5, 5}};
#define N_MIXTURES (sizeof mixtures / sizeof *mixtures)

static struct program_op *add_experts(struct model *m, const struct mixture_shape *s, uint32_t epilogue,
                                      uint32_t first, uint32_t n)
{
    struct program_op *op = add_product(m, epilogue, first, n);
    op->opcode = PROGRAM_EXPERTS;
    op->gate_col = s->n_experts;
    op->route.n_experts = (uint16_t)s->n_experts;
    op->route.n_used = (uint16_t)s->n_used;
    for (uint32_t i = 0; i < n; i++) {
        op->n[i] = m->matrices[first + i].n / s->n_experts;
        op->out_col[i] = 0;
    }
    return op;
}

static void open_mixture(struct model *m, const struct mixture_shape *s, uint32_t type, uint64_t seed)
{
    *m = (struct model){.state = seed, .type = type};
    m->program = calloc(1, sizeof *m->program + 40 * sizeof *m->program->ops);
    cr_assert(m->program);
    m->program->row_floats = s->n_experts + 2 * s->n_used;
    uint32_t router = add_matrix(m, s->n_experts, s->n_embd);
    uint32_t gate = add_matrix(m, s->n_experts * s->n_ff, s->n_embd);
    add_matrix(m, s->n_experts * s->n_ff, s->n_embd);
    uint32_t down = add_matrix(m, s->n_experts * s->n_embd, s->n_ff);
    uint32_t shared = add_matrix(m, s->n_ff, s->n_embd);
    add_matrix(m, s->n_ff, s->n_embd);
    uint32_t out = add_matrix(m, s->n_embd, s->n_ff), head = add_matrix(m, 512, s->n_embd);
    add_op(m, PROGRAM_EMBED)->weight[0] = head;
    for (uint32_t l = 0; l < LAYERS; l++) {
        add_product(m, PROGRAM_STORE, router, 1);
        add_op(m, PROGRAM_ROUTE)->route =
            (struct route_rule){.n_experts = (uint16_t)s->n_experts, .n_used = (uint16_t)s->n_used};
        add_experts(m, s, PROGRAM_SWIGLU, gate, 2);
        if (s->n_used > 1)
            add_product(m, PROGRAM_SWIGLU, shared, 2);
        add_experts(m, s, PROGRAM_RESIDUAL, down, 1);
        add_product(m, PROGRAM_RESIDUAL, out, 1);
    }
    add_product(m, PROGRAM_STORE, head, 1)->flags = PROGRAM_HEAD;
    add_op(m, PROGRAM_SAMPLE)->flags = PROGRAM_HEAD;
}

/* Attention over a compressed cache: matrices of heads, of GLM 4.7 Flash, DeepSeek V2 Lite and V3, and odd
 * ones. */
static const struct latent_shape {
    uint32_t n_embd, n_heads, rank, key, value;
} latents[] = {{2048, 20, 512, 192, 256},
               {2048, 16, 512, 128, 128},
               {7168, 128, 512, 128, 128},
               {64, 3, 32, 32, 16},
               {96, 1, 288, 544, 48}};
#define N_LATENTS (sizeof latents / sizeof *latents)

static void add_heads(struct model *m, uint32_t n_heads, uint32_t matrix)
{
    struct program_op *op = add_product(m, PROGRAM_STORE, matrix, 1);
    op->opcode = PROGRAM_HEADS;
    op->n[0] = m->matrices[matrix].n / n_heads;
    op->n[1] = n_heads;
}

/* As a compressed cache has it: HEADS reads H2 and writes QKV, and JOIN writes behind that what it reads of
 * H. */
static void add_join(struct model *m)
{
    struct program_op *heads = &m->program->ops[m->program->n_ops - 1], *join = add_op(m, PROGRAM_JOIN);
    heads->in = PROGRAM_H2;
    heads->out = join->out = PROGRAM_QKV;
    join->in = PROGRAM_H;
    join->out_col[2] = heads->n[0] * heads->n[1];
}

static void open_latent(struct model *m, const struct latent_shape *s, uint32_t type, uint64_t seed)
{
    *m = (struct model){.state = seed, .type = type};
    m->program = calloc(1, sizeof *m->program + 40 * sizeof *m->program->ops);
    cr_assert(m->program);
    uint32_t q = add_matrix(m, s->n_heads * s->key, s->n_embd);
    uint32_t absorb = add_matrix(m, s->n_heads * s->rank, s->key);
    uint32_t values = add_matrix(m, s->n_heads * s->value, s->rank);
    uint32_t o = add_matrix(m, s->n_embd, s->n_heads * s->value), head = add_matrix(m, 512, s->n_embd);
    add_op(m, PROGRAM_EMBED)->weight[0] = head;
    for (uint32_t l = 0; l < LAYERS; l++) {
        add_product(m, PROGRAM_STORE, q, 1);
        add_heads(m, s->n_heads, absorb);
        add_join(m);
        add_op(m, PROGRAM_ATTEND);
        add_heads(m, s->n_heads, values);
        add_product(m, PROGRAM_RESIDUAL, o, 1);
    }
    add_product(m, PROGRAM_STORE, head, 1)->flags = PROGRAM_HEAD;
    add_op(m, PROGRAM_SAMPLE)->flags = PROGRAM_HEAD;
}

static void open_plan(struct plan *p, const struct model *m, uint32_t n_blocks, uint32_t shared_bytes)
{
    struct error err = {0};
    const struct plan_device device = {n_blocks, DECODER_MAX_CREW, shared_bytes};
    int rc = plan_open(p, m->program, m->matrices, &device, &err);
    cr_assert_eq(rc, 0, "%s", err.text);
}

/* --- who has how much --- */

/* The number of groups of each block is added to `load`. */
static void count_load(const struct schedule_op *s, uint32_t n_blocks, uint32_t *load)
{
    for (uint32_t block = 0; block < n_blocks; block++)
        for (uint32_t g = schedule_first(s, block, n_blocks); g < s->n_groups; g += n_blocks)
            load[block]++;
}

/* So many groups more than the least loaded block has the most loaded one. */
static uint32_t imbalance(const uint32_t *load, uint32_t n_blocks)
{
    uint32_t least = load[0], most = load[0];
    for (uint32_t b = 1; b < n_blocks; b++) {
        least = load[b] < least ? load[b] : least;
        most = load[b] > most ? load[b] : most;
    }
    return most - least;
}

Test(cuda_schedule, after_every_op_the_blocks_have_had_as_many_groups_but_for_one)
{
    for (uint32_t i = 0; i < N_SHAPES; i++) {
        struct model m;
        open_model(&m, &shapes[i], TILE_NONE, i);
        for (uint32_t n_blocks = 1; n_blocks <= MAX_BLOCKS; n_blocks++) {
            struct plan p;
            uint32_t load[MAX_BLOCKS] = {0};
            open_plan(&p, &m, n_blocks, devices[n_blocks % N_DEVICES].shared_bytes);
            for (uint32_t o = 0; o < m.program->n_ops; o++) {
                cr_assert_eq(p.ops[o].n_groups != 0, m.program->ops[o].opcode == PROGRAM_MATMUL);
                count_load(&p.ops[o], n_blocks, load);
                cr_assert_leq(imbalance(load, n_blocks), 1, "after op %u", o);
            }
            plan_close(&p);
        }
        free(m.program);
    }
}

static uint32_t count_groups(const struct model *m, const struct program_op *op, bool paired, uint32_t tiles)
{
    uint32_t n = 0;
    for (uint32_t w = 0; w < (paired ? 1u : op->n_weights); w++)
        n += (m->matrices[op->weight[w]].n_tiles + tiles - 1) / tiles;
    return n;
}

Test(cuda_schedule, a_group_has_the_fewest_tiles_that_make_the_fewest_rounds)
{
    for (uint32_t i = 0; i < N_SHAPES; i++) {
        struct model m;
        struct plan p;
        open_model(&m, &shapes[i], TILE_Q4_K, i);
        open_plan(&p, &m, 132, devices[2].shared_bytes);
        for (uint32_t o = 0; o < m.program->n_ops; o++) {
            const struct program_op *op = &m.program->ops[o];
            const struct schedule_op *s = &p.ops[o];
            uint32_t n_supers = s->n_groups ? m.matrices[op->weight[0]].n_supers : 0;
            for (uint32_t tiles = 1; s->n_groups && tiles * n_supers <= s->part[0].stage_supers; tiles++) {
                uint32_t rounds = (count_groups(&m, op, s->paired, tiles) + 131) / 132;
                uint32_t chosen = (s->n_groups + 131) / 132;
                cr_assert(tiles < s->group_tiles ? rounds > chosen : rounds >= chosen);
            }
        }
        plan_close(&p);
        free(m.program);
    }
}

/* --- shared memory --- */

/* Choices are the last of what lies before the counts; only experts have some. */
static void check_fold(const struct plan *p, const struct model *m)
{
    for (uint32_t o = 0; o < m->program->n_ops; o++)
        for (uint32_t w = 0; w < 3; w++)
            cr_assert_geq(p->shared.fold_bytes, product_fold_bytes(p->ops[o].part[w].stage_supers));
}

Test(cuda_schedule, a_mixture_has_room_for_choices_and_values)
{
    for (uint32_t i = 0; i < N_MIXTURES; i++) {
        struct model m;
        struct plan p;
        open_mixture(&m, &mixtures[i], TILE_Q4_K, i);
        open_plan(&p, &m, 132, devices[i % N_DEVICES].shared_bytes);
        cr_assert_leq(p.shared.n_stages * 16 + DECODER_GATES_BYTES, p.shared.uses);
        check_fold(&p, &m);
        plan_close(&p);
        free(m.program);
    }
}

Test(cuda_schedule, parts_of_shared_memory_do_not_overlap_and_the_ring_is_deep_enough)
{
    for (uint32_t i = 0; i < N_SHAPES; i++)
        for (uint32_t d = 0; d < N_DEVICES; d++) {
            struct model m;
            struct plan p;
            open_model(&m, &shapes[i], i % 2 ? TILE_Q4_K : TILE_NONE, i);
            open_plan(&p, &m, 132, devices[d].shared_bytes);
            const struct decoder_shared *s = &p.shared;
            const uint32_t gates = DECODER_GATES_BYTES - DECODER_CHOICE_BYTES; /* there are no experts */
            const uint32_t parts[][2] = {{s->mbarriers, s->n_stages * 16 + gates},
                                         {s->uses, p.n_counters * 4},
                                         {s->fold, s->fold_bytes},
                                         {s->work, DECODER_KEPT_BYTES + s->work_bytes},
                                         {s->stages, s->n_stages * s->stage_bytes}};
            for (uint32_t a = 0; a < 5; a++) {
                cr_assert_eq(parts[a][0] % 128, 0);
                cr_assert_leq(parts[a][0] + parts[a][1], s->total);
                for (uint32_t b = 0; b < a; b++)
                    cr_assert(parts[a][0] >= parts[b][0] + parts[b][1] ||
                              parts[b][0] >= parts[a][0] + parts[a][1]);
            }
            cr_assert_leq(s->total, devices[d].shared_bytes);
            cr_assert_geq(s->n_stages, d == 2 ? 4 : 2, "shape %u on %s: %u stages", i, devices[d].name,
                          s->n_stages);
            check_fold(&p, &m);
            plan_close(&p);
            free(m.program);
        }
}

Test(cuda_schedule, a_model_that_does_not_fit_is_refused_with_both_numbers)
{
    struct model m;
    struct plan p;
    struct error err = {0};
    const struct plan_device device = {4, 64, 48 * 1024};
    open_model(&m, &shapes[0], TILE_F32, 0);
    cr_assert_eq(plan_open(&p, m.program, m.matrices, &device, &err), -ENOTSUP);
    cr_assert(strstr(err.text, "16384") && strstr(err.text, "49152"), "%s", err.text);
    free(m.program);
}

Test(cuda_schedule, a_program_with_more_ops_than_a_word_can_count_is_refused)
{
    struct model m;
    struct plan p;
    struct error err = {0};
    const struct plan_device device = {4, 64, 227 * 1024};
    open_model(&m, &shapes[0], TILE_NONE, 0);
    m.program->n_ops = DECODER_MAX_OPS + 1;
    cr_assert_eq(plan_open(&p, m.program, m.matrices, &device, &err), -ENOTSUP);
    cr_assert(strstr(err.text, "4097") && strstr(err.text, "4096"), "%s", err.text);
    free(m.program);
}

/* --- the decoder's own walk of it --- */

/* Wide and narrow, with logits and without, none at all. */
static const struct walk_step steps[] = {{9, 2, false}, {3, 0, true}, {0, 0, false}, {1, 1, true}};
#define N_STEPS (sizeof steps / sizeof *steps)

/* Checks the copies of every product of a plan. */
static void check_stages(const struct model *m, const struct plan *p)
{
    for (uint32_t i = 0; i < p->n_ops; i++)
        for (uint32_t j = 0; p->ops[i].n_groups && j < m->program->ops[i].n_weights; j++) {
            const struct decoder_matrix *w = &m->matrices[m->program->ops[i].weight[j]];
            uint32_t stage = p->ops[i].part[j].stage_supers, tiles = p->ops[i].group_tiles;
            cr_assert(stage > 0 && stage <= SCHEDULE_MAX_SUPERS && tiles > 0);
            cr_assert_leq(stage * w->super_bytes, p->shared.stage_bytes);
            cr_assert_eq(w->super_bytes % 16, 0, "a copy is a multiple of 16 bytes");
            cr_assert(tiles == 1 || tiles * w->n_supers <= stage, "several tiles, and not in one stage");
        }
}

enum walk_kind { AS_PLANNED, SHALLOW, FINISHING };

static void walk(struct model *m, uint32_t n_blocks, const struct device *d, enum walk_kind kind)
{
    struct plan p;
    open_plan(&p, m, n_blocks, d->shared_bytes);
    check_stages(m, &p);
    plan_flow(m->program, n_blocks);
    if (kind == SHALLOW)
        p.shared.n_stages = 1;
    fleet_open(m->program, &p, m->matrices, m->n_matrices, n_blocks);
    const char *wrong = kind == FINISHING ? fleet_finish() : fleet_run(steps, N_STEPS);
    cr_assert(!wrong[0], "%s, %u blocks: %s", d->name, n_blocks, wrong);
    fleet_close();
    plan_close(&p);
}

/* As it is planned, and with a ring of one stage, which is the hardest: a walk that ends with that one ends
 * with a deeper one. */
Test(cuda_schedule,
     on_any_number_of_blocks_all_is_fetched_and_finished_once_and_no_thread_waits_too_long_or_short,
     .timeout = 1200)
{
    for (uint32_t i = 0; i < N_SHAPES; i += SHAPE_STEPS) {
        struct model m;
        open_model(&m, &shapes[i], TILE_NONE, i);
        for (uint32_t n_blocks = 1; n_blocks <= MAX_BLOCKS; n_blocks += 1 + n_blocks / SPARSE)
            walk(&m, n_blocks, &devices[n_blocks % N_DEVICES], n_blocks % 2 ? SHALLOW : AS_PLANNED);
        free(m.program);
    }
}

Test(cuda_schedule, so_it_is_with_every_tile_type, .timeout = 1200)
{
    for (uint32_t type = TILE_Q4_K; type <= TILE_F32; type++)
        for (uint32_t i = 0; i < N_SHAPES; i += SHAPE_STEPS) {
            struct model m;
            open_model(&m, &shapes[i], type, i);
            walk(&m, 132, &devices[2], AS_PLANNED);
            walk(&m, 3, &devices[0], SHALLOW);
            free(m.program);
        }
}

Test(cuda_schedule, every_row_of_a_matrix_gets_the_sum_of_its_super_blocks, .timeout = 1200)
{
    for (uint32_t i = 0; i < N_SHAPES; i += SHAPE_STEPS) {
        struct model m;
        open_model(&m, &shapes[i], TILE_NONE, i);
        walk(&m, 5, &devices[i % N_DEVICES], FINISHING);
        walk(&m, 132, &devices[2], FINISHING);
        free(m.program);
    }
}

Test(cuda_schedule, of_a_mixture_every_chosen_expert_is_fetched_and_finished_once_for_each_row,
     .timeout = 1200)
{
    for (uint32_t i = 0; i < N_MIXTURES; i += SHAPE_STEPS) {
        struct model m;
        open_mixture(&m, &mixtures[i], TILE_NONE, i);
        for (uint32_t n_blocks = 1; n_blocks <= MAX_BLOCKS; n_blocks += 1 + n_blocks / 3)
            walk(&m, n_blocks, &devices[n_blocks % N_DEVICES], n_blocks % 2 ? SHALLOW : AS_PLANNED);
        walk(&m, 5, &devices[i % N_DEVICES], FINISHING);
        plan_choices(m.program); /* from here on each block chooses for itself where rows are few */
        for (uint32_t n_blocks = 1; n_blocks <= MAX_BLOCKS; n_blocks += 1 + n_blocks / 2)
            walk(&m, n_blocks, &devices[n_blocks % N_DEVICES], n_blocks % 2 ? AS_PLANNED : SHALLOW);
        walk(&m, 132, &devices[2], FINISHING);
        free(m.program);
    }
}

/* An op between them would be one more that a block does before it chooses. */
Test(cuda_schedule, blocks_choose_for_themselves_where_the_experts_follow_their_route_at_once)
{
    struct model m;
    open_mixture(&m, &mixtures[0], TILE_NONE, 0);
    struct program_op *ops = m.program->ops, *second = NULL;
    for (uint32_t i = 0; i < m.program->n_ops; i++)
        second = ops[i].opcode == PROGRAM_ROUTE ? &ops[i] : second; /* of the last layer */
    const struct program_op moved = second[0];
    second[0] = second[1];
    second[1] = moved; /* now an op is missing between this one and the products that follow it */
    plan_choices(m.program);
    for (uint32_t i = 0; i < m.program->n_ops; i++) {
        bool of_mixture = ops[i].opcode == PROGRAM_ROUTE || ops[i].opcode == PROGRAM_EXPERTS;
        bool marked = ops[i].flags & PROGRAM_CHOOSES;
        cr_assert_eq(marked, of_mixture && &ops[i] < second, "op %u", i);
    }
    free(m.program);
}

/* Fewer than 32 of 128 experts' rows are taken one by one; eight choices of eight have room. */
Test(cuda_schedule, a_step_of_up_to_eight_rows_has_room_for_its_own_choices_of_eight)
{
    cr_assert(mixture_is_own(PROGRAM_CHOOSES, 1, 8, 128));
    cr_assert(mixture_is_own(PROGRAM_CHOOSES, 8, 8, 128));
    cr_assert_not(mixture_is_own(PROGRAM_CHOOSES, 9, 8, 128));
    cr_assert_not(mixture_is_own(0, 1, 8, 128));
    cr_assert_not(mixture_is_own(PROGRAM_CHOOSES, 2, 8, 8), "they are gathered");
}

/* Of one expert a row there is room for 64 rows' choices, but a block has 14 compute warps. */
Test(cuda_schedule, a_block_chooses_for_itself_only_what_its_warps_do_in_one_turn)
{
    cr_assert(mixture_is_own(PROGRAM_CHOOSES, 14, 1, 128));
    cr_assert_not(mixture_is_own(PROGRAM_CHOOSES, 15, 1, 128));
    cr_assert(mixture_is_own(PROGRAM_CHOOSES, 14, 4, 128));
    cr_assert_not(mixture_is_own(PROGRAM_CHOOSES, 15, 4, 128));
}

static bool is_beside(struct program *program, const struct program_op *join)
{
    plan_joins(program);
    return join->flags & PROGRAM_BESIDE;
}

Test(cuda_schedule, a_join_runs_beside_heads_unless_one_needs_the_other)
{
    struct model m;
    open_latent(&m, &latents[0], TILE_NONE, 0);
    struct program_op *join = m.program->ops;
    while (join->opcode != PROGRAM_JOIN)
        join++;
    const struct program_op was = *join, heads = join[-1];
    join->in = heads.out;
    cr_assert_not(is_beside(m.program, join), "it reads their results");
    *join = was;
    join->out = heads.in;
    cr_assert_not(is_beside(m.program, join), "it writes what they read");
    *join = was;
    join->out_col[2]--;
    cr_assert_not(is_beside(m.program, join), "both write a column");
    *join = was;
    join[-1].opcode = PROGRAM_MATMUL;
    cr_assert_not(is_beside(m.program, join), "another op is before it");
    join[-1] = heads;
    cr_assert(is_beside(m.program, join));
    free(m.program);
}

Test(cuda_schedule, every_heads_matrix_is_fetched_and_finished_once, .timeout = 1200)
{
    for (uint32_t i = 0; i < N_LATENTS; i++) {
        struct model m;
        open_latent(&m, &latents[i], TILE_NONE, i);
        if (i % 2)
            plan_joins(m.program);
        for (uint32_t n_blocks = 1; n_blocks <= MAX_BLOCKS; n_blocks += 1 + n_blocks / 3)
            walk(&m, n_blocks, &devices[n_blocks % N_DEVICES], n_blocks % 2 ? SHALLOW : AS_PLANNED);
        walk(&m, 5, &devices[i % N_DEVICES], FINISHING);
        walk(&m, 132, &devices[2], FINISHING);
        free(m.program);
    }
}

/* GLM 4.7 Flash's 20 heads have 32 tiles of rank 512 each, and 16 of 256 values: a block of 132 has 4.8 of
 * the ones and 2.4 of the others. A group more would be a product more. */
Test(cuda_schedule, of_the_matrices_of_heads_a_block_has_one_group_if_there_are_blocks_enough)
{
    struct model m;
    struct plan p;
    open_latent(&m, &latents[0], TILE_Q8_0, 0);
    open_plan(&p, &m, 132, devices[2].shared_bytes);
    for (uint32_t o = 0; o < m.program->n_ops; o++) {
        const struct program_op *op = &m.program->ops[o];
        if (op->opcode != PROGRAM_HEADS)
            continue;
        cr_assert_eq(p.ops[o].group_tiles, op->n[0] == 512 ? 6 : 3);
        cr_assert_leq(p.ops[o].n_groups * op->n[1], 132u);
    }
    plan_close(&p);
    free(m.program);
}

/* A row's experts are one round of groups after the other, as those of one product would be. */
Test(cuda_schedule, the_experts_of_a_row_load_the_blocks_alike)
{
    for (uint32_t i = 0; i < N_MIXTURES; i++) {
        struct model m;
        open_mixture(&m, &mixtures[i], TILE_NONE, i);
        for (uint32_t n_blocks = 1; n_blocks <= MAX_BLOCKS; n_blocks++) {
            struct plan p;
            uint32_t load[MAX_BLOCKS] = {0};
            open_plan(&p, &m, n_blocks, devices[n_blocks % N_DEVICES].shared_bytes);
            for (uint32_t o = 0; o < m.program->n_ops; o++) {
                const struct program_op *op = &m.program->ops[o];
                struct schedule_op s = p.ops[o];
                for (uint32_t u = 0; u < (op->opcode == PROGRAM_EXPERTS ? op->route.n_used : 1u); u++) {
                    count_load(&s, n_blocks, load);
                    s.first_block = (s.first_block + s.n_groups) % n_blocks;
                }
                cr_assert_leq(imbalance(load, n_blocks), 1, "after op %u", o);
            }
            plan_close(&p);
        }
        free(m.program);
    }
}

/* Qwen3-30B-A3B's experts have 48 tiles of gate and up: eight of them in groups of one tile are three rounds
 * of 132 blocks; in groups of two they would be two, but four tiles for the blocks that have two groups. */
Test(cuda_schedule, a_round_more_is_taken_where_it_leaves_fewer_tiles_to_the_busiest_block)
{
    struct model m;
    struct plan p;
    open_mixture(&m, &mixtures[0], TILE_Q4_K, 0);
    open_plan(&p, &m, 132, devices[2].shared_bytes);
    for (uint32_t o = 0; o < m.program->n_ops; o++)
        if (m.program->ops[o].opcode == PROGRAM_EXPERTS && program_is_gated(m.program->ops[o].epilogue))
            cr_assert_eq(p.ops[o].group_tiles, 1);
    plan_close(&p);
    free(m.program);
}

Test(cuda_schedule, experts_whose_rows_are_no_whole_tiles_are_refused)
{
    static const struct mixture_shape odd = {64, 40, 4, 2};
    const struct plan_device device = {4, 64, 227 * 1024};
    struct model m;
    struct plan p;
    struct error err = {0};
    open_mixture(&m, &odd, TILE_NONE, 0);
    cr_assert_eq(plan_open(&p, m.program, m.matrices, &device, &err), -ENOTSUP);
    cr_assert(strstr(err.text, "experts of 40 rows; cuda supports multiples of 16"), "%s", err.text);
    free(m.program);
}

Test(cuda_schedule, so_are_matrices_of_heads)
{
    static const struct latent_shape odd = {64, 4, 32, 32, 24};
    const struct plan_device device = {4, 64, 227 * 1024};
    struct model m;
    struct plan p;
    struct error err = {0};
    open_latent(&m, &odd, TILE_NONE, 0);
    cr_assert_eq(plan_open(&p, m.program, m.matrices, &device, &err), -ENOTSUP);
    cr_assert(strstr(err.text, "matrices of heads of 24 rows; cuda supports multiples of 16"), "%s",
              err.text);
    free(m.program);
}

Test(cuda_schedule, a_product_that_multiplies_what_is_there_is_dealt_as_one_that_adds_to_it)
{
    static const uint16_t epilogues[] = {PROGRAM_RESIDUAL, PROGRAM_TIMES_SILU, PROGRAM_TIMES_SIGMOID};
    struct model m;
    struct plan p[3];
    open_model(&m, &shapes[0], TILE_NONE, 0);
    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t o = 0; o < m.program->n_ops; o++)
            if (i && m.program->ops[o].opcode == PROGRAM_MATMUL &&
                m.program->ops[o].epilogue == epilogues[i - 1])
                m.program->ops[o].epilogue = epilogues[i];
        open_plan(&p[i], &m, 132, devices[2].shared_bytes);
        cr_assert_eq(memcmp(p[i].ops, p[0].ops, p[0].n_ops * sizeof *p[0].ops), 0);
    }
    for (uint32_t i = 0; i < 3; i++)
        plan_close(&p[i]);
    free(m.program);
}

Test(cuda_schedule, an_attention_takes_up_the_plan_of_the_one_before_if_both_are_of_one_kind)
{
    static const struct {
        uint32_t kind, flags; /* of the second attention; the first has none */
        bool planned;
    } cases[] = {{0, 0, true}, {1, 0, false}, {0, PROGRAM_GENERAL, false}};
    struct program_op *attends[LAYERS];
    struct model m;
    open_model(&m, &shapes[0], TILE_NONE, 0);
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t n = 0;
        for (uint32_t j = 0; j < m.program->n_ops; j++)
            if (m.program->ops[j].opcode == PROGRAM_ATTEND)
                attends[n++] = &m.program->ops[j];
        cr_assert_eq(n, LAYERS);
        attends[0]->kind = attends[0]->flags = 0;
        attends[1]->kind = cases[i].kind;
        attends[1]->flags = (uint16_t)cases[i].flags;
        plan_attention(m.program);
        cr_assert_not(attends[0]->flags & PROGRAM_PLANNED, "no attention comes before the first");
        cr_assert_eq((attends[1]->flags & PROGRAM_PLANNED) != 0, cases[i].planned);
    }
    free(m.program);
}
