#include "small_model.h"
#include "cuda/pack.h"
#include "simt/resident/program_build.h"
#include "support/models/random_blocks.h"

#include <math.h>
#include <stdlib.h>

enum {
    W_EMBED, /* and head */
    W_Q,
    W_K,
    W_V,
    W_O,
    W_ROUTER,
    W_GATE, /* of all experts */
    W_UP,
    W_DOWN,
    W_MIX, /* product of the recurrent layer; then that of b and alpha */
    W_GATES,
    W_HEADS, /* the heads' matrices of a compressed cache */
    W_DENSE, /* of a dense layer, behind the gate and up of all experts */
    N_MATRICES,
    V_ATTEND = N_MATRICES, /* gains of the norms, */
    V_FFN,
    V_HEAD,
    V_QUERY, /* of a head, */
    V_KEY,
    V_BIAS,    /* of q, */
    V_EXPERTS, /* of each expert's gate */
    V_TAPS,    /* taps of the recurrent layer */
    V_DECAYS,
    V_TIMES,
    V_NET, /* gain of the heads' norm */
    V_MIX, /* and of its products' input */
    V_UNUSED,
    M_COSINES = SMALL_WEIGHTS,
    M_SINES,
    N_MEMORIES,
};

#define EMBD         64
#define EXPERTS      4
#define USED         2  /* of them, by a row */
#define FFN          32 /* of an expert */
#define DENSE_LAYERS 4  /* one more than there are sets of buffers for words: plan_words.c */
#define MAX_OPS      (3 + 5 * DENSE_LAYERS)
#define HEADS        2
#define DIM          32

static const struct delta_shape net = {.n_key_heads = 1,
                                       .n_value_heads = 4,
                                       .key_dim = 16,
                                       .value_dim = EMBD / 4,
                                       .n_taps = 3,
                                       .adjacent = true};
#define CHANNELS (2 * 16 + EMBD)
#define PART     16 /* values that a head keeps of its part, and rows of its matrix */

static const struct {
    uint32_t type, n, k;
} shapes[N_MATRICES] = {
    [W_EMBED] = {QUANT_Q5_0, TOY_VOCAB, EMBD},
    [W_Q] = {QUANT_Q8_0, HEADS *DIM, EMBD},
    [W_K] = {QUANT_F16, DIM, EMBD},
    [W_V] = {QUANT_Q4_0, DIM, EMBD},
    [W_O] = {QUANT_Q8_0, EMBD, HEADS *DIM},
    [W_ROUTER] = {QUANT_F16, EXPERTS, EMBD},
    [W_GATE] = {QUANT_Q4_1, EXPERTS *FFN, EMBD},
    [W_UP] = {QUANT_Q5_1, EXPERTS *FFN, EMBD},
    [W_DOWN] = {QUANT_Q8_0, EXPERTS *EMBD, FFN},
    [W_MIX] = {QUANT_Q8_0, CHANNELS, EMBD},
    [W_GATES] = {QUANT_F16, 2 * 4, EMBD},
    [W_HEADS] = {QUANT_Q8_0, HEADS *PART, DIM},
    [W_DENSE] = {QUANT_Q8_0, EMBD, EXPERTS *FFN},
};

static void *take(struct small_model *m, uint32_t i, size_t size)
{
    m->sizes[i] = size;
    m->memory[i] = aligned_alloc(128, (size + 127) / 128 * 128);
    if (!m->memory[i])
        abort(); /* a test tool: nothing sensible is left to do */
    return m->memory[i];
}

/* --- weights --- */

static void matrix(struct small_model *m, uint32_t i)
{
    struct random_blocks r;
    uint32_t type = shapes[i].type, n = shapes[i].n, k = shapes[i].k;
    void *blocks = malloc(quant_size(type, (size_t)n * k));
    if (!blocks || cuda_pack_layout(type, n, k, &m->matrices[i], NULL) < 0)
        abort();
    random_blocks_init(&r, type, 0.2f, 77 + i);
    random_blocks_fill(&r, blocks, (size_t)n * k);
    void *tiles = take(m, i, cuda_pack_size(&m->matrices[i]));
    cuda_pack(type, &m->matrices[i], blocks, tiles, 0, m->matrices[i].n_tiles);
    m->matrices[i].tiles = (uint64_t)(uintptr_t)tiles;
    free(blocks);
}

