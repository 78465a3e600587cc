/* The cpu backend's promise: the same bits however the work is cut, and nothing done on a bad index. */
#include "base/memory.h"
#include "support/decoder_run.h"
#include "support/models/made_model.h"
#include "support/sanitized.h"
#include "cpu/cpu_decoder.h"
#include "cpu/matmul/matmul_pack.h"
#include "sampler/sampler.h"

#include <errno.h>
#include <math.h>
#include <time.h>
#include <unistd.h>

#define N 80 /* tokens: over a page's border */

static const char *const files[] = {
    HEARTH_TEST_DATA "/tiny-llama3-s15-q4_k_m.gguf",   HEARTH_TEST_DATA "/tiny-qwen2-odd-s13-q5_0.gguf",
    HEARTH_TEST_DATA "/tiny-qwen3-s11-q4_k_m.gguf",    HEARTH_TEST_DATA "/tiny-qwen3-s11-q8_0.gguf",
    HEARTH_TEST_DATA "/tiny-qwen3moe-s32-q4_k_m.gguf", HEARTH_TEST_DATA "/tiny-qwen2moe-s82-q4_k_m.gguf",
    HEARTH_TEST_DATA "/tiny-glm4moe-s72-q4_k_m.gguf",
};
#define N_FILES (sizeof files / sizeof *files)

static int32_t tokens[512];

static void make_tokens(void)
{
    for (uint32_t i = 0; i < 512; i++)
        tokens[i] = (int32_t)((i * 7919u + i * i * 31u + 5u) % 320u); /* 320: the smallest vocabulary */
}

static uint32_t vocabulary(const char *path)
{
    struct model *m = NULL;
    cr_assert_eq(model_open(&m, path, NULL), 0);
    uint32_t n = model_config(m)->n_vocab;
    model_close(m);
    return n;
}

/* Logits of the first N tokens, run in one way. */
static float *logits_of(const char *path, struct decoder_run_config c, uint32_t chunk)
{
    c.path = path;
    return decoder_run_logits(&c, tokens, N, chunk);
}

static void expect_same(const float *a, const float *b, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        cr_assert(memcmp(&a[i], &b[i], sizeof *a) == 0, "%s: logit %zu is %a, expected %a", what, i,
                  (double)b[i], (double)a[i]);
}

/* On every file, and with every cache type, b gives the bits of a: every second pair of them, from the first
 * or the second on. */
static void expect_same_bits(struct decoder_run_config a, uint32_t chunk_a, struct decoder_run_config b,
                             uint32_t chunk_b)
{
    make_tokens();
    const uint32_t stride = SAMPLED_STRIDE(2, 5);
    for (uint32_t i = chunk_b % stride; i < KV_N_TYPES * N_FILES; i += stride) {
        const char *path = files[i / KV_N_TYPES];
        a.kv_type = b.kv_type = (enum kv_type)((i + chunk_a + chunk_b) % KV_N_TYPES);
        float *x = logits_of(path, a, chunk_a), *y = logits_of(path, b, chunk_b);
        expect_same(x, y, (size_t)N * vocabulary(path), path);
        free(x);
        free(y);
    }
}

struct reports {
    uint32_t n;
    double last, widest;
};

static void note_report(void *context, double fraction)
{
    struct reports *r = context;
    cr_assert(fraction >= r->last - 1e-9 && fraction <= 1 + 1e-9, "%g after %g", fraction, r->last);
    r->widest = fraction - r->last > r->widest ? fraction - r->last : r->widest;
    r->last = fraction;
    r->n++;
}

/* The embedding alone is a sixth of the demo model. */
Test(cpu_backend, loading_reports_pieces_of_a_large_weight)
{
    struct model *m = NULL;
    struct executor *x = NULL;
    struct error err = {0};
    struct reports reports = {0};
    struct backend_config cfg = {
        .n_threads = 1, .n_slots = 1, .n_ctx = 64, .progress = note_report, .context = &reports};
    cr_assert_eq(model_open(&m, HEARTH_SOURCE_DIR "/models/hearth-stories-6m-q4_k_m.gguf", &err), 0, "%s",
                 err.text);
    cr_assert_eq(executor_open(&x, EXECUTOR_PERSISTENT, &cpu_backend, &cfg, m, &err), 0, "%s", err.text);
    cr_assert_gt(reports.n, model_n_weights(m));
    cr_assert_lt(reports.widest, 0.06, "%g of %u", reports.widest, reports.n);
    cr_assert_float_eq(reports.last, 1, 1e-9);
    executor_close(x);
    model_close(m);
}

static void expect_isa_gives_scalar_bits(const char *isa)
{
    if (decoder_run_has_isa(isa))
        expect_same_bits((struct decoder_run_config){.isa = "scalar"}, 16,
                         (struct decoder_run_config){.isa = isa}, 16);
    else
        cr_log_info("this CPU has no %s", isa);
}

Test(cpu_backend, avx2_gives_the_bits_of_scalar)
{
    expect_isa_gives_scalar_bits("avx2");
}

Test(cpu_backend, avxvnni_gives_the_bits_of_scalar)
{
    expect_isa_gives_scalar_bits("avxvnni");
}

Test(cpu_backend, avx512_gives_the_bits_of_scalar)
{
    expect_isa_gives_scalar_bits("avx512");
}

