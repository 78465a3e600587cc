/* The notes of the blocks of the persistent kernel for the host, on the emulated driver. */
#include "abi/failure.h"
#include "abi/mixture_layout.h"
#include "cuda/cuda_decoder.h"
#include "model/program.h"
#include "support/decoder_run.h"
#include "support/models/made_model.h"
#include "support/trace_check.h"

#include <errno.h>

#define MODEL         HEARTH_TEST_DATA "/tiny-qwen3-s11-q4_k_m.gguf"
#define MODEL_EXPERTS HEARTH_TEST_DATA "/tiny-qwen3moe-s32-q4_k_m.gguf"

static void open_model(struct decoder_run *r, const char *path)
{
    struct decoder_run_config c = {.path = path, .ops = &cuda_backend, .libcuda = LIBCUDA, .n_slots = 2};
    setenv("SIMT_MEMORY_MB", "64", 1);
    decoder_run_open(r, &c);
}

static void open_run(struct decoder_run *r)
{
    open_model(r, MODEL);
}

static uint64_t launches(const struct decoder_run *r)
{
    struct backend_info info;
    executor_info(r->x, &info);
    return info.launches;
}

/* `n_rows` rows from position `pos` on; logits: of the last one. */
static void run_rows(struct decoder_run *r, uint32_t pos, uint32_t n_rows, bool logits)
{
    for (uint32_t i = 0; i < n_rows; i++)
        decoder_run_row(r, 0, pos + i, (int32_t)(5 + i), logits && i + 1 == n_rows);
    decoder_run_step(r);
}

static uint32_t n_blocks(void)
{
    const char *n = getenv("SIMT_BLOCKS");
    return n ? (uint32_t)atoi(n) : 3;
}

/* Of few rows an ATTEND op may take words, for which its warps wait while they work: then it has no wait, but
 * in dense layers behind the first, where it waits for the layer before. */
static bool takes_words(const struct program_op *op, uint32_t n_rows)
{
    return op->opcode == PROGRAM_ATTEND && n_rows <= 8;
}

static uint32_t n_without(const struct program *p, uint32_t n_rows)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_ops; i++)
        n += takes_words(&p->ops[i], n_rows);
    return n;
}

/* A wide step, whose products wait for phases too, then a narrow one: nothing of the first is left in its
 * marks. The blocks' clocks have different origins. */
Test(cuda_trace, each_step_is_complete_and_in_order, .timeout = 1200)
{
    struct decoder_run r;
    struct trace t;
    open_run(&r);
    uint32_t n_ops = executor_program(r.x)->n_ops, waits[2];
    cr_assert_eq(executor_trace(r.x, true, NULL), 0);
    for (uint32_t i = 0; i < 2; i++) {
        run_rows(&r, i * 9, i ? 1 : 9, true);
        cr_assert_eq(executor_traced(r.x, &t, NULL), 0);
        trace_check(&t, r.step->id, n_blocks(), n_ops,
                    n_ops - 1 - n_without(executor_program(r.x), i ? 1 : 9));
        waits[i] = trace_check_member(&t, 1);
        cr_assert(t.ready_ns && t.ready_ns <= trace_mark(&t, 0, 0)->begin_ns);
        cr_assert_geq(t.ended_ns, trace_mark(&t, 0, n_ops - 1)->end_ns);
        trace_close(&t);
    }
    cr_assert_lt(waits[1], waits[0]);
    decoder_run_close(&r);
}

/* Returns whether the op waits for nothing: ROUTE, if blocks choose their rows' experts for themselves, and
 * JOIN, which runs beside HEADS. */
static bool is_free(const struct program_op *op, uint32_t n_rows)
{
    return op->opcode == PROGRAM_JOIN ||
           (op->opcode == PROGRAM_ROUTE &&
            mixture_is_own(PROGRAM_CHOOSES, n_rows, op->route.n_used, op->route.n_experts));
}

/* Ops that the loop calls once for each of their products, and once more for a choice: each has all of its
 * waits, from the first call's on. The wide step gathers rows by expert. */
static void trace_repeated_calls(const char *path, enum program_opcode opcode)
{
    struct decoder_run r;
    struct trace t;
    open_model(&r, path);
    const struct program *p = executor_program(r.x);
    cr_assert_eq(executor_trace(r.x, true, NULL), 0);
    for (uint32_t step = 0; step < 2; step++) {
        uint32_t n_rows = step ? 1 : 32, n_called = 0;
        run_rows(&r, step * 32, n_rows, true);
        cr_assert_eq(executor_traced(r.x, &t, NULL), 0);
        cr_assert_eq(t.step, r.step->id);
        for (uint32_t b = 0; b < n_blocks(); b++) {
            trace_check_member(&t, b);
            for (uint32_t i = 0; i < p->n_ops; i++) {
                bool waits = i > 0 && !is_free(&p->ops[i], n_rows);
                n_called += p->ops[i].opcode == opcode;
                if (takes_words(&p->ops[i], n_rows))
                    continue;
                cr_expect_eq(trace_mark(&t, b, i)->n_waits > 0, waits, "%u rows, block %u, op %u", n_rows, b,
                             i);
            }
        }
        cr_assert_gt(n_called, 0);
        trace_close(&t);
    }
    decoder_run_close(&r);
}

Test(cuda_trace, an_op_of_several_calls_begins_with_the_first, .timeout = 1200)
{
    char path[64];
    trace_repeated_calls(MODEL_EXPERTS, PROGRAM_EXPERTS);
    made_model("tiny-deepseek", "q4_k_m", path);
    trace_repeated_calls(path, PROGRAM_HEADS);
    unlink(path);
}