static void vector(struct small_model *m, uint32_t i, uint32_t n)
{
    uint64_t state = 99 + i;
    float *x = take(m, i, n * sizeof *x);
    for (uint32_t j = 0; j < n; j++)
        x[j] = 1.0f + random_unit(&state) * 0.5f;
    m->vectors[i] = (uint64_t)(uintptr_t)x;
}

static void angles(struct small_model *m)
{
    float *cosines = take(m, M_COSINES, TOY_N_CTX * DIM / 2 * sizeof *cosines);
    float *sines = take(m, M_SINES, TOY_N_CTX * DIM / 2 * sizeof *sines);
    for (uint32_t i = 0; i < TOY_N_CTX * DIM / 2; i++) {
        double angle = (i / (DIM / 2)) * pow(1e4, -2.0 * (i % (DIM / 2)) / DIM);
        cosines[i] = (float)cos(angle);
        sines[i] = (float)sin(angle);
    }
}

/* --- the program --- */

static void add_attend(struct small_model *m, uint32_t layer)
{
    struct program_op *qkv =
        program_add_product(m->program, m->matrices, PROGRAM_X, PROGRAM_QKV, PROGRAM_STORE, W_Q, 3);
    qkv->gain = V_ATTEND;
    qkv->bias[0] = V_BIAS;
    struct program_op *op = program_add(m->program, PROGRAM_ATTEND, PROGRAM_QKV, PROGRAM_ATTN);
    op->n[0] = HEADS * DIM;
    op->n[1] = op->n[2] = DIM;
    op->out_col[1] = HEADS * DIM;
    op->out_col[2] = HEADS * DIM + DIM;
    op->q_gain = V_QUERY;
    op->k_gain = V_KEY;
    op->scale = 0.17677669f; /* 1 / sqrt(DIM) */
    op->layer = layer;
}

/* b and alpha are one product. */
static void add_net(struct small_model *m)
{
    struct program_op *op =
        program_add_product(m->program, m->matrices, PROGRAM_X, PROGRAM_QKV, PROGRAM_STORE, W_MIX, 2);
    op->gain = V_MIX;
    op = program_add(m->program, PROGRAM_CONV, PROGRAM_QKV, PROGRAM_QKV);
    op->flags = PROGRAM_TOGETHER;
    op->weight[0] = V_TAPS;
    op->weight[1] = V_DECAYS;
    op->bias[0] = V_TIMES;
    op->n[0] = op->out_col[1] = CHANNELS;
    op = program_add(m->program, PROGRAM_DELTA, PROGRAM_QKV, PROGRAM_BRANCH);
    op->n[0] = EMBD;
    op->out_col[1] = CHANNELS;
    op->gain = V_NET;
}

/* What a compressed cache needs, of the net's channels: matrices of heads, and a row of two parts. */
static void add_heads(struct small_model *m)
{
    struct program_op *op =
        program_add_product(m->program, m->matrices, PROGRAM_QKV, PROGRAM_H, PROGRAM_STORE, W_HEADS, 1);
    op->opcode = PROGRAM_HEADS;
    op->n[0] = op->n[2] = PART;
    op->n[1] = HEADS;
    op = program_add(m->program, PROGRAM_JOIN, PROGRAM_H, PROGRAM_BRANCH);
    op->n[0] = op->n[1] = DIM;
    op->out_col[0] = DIM;
    op->gain = V_KEY;
}

/* Two parts a row: a block has several, so that what its threads share is written again. */
static void add_branch(struct small_model *m)
{
    struct program_op *op = program_add(m->program, PROGRAM_ADD_NORM, PROGRAM_BRANCH, PROGRAM_X);
    op->n[0] = EMBD;
    op->k = DIM;
    op->gain = V_QUERY;
    op->weight[0] = PROGRAM_NONE;
}

static void add_route(struct small_model *m)
{
    program_add_product(m->program, m->matrices, PROGRAM_X, PROGRAM_CHOICE, PROGRAM_STORE, W_ROUTER, 1)
        ->gain = V_FFN;
    struct program_op *op = program_add(m->program, PROGRAM_ROUTE, PROGRAM_CHOICE, PROGRAM_CHOICE);
    op->route = (struct route_rule){.n_experts = EXPERTS,
                                    .n_used = USED,
                                    .n_groups = 1,
                                    .n_groups_used = 1,
                                    .gating = ROUTE_SOFTMAX,
                                    .normalise = 1,
                                    .scale = 1};
    op->bias[0] = op->weight[0] = PROGRAM_NONE;
    op->out_col[0] = EXPERTS;
}

