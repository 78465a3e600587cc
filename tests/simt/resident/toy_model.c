#include "toy_model.h"
#include "program_build.h"

#include <stdlib.h>
#include <string.h>

enum { W_EMBED, W_Q, W_K, W_V, W_O, W_GATE, W_UP, W_DOWN, W_HEAD };

/* --- program and weights --- */

static void matrix(struct toy_model *m, uint32_t i, uint32_t n, uint32_t n_supers)
{
    uint32_t n_tiles = (n + 15) / 16, x = 977 * i + 1;
    m->sizes[i] = (size_t)n_tiles * n_supers * TOY_SUPER_BYTES;
    m->tiles[i] = aligned_alloc(128, (m->sizes[i] + 127) / 128 * 128);
    if (!m->tiles[i])
        abort(); /* a test tool: nothing sensible is left to do */
    for (size_t j = 0; j < m->sizes[i]; j++, x = x * 1664525 + 1013904223)
        m->tiles[i][j] = (char)(x >> 24);
    m->matrices[i] = (struct decoder_matrix){.tiles = (uint64_t)(uintptr_t)m->tiles[i],
                                             .n = n,
                                             .k = n_supers * 256,
                                             .n_tiles = n_tiles,
                                             .n_supers = n_supers,
                                             .super_bytes = TOY_SUPER_BYTES};
}

static void add_layer(struct toy_model *m, uint32_t layer)
{
    program_add_product(m->program, m->matrices, PROGRAM_X, PROGRAM_QKV, PROGRAM_STORE, W_Q, 3);
    program_add(m->program, PROGRAM_ATTEND, PROGRAM_QKV, PROGRAM_ATTN)->layer = layer;
    program_add_product(m->program, m->matrices, PROGRAM_ATTN, PROGRAM_X, PROGRAM_RESIDUAL, W_O, 1);
    program_add_product(m->program, m->matrices, PROGRAM_X, PROGRAM_H, PROGRAM_SWIGLU, W_GATE, 2);
    program_add_product(m->program, m->matrices, PROGRAM_H, PROGRAM_X, PROGRAM_RESIDUAL, W_DOWN, 1);
}

void toy_model_open(struct toy_model *m)
{
    *m = (struct toy_model){.layout = {TOY_LAYERS, 1, 32, KV_F16}, .windows = {1, 1, 32, KV_F16}};
    struct program *p = calloc(1, sizeof *p + 32 * sizeof *p->ops);
    if (!p)
        abort();
    m->program = p;
    *p = (struct program){.magic = PROGRAM_MAGIC,
                          .version = PROGRAM_VERSION,
                          .n_layers = TOY_LAYERS,
                          .n_buffers = PROGRAM_N_BUFFERS,
                          .n_vocab = TOY_VOCAB,
                          .n_heads = 1,
                          .n_kv_heads = 1,
                          .head_dim = 32,
                          .row_floats = 4 * TOY_WIDTH};
    for (uint32_t b = 0; b < PROGRAM_LOGITS; b++)
        p->buffers[b] = (struct program_buffer){b * TOY_WIDTH, TOY_WIDTH};
    matrix(m, W_Q, 16, 2);
    matrix(m, W_K, 8, 2);
    matrix(m, W_V, 8, 3);
    matrix(m, W_O, TOY_WIDTH, 1);
    matrix(m, W_GATE, 24, 20);
    matrix(m, W_UP, 24, 20);
    matrix(m, W_DOWN, TOY_WIDTH, 5);
    matrix(m, W_HEAD, TOY_VOCAB, 2);
    program_add(p, PROGRAM_EMBED, PROGRAM_NONE, PROGRAM_X);
    for (uint32_t l = 0; l < TOY_LAYERS; l++)
        add_layer(m, l);
    program_add_product(m->program, m->matrices, PROGRAM_X, PROGRAM_LOGITS, PROGRAM_STORE, W_HEAD, 1)->flags =
        PROGRAM_HEAD;
    program_add(p, PROGRAM_SAMPLE, PROGRAM_LOGITS, PROGRAM_NONE)->flags = PROGRAM_HEAD;
}

void toy_model_close(struct toy_model *m)
{
    free(m->program);
    for (uint32_t i = 0; i < TOY_WEIGHTS; i++)
        free(m->tiles[i]);
}

