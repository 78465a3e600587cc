/* test_resident.c - tests the persistent loop (kernels/persistent/persistent_loop.h, io_warp.h) under the toy
 * decoder, on the emulator: its results, and its behaviour with a host that stops it, leaves it idle, or
 * sends it invalid steps. */
#include "toy_run.h"
#include "device/dependency.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#define PATIENCE_MS 20000 /* for a launch beside us; it takes a few */

static struct toy_run run;

static void open_run(void)
{
    toy_run_open(&run, 2, 3);
    rig_reset(&run.rig);
}

static void close_run(void)
{
    toy_run_close(&run);
}

TestSuite(resident, .init = open_run, .fini = close_run, .timeout = 300);

Test(resident, answers_are_the_references_for_any_number_of_blocks_and_stages)
{
    for (uint32_t n_blocks = 1; n_blocks <= 4; n_blocks++) {
        struct toy_run r;
        struct simt_report report;
        toy_run_open(&r, n_blocks, 2 + n_blocks % 3);
        for (uint64_t seed = 0; seed < 4; seed++)
            for (uint32_t sm = 80; sm <= 90; sm += 10) {
                /* A lost single block: only the I/O warp is left to notice. */
                struct toy_run *one = &r;
                cr_expect(n_blocks == 1 || toy_run_seed(one, 3, sm, seed, -1, &report) == 0,
                          "%u blocks sm_%u seed %llu: %s: %s", n_blocks, sm, (unsigned long long)seed,
                          report.kind, report.text);
            }
        toy_run_close(&r);
    }
}

/* --- a launch with nothing but what was written before --- */

/* A step of n sequences, each with a page. */
static void put_rows(struct step *s, uint32_t n)
{
    s->id = 1;
    for (; s->n_rows < n; s->n_rows++) {
        s->edits[s->n_edits++] =
            (struct step_table_edit){.slot = s->n_rows, .page = s->n_rows, .window = TOY_PAGES + s->n_rows};
        s->rows[s->n_rows] =
            (struct step_row){.slot = s->n_rows, .pos = 1, .token = 3, .logit_index = STEP_NO_LOGITS};
    }
}

static void launch(uint32_t sm)
{
    struct simt_report report;
    int rc = rig_launch(&run.rig, sm, sm, SIMT_N_SCHEDULES, -1, &report);
    cr_assert_eq(rc, 0, "%s: %s", report.kind, report.text);
    cr_assert_eq(run.rig.control->left, run.rig.args.launch);
}

struct nonsense {
    const char *name;
    uint32_t what;
    void (*put)(struct step *s);
};

#define NONSENSE(name, statement)                                                                            \
    static void name(struct step *s)                                                                         \
    {                                                                                                        \
        statement;                                                                                           \
    }
NONSENSE(too_many_rows, s->n_rows = TOY_ROWS + 1)
NONSENSE(too_many_logits, s->n_logits = STEP_MAX_LOGITS + 1)
NONSENSE(too_many_edits, s->n_edits = STEP_MAX_EDITS + 1)
NONSENSE(too_many_page_ops, s->n_page_ops = 0xffffffff)
NONSENSE(too_many_slots, s->n_slots = STEP_MAX_LOGITS + 1)
NONSENSE(too_many_biases, s->n_biases = STEP_MAX_BIAS + 1)
NONSENSE(too_long_history, s->n_history = STEP_MAX_HISTORY + 1)
NONSENSE(row_slot, s->rows[1].slot = TOY_SLOTS)
NONSENSE(row_pos, s->rows[0].pos = TOY_N_CTX)
NONSENSE(row_token, s->rows[0].token = TOY_VOCAB)
NONSENSE(row_negative_token, s->rows[1].token = -2)
NONSENSE(row_logit, s->rows[0].logit_index = 0)
static void logit(struct step *s)
{
    s->n_logits = 1;
    s->logits[0] = (struct step_logit){.row = 1, .target = -1};
    s->rows[1].logit_index = 0;
}
NONSENSE(logit_row, logit(s); s->logits[0].row = 2)
NONSENSE(logit_top, logit(s); s->logits[0].n_top = STEP_MAX_TOP + 1)
NONSENSE(logit_mask, logit(s); s->logits[0].mask = DECODER_MASKS + 1)
NONSENSE(logit_target, logit(s); s->logits[0].target = TOY_VOCAB)
NONSENSE(logit_negative_target, logit(s); s->logits[0].target = -2)
NONSENSE(logit_of_another, logit(s); s->rows[1].logit_index = STEP_NO_LOGITS)
NONSENSE(edit_slot, s->n_edits = 1; s->edits[0].slot = TOY_SLOTS)
NONSENSE(edit_index, s->n_edits = 1; s->edits[0].index = (TOY_N_CTX + 63) / 64)
NONSENSE(edit_page, s->n_edits = 40; s->edits[39].page = TOY_PAGES)
NONSENSE(edit_window, s->n_edits = 1; s->edits[0].window = TOY_PAGES + TOY_WINDOWS)
NONSENSE(edit_window_page, s->n_edits = 1; s->edits[0].window = TOY_PAGES - 1)
NONSENSE(page_op_none, s->n_page_ops = 1)
NONSENSE(page_op_kind, s->n_page_ops = 1; s->page_ops[0].kind = STEP_PAGE_ZERO + 1)
NONSENSE(page_op_page, s->n_page_ops = 1;
         s->page_ops[0] = ((struct step_page_op){.kind = STEP_PAGE_ZERO, .page = TOY_PAGES + TOY_WINDOWS}))