Test(cpu_backend, amx_gives_the_bits_of_scalar)
{
    expect_isa_gives_scalar_bits("amx");
}

static const char *tuning_file(void)
{
    static char name[64];
    snprintf(name, sizeof name, "/tmp/hearth-test-cpu-tuning-%d", (int)getpid());
    return name;
}

/* A table and a variant other than the constants for every class of columns. */
static void write_choices(uint32_t n_threads)
{
    static struct tuning t;
    static const char *const isas[TUNING_CLASSES] = {"avx2", "scalar", "avx2", "avx512vnni"};
    tuning_init(&t, matmul_find("auto"), n_threads);
    for (uint32_t class = 0; class < TUNING_CLASSES; class ++) {
        const struct matmul_kernels *table = matmul_find(isas[class]);
        t.kernels[class] = table ? table : t.kernels[class];
        for (uint32_t kind = 0; kind < MATMUL_N_KINDS; kind++)
            t.choice[kind][class] = (struct tuning_choice){
                .variant = {.shape = (uint8_t)(1 + (kind + class) % 3), .hint = (uint8_t)(1 + kind % 5)},
                .state = TUNING_MEASURED,
                .gain = 1};
    }
    cr_assert_eq(tuning_write(&t, tuning_file(), NULL), 0);
}

Test(cpu_backend, kept_choices_give_the_bits_of_the_constants)
{
    write_choices(2);
    for (uint32_t chunk = 1; chunk <= 27; chunk = chunk * 3)
        expect_same_bits((struct decoder_run_config){.n_threads = 2, .cpu_tuning = "off"}, 32,
                         (struct decoder_run_config){.n_threads = 2, .cpu_tuning = tuning_file()}, chunk);
    unlink(tuning_file());
}

Test(cpu_backend, kept_choices_are_shown)
{
    struct decoder_run r;
    struct backend_info info;
    write_choices(1);
    decoder_run_open(&r, &(struct decoder_run_config){.path = files[0], .cpu_tuning = tuning_file()});
    executor_info(r.x, &info);
    cr_assert_not_null(info.tuning);
    cr_assert_str_eq(info.tuning->source, "file");
    cr_assert_gt(info.tuning->n_choices, 0);
    cr_assert_str_eq(info.tuning->choices[1].kernels, "scalar");
    decoder_run_close(&r);
    unlink(tuning_file());
}

Test(cpu_backend, how_pages_are_folded_is_shown_where_it_was_measured)
{
    for (int i = 0; i < 3; i++) {
        struct decoder_run r;
        struct backend_info info;
        decoder_run_open(&r, &(struct decoder_run_config){.path = files[0],
                                                          .kv_type = i == 1 ? KV_F16 : KV_BF16,
                                                          .cpu_tuning = i == 2 ? "off" : "auto"});
        executor_info(r.x, &info);
        cr_assert_eq(info.tuning->n_folds, i == 0, "%d", i);
        cr_assert(i > 0 || info.tuning->folds[0].head_dim == model_config(r.model)->head_dim);
        decoder_run_close(&r);
    }
}

Test(cpu_backend, a_broken_tuning_file_fails_the_load_by_name)
{
    struct model *m = NULL;
    struct executor *x = NULL;
    struct error err = {0};
    struct backend_config cfg = {.n_threads = 1, .n_slots = 1, .n_ctx = 64, .cpu_tuning = tuning_file()};
    FILE *f = fopen(tuning_file(), "w");
    cr_assert_not_null(f);
    fputs("hearth cpu tuning 1\ncpu\n", f);
    fclose(f);
    cr_assert_eq(model_open(&m, files[0], &err), 0);
    cr_assert_eq(executor_open(&x, EXECUTOR_PERSISTENT, &cpu_backend, &cfg, m, &err), -EINVAL);
    cr_assert_not_null(strstr(err.text, tuning_file()), "%s", err.text);
    cr_assert_not_null(strstr(err.text, ":2: not \"cpu NAME\""), "%s", err.text);
    model_close(m);
    unlink(tuning_file());
}

Test(cpu_backend, small_weights_are_not_measured)
{
    struct decoder_run r;
    struct backend_info info;
    decoder_run_open(&r, &(struct decoder_run_config){.path = files[0]});
    executor_info(r.x, &info);
    cr_assert_str_eq(info.tuning->source, "constants");
    cr_assert_not_null(strstr(info.tuning->note, "64 MiB"));
    decoder_run_close(&r);
}

Test(cpu_backend, eager_gives_the_bits_of_persistent)
{
    expect_same_bits((struct decoder_run_config){.kind = EXECUTOR_PERSISTENT}, 16,
                     (struct decoder_run_config){.kind = EXECUTOR_EAGER}, 16);
}

Test(cpu_backend, two_threads_give_the_bits_of_one)
{
    expect_same_bits((struct decoder_run_config){.n_threads = 1}, 16,
                     (struct decoder_run_config){.n_threads = 2}, 16);
}

Test(cpu_backend, five_threads_give_the_bits_of_one_row_at_a_time)
{
    expect_same_bits((struct decoder_run_config){.n_threads = 1}, 1,
                     (struct decoder_run_config){.n_threads = 5}, 1);
}

