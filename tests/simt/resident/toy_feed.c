#include "toy_feed.h"

#define MAX_POS   120 /* two pages a slot; the pages behind theirs are for page ops alone */
#define MAX_CHUNK 4

static uint32_t below(struct toy_feed *f, uint32_t n)
{
    f->random ^= f->random << 13; /* xorshift64 (Marsaglia 2003) */
    f->random ^= f->random >> 7;
    f->random ^= f->random << 17;
    return (uint32_t)((f->random >> 32) % n);
}

void toy_feed_open(struct toy_feed *f, const struct kv_layout *layout, uint64_t seed)
{
    *f = (struct toy_feed){
        .layout = *layout, .random = (seed + 1) * 0x9E3779B97F4A7C15u, .n_slots = TOY_SLOTS};
}

static void add_page_ops(struct toy_feed *f, struct step *s)
{
    for (uint32_t i = 1 + below(f, 3); i; i--) {
        struct step_page_op *op = &s->page_ops[s->n_page_ops++];
        op->kind = STEP_PAGE_COPY + below(f, 4);
        bool window = f->n_windows && below(f, 2);
        op->page = window ? TOY_PAGES + below(f, f->n_windows) : below(f, TOY_PAGES);
        op->from = window ? TOY_PAGES + below(f, f->n_windows) : below(f, TOY_PAGES);
        if (op->kind == STEP_PAGE_EXPORT || op->kind == STEP_PAGE_IMPORT)
            op->host_offset = below(f, 4) * (uint32_t)(kv_page_size(&f->layout) / 64);
    }
}

/* A new sequence: its settings, what is known of its past. */
static void set_slot(struct toy_feed *f, struct step *s, uint32_t slot)
{
    struct step_slot *t = &s->slots[s->n_slots++];
    t->slot = slot;
    t->start = f->next_pos[slot] = 1 + below(f, MAX_POS / 2);
    t->n_history = below(f, t->start + 1);
    t->history_offset = s->n_history;
    for (uint32_t i = 0; i < t->n_history; i++)
        s->history[s->n_history++] = (int32_t)below(f, TOY_VOCAB);
    t->sampling.seed = below(f, 1000);
    t->sampling.n_bias = below(f, 40);
    t->sampling.bias_offset = s->n_biases;
    for (uint32_t i = 0; i < t->sampling.n_bias; i++)
        s->biases[s->n_biases++] = (struct step_bias){.token = (int32_t)below(f, TOY_VOCAB)};
}

/* Its pages, one of which is first told wrong; the settings of another that never came to run may stand
 * before its own. */
static void take_slot(struct toy_feed *f, struct step *s, uint32_t slot)
{
    uint32_t turn = below(f, 2);
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t page = slot * 2 + (i < 2 ? turn ^ 1 : turn);
        s->edits[s->n_edits++] = (struct step_table_edit){
            .slot = slot, .index = i % 2, .page = page, .window = f->n_windows ? TOY_PAGES + page + 1 : 0};
    }
    if (below(f, 2))
        set_slot(f, s, slot);
    set_slot(f, s, slot);
}

static void add_rows(struct toy_feed *f, struct step *s, uint32_t slot, bool lone)
{
    uint32_t n = lone ? 1 : 1 + below(f, MAX_CHUNK);
    for (uint32_t i = 0; i < n; i++) {
        struct step_row *row = &s->rows[s->n_rows];
        *row = (struct step_row){.slot = slot, .pos = f->next_pos[slot]++, .logit_index = STEP_NO_LOGITS};
        row->token = i == 0 && below(f, 2) ? STEP_LAST_SAMPLED : (int32_t)below(f, TOY_VOCAB);
        if (below(f, 3) == 0 || (i + 1 == n && below(f, 4))) {
            row->logit_index = (uint16_t)s->n_logits;
            s->logits[s->n_logits++] = (struct step_logit){
                .row = (uint16_t)s->n_rows, .target = below(f, 4) ? -1 : (int32_t)below(f, TOY_VOCAB)};
        }
        s->n_rows++;
    }
    if (f->next_pos[slot] > MAX_POS - MAX_CHUNK)
        f->next_pos[slot] = 0;
}

void toy_feed_next(struct toy_feed *f, struct step *s)
{
    s->id = ++f->id;
    if (below(f, 4) == 0)
        add_page_ops(f, s);
    if (below(f, 8) == 0)
        return; /* no rows */
    bool lone = below(f, 2);
    for (uint32_t slot = 0; slot < f->n_slots; slot++) {
        if (below(f, 2) && s->n_rows)
            continue;
        if (!f->next_pos[slot])
            take_slot(f, s, slot);
        add_rows(f, s, slot, lone);
    }
    if (below(f, 6) == 0) { /* a prompt's middle: nothing is wanted of it yet */
        for (uint32_t i = 0; i < s->n_rows; i++)
            s->rows[i].logit_index = STEP_NO_LOGITS;
        s->n_logits = 0;
    }
}
