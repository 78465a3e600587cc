/* Recurrent layers: every way to run one gives the same bits, near those of exact. */
#include "abi/delta.h"
#include "cpu/ops/ops.h"
#include "support/models/made_model.h"
#include "support/sanitized.h"
#include "support/state_run.h"

#include <errno.h>
#include <math.h>

enum { N_TOKENS = STATE_TOKENS, N_VOCAB = STATE_VOCAB, N_SEEN = 8 };

static const char *const shapes[] = {"tiny-qwen35", "tiny-qwen35moe", "tiny-qwen3next"};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* The last rows have logits in every run. */
static void expect_tail(const float *wanted, const float *found, const char *what)
{
    for (uint32_t i = N_TOKENS - N_SEEN; i < N_TOKENS; i++)
        cr_assert_eq(
            memcmp(wanted + (size_t)i * N_VOCAB, found + (size_t)i * N_VOCAB, N_VOCAB * sizeof *found), 0,
            "%s, position %u", what, i);
}

static void expect_same(const float *wanted, struct decoder_run_config c, uint32_t chunk, const char *what)
{
    float *found = decoder_run_logits(&c, state_text(), N_TOKENS, chunk);
    expect_tail(wanted, found, what);
    free(found);
}

static void check_shape(const char *shape, const char *quant)
{
    char path[64];
    made_model(shape, quant, path);
    struct decoder_run_config c = {.path = path};
    float *wanted = decoder_run_logits(&c, state_text(), N_TOKENS, 25);
    expect_same(wanted, (struct decoder_run_config){.path = path, .n_threads = 3}, 1,
                "three threads, row by row");
    c.kind = EXECUTOR_EAGER;
    c.n_threads = 2;
    expect_same(wanted, c, 7, "eager");
    static unsigned number;
    c.isa = "scalar";
    if (number++ % SANITIZED_STRIDE(3) == 0) { /* the slowest */
        expect_same(wanted, c, 75, "eager, scalar");
        expect_same(wanted, (struct decoder_run_config){.path = path, .isa = "scalar"}, 32, "scalar");
    }
    if (decoder_run_has_isa("avx2"))
        expect_same(wanted, (struct decoder_run_config){.path = path, .isa = "avx2"}, 2, "avx2");
    free(wanted);
    (void)unlink(path);
}

Test(delta_net, gives_the_same_bits_for_each_executor_thread_count_chunk_and_instruction_set)
{
    for (int i = 0; i < N_SHAPES; i++)
        check_shape(shapes[i], "q4_k_m");
    check_shape(shapes[0], "f16");
}

/* Sequences of three slots advance side by side, by chunks of their own; a fourth one begins where another
 * has been. */
Test(delta_net, gives_a_sequence_the_same_bits_beside_others_and_in_a_used_slot)
{
    char path[64];
    made_model(shapes[0], "q8_0", path);
    struct decoder_run_config c = {.path = path, .n_threads = 2};
    struct decoder_run r;
    float *wanted = decoder_run_logits(&c, state_text(), N_TOKENS, 30);
    float *found = calloc((size_t)N_TOKENS * N_VOCAB, sizeof *found);
    uint32_t at[3] = {0, 0, 0}, index[N_TOKENS];
    decoder_run_open(&r, &c);
    decoder_run_feed(&r, 1, state_text() + 20, N_TOKENS - 20, 50, NULL);
    while (at[1] < N_TOKENS) {
        uint32_t first = at[1];
        for (uint32_t slot = 0; slot < 3; slot++)
            for (uint32_t i = 0; i < 2 * slot + 1 && at[slot] < N_TOKENS; i++, at[slot]++) {
                int32_t token = state_text()[(at[slot] + (slot == 1 ? 0 : 11 + slot)) % N_TOKENS];
                uint32_t logits = decoder_run_row(&r, slot, at[slot], token, slot == 1);
                index[at[slot]] = slot == 1 ? logits : index[at[slot]];
            }
        decoder_run_step(&r);
        for (uint32_t i = first; i < at[1]; i++)
            memcpy(found + (size_t)i * N_VOCAB, executor_logits(r.x, index[i]), N_VOCAB * sizeof *found);
    }
    expect_tail(wanted, found, "beside others");
    decoder_run_close(&r);
    free(wanted);
    free(found);
    (void)unlink(path);
}