Test(cpu_backend, one_row_at_a_time_gives_the_bits_of_chunks)
{
    expect_same_bits((struct decoder_run_config){0}, 32, (struct decoder_run_config){0}, 1);
}

Test(cpu_backend, odd_chunks_give_the_bits_of_even_ones)
{
    expect_same_bits((struct decoder_run_config){0}, 32, (struct decoder_run_config){.n_threads = 2}, 7);
}

Test(cpu_backend, pages_in_any_order_give_the_same_bits)
{
    expect_same_bits((struct decoder_run_config){0}, 32, (struct decoder_run_config){.page_shift = 5}, 19);
}

/* The last logits of a prompt of 300 tokens in one step equal those of single rows. */
static void expect_whole_prompt(struct decoder_run_config c, struct decoder_run_config c_single)
{
    struct decoder_run whole;
    decoder_run_open(&whole, &c);
    uint32_t n = 300, n_vocab = whole.n_vocab;
    for (uint32_t pos = 0; pos < n; pos++)
        decoder_run_row(&whole, 0, pos, tokens[pos], pos >= n - STEP_MAX_LOGITS);
    decoder_run_step(&whole);
    float *single = decoder_run_logits(&c_single, tokens, n, 1);
    for (uint32_t j = 0; j < STEP_MAX_LOGITS; j++)
        expect_same(single + (size_t)(n - STEP_MAX_LOGITS + j) * n_vocab, executor_logits(whole.x, j),
                    n_vocab, c.path);
    free(single);
    decoder_run_close(&whole);
}

Test(cpu_backend, a_whole_prompt_at_once_gives_the_bits_of_single_rows)
{
    make_tokens();
    for (uint32_t i = 0; i < N_FILES; i++) {
        struct decoder_run_config c = {.path = files[i], .n_threads = 2, .n_ctx = 512};
        expect_whole_prompt(c, c);
    }
}

/* Experts of 160 rows are several units of work. A prompt of one token sends almost all rows to the same
 * experts, whose products do not fit the tile at once. */
Test(cpu_backend, wide_experts_give_the_bits_of_single_rows)
{
    static const char *const quants[] = {"q4_k_m", "q4_1", "f16"};
    for (uint32_t i = 0; i < 2 * sizeof quants / sizeof *quants; i += SANITIZED_STRIDE(5)) {
        char path[64];
        make_tokens();
        for (uint32_t t = 0; i % 2 && t < 512; t++)
            tokens[t] = 7;
        made_model("tiny-qwen3moe", quants[i / 2], path);
        struct decoder_run_config c = {.path = path, .n_threads = 1 + 4 * (i % 3), .n_ctx = 512};
        struct decoder_run_config single = {
            .path = path, .n_threads = 2, .n_ctx = 512, .kind = EXECUTOR_EAGER};
        expect_whole_prompt(c, single);
        unlink(path);
    }
}

/* Positions [0, n) of a slot, without logits. */
static void prefill(struct decoder_run *r, uint32_t slot, uint32_t n)
{
    for (uint32_t pos = 0; pos < n; pos++) {
        decoder_run_row(r, slot, pos, tokens[pos % 500], false);
        if (pos % 500 == 499 || pos == n - 1)
            decoder_run_step(r);
    }
}

/* Logits of rows 1018 to 1029, one or two at a time, after a prefill: long rows and few of them, whose splits
 * are dealt one by one when there are more threads than heads. */
static float *late_logits(const char *path, enum executor_kind kind, uint32_t n_threads, bool pair)
{
    enum { FIRST = 1018, LAST = 1030 };
    struct decoder_run_config c = {.path = path, .kind = kind, .n_threads = n_threads, .n_ctx = 1100};
    struct decoder_run r;
    decoder_run_open(&r, &c);
    prefill(&r, 1, FIRST);
    float *out = calloc((size_t)(LAST - FIRST) * r.n_vocab, sizeof *out);
    for (uint32_t pos = FIRST; pos < LAST; pos++) {
        if (pair)
            decoder_run_row(&r, 2, pos - FIRST, tokens[pos - FIRST], false);
        uint32_t index = decoder_run_row(&r, 1, pos, tokens[pos % 500], true);
        decoder_run_step(&r);
        memcpy(out + (size_t)(pos - FIRST) * r.n_vocab, executor_logits(r.x, index), r.n_vocab * sizeof *out);
    }
    decoder_run_close(&r);
    return out;
}

Test(cpu_backend, splits_dealt_one_by_one_give_the_bits_of_whole_rows)
{
    make_tokens();
    for (uint32_t i = 0; i < N_FILES; i += 2) {
        size_t n = (size_t)12 * vocabulary(files[i]);
        float *whole = late_logits(files[i], EXECUTOR_PERSISTENT, 1, false);
        float *split = late_logits(files[i], EXECUTOR_PERSISTENT, 5, false);
        float *beside = late_logits(files[i], EXECUTOR_PERSISTENT, 5, true);
        float *eager = late_logits(files[i], EXECUTOR_EAGER, 5, false);
        expect_same(whole, split, n, "five threads");
        expect_same(whole, beside, n, "beside another row");
        expect_same(whole, eager, n, "eager");
        free(whole);
        free(split);
        free(beside);
        free(eager);
    }
}

