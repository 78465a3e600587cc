/* The variants of the cpu's products: how a choice is judged, kept in a file, and measured. */
#include "base/clock.h"
#include "base/team.h"
#include "cpu/matmul/matmul_pack.h"
#include "cpu/tuning/tuning.h"
#include "gguf/quant.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FLOATS 65536

static const struct matmul_kernels *best(void)
{
    return matmul_find("auto");
}

/* The other tables of this CPU. */
static const struct matmul_kernels *const *others(void)
{
    static const char *const names[] = {"amx", "avxvnni", "avx2"};
    static const struct matmul_kernels *list[4];
    uint32_t n = 0;
    for (uint32_t i = 0; i < 3; i++)
        if (matmul_find(names[i]) && matmul_find(names[i]) != best())
            list[n++] = matmul_find(names[i]);
    list[n] = NULL;
    return list;
}

static void fill(uint64_t ns[TUNING_DUELS], uint64_t value)
{
    for (int i = 0; i < TUNING_DUELS; i++)
        ns[i] = value;
}

Test(tuning, every_number_of_columns_has_its_class)
{
    static const uint32_t of[] = {0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3};
    for (uint32_t n = 1; n <= 10; n++)
        cr_assert_eq(tuning_class(n), of[n], "%u columns", n);
    cr_assert_eq(tuning_class(32), 3);
    cr_assert_eq(tuning_class(33), 4);
    cr_assert_eq(tuning_class(512), TUNING_CLASSES - 1);
    for (uint32_t c = 0; c < TUNING_CLASSES; c++) {
        cr_assert_eq(tuning_class(tuning_class_first(c)), c);
        cr_assert_eq(tuning_class(tuning_class_last(c)), c);
    }
}

Test(tuning, a_variant_that_wins_nearly_every_duel_is_taken)
{
    uint64_t built[TUNING_DUELS], variant[TUNING_DUELS];
    fill(built, 1100);
    fill(variant, 1000);
    cr_assert_float_eq(tuning_judge(built, variant), 1.1, 1e-3);
    variant[4] = 9000; /* one slow moment */
    cr_assert_float_eq(tuning_judge(built, variant), 1.1, 1e-3);
}

Test(tuning, noisy_timings_leave_the_constants)
{
    uint64_t built[TUNING_DUELS], variant[TUNING_DUELS];
    fill(built, 1100);
    fill(variant, 1000);
    variant[1] = variant[7] = 9000; /* faster at the median, but not nearly always, */
    built[3] = 990;                 /* and one of the fastest timings is the constants' */
    cr_assert_eq(tuning_judge(built, variant), 0);
}

Test(tuning, a_variant_with_the_fastest_timings_is_taken_in_a_busy_moment)
{
    uint64_t built[TUNING_DUELS], variant[TUNING_DUELS];
    fill(built, 1100);
    fill(variant, 1000);
    variant[0] = variant[1] = variant[4] = variant[7] = 9000;
    built[2] = built[4] = built[5] = 9000;
    cr_assert_float_eq(tuning_judge(built, variant), 1.1, 1e-3);
    variant[8] = 9000; /* four fastest may be chance */
    cr_assert_eq(tuning_judge(built, variant), 0);
}

Test(tuning, a_small_gain_leaves_the_constants)
{
    uint64_t built[TUNING_DUELS], variant[TUNING_DUELS];
    fill(built, 1010);
    fill(variant, 1000);
    cr_assert_eq(tuning_judge(built, variant), 0);
    fill(variant, 1200);
    cr_assert_eq(tuning_judge(built, variant), 0);
}

static const char *path(void)
{
    static char name[64];
    snprintf(name, sizeof name, "/tmp/hearth-test-tuning-%d", (int)getpid());
    return name;
}

static void write_file(const char *text)
{
    FILE *f = fopen(path(), "w");
    cr_assert_not_null(f);
    fputs(text, f);
    fclose(f);
}

static struct tuning *made(void)
{
    static struct tuning t;
    tuning_init(&t, best(), 2);
    t.choice[MATMUL_Q4_K][0] = (struct tuning_choice){
        .variant = {.hint = MATMUL_HINT_T1, .shape = MATMUL_SHAPE_DIRECT, .ahead = 4352},
        .state = TUNING_MEASURED,
        .gain = 1.25f,
        .gbps = 30.5f};
    t.choice[MATMUL_Q6_K][3] = (struct tuning_choice){.state = TUNING_MEASURED, .gain = 1, .gbps = 2};
    t.kernels[1] = &matmul_scalar;
    t.kernels_gain[1] = 1.5f;
    return &t;
}

