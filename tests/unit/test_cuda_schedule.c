/* The persistent decoder's plan (lib/cuda/plan.h, kernels/schedule.h): whatever the model and the device,
 * every byte of a weight is fetched once a step, every output is computed once, and nobody waits for ever. */
#include "cuda/plan.h"
#include "tile.h"

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
    struct decoder_matrix matrices[8];
    uint32_t n_matrices;
    struct kv_layout kv;
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
    *op = (struct program_op){.opcode = (uint16_t)opcode};
    return op;
}

static struct program_op *add_product(struct model *m, uint32_t epilogue, uint32_t first, uint32_t n)
{
    struct program_op *op = add_op(m, PROGRAM_MATMUL);
    op->epilogue = (uint16_t)epilogue;
    op->n_weights = (uint16_t)n;
    for (uint32_t i = 0; i < n; i++)
        op->weight[i] = first + i;
    return op;
}

static void open_model(struct model *m, const struct shape *s, uint32_t type, uint64_t seed)
{
    *m = (struct model){.kv = {LAYERS, s->n_kv_heads, s->head_dim, KV_F16}, .state = seed, .type = type};
    m->program = calloc(1, sizeof *m->program + 32 * sizeof *m->program->ops);
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

static void open_plan(struct plan *p, const struct model *m, uint32_t n_blocks, uint32_t shared_bytes)
{
    struct error err = {0};
    const struct plan_device device = {n_blocks, DECODER_MAX_CREW, shared_bytes};
    int rc = plan_open(p, m->program, m->matrices, &m->kv, &device, &err);
    cr_assert_eq(rc, 0, "%s", err.text);
}

/* --- who fetches and computes what --- */

static uint32_t n_parts(const struct schedule_op *s, const struct program_op *op)
{
    return s->paired ? 1 : op->n_weights;
}

/* Marks the tiles of a run, which is cut into stages as the producer cuts it. */
static void mark_run(const struct model *m, const struct plan *p, const struct program_op *op,
                     const struct schedule_op *s, const struct schedule_run *run, uint8_t *seen[3])
{
    const struct decoder_matrix *w = &m->matrices[op->weight[run->part]];
    uint32_t stage = s->part[run->part].stage_supers, n = run->n_tiles * w->n_supers;
    cr_assert_leq(stage, SCHEDULE_MAX_SUPERS);
    cr_assert_gt(stage, 0);
    cr_assert_leq(stage * w->super_bytes, p->shared.stage_bytes);
    cr_assert_eq(stage * w->super_bytes % 16, 0, "a copy is a multiple of 16 bytes");
    cr_assert_gt(run->n_tiles, 0);
    cr_assert(run->n_tiles == 1 || n <= stage, "several tiles, and not in one stage");
    cr_assert_leq(run->first_tile + run->n_tiles, w->n_tiles);
    for (uint32_t i = 0; i < run->n_tiles; i++)
        seen[run->part][run->first_tile + i]++;
}

/* The number of groups of each block is added to `load`. */
static void check_op(const struct model *m, const struct plan *p, uint32_t index, uint32_t n_blocks,
                     uint32_t *load)
{
    const struct program_op *op = &m->program->ops[index];
    const struct schedule_op *s = &p->ops[index];
    uint8_t *seen[3] = {0};
    uint32_t n_tiles[3] = {0};
    for (uint32_t i = 0; i < op->n_weights; i++) {
        n_tiles[i] = m->matrices[op->weight[i]].n_tiles;
        seen[i] = calloc(n_tiles[i], 1);
        cr_assert(seen[i]);
    }
    for (uint32_t block = 0; block < n_blocks; block++)
        for (uint32_t g = schedule_first(s, block, n_blocks); g < s->n_groups; g += n_blocks, load[block]++)
            for (uint32_t r = 0; r < schedule_n_runs(s); r++) {
                struct schedule_run run = schedule_run_of(s, g, r, n_tiles, n_parts(s, op));
                mark_run(m, p, op, s, &run, seen);
            }
    for (uint32_t i = 0; i < op->n_weights; i++) {
        for (uint32_t t = 0; t < n_tiles[i]; t++)
            cr_assert_eq(seen[i][t], 1, "op %u matrix %u tile %u is computed %u times", index, i, t,
                         seen[i][t]);
        free(seen[i]);
    }
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

static void check_plan(const struct model *m, uint32_t n_blocks, uint32_t shared_bytes)
{
    struct plan p;
    uint32_t load[MAX_BLOCKS] = {0};
    open_plan(&p, m, n_blocks, shared_bytes);
    for (uint32_t i = 0; i < m->program->n_ops; i++) {
        cr_assert_eq(p.ops[i].n_groups != 0, m->program->ops[i].opcode == PROGRAM_MATMUL);
        if (p.ops[i].n_groups)
            check_op(m, &p, i, n_blocks, load);
        cr_assert_leq(imbalance(load, n_blocks), 1, "after op %u", i);
    }
    plan_close(&p);
}

Test(cuda_schedule, every_tile_is_fetched_and_computed_once_and_the_blocks_share_evenly)
{
    for (uint32_t i = 0; i < N_SHAPES; i++) {
        struct model m;
        open_model(&m, &shapes[i], TILE_NONE, i);
        for (uint32_t n_blocks = 1; n_blocks <= MAX_BLOCKS; n_blocks += 1 + n_blocks / SPARSE)
            check_plan(&m, n_blocks, devices[n_blocks % N_DEVICES].shared_bytes);
        free(m.program);
    }
}

Test(cuda_schedule, every_tile_type_has_a_plan)
{
    for (uint32_t type = TILE_Q4_K; type <= TILE_F32; type++)
        for (uint32_t i = 0; i < N_SHAPES; i++) {
            struct model m;
            open_model(&m, &shapes[i], type, i);
            check_plan(&m, 132, devices[2].shared_bytes);
            check_plan(&m, 3, devices[0].shared_bytes);
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

Test(cuda_schedule, parts_of_shared_memory_do_not_overlap_and_the_ring_is_deep_enough)
{
    for (uint32_t i = 0; i < N_SHAPES; i++)
        for (uint32_t d = 0; d < N_DEVICES; d++) {
            struct model m;
            struct plan p;
            open_model(&m, &shapes[i], i % 2 ? TILE_Q4_K : TILE_NONE, i);
            open_plan(&p, &m, 132, devices[d].shared_bytes);
            const struct decoder_shared *s = &p.shared;
            const uint32_t parts[][2] = {{s->mbarriers, s->n_stages * 16 + DECODER_GATE_BYTES},
                                         {s->uses, p.n_counters * 4},
                                         {s->fold, s->fold_bytes},
                                         {s->work, s->work_bytes},
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
            cr_assert_geq(s->fold_bytes, PRODUCT_FOLD_BYTES);
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
    cr_assert_eq(plan_open(&p, m.program, m.matrices, &m.kv, &device, &err), -ENOTSUP);
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
    cr_assert_eq(plan_open(&p, m.program, m.matrices, &m.kv, &device, &err), -ENOTSUP);
    cr_assert(strstr(err.text, "4097") && strstr(err.text, "4096"), "%s", err.text);
    free(m.program);
}

/* --- flow --- */

Test(cuda_schedule, each_op_waits_for_as_many_arrivals_as_the_one_before_makes)
{
    struct model m;
    open_model(&m, &shapes[0], TILE_NONE, 0);
    plan_flow(m.program, 77);
    for (uint32_t i = 0; i < m.program->n_ops; i++) {
        const struct program_op *op = &m.program->ops[i];
        cr_assert_eq(op->signal_units, 77);
        cr_assert_lt(op->signal, m.program->n_counters);
        if (i == 0) {
            cr_assert_eq(op->wait, PROGRAM_NONE);
            continue;
        }
        cr_assert_eq(op->wait, m.program->ops[i - 1].signal);
        cr_assert_eq(op->wait_arrivals, m.program->ops[i - 1].signal_units);
    }
    free(m.program);
}

/* A block's two walkers, as kernels/resident.h has them: the crew from step to step, the producer round and
 * round ahead of it. Each goes on until it has to wait. */
struct walker {
    uint32_t step, op, at; /* stages taken or filled of the op */
    uint32_t n;            /* stages so far */
};

struct block {
    struct walker crew, producer;
    uint32_t n_gates_put, n_gates_got;
    bool gated, signalled;
};

struct simulation {
    const struct model *m;
    const struct plan *p;
    const bool *has_rows, *has_logits; /* of the steps */
    uint32_t n_steps, n_blocks;
    struct block blocks[MAX_BLOCKS];
    uint32_t *arrivals; /* by step and op */
};

/* Stages of an op that are a block's. */
static uint32_t stages_of(const struct simulation *sim, uint32_t op, uint32_t block)
{
    const struct schedule_op *s = &sim->p->ops[op];
    const struct program_op *o = &sim->m->program->ops[op];
    uint32_t n = 0, n_tiles[3] = {0};
    for (uint32_t i = 0; i < o->n_weights; i++)
        n_tiles[i] = sim->m->matrices[o->weight[i]].n_tiles;
    for (uint32_t g = schedule_first(s, block, sim->n_blocks); g < s->n_groups; g += sim->n_blocks)
        for (uint32_t r = 0; r < schedule_n_runs(s); r++) {
            struct schedule_run run = schedule_run_of(s, g, r, n_tiles, n_parts(s, o));
            uint32_t stage = s->part[run.part].stage_supers;
            n += (run.n_tiles * sim->m->matrices[o->weight[run.part]].n_supers + stage - 1) / stage;
        }
    return n;
}

static bool is_head(const struct simulation *sim, uint32_t op)
{
    return sim->m->program->ops[op].flags & PROGRAM_HEAD;
}

/* Whether a step runs an op. */
static bool runs(const struct simulation *sim, uint32_t step, uint32_t op)
{
    return sim->has_rows[step] && (!is_head(sim, op) || sim->has_logits[step]);
}

/* The arrivals at op `op` of a step, or of its last op. */
static uint32_t *arrivals(struct simulation *sim, uint32_t step, uint32_t op)
{
    return &sim->arrivals[step * sim->m->program->n_ops + op];
}

/* True: it got somewhere. */
static bool move_crew(struct simulation *sim, struct block *b, uint32_t block)
{
    struct walker *w = &b->crew;
    uint32_t n_ops = sim->m->program->n_ops;
    if (w->step == sim->n_steps)
        return false;
    if (w->op == 0 && !b->signalled) { /* the step begins once the one before has ended in all blocks */
        if (w->step && *arrivals(sim, w->step - 1, n_ops - 1) != sim->n_blocks)
            return false;
        if (sim->has_rows[w->step]) {
            if (b->n_gates_put != b->n_gates_got)
                return false;
            b->n_gates_put++;
        }
        b->signalled = true;
    }
    if (runs(sim, w->step, w->op)) {
        if (w->op && *arrivals(sim, w->step, w->op - 1) != sim->n_blocks)
            return false;
        uint32_t before = w->n;
        for (uint32_t n = stages_of(sim, w->op, block); w->at < n; w->at++, w->n++)
            if (w->n == b->producer.n)
                return w->n != before;
    }
    if (runs(sim, w->step, w->op) || w->op + 1 == n_ops)
        ++*arrivals(sim, w->step, w->op);
    w->at = 0;
    if (++w->op == n_ops) {
        w->op = 0;
        w->step++;
        b->signalled = false;
    }
    return true;
}

/* The producer's step is the next with rows that it knows of: its round. */
static bool move_producer(struct simulation *sim, struct block *b, uint32_t block)
{
    struct walker *w = &b->producer;
    while (w->step < sim->n_steps && !sim->has_rows[w->step])
        w->step++;
    if (is_head(sim, w->op) && !b->gated) {
        if (b->n_gates_put == b->n_gates_got)
            return false;
        b->n_gates_got++;
        b->gated = true;
    }
    bool skip = is_head(sim, w->op) && !sim->has_logits[w->step];
    uint32_t before = w->n;
    for (uint32_t n = skip ? 0 : stages_of(sim, w->op, block); w->at < n; w->at++, w->n++)
        if (w->n - b->crew.n == sim->p->shared.n_stages)
            return w->n != before;
    w->at = 0;
    if (++w->op == sim->m->program->n_ops) {
        w->op = 0;
        w->step++;
        b->gated = false;
    }
    return true;
}

static void simulate(const struct model *m, const struct plan *p, uint32_t n_blocks)
{
    static const bool has_rows[] = {true, true, false, true, false, false, true},
                      has_logits[] = {true, false, false, false, false, false, true};
    static struct simulation sim;
    sim = (struct simulation){.m = m,
                              .p = p,
                              .has_rows = has_rows,
                              .has_logits = has_logits,
                              .n_steps = sizeof has_rows,
                              .n_blocks = n_blocks};
    sim.arrivals = calloc((size_t)sim.n_steps * m->program->n_ops, sizeof *sim.arrivals);
    cr_assert(sim.arrivals);
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t i = 0; i < n_blocks; i++) {
            uint32_t b = n_blocks - 1 - i;
            moved |= move_crew(&sim, &sim.blocks[b], b);
            moved |= move_producer(&sim, &sim.blocks[b], b);
        }
    }
    for (uint32_t b = 0; b < n_blocks; b++) {
        cr_assert_eq(sim.blocks[b].crew.step, sim.n_steps, "block %u of %u stands in op %u of step %u", b,
                     n_blocks, sim.blocks[b].crew.op, sim.blocks[b].crew.step);
        cr_assert_geq(sim.blocks[b].producer.n, sim.blocks[b].crew.n);
        cr_assert_leq(sim.blocks[b].producer.n - sim.blocks[b].crew.n, p->shared.n_stages);
    }
    free(sim.arrivals);
}

Test(cuda_schedule, nobody_waits_for_ever_however_shallow_the_ring)
{
    for (uint32_t i = 0; i < N_SHAPES; i += SHAPE_STEPS) {
        struct model m;
        open_model(&m, &shapes[i], TILE_NONE, i);
        for (uint32_t n_blocks = 1; n_blocks <= MAX_BLOCKS; n_blocks += n_blocks < 8 ? 1 : 62) {
            struct plan p;
            open_plan(&p, &m, n_blocks, devices[2].shared_bytes);
            simulate(&m, &p, n_blocks);
            p.shared.n_stages = 1;
            simulate(&m, &p, n_blocks);
            plan_close(&p);
        }
        free(m.program);
    }
}