/* Logits of rows [first, last) after a prefill, in chunks. */
static float *chunked_logits(const char *path, uint32_t n_threads, uint32_t first, uint32_t last,
                             uint32_t chunk)
{
    struct decoder_run_config c = {.path = path, .n_threads = n_threads, .n_ctx = 1100};
    struct decoder_run r;
    decoder_run_open(&r, &c);
    prefill(&r, 0, first);
    float *out = calloc((size_t)(last - first) * r.n_vocab, sizeof *out);
    for (uint32_t at = first; at < last; at += chunk) {
        uint32_t n = last - at < chunk ? last - at : chunk;
        for (uint32_t i = 0; i < n; i++)
            decoder_run_row(&r, 0, at + i, tokens[(at + i) % 500], true);
        decoder_run_step(&r);
        for (uint32_t i = 0; i < n; i++)
            memcpy(out + (size_t)(at - first + i) * r.n_vocab, executor_logits(r.x, i),
                   r.n_vocab * sizeof *out);
    }
    decoder_run_close(&r);
    return out;
}

/* From position 1,024 on attention's splits are twice as long: rows on either side of it may not share one
 * walk over the pages, although they are of one chunk. */
Test(cpu_backend, a_chunk_over_the_border_of_longer_splits_gives_the_bits_of_single_rows)
{
    enum { FIRST = 1011, LAST = 1035 };
    static const uint32_t chunks[] = {3, 10, 17};
    make_tokens();
    const char *path = files[3];
    float *single = chunked_logits(path, 1, FIRST, LAST, 1);
    for (uint32_t i = 0; i < 3 * 2; i++) {
        float *x = chunked_logits(path, 1 + i % 2, FIRST, LAST, chunks[i / 2]);
        expect_same(single, x, (size_t)(LAST - FIRST) * vocabulary(path), "a chunk over 1,024");
        free(x);
    }
    free(single);
}

/* Eight sequences, each a window of the same tokens, one or several rows of each in every step. */
Test(cpu_backend, a_row_has_the_same_bits_in_any_batch)
{
    enum { SLOTS = 8, LENGTH = 70 };
    make_tokens();
    for (uint32_t i = 0; i < N_FILES; i++) {
        struct decoder_run_config c = {.path = files[i], .n_threads = 2, .page_shift = 3};
        struct decoder_run r;
        decoder_run_open(&r, &c);
        uint32_t n_vocab = r.n_vocab, at[SLOTS] = {0};
        float *batched = calloc((size_t)SLOTS * LENGTH * n_vocab, sizeof *batched);
        for (uint32_t round = 0; at[0] < LENGTH || at[SLOTS - 1] < LENGTH; round++) {
            uint32_t slot_of[STEP_MAX_LOGITS], pos_of[STEP_MAX_LOGITS], n = 0;
            for (uint32_t s = 0; s < SLOTS; s++) {
                uint32_t rows = 1 + (round + s) % 4;
                for (; rows && at[s] < LENGTH && n < STEP_MAX_LOGITS; rows--, n++) {
                    slot_of[n] = s;
                    pos_of[n] = at[s];
                    decoder_run_row(&r, s, at[s], tokens[s * 11 + at[s]], true);
                    at[s]++;
                }
            }
            decoder_run_step(&r);
            for (uint32_t j = 0; j < n; j++)
                memcpy(batched + ((size_t)slot_of[j] * LENGTH + pos_of[j]) * n_vocab, executor_logits(r.x, j),
                       n_vocab * sizeof *batched);
        }
        for (uint32_t s = 0; s < SLOTS; s++) {
            float *alone = decoder_run_logits(&c, tokens + s * 11, LENGTH, 32);
            expect_same(alone, batched + (size_t)s * LENGTH * n_vocab, (size_t)LENGTH * n_vocab, files[i]);
            free(alone);
        }
        free(batched);
        decoder_run_close(&r);
    }
}

/* Greedy decoding of slot 0, in steps that name the token sampled last. */
static void decode(struct decoder_run *r, uint32_t from, uint32_t n, int32_t *out)
{
    for (uint32_t i = 0; i < n; i++) {
        decoder_run_row(r, 0, from + i, STEP_LAST_SAMPLED, true);
        decoder_run_step(r);
        out[i] = r->results[0].token;
    }
}

Test(cpu_backend, a_sampled_token_may_be_named_without_knowing_it)
{
    make_tokens();
    struct decoder_run_config c = {.path = files[2]};
    struct decoder_run r;
    int32_t named[20], told[20];
    decoder_run_open(&r, &c);
    decoder_run_feed(&r, 0, tokens, 10, 10, NULL);
    int32_t first = r.results[9].token, last = first;
    decode(&r, 10, 20, named);
    decoder_run_close(&r);
    decoder_run_open(&r, &c);
    decoder_run_feed(&r, 0, tokens, 10, 10, NULL);
    for (uint32_t i = 0; i < 20; i++) {
        decoder_run_row(&r, 0, 10 + i, last, true);
        decoder_run_step(&r);
        told[i] = last = r.results[0].token;
    }
    decoder_run_close(&r);
    cr_assert_arr_eq(named, told, sizeof named);
}