/* The file of made(), changed: `from` is replaced by `to`. */
static void write_changed(const char *from, const char *to)
{
    char text[4096] = "", changed[8192];
    cr_assert_eq(tuning_write(made(), path(), NULL), 0);
    FILE *f = fopen(path(), "r");
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    char *at = strstr(text, from);
    cr_assert_not_null(at, "%s in %s", from, text);
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    write_file(changed);
}

Test(tuning, a_written_file_reads_back_with_every_choice)
{
    struct tuning read;
    const struct tuning *t = made();
    cr_assert_eq(tuning_write(t, path(), NULL), 0);
    tuning_init(&read, best(), 2);
    cr_assert_eq(tuning_read(&read, path(), NULL), 1);
    unlink(path());
    for (uint32_t kind = 0; kind < MATMUL_N_KINDS; kind++)
        for (uint32_t c = 0; c < TUNING_CLASSES; c++) {
            const struct tuning_choice *a = &t->choice[kind][c], *b = &read.choice[kind][c];
            cr_assert_eq(memcmp(&a->variant, &b->variant, sizeof a->variant), 0);
            cr_assert_eq(b->state, a->state == TUNING_MEASURED ? TUNING_KEPT : TUNING_BUILT);
            cr_assert_eq(a->gain, b->gain);
            cr_assert_eq(t->kernels[c], read.kernels[c]);
        }
}

Test(tuning, what_a_busy_moment_disturbed_is_not_kept_in_the_file)
{
    struct tuning read, *t = made();
    t->choice[MATMUL_Q4_K][0].unsettled = true;
    t->choice[MATMUL_Q4_K][1].unsettled = true;        /* its table may change */
    t->choice[MATMUL_Q6_K][1].state = TUNING_MEASURED; /* with that table */
    cr_assert_eq(tuning_write(t, path(), NULL), 0);
    tuning_init(&read, best(), 2);
    cr_assert_eq(tuning_read(&read, path(), NULL), 1);
    unlink(path());
    cr_assert_eq(read.choice[MATMUL_Q4_K][0].state, TUNING_BUILT);
    cr_assert_eq(read.choice[MATMUL_Q6_K][1].state, TUNING_BUILT);
    cr_assert_eq(read.choice[MATMUL_Q6_K][3].state, TUNING_KEPT);
    cr_assert(!read.kept[0] && !read.kept[1] && read.kept[2]);
    cr_assert_eq(read.kernels[1], best());
    cr_assert_eq(tuning_n_unsettled(&read), 0);
}

Test(tuning, no_file_is_no_error)
{
    struct tuning t;
    tuning_init(&t, best(), 2);
    cr_assert_eq(tuning_read(&t, "/tmp/hearth-test-no-such-tuning", NULL), 0);
}

static void ignored(const char *from, const char *to)
{
    struct tuning t;
    write_changed(from, to);
    tuning_init(&t, best(), 2);
    cr_assert_eq(tuning_read(&t, path(), NULL), 0, "%s", to);
    cr_assert_not_null(strstr(t.note, "another machine"), "%s", t.note);
    cr_assert_eq(t.choice[MATMUL_Q4_K][0].state, TUNING_BUILT);
    cr_assert_eq(t.kernels[1], best());
    unlink(path());
}

Test(tuning, a_choice_of_another_cpu_isa_or_number_of_threads_is_ignored)
{
    char isa[64];
    snprintf(isa, sizeof isa, "isa %s", best()->name);
    ignored("\ncpu ", "\ncpu Other ");
    ignored(isa, "isa other");
    ignored("threads 2", "threads 3");
}

static void refused(const char *from, const char *to, const char *why)
{
    struct tuning t;
    struct error err = {0};
    write_changed(from, to);
    tuning_init(&t, best(), 2);
    cr_assert_eq(tuning_read(&t, path(), &err), -EINVAL, "%s", to);
    cr_assert_not_null(strstr(err.text, path()), "%s", err.text);
    cr_assert_not_null(strstr(err.text, why), "%s", err.text);
    cr_assert_eq(t.choice[MATMUL_Q4_K][0].state, TUNING_BUILT);
    unlink(path());
}

