/* The exact arithmetic, against recorded float64 logits. */
#include "cpu/reference/reference.h"
#include "backend/executor.h"
#include "support/failing_alloc.h"
#include "support/golden.h"
#include "support/models/variant.h"

#include <criterion/criterion.h>
#include <errno.h>

static struct step step; /* too large for a stack */

struct oracle {
    struct model *m;
    struct graph *g;
    struct exact *x;
};

static struct oracle oracle_open(const char *path, uint32_t n_slots, uint32_t n_ctx)
{
    struct oracle o = {0};
    struct error err = {0};
    cr_assert_eq(model_open(&o.m, path, &err), 0, "%s", err.text);
    cr_assert_eq(graph_open(&o.g, o.m, &err), 0, "%s", err.text);
    cr_assert_eq(exact_open(&o.x, o.g, n_slots, n_ctx, &err), 0, "%s", err.text);
    return o;
}

static void oracle_close(struct oracle *o)
{
    exact_close(o->x);
    graph_close(o->g);
    model_close(o->m);
}

static int dispatch(void *x, uint32_t node, struct error *err)
{
    return exact_dispatch(x, node, err);
}

static int run(struct oracle *o, struct error *err)
{
    int rc = exact_begin(o->x, &step, err);
    return rc < 0 ? rc : executor_walk(o->g, &(struct executor_walk){dispatch, o->x, NULL}, err);
}

/* A step of the tokens at positions [from, to) of one slot, all with logits. */
static void fill_step(const int32_t *tokens, uint32_t slot, uint32_t from, uint32_t to)
{
    memset(&step, 0, sizeof step);
    for (uint32_t pos = from; pos < to; pos++) {
        uint32_t i = step.n_rows++;
        step.rows[i] = (struct step_row){slot, pos, tokens[pos], 0, (uint16_t)i};
        step.logits[i] = (struct step_logit){(uint16_t)i, 0, -1, STEP_EXPORT, 0};
        step.n_logits++;
    }
}

static void check_golden(const char *dir, const char *name)
{
    struct golden g;
    struct error err = {0};
    cr_assert(golden_open(&g, dir, name), "%s/%s", dir, name);
    struct oracle o = oracle_open(g.model, 1, 2048);
    double worst = 0, mean = 0;
    for (uint32_t pos = 0; pos < g.n_tokens; pos += 16) {
        fill_step(g.tokens, 0, pos, pos + 16);
        cr_assert_gt(run(&o, &err), 0, "%s", err.text);
        for (uint32_t i = 0; i < 16; i++) {
            double e = golden_error(&g, pos + i, exact_logits(o.x, i));
            cr_expect(e < 2e-3, "%s position %u: %g", name, pos + i, e);
            worst = e > worst ? e : worst;
            mean += e / g.n_tokens;
        }
    }
    printf("exact %-24s worst %.2e mean %.2e\n", name, worst, mean);
    oracle_close(&o);
    golden_close(&g);
}

Test(exact, agrees_with_the_recorded_logits)
{
    for (size_t i = 0; i < GOLDEN_N_DATA; i++)
        check_golden(HEARTH_TEST_DATA, golden_data_names[i]);
    for (size_t i = 0; i < GOLDEN_N_DATA_FAMILIES; i++)
        check_golden(HEARTH_TEST_DATA, golden_data_families[i]);
}

Test(exact, agrees_with_all_recorded_logits_beside_the_checkout)
{
    const char *dir = golden_shared();
    if (!dir) {
        printf("SKIP test_reference shared-golden: ../shared/golden is not here\n");
        fflush(stdout);
        cr_skip_test("../shared/golden is not here");
    }
    for (size_t i = 0; i < GOLDEN_N_SHARED; i++)
        check_golden(dir, golden_shared_names[i]);
    for (size_t i = 0; i < GOLDEN_N_SHARED_FAMILIES; i++)
        check_golden(dir, golden_shared_families[i]);
}