Test(cpu_backend, two_steps_in_flight_run_in_their_order)
{
    make_tokens();
    struct decoder_run_config c = {.path = files[2], .n_threads = 2};
    struct decoder_run r;
    int32_t expected[2];
    decoder_run_open(&r, &c);
    decoder_run_feed(&r, 0, tokens, 10, 10, NULL);
    decode(&r, 10, 2, expected);
    decoder_run_close(&r);
    decoder_run_open(&r, &c);
    decoder_run_feed(&r, 0, tokens, 10, 10, NULL);
    for (uint32_t i = 0; i < 2; i++) {
        r.step->id++;
        r.step->n_rows = r.step->n_logits = 0;
        decoder_run_row(&r, 0, 10 + i, STEP_LAST_SAMPLED, true);
        cr_assert_eq(executor_submit(r.x, r.step, NULL), 0);
    }
    cr_assert_eq(executor_submit(r.x, r.step, NULL), -EAGAIN);
    uint64_t done = 0;
    for (uint32_t i = 0; i < 2; i++) {
        cr_assert_eq(executor_advance(r.x, r.results, STEP_MAX_LOGITS, &done, NULL), 1);
        cr_assert_eq(r.results[0].pos, 10 + i);
        cr_assert_eq(r.results[0].token, expected[i]);
        cr_assert_eq(done, r.results[0].step);
    }
    cr_assert_eq(executor_advance(r.x, r.results, STEP_MAX_LOGITS, &done, NULL), 0);
    decoder_run_close(&r);
}

Test(cpu_backend, a_copied_page_attends_like_the_original)
{
    make_tokens();
    struct decoder_run_config c = {.path = files[2]};
    struct decoder_run r;
    decoder_run_open(&r, &c);
    decoder_run_feed(&r, 0, tokens, 20, 20, NULL);
    uint32_t page = 5; /* slot 1's first */
    r.step->page_ops[r.step->n_page_ops++] = (struct step_page_op){.kind = STEP_PAGE_COPY, .page = page};
    r.step->edits[r.step->n_edits++] = (struct step_table_edit){.slot = 1, .page = page};
    r.n_mapped[1] = 1;
    decoder_run_row(&r, 0, 20, tokens[20], true);
    decoder_run_row(&r, 1, 20, tokens[20], true);
    decoder_run_step(&r);
    expect_same(executor_logits(r.x, 0), executor_logits(r.x, 1), r.n_vocab, "slot 1");
    decoder_run_close(&r);
}

static struct backend_info info_of(const struct decoder_run *r)
{
    struct backend_info info;
    executor_info(r->x, &info);
    return info;
}

Test(cpu_backend, an_exported_page_comes_back_as_it_was)
{
    make_tokens();
    struct decoder_run_config c = {.path = files[2], .kv_type = KV_Q8_0};
    struct decoder_run r;
    decoder_run_open(&r, &c);
    cr_assert_not_null(info_of(&r).transfer);
    decoder_run_feed(&r, 0, tokens, 20, 20, NULL);
    r.step->page_ops[r.step->n_page_ops++] =
        (struct step_page_op){.kind = STEP_PAGE_EXPORT, .page = 0, .host_offset = 64};
    r.step->page_ops[r.step->n_page_ops++] = (struct step_page_op){.kind = STEP_PAGE_ZERO, .page = 0};
    decoder_run_step(&r);
    r.step->page_ops[r.step->n_page_ops++] =
        (struct step_page_op){.kind = STEP_PAGE_IMPORT, .page = 6, .host_offset = 64};
    r.step->edits[r.step->n_edits++] = (struct step_table_edit){.slot = 0, .page = 6};
    decoder_run_row(&r, 0, 20, tokens[20], true);
    decoder_run_step(&r);
    float *expected = decoder_run_logits(&c, tokens, 21, 21);
    expect_same(expected + (size_t)20 * r.n_vocab, executor_logits(r.x, 0), r.n_vocab, "after import");
    free(expected);
    decoder_run_close(&r);
}

Test(cpu_backend, an_import_behind_the_transfer_buffer_is_refused)
{
    struct decoder_run_config c = {.path = files[2]};
    struct decoder_run r;
    struct error err = {0};
    decoder_run_open(&r, &c);
    r.step->id = 1;
    r.step->page_ops[r.step->n_page_ops++] =
        (struct step_page_op){.kind = STEP_PAGE_IMPORT, .page = 0, .host_offset = UINT32_MAX};
    cr_assert_eq(executor_submit(r.x, r.step, &err), -EINVAL);
    cr_assert_not_null(strstr(err.text, "transfer buffer"), "%s", err.text);
    decoder_run_close(&r);
}

static void spoil_slot(struct step *s)
{
    s->rows[1].slot = 8;
}

static void spoil_pos(struct step *s)
{
    s->rows[1].pos = 256;
}

static void spoil_page(struct step *s)
{
    s->edits[0].page = 1u << 30;
}

static void spoil_token(struct step *s)
{
    s->rows[0].token = 1 << 30;
}

static void spoil_logit_row(struct step *s)
{
    s->logits[0].row = 9;
}

static void spoil_order(struct step *s)
{
    s->rows[1].pos = 0;
}

static void spoil_mapping(struct step *s)
{
    s->rows[1].pos = 64;
}