Test(tuning, a_broken_file_is_refused_with_its_line)
{
    refused("hearth cpu tuning 1", "hello", ":1: not \"hearth cpu tuning 1\"");
    refused("\ncpu ", "\ngpu ", ":2: not \"cpu NAME\"");
    refused("threads 2\n", "", ":4: not \"threads N\"");
    refused("kernels 1 ", "kernels 3 ", ":5: columns begin at 1, 2, 5, 9 or 33");
    refused("kernels 2 scalar", "kernels 2 mmx", ":6: this CPU has no such kernels");
    refused("Q4_K 1", "Q9_K 1", ":10: unknown weight type");
    refused("Q4_K 1", "Q4_K 7", ":10: columns begin at");
    refused("direct t1", "curved t1", ":10: a shape is");
    refused("direct t1", "direct t9", ":10: a hint is");
    refused(" 4352 ", " 99999999 ", ":10: a distance is at most");
    refused(" 1.250 ", " nan ", ":10: gain or GB/s out of range");
    refused("30.50\n", "30.50 more\n", ":10: not \"TYPE COLUMNS SHAPE HINT DISTANCE GAIN GBPS\"");
}

Test(tuning, a_file_that_ends_early_is_refused)
{
    struct tuning t;
    struct error err = {0};
    write_file("hearth cpu tuning 1\n");
    tuning_init(&t, best(), 2);
    cr_assert_eq(tuning_read(&t, path(), &err), -EINVAL);
    cr_assert_not_null(strstr(err.text, "ends too early"), "%s", err.text);
    unlink(path());
}

Test(tuning, a_place_that_cannot_be_written_is_an_error_with_words)
{
    struct error err = {0};
    cr_assert_eq(tuning_write(made(), "/tmp/hearth-no-such-directory/tuning", &err), -ENOENT);
    cr_assert_not_null(strstr(err.text, "/tmp/hearth-no-such-directory/tuning"), "%s", err.text);
}

static void *aligned(size_t size)
{
    void *p = aligned_alloc(64, (size + 63) / 64 * 64);
    cr_assert_not_null(p);
    memset(p, 0, (size + 63) / 64 * 64);
    return p;
}

static struct matmul_matrix matrix(uint32_t type, uint32_t n, uint32_t k)
{
    struct matmul_matrix m;
    uint8_t *rows = aligned(quant_size(type, (size_t)n * k)), *packed = aligned(matmul_pack_size(type, n, k));
    for (size_t i = 0; i < quant_size(type, (size_t)n * k); i++)
        rows[i] = (uint8_t)(i * 7) & 0x3b;
    matmul_matrix_set(&m, type, n, k, packed);
    matmul_pack(type, n, k, rows, packed, 0, m.n_groups);
    free(rows);
    return m;
}

static void work_open(struct tuning_work *work, uint32_t n_threads)
{
    cr_assert_eq(team_open(&work->team, n_threads, NULL), 0);
    work->input = aligned(2 * matmul_input_size(512, TUNING_COLUMNS) + 64);
    work->members = calloc(n_threads, sizeof *work->members);
    work->tile_floats = FLOATS;
    for (uint32_t i = 0; i < n_threads; i++) {
        work->members[i].tile = aligned(FLOATS * sizeof(float));
        work->members[i].kernel = aligned(matmul_scratch_size());
    }
}

static void work_close(struct tuning_work *work, uint32_t n_threads)
{
    for (uint32_t i = 0; i < n_threads; i++) {
        free(work->members[i].tile);
        free(work->members[i].kernel);
    }
    free(work->members);
    free(work->input);
    team_close(work->team);
}