static struct program_op *add_experts(struct small_model *m, uint32_t in, uint32_t out, uint32_t epilogue,
                                      uint32_t first, uint32_t n)
{
    struct program_op *op = program_add_product(m->program, m->matrices, in, out, epilogue, first, n);
    op->opcode = PROGRAM_EXPERTS;
    op->route.n_experts = EXPERTS;
    op->route.n_used = USED;
    op->gate_col = EXPERTS;
    for (uint32_t i = 0; i < n; i++)
        op->n[i] /= EXPERTS;
    return op;
}

static void add_mixture(struct small_model *m)
{
    add_route(m);
    struct program_op *op = add_experts(m, PROGRAM_X, PROGRAM_H, PROGRAM_SWIGLU, W_GATE, 2);
    op->gain = V_FFN;
    op->bias[0] = V_EXPERTS;
    add_experts(m, PROGRAM_H, PROGRAM_X, PROGRAM_RESIDUAL, W_DOWN, 1);
}

/* All layers have the same weights. */
static void add_dense_layers(struct small_model *m)
{
    for (uint32_t layer = 0; layer < m->layout.n_layers; layer++) {
        add_attend(m, layer);
        program_add_product(m->program, m->matrices, PROGRAM_ATTN, PROGRAM_X, PROGRAM_RESIDUAL, W_O, 1);
        program_add_product(m->program, m->matrices, PROGRAM_X, PROGRAM_H, PROGRAM_SWIGLU, W_GATE, 2)->gain =
            V_FFN;
        program_add_product(m->program, m->matrices, PROGRAM_H, PROGRAM_X, PROGRAM_RESIDUAL, W_DENSE, 1);
    }
}

static void add_other_layers(struct small_model *m)
{
    add_net(m);
    add_branch(m);
    add_heads(m);
    add_branch(m);
    program_add_product(m->program, m->matrices, PROGRAM_BRANCH, PROGRAM_X, PROGRAM_RESIDUAL, W_O, 1);
    add_attend(m, 0);
    program_add_product(m->program, m->matrices, PROGRAM_ATTN, PROGRAM_X, PROGRAM_RESIDUAL, W_O, 1);
    add_mixture(m);
}

static void add_ops(struct small_model *m, bool dense)
{
    struct program *p = m->program;
    program_add(p, PROGRAM_EMBED, PROGRAM_NONE, PROGRAM_X)->weight[0] = W_EMBED;
    if (dense)
        add_dense_layers(m);
    else
        add_other_layers(m);
    struct program_op *head =
        program_add_product(m->program, m->matrices, PROGRAM_X, PROGRAM_LOGITS, PROGRAM_STORE, W_EMBED, 1);
    head->flags = PROGRAM_HEAD;
    head->gain = V_HEAD;
    struct program_op *sample = program_add(p, PROGRAM_SAMPLE, PROGRAM_LOGITS, PROGRAM_NONE);
    sample->flags = PROGRAM_HEAD;
    sample->n[0] = TOY_VOCAB;
}