/* Each spoils one thing of a good step of two rows; `names` must be in the error's words. */
static const struct {
    const char *names;
    void (*spoil)(struct step *s);
} bad_steps[] = {
    {"rows[1].slot", spoil_slot},   {"rows[1].pos", spoil_pos},         {"edits[0].page", spoil_page},
    {"rows[0].token", spoil_token}, {"logits[0].row", spoil_logit_row}, {"ascending order", spoil_order},
    {"pages", spoil_mapping},
};

Test(cpu_backend, a_bad_index_is_refused_by_name_and_nothing_is_done)
{
    make_tokens();
    struct decoder_run_config c = {.path = files[2]};
    float *expected = decoder_run_logits(&c, tokens, 2, 2);
    struct decoder_run r;
    decoder_run_open(&r, &c);
    for (uint32_t i = 0; i < sizeof bad_steps / sizeof *bad_steps; i++) {
        struct error err = {0};
        memset(r.step, 0, sizeof *r.step);
        r.n_mapped[0] = 0;
        decoder_run_row(&r, 0, 0, tokens[0], true);
        decoder_run_row(&r, 0, 1, tokens[1], true);
        bad_steps[i].spoil(r.step);
        cr_assert_eq(executor_submit(r.x, r.step, &err), -EINVAL, "%s", bad_steps[i].names);
        cr_assert_not_null(strstr(err.text, bad_steps[i].names), "%s: %s", bad_steps[i].names, err.text);
    }
    uint64_t done = 0;
    cr_assert_eq(executor_advance(r.x, r.results, STEP_MAX_LOGITS, &done, NULL), 0);
    cr_assert_eq(done, 0);
    memset(r.step, 0, sizeof *r.step);
    decoder_run_row(&r, 0, 0, tokens[0], true); /* the refused steps' edits were undone: page 0 is missing */
    r.step->n_edits = 0;
    cr_assert_eq(executor_submit(r.x, r.step, NULL), -EINVAL);
    memset(r.step, 0, sizeof *r.step);
    r.n_mapped[0] = 0;
    float got[2][512];
    decoder_run_row(&r, 0, 0, tokens[0], true);
    decoder_run_row(&r, 0, 1, tokens[1], true);
    decoder_run_step(&r);
    for (uint32_t i = 0; i < 2; i++)
        memcpy(got[i], executor_logits(r.x, i), r.n_vocab * sizeof(float));
    expect_same(expected, got[0], r.n_vocab, "row 0");
    expect_same(expected + r.n_vocab, got[1], r.n_vocab, "row 1");
    free(expected);
    decoder_run_close(&r);
}

Test(cpu_backend, logits_are_there_only_when_they_were_asked_for)
{
    make_tokens();
    struct decoder_run_config c = {.path = files[2]};
    struct decoder_run r;
    decoder_run_open(&r, &c);
    decoder_run_row(&r, 0, 0, tokens[0], true);
    r.step->logits[0].flags = STEP_LOGPROB;
    decoder_run_step(&r);
    cr_assert_null(executor_logits(r.x, 0));
    cr_assert(r.results[0].logprob < 0.0f);
    decoder_run_row(&r, 0, 1, tokens[1], true);
    decoder_run_step(&r);
    cr_assert_not_null(executor_logits(r.x, 0));
    cr_assert_null(executor_logits(r.x, 1));
    decoder_run_close(&r);
}

Test(cpu_backend, a_model_that_does_not_fit_is_refused_with_both_numbers)
{
    struct model *m = NULL;
    struct executor *x = NULL;
    struct error err = {0};
    cr_assert_eq(model_open(&m, files[2], NULL), 0);
    struct backend_config cfg = {.n_slots = 1, .n_ctx = 64, .n_threads = 1, .isa = "auto"};
    cfg.kv_memory = (uint64_t)1 << 46;
    cr_assert_eq(executor_open(&x, EXECUTOR_PERSISTENT, &cpu_backend, &cfg, m, &err), -ENOMEM);
    cr_assert_not_null(strstr(err.text, "needs 67108"), "%s", err.text);
    cr_assert_not_null(strstr(err.text, "MiB are available"), "%s", err.text);
    err = (struct error){0};
    cfg.kv_memory = 100; /* what was asked for is wrong, not the machine too small */
    cr_assert_eq(executor_open(&x, EXECUTOR_PERSISTENT, &cpu_backend, &cfg, m, &err), -EINVAL);
    cr_assert_not_null(strstr(err.text, "100 bytes"), "%s", err.text);
    model_close(m);
}

/* A row of a sequence whose cached keys are NaN stands among rows of a healthy one. */
static void expect_nan_stays_in_its_row(uint32_t n_healthy)
{
    make_tokens();
    struct decoder_run_config c = {.path = files[2], .n_threads = 2};
    struct decoder_run r;
    decoder_run_open(&r, &c);
    struct backend_info info = info_of(&r);
    uint8_t *transfer = info.transfer;
    memset(transfer, 0xff, info.transfer_bytes / STEP_MAX_PAGE_OPS); /* one page of f16 NaNs */
    r.step->page_ops[r.step->n_page_ops++] = (struct step_page_op){.kind = STEP_PAGE_IMPORT, .page = 9};
    r.step->edits[r.step->n_edits++] = (struct step_table_edit){.slot = 1, .page = 9};
    r.n_mapped[1] = 1;
    decoder_run_row(&r, 1, 5, tokens[5], true);
    for (uint32_t i = 0; i < n_healthy; i++)
        decoder_run_row(&r, 0, i, tokens[i], true);
    decoder_run_step(&r);
    cr_assert(r.results[0].flags & STEP_RESULT_NOT_FINITE);
    float *alone = decoder_run_logits(&c, tokens, n_healthy, 1);
    for (uint32_t i = 0; i < n_healthy; i++) {
        cr_assert_not(r.results[i + 1].flags & STEP_RESULT_NOT_FINITE);
        expect_same(alone + (size_t)i * r.n_vocab, executor_logits(r.x, i + 1), r.n_vocab, "healthy row");
    }
    free(alone);
    decoder_run_close(&r);
}

