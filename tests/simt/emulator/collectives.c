/* collectives.c - meetings of a block's threads or a warp's lanes, and the faults in them. */
#include "machine.h"

#include <string.h>

/* All know what each knew. */
static void share_knowledge(struct simt_machine *m, struct thread **threads, uint32_t n)
{
    if (!SIMT_CHECKED)
        return;
    struct knowledge all = {0};
    const struct clock *joined = NULL;
    for (uint32_t i = 0; i < n; i++) {
        if (threads[i]->knows.seen != joined || !joined)
            clock_join(&m->clocks, &all.seen, threads[i]->knows.seen);
        joined = threads[i]->knows.seen;
        clock_join(&m->clocks, &all.async, threads[i]->knows.async);
    }
    for (uint32_t i = 0; i < n; i++) {
        clock_raise(&m->clocks, &all.seen, threads[i]->column, threads[i]->epoch);
        threads[i]->epoch++;
    }
    for (uint32_t i = 0; i < n; i++)
        knowledge_share(&m->clocks, &threads[i]->knows, &all);
    knowledge_drop(&m->clocks, &all);
}

static void check_barrier(struct simt_machine *m, const struct simt_site *at, struct thread *t, uint32_t id,
                          uint32_t n)
{
    char a[128], b[128];
    if (id >= SIMT_BARRIERS || n == 0 || n % SIMT_LANES || n > m->launch.n_threads)
        report_fault(m, "collective", NULL, NULL, "%s: barrier %u for %u of %u threads",
                     report_where(at, a, sizeof a), id, n, m->launch.n_threads);
    struct barrier *bar = &t->block->barriers[id];
    if (bar->n_arrived && bar->n != n)
        report_fault(m, "collective", NULL, NULL,
                     "%s: block %u thread %u brings %u threads to barrier %u, others %u",
                     report_where(at, a, sizeof a), t->block->index, t->index, n, id, bar->n);
    struct warp *w = t->warp;
    if (w->barrier_arrived && (w->barrier_site != at || w->barrier_id != id))
        report_fault(m, "collective", NULL, NULL,
                     "lanes of block %u warp %u are at different barriers: %s and %s", t->block->index,
                     t->index / SIMT_LANES, report_where(w->barrier_site, a, sizeof a),
                     report_where(at, b, sizeof b));
    w->barrier_site = at;
    w->barrier_id = id;
}

static void open_barrier(struct simt_machine *m, struct block *block, struct barrier *bar,
                         const struct simt_site *at)
{
    char a[128];
    for (uint32_t i = 0; i < bar->n_arrived; i++) {
        struct warp *w = bar->waiting[i]->warp;
        if (w->barrier_arrived && w->barrier_arrived != SIMT_LANES)
            report_fault(m, "collective", NULL, NULL,
                         "%s: block %u warp %u is at the barrier with %u of its lanes",
                         report_where(at, a, sizeof a), block->index, bar->waiting[i]->index / SIMT_LANES,
                         w->barrier_arrived);
        w->barrier_arrived = 0;
    }
    share_knowledge(m, bar->waiting, bar->n_arrived);
    for (uint32_t i = 0; i < bar->n_arrived; i++)
        bar->waiting[i]->barrier_answer = bar->any;
    uint32_t n = bar->n_arrived;
    bar->n_arrived = 0;
    bar->any = false;
    for (uint32_t i = 0; i < n; i++)
        if (bar->waiting[i] != m->running)
            machine_wake(m, bar->waiting[i]);
}

bool simt_emu_bar(const struct simt_site *at, uint32_t id, uint32_t n, bool p)
{
    struct simt_machine *m = simt_machine;
    struct thread *t = machine_enter(at);
    if (machine_mutes(m, at, SIMT_WHOLE)) {
        machine_yield(m);
        return p;
    }
    check_barrier(m, at, t, id, n);
    struct barrier *bar = &t->block->barriers[id];
    bar->n = n;
    bar->any |= p;
    bar->waiting[bar->n_arrived++] = t;
    t->warp->barrier_arrived++;
    if (bar->n_arrived < n) {
        machine_block(m);
    } else {
        open_barrier(m, t->block, bar, at);
        machine_progress(m);
        machine_yield(m);
    }
    return t->barrier_answer;
}

/* Blocks until all 32 lanes of the warp are here; the last one calls finish() with what they brought. */
static void meet(const struct simt_site *at, void *deposit, void (*finish)(struct thread *lanes))
{
    struct simt_machine *m = simt_machine;
    struct thread *t = machine_enter(at);
    struct warp *w = t->warp;
    char a[128], b[128];
    if (w->n_done)
        report_fault(m, "collective", NULL, NULL, "%s: block %u warp %u: %u lanes have returned already",
                     report_where(at, a, sizeof a), t->block->index, t->index / SIMT_LANES, w->n_done);
    if (w->n_arrived && w->site != at)
        report_fault(m, "collective", NULL, NULL,
                     "lanes of block %u warp %u are at different places: %s and %s", t->block->index,
                     t->index / SIMT_LANES, report_where(w->site, a, sizeof a),
                     report_where(at, b, sizeof b));
    w->site = at;
    t->deposit = deposit;
    if (++w->n_arrived < SIMT_LANES) {
        machine_block(m);
        return;
    }
    struct thread *lanes = t - t->index % SIMT_LANES;
    finish(lanes);
    w->n_arrived = 0;
    for (uint32_t i = 0; i < SIMT_LANES; i++)
        if (&lanes[i] != t)
            machine_wake(m, &lanes[i]);
    machine_yield(m);
}

