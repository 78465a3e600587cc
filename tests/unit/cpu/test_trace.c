/* The trace of a step on the cpu: what it holds, and what it says of who waits for whom. */
#include "model/program.h"
#include "support/decoder_run.h"
#include "support/trace_check.h"

#include <errno.h>

#define MODEL HEARTH_TEST_DATA "/tiny-qwen3-s11-q4_k_m.gguf"

/* Runs a step of `n_rows` rows from position `pos` on. */
static void run_rows(struct decoder_run *r, uint32_t pos, uint32_t n_rows)
{
    for (uint32_t i = 0; i < n_rows; i++)
        decoder_run_row(r, 0, pos + i, (int32_t)(5 + i), i + 1 == n_rows);
    decoder_run_step(r);
}

/* No member leaves its wait for the previous op before every member has done that. */
static void check_causes(const struct trace *t)
{
    for (uint32_t i = 1; i < t->n_ops; i++)
        for (uint32_t a = 0; a < t->n_members; a++)
            for (uint32_t b = 0; b < t->n_members; b++)
                cr_assert(trace_mark(t, a, i)->wait_ns[0][1] >= trace_mark(t, b, i - 1)->end_ns,
                          "op %u: member %u goes on before member %u has ended", i, a, b);
}

Test(trace, the_newest_step_is_complete_and_in_order_and_its_waits_have_causes)
{
    struct decoder_run r;
    struct decoder_run_config c = {.path = MODEL, .n_threads = 3};
    struct trace t;
    decoder_run_open(&r, &c);
    cr_assert_eq(executor_trace(r.x, true, NULL), 0);
    for (uint32_t pos = 0, n_rows = 9; pos<27; pos += n_rows, n_rows = n_rows> 1 ? n_rows / 2 : 1) {
        run_rows(&r, pos, n_rows);
        cr_assert_eq(executor_traced(r.x, &t, NULL), 0);
        uint32_t n_ops = executor_program(r.x)->n_ops;
        trace_check(&t, r.step->id, 3, n_ops, n_ops - 1); /* every op but the first waits for another */
        check_causes(&t);
        trace_close(&t);
    }
    decoder_run_close(&r);
}

Test(trace, a_step_without_notes_runs_as_before)
{
    struct decoder_run r;
    struct decoder_run_config c = {.path = MODEL, .n_threads = 2};
    struct trace t;
    float logits[2][4096];
    decoder_run_open(&r, &c);
    cr_assert_leq(r.n_vocab, 4096);
    for (uint32_t i = 0; i < 2; i++) {
        cr_assert_eq(executor_trace(r.x, i == 0, NULL), 0);
        decoder_run_row(&r, i, 0, 7, true);
        decoder_run_step(&r);
        memcpy(logits[i], executor_logits(r.x, 0), r.n_vocab * sizeof(float));
    }
    cr_assert_arr_eq(logits[0], logits[1], r.n_vocab * sizeof(float));
    cr_assert_eq(executor_trace(r.x, true, NULL), 0);
    cr_assert_eq(executor_traced(r.x, &t, NULL), 0); /* of no step: no marks */
    cr_assert(t.step == 0 && trace_mark(&t, 1, 0)->end_ns == 0);
    trace_close(&t);
    decoder_run_close(&r);
}

Test(trace, eager_keeps_none)
{
    struct decoder_run r;
    struct decoder_run_config c = {.path = MODEL, .kind = EXECUTOR_EAGER};
    struct error err = {0};
    decoder_run_open(&r, &c);
    cr_assert_eq(executor_trace(r.x, true, &err), -ENOTSUP);
    cr_assert_not_null(strstr(err.text, "only executor persistent"));
    decoder_run_close(&r);
}