/* ---- the cache, the rows, the errors: on one small model ---- */

static struct oracle tiny(uint32_t n_slots, uint32_t n_ctx)
{
    return oracle_open(HEARTH_TEST_DATA "/tiny-qwen3-s11-q8_0.gguf", n_slots, n_ctx);
}

static const int32_t text[12] = {5, 91, 300, 17, 17, 204, 66, 480, 1, 39, 250, 111};
enum { N_TEXT = 12, N_VOCAB = 512 };

/* Logits of every position of the text, in one step. */
static float *logits_of_text(void)
{
    static float all[N_TEXT][N_VOCAB];
    struct oracle o = tiny(1, 64);
    fill_step(text, 0, 0, N_TEXT);
    cr_assert_gt(run(&o, NULL), 0);
    for (uint32_t i = 0; i < N_TEXT; i++)
        memcpy(all[i], exact_logits(o.x, i), sizeof all[i]);
    oracle_close(&o);
    return all[0];
}

static void assert_same(const float *found, const float *expected)
{
    cr_assert_not_null(found);
    cr_assert_eq(memcmp(found, expected, N_VOCAB * sizeof *found), 0);
}

Test(exact, gives_the_same_bits_row_by_row_and_in_chunks)
{
    const float *all = logits_of_text();
    struct oracle o = tiny(1, 64);
    const uint32_t ends[] = {1, 2, 7, 11, 12};
    for (uint32_t pos = 0, c = 0; pos < N_TEXT; pos = ends[c++]) {
        fill_step(text, 0, pos, ends[c]);
        cr_assert_gt(run(&o, NULL), 0);
        for (uint32_t i = pos; i < ends[c]; i++)
            assert_same(exact_logits(o.x, i - pos), all + i * N_VOCAB);
    }
    oracle_close(&o);
}

Test(exact, gives_the_same_bits_when_weights_are_too_large_to_keep)
{
    char path[64];
    const float *all = logits_of_text();
    /* 512 MB as floats, of which nothing is ever read */
    variant_write(path, "tiny-qwen3-s11-q8_0", EDITS(SET_TENSOR("unused", 41, 16384, 8192)));
    struct oracle o = oracle_open(path, 1, 64);
    unlink(path);
    fill_step(text, 0, 0, N_TEXT);
    cr_assert_gt(run(&o, NULL), 0);
    for (uint32_t i = 0; i < N_TEXT; i++)
        assert_same(exact_logits(o.x, i), all + i * N_VOCAB);
    oracle_close(&o);
}

Test(exact, slots_do_not_see_each_other)
{
    const float *all = logits_of_text();
    struct oracle o = tiny(3, 64);
    const int32_t other[N_TEXT] = {9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 11, 12};
    for (uint32_t pos = 0; pos < N_TEXT; pos++) {
        fill_step(text, 2, pos, pos + 1);
        step.rows[1] = (struct step_row){0, pos, other[pos], 0, STEP_NO_LOGITS};
        step.n_rows = 2;
        cr_assert_gt(run(&o, NULL), 0);
        assert_same(exact_logits(o.x, 0), all + pos * N_VOCAB);
    }
    oracle_close(&o);
}

Test(exact, a_slot_starts_again_at_position_0)
{
    const float *all = logits_of_text();
    struct oracle o = tiny(1, 64);
    const int32_t other[3] = {400, 401, 402};
    fill_step(other, 0, 0, 3);
    cr_assert_gt(run(&o, NULL), 0);
    fill_step(text, 0, 0, N_TEXT);
    cr_assert_gt(run(&o, NULL), 0);
    assert_same(exact_logits(o.x, N_TEXT - 1), all + (N_TEXT - 1) * N_VOCAB);
    oracle_close(&o);
}