static void finish_syncwarp(struct thread *lanes)
{
    struct thread *all[SIMT_LANES];
    for (uint32_t i = 0; i < SIMT_LANES; i++)
        all[i] = &lanes[i];
    share_knowledge(simt_machine, all, SIMT_LANES);
}

void simt_emu_syncwarp(const struct simt_site *at)
{
    if (machine_mutes(simt_machine, at, SIMT_WHOLE)) {
        machine_enter(at);
        machine_yield(simt_machine);
        return;
    }
    meet(at, NULL, finish_syncwarp);
}

struct shuffle {
    enum simt_shuffle how;
    uint32_t value, arg, answer;
};

static void finish_shuffle(struct thread *lanes)
{
    uint32_t values[SIMT_LANES], votes = 0, most = 0, least = UINT32_MAX;
    for (uint32_t i = 0; i < SIMT_LANES; i++) {
        values[i] = ((struct shuffle *)lanes[i].deposit)->value;
        votes |= (values[i] & 1) << i;
        most = values[i] > most ? values[i] : most;
        least = values[i] < least ? values[i] : least;
    }
    for (uint32_t i = 0; i < SIMT_LANES; i++) {
        struct shuffle *s = lanes[i].deposit;
        uint32_t from = s->how == SIMT_XOR ? i ^ s->arg : s->arg;
        s->answer = s->how == SIMT_BALLOT ? votes
                    : s->how == SIMT_MAX  ? most
                    : s->how == SIMT_MIN  ? least
                                          : values[from % SIMT_LANES];
    }
}

uint32_t simt_emu_shuffle(const struct simt_site *at, enum simt_shuffle how, uint32_t v, uint32_t arg)
{
    struct shuffle s = {.how = how, .value = v, .arg = arg};
    meet(at, &s, finish_shuffle);
    return s.answer;
}

struct mma {
    bool a_signed;
    int32_t *c;
    const uint32_t *a, *b;
};

/* Words of 4 bytes, lowest first, side by side as numbers. */
static void spread(int32_t *out, const uint32_t *words, uint32_t n, bool is_signed)
{
    const uint8_t *bytes = (const uint8_t *)words; /* an x86 or ARM host has the lowest first, too */
    for (uint32_t i = 0; i < 4 * n; i++)
        out[i] = is_signed ? (int8_t)bytes[i] : bytes[i];
}

/* m16n8k32 by its definition: the fragments of all lanes become matrices, which are multiplied. b has a row
 * per k, so that the compiler takes all columns of a row at once. */
static void finish_mma(struct thread *lanes)
{
    uint32_t a_words[16][8], b_words[8][8];
    int32_t a[16][32], b_columns[8][32], b[32][8], sums[16][8] = {0};
    for (uint32_t l = 0; l < SIMT_LANES; l++) {
        const struct mma *d = lanes[l].deposit;
        for (uint32_t r = 0; r < 4; r++)
            a_words[l / 4 + 8 * (r & 1)][4 * (r >> 1) + l % 4] = d->a[r];
        for (uint32_t r = 0; r < 2; r++)
            b_words[l / 4][4 * r + l % 4] = d->b[r];
    }
    spread(a[0], a_words[0], 16 * 8, ((const struct mma *)lanes->deposit)->a_signed);
    spread(b_columns[0], b_words[0], 8 * 8, true);
    for (uint32_t k = 0; k < 32; k++)
        for (uint32_t column = 0; column < 8; column++)
            b[k][column] = b_columns[column][k];
    for (uint32_t row = 0; row < 16; row++)
        for (uint32_t k = 0; k < 32; k++)
            for (uint32_t column = 0; column < 8; column++)
                sums[row][column] += a[row][k] * b[k][column];
    for (uint32_t l = 0; l < SIMT_LANES; l++) {
        const struct mma *d = lanes[l].deposit;
        for (uint32_t r = 0; r < 4; r++) /* wraps, as without .satfinite */
            d->c[r] =
                (int32_t)((uint32_t)d->c[r] + (uint32_t)sums[l / 4 + 8 * (r >> 1)][2 * (l % 4) + (r & 1)]);
    }
}

void simt_emu_mma(const struct simt_site *at, bool a_signed, int32_t *c, const uint32_t *a, const uint32_t *b)
{
    struct mma d = {.a_signed = a_signed, .c = c, .a = a, .b = b};
    meet(at, &d, finish_mma);
}

/* m16n8k16: the first half of k, the other is zero. */
void simt_emu_mma16(const struct simt_site *at, int32_t *c, const uint32_t *a, uint32_t b)
{
    uint32_t a4[4] = {a[0], a[1], 0, 0}, b2[2] = {b, 0};
    struct mma d = {.a_signed = true, .c = c, .a = a4, .b = b2};
    meet(at, &d, finish_mma);
}