/* Ample time, so that no cell is left out: which variant wins is the machine's affair. */
static void measured(uint32_t n_threads)
{
    struct matmul_matrix all[] = {matrix(QUANT_Q4_K, 256, 512),
                                  matrix(QUANT_Q6_K, 100, 256),
                                  matrix(QUANT_Q4_K, 256, 512),
                                  matrix(QUANT_F32, 64, 256),
                                  {0}};
    struct tuning_work work = {0};
    struct tuning t;
    work_open(&work, n_threads);
    tuning_init(&t, best(), n_threads);
    t.choice[MATMUL_Q4_K][2] = (struct tuning_choice){.state = TUNING_KEPT, .gain = 3};
    cr_assert_eq(tuning_measure(&t, all, 5, others(), &work, (uint64_t)60 * 1000000000u, NULL), 0);
    for (uint32_t c = 0; c < TUNING_CLASSES; c++) {
        cr_assert_eq(t.choice[MATMUL_Q4_K][c].state, c == 2 ? TUNING_KEPT : TUNING_MEASURED);
        cr_assert_eq(t.choice[MATMUL_Q6_K][c].state, TUNING_MEASURED);
        cr_assert_eq(t.choice[MATMUL_F32][c].state, TUNING_BUILT);
        cr_assert_eq(t.choice[MATMUL_Q8_0][c].state, TUNING_BUILT);
        cr_assert(t.kernels[c]->supported());
    }
    cr_assert(t.used[MATMUL_Q4_K] && t.used[MATMUL_Q6_K] && t.used[MATMUL_F32] && !t.used[MATMUL_Q8_0]);
    tuning_show(&t, "measured");
    cr_assert_eq(t.info.n_choices, 3 * TUNING_CLASSES);
    work_close(&work, n_threads);
    for (int i = 0; i < 4; i++)
        free((void *)all[i].data);
}

Test(tuning, every_kind_and_class_of_a_model_is_measured)
{
    measured(1);
    measured(3);
}

Test(tuning, without_time_the_constants_stay)
{
    struct matmul_matrix m = matrix(QUANT_Q4_K, 256, 512);
    struct tuning_work work = {0};
    struct tuning t;
    work_open(&work, 2);
    tuning_init(&t, best(), 2);
    cr_assert_eq(tuning_measure(&t, &m, 1, others(), &work, 0, NULL), 0);
    for (uint32_t c = 0; c < TUNING_CLASSES; c++) {
        cr_assert_eq(t.choice[MATMUL_Q4_K][c].state, TUNING_BUILT);
        cr_assert_eq(t.kernels[c], best());
    }
    work_close(&work, 2);
    free((void *)m.data);
}

/* Tables that compute as the best one, and take so many microseconds more for a call. */
static void busy(uint32_t us)
{
    uint64_t until = clock_ns() + us * (uint64_t)1000;
    while (clock_ns() < until) {
    }
}

static void quantise(struct matmul_input *in, uint32_t panel, uint32_t first, uint32_t last,
                     const float *const *x, const float *gain, bool floats)
{
    best()->quantise(in, panel, first, last, x, gain, floats);
}

static void run_slow_four(const struct matmul_matrix *m, const struct matmul_input *in, uint32_t first,
                          uint32_t last, float *out, size_t stride, void *scratch)
{
    best()->run(m, in, first, last, out, stride, scratch);
    busy(m->kind == MATMUL_Q4_K ? 40 : 0);
}

static void run_slow_six(const struct matmul_matrix *m, const struct matmul_input *in, uint32_t first,
                         uint32_t last, float *out, size_t stride, void *scratch)
{
    best()->run(m, in, first, last, out, stride, scratch);
    busy(m->kind == MATMUL_Q6_K ? 400 : 0);
}

/* Measures weights of which `n_few` rows are Q6_K and 256 Q4_K, with `own` and one other table. */
static void measured_with(const struct matmul_kernels *own, const struct matmul_kernels *other,
                          uint32_t n_few, struct tuning *t)
{
    const struct matmul_kernels *list[] = {other, NULL};
    struct matmul_matrix all[] = {matrix(QUANT_Q4_K, 256, 512), matrix(QUANT_Q6_K, n_few, 512)};
    struct tuning_work work = {0};
    work_open(&work, 1);
    tuning_init(t, own, 1);
    cr_assert_eq(tuning_measure(t, all, 2, list, &work, (uint64_t)60 * 1000000000u, NULL), 0);
    work_close(&work, 1);
    for (int i = 0; i < 2; i++)
        free((void *)all[i].data);
}

static bool table_taken(const struct matmul_kernels *own, const struct matmul_kernels *other)
{
    struct tuning t;
    bool taken = false;
    measured_with(own, other, 128, &t);
    for (uint32_t c = 0; c < TUNING_CLASSES; c++)
        taken = taken || t.kernels[c] == other;
    return taken;
}

