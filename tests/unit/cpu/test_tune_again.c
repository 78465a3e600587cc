/* Choices of products that other work disturbed at load are measured again by an idle decoder, which adopts
 * them. */
#include "cpu/cpu_decoder.h"
#include "cpu/matmul/matmul_pack.h"
#include "cpu/turn.h"
#include "gguf/quant.h"
#include "support/decoder_run.h"

#include <pthread.h>
#include <unistd.h>

#define MODEL HEARTH_SOURCE_DIR "/models/hearth-stories-6m-q4_k_m.gguf"
#define N     24

static const char *file(void)
{
    static char name[64];
    snprintf(name, sizeof name, "/tmp/hearth-test-tune-again-%d", (int)getpid());
    return name;
}

static struct decoder *decoder_of(struct decoder_run *r)
{
    return (struct decoder *)executor_backend(r->x);
}

/* Marks the choices of the kind with most weights as a busy moment leaves them: small weights are not
 * measured at load. Returns the kind. */
static uint32_t disturb(struct decoder *d)
{
    uint64_t bytes[MATMUL_N_KINDS] = {0};
    uint32_t largest = 0;
    for (uint32_t i = 0; i < d->weights.n; i++) {
        const struct matmul_matrix *m = &d->weights.matrices[i];
        bytes[m->kind] += (uint64_t)m->n_groups * m->group_size;
        largest = bytes[m->kind] > bytes[largest] ? m->kind : largest;
    }
    for (uint32_t c = 0; c < TUNING_CLASSES; c++)
        d->tuning.choice[largest][c].unsettled = true;
    return largest;
}

static bool never(void *context)
{
    (void)context;
    return false;
}

static bool at_once(void *context)
{
    (void)context;
    return true;
}

/* Idles until one choice was adopted: the machine may have other work. */
static void idle_until_adopted(struct decoder_run *r)
{
    const struct decoder *d = decoder_of(r);
    for (int i = 0; i < 500 && !d->retuned; i++)
        cr_assert_gt(executor_idle(r->x, never, NULL), 0);
    cr_assert_not_null(d->retuned);
}

static int32_t tokens[N];

static float *logits(struct decoder_run *r, uint32_t slot)
{
    float *x = malloc((size_t)N * r->n_vocab * sizeof *x);
    decoder_run_feed(r, slot, tokens, N, 7, x);
    return x;
}

Test(tune_again, an_idle_decoder_adopts_what_it_measured_and_its_bits_stay)
{
    struct decoder_run r;
    struct backend_info before, after;
    for (int32_t i = 0; i < N; i++)
        tokens[i] = 5 + 7 * i;
    decoder_run_open(&r,
                     &(struct decoder_run_config){
                         .path = MODEL, .n_threads = 2, .n_slots = 2, .n_ctx = 128, .cpu_tuning = file()});
    unlink(file());
    disturb(decoder_of(&r));
    executor_info(r.x, &before);
    float *x = logits(&r, 0);
    idle_until_adopted(&r);
    executor_info(r.x, &after);
    cr_assert_neq(after.tuning, before.tuning);
    cr_assert_str_eq(before.tuning->source, "constants"); /* a reader of info() may read on */
    cr_assert_str_eq(after.tuning->source, "measured");
    cr_assert_eq(after.tuning->n_again, 1);
    cr_assert_eq(decoder_of(&r)->product.tuning, decoder_of(&r)->tuned);
    float *y = logits(&r, 1);
    cr_assert_eq(memcmp(x, y, (size_t)N * r.n_vocab * sizeof *x), 0);
    free(x);
    free(y);
    decoder_run_close(&r);
    unlink(file());
}

Test(tune_again, choices_that_were_settled_are_kept_in_the_file_at_the_end)
{
    struct decoder_run r;
    decoder_run_open(&r, &(struct decoder_run_config){.path = MODEL, .cpu_tuning = file()});
    uint32_t kind = disturb(decoder_of(&r));
    const struct decoder *d = decoder_of(&r);
    for (int i = 0; i < 1000 && d->tuned->choice[kind][0].unsettled; i++)
        executor_idle(r.x, never, NULL);
    cr_assert_not(d->tuned->choice[kind][0].unsettled);
    cr_assert_eq(access(file(), F_OK), -1);
    decoder_run_close(&r);
    struct tuning t;
    tuning_init(&t, matmul_find("auto"), 1);
    cr_assert_eq(tuning_read(&t, file(), NULL), 1);
    cr_assert_eq(t.choice[kind][0].state, TUNING_KEPT);
    unlink(file());
}

Test(tune_again, nothing_is_measured_where_all_is_settled_or_work_waits)
{
    struct decoder_run r;
    decoder_run_open(&r, &(struct decoder_run_config){.path = MODEL});
    cr_assert_eq(executor_idle(r.x, never, NULL), UINT64_MAX);
    disturb(decoder_of(&r));
    uint64_t wait = executor_idle(r.x, at_once, NULL);
    cr_assert_eq(executor_idle(r.x, at_once, NULL), wait); /* a request is no disturbance */
    cr_assert_null(decoder_of(&r)->retuned);
    cr_assert_lt(wait, UINT64_MAX);
    decoder_run_close(&r);
}

static void waits(void *context)
{
    (void)context;
}

static void *take_a_turn(void *context)
{
    turn_take(waits, context);
    turn_give();
    return NULL;
}

Test(tune_again, another_decoder_that_waits_for_its_turn_is_seen)
{
    pthread_t other;
    turn_take(waits, NULL);
    cr_assert_not(turn_is_asked());
    cr_assert_eq(pthread_create(&other, NULL, take_a_turn, NULL), 0);
    while (!turn_is_asked())
        usleep(1000);
    turn_give();
    pthread_join(other, NULL);
    cr_assert_not(turn_is_asked());
}