Test(exact, cache_grows_without_losing_what_it_holds)
{
    struct oracle long_one = tiny(1, 200), o = tiny(1, 200);
    int32_t tokens[150];
    for (int i = 0; i < 150; i++)
        tokens[i] = i * 37 % N_VOCAB;
    for (uint32_t pos = 0; pos < 150; pos += 30) {
        fill_step(tokens, 0, pos, pos + 30);
        cr_assert_gt(run(&o, NULL), 0);
    }
    static float last[N_VOCAB];
    memcpy(last, exact_logits(o.x, 29), sizeof last);
    memset(&step, 0, sizeof step); /* the same in one step, of which only the last row has logits */
    for (uint32_t pos = 0; pos < 150; pos++)
        step.rows[pos] = (struct step_row){0, pos, tokens[pos], 0, pos == 149 ? 0 : STEP_NO_LOGITS};
    step.n_rows = 150;
    step.n_logits = 1;
    step.logits[0] = (struct step_logit){149, 0, -1, 0, 0};
    cr_assert_gt(run(&long_one, NULL), 0);
    assert_same(exact_logits(long_one.x, 0), last);
    oracle_close(&long_one);
    oracle_close(&o);
}

static int32_t largest(const float *logits)
{
    int32_t best = 0;
    for (int32_t i = 1; i < N_VOCAB; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

Test(exact, last_sampled_is_the_largest_logit_unless_it_is_set)
{
    struct oracle o = tiny(1, 64);
    static float named[N_VOCAB];
    fill_step(text, 0, 0, 4);
    step.n_logits = 1;
    step.logits[0].row = 3;
    cr_assert_gt(run(&o, NULL), 0);
    int32_t best = largest(exact_logits(o.x, 0));
    const int32_t longer[5] = {text[0], text[1], text[2], text[3], STEP_LAST_SAMPLED};
    fill_step(longer, 0, 4, 5);
    cr_assert_gt(run(&o, NULL), 0);
    memcpy(named, exact_logits(o.x, 0), sizeof named);
    step.rows[0].token = best;
    cr_assert_gt(run(&o, NULL), 0);
    assert_same(exact_logits(o.x, 0), named);
    step.rows[0].token = STEP_LAST_SAMPLED;
    exact_sampled(o.x, 0, best);
    cr_assert_gt(run(&o, NULL), 0);
    assert_same(exact_logits(o.x, 0), named);
    exact_sampled(o.x, 0, best == 7 ? 8 : 7);
    cr_assert_gt(run(&o, NULL), 0);
    cr_assert_neq(memcmp(exact_logits(o.x, 0), named, sizeof named), 0);
    oracle_close(&o);
}

Test(exact, a_step_without_logit_rows_still_launches_every_node)
{
    struct oracle o = tiny(1, 64);
    fill_step(text, 0, 0, 4);
    step.n_logits = 0;
    cr_assert_eq(run(&o, NULL), (int)graph_n_launches(o.g));
    cr_assert_null(exact_logits(o.x, 0));
    oracle_close(&o);
}

/* The step as it stands is refused, in these words. */
static void refuses(struct oracle *o, const char *words)
{
    struct error err = {0};
    cr_assert_eq(exact_begin(o->x, &step, &err), -EINVAL);
    cr_assert_not_null(strstr(err.text, words), "\"%s\" does not say \"%s\"", err.text, words);
}

Test(exact, refuses_rows_out_of_range)
{
    struct oracle o = tiny(2, 16);
    fill_step(text, 2, 0, 1);
    refuses(&o, "slot 2 of 2");
    fill_step(text, 1, 0, 1);
    step.rows[0].token = N_VOCAB;
    refuses(&o, "token 512 of 512");
    step.rows[0].token = STEP_LAST_SAMPLED; /* of a slot that has sampled nothing */
    refuses(&o, "token -1");
    step.rows[0] = (struct step_row){1, 16, 5, 0, 0};
    refuses(&o, "position 16 of 16");
    step.rows[0] = (struct step_row){0, 3, 5, 0, 0};
    refuses(&o, "position 3 of slot 0, which has 0 positions");
    fill_step(text, 0, 0, 1);
    step.logits[0].row = 1;
    refuses(&o, "logit row 0 names row 1 of 1");
    step.n_rows = STEP_MAX_ROWS + 1;
    refuses(&o, "513 rows");
    oracle_close(&o);
}

Test(exact, refuses_a_node_whose_input_has_not_run)
{
    struct oracle o = tiny(1, 16);
    struct error err = {0};
    fill_step(text, 0, 0, 1);
    cr_assert_eq(exact_begin(o.x, &step, NULL), 0);
    cr_assert_eq(exact_dispatch(o.x, 2, &err), -EINVAL);
    cr_assert_not_null(strstr(err.text, "token_embd has not run before blk.0.attn_norm"), "%s", err.text);
    cr_assert_eq(exact_dispatch(o.x, o.g->n_nodes, NULL), -EINVAL);
    oracle_close(&o);
}

Test(exact, survives_every_allocation_failing)
{
    struct oracle o = tiny(1, 16);
    long n = 0;
    fill_step(text, 0, 0, 2);
    for (int rc = -ENOMEM; rc < 0; n++) {
        struct exact *x = NULL;
        fail_alloc_after(n);
        rc = exact_open(&x, o.g, 1, 16, NULL);
        rc = rc < 0 ? rc : exact_begin(x, &step, NULL);
        rc = rc < 0 ? rc : executor_walk(o.g, &(struct executor_walk){dispatch, x, NULL}, NULL);
        fail_alloc_never();
        cr_assert(rc > 0 || rc == -ENOMEM, "allocation %ld: %d", n, rc);
        exact_close(x);
    }
    cr_assert_gt(n, 50);
    oracle_close(&o);
}

Test(exact, refuses_a_step_with_page_operations)
{
    const int32_t tokens[] = {1, 2};
    struct error err = {0};
    struct oracle o = oracle_open(HEARTH_TEST_DATA "/tiny-qwen3-s11-q8_0.gguf", 1, 64);
    fill_step(tokens, 0, 0, 2);
    step.page_ops[0] = (struct step_page_op){.kind = STEP_PAGE_COPY, .page = 1, .from = 0};
    step.n_page_ops = 1;
    cr_assert_eq(exact_begin(o.x, &step, &err), -EINVAL);
    cr_assert_not_null(strstr(err.text, "page operations"), "%s", err.text);
    oracle_close(&o);
}

/* The file's router of layer 1 says no numbers. */
static struct oracle with_broken_router(void)
{
    char path[64];
    struct gguf *g = NULL;
    variant_write(path, "tiny-deepseek2-s74-f16", NULL, 0);
    cr_assert_eq(gguf_open(&g, path, NULL), 0);
    const struct gguf_tensor *t = gguf_find_tensor(g, "blk.1.ffn_gate_inp.weight");
    cr_assert(t && t->type == QUANT_F32);
    uint8_t *bytes = malloc(t->size);
    memset(bytes, 0xff, t->size); /* NaN */
    FILE *f = fopen(path, "r+b");
    cr_assert(f && fseek(f, (long)t->offset, SEEK_SET) == 0 && fwrite(bytes, t->size, 1, f) == 1);
    (void)fclose(f);
    free(bytes);
    gguf_close(g);
    struct oracle o = oracle_open(path, 1, 64);
    unlink(path);
    return o;
}

Test(exact, chooses_valid_experts_when_the_router_says_no_numbers)
{
    struct oracle o = with_broken_router();
    const int32_t tokens[] = {5, 91, 200, 17};
    fill_step(tokens, 0, 0, 4);
    cr_assert_gt(run(&o, NULL), 0);
    for (uint32_t i = 0; i < 4; i++)
        cr_assert(isnan(exact_logits(o.x, i)[0]), "position %u", i);
    oracle_close(&o);
}
