/* engine_states.c - states of recurrent layers, which no sequence can go back on: snapshots of them are made
 * where a later sequence may begin.
 *
 * A snapshot pays behind a prompt's last full page, where the same prompt and a chat's next turn begin; where
 * a prompt leaves what another one has computed, as users leave a common system prompt; where a queued
 * request waits for a running one's prefix; and behind the newest full page of a text, which replaces the one
 * before it. A step makes one while it computes the rows, so that no prompt is cut for it.
 *
 * A step with drafts saves the state behind the row before them. If one is wrong, the sequence goes on from
 * there: the rows of the right ones are computed once more, beside the next one. */
#include "engine_private.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

int engine_states_open(struct engine *e, struct error *err)
{
    if (!e->recurrent)
        return 0;
    e->savings = calloc(e->n_snapshots + 1, sizeof *e->savings);
    return e->savings ? 0 : error_set(err, -ENOMEM, "no memory for %u snapshots", e->n_snapshots);
}

void engine_states_close(struct engine *e)
{
    free(e->savings);
}

/* ---- where states are kept ---- */

bool engine_states_keep(const struct engine *e, struct sequence *q, uint32_t point)
{
    for (uint32_t i = 0; i < q->n_snapshot_points; i++)
        if (q->snapshot_points[i] == point)
            return true;
    if (!q->keeps_states || e->n_snapshots == 0 || point <= q->n_rows ||
        q->n_snapshot_points == ENGINE_SNAPSHOT_POINTS)
        return false;
    q->snapshot_points[q->n_snapshot_points++] = point;
    return true;
}

uint32_t engine_states_begin(struct engine *e, uint32_t slot, uint32_t n_cached, bool share)
{
    struct sequence *q = &e->seqs[slot];
    if (!e->recurrent)
        return n_cached;
    uint32_t last = kv_shared_pages(q->r->n_prompt) * KV_PAGE_TOKENS, snapshot;
    snapshot = kv_cache_snapshot(e->kv, slot, &q->n_rows);
    q->loads = snapshot != SNAPSHOT_NONE;
    q->load_from = snapshot;
    q->n_known = n_cached;
    q->keeps_states = share;
    if (last > 0)
        engine_states_keep(e, q, last);
    if (n_cached > 0)
        engine_states_keep(e, q, n_cached);
    return q->n_rows;
}

void engine_states_begin_again(struct engine *e, uint32_t slot)
{
    struct sequence *q = &e->seqs[slot];
    uint32_t snapshot = kv_cache_begin_again(e->kv, slot, &q->n_rows);
    q->n_done = q->n_rows;
    q->loads = snapshot != SNAPSHOT_NONE;
    q->load_from = snapshot;
}

void engine_states_go_back(struct engine *e, uint32_t slot)
{
    struct sequence *q = &e->seqs[slot];
    if (!e->recurrent)
        return;
    assert(q->backup == SNAPSHOT_NONE && !q->own_load); /* it has no drafts */
    q->n_known = q->n_rows;
    q->load_from = kv_cache_begin_again(e->kv, slot, &q->n_rows);
    q->loads = q->load_from != SNAPSHOT_NONE;
}

/* True if the state behind the rows below `end` is to be kept. */
static bool wants(const struct sequence *q, uint32_t end)
{
    if (!q->keeps_states || end % KV_PAGE_TOKENS != 0)
        return false;
    for (uint32_t i = 0; i < q->n_snapshot_points; i++)
        if (q->snapshot_points[i] == end)
            return true;
    return end >= q->r->n_prompt;
}

/* ---- operations of a step ---- */

static void add_op(struct step *s, uint32_t kind, uint32_t page, uint32_t from, uint32_t pos)
{
    s->page_ops[s->n_page_ops++] =
        (struct step_page_op){.kind = kind, .page = page, .from = from, .host_offset = pos};
}

static void note(struct engine *e, uint32_t snapshot, uint32_t slot, uint32_t end)
{
    assert(e->n_savings < e->n_snapshots);
    e->savings[e->n_savings++] = (struct saving){.snapshot = snapshot,
                                                 .slot = slot,
                                                 .end = end,
                                                 .admitted = e->seqs[slot].admitted,
                                                 .step = e->step.id};
}

static void save(struct engine *e, uint32_t slot, uint32_t end)
{
    uint32_t snapshot = kv_cache_take_snapshot(e->kv);
    if (snapshot == SNAPSHOT_NONE)
        return;
    note(e, snapshot, slot, end);
    add_op(&e->step, STEP_STATE_SAVE, e->cfg.n_slots + snapshot, slot, end - 1);
}

/* The most operations that the rows may need: a copied page, a load, a backup, a state for each choice, the
 * snapshot points. */
static uint32_t most_ops(const struct sequence *q, uint32_t n)
{
    return q->copies + q->loads + 1 + q->n_waiting + n / KV_PAGE_TOKENS + 1;
}

