#include "step_check.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define NO_PAGE    UINT32_MAX
#define ANY_NUMBER UINT32_MAX /* of rows that an imported state has seen */

struct step_checker {
    struct step_limits limits;
    uint32_t pages_per_slot, n_masks;
    uint32_t *tables;   /* [n_slots][pages_per_slot] */
    uint32_t *n_mapped; /* [n_slots]: pages without a gap from position 0 */
    uint32_t *next_pos; /* [n_slots]: the least position of the next row of this step */
    uint32_t *n_done;   /* [n_states, at least n_slots]: rows that a state has seen */
    uint32_t *expected; /* [n_slots]: rows that the state has seen with which the step begins */
    uint32_t previous[STEP_MAX_EDITS]; /* entries that the edits overwrote, to undo them */
};

int step_checker_open(struct step_checker **out, const struct step_limits *limits, struct error *err)
{
    struct step_checker *c = calloc(1, sizeof *c);
    if (!c)
        return error_set(err, -ENOMEM, "step checker: out of memory");
    c->limits = *limits;
    c->pages_per_slot = (uint32_t)(((uint64_t)limits->n_ctx + 63) / 64);
    size_t n_entries = (size_t)limits->n_slots * c->pages_per_slot;
    c->tables = malloc(n_entries * sizeof *c->tables);
    c->n_mapped = calloc(limits->n_slots, sizeof *c->n_mapped);
    c->next_pos = calloc(limits->n_slots, sizeof *c->next_pos);
    uint32_t n_states = limits->n_states > limits->n_slots ? limits->n_states : limits->n_slots;
    c->n_done = calloc(n_states, sizeof *c->n_done);
    c->expected = calloc(limits->n_slots, sizeof *c->expected);
    if (!c->tables || !c->n_mapped || !c->next_pos || !c->n_done || !c->expected) {
        step_checker_close(c);
        return error_set(err, -ENOMEM, "page tables of %u slots: out of memory", limits->n_slots);
    }
    memset(c->tables, 0xff, n_entries * sizeof *c->tables);
    *out = c;
    return 0;
}

void step_checker_close(struct step_checker *c)
{
    if (!c)
        return;
    free(c->tables);
    free(c->n_mapped);
    free(c->next_pos);
    free(c->n_done);
    free(c->expected);
    free(c);
}

static int too_large(struct error *err, const char *array, uint32_t index, const char *field, uint64_t value,
                     uint64_t limit)
{
    return error_set(err, -EINVAL, "step: %s[%u].%s is %llu, must be below %llu", array, index, field,
                     (unsigned long long)value, (unsigned long long)limit);
}

static int check_counts(const struct step_limits *l, const struct step *s, struct error *err)
{
    const struct {
        const char *name;
        uint32_t n, max;
    } counts[] = {
        {"rows", s->n_rows, l->max_rows < STEP_MAX_ROWS ? l->max_rows : STEP_MAX_ROWS},
        {"logits", s->n_logits, STEP_MAX_LOGITS},
        {"edits", s->n_edits, STEP_MAX_EDITS},
        {"page_ops", s->n_page_ops, STEP_MAX_PAGE_OPS},
        {"slots", s->n_slots, STEP_MAX_LOGITS},
        {"biases", s->n_biases, STEP_MAX_BIAS},
        {"history", s->n_history, STEP_MAX_HISTORY},
    };
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (counts[i].n > counts[i].max)
            return error_set(err, -EINVAL, "step: %u %s, at most %u are allowed", counts[i].n, counts[i].name,
                             counts[i].max);
    return 0;
}

/* `size`: of what is transferred. */
static int check_host_offset(const struct step_limits *l, const struct step *s, uint32_t i, uint64_t size,
                             struct error *err)
{
    uint32_t offset = s->page_ops[i].host_offset;
    if ((uint64_t)offset * 64 + size <= l->transfer_bytes)
        return 0;
    return error_set(err, -EINVAL,
                     "step: page_ops[%u].host_offset is %u, a page of %llu bytes there ends beyond the "
                     "transfer buffer of %llu bytes",
                     i, offset, (unsigned long long)size, (unsigned long long)l->transfer_bytes);
}

