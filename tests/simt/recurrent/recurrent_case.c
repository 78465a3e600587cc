#include "recurrent_case.h"
#include "abi/node_args.h"
#include "device/dependency.h"

#include <stdlib.h>
#include <string.h>

#define SLOTS     3
#define STATES    6 /* and snapshots */
#define LAYERS    2
#define LAYER     1 /* the node's */
#define MAX_ROWS  14
#define MAX_STEPS 3
#define AT(p)     ((uint64_t)(uintptr_t)(p))

struct recurrent_case {
    struct simt_machine *machine;
    struct delta_shape shape;
    uint32_t number, noise, n_steps, n_blocks, n_threads;
    uint32_t in_stride, gate_stride, out_stride;
    size_t n_state; /* floats of all states */
    struct step *step;
    float *taps, *in, *gates, *out, *wanted; /* [MAX_ROWS][stride] */
    float *states, *expected;
    uint32_t fault[DECODER_LINE];
    uint32_t done[SLOTS]; /* position of each slot's next row */
};

static uint32_t below(struct recurrent_case *c, uint32_t n)
{
    c->noise = c->noise * 1664525u + 1013904223u;
    return (c->noise >> 8) % n;
}

static void fill(struct recurrent_case *c, float *x, size_t n, float centre, float spread)
{
    for (size_t i = 0; i < n; i++)
        x[i] = centre + spread * ((float)below(c, 1u << 20) / (float)(1u << 19) - 1);
}

static float *room(struct recurrent_case *c, size_t n, const char *name)
{
    float *x = aligned_alloc(128, (n * 4 + 127) / 128 * 128);
    if (!x)
        abort(); /* a test tool: nothing sensible is left to do */
    if (name)
        simt_map(c->machine, x, n * 4, 0, name);
    return x;
}

static void choose_shape(struct recurrent_case *c, uint64_t number)
{
    static const uint32_t dims[] = {16, 32, 48, 128, 16, 64, 144, 256};
    struct delta_shape *s = &c->shape;
    s->key_dim = dims[number % 8];
    s->value_dim = 16 * (1 + below(c, 3));
    s->n_key_heads = 1 + below(c, 2);
    s->n_value_heads = s->n_key_heads * (1 + below(c, 3));
    s->n_taps = 2 + below(c, DELTA_MAX_TAPS - 1);
    s->adjacent = below(c, 2);
    c->n_steps = 1 + below(c, MAX_STEPS);
    c->n_blocks = 1 + below(c, 3);
    c->n_threads = 32 * (1 + below(c, 4));
    c->in_stride = delta_channels(s) + 4 * below(c, 3);
    c->gate_stride = 2 * s->n_value_heads + 4;
    c->out_stride = (delta_channels(s) > delta_value_width(s) ? delta_channels(s) : delta_value_width(s)) + 8;
}

struct recurrent_case *recurrent_case_open(uint64_t number)
{
    struct recurrent_case *c = calloc(1, sizeof *c);
    if (!c || !(c->machine = simt_open()) || !(c->step = calloc(1, sizeof *c->step)))
        abort();
    c->noise = c->number = (uint32_t)number * 2654435761u + 1;
    choose_shape(c, number);
    size_t taps = (size_t)delta_channels(&c->shape) * c->shape.n_taps;
    c->n_state = (size_t)STATES * LAYERS * delta_state_floats(&c->shape);
    c->taps = room(c, taps, "taps");
    c->in = room(c, (size_t)MAX_ROWS * c->in_stride, "in");
    c->gates = room(c, (size_t)MAX_ROWS * c->gate_stride, "gates");
    c->out = room(c, (size_t)MAX_ROWS * c->out_stride, "out");
    c->wanted = room(c, (size_t)MAX_ROWS * c->out_stride, NULL);
    c->states = room(c, c->n_state, "states");
    c->expected = room(c, c->n_state, NULL);
    simt_map(c->machine, c->step, sizeof *c->step, SIMT_MAP_READ_ONLY, "step");
    simt_map(c->machine, c->fault, sizeof c->fault, 0, "fault");
    fill(c, c->taps, taps, 0, 1);
    return c;
}

