#include "small_run.h"
#include "device/simt.h"

#include <stdlib.h>
#include <string.h>

#define MAX_STEPS 2
#define N_PLAIN   (sizeof((struct small_run *)0)->answers / sizeof(struct small_answer *))

/* The state that a feed's steps leave behind. */
struct small_answer {
    uint64_t feed;
    bool fails;
    uint32_t n_logits[MAX_STEPS];
    struct step_result results[MAX_STEPS][STEP_MAX_LOGITS];
    uint64_t kv, transfer; /* hashes */
};

void small_run_open(struct small_run *r, uint32_t n_blocks, uint32_t n_stages, uint32_t n_steps,
                    uint32_t n_slots, bool dense)
{
    *r = (struct small_run){.n_steps = n_steps, .n_slots = n_slots};
    small_model_open(&r->model, dense);
    if (n_blocks == 3)
        plan_choices(r->model.program);
    small_rig_open(&r->rig, &r->model, n_blocks, n_stages);
}

void small_run_close(struct small_run *r)
{
    for (uint32_t i = 0; i < N_PLAIN; i++)
        free(r->answers[i]);
    rig_close(&r->rig);
    small_model_close(&r->model);
}

static uint64_t hash(const void *memory, size_t size)
{
    uint64_t h = 0;
    for (size_t i = 0; i < size; i += 8) {
        uint64_t word;
        memcpy(&word, (const char *)memory + i, 8);
        h = (h ^ word) * 0x9E3779B97F4A7C15u;
        h ^= h >> 32;
    }
    return h;
}

static int wrong(struct simt_report *report, const char *what)
{
    snprintf(report->kind, sizeof report->kind, "result");
    snprintf(report->text, sizeof report->text, "%s", what);
    return -1;
}

/* Most feeds are steps. With others the launch is told to leave before it has begun: its producers are in the
 * middle of filling their rings; or a slot's pages are none: attention leaves in the middle. */
enum kind { STEPS, STEPS_TWICE, NO_STEPS, NO_PAGES };

static enum kind kind_of(uint64_t feed)
{
    static const enum kind kinds[16] = {[2] = NO_STEPS, [3] = STEPS_TWICE, [4] = NO_PAGES,    [5] = NO_PAGES,
                                        [7] = NO_STEPS, [9] = STEPS_TWICE, [12] = STEPS_TWICE};
    return kinds[feed % 16];
}

/* The last row's slot has no page, the others have two of their own. */
static void take_pages(struct small_run *r, struct step *s)
{
    const struct decoder_slots *slots = &r->rig.args.slots;
    uint32_t *tables = (uint32_t *)(uintptr_t)slots->tables, last = s->rows[s->n_rows - 1].slot;
    s->n_edits = 0;
    for (uint32_t slot = 0; slot < slots->n_slots; slot++)
        for (uint32_t i = 0; i < 2; i++)
            tables[slot * slots->pages_per_slot + i] = slot == last ? slots->n_pages : slot * 2 + i;
}

/* Every sequence goes on with what it has just sampled, and nothing else happens. */
static void go_on(struct step *s, const struct step *before)
{
    *s = (struct step){.id = before->id + 1};
    for (uint32_t i = 0; i < before->n_rows; i++) {
        const struct step_row *row = &before->rows[i];
        if (i + 1 < before->n_rows && row[1].slot == row->slot)
            continue;
        s->rows[s->n_rows] =
            (struct step_row){.slot = row->slot, .pos = row->pos + 1, .token = STEP_LAST_SAMPLED};
        s->rows[s->n_rows].logit_index = (uint16_t)s->n_logits;
        s->logits[s->n_logits++] = (struct step_logit){.row = (uint16_t)s->n_rows++, .target = -1};
    }
}

static void submit(struct small_run *r, uint64_t number, struct small_answer *out)
{
    struct toy_feed feed;
    enum kind kind = kind_of(number);
    const struct step *before = NULL;
    toy_feed_open(&feed, &r->model.layout, number);
    feed.n_slots = r->n_slots;
    for (uint32_t i = 0; i < r->n_steps && kind != NO_STEPS; i++) {
        struct step *s = rig_script(&r->rig);
        small_feed_next(&feed, s);
        if (kind == NO_PAGES && s->n_rows && !out->fails) {
            take_pages(r, s);
            out->fails = true;
        }
        if (kind == STEPS_TWICE && before)
            go_on(s, before);
        before = s;
        out->n_logits[i] = s->n_logits;
    }
    if (kind == STEPS_TWICE)
        r->rig.script.n_rounds = 2;
}

/* Checks the words of the launch when it has left. */
static int check_words(const struct small_run *r, const struct small_answer *out, struct simt_report *report)
{
    const struct decoder_control *c = r->rig.control;
    if (c->left != r->rig.args.launch)
        return wrong(report, "no last word");
    if (out->fails && (c->failed != DECODER_RANGE || c->error[0] != DECODER_RANGE_EDIT ||
                       c->error[1] != TOY_PAGES || c->error[2] != TOY_PAGES))
        return wrong(report, "a page is out of range, and no error was reported");
    if (!out->fails && (c->failed || c->completed != c->submitted))
        return wrong(report, "the launch did not end as it should");
    return 0;
}

/* The launch; what it leaves behind goes to *out. */
static int run_steps(struct small_run *r, uint64_t number, uint32_t sm, uint64_t seed,
                     enum simt_schedule schedule, int mute, struct small_answer *out,
                     struct simt_report *report)
{
    size_t page = kv_page_size(&r->model.layout);
    *out = (struct small_answer){.feed = number};
    rig_reset(&r->rig);
    r->rig.control->stop = DECODER_DRAIN;
    submit(r, number, out);
    if (rig_launch(&r->rig, sm, seed, schedule, mute, report) < 0 || check_words(r, out, report) < 0)
        return -1;
    if (out->fails) /* how far it came is the schedule's */
        return 0;
    for (uint32_t i = 0; i < r->n_steps; i++)
        memcpy(out->results[i], rig_results(&r->rig, r->n_steps - 1 - i), sizeof out->results[i]);
    out->kv = hash((const void *)(uintptr_t)r->rig.args.kv, TOY_PAGES * page);
    out->transfer = hash(r->rig.transfer, 4 * page);
    return 0;
}

/* Returns the state that the feed's steps must leave behind, or NULL with the report. */
static const struct small_answer *answer(struct small_run *r, uint64_t feed, struct simt_report *report)
{
    struct small_answer **place = &r->answers[feed % N_PLAIN];
    if (*place && (*place)->feed == feed)
        return *place;
    if (!*place && !(*place = malloc(sizeof **place)))
        abort(); /* a test tool: nothing sensible is left to do */
    return run_steps(r, feed, 80, 0, SIMT_IN_ORDER, -1, *place, report) < 0 ? NULL : *place;
}

int small_run_seed(struct small_run *r, uint64_t feed, uint32_t sm, uint64_t seed, int mute,
                   struct simt_report *report)
{
    struct small_answer got;
    const struct small_answer *want = answer(r, feed, report);
    if (!want || run_steps(r, feed, sm, seed, SIMT_N_SCHEDULES, mute, &got, report) < 0)
        return -1;
    for (uint32_t i = 0; i < r->n_steps; i++)
        if (memcmp(got.results[i], want->results[i], want->n_logits[i] * sizeof got.results[i][0]) != 0)
            return wrong(report, "another result than when all threads take turns");
    if (got.kv != want->kv)
        return wrong(report, "other pages than when all threads take turns");
    if (got.transfer != want->transfer)
        return wrong(report, "other pages exported than when all threads take turns");
    return 0;
}