NONSENSE(page_op_from, s->n_page_ops = 1;
         s->page_ops[0] = ((struct step_page_op){.kind = STEP_PAGE_COPY, .from = TOY_PAGES}))
NONSENSE(page_op_offset, s->n_page_ops = 1;
         s->page_ops[0] = ((struct step_page_op){.kind = STEP_PAGE_EXPORT, .host_offset = 3 * 256 + 1}))
NONSENSE(page_op_window_from, s->n_page_ops = 1;
         s->page_ops[0] = ((struct step_page_op){.kind = STEP_PAGE_COPY, .page = TOY_PAGES, .from = 1}))
NONSENSE(page_op_window_offset, s->n_page_ops = 1;
         s->page_ops[0] = ((struct step_page_op){
             .kind = STEP_PAGE_IMPORT, .page = TOY_PAGES, .host_offset = 3 * 256 + 129}))
NONSENSE(slot_slot, s->n_slots = 1; s->slots[0].slot = TOY_SLOTS)
NONSENSE(slot_start, s->n_slots = 1; s->slots[0].start = TOY_N_CTX)
NONSENSE(slot_history, s->n_slots = 1; s->n_history = 9; s->slots[0].start = 3; s->slots[0].n_history = 4)
NONSENSE(slot_history_offset, s->n_slots = 1; s->n_history = 9; s->slots[0].start = 50;
         s->slots[0].n_history = 4; s->slots[0].history_offset = 6)
NONSENSE(slot_bias_offset, s->n_slots = 1; s->n_biases = 2; s->slots[0].sampling.n_bias = 1;
         s->slots[0].sampling.bias_offset = 0xffffffff)
NONSENSE(bias_token, s->n_biases = 2; s->biases[1].token = TOY_VOCAB)
NONSENSE(history_token, s->n_history = 70; s->history[69] = -1)

static const struct nonsense nonsense[] = {
#define N(name, what)                                                                                        \
    {                                                                                                        \
#name, DECODER_RANGE_##what, name                                                                    \
    }
    N(too_many_rows, COUNT),
    N(too_many_logits, COUNT),
    N(too_many_edits, COUNT),
    N(too_many_page_ops, COUNT),
    N(too_many_slots, COUNT),
    N(too_many_biases, COUNT),
    N(too_long_history, COUNT),
    N(row_slot, ROW),
    N(row_pos, ROW),
    N(row_token, TOKEN),
    N(row_negative_token, TOKEN),
    N(row_logit, ROW),
    N(logit_row, LOGIT),
    N(logit_top, LOGIT),
    N(logit_mask, LOGIT),
    N(logit_target, TOKEN),
    N(logit_negative_target, TOKEN),
    N(logit_of_another, LOGIT),
    N(edit_slot, EDIT),
    N(edit_index, EDIT),
    N(edit_page, EDIT),
    N(edit_window, EDIT),
    N(edit_window_page, EDIT),
    N(page_op_none, PAGE_OP),
    N(page_op_kind, PAGE_OP),
    N(page_op_page, PAGE_OP),
    N(page_op_from, PAGE_OP),
    N(page_op_offset, PAGE_OP),
    N(page_op_window_from, PAGE_OP),
    N(page_op_window_offset, PAGE_OP),
    N(slot_slot, SLOT),
    N(slot_start, SLOT),
    N(slot_history, SLOT),
    N(slot_history_offset, SLOT),
    N(slot_bias_offset, SLOT),
    N(bias_token, TOKEN),
    N(history_token, TOKEN),
};

