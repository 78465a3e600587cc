#include "toy_run.h"
#include "device/dependency.h"

#include <string.h>

void toy_run_open(struct toy_run *r, uint32_t n_blocks, uint32_t n_stages)
{
    toy_model_open(&r->model);
    toy_rig_open(&r->rig, &r->model, n_blocks, n_stages);
    r->n_blocks = n_blocks;
}

void toy_run_close(struct toy_run *r)
{
    rig_close(&r->rig);
    toy_model_close(&r->model);
}

static int wrong(struct simt_report *report, const char *what)
{
    snprintf(report->kind, sizeof report->kind, "result");
    snprintf(report->text, sizeof report->text, "%s", what);
    return -1;
}

/* Checks the words of a launch that left in order. */
static int check_words(const struct rig *r, struct simt_report *report)
{
    const struct decoder_control *c = r->control;
    if (c->failed)
        return wrong(report, "a launch that has failed");
    if (c->completed != c->submitted)
        return wrong(report, "left before all was answered");
    if (c->left != r->args.launch)
        return wrong(report, "no last word");
    return 0;
}

/* A launch that runs `n` steps, two at most, `times` times. */
static int run_steps(struct toy_run *r, struct toy_feed *feed, struct toy_state *state, uint32_t n,
                     uint32_t times, uint32_t sm, uint64_t seed, int mute, struct simt_report *report)
{
    static _Thread_local struct step_result want[2][STEP_MAX_LOGITS];
    const struct step *steps[2];
    for (uint32_t i = 0; i < n; i++) {
        struct step *s = rig_script(&r->rig);
        toy_feed_next(feed, s);
        steps[i] = s;
    }
    r->rig.script.n_rounds = times;
    for (uint32_t i = 0; i < n * times; i++)
        toy_state_run(state, steps[i % n], want[i % n]);
    if (rig_launch(&r->rig, sm, seed, SIMT_N_SCHEDULES, mute, report) < 0 || check_words(&r->rig, report) < 0)
        return -1;
    for (uint32_t i = 0; i < n; i++)
        if (!toy_same(rig_results(&r->rig, n - 1 - i), want[i], steps[i]->n_logits))
            return wrong(report, "another answer than the reference's");
    size_t page = kv_page_size(&r->model.layout);
    if (memcmp((const void *)(uintptr_t)r->rig.args.kv, state->kv, TOY_PAGES * page) != 0)
        return wrong(report, "other pages than the reference's");
    page = kv_page_size(&r->model.windows);
    if (memcmp((const void *)(uintptr_t)r->rig.args.windows, state->windows, TOY_WINDOWS * page) != 0)
        return wrong(report, "other window pages than the reference's");
    page = kv_page_size(&r->model.layout);
    if (memcmp(r->rig.transfer, state->transfer, 4 * page) != 0)
        return wrong(report, "other pages exported than the reference's");
    return 0;
}

/* The last block never gets past an op: the others give up, and the host is told what they waited for. */
static int run_lost(struct toy_run *r, uint32_t sm, uint64_t seed, int mute, struct simt_report *report)
{
    struct program *program = (struct program *)(uintptr_t)r->rig.args.program;
    const struct decoder_control *c = r->rig.control;
    uint32_t op = 1 + (uint32_t)(seed % (TOY_LAYERS * 5));
    struct step *s = rig_step(&r->rig);
    r->rig.control->stop = DECODER_DRAIN;
    s->id = 1000;
    for (s->n_rows = 0; s->n_rows < 3; s->n_rows++)
        s->rows[s->n_rows] =
            (struct step_row){.slot = s->n_rows / 2, .pos = s->n_rows, .logit_index = STEP_NO_LOGITS};
    rig_submit(&r->rig);
    program->ops[op].reserved[0] = 1;
    int rc = rig_launch(&r->rig, sm, seed, SIMT_N_SCHEDULES, mute, report);
    program->ops[op].reserved[0] = 0;
    if (rc < 0)
        return -1;
    if (c->failed != DECODER_DEADLINE || c->left != r->rig.args.launch)
        return wrong(report, "a block was lost, and no error was reported");
    /* No block waits for the end of the last op with rows: it is the border that misses the step's. */
    uint32_t n_ops = program->n_ops, at = op + 1 < n_ops - 2 ? op : n_ops - 1;
    uint32_t end = at * DECODER_PHASES * DECODER_LINE, inner = end + DECODER_LINE;
    if ((c->error[0] != end && c->error[0] != inner) || c->error[1] >= c->error[2] || c->error[3] < at ||
        c->error[3] > at + 1 || c->error[4] >= r->n_blocks - 1)
        return wrong(report, "a block was lost, and the record says something else");
    return 0;
}

/* One that is told to leave before it has begun: its producers are in the middle of filling their rings. */
static int run_none(struct toy_run *r, uint32_t sm, uint64_t seed, int mute, struct simt_report *report)
{
    if (rig_launch(&r->rig, sm, seed, SIMT_N_SCHEDULES, mute, report) < 0)
        return -1;
    return check_words(&r->rig, report);
}

/* As after load(), and told to leave when all is answered; a launch with a script is told so by its host. */
static void begin(struct toy_run *r, struct toy_feed *feed, struct toy_state *state, uint64_t seed)
{
    rig_reset(&r->rig);
    toy_feed_open(feed, &r->model.layout, seed);
    feed->n_windows = TOY_WINDOWS;
    toy_state_open(state, &r->model);
    r->rig.control->stop = DECODER_DRAIN;
    r->rig.control->submitted = r->rig.control->completed = 0u - (uint32_t)(seed % 4); /* counts may wrap */
}

int toy_run_seed(struct toy_run *r, uint32_t n_launches, uint32_t sm, uint64_t seed, int mute,
                 struct simt_report *report)
{
    struct toy_feed feed;
    struct toy_state state;
    begin(r, &feed, &state, seed);
    int rc = run_none(r, sm, seed, mute, report);
    for (uint32_t i = 0; i < n_launches && rc == 0; i++)
        rc = run_steps(r, &feed, &state, 2, 2, sm, seed * 16 + i, mute, report);
    if (rc == 0)
        rc = run_lost(r, sm, seed, mute, report);
    toy_state_close(&state);
    return rc;
}

int toy_run_one(struct toy_run *r, uint32_t sm, uint64_t seed, int mute, struct simt_report *report)
{
    struct toy_feed feed;
    struct toy_state state;
    int rc = 0;
    begin(r, &feed, &state, seed);
    feed.n_slots = 1 + (uint32_t)(seed / 8 % 2);
    if (seed % 8 == 0)
        rc = run_none(r, sm, seed, mute, report);
    else if (seed % 32 == 1) /* it waits long */
        rc = run_lost(r, sm, seed, mute, report);
    else
        rc = run_steps(r, &feed, &state, 1 + seed % 3 / 2, 1, sm, seed, mute, report);
    toy_state_close(&state);
    return rc;
}