void recurrent_case_close(struct recurrent_case *c)
{
    float *all[] = {c->taps, c->in, c->gates, c->out, c->wanted, c->states, c->expected};
    simt_close(c->machine);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    free(c->step);
    free(c);
}

/* --- steps --- */

static void add_op(struct step *s, uint32_t kind, uint32_t page, uint32_t from, uint32_t pos)
{
    s->page_ops[s->n_page_ops++] =
        (struct step_page_op){.kind = kind, .page = page, .from = from, .host_offset = pos};
}

/* A group of a slot, which may begin anew or with a snapshot, and whose states may be kept behind some rows:
 * `free_state` is a snapshot that nothing else of the step uses. */
static void add_group(struct recurrent_case *c, uint32_t slot, uint32_t free_state)
{
    struct step *s = c->step;
    uint32_t n = 1 + below(c, 4), way = below(c, 4), first = s->n_rows;
    if (way == 0)
        c->done[slot] = 0;
    if (way == 1)
        add_op(s, STEP_STATE_LOAD, slot, SLOTS + (free_state + 1) % (STATES - SLOTS), 0);
    for (uint32_t i = 0; i < n; i++)
        s->rows[s->n_rows++] = (struct step_row){.slot = slot, .pos = c->done[slot]++};
    if (below(c, 2))
        add_op(s, STEP_STATE_SAVE, SLOTS + free_state, slot, s->rows[first + below(c, n)].pos);
}

static void make_step(struct recurrent_case *c)
{
    struct step *s = c->step;
    uint32_t first = below(c, SLOTS), n = 1 + below(c, SLOTS), free_state = below(c, STATES - SLOTS);
    s->n_rows = s->n_page_ops = 0;
    for (uint32_t i = 0; i < n; i++)
        add_group(c, (first + i) % SLOTS, free_state);
    /* Of several that keep into one state the first is the step's. */
    for (uint32_t i = 0, kept = 0; i < s->n_page_ops; i++)
        if (s->page_ops[i].kind == STEP_STATE_SAVE && kept++)
            s->page_ops[i] = s->page_ops[--s->n_page_ops], i--;
    fill(c, c->in, (size_t)MAX_ROWS * c->in_stride, 0, 1);
    fill(c, c->gates, (size_t)MAX_ROWS * c->gate_stride, 0.5f, 0.49f);
}

/* --- the formulas --- */

static float *state_of(const struct recurrent_case *c, uint32_t state)
{
    return c->expected + ((size_t)state * LAYERS + LAYER) * delta_state_floats(&c->shape);
}

/* The part of a state that a node has. */
static float *part_of(const struct recurrent_case *c, enum recurrent_node node, uint32_t state)
{
    return state_of(c, state) + (node == RECURRENT_CONV ? 0 : delta_mix_floats(&c->shape));
}

static size_t part_bytes(const struct recurrent_case *c, enum recurrent_node node)
{
    size_t mix = delta_mix_floats(&c->shape);
    return (node == RECURRENT_CONV ? mix : delta_state_floats(&c->shape) - mix) * sizeof(float);
}

static void convolve(const struct recurrent_case *c, float *mix, const float *x, float *out)
{
    const struct delta_shape *s = &c->shape;
    for (uint32_t h = 0; h < delta_n_heads(s); h++) {
        uint32_t width = delta_head_width(s, h), begin = delta_head_begin(s, h), old = s->n_taps - 1;
        float *rows = mix + (size_t)begin * old;
        for (uint32_t i = 0; i < width; i++) {
            float sum = 0;
            for (uint32_t j = 0; j < s->n_taps; j++)
                sum = __builtin_fmaf(c->taps[(begin + i) * s->n_taps + j],
                                     j < old ? rows[(size_t)j * width + i] : x[begin + i], sum);
            out[begin + i] = sum;
        }
        memmove(rows, rows + width, (size_t)(old - 1) * width * sizeof *rows);
        memcpy(rows + (size_t)(old - 1) * width, x + begin, width * sizeof *rows);
    }
}