Test(resident, an_index_out_of_range_ends_the_launch_and_is_told)
{
    for (uint32_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        rig_reset(&run.rig);
        run.rig.control->stop = DECODER_DRAIN;
        put_rows(rig_step(&run.rig), 2);
        rig_submit(&run.rig); /* a step as it should be, which is answered */
        struct step *s = rig_step(&run.rig);
        put_rows(s, 2);
        nonsense[i].put(s);
        rig_submit(&run.rig);
        launch(i % 2 ? 90 : 80);
        cr_expect_eq(run.rig.control->failed, DECODER_RANGE, "%s", nonsense[i].name);
        cr_expect_eq(run.rig.control->error[0], nonsense[i].what, "%s: %u", nonsense[i].name,
                     run.rig.control->error[0]);
        cr_expect_geq(run.rig.control->error[1], run.rig.control->error[2], "%s", nonsense[i].name);
        cr_expect_eq(run.rig.control->completed, 1, "%s", nonsense[i].name);
    }
}

Test(resident, it_drains_though_nothing_was_ever_submitted)
{
    run.rig.control->stop = DECODER_DRAIN;
    launch(90);
    cr_assert_eq(run.rig.control->failed, DECODER_FINE);
    cr_assert_eq(run.rig.control->completed, 0);
}

Test(resident, it_leaves_by_itself_when_nothing_comes)
{
    run.rig.args.park_after_ms = 1;
    put_rows(rig_step(&run.rig), 2);
    rig_submit(&run.rig);
    launch(80);
    cr_assert_eq(run.rig.control->failed, DECODER_FINE);
    cr_assert_eq(run.rig.control->completed, 1);
}

/* --- a host beside it --- */

struct live {
    pthread_t thread;
    struct simt_outside outside;
    struct simt_report report;
    uint32_t sm;
    uint64_t seed;
    int rc;
    _Atomic bool ended;
};

static void *live_main(void *context)
{
    struct live *l = context;
    l->rc = rig_launch(&run.rig, l->sm, l->seed, SIMT_N_SCHEDULES, -1, &l->report);
    atomic_store(&l->ended, true);
    return NULL;
}

static void live_begin(struct live *l, uint32_t sm, uint64_t seed)
{
    *l = (struct live){.sm = sm, .seed = seed};
    run.rig.outside = &l->outside;
    run.rig.args.deadline_ns = 10000000000ull; /* the emulator's time is real now, and its threads are slow */
    cr_assert_eq(pthread_create(&l->thread, NULL, live_main, l), 0);
}

static uint32_t look(const uint32_t *word)
{
    return atomic_load_explicit((const _Atomic uint32_t *)(const void *)word, memory_order_acquire);
}

static void set(uint32_t *word, uint32_t value)
{
    atomic_store_explicit((_Atomic uint32_t *)(void *)word, value, memory_order_release);
}