void toy_rig_open(struct rig *r, const struct toy_model *m, uint32_t n_blocks, uint32_t n_stages)
{
    static const uint64_t vectors[TOY_WEIGHTS];
    struct rig_config c = {.kernel = "toy_decoder",
                           .program = m->program,
                           .matrices = m->matrices,
                           .vectors = vectors,
                           .n_weights = TOY_WEIGHTS,
                           .layout = m->layout,
                           .windows = m->windows,
                           .n_windows = TOY_WINDOWS,
                           .n_slots = TOY_SLOTS,
                           .n_ctx = TOY_N_CTX,
                           .n_pages = TOY_PAGES,
                           .max_rows = TOY_ROWS,
                           .logits_stride = TOY_VOCAB,
                           .device = {n_blocks, 64, 160 * 1024},
                           .n_stages = n_stages};
    rig_open(r, &c);
    for (uint32_t i = 1; i < TOY_WEIGHTS; i++)
        rig_map(r, m->tiles[i], m->sizes[i], "weights");
}

/* --- the reference --- */

void toy_state_open(struct toy_state *s, const struct toy_model *m)
{
    *s = (struct toy_state){.model = m};
    s->kv = calloc(TOY_PAGES, kv_page_size(&m->layout));
    s->windows = calloc(TOY_WINDOWS, kv_page_size(&m->windows));
    s->transfer = calloc(4, kv_page_size(&m->layout));
    if (!s->kv || !s->windows || !s->transfer)
        abort();
}

void toy_state_close(struct toy_state *s)
{
    free(s->kv);
    free(s->windows);
    free(s->transfer);
}

/* A page or window page, and its size. */
static char *page_at(struct toy_state *s, uint32_t number, size_t *size)
{
    bool window = number >= TOY_PAGES;
    *size = kv_page_size(window ? &s->model->windows : &s->model->layout);
    return window ? s->windows + (number - TOY_PAGES) * *size : s->kv + number * *size;
}

static void run_page_op(struct toy_state *s, const struct step_page_op *op)
{
    size_t size;
    char *page = page_at(s, op->page, &size), *host = s->transfer + (size_t)op->host_offset * 64;
    if (op->kind == STEP_PAGE_COPY)
        memmove(page, page_at(s, op->from, &size), size);
    else if (op->kind == STEP_PAGE_EXPORT)
        memcpy(host, page, size);
    else if (op->kind == STEP_PAGE_IMPORT)
        memcpy(page, host, size);
    else
        memset(page, 0, size);
}

static void take_slot(struct toy_state *s, const struct step *step, const struct step_slot *from)
{
    uint32_t i = from->slot;
    s->sampling[i] = from->sampling;
    s->start[i] = from->start - from->n_history;
    memcpy(&s->history[i][s->start[i]], step->history + from->history_offset,
           from->n_history * sizeof(int32_t));
    memcpy(s->biases[i], step->biases + from->sampling.bias_offset,
           from->sampling.n_bias * sizeof **s->biases);
}

typedef uint32_t toy_values[TOY_WIDTH];

static uint32_t product(const struct toy_model *m, uint32_t weight, const uint32_t *in, uint32_t out)
{
    const struct decoder_matrix *w = &m->matrices[weight];
    uint32_t weights = 0, row = 0;
    for (uint32_t s = 0; s < w->n_supers; s++) {
        uint32_t v[4];
        memcpy(v, m->tiles[weight] + ((size_t)(out / 16) * w->n_supers + s) * TOY_SUPER_BYTES + out % 16 * 16,
               16);
        weights += (v[0] + v[1] * 3 + v[2] * 5 + v[3] * 7) * (s + 1);
    }
    for (uint32_t j = 0; j < TOY_WIDTH; j++)
        row = row * 3 + in[j];
    return toy_mix(weights, row);
}

static uint32_t *cell(struct toy_state *s, uint32_t slot, uint32_t layer, uint32_t pos)
{
    bool window = layer == TOY_WINDOW_LAYER;
    size_t at = window ? kv_offset(&s->model->windows, s->window_tables[slot][pos / 64], 0, 0, KV_KEYS)
                       : kv_offset(&s->model->layout, s->tables[slot][pos / 64], layer, 0, KV_KEYS);
    return (uint32_t *)(void *)((window ? s->windows : s->kv) + at) + pos % 64;
}