Test(cuda_trace, ops_that_a_step_has_no_rows_for_have_no_times, .timeout = 1200)
{
    struct decoder_run r;
    struct trace t;
    open_run(&r);
    const struct program *p = executor_program(r.x);
    cr_assert_eq(executor_trace(r.x, true, NULL), 0);
    run_rows(&r, 0, 1, true);
    run_rows(&r, 1, 1, false); /* without logits: the head does not run */
    cr_assert_eq(executor_traced(r.x, &t, NULL), 0);
    for (uint32_t b = 0; b < t.n_members; b++)
        for (uint32_t i = 0; i < p->n_ops; i++)
            cr_assert_eq(trace_mark(&t, b, i)->end_ns > 0, !(p->ops[i].flags & PROGRAM_HEAD), "op %u", i);
    trace_close(&t);
    decoder_run_close(&r);
}

Test(cuda_trace, without_notes_the_kernel_stays, .timeout = 1200)
{
    struct decoder_run r;
    open_run(&r);
    run_rows(&r, 0, 1, true);
    cr_assert_eq(executor_trace(r.x, true, NULL), 0);
    run_rows(&r, 1, 1, true);
    cr_assert_eq(launches(&r), 2);
    cr_assert_eq(executor_trace(r.x, false, NULL), 0);
    run_rows(&r, 2, 1, true);
    run_rows(&r, 3, 1, true);
    cr_assert_eq(launches(&r), 3);
    decoder_run_close(&r);
}

/* ---- where the blocks stood ---- */

/* Steps until one fails; a hang must be noticed soon. `hops`: all blocks wait for each other's signals.
 * Behind words there are none to be counted, and a block that gives up goes on to the next signal before it
 * ends. */
static void run_until_it_hangs(struct decoder_run *r, bool hops, struct backend_info *info, struct error *err)
{
    struct decoder_run_config c = {.path = MODEL,
                                   .ops = &cuda_backend,
                                   .libcuda = LIBCUDA,
                                   .n_slots = 2,
                                   .stall_ms = 2000,
                                   .cuda_hops = hops};
    uint64_t done = 0;
    int rc = 0;
    setenv("SIMT_MEMORY_MB", "64", 1);
    decoder_run_open(r, &c);
    for (uint32_t i = 0; rc >= 0 && i < 200; i++) {
        decoder_run_row(r, 0, i, 5, true);
        r->step->id = i + 1;
        rc = executor_submit(r->x, r->step, err);
        while (rc >= 0 && done < i + 1)
            rc = executor_advance(r->x, r->results, 1, &done, err);
        memset(r->step, 0, offsetof(struct step, rows));
    }
    cr_assert_eq(rc, -EIO);
    executor_info(r->x, info);
    cr_assert_not_null(info->account, "%s", err->text);
}

static void expect_in_account(const struct backend_info *info, const char *words)
{
    cr_assert_not_null(strstr(info->account, words), "no \"%s\" in\n%s", words, info->account);
}

/* The first failure's record names a block that waits; the account names the one that it waits for. */
Test(cuda_account, a_block_that_hangs_is_named_with_its_op_and_so_are_the_others, .timeout = 1200)
{
    struct decoder_run r;
    struct backend_info info;
    struct error err = {0};
    setenv("SIMT_FAULT", "lost:600000", 1);
    run_until_it_hangs(&r, true, &info, &err);
    cr_assert(strstr(err.text, "took longer than 1000 ms") || strstr(err.text, "is not responding"), "%s",
              err.text); /* on a busy machine the host may be the first to see it */
    expect_in_account(&info, "): block 1, still there\n");
    expect_in_account(&info, "): block 0, 2\n"); /* which ended when they were told to */
    expect_in_account(&info, ": 2 of 3 blocks have signalled (counter ");
    cr_assert_eq(strncmp(info.account, "op ", 3), 0, "%s", info.account);
    decoder_run_close(&r);
}

/* Whatever the others miss, values or a part or a signal, is told in words, not as the number of its record.
 */
Test(cuda_account, among_words_a_lost_block_is_named_too, .timeout = 1200)
{
    struct decoder_run r;
    struct backend_info info;
    struct error err = {0};
    setenv("SIMT_FAULT", "lost:600000", 1);
    run_until_it_hangs(&r, false, &info, &err);
    const char *word = strstr(err.text, ": word ");
    cr_assert(!word || atol(word + strlen(": word ")) < FLOW_GATE, "%s", err.text);
    expect_in_account(&info, "): block 1");
    decoder_run_close(&r);
}

Test(cuda_account, a_wait_that_failed_is_put_into_words, .timeout = 1200)
{
    static const struct {
        uint32_t record[3];
        const char *words;
    } waits[] = {{{12, 3, 4}, "word 12 is 3, expected 4"},
                 {{FLOW_STAGE + 2, 1, 0}, "stage 2 of the weight ring was not passed on"},
                 {{FLOW_HEAD + 7, 0, 1}, "a split's part of head 7 is missing"},
                 {{FLOW_VALUES, 0, 1}, "values of the op before are missing"},
                 {{FLOW_GATE, 1, 0}, "a gate to the producer was not opened"}};
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++) {
        char text[64];
        cuda_name_wait(waits[i].record, text, sizeof text);
        cr_assert_str_eq(text, waits[i].words);
    }
}

Test(cuda_account, of_a_grid_that_stands_still_all_blocks_are_named, .timeout = 1200)
{
    struct decoder_run r;
    struct backend_info info;
    struct error err = {0};
    setenv("SIMT_FAULT", "stuck:600000", 1);
    run_until_it_hangs(&r, true, &info, &err);
    cr_assert_not_null(strstr(err.text, "is not responding"), "%s", err.text);
    expect_in_account(&info, ", still there\n");
    cr_assert_null(strstr(info.account, "not begun"), "%s", info.account);
    decoder_run_close(&r);
}