static void pause_us(uint32_t us)
{
    nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

/* Waits until the word is that large, or the launch has ended. */
static void await_least(const struct live *l, const uint32_t *word, uint32_t value)
{
    for (uint32_t i = 0; look(word) < value && !atomic_load(&l->ended); i++) {
        cr_assert_lt(i, PATIENCE_MS * 10u, "a word stays at %u, below %u", look(word), value);
        pause_us(100);
    }
}

static void live_end(struct live *l)
{
    for (uint32_t i = 0; !atomic_load(&l->ended); i++) {
        cr_assert_lt(i, PATIENCE_MS * 10u, "it does not leave");
        pause_us(100);
    }
    pthread_join(l->thread, NULL);
    cr_assert_eq(l->rc, 0, "%s: %s", l->report.kind, l->report.text);
    cr_assert_eq(run.rig.control->left, run.rig.args.launch);
}

/* A host as it is: two steps in flight, answers taken as they come. */
struct host {
    struct toy_feed feed;
    struct toy_state state;
    struct step_result want[DECODER_RING][STEP_MAX_LOGITS];
    uint32_t n_logits[DECODER_RING];
    uint32_t sent, taken;
};

static void host_open(struct host *h, uint64_t seed)
{
    h->sent = h->taken = 0;
    toy_feed_open(&h->feed, &run.model.layout, seed);
    h->feed.n_windows = TOY_WINDOWS;
    toy_state_open(&h->state, &run.model);
}

/* Until `end` answers, or the launch has ended. */
static void host_go_on(struct host *h, const struct live *l, uint32_t end)
{
    struct decoder_control *c = run.rig.control;
    for (;;) {
        bool ended = atomic_load(&l->ended); /* looked at before the answers */
        for (; h->sent != end && h->sent - h->taken < DECODER_RING; h->sent++) {
            struct step *s = rig_step(&run.rig);
            toy_feed_next(&h->feed, s);
            toy_state_run(&h->state, s, h->want[h->sent % DECODER_RING]);
            h->n_logits[h->sent % DECODER_RING] = s->n_logits;
            rig_submit(&run.rig);
        }
        for (; h->taken != look(&c->completed); h->taken++) {
            uint32_t at = h->taken % DECODER_RING;
            cr_assert(toy_same(run.rig.results + at * STEP_MAX_LOGITS, h->want[at], h->n_logits[at]),
                      "step %u", h->taken);
        }
        if (ended || h->taken == end)
            return;
        pause_us(50);
    }
}

static struct host host;

Test(resident, a_host_that_keeps_two_steps_in_flight_gets_every_answer_in_order)
{
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct live l;
        rig_reset(&run.rig);
        host_open(&host, seed);
        live_begin(&l, seed % 2 ? 90 : 80, seed);
        host_go_on(&host, &l, 12);
        pause_us(3000); /* idle, then more */
        host_go_on(&host, &l, 15);
        cr_assert_eq(host.taken, 15);
        set(&run.rig.control->stop, DECODER_DRAIN);
        live_end(&l);
        cr_assert_eq(run.rig.control->failed, DECODER_FINE);
        toy_state_close(&host.state);
    }
}

/* The I/O warp's notes of the last two steps lie around those of its block's ops, and do not meet. */
static void expect_border(uint32_t n_ops)
{
    const struct decoder_mark *own = run.rig.marks, *last = NULL;
    const struct decoder_border_mark *border =
        (const struct decoder_border_mark *)(const void *)(run.rig.marks + run.n_blocks * n_ops);
    uint32_t newest = (run.rig.control->completed - 1) % DECODER_RING;
    for (uint32_t i = 0; i < n_ops; i++)
        last = own[i].step == own[0].step ? &own[i] : last;
    for (uint32_t i = 0; i < DECODER_RING; i++) {
        cr_expect_eq(border[i].step, run.rig.steps[i].id);
        cr_expect(border[i].ready && border[i].ready < border[i].ended);
    }
    cr_expect_leq(border[newest].ready, own[0].begin);
    cr_expect_geq(border[newest].ended, last->end);
    cr_expect_leq(border[!newest].ended, border[newest].ready);
}

/* The notes of a step are read from its place in the ring only while it is there. */
Test(resident, the_notes_of_each_op_are_of_the_last_step_that_ran_it)
{
    uint32_t n_ops = run.rig.plan.n_ops;
    for (uint64_t seed = 0; seed < 2; seed++) {
        struct live l;
        rig_reset(&run.rig);
        run.rig.args.trace = (uint64_t)(uintptr_t)run.rig.marks;
        host_open(&host, seed);
        live_begin(&l, seed % 2 ? 90 : 80, seed);
        host_go_on(&host, &l, 8);
        set(&run.rig.control->stop, DECODER_DRAIN);
        live_end(&l);
        for (uint32_t i = 0; i < run.n_blocks * n_ops; i++) {
            const struct decoder_mark *m = &run.rig.marks[i];
            cr_expect_eq(m->step, run.rig.marks[i % n_ops].step, "op %u", i % n_ops);
            cr_expect_eq(m->step != 0, m->end != 0, "op %u", i % n_ops);
        }
        cr_expect_eq(run.rig.marks[0].step,
                     run.rig.steps[(run.rig.control->completed - 1) % DECODER_RING].id);
        expect_border(n_ops);
        toy_state_close(&host.state);
    }
}