static double distance(const float *a, const float *b)
{
    double error = 0, size = 0;
    for (uint32_t j = 0; j < N_VOCAB; j++) {
        double d = (double)a[j] - (double)b[j];
        error += d * d;
        size += (double)b[j] * (double)b[j];
    }
    return sqrt(error / size);
}

/* With float weights int8 differs by the cache's type alone. */
Test(delta_net, agrees_with_exact)
{
    for (int i = 0; i < N_SHAPES; i++) {
        char path[64];
        made_model(shapes[i], "f32", path);
        struct decoder_run_config c = {.path = path};
        float *found = decoder_run_logits(&c, state_text(), N_TOKENS, 25);
        c.kind = EXECUTOR_EAGER;
        c.arithmetic = BACKEND_EXACT;
        float *exact = decoder_run_logits(&c, state_text(), N_TOKENS, 31);
        for (uint32_t t = N_TOKENS - N_SEEN; t < N_TOKENS; t++) {
            double d = distance(found + (size_t)t * N_VOCAB, exact + (size_t)t * N_VOCAB);
            cr_assert(d < 5e-3, "%s position %u: %g", shapes[i], t, d);
        }
        free(found);
        free(exact);
        (void)unlink(path);
    }
}

Test(delta_net, refuses_rows_that_do_not_follow_one_another)
{
    char path[64];
    made_model(shapes[0], "q8_0", path);
    const struct decoder_run_config c = {.path = path};
    static const uint32_t wrong[3][2] = {{3, 4}, {2, 4}, {1, 2}}; /* after positions 0 and 1 */
    for (int i = 0; i < 3; i++) {
        struct decoder_run r;
        struct error err = {0};
        decoder_run_open(&r, &c);
        decoder_run_feed(&r, 0, state_text(), 2, 2, NULL);
        for (int j = 0; j < 2; j++)
            decoder_run_row(&r, 0, wrong[i][j], 5, false);
        r.step->id++;
        cr_assert_eq(executor_submit(r.x, r.step, &err), -EINVAL, "%d", i);
        cr_assert(strstr(err.text, "recurrent layer"), "%s", err.text);
        r.step->n_rows = 0;
        decoder_run_feed(&r, 0, state_text(), 5, 5, NULL); /* a new sequence may begin all the same */
        decoder_run_close(&r);
    }
    (void)unlink(path);
}

Test(delta_net, goes_on_from_a_state_that_was_kept_behind_any_row)
{
    for (int i = 0; i < N_SHAPES; i++) {
        char path[64];
        made_model(shapes[i], "q4_k_m", path);
        state_check_snapshots(&(struct decoder_run_config){.path = path, .n_threads = 2});
        state_check_snapshots(
            &(struct decoder_run_config){.path = path, .kind = EXECUTOR_EAGER, .n_threads = 1});
        (void)unlink(path);
    }
}

Test(delta_net, goes_on_from_a_state_that_was_exported_and_imported)
{
    char path[64];
    made_model(shapes[0], "q8_0", path);
    state_check_exported(&(struct decoder_run_config){.path = path});
    (void)unlink(path);
}