static const struct matmul_kernels slow_four = {.name = "own", .quantise = quantise, .run = run_slow_four};

Test(tuning, a_table_that_is_slower_for_all_weights_together_is_not_taken)
{
    static const struct matmul_kernels other = {.name = "other", .quantise = quantise, .run = run_slow_six};
    cr_assert(!table_taken(&slow_four, &other));
}

Test(tuning, a_table_that_is_faster_for_all_weights_is_taken)
{
    static struct matmul_kernels other;
    other = (struct matmul_kernels){.name = "other", .quantise = quantise, .run = best()->run};
    bool taken = false; /* other work on the machine may hide even this */
    for (int i = 0; i < 20 && !taken; i++)
        taken = table_taken(&slow_four, &other);
    cr_assert(taken);
}

/* A machine on which one hint at one distance is best, and without that distance none is better. */
static void run_picky(const struct matmul_matrix *m, const struct matmul_input *in, uint32_t first,
                      uint32_t last, float *out, size_t stride, void *scratch)
{
    const struct matmul_variant *v = &in->variant;
    best()->run(m, in, first, last, out, stride, scratch);
    busy(v->hint == MATMUL_HINT_T1 && v->ahead == 3072 ? 20 : v->hint == MATMUL_HINT_NONE ? 60 : 100);
}

Test(tuning, a_hint_that_is_best_at_one_distance_alone_is_found)
{
    static const struct matmul_kernels picky = {.name = "own", .quantise = quantise, .run = run_picky};
    bool found = false; /* other work on the machine may hide even this */
    for (int i = 0; i < 20 && !found; i++) {
        struct tuning t;
        measured_with(&picky, NULL, 128, &t);
        const struct matmul_variant *v = &t.choice[MATMUL_Q4_K][0].variant;
        found = v->hint == MATMUL_HINT_T1 && v->ahead == 3072;
    }
    cr_assert(found);
}

/* Tables on a machine whose constants prefetch badly. */
static void run_badly(const struct matmul_matrix *m, const struct matmul_input *in, uint32_t first,
                      uint32_t last, float *out, size_t stride, void *scratch)
{
    best()->run(m, in, first, last, out, stride, scratch);
    busy(in->variant.hint == MATMUL_HINT_BUILT ? 200 : 0);
}

static void run_badly_and_slow(const struct matmul_matrix *m, const struct matmul_input *in, uint32_t first,
                               uint32_t last, float *out, size_t stride, void *scratch)
{
    run_badly(m, in, first, last, out, stride, scratch);
    busy(40);
}

Test(tuning, a_table_is_tried_with_the_prefetches_that_suit_the_machine)
{
    static const struct matmul_kernels own = {.name = "own", .quantise = quantise, .run = run_badly_and_slow},
                                       other = {.name = "other", .quantise = quantise, .run = run_badly};
    bool taken = false;
    for (int i = 0; i < 20 && !taken; i++)
        taken = table_taken(&own, &other);
    cr_assert(taken);
}

Test(tuning, a_kind_too_small_to_be_measured_prefetches_as_the_largest)
{
    static const struct matmul_kernels own = {.name = "own", .quantise = quantise, .run = run_badly};
    struct tuning t;
    uint32_t n_lent = 0;
    for (int i = 0; i < 20 && n_lent < TUNING_CLASSES; i++) {
        measured_with(&own, NULL, 16, &t);
        for (uint32_t c = n_lent = 0; c < TUNING_CLASSES; c++) {
            struct matmul_variant few = t.choice[MATMUL_Q6_K][c].variant;
            cr_assert_eq(t.choice[MATMUL_Q6_K][c].state, TUNING_BUILT);
            cr_assert_eq(few.hint, t.choice[MATMUL_Q4_K][c].variant.hint);
            cr_assert_eq(few.ahead, t.choice[MATMUL_Q4_K][c].variant.ahead);
            cr_assert_eq(few.shape, MATMUL_SHAPE_BUILT);
            n_lent += few.hint != MATMUL_HINT_BUILT;
        }
    }
    cr_assert_eq(n_lent, TUNING_CLASSES);
}