Test(resident, a_launch_whose_time_is_up_leaves_between_steps_and_the_next_one_goes_on)
{
    uint32_t n_launches = 0;
    run.rig.args.quantum_ms = 1;
    host_open(&host, 3);
    while (host.taken != 40) {
        struct live l;
        live_begin(&l, n_launches % 2 ? 90 : 80, n_launches);
        n_launches++;
        host_go_on(&host, &l, 40);
        live_end(&l);
        cr_assert_eq(run.rig.control->failed, DECODER_FINE);
    }
    cr_assert_gt(n_launches, 1);
    toy_state_close(&host.state);
}

Test(resident, an_abort_while_it_is_idle_ends_it)
{
    struct live l;
    live_begin(&l, 90, 5);
    pause_us(2000);
    set(&run.rig.control->stop, DECODER_ABORT);
    live_end(&l);
    cr_assert_eq(run.rig.control->failed, DECODER_ABORTED);
}

/* Every op in its turn: block 0 is past those before it, and the last block does not come out of this one. */
Test(resident, an_abort_in_the_middle_of_any_op_ends_the_step_without_an_answer)
{
    struct program *program = (struct program *)(uintptr_t)run.rig.args.program;
    uint32_t opcodes = 0;
    for (uint32_t op = 0; op < program->n_ops; op++) {
        struct live l;
        rig_reset(&run.rig);
        program->ops[op].reserved[0] = 1;
        struct step *s = rig_step(&run.rig);
        put_rows(s, 2);
        logit(s); /* else head and sampling would be left out */
        rig_submit(&run.rig);
        live_begin(&l, op % 2 ? 90 : 80, op);
        await_least(&l, &run.rig.control->heartbeat, op);
        set(&run.rig.control->stop, DECODER_ABORT);
        live_end(&l);
        cr_expect_eq(run.rig.control->failed, DECODER_ABORTED, "op %u", op);
        cr_expect_eq(run.rig.control->completed, 0, "op %u", op);
        cr_expect_leq(run.rig.control->heartbeat, op + 1, "op %u: %u", op, run.rig.control->heartbeat);
        opcodes |= 1u << program->ops[op].opcode;
        program->ops[op].reserved[0] = 0;
    }
    cr_assert_eq(opcodes,
                 1u << PROGRAM_EMBED | 1u << PROGRAM_MATMUL | 1u << PROGRAM_ATTEND | 1u << PROGRAM_SAMPLE);
}

Test(resident, after_an_order_to_drain_what_was_submitted_is_still_answered)
{
    struct live l;
    live_begin(&l, 90, 7);
    for (int i = 0; i < 2; i++) {
        put_rows(rig_step(&run.rig), 2);
        rig_submit(&run.rig);
    }
    set(&run.rig.control->stop, DECODER_DRAIN);
    live_end(&l);
    cr_assert_eq(run.rig.control->failed, DECODER_FINE);
    cr_assert_eq(run.rig.control->completed, 2);
}

/* Stops of both kinds at any moment: it always leaves, and every answer it gave is the reference's. */
Test(resident, it_leaves_whenever_it_is_told_to)
{
    for (uint64_t seed = 0; seed < 12; seed++) {
        struct toy_feed feed;
        struct toy_state state;
        struct step_result want[2][STEP_MAX_LOGITS];
        uint32_t n[2];
        struct live l;
        rig_reset(&run.rig);
        toy_feed_open(&feed, &run.model.layout, seed);
        feed.n_windows = TOY_WINDOWS;
        toy_state_open(&state, &run.model);
        live_begin(&l, seed % 2 ? 90 : 80, seed);
        for (int i = 0; i < 2; i++) {
            struct step *s = rig_step(&run.rig);
            toy_feed_next(&feed, s);
            toy_state_run(&state, s, want[i]);
            n[i] = s->n_logits;
            rig_submit(&run.rig);
        }
        pause_us((uint32_t)(seed * seed) * 100);
        set(&run.rig.control->stop, seed % 3 ? DECODER_ABORT : DECODER_DRAIN);
        live_end(&l);
        if (!run.rig.control->failed)
            cr_expect_eq(run.rig.control->completed, 2);
        for (uint32_t i = 0; i < run.rig.control->completed; i++)
            cr_expect(toy_same(run.rig.results + i * STEP_MAX_LOGITS, want[i], n[i]));
        toy_state_close(&state);
    }
}