static int check_page_op(const struct step_limits *l, const struct step *s, uint32_t i, struct error *err)
{
    const struct step_page_op *op = &s->page_ops[i];
    uint64_t n = (uint64_t)l->n_pages + l->n_windows;
    bool host = op->kind == STEP_PAGE_EXPORT || op->kind == STEP_PAGE_IMPORT, window = op->page >= l->n_pages;
    if (op->page >= n)
        return too_large(err, "page_ops", i, "page", op->page, n);
    if (op->kind == STEP_PAGE_COPY && op->from >= (window ? n : l->n_pages))
        return too_large(err, "page_ops", i, "from", op->from, window ? n : l->n_pages);
    if (op->kind == STEP_PAGE_COPY && window && op->from < l->n_pages)
        return error_set(err, -EINVAL, "step: page_ops[%u] copies page %u into window page %u", i, op->from,
                         op->page);
    return host ? check_host_offset(l, s, i, window ? l->window_bytes : l->page_bytes - l->window_bytes, err)
                : 0;
}

/* Checks an operation on a part of a state. LOAD and SAVE are checked with the rows. */
static int check_part_op(const struct step_limits *l, const struct step *s, uint32_t i, struct error *err)
{
    const struct step_page_op *op = &s->page_ops[i];
    if (op->kind == STEP_STATE_LOAD || op->kind == STEP_STATE_SAVE)
        return 0;
    if (op->page >= l->n_states)
        return too_large(err, "page_ops", i, "page", op->page, l->n_states);
    if (op->from * l->page_bytes >= l->state_bytes)
        return too_large(err, "page_ops", i, "from", op->from,
                         (l->state_bytes + l->page_bytes - 1) / l->page_bytes);
    return check_host_offset(l, s, i, l->page_bytes, err);
}