static void send_load(struct engine *e, struct sequence *q, uint32_t slot)
{
    add_op(&e->step, STEP_STATE_LOAD, slot, e->cfg.n_slots + q->load_from, 0);
    if (q->own_load)
        note(e, q->load_from, slot, 0);
    q->loads = q->own_load = false;
}

/* Saves the state behind the row before the drafts, the first one that is not computed again. */
static void send_backup(struct engine *e, struct sequence *q, uint32_t slot, uint32_t n)
{
    uint32_t again = engine_states_again(q);
    if (n > again + 1)
        add_op(&e->step, STEP_STATE_SAVE, e->cfg.n_slots + q->backup, slot, q->n_rows + again);
    else
        kv_cache_drop_snapshot(e->kv, q->backup);
    q->backup = n > again + 1 ? q->backup : SNAPSHOT_NONE;
}

bool engine_states_send(struct engine *e, uint32_t slot, uint32_t n)
{
    struct step *s = &e->step;
    struct sequence *q = &e->seqs[slot];
    if (!e->recurrent)
        return true;
    if (s->n_page_ops + most_ops(q, n) > STEP_MAX_PAGE_OPS)
        return false;
    if (q->loads)
        send_load(e, q, slot);
    if (q->backup != SNAPSHOT_NONE)
        send_backup(e, q, slot, n);
    uint32_t end = q->n_rows + n;
    for (uint32_t at = (q->n_rows / KV_PAGE_TOKENS + 1) * KV_PAGE_TOKENS; at <= end; at += KV_PAGE_TOKENS)
        if (at > q->n_done && wants(q, at))
            save(e, slot, at);
    return true;
}

void engine_states_fork(struct engine *e, uint32_t slot, uint32_t of, uint32_t first_row)
{
    struct sequence *q = &e->seqs[slot];
    uint32_t n_state, end = q->r->n_prompt - 1;
    if (!e->recurrent || end == 0)
        return;
    q->keeps_states = e->seqs[of].keeps_states;
    if (first_row < end) {
        add_op(&e->step, STEP_STATE_SAVE, slot, of, end - 1);
        return;
    }
    uint32_t snapshot = kv_cache_snapshot(e->kv, slot, &n_state);
    assert(snapshot != SNAPSHOT_NONE && n_state == end); /* the first one began there, too */
    q->loads = true;
    q->load_from = snapshot;
}

/* ---- drafts ---- */

bool engine_states_back_up(struct engine *e, uint32_t slot)
{
    struct sequence *q = &e->seqs[slot];
    if (e->recurrent && q->backup == SNAPSHOT_NONE)
        q->backup = kv_cache_take_snapshot(e->kv);
    return !e->recurrent || q->backup != SNAPSHOT_NONE;
}

void engine_states_take_back(struct engine *e, struct sequence *q, uint32_t n_right, bool all)
{
    if (!e->recurrent)
        return;
    if (all) {
        kv_cache_drop_snapshot(e->kv, q->backup);
        q->backup = SNAPSHOT_NONE;
        return;
    }
    q->n_known = q->n_rows;
    q->n_rows -= n_right;
    q->loads = q->own_load = true;
    q->load_from = q->backup;
    q->backup = SNAPSHOT_NONE;
}

void engine_states_end(struct engine *e, struct sequence *q)
{
    if (q->backup != SNAPSHOT_NONE)
        kv_cache_drop_snapshot(e->kv, q->backup);
    q->backup = SNAPSHOT_NONE;
    if (q->restore_snapshot != SNAPSHOT_NONE)
        kv_cache_drop_snapshot(e->kv, q->restore_snapshot);
    q->restore_snapshot = SNAPSHOT_NONE;
    if (q->own_load)
        kv_cache_drop_snapshot(e->kv, q->load_from);
    q->loads = q->own_load = false;
}

/* ---- finished steps ---- */

/* Keeps a snapshot if it is not a backup that has served, and the rows that it has seen are part of the text.
 * The snapshot of an older page of the text has served its purpose, unless a sequence began there. */
static void keep(struct engine *e, const struct saving *s)
{
    struct sequence *q = &e->seqs[s->slot];
    if (s->end == 0 || !q->r || q->admitted != s->admitted || q->n_done < s->end) {
        kv_cache_drop_snapshot(e->kv, s->snapshot);
        return;
    }
    bool kept = kv_cache_keep_snapshot(e->kv, s->slot, s->end, s->snapshot);
    if (!kept || s->end < q->r->n_prompt)
        return;
    if (q->text_snapshot)
        kv_cache_forget_snapshot(e->kv, s->slot, q->text_snapshot);
    q->text_snapshot = s->end;
}

void engine_states_retire(struct engine *e)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->n_savings; i++)
        if (e->savings[i].step <= e->retired)
            keep(e, &e->savings[i]);
        else
            e->savings[n++] = e->savings[i];
    e->n_savings = n;
}