Test(cpu_backend, a_nan_fails_its_own_row_only)
{
    expect_nan_stays_in_its_row(1);
    expect_nan_stays_in_its_row(12);
}

Test(cpu_backend, garbage_behind_a_row_in_its_page_is_not_read)
{
    make_tokens();
    for (uint32_t type = 0; type < KV_N_TYPES; type++) {
        struct decoder_run_config c = {.path = files[2], .kv_type = (enum kv_type)type};
        struct decoder_run r;
        decoder_run_open(&r, &c);
        memset(info_of(&r).transfer, 0xff, info_of(&r).transfer_bytes / STEP_MAX_PAGE_OPS);
        r.step->page_ops[r.step->n_page_ops++] = (struct step_page_op){.kind = STEP_PAGE_IMPORT, .page = 0};
        float *expected = decoder_run_logits(&c, tokens, 20, 20), *got = calloc(20 * r.n_vocab, sizeof *got);
        decoder_run_feed(&r, 0, tokens, 20, 3, got);
        expect_same(expected, got, (size_t)20 * r.n_vocab, "after garbage");
        free(expected);
        free(got);
        decoder_run_close(&r);
    }
}

/* The backend samples the token that lib/sampler/sampler.c chooses from the exported logits and the history,
 * which comes by slot settings and by rows. */
Test(cpu_backend, sampling_follows_the_slots_settings_and_history)
{
    make_tokens();
    static const int32_t ends[] = {7, 30};
    struct model *m = NULL;
    struct decoder_run r = {0};
    cr_assert_eq(model_open(&m, files[2], NULL), 0);
    struct backend_config cfg = {
        .n_threads = 2, .n_slots = 2, .n_ctx = 256, .end_tokens = ends, .n_end_tokens = 2};
    cfg.isa = "auto";
    cr_assert_eq(executor_open(&r.x, EXECUTOR_PERSISTENT, &cpu_backend, &cfg, m, NULL), 0);
    r.n_vocab = model_config(m)->n_vocab;
    r.n_ctx = 256;
    r.n_pages = 8;
    r.step = calloc(1, sizeof *r.step);
    for (uint32_t pos = 0; pos < 64; pos++) /* what a prefix hit would have left in the page */
        decoder_run_row(&r, 1, pos, tokens[pos], false);
    decoder_run_step(&r);
    struct step_sampling set = {.seed = 42, .temperature = 0.9f, .top_p = 0.95f, .typical_p = 1, .top_k = 50};
    set.repetition_penalty = 1.3f;
    set.frequency_penalty = 0.2f;
    set.penalty_last_n = 40;
    set.n_bias = 1;
    struct step_bias bias = {.token = 11, .bias = 2.0f};
    r.step->slots[r.step->n_slots++] =
        (struct step_slot){.slot = 1, .start = 64, .n_history = 50, .sampling = set};
    r.step->n_history = 50;
    memcpy(r.step->history, tokens + 14, 50 * sizeof *tokens);
    r.step->biases[r.step->n_biases++] = bias;
    int32_t history[120];
    uint32_t n_history = 50;
    memcpy(history, tokens + 14, sizeof tokens[0] * 50);
    void *scratch = aligned_alloc(64, sampler_scratch_size(r.n_vocab));
    memset(scratch, 0, sampler_scratch_size(r.n_vocab));
    int32_t last = tokens[64];
    for (uint32_t pos = 64; pos < 100; pos++) {
        decoder_run_row(&r, 1, pos, pos == 64 ? last : STEP_LAST_SAMPLED, true);
        r.step->logits[0].flags |= STEP_BAN_END | STEP_LOGPROB;
        r.step->logits[0].n_top = 4;
        decoder_run_step(&r);
        history[n_history++] = last;
        struct sampler_input in = {.logits = executor_logits(r.x, 0), .n_vocab = r.n_vocab, .set = &set};
        in.biases = &bias;
        in.history = history;
        in.n_history = n_history;
        in.banned = ends;
        in.n_banned = 2;
        in.position = pos + 1;
        last = sampler_pick(&in, scratch);
        cr_assert_eq(r.results[0].token, last, "position %u: %d, expected %d", pos, r.results[0].token, last);
        struct sampler_norm norm;
        cr_assert(sampler_norm(in.logits, r.n_vocab, &norm));
        cr_assert_eq(r.results[0].logprob, sampler_logprob(&norm, in.logits[last]));
        cr_assert_eq(r.results[0].n_top, 4);
        cr_assert(r.results[0].top[0].logprob >= r.results[0].top[3].logprob);
    }
    free(scratch);
    decoder_run_close(&(struct decoder_run){.x = r.x, .model = m, .step = r.step});
}