static int check_page_ops(const struct step_limits *l, const struct step *s, struct error *err)
{
    for (uint32_t i = 0; i < s->n_page_ops; i++) {
        uint32_t kind = s->page_ops[i].kind, last = l->n_states ? STEP_STATE_IMPORT : STEP_PAGE_ZERO;
        if (kind < STEP_PAGE_COPY || kind > last)
            return error_set(err, -EINVAL, "step: page_ops[%u].kind is %u: unknown", i, kind);
        int rc = kind <= STEP_PAGE_ZERO ? check_page_op(l, s, i, err) : check_part_op(l, s, i, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int check_slot(const struct step_limits *l, const struct step *s, uint32_t i, struct error *err)
{
    const struct step_slot *slot = &s->slots[i];
    if (slot->slot >= l->n_slots)
        return too_large(err, "slots", i, "slot", slot->slot, l->n_slots);
    if (slot->start >= l->n_ctx)
        return too_large(err, "slots", i, "start", slot->start, l->n_ctx);
    if (slot->n_history > slot->start)
        return too_large(err, "slots", i, "n_history", slot->n_history, (uint64_t)slot->start + 1);
    if ((uint64_t)slot->history_offset + slot->n_history > s->n_history)
        return too_large(err, "slots", i, "history_offset", slot->history_offset, s->n_history);
    if ((uint64_t)slot->sampling.bias_offset + slot->sampling.n_bias > s->n_biases)
        return too_large(err, "slots", i, "bias_offset", slot->sampling.bias_offset, s->n_biases);
    return 0;
}

static int check_slots(const struct step_limits *l, const struct step *s, struct error *err)
{
    for (uint32_t i = 0; i < s->n_slots; i++) {
        int rc = check_slot(l, s, i, err);
        if (rc < 0)
            return rc;
    }
    for (uint32_t i = 0; i < s->n_biases; i++)
        if ((uint32_t)s->biases[i].token >= l->n_vocab)
            return error_set(err, -EINVAL, "step: biases[%u].token is %d, must be in 0..%u", i,
                             s->biases[i].token, l->n_vocab - 1);
    for (uint32_t i = 0; i < s->n_history; i++)
        if ((uint32_t)s->history[i] >= l->n_vocab)
            return error_set(err, -EINVAL, "step: history[%u] is %d, must be in 0..%u", i, s->history[i],
                             l->n_vocab - 1);
    return 0;
}

static int check_logits(const struct step_checker *c, const struct step *s, struct error *err)
{
    const struct step_limits *l = &c->limits;
    for (uint32_t i = 0; i < s->n_logits; i++) {
        const struct step_logit *logit = &s->logits[i];
        if (logit->row >= s->n_rows)
            return too_large(err, "logits", i, "row", logit->row, s->n_rows);
        if (s->rows[logit->row].logit_index != i)
            return error_set(err, -EINVAL, "step: logits[%u].row is %u, but rows[%u].logit_index is %u", i,
                             logit->row, logit->row, s->rows[logit->row].logit_index);
        if (logit->n_top > STEP_MAX_TOP)
            return too_large(err, "logits", i, "n_top", logit->n_top, STEP_MAX_TOP + 1);
        if (logit->mask > c->n_masks)
            return too_large(err, "logits", i, "mask", logit->mask, (uint64_t)c->n_masks + 1);
        if (logit->target < -1 || (logit->target >= 0 && (uint32_t)logit->target >= l->n_vocab))
            return error_set(err, -EINVAL, "step: logits[%u].target is %d, must be in -1..%u", i,
                             logit->target, l->n_vocab - 1);
    }
    return 0;
}

static int check_edits(const struct step_checker *c, const struct step *s, struct error *err)
{
    for (uint32_t i = 0; i < s->n_edits; i++) {
        const struct step_table_edit *e = &s->edits[i];
        if (e->slot >= c->limits.n_slots)
            return too_large(err, "edits", i, "slot", e->slot, c->limits.n_slots);
        if (e->index >= c->pages_per_slot)
            return too_large(err, "edits", i, "index", e->index, c->pages_per_slot);
        uint64_t n_pages = c->limits.n_pages, n = n_pages + c->limits.n_windows;
        if (e->page >= n_pages)
            return too_large(err, "edits", i, "page", e->page, n_pages);
        if (c->limits.n_windows && e->window >= n)
            return too_large(err, "edits", i, "window", e->window, n);
        if (c->limits.n_windows && e->window && e->window < n_pages)
            return error_set(err, -EINVAL, "step: edits[%u].window is %u, a page", i, e->window);
    }
    return 0;
}

static uint32_t *table_entry(struct step_checker *c, const struct step_table_edit *e)
{
    return &c->tables[(size_t)e->slot * c->pages_per_slot + e->index];
}

static void apply_edits(struct step_checker *c, const struct step *s)
{
    for (uint32_t i = 0; i < s->n_edits; i++) {
        const struct step_table_edit *e = &s->edits[i];
        c->previous[i] = *table_entry(c, e);
        *table_entry(c, e) = e->page;
        const uint32_t *table = c->tables + (size_t)e->slot * c->pages_per_slot;
        uint32_t n = c->n_mapped[e->slot];
        while (n < c->pages_per_slot && table[n] != NO_PAGE)
            n++;
        c->n_mapped[e->slot] = n;
    }
}

static void undo_edits(struct step_checker *c, const struct step *s)
{
    for (uint32_t i = s->n_edits; i-- > 0;) {
        const struct step_table_edit *e = &s->edits[i];
        *table_entry(c, e) = c->previous[i];
        if (c->previous[i] == NO_PAGE && c->n_mapped[e->slot] > e->index)
            c->n_mapped[e->slot] = e->index;
    }
}

static int check_row(struct step_checker *c, const struct step *s, uint32_t i, struct error *err)
{
    const struct step_limits *l = &c->limits;
    const struct step_row *row = &s->rows[i];
    if (row->slot >= l->n_slots)
        return too_large(err, "rows", i, "slot", row->slot, l->n_slots);
    if (row->pos >= l->n_ctx)
        return too_large(err, "rows", i, "pos", row->pos, l->n_ctx);
    if (row->token != STEP_LAST_SAMPLED && (uint32_t)row->token >= l->n_vocab)
        return error_set(err, -EINVAL, "step: rows[%u].token is %d, must be in -1..%u", i, row->token,
                         l->n_vocab - 1);
    if (row->logit_index != STEP_NO_LOGITS &&
        (row->logit_index >= s->n_logits || s->logits[row->logit_index].row != i))
        return error_set(err, -EINVAL, "step: rows[%u].logit_index is %u, which is not a logit of this row",
                         i, row->logit_index);
    if (row->pos / 64 >= c->n_mapped[row->slot])
        return error_set(err, -EINVAL, "step: rows[%u] is at position %u of slot %u, which has %u pages", i,
                         row->pos, row->slot, c->n_mapped[row->slot]);
    if (row->pos < c->next_pos[row->slot])
        return error_set(err, -EINVAL, "step: rows[%u] of slot %u is at position %u, out of ascending order",
                         i, row->slot, row->pos);
    c->next_pos[row->slot] = row->pos + 1;
    return 0;
}

static int check_rows(struct step_checker *c, const struct step *s, struct error *err)
{
    memset(c->next_pos, 0, c->limits.n_slots * sizeof *c->next_pos);
    for (uint32_t i = 0; i < s->n_rows; i++) {
        int rc = check_row(c, s, i, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Checks row i of a recurrent model, whose slots and positions are in range: it follows the row before it, or
 * goes on with or begins a sequence that this step has no row of yet. */
static int check_follows(const struct step_checker *c, const struct step *s, uint32_t i, struct error *err)
{
    const struct step_row *row = &s->rows[i];
    bool follows = i > 0 && s->rows[i - 1].slot == row->slot;
    uint32_t expected = follows ? s->rows[i - 1].pos + 1 : c->expected[row->slot];
    expected = expected == ANY_NUMBER ? row->pos : expected;
    if (row->pos != expected && (follows || row->pos != 0))
        return error_set(
            err, -EINVAL,
            "step: rows[%u] is at position %u of slot %u; after %u rows a recurrent layer expects "
            "that one",
            i, row->pos, row->slot, expected);
    for (uint32_t j = 0; !follows && j < i; j++)
        if (s->rows[j].slot == row->slot)
            return error_set(
                err, -EINVAL,
                "step: rows[%u] of slot %u stands apart from rows[%u]: a recurrent layer expects "
                "them together",
                i, row->slot, j);
    return 0;
}

static bool has_rows(const struct step *s, uint32_t slot)
{
    for (uint32_t i = 0; i < s->n_rows; i++)
        if (s->rows[i].slot == slot)
            return true;
    return false;
}

static bool has_row_at(const struct step *s, uint32_t slot, uint32_t pos)
{
    for (uint32_t i = 0; i < s->n_rows; i++)
        if (s->rows[i].slot == slot && s->rows[i].pos == pos)
            return true;
    return false;
}

/* True if another operation of the step reads or writes the state that operation i saves. */
static bool saved_beside(const struct step *s, uint32_t i)
{
    for (uint32_t j = 0; j < s->n_page_ops; j++) {
        const struct step_page_op *op = &s->page_ops[j];
        if (j != i && ((op->kind == STEP_STATE_SAVE && op->page == s->page_ops[i].page) ||
                       (op->kind == STEP_STATE_LOAD && op->from == s->page_ops[i].page)))
            return true;
    }
    return false;
}

static int check_load(const struct step_checker *c, const struct step *s, uint32_t i, struct error *err)
{
    const struct step_page_op *op = &s->page_ops[i];
    if (op->page >= c->limits.n_slots)
        return too_large(err, "page_ops", i, "page", op->page, c->limits.n_slots);
    if (op->from >= c->limits.n_states)
        return too_large(err, "page_ops", i, "from", op->from, c->limits.n_states);
    if (!has_rows(s, op->page) || has_rows(s, op->from) || c->n_done[op->from] == 0)
        return error_set(err, -EINVAL,
                         "step: page_ops[%u] loads state %u into slot %u: the slot has no rows, or the state "
                         "is empty or changes",
                         i, op->from, op->page);
    return 0;
}

static int check_save(const struct step_checker *c, const struct step *s, uint32_t i, struct error *err)
{
    const struct step_page_op *op = &s->page_ops[i];
    if (op->page >= c->limits.n_states)
        return too_large(err, "page_ops", i, "page", op->page, c->limits.n_states);
    if (!has_row_at(s, op->from, op->host_offset))
        return error_set(err, -EINVAL,
                         "step: page_ops[%u] saves slot %u behind position %u, which no row has", i, op->from,
                         op->host_offset);
    if (has_rows(s, op->page) || saved_beside(s, i))
        return error_set(err, -EINVAL, "step: page_ops[%u] saves into state %u, which another one uses", i,
                         op->page);
    return 0;
}

static int check_state_ops(const struct step_checker *c, const struct step *s, struct error *err)
{
    memcpy(c->expected, c->n_done, c->limits.n_slots * sizeof *c->expected);
    for (uint32_t i = 0; i < s->n_page_ops; i++) {
        const struct step_page_op *op = &s->page_ops[i];
        int rc = 0;
        if (op->kind == STEP_STATE_LOAD)
            rc = check_load(c, s, i, err);
        else if (op->kind == STEP_STATE_SAVE)
            rc = check_save(c, s, i, err);
        if (rc < 0)
            return rc;
        if (op->kind == STEP_STATE_LOAD)
            c->expected[op->page] = c->n_done[op->from];
    }
    return 0;
}

static int check_recurrent(struct step_checker *c, const struct step *s, struct error *err)
{
    int rc = check_state_ops(c, s, err);
    for (uint32_t i = 0; i < s->n_rows && rc == 0; i++)
        rc = check_follows(c, s, i, err);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < s->n_rows; i++)
        c->n_done[s->rows[i].slot] = s->rows[i].pos + 1;
    for (uint32_t i = 0; i < s->n_page_ops; i++)
        if (s->page_ops[i].kind == STEP_STATE_SAVE)
            c->n_done[s->page_ops[i].page] = s->page_ops[i].host_offset + 1;
        else if (s->page_ops[i].kind == STEP_STATE_IMPORT)
            c->n_done[s->page_ops[i].page] = ANY_NUMBER;
    return 0;
}

void step_checker_masks(struct step_checker *c, uint32_t n_masks)
{
    c->n_masks = n_masks;
}

int step_check(struct step_checker *c, const struct step *s, struct error *err)
{
    int rc = check_counts(&c->limits, s, err);
    if (rc == 0)
        rc = check_page_ops(&c->limits, s, err);
    if (rc == 0)
        rc = check_slots(&c->limits, s, err);
    if (rc == 0)
        rc = check_logits(c, s, err);
    if (rc == 0)
        rc = check_edits(c, s, err);
    if (rc < 0)
        return rc;
    apply_edits(c, s);
    rc = check_rows(c, s, err);
    if (rc == 0 && c->limits.recurrent)
        rc = check_recurrent(c, s, err);
    if (rc < 0)
        undo_edits(c, s);
    return rc;
}

void step_copy(struct step *to, const struct step *from)
{
    memcpy(to, from, offsetof(struct step, rows));
    memcpy(to->rows, from->rows, from->n_rows * sizeof *to->rows);
    memcpy(to->logits, from->logits, from->n_logits * sizeof *to->logits);
    memcpy(to->edits, from->edits, from->n_edits * sizeof *to->edits);
    memcpy(to->page_ops, from->page_ops, from->n_page_ops * sizeof *to->page_ops);
    memcpy(to->slots, from->slots, from->n_slots * sizeof *to->slots);
    memcpy(to->biases, from->biases, from->n_biases * sizeof *to->biases);
    memcpy(to->history, from->history, from->n_history * sizeof *to->history);
}