/* Each operation goes with rows 5 and 6 of slot 0, whose state has seen five rows. */
Test(delta_net, refuses_operations_on_states_that_have_no_order)
{
    static const struct {
        struct step_page_op op[2];
        const char *words;
    } wrong[] = {
        {{{.kind = STEP_STATE_SAVE, .page = 1000, .from = 0, .host_offset = 5}}, "page is 1000"},
        {{{.kind = STEP_STATE_SAVE, .page = 9, .from = 0, .host_offset = 4}}, "which no row has"},
        {{{.kind = STEP_STATE_SAVE, .page = 9, .from = 0, .host_offset = 7}}, "which no row has"},
        {{{.kind = STEP_STATE_SAVE, .page = 0, .from = 0, .host_offset = 5}}, "which another one uses"},
        {{{.kind = STEP_STATE_SAVE, .page = 9, .from = 0, .host_offset = 5},
          {.kind = STEP_STATE_SAVE, .page = 9, .from = 0, .host_offset = 6}},
         "which another one uses"},
        {{{.kind = STEP_STATE_LOAD, .page = 0, .from = 9}}, "empty"},
        {{{.kind = STEP_STATE_LOAD, .page = 1, .from = 9}}, "has no rows"},
        {{{.kind = STEP_STATE_LOAD, .page = 0, .from = 1000}}, "from is 1000"},
        {{{.kind = STEP_STATE_LOAD, .page = 8, .from = 0}}, "page is 8"},
        {{{.kind = STEP_STATE_LOAD, .page = 0, .from = 8}}, "recurrent layer expects"}, /* four rows */
        {{{.kind = STEP_STATE_IMPORT + 1, .page = 0, .from = 8}}, "unknown"},
        {{{.kind = STEP_STATE_EXPORT, .page = 1000}}, "page is 1000"},
        {{{.kind = STEP_STATE_IMPORT, .page = 8, .from = 1000}}, "from is 1000"},
        {{{.kind = STEP_STATE_EXPORT, .page = 8, .host_offset = UINT32_MAX}}, "transfer buffer"},
    };
    char path[64];
    float logits[N_VOCAB];
    made_model(shapes[0], "q8_0", path);
    const struct decoder_run_config c = {.path = path};
    struct decoder_run r;
    decoder_run_open(&r, &c);
    state_op(&r, STEP_STATE_SAVE, 8, 0, 3);
    state_feed(&r, 0, 0, 5, logits);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct error err = {0};
        decoder_run_row(&r, 0, 5, 1, false);
        decoder_run_row(&r, 0, 6, 1, false);
        memcpy(r.step->page_ops, wrong[i].op, sizeof wrong[i].op);
        r.step->n_page_ops = wrong[i].op[1].kind ? 2 : 1;
        r.step->id++;
        cr_assert_eq(executor_submit(r.x, r.step, &err), -EINVAL, "%zu", i);
        cr_assert(strstr(err.text, wrong[i].words), "%zu: %s", i, err.text);
        r.step->n_rows = r.step->n_page_ops = 0;
        r.step->id--;
    }
    state_feed(&r, 0, 5, 7, logits); /* nothing has changed */
    decoder_run_close(&r);
    (void)unlink(path);
}

static void fill(float *x, size_t n, uint32_t seed, float centre, float spread)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = centre + spread * ((float)(seed >> 8) / (float)(1u << 23) - 1);
    }
}

enum { ROWS = 5, KEY = 64, VALUE = 48 };

static void check_kernel(const struct ops *ops)
{
    const struct delta_shape shape = {
        .n_key_heads = 1, .n_value_heads = 1, .key_dim = KEY, .value_dim = VALUE, .n_taps = 4};
    static float q[ROWS * KEY], k[ROWS * KEY], v[ROWS * KEY], beta[ROWS], decay[ROWS];
    _Alignas(64) static float state[KEY * VALUE], out[ROWS * KEY];
    float wanted_state[KEY * VALUE], wanted[VALUE];
    fill(q, ROWS * KEY, 1, 0, 0.1f);
    fill(k, ROWS * KEY, 2, 0, 0.2f);
    fill(v, ROWS * KEY, 3, 0, 1);
    fill(beta, ROWS, 4, 0.5f, 0.4f);
    fill(decay, ROWS, 5, 0.9f, 0.09f);
    fill(state, KEY * VALUE, 6, 0, 1);
    memcpy(wanted_state, state, sizeof state);
    const struct ops_delta job = {.key_dim = KEY,
                                  .value_dim = VALUE,
                                  .n_rows = ROWS,
                                  .state = state,
                                  .q = q,
                                  .k = k,
                                  .v = v,
                                  .beta = beta,
                                  .decay = decay,
                                  .out = out,
                                  .in_stride = KEY,
                                  .gate_stride = 1,
                                  .out_stride = KEY};
    ops->delta(&job);
    for (uint32_t i = 0; i < ROWS; i++) {
        delta_head(&shape, wanted_state, q + i * KEY, k + i * KEY, v + i * KEY, beta[i], decay[i], wanted);
        cr_assert_eq(memcmp(wanted, out + i * KEY, sizeof wanted), 0, "%s, row %u", ops->name, i);
    }
    cr_assert_eq(memcmp(wanted_state, state, sizeof state), 0, "%s", ops->name);
}

Test(delta_net, kernels_equal_the_reference_in_every_bit)
{
    static const char *const names[] = {"scalar", "avx2", "avxvnni", "avx512vnni"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (decoder_run_has_isa(names[i]))
            check_kernel(ops_find(names[i]));
}