void small_model_open(struct small_model *m, bool dense)
{
    static const uint32_t widths[PROGRAM_LOGITS] = {
        [PROGRAM_X] = EMBD,          [PROGRAM_QKV] = (HEADS + 2) * DIM,     [PROGRAM_ATTN] = HEADS * DIM,
        [PROGRAM_H] = EXPERTS * FFN, [PROGRAM_CHOICE] = EXPERTS + 2 * USED, [PROGRAM_BRANCH] = EMBD};
    *m = (struct small_model){.layout = {dense ? DENSE_LAYERS : 1, 1, DIM, KV_F16}};
    struct program *p = m->program = calloc(1, sizeof *p + MAX_OPS * sizeof *p->ops);
    if (!p)
        abort();
    *p = (struct program){.magic = PROGRAM_MAGIC,
                          .version = PROGRAM_VERSION,
                          .n_layers = m->layout.n_layers,
                          .n_buffers = PROGRAM_N_BUFFERS,
                          .n_embd = EMBD,
                          .n_ff = FFN,
                          .n_vocab = TOY_VOCAB,
                          .n_heads = HEADS,
                          .n_kv_heads = 1,
                          .head_dim = DIM,
                          .rope_dim = DIM,
                          .rope_neox = 1};
    for (uint32_t b = 0; b < PROGRAM_LOGITS; b++) {
        p->buffers[b] = (struct program_buffer){p->row_floats, widths[b]};
        p->row_floats += widths[b];
    }
    for (uint32_t i = 0; i < N_MATRICES; i++)
        matrix(m, i);
    for (uint32_t i = V_ATTEND; i <= V_HEAD; i++)
        vector(m, i, EMBD);
    vector(m, V_QUERY, DIM);
    vector(m, V_KEY, DIM);
    vector(m, V_BIAS, HEADS * DIM);
    vector(m, V_EXPERTS, EXPERTS * FFN);
    vector(m, V_TAPS, CHANNELS * net.n_taps);
    vector(m, V_DECAYS, net.n_value_heads);
    for (uint32_t i = 0; i < net.n_value_heads; i++)
        ((float *)m->memory[V_DECAYS])[i] *= -1;
    vector(m, V_TIMES, net.n_value_heads);
    vector(m, V_NET, net.value_dim);
    vector(m, V_MIX, EMBD);
    angles(m);
    add_ops(m, dense);
}

void small_model_close(struct small_model *m)
{
    free(m->program);
    for (uint32_t i = 0; i < N_MEMORIES; i++)
        free(m->memory[i]);
}

void small_rig_open(struct rig *r, const struct small_model *m, uint32_t n_blocks, uint32_t n_stages)
{
    struct rig_config c = {.kernel = "persistent_decoder",
                           .program = m->program,
                           .matrices = m->matrices,
                           .vectors = m->vectors,
                           .n_weights = SMALL_WEIGHTS,
                           .layout = m->layout,
                           .n_slots = TOY_SLOTS,
                           .n_ctx = TOY_N_CTX,
                           .n_pages = TOY_PAGES,
                           .max_rows = TOY_ROWS,
                           .logits_stride = TOY_VOCAB,
                           .n_recurrent = 1,
                           .delta = net,
                           .device = {n_blocks, 64, 1024 * 1024},
                           .n_stages = n_stages,
                           .words = true};
    rig_open(r, &c);
    for (uint32_t i = 0; i < N_MEMORIES; i++)
        if (m->memory[i])
            rig_map(r, m->memory[i], m->sizes[i], "weights");
    r->args.cosines = (uint64_t)(uintptr_t)m->memory[M_COSINES];
    r->args.sines = (uint64_t)(uintptr_t)m->memory[M_SINES];
    r->args.deadline_ns =
        0; /* a block may starve for as long as the schedule likes; a wait for ever is a hang */
}

/* --- steps --- */

static void settle(struct step_sampling *s, uint64_t *state)
{
    s->top_p = s->typical_p = s->repetition_penalty = 1.0f;
    if (random_between(state, 0, 2))
        s->temperature = 0.8f;
    if (random_between(state, 0, 1))
        s->top_k = random_between(state, 1, 20);
    if (random_between(state, 0, 2) == 0)
        s->top_p = 0.7f;
    if (random_between(state, 0, 2) == 0) {
        s->repetition_penalty = 1.2f;
        s->penalty_last_n = (uint32_t)random_between(state, 1, 40);
    }
}

void small_feed_next(struct toy_feed *feed, struct step *step)
{
    toy_feed_next(feed, step);
    uint64_t state = step->id * 1000 + step->n_rows;
    for (uint32_t i = 0; i < step->n_slots; i++)
        settle(&step->slots[i].sampling, &state);
    for (uint32_t i = 0; i < step->n_biases; i++)
        step->biases[i].bias = random_unit(&state);
    for (uint32_t i = 0; i < step->n_logits; i++) {
        step->logits[i].flags = (uint32_t)random_between(&state, 0, STEP_LOGPROB);
        step->logits[i].n_top = (uint16_t)random_between(&state, 0, 3);
        step->logits[i].mask = (uint32_t)random_between(&state, 0, 1);
    }
}