/* A tuning of two kinds, Q4_K the larger, in which nothing was measured. */
static struct tuning open_choices(void)
{
    struct tuning t;
    tuning_init(&t, best(), 1);
    t.used[MATMUL_Q4_K] = t.used[MATMUL_Q6_K] = true;
    for (uint32_t c = 0; c < TUNING_CLASSES; c++)
        t.choice[MATMUL_Q4_K][c].unsettled = true;
    return t;
}

static void found(struct tuning *t, uint32_t kind, uint32_t class, uint32_t ahead, float gain)
{
    t->choice[kind][class] = (struct tuning_choice){
        .variant = {.hint = MATMUL_HINT_T1, .shape = MATMUL_SHAPE_DIRECT, .ahead = ahead},
        .state = TUNING_MEASURED,
        .gain = gain};
}

Test(tuning, a_choice_that_a_busy_moment_left_open_prefetches_as_one_that_was_measured)
{
    struct tuning t = open_choices();
    found(&t, MATMUL_Q6_K, 0, 8704, 2);
    tuning_lend(&t, MATMUL_Q4_K);
    cr_assert_eq(t.choice[MATMUL_Q4_K][0].variant.ahead, 8704); /* the other kind's of the class */
    cr_assert_eq(t.choice[MATMUL_Q4_K][0].variant.shape, MATMUL_SHAPE_BUILT);
    cr_assert_eq(t.choice[MATMUL_Q6_K][0].variant.shape, MATMUL_SHAPE_DIRECT);
    cr_assert_eq(t.choice[MATMUL_Q4_K][1].variant.hint, MATMUL_HINT_BUILT); /* there is none */
    found(&t, MATMUL_Q4_K, 4, 4352, 1.5f);
    tuning_lend(&t, MATMUL_Q4_K);
    cr_assert_eq(t.choice[MATMUL_Q4_K][0].variant.ahead, 8704);
    cr_assert_eq(t.choice[MATMUL_Q4_K][1].variant.ahead, 4352); /* its own of another class */
    cr_assert_eq(t.choice[MATMUL_Q6_K][4].variant.ahead, 4352);
}

Test(tuning, constants_that_stood_in_quiet_lend_and_take_nothing_else)
{
    struct tuning t = open_choices();
    t.choice[MATMUL_Q4_K][0] = (struct tuning_choice){.state = TUNING_MEASURED, .gain = 1};
    found(&t, MATMUL_Q6_K, 1, 8704, 2);
    tuning_lend(&t, MATMUL_Q4_K);
    cr_assert_eq(t.choice[MATMUL_Q4_K][0].variant.hint, MATMUL_HINT_BUILT);
    cr_assert_eq(t.choice[MATMUL_Q6_K][0].variant.hint, MATMUL_HINT_BUILT);
}

Test(tuning, an_empty_file_and_a_directory_are_refused_by_name)
{
    struct tuning t;
    struct error err = {0}, of_directory = {0};
    write_file("");
    tuning_init(&t, best(), 2);
    cr_assert_eq(tuning_read(&t, path(), &err), -EINVAL);
    cr_assert_not_null(strstr(err.text, path()), "%s", err.text);
    cr_assert_not_null(strstr(err.text, "is empty"), "%s", err.text);
    unlink(path());
    cr_assert_eq(tuning_read(&t, "/tmp", &of_directory), -EINVAL);
    cr_assert_str_eq(of_directory.text, "cpu_tuning: /tmp: Is a directory");
}

/* A machine whose constants prefetch badly, and on which something else takes ten times as long as every
 * fifth call, 1 ms at least, while `disturbing`. Counts the calls. */
static _Atomic bool disturbing;
static _Atomic uint32_t n_runs;

static void run_disturbed(const struct matmul_matrix *m, const struct matmul_input *in, uint32_t first,
                          uint32_t last, float *out, size_t stride, void *scratch)
{
    uint64_t begun_ns = clock_ns();
    best()->run(m, in, first, last, out, stride, scratch);
    busy(in->variant.hint == MATMUL_HINT_BUILT ? 60 : 0);
    uint32_t took_us = (uint32_t)((clock_ns() - begun_ns) / 1000);
    if (++n_runs % 5 == 0 && disturbing)
        busy(took_us > 100 ? 10 * took_us : 1000);
}

static const struct matmul_kernels disturbed = {.name = "own", .quantise = quantise, .run = run_disturbed};
static const struct matmul_kernels *const no_others[] = {NULL};

