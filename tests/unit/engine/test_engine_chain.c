/* Requests sampled by a chain of filters: the same bits in all circumstances, beside others that the decoder
 * samples. */
#include "base/clock.h"
#include "sampler/sampler_chain.h"
#include "support/identity.h"

#include <stdatomic.h>

#define MODEL HEARTH_TEST_DATA "/tiny-qwen3-s11-q8_0.gguf"

enum mix { FILTERS, MIROSTAT, ADAPTIVE, N_MIXES };

static void mix_of(struct sampler_chain *c, enum mix mix)
{
    sampler_chain_defaults(c);
    c->dry_multiplier = 0.8f;
    if (mix == FILTERS) {
        c->top_n_sigma = 1.5f;
        c->xtc_probability = 0.5f;
        c->dynatemp_range = 0.3f;
    }
    c->mirostat = mix == MIROSTAT;
    c->adaptive_target = mix == ADAPTIVE ? 0.3f : -1;
    sampler_chain_begin(c);
}

/* False when this CPU lacks the instruction set. */
static bool ask_chain(const struct circumstances *c, enum mix mix, struct answer *a)
{
    static struct sampler_chain own, others[N_NEIGHBOURS];
    struct sampler_chain *chains[N_NEIGHBOURS] = {NULL};
    struct rig rig;
    if (!rig_open(&rig, MODEL, c, NULL, 0))
        return false;
    for (uint32_t i = 1; i < N_NEIGHBOURS; i += 2) {
        mix_of(&others[i], FILTERS);
        chains[i] = &others[i];
    }
    prepare(a, rig.n_vocab, 0);
    mix_of(&own, mix);
    a->r.chain = &own;
    ask_beside(&rig, c, a, chains);
    rig_close(&rig);
    return true;
}

static const struct named_circumstances cases[] = {
    BESIDE_SEVEN_OTHERS,
    {"chunks of 7, beside three others, with drafts",
     {.isa = "avx2",
      .n_threads = 1,
      .steps_in_flight = 2,
      .max_chunk = 7,
      .n_neighbours = 3,
      .speculation = ENGINE_SPECULATE_ALWAYS}},
    {"a draw a round, beside seven others",
     {.isa = "auto", .n_threads = 1, .steps_in_flight = 2, .n_neighbours = 7, .draw_ns = 1}},
    {"two threads that draw one each a round",
     {.isa = "auto", .n_threads = 2, .steps_in_flight = 1, .n_neighbours = 7, .draw_ns = 1}},
    {"eager", {.kind = EXECUTOR_EAGER, .isa = "auto", .n_threads = 2, .steps_in_flight = 2}},
};

Test(engine_chain, gives_the_same_bits_in_all_circumstances)
{
    static struct answer alone, other, before;
    const struct circumstances slow = {.isa = "scalar", .n_threads = 1, .steps_in_flight = 1};
    for (enum mix mix = FILTERS; mix < N_MIXES; mix++) {
        cr_assert(ask_chain(&slow, mix, &alone));
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            if (ask_chain(&cases[i].c, mix, &other))
                expect_same(&alone, &other, MODEL, cases[i].what);
        cr_expect(mix == FILTERS || memcmp(alone.out, before.out, sizeof alone.out), "the mixes differ");
        before = alone;
    }
}

/* Neutral filters draw what the decoder draws, with its log-probabilities, past end tokens that are banned.
 */