static void run_op(struct toy_state *s, const struct program_op *op, const struct step *step,
                   const int32_t *tokens, toy_values (*rows)[4], uint32_t (*logits)[TOY_VOCAB])
{
    bool head = op->flags & PROGRAM_HEAD;
    for (uint32_t r = 0; op->opcode == PROGRAM_EMBED && r < step->n_rows; r++)
        for (uint32_t i = 0; i < TOY_WIDTH; i++)
            rows[r][PROGRAM_X][i] = toy_mix((uint32_t)tokens[r], i);
    for (uint32_t r = 0; op->opcode == PROGRAM_ATTEND && r < step->n_rows; r++)
        *cell(s, step->rows[r].slot, op->layer, step->rows[r].pos) =
            toy_mix(rows[r][PROGRAM_QKV][1], step->rows[r].pos);
    for (uint32_t r = 0; op->opcode == PROGRAM_ATTEND && r < step->n_rows; r++) {
        uint32_t sum = 0;
        for (uint32_t p = 0; p <= step->rows[r].pos; p++)
            sum = sum * 5 + *cell(s, step->rows[r].slot, op->layer, p);
        for (uint32_t i = 0; i < TOY_WIDTH; i++)
            rows[r][PROGRAM_ATTN][i] = toy_mix(sum, rows[r][PROGRAM_QKV][i]);
    }
    if (op->opcode != PROGRAM_MATMUL)
        return;
    for (uint32_t r = 0; r < (head ? step->n_logits : step->n_rows); r++) {
        const uint32_t *in = rows[head ? step->logits[r].row : r][op->in];
        uint32_t *out = head ? logits[r] : rows[r][op->out];
        toy_values input;
        memcpy(input, in, sizeof input);
        for (uint32_t w = 0; w < op->n_weights; w++)
            for (uint32_t i = 0; i < op->n[w]; i++) {
                uint32_t y = product(s->model, op->weight[w], input, i);
                uint32_t *to = &out[op->out_col[w] + i];
                bool second = op->epilogue == PROGRAM_SWIGLU && w;
                *to = op->epilogue == PROGRAM_RESIDUAL ? *to + y : second ? *to * 31 + y : y;
            }
    }
}

static void choose(struct toy_state *s, const struct step *step, uint32_t i, const uint32_t *logits,
                   struct step_result *out)
{
    const struct step_row *row = &step->rows[step->logits[i].row];
    const struct step_sampling *sampling = &s->sampling[row->slot];
    uint32_t sum = (uint32_t)sampling->seed;
    for (uint32_t j = 0; j < TOY_VOCAB; j++)
        sum = sum * 3 + logits[j];
    for (uint32_t p = s->start[row->slot]; p <= row->pos; p++)
        sum = sum * 7 + (uint32_t)s->history[row->slot][p];
    for (uint32_t j = 0; j < sampling->n_bias; j++)
        sum = toy_mix(sum, (uint32_t)s->biases[row->slot][j].token);
    int32_t target = step->logits[i].target;
    *out = (struct step_result){.step = step->id,
                                .slot = row->slot,
                                .pos = row->pos,
                                .token = target >= 0 ? target : (int32_t)(sum % TOY_VOCAB),
                                .flags = target >= 0 ? STEP_RESULT_TARGET : 0,
                                .logit_index = i,
                                .top = {{.token = (int32_t)sum}}};
}

void toy_state_run(struct toy_state *s, const struct step *step, struct step_result *results)
{
    static _Thread_local toy_values rows[TOY_ROWS][4];
    static _Thread_local uint32_t logits[STEP_MAX_LOGITS][TOY_VOCAB];
    int32_t tokens[TOY_ROWS];
    for (uint32_t i = 0; i < step->n_page_ops; i++)
        run_page_op(s, &step->page_ops[i]);
    for (uint32_t i = 0; i < step->n_edits; i++) {
        const struct step_table_edit *e = &step->edits[i];
        s->tables[e->slot][e->index] = e->page;
        s->window_tables[e->slot][e->index] = e->window ? e->window - TOY_PAGES : 0;
    }
    for (uint32_t i = 0; i < step->n_slots; i++)
        take_slot(s, step, &step->slots[i]);
    for (uint32_t r = 0; r < step->n_rows; r++) {
        const struct step_row *row = &step->rows[r];
        tokens[r] = row->token == STEP_LAST_SAMPLED ? s->last_sampled[row->slot] : row->token;
        s->history[row->slot][row->pos] = tokens[r];
    }
    for (uint32_t i = 0; i < s->model->program->n_ops; i++)
        run_op(s, &s->model->program->ops[i], step, tokens, rows, logits);
    for (uint32_t i = 0; i < step->n_logits; i++) {
        choose(s, step, i, logits[i], &results[i]);
        if (step->logits[i].target < 0)
            s->last_sampled[results[i].slot] = results[i].token;
    }
}

bool toy_same(const struct step_result *got, const struct step_result *want, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (got[i].step != want[i].step || got[i].slot != want[i].slot || got[i].pos != want[i].pos ||
            got[i].token != want[i].token || got[i].flags != want[i].flags ||
            got[i].logit_index != want[i].logit_index || got[i].top[0].token != want[i].top[0].token)
            return false;
    return true;
}