static void scan(const struct recurrent_case *c, float *heads, const float *x, const float *gates, float *out)
{
    const struct delta_shape *s = &c->shape;
    for (uint32_t h = 0; h < s->n_value_heads; h++) {
        uint32_t key = delta_key_head(s, h);
        delta_head(s, heads + h * delta_head_floats(s), x + delta_head_begin(s, key),
                   x + delta_head_begin(s, s->n_key_heads + key),
                   x + delta_head_begin(s, 2 * s->n_key_heads + h), gates[h], gates[s->n_value_heads + h],
                   out + (size_t)h * s->value_dim);
    }
}

static void begin_row(const struct recurrent_case *c, enum recurrent_node node, uint32_t row)
{
    const struct step *s = c->step;
    uint32_t slot = s->rows[row].slot;
    float *part = part_of(c, node, slot);
    if (row > 0 && s->rows[row - 1].slot == slot)
        return;
    for (uint32_t i = 0; i < s->n_page_ops; i++)
        if (s->page_ops[i].kind == STEP_STATE_LOAD && s->page_ops[i].page == slot)
            memcpy(part, part_of(c, node, s->page_ops[i].from), part_bytes(c, node));
    if (s->rows[row].pos == 0)
        memset(part, 0, part_bytes(c, node));
}

static void expect(const struct recurrent_case *c, enum recurrent_node node)
{
    const struct step *s = c->step;
    for (uint32_t row = 0; row < s->n_rows; row++) {
        uint32_t slot = s->rows[row].slot;
        float *part = part_of(c, node, slot), *out = c->wanted + (size_t)row * c->out_stride;
        const float *x = c->in + (size_t)row * c->in_stride;
        begin_row(c, node, row);
        if (node == RECURRENT_CONV)
            convolve(c, part, x, out);
        else
            scan(c, part, x, c->gates + (size_t)row * c->gate_stride, out);
        for (uint32_t i = 0; i < s->n_page_ops; i++)
            if (s->page_ops[i].kind == STEP_STATE_SAVE && s->page_ops[i].from == slot &&
                s->page_ops[i].host_offset == s->rows[row].pos)
                memcpy(part_of(c, node, s->page_ops[i].page), part, part_bytes(c, node));
    }
}

/* --- runs --- */

static int wrong(struct simt_report *report, const char *what)
{
    snprintf(report->kind, sizeof report->kind, "result");
    snprintf(report->text, sizeof report->text, "%s", what);
    return -1;
}

static struct decoder_states states_of(const struct recurrent_case *c)
{
    size_t floats = delta_state_floats(&c->shape);
    return (struct decoder_states){.data = AT(c->states),
                                   .bytes = LAYERS * floats * sizeof(float),
                                   .n_slots = SLOTS,
                                   .n_states = STATES,
                                   .n_layers = LAYERS,
                                   .layer_floats = (uint32_t)floats,
                                   .shape = c->shape};
}

static int launch(struct recurrent_case *c, enum recurrent_node node, uint32_t sm, uint64_t seed, int mute,
                  struct simt_report *report)
{
    struct node_step step = {.step = AT(c->step), .fault = AT(c->fault), .node = 42};
    struct node_rows in = {.data = AT(c->in), .stride = c->in_stride},
                     gates = {.data = AT(c->gates), .stride = c->gate_stride},
                     out = {.data = AT(c->out), .stride = c->out_stride};
    struct ssm_conv_args conv = {step, in, out, AT(c->taps), states_of(c), LAYER, 0};
    struct delta_net_args net = {step, in, gates, out, states_of(c), LAYER, 0};
    bool convolves = node == RECURRENT_CONV;
    uint32_t most = convolves ? NODE_CONV_THREADS : NODE_DELTA_NET_THREADS;
    uint32_t n_threads = c->n_threads < most ? c->n_threads : most;
    uint32_t room = convolves ? delta_convolve_bytes(&c->shape) : delta_room_bytes(&c->shape);
    struct simt_launch l = {.kernel = simt_find_kernel(convolves ? "ssm_conv" : "delta_net", sm),
                            .args = convolves ? (const void *)&conv : &net,
                            .n_threads = n_threads,
                            .shared_bytes = n_threads / 32 * room,
                            .n_blocks = c->n_blocks,
                            .seed = seed,
                            .schedule = SIMT_N_SCHEDULES,
                            .mute = mute};
    memset(c->fault, 0, sizeof c->fault);
    return simt_run(c->machine, &l, report);
}