Test(cpu_backend, a_target_is_answered_with_its_log_probability)
{
    make_tokens();
    struct decoder_run_config c = {.path = files[2]};
    struct decoder_run r;
    decoder_run_open(&r, &c);
    decoder_run_row(&r, 0, 0, tokens[0], true);
    r.step->logits[0].target = 17;
    decoder_run_step(&r);
    struct sampler_norm norm;
    cr_assert(sampler_norm(executor_logits(r.x, 0), r.n_vocab, &norm));
    cr_assert_eq(r.results[0].token, 17);
    cr_assert_eq(r.results[0].flags, STEP_RESULT_TARGET);
    cr_assert_eq(r.results[0].logprob, sampler_logprob(&norm, executor_logits(r.x, 0)[17]));
    decoder_run_close(&r);
}

/* Between steps the threads of the whole process but this one sleep. */
Test(cpu_backend, an_idle_decoder_uses_no_cpu)
{
    make_tokens();
    struct decoder_run_config c = {.path = files[2], .n_threads = 3};
    struct decoder_run r;
    decoder_run_open(&r, &c);
    decoder_run_feed(&r, 0, tokens, 20, 1, NULL);
    int64_t used = INT64_MAX;
    for (int i = 0; i < 100 && used > 2000000; i++) { /* once they have come to it, on a busy machine */
        struct timespec before, after;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
        usleep(100000);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
        used = (after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec;
    }
    cr_assert_leq(used, 2000000, "%lld ns in 100 ms", (long long)used);
    decoder_run_close(&r);
}

Test(cpu_backend, one_launch_and_every_step_counted)
{
    make_tokens();
    struct decoder_run_config c = {.path = files[2], .n_threads = 2};
    struct decoder_run r;
    struct backend_info info;
    decoder_run_open(&r, &c);
    decoder_run_feed(&r, 0, tokens, 20, 1, NULL);
    executor_info(r.x, &info);
    cr_assert_eq(info.launches, 1);
    cr_assert_eq(info.steps, 20);
    cr_assert_eq(info.n_threads, 2);
    cr_assert_eq(info.state, BACKEND_IDLE);
    cr_assert(info.heartbeat_ns > 0);
    cr_assert(info.memory_used > 0 && info.scratch_bytes > 0);
    decoder_run_close(&r);
}

static void take_a_piece(void *context, uint32_t member)
{
    struct team_deal deal = team_deal(((struct decoder *)context)->team, member, 1, 1);
    for (uint32_t first, last; member == 1 && team_next(&deal, &first, &last);) {
    }
}

Test(cpu_backend, work_of_any_member_inside_an_op_is_a_sign_of_life)
{
    struct decoder_run_config c = {.path = files[2], .n_threads = 2};
    struct decoder_run r;
    struct backend_info first, second, third;
    decoder_run_open(&r, &c);
    struct decoder *d = (struct decoder *)executor_backend(r.x);
    executor_info(r.x, &first);
    team_run(d->team, take_a_piece, d);
    executor_info(r.x, &second);
    executor_info(r.x, &third);
    cr_assert_gt(second.heartbeat_ns, first.heartbeat_ns);
    cr_assert_eq(third.heartbeat_ns, second.heartbeat_ns);
    decoder_run_close(&r);
}

Test(cpu_backend, exact_arithmetic_agrees_with_int8_to_its_error)
{
    make_tokens();
    struct decoder_run_config exact = {.path = files[3], .kind = EXECUTOR_EAGER, .arithmetic = BACKEND_EXACT};
    struct decoder_run_config int8 = {.path = files[3]};
    float *a = decoder_run_logits(&exact, tokens, 16, 5), *b = decoder_run_logits(&int8, tokens, 16, 5);
    double squares = 0, differences = 0;
    size_t n = (size_t)16 * vocabulary(files[3]);
    for (size_t i = 0; i < n; i++) {
        squares += (double)a[i] * a[i];
        differences += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    }
    cr_assert(squares > 0 && differences > 0);
    cr_assert(sqrt(differences / squares) < 0.04, "%g", sqrt(differences / squares));
    free(a);
    free(b);
}

/* Pages of a KV cache are touched when they are used: until then they look free. */
Test(cpu_backend, memory_promised_to_one_kv_cache_is_not_promised_to_another)
{
    struct model *m = NULL;
    struct executor *x = NULL, *y = NULL;
    struct error err = {0};
    cr_assert_eq(model_open(&m, files[2], NULL), 0);
    struct backend_config cfg = {.n_slots = 1, .n_ctx = 64, .n_threads = 1, .isa = "auto"};
    cfg.kv_memory = memory_available() / 10 * 7;
    cr_assert_eq(executor_open(&x, EXECUTOR_PERSISTENT, &cpu_backend, &cfg, m, &err), 0, "%s", err.text);
    cr_assert_eq(executor_open(&y, EXECUTOR_PERSISTENT, &cpu_backend, &cfg, m, &err), -ENOMEM);
    executor_close(x);
    cr_assert_eq(executor_open(&y, EXECUTOR_PERSISTENT, &cpu_backend, &cfg, m, &err), 0, "%s", err.text);
    executor_close(y);
    model_close(m);
}