Test(engine_chain, neutral_filters_give_the_tokens_of_the_decoder)
{
    static struct answer plain, chained;
    struct circumstances c = {.isa = "auto", .n_threads = 2, .steps_in_flight = 2};
    struct sampler_chain chain;
    const int32_t ends[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    struct rig rig;
    cr_assert(rig_open(&rig, MODEL, &c, ends, 9));
    prepare(&plain, rig.n_vocab, 0);
    prepare(&chained, rig.n_vocab, 0);
    plain.r.ignore_eos = chained.r.ignore_eos = true;
    sampler_chain_defaults(&chain);
    sampler_chain_begin(&chain);
    chained.r.chain = &chain;
    cr_assert_eq(engine_submit(rig.e, &plain.r, NULL), 0);
    wait_done(&rig, &plain);
    cr_assert_eq(engine_submit(rig.e, &chained.r, NULL), 0);
    wait_done(&rig, &chained);
    expect_same(&plain, &chained, MODEL, "by a chain");
    rig_close(&rig);
}

/* A text that the decoder samples has a token of each step while others wait for 84 draws, one a round: it
 * has 40 tokens before they have 12 each. */
Test(engine_chain, a_step_does_not_wait_for_all_draws)
{
    static struct answer plain, chained[N_NEIGHBOURS];
    static struct sampler_chain chains[N_NEIGHBOURS];
    struct circumstances c = {.isa = "auto", .n_threads = 1, .steps_in_flight = 1, .draw_ns = 1};
    uint64_t last_ns = 0;
    struct rig rig;
    cr_assert(rig_open(&rig, MODEL, &c, NULL, 0));
    prepare(&plain, rig.n_vocab, 0);
    plain.r.n_prompt = 5;
    plain.r.ignore_eos = true;
    cr_assert_eq(engine_submit(rig.e, &plain.r, NULL), 0);
    for (uint32_t i = 0; i < N_NEIGHBOURS; i++) {
        prepare(&chained[i], rig.n_vocab, i + 1);
        mix_of(&chains[i], FILTERS);
        chained[i].r.chain = &chains[i];
        chained[i].r.n_prompt = 5;
        chained[i].r.max_tokens = 12;
        chained[i].r.ignore_eos = true;
        cr_assert_eq(engine_submit(rig.e, &chained[i].r, NULL), 0);
    }
    wait_done(&rig, &plain);
    for (uint32_t i = 0; i < N_NEIGHBOURS; i++) {
        wait_done(&rig, &chained[i]);
        last_ns = chained[i].r.done_ns > last_ns ? chained[i].r.done_ns : last_ns;
    }
    cr_assert_gt(last_ns, plain.r.done_ns);
    rig_close(&rig);
}

/* ---- on a backend that counts calls and takes longer ---- */

static struct {
    sem_t submits; /* each step waits for one, until `open` */
    atomic_bool open;
    uint32_t n_shares; /* rounds of more than one draw so far */
    uint32_t n_steps;  /* submitted, not finished */
    uint32_t n_beside; /* steps submitted behind another while draws waited */
    uint64_t done;
    uint64_t share_ns, step_ns;
} calls;

/* A test of costs sets the time, which then only the calls below move: the program is linked with
 * --wrap=clock_gettime. 0: the system's. */
static _Atomic uint64_t set_ns;

int __real_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
    uint64_t ns = atomic_load(&set_ns);
    if (!ns || clock != CLOCK_MONOTONIC)
        return __real_clock_gettime(clock, t);
    *t = (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    return 0;
}

static void spend(uint64_t ns)
{
    if (ns)
        atomic_fetch_add(&set_ns, ns);
}

static int count_submit(struct backend *be, const struct step *step, struct error *err)
{
    if (!atomic_load(&calls.open))
        sem_wait(&calls.submits);
    int rc = cpu_backend.submit(be, step, err);
    if (rc == 0) {
        calls.n_beside += calls.n_shares > 0 && calls.n_shares < N_NEIGHBOURS - 1 && calls.n_steps > 0;
        calls.n_steps++;
    }
    return rc;
}

static int count_advance(struct backend *be, struct step_result *out, int max, uint64_t *done,
                         struct error *err)
{
    spend(calls.step_ns);
    int rc = cpu_backend.advance(be, out, max, done, err);
    calls.n_steps -= (uint32_t)(*done - calls.done);
    calls.done = *done;
    return rc;
}

static void count_share(struct backend *be, void (*work)(void *context, uint32_t member), void *context)
{
    calls.n_shares++;
    spend(calls.share_ns);
    cpu_backend.sampling->share(be, work, context);
}

static struct backend_ops counting(void)
{
    static struct backend_sampling_ops sampling;
    struct backend_ops ops = cpu_backend;
    sampling = *cpu_backend.sampling;
    sampling.share = count_share;
    memset(&calls, 0, sizeof calls);
    sem_init(&calls.submits, 0, 0);
    ops.submit = count_submit;
    ops.advance = count_advance;
    ops.sampling = &sampling;
    return ops;
}

static void submit_chained(struct rig *rig, struct answer *a, struct sampler_chain *c, uint32_t n_tokens)
{
    mix_of(c, FILTERS);
    a->r.chain = c;
    a->r.n_prompt = 2;
    a->r.max_tokens = n_tokens;
    a->r.ignore_eos = true;
    cr_assert_eq(engine_submit(rig->e, &a->r, NULL), 0);
}

/* Seven texts of one token wait for seven rounds: meanwhile the other text has two steps in flight. */
Test(engine_chain, steps_follow_each_other_while_draws_wait)
{
    static struct answer plain, chained[N_NEIGHBOURS];
    static struct sampler_chain chains[N_NEIGHBOURS];
    const struct backend_ops ops = counting();
    struct circumstances c = {.isa = "auto", .ops = &ops, .n_threads = 1, .steps_in_flight = 2, .draw_ns = 1};
    struct rig rig;
    cr_assert(rig_open(&rig, MODEL, &c, NULL, 0));
    prepare(&plain, rig.n_vocab, 0);
    plain.r.n_prompt = 5;
    plain.r.ignore_eos = true;
    cr_assert_eq(engine_submit(rig.e, &plain.r, NULL), 0);
    for (uint32_t i = 0; i < N_NEIGHBOURS; i++) {
        prepare(&chained[i], rig.n_vocab, i + 1);
        submit_chained(&rig, &chained[i], &chains[i], 1);
    }
    atomic_store(&calls.open, true);
    sem_post(&calls.submits);
    wait_done(&rig, &plain);
    for (uint32_t i = 0; i < N_NEIGHBOURS; i++)
        wait_done(&rig, &chained[i]);
    rig_close(&rig);
    cr_expect_geq(calls.n_shares, 2, "%u rounds of several draws", calls.n_shares);
    cr_expect_gt(calls.n_beside, 0);
}

/* Steps take 2 ms, and draws, which each step waits for, 40: a draft saves a step and costs next to nothing,
 * for the text would wait for draws without drafts, too. */
Test(engine_chain, the_time_of_draws_is_no_cost_of_drafts)
{
    static struct answer plain, chained[2];
    static struct sampler_chain chains[2];
    static struct engine_token out[N_CTX];
    static struct step_top top[N_CTX * N_TOP];
    const struct step_bias again = {.token = 7, .bias = 1000};
    const struct backend_ops ops = counting();
    struct circumstances c = {.isa = "auto", .ops = &ops, .n_threads = 1, .steps_in_flight = 1};
    struct engine_stats s;
    struct rig rig;
    cr_assert(rig_open(&rig, MODEL, &c, NULL, 0));
    atomic_store(&set_ns, clock_ns());
    calls.share_ns = 40000000;
    calls.step_ns = 2000000;
    prepare(&plain, rig.n_vocab, 0);
    plain.r.sampling = (struct step_sampling){STEP_SAMPLING_NEUTRAL, .n_bias = 1};
    plain.r.biases = &again; /* all its tokens */
    plain.r.ignore_eos = true;
    plain.r.n_prompt = 5;
    plain.r.max_tokens = 200;
    plain.r.want_prompt_logprobs = false;
    plain.r.top = top;
    plain.r.out = out;
    cr_assert_eq(engine_submit(rig.e, &plain.r, NULL), 0);
    for (uint32_t i = 0; i < 2; i++) {
        prepare(&chained[i], rig.n_vocab, i + 1);
        submit_chained(&rig, &chained[i], &chains[i], N_TOKENS - 2);
    }
    atomic_store(&calls.open, true);
    sem_post(&calls.submits);
    wait_done(&rig, &plain);
    for (uint32_t i = 0; i < 2; i++)
        wait_done(&rig, &chained[i]);
    engine_stats(rig.e, &s);
    rig_close(&rig);
    cr_expect_gt(s.accepted, 50);
    cr_expect_eq(s.turned_off, 0, "%lu of %lu drafts were right", (unsigned long)s.accepted,
                 (unsigned long)s.drafted);
}

/* A text that is cancelled while its draw waits leaves its slot to others. */
Test(engine_chain, a_cancelled_draw_is_forgotten)
{
    static struct answer chained[N_NEIGHBOURS];
    static struct sampler_chain chains[N_NEIGHBOURS];
    struct circumstances c = {.isa = "auto", .n_threads = 1, .steps_in_flight = 1, .draw_ns = 1};
    struct rig rig;
    cr_assert(rig_open(&rig, MODEL, &c, NULL, 0));
    for (uint32_t round = 0; round < 20; round++) {
        for (uint32_t i = 0; i < N_NEIGHBOURS; i++) {
            prepare(&chained[i], rig.n_vocab, i + 1);
            mix_of(&chains[i], FILTERS);
            chained[i].r.chain = &chains[i];
            chained[i].r.n_prompt = 5;
            cr_assert_eq(engine_submit(rig.e, &chained[i].r, NULL), 0);
        }
        while (!atomic_load_explicit(&chained[round % N_NEIGHBOURS].r.n_out, memory_order_acquire))
            if (!engine_next(rig.e))
                sem_wait(&rig.news);
        for (uint32_t i = 0; i < N_NEIGHBOURS; i++)
            engine_cancel(rig.e, &chained[i].r);
        for (uint32_t i = 0; i < N_NEIGHBOURS; i++)
            wait_end(&rig, &chained[i].r);
    }
    rig_close(&rig);
}