static void measure_disturbed(struct tuning *t, const struct matmul_matrix *m, struct tuning_work *work)
{
    tuning_init(t, &disturbed, team_size(work->team));
    disturbing = true;
    cr_assert_eq(tuning_measure(t, m, 1, no_others, work, (uint64_t)60 * 1000000000u, NULL), 0);
    disturbing = false;
    for (uint32_t c = 0; c < TUNING_CLASSES; c++)
        cr_assert(t->choice[MATMUL_Q4_K][c].unsettled, "class %u", c);
    cr_assert_eq(tuning_n_unsettled(t), TUNING_CLASSES);
}

static bool never(void *context)
{
    (void)context;
    return false;
}

Test(tuning, what_other_work_disturbed_is_measured_again_in_a_quiet_moment)
{
    struct matmul_matrix m = matrix(QUANT_Q4_K, 256, 512);
    struct tuning_work work = {0};
    struct tuning t;
    uint32_t at = 0, n_taken = 0;
    const struct tuning_choice *one_column = &t.choice[MATMUL_Q4_K][0];
    work_open(&work, 1);
    measure_disturbed(&t, &m, &work);
    for (int i = 0; i < 500 && one_column->unsettled; i++) { /* the machine may have other work indeed */
        struct tuning next = t;
        int rc = tuning_again(&next, &m, 1, no_others, &work, &at, never, NULL, NULL);
        cr_assert_geq(rc, 0);
        n_taken += (uint32_t)rc;
        t = rc ? next : t;
    }
    cr_assert(!one_column->unsettled);
    cr_assert_eq(one_column->state, TUNING_MEASURED);
    cr_assert_neq(one_column->variant.hint, MATMUL_HINT_BUILT);
    cr_assert_gt(one_column->gain, 1);
    cr_assert_eq(t.n_again, n_taken);
    tuning_show(&t, "measured");
    cr_assert_eq(t.info.n_again, n_taken);
    cr_assert_eq(t.info.n_unsettled, tuning_n_unsettled(&t));
    work_close(&work, 1);
    free((void *)m.data);
}

Test(tuning, another_disturbed_moment_settles_nothing)
{
    struct matmul_matrix m = matrix(QUANT_Q4_K, 256, 512);
    struct tuning_work work = {0};
    struct tuning t;
    uint32_t at = 0;
    work_open(&work, 1);
    measure_disturbed(&t, &m, &work);
    disturbing = true;
    for (uint32_t i = 0; i < TUNING_CLASSES; i++) {
        struct tuning next = t;
        cr_assert_eq(at % TUNING_CLASSES, i); /* each has its turn, though none is settled */
        if (tuning_again(&next, &m, 1, no_others, &work, &at, never, NULL, NULL) > 0)
            t = next; /* a variant where there was none */
        cr_assert_eq(tuning_n_unsettled(&t), TUNING_CLASSES);
    }
    work_close(&work, 1);
    free((void *)m.data);
}

struct caller { /* is wanted from the answer number `after` on */
    uint32_t n_asked, after, n_runs;
};

static bool wanted(void *context)
{
    struct caller *c = context;
    if (++c->n_asked == c->after)
        c->n_runs = n_runs;
    return c->n_asked >= c->after;
}

Test(tuning, a_request_that_comes_ends_what_is_measured_again_at_once)
{
    struct matmul_matrix m = matrix(QUANT_Q4_K, 256, 512);
    struct tuning_work work = {0};
    struct tuning t;
    uint32_t at = 0;
    work_open(&work, 3);
    measure_disturbed(&t, &m, &work);
    for (uint32_t after = 1; after < 30; after++) {
        uint32_t was_at = at;
        struct tuning next = t;
        struct caller caller = {.after = after};
        if (tuning_again(&next, &m, 1, no_others, &work, &at, wanted, &caller, NULL) > 0)
            continue; /* it had ended before */
        if (caller.n_asked < after)
            continue; /* the same, without a choice */
        cr_assert_eq(caller.n_asked, after, "asked again behind the answer");
        cr_assert_eq(at, was_at); /* the choice keeps its turn */
        /* The two other members may have been at their runs of the timing before. */
        cr_assert_leq(n_runs - caller.n_runs, 2, "%u runs behind answer %u", n_runs - caller.n_runs, after);
    }
    work_close(&work, 3);
    free((void *)m.data);
}