static int compare(const struct recurrent_case *c, enum recurrent_node node, struct simt_report *report)
{
    uint32_t width = node == RECURRENT_CONV ? delta_channels(&c->shape) : delta_value_width(&c->shape);
    for (uint32_t row = 0; row < c->step->n_rows; row++)
        if (memcmp(c->out + (size_t)row * c->out_stride, c->wanted + (size_t)row * c->out_stride,
                   width * sizeof(float)) != 0)
            return wrong(report, "a row is another one");
    if (memcmp(c->states, c->expected, c->n_state * sizeof(float)) != 0)
        return wrong(report, "the states are others");
    return c->fault[FLOW_CLAIMED] ? wrong(report, "it says that something was out of range") : 0;
}

static void begin(struct recurrent_case *c, uint64_t seed)
{
    c->noise = c->number ^ (uint32_t)seed * 2246822519u;
    memset(c->done, 0, sizeof c->done);
    fill(c, c->states, c->n_state, 0, 1);
    memcpy(c->expected, c->states, c->n_state * sizeof(float));
}

int recurrent_case_run(struct recurrent_case *c, enum recurrent_node node, uint32_t sm, uint64_t seed,
                       int mute, struct simt_report *report)
{
    begin(c, seed);
    for (uint32_t i = 0; i < c->n_steps; i++) {
        make_step(c);
        expect(c, node);
        if (launch(c, node, sm, seed + i, mute, report) < 0 || compare(c, node, report) < 0)
            return -1;
    }
    return 0;
}

static int refuse(struct recurrent_case *c, enum recurrent_node node, uint32_t sm, uint64_t seed, int mute,
                  uint32_t what, uint32_t value, uint32_t limit, struct simt_report *report)
{
    if (launch(c, node, sm, seed, mute, report) < 0)
        return -1;
    bool told = c->fault[FLOW_ABORT] == DECODER_RANGE && c->fault[FLOW_WHAT] == what &&
                c->fault[FLOW_VALUE] == value && c->fault[FLOW_TARGET] == limit && c->fault[FLOW_OP] == 42;
    return told ? 0 : wrong(report, "an index out of range is not reported");
}

int recurrent_case_refuse(struct recurrent_case *c, enum recurrent_node node, uint32_t sm, uint64_t seed,
                          int mute, struct simt_report *report)
{
    struct step *s = c->step;
    begin(c, seed);
    s->n_rows = 2;
    s->n_page_ops = 0;
    s->rows[0] = (struct step_row){.slot = 0, .pos = 5};
    s->rows[1] = (struct step_row){.slot = SLOTS, .pos = 5};
    if (refuse(c, node, sm, seed, mute, DECODER_RANGE_ROW, SLOTS, SLOTS, report) < 0)
        return -1;
    s->rows[1].slot = 1;
    add_op(s, STEP_STATE_LOAD, 1, STATES, 0);
    if (refuse(c, node, sm, seed, mute, DECODER_RANGE_PAGE_OP, STATES, STATES, report) < 0)
        return -1;
    s->page_ops[0] =
        (struct step_page_op){.kind = STEP_STATE_SAVE, .page = STATES + 7, .from = 0, .host_offset = 5};
    if (refuse(c, node, sm, seed, mute, DECODER_RANGE_PAGE_OP, STATES + 7, STATES, report) < 0)
        return -1;
    s->n_rows = STEP_MAX_ROWS_CUDA + 1;
    return refuse(c, node, sm, seed, mute, DECODER_RANGE_COUNT, STEP_MAX_ROWS_CUDA + 1, STEP_MAX_ROWS_CUDA,
                  report);
}
