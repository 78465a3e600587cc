/* engine_step.c - a step's way: built, submitted, computed, retired. It has one row of every decoding
 * sequence, with drafts behind it where they pay, then prefill chunks for as long as it is expected to stay
 * within step_ms. When its results are there, its tokens become final, pages are published, requests end. */
#include "engine_spill.h"
#include "engine_speculate.h"
#include "sampler/banned.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#define FIRST_PREFILL 64  /* rows until the cost is measured */
#define LEAST_BESIDE  8   /* rows beside texts that a remainder leaves of ENGINE_PREFILL_BESIDE */
#define BESIDE_SHARE  0.7 /* of step_ms for prefill beside texts: 1 step in 100 takes 1.4 times that */
#define HEAD_ROOM     4   /* logit rows that decoding leaves to prefill, if there is any */

/* ---- settings, pages and copies that a sequence's rows need ---- */

/* Returns the settings of the decoder's sampler. A chain draws another token from the exported logits: the
 * decoder takes the largest, which costs it least. */
static struct step_sampling settings_of(const struct engine_request *r)
{
    struct step_sampling s = r->sampling;
    s.seed = engine_seed(r);
    if (!r->chain)
        return s;
    return (struct step_sampling){.seed = r->sampling.seed, STEP_SAMPLING_NEUTRAL};
}

static uint32_t history_wanted(const struct sequence *q)
{
    const struct step_sampling settings = settings_of(q->r), *s = &settings;
    bool penalties =
        s->repetition_penalty != 1.0f || s->presence_penalty != 0.0f || s->frequency_penalty != 0.0f;
    uint32_t n = penalties ? s->penalty_last_n : 0;
    return n < q->n_rows ? n : q->n_rows;
}

static bool settings_fit(const struct step *s, const struct sequence *q)
{
    return s->n_slots < STEP_MAX_LOGITS && s->n_biases + settings_of(q->r).n_bias <= STEP_MAX_BIAS &&
           s->n_history + history_wanted(q) <= STEP_MAX_HISTORY;
}

static int32_t known_token(const struct engine_request *r, uint32_t pos)
{
    return pos < r->n_prompt ? r->prompt[pos] : r->out[pos - r->n_prompt].token;
}

/* Sends the settings of a sequence that is new, or has gone back: sampling, biases, and the tokens before its
 * next row that penalties count. */
static void send_settings(struct step *s, struct sequence *q, uint32_t slot)
{
    const struct engine_request *r = q->r;
    uint32_t n_history = history_wanted(q);
    struct step_slot *out = &s->slots[s->n_slots++];
    *out = (struct step_slot){.slot = slot,
                              .start = q->n_rows,
                              .n_history = n_history,
                              .history_offset = s->n_history,
                              .sampling = settings_of(r)};
    out->sampling.bias_offset = s->n_biases;
    for (uint32_t i = 0; i < n_history; i++)
        s->history[s->n_history + i] = known_token(r, q->n_rows - n_history + i);
    if (out->sampling.n_bias)
        memcpy(s->biases + s->n_biases, r->biases, out->sampling.n_bias * sizeof *s->biases);
    s->n_history += n_history;
    s->n_biases += out->sampling.n_bias;
    q->fresh = false;
}

/* Limits n further rows to those whose table edits fit into the step. */
static uint32_t rows_with_pages(const struct step *s, const struct sequence *q, uint32_t n)
{
    uint64_t covered = (uint64_t)(q->n_table + (STEP_MAX_EDITS - s->n_edits)) * KV_PAGE_TOKENS;
    uint64_t end = (uint64_t)q->n_rows + n;
    end = end < covered ? end : covered;
    return end > q->n_rows ? (uint32_t)(end - q->n_rows) : 0;
}

static void send_pages(struct engine *e, struct sequence *q, uint32_t slot, uint32_t n)
{
    struct step *s = &e->step;
    uint32_t end = kv_pages_for(q->n_rows + n);
    kv_cache_grow(e->kv, slot, q->n_rows + n);
    for (; q->n_table < end; q->n_table++)
        s->edits[s->n_edits++] =
            (struct step_table_edit){.slot = slot,
                                     .index = q->n_table,
                                     .page = kv_cache_page(e->kv, slot, q->n_table),
                                     .window = engine_window(e, kv_cache_window(e->kv, slot, q->n_table))};
}

/* Sends the copy of the prompt's partial page, with which a fork begins. Page ops run before the step's rows,
 * and the rows that filled the page were in earlier steps. */
static void send_copy(struct engine *e, struct sequence *q, uint32_t slot)
{
    struct step *s = &e->step;
    uint32_t index = kv_shared_pages(q->r->n_prompt), to = kv_cache_page(e->kv, slot, index);
    uint32_t window = kv_cache_copied_window(e->kv, slot);
    s->page_ops[s->n_page_ops++] =
        (struct step_page_op){.kind = STEP_PAGE_COPY, .page = to, .from = q->copy_from};
    if (window != WINDOW_NONE)
        s->page_ops[s->n_page_ops++] =
            (struct step_page_op){.kind = STEP_PAGE_COPY,
                                  .page = engine_window(e, kv_cache_window(e->kv, slot, index)),
                                  .from = engine_window(e, window)};
    q->copies = false;
}

/* ---- rows ---- */

static int32_t token_at(const struct engine *e, uint32_t slot, uint32_t pos)
{
    const struct engine_request *r = e->seqs[slot].r;
    uint32_t n = r->n_prompt + engine_n_text(r);
    if (pos < n)
        return known_token(r, pos);
    return engine_draft_length(e, slot) ? engine_draft_at(e, slot, pos - n) : STEP_LAST_SAMPLED;
}

static uint16_t ask_target(struct step *s, struct flight *f, const struct sequence *q, uint32_t slot)
{
    uint32_t index = q->n_rows + 1, i = s->n_logits++;
    s->logits[i] = (struct step_logit){.row = (uint16_t)s->n_rows,
                                       .n_top = (uint16_t)q->r->n_prompt_top,
                                       .target = q->r->prompt[index],
                                       .flags = STEP_LOGPROB};
    f->asked[i] = (struct asked){.slot = slot, .index = index, .target = true};
    return (uint16_t)i;
}

static uint16_t ask_sample(struct engine *e, struct flight *f, struct sequence *q, uint32_t slot)
{
    struct step *s = &e->step;
    const struct engine_request *r = q->r;
    uint32_t index = q->n_samples++, i = s->n_logits++;
    uint32_t flags = r->want_logprobs ? STEP_LOGPROB : 0;
    if (r->ignore_eos || index < r->min_tokens)
        flags |= STEP_BAN_END;
    flags |= engine_draws(r) ? STEP_EXPORT : 0;
    s->logits[i] = (struct step_logit){.row = (uint16_t)s->n_rows,
                                       .target = -1,
                                       .flags = flags,
                                       .n_top = (uint16_t)(r->want_logprobs ? r->n_top : 0)};
    /* A text that cannot go on is sampled without a mask and ends when the step retires. */
    uint32_t n_text = engine_n_text(r);
    uint32_t mask = !engine_is_masked(r) ? 0 : index > n_text ? q->ahead + (index - n_text - 1) : q->mask;
    s->logits[i].mask = engine_draws(r) ? 0 : mask;
    q->masked = false;
    f->asked[i] = (struct asked){.slot = slot, .index = index, .target = false, .mask = mask};
    return (uint16_t)i;
}

/* The use of the logits of the row at `pos`. */
enum wanted { NOTHING, TARGET, SAMPLE };

static enum wanted wanted_at(const struct sequence *q, uint32_t pos)
{
    const struct engine_request *r = q->r;
    if (pos < q->n_known) /* its logits were used before */
        return NOTHING;
    if (pos + 1 < r->n_prompt)
        return r->want_prompt_logprobs ? TARGET : NOTHING;
    return r->max_tokens > 0 ? SAMPLE : NOTHING;
}

static uint32_t add_rows(struct engine *e, struct flight *f, uint32_t slot, uint32_t n)
{
    struct step *s = &e->step;
    struct sequence *q = &e->seqs[slot];
    if ((q->fresh && !settings_fit(s, q)) ||
        (q->copies && s->n_page_ops + engine_page_ops(e) > STEP_MAX_PAGE_OPS))
        return 0;
    n = n < e->max_rows - s->n_rows ? n : e->max_rows - s->n_rows;
    n = rows_with_pages(s, q, n);
    uint32_t n_logits = s->n_logits, fit = 0, first = q->n_rows;
    for (; fit < n; fit++) {
        enum wanted wanted = wanted_at(q, q->n_rows + fit);
        n_logits += wanted != NOTHING;
        if (n_logits > STEP_MAX_LOGITS || (wanted == SAMPLE && engine_is_masked(q->r) && !q->masked))
            break;
    }
    if (fit == 0 || !engine_states_send(e, slot, fit))
        return 0;
    if (q->fresh)
        send_settings(s, q, slot);
    send_pages(e, q, slot, fit);
    if (q->copies)
        send_copy(e, q, slot);
    for (uint32_t i = 0; i < fit; i++) {
        enum wanted wanted = wanted_at(q, q->n_rows);
        struct step_row row = {.slot = slot,
                               .pos = q->n_rows,
                               .token = token_at(e, slot, q->n_rows),
                               .flags = q->n_rows < q->n_known ? STEP_ROW_CACHED : 0,
                               .logit_index = STEP_NO_LOGITS};
        if (wanted != NOTHING)
            row.logit_index = wanted == TARGET ? ask_target(s, f, q, slot) : ask_sample(e, f, q, slot);
        s->rows[s->n_rows++] = row;
        q->n_rows++;
    }
    q->last_step = s->id;
    f->spans[f->n_spans++] = (struct span){.slot = slot, .end = q->n_rows, .row = s->n_rows - fit, .n = fit};
    if (q->n_waiting && q->n_rows + 1 >= q->r->n_prompt)
        engine_fork(e, slot, first);
    return fit;
}

/* ---- rows of each sequence ---- */

static void add_decode(struct engine *e, struct flight *f, uint32_t n_logits)
{
    uint32_t n = e->cfg.n_slots, i = 0, left = n;
    for (; i < n && e->step.n_logits < n_logits; i++) {
        uint32_t slot = (e->turn + i) % n;
        if (!engine_decodes(&e->seqs[slot]))
            continue;
        uint32_t own = 1 + engine_states_again(&e->seqs[slot]), n_drafts = engine_draft_length(e, slot);
        if (n_drafts && e->seqs[slot].r->constraint)
            n_drafts = engine_draft_mask(e, slot);
        if (n_drafts && !engine_states_back_up(e, slot))
            n_drafts = 0;
        uint32_t n_rows = add_rows(e, f, slot, own + n_drafts);
        f->n_decode += n_rows > 0;
        left = n_rows == 0 && left == n ? i : left;
        engine_draft_sent(e, f, slot, n_rows > own ? n_rows - own : 0);
    }
    left = left < i ? left : i;
    e->turn = (e->turn + left) % n; /* those left out come first in the next step */
}

static uint32_t remaining(const struct engine *e, uint32_t slot)
{
    return e->seqs[slot].r->n_prompt - e->seqs[slot].n_rows;
}

/* Lists the slots in prefill in e->order: the oldest first, the others by the rest of their prompt, shortest
 * first. Returns their number. */
static uint32_t list_prefill(struct engine *e)
{
    uint32_t n = 0, oldest = 0;
    for (uint32_t slot = 0; slot < e->cfg.n_slots; slot++) {
        if (!engine_prefills(&e->seqs[slot]))
            continue;
        uint32_t at = n++;
        for (; at > 0 && remaining(e, e->order[at - 1]) > remaining(e, slot); at--)
            e->order[at] = e->order[at - 1];
        e->order[at] = slot;
    }
    for (uint32_t i = 1; i < n; i++)
        if (e->seqs[e->order[i]].admitted < e->seqs[e->order[oldest]].admitted)
            oldest = i;
    if (n > 0) {
        uint32_t slot = e->order[oldest];
        memmove(e->order + 1, e->order, oldest * sizeof *e->order);
        e->order[0] = slot;
    }
    return n;
}

/* The depth of all rows together, in units of step_cost.h. */
static double depth(const struct step *s)
{
    uint64_t positions = 0;
    for (uint32_t i = 0; i < s->n_rows; i++)
        positions += s->rows[i].pos;
    return (double)positions / ROW_PRICE_DEPTH;
}

/* The time of a step of prefill beside n texts: step_ms, or twice what the texts take alone where that is
 * more. With step_ms alone, prompts beside many texts would get the fewest rows, and every few of them would
 * cost a whole step of all texts. While n texts are not measured, fewer stand for them. */
static double beside_ms(const struct engine *e, uint32_t n)
{
    double alone = 0;
    for (uint32_t i = engine_text_class(n) + 1; i > 0 && alone <= 0; i--)
        alone = e->text_ms[i - 1];
    return BESIDE_SHARE * fmax(e->cfg.step_ms, 2 * alone);
}

/* The number of prefill rows that fit into the step and into its time, of `left` rows that there are. Without
 * running texts a step takes step_ms on average, and prompts that two such steps would finish are finished in
 * one, which is sooner. Beside running texts hardly any step should exceed step_ms, or twice what the texts
 * take alone. There all rows have one cost, by their depth, also those of the texts and of the drafts: they
 * all pay for the fixed cost of a step, and the cost follows when the mixture changes. `start` is the first
 * position of the deepest prompt. A step that leaves prompt rows to later ones has a number of rows without a
 * remainder for the products; it is filled up to one where without it too few rows would be left. */
static uint32_t prefill_rows(const struct engine *e, const struct flight *f, uint32_t left, uint32_t start)
{
    double rows = FIRST_PREFILL, room = e->max_rows - e->step.n_rows, least = e->rows_of_a_pass;
    bool beside = f->n_decode > 0;
    double ms = beside ? beside_ms(e, f->n_decode) : e->cfg.step_ms;
    if (beside && e->beside.row_ms > 0)
        rows = row_price_rows(
            &e->beside, ms - e->beside.row_ms * e->step.n_rows - e->beside.depth_ms * depth(&e->step), start);
    else if (e->prefill_row_ms > 0)
        rows = ms / e->prefill_row_ms - f->n_decode - f->n_draft;
    if (beside)
        least = ENGINE_PREFILL_BESIDE;
    rows = rows > least ? rows : least;
    if (!beside && left <= 2 * rows)
        rows = left;
    uint32_t n = (uint32_t)(rows < room ? rows : room), rest = (e->step.n_rows + n) % e->rows_together;
    uint32_t filled = n + e->rows_together - rest;
    if (n >= left || rest == 0)
        return n;
    if (n >= rest + LEAST_BESIDE)
        return n - rest;
    return filled <= room && filled <= left ? filled : n > rest ? n - rest : n;
}

/* The largest start position of the n sequences in e->order. */
static uint32_t deepest(const struct engine *e, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t start = e->seqs[e->order[i]].n_rows;
        most = start > most ? start : most;
    }
    return most;
}

static uint32_t prompts_left(const struct engine *e, uint32_t n)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += remaining(e, e->order[i]);
    return sum;
}

static uint32_t chunk(const struct engine *e, uint32_t slot, uint32_t rows)
{
    uint32_t left = remaining(e, slot);
    rows = rows < left ? rows : left;
    return e->cfg.max_chunk && rows > e->cfg.max_chunk ? e->cfg.max_chunk : rows;
}

/* Prompts that are shorter than the rest of the oldest have half of the rows, as many as they can use. Equal
 * ones wait for it: side by side they would all be done when the last of them is. */
static void add_prefill(struct engine *e, struct flight *f, uint32_t n)
{
    uint32_t rows = prefill_rows(e, f, prompts_left(e, n), deepest(e, n)), others = 0, half = rows / 2;
    for (uint32_t i = 1; i < n && remaining(e, e->order[i]) < remaining(e, e->order[0]); i++)
        others += chunk(e, e->order[i], half - others);
    f->n_prefill += add_rows(e, f, e->order[0], chunk(e, e->order[0], rows - others));
    for (uint32_t i = 1; i < n && f->n_prefill < rows; i++) {
        uint32_t want = chunk(e, e->order[i], rows - f->n_prefill);
        if (want)
            f->n_prefill += add_rows(e, f, e->order[i], want);
    }
}

/* Fills e->step and *f with the next step's work; false when there is none. */
static bool build(struct engine *e, struct flight *f)
{
    struct step *s = &e->step;
    engine_constrain_masks(e); /* first: a text may go back to its first token, whose row is the prompt's */
    uint32_t n_prefill = list_prefill(e);
    s->id = e->last_id + 1;
    s->n_rows = s->n_logits = s->n_edits = s->n_page_ops = s->n_slots = s->n_biases = s->n_history = 0;
    f->id = s->id;
    f->n_prefill = f->n_decode = f->n_draft = f->n_spans = f->n_logits = f->n_results = 0;
    uint32_t n_logits = n_prefill ? STEP_MAX_LOGITS - HEAD_ROOM : STEP_MAX_LOGITS;
    e->n_ahead = 0;
    if (e->n_flights == 0)
        engine_draft_plan(e, n_logits);
    add_decode(e, f, n_logits);
    if (n_prefill)
        add_prefill(e, f, n_prefill);
    f->n_logits = s->n_logits;
    f->depth = depth(s);
    /* Every running request makes progress. */
    assert(s->n_rows > 0 || e->n_flights > 0 || e->n_live == 0 || engine_disk_waits(e) ||
           engine_constrain_pending(e) || engine_sample_pending(e));
    engine_disk_build(e);
    return s->n_rows > 0 || s->n_page_ops > 0;
}

bool engine_submit_step(struct engine *e)
{
    struct flight *f = &e->flights[(e->first_flight + e->n_flights) % MAX_FLIGHTS];
    if (!e->built && !build(e, f))
        return false;
    struct error why = {0};
    e->last_id = f->id;
    f->started_ns = clock_ns();
    int rc = executor_submit(e->x, &e->step, &why);
    f->submit_ns = clock_ns() - f->started_ns;
    e->built =
        rc == -EAGAIN && e->n_flights > 0; /* the decoder holds fewer steps than the engine: retry later */
    if (e->built)
        return false;
    if (rc < 0) {
        error_set(&why, rc, "step %llu: submit: %s", (unsigned long long)f->id, strerror(-rc));
        engine_fail(e, &why);
        return false;
    }
    e->n_flights++;
    count(&e->steps, 1);
    return true;
}

/* ---- a finished step ---- */

static double ms_between(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) / 1e6 : 0;
}

static void blend(double *average, double value)
{
    *average = *average > 0 ? 0.7 * *average + 0.3 * value : value;
}

/* The fewest prompt rows of a step beside texts that leaves rows to later ones. */
static uint32_t least_chunk(const struct engine *e)
{
    uint32_t least = ENGINE_PREFILL_BESIDE - e->rows_together + 1;
    return least > LEAST_BESIDE ? least : LEAST_BESIDE;
}

/* Learns the cost of a finished step, which sizes the next ones. Chunks shorter than the planned ones say
 * little about the cost of a row. The shortest planned ones must count, or a cost that was measured too high
 * would stay. */
static void measure(struct engine *e, const struct flight *f, uint64_t now_ns)
{
    uint64_t start = f->started_ns > e->retired_ns ? f->started_ns : e->retired_ns;
    double ms = ms_between(start, now_ns);
    if (executor_kind(e->x) == EXECUTOR_EAGER)
        ms = (double)f->submit_ns / 1e6;
    engine_draft_measure(e, f, ms, now_ns);
    if (f->n_spans > 0 && f->n_prefill == 0 &&
        (f->n_draft == 0 || e->decode_ms <= 0)) /* n_spans 0: page ops alone */
        blend(&e->decode_ms, ms);
    if (f->n_decode > 0 && f->n_prefill == 0 && f->n_draft == 0)
        blend(&e->text_ms[engine_text_class(f->n_decode)], ms);
    if (f->n_prefill < (f->n_decode ? least_chunk(e) : 16))
        return;
    uint32_t n_rows = f->n_prefill + f->n_decode + f->n_draft;
    if (f->n_decode)
        row_price_learn(&e->beside, n_rows, f->depth, ms);
    else
        blend(&e->prefill_row_ms, ms / n_rows);
}

/* Returns -EIO if a result does not answer its request. A decoder that does otherwise is broken, and none of
 * its results can be trusted. */
static int check_result(const struct engine *e, const struct flight *f, const struct step_result *result,
                        struct error *why)
{
    const struct asked *a = &f->asked[result->logit_index];
    bool in_range = result->token >= 0 && (e->n_vocab == 0 || (uint32_t)result->token < e->n_vocab);
    if (result->step == f->id && result->slot == a->slot &&
        ((result->flags & STEP_RESULT_NOT_FINITE) || in_range))
        return 0;
    return error_set(
        why, -EIO, "step %llu: the decoder returned token %d for slot %u of step %llu, slot %u was expected",
        (unsigned long long)f->id, (int)result->token, result->slot, (unsigned long long)result->step,
        a->slot);
}

static void take_tops(struct step_top *out, const struct step_result *result, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = i < result->n_top ? result->top[i] : (struct step_top){.token = -1};
}

static void take_target(struct engine_request *r, uint32_t index, const struct step_result *result)
{
    r->prompt_out[index] = (struct engine_token){r->prompt[index], result->logprob};
    if (r->n_prompt_top)
        take_tops(r->prompt_top + (size_t)index * r->n_prompt_top, result, r->n_prompt_top);
}

/* Takes the token of a text with banned strings. The token that ends a text is no part of it. */
static void take_banned(struct engine *e, struct sequence *q, int32_t token, uint64_t now_ns)
{
    struct engine_request *r = q->r;
    uint32_t index = engine_n_text(r);
    bool ends = engine_ends(e, r, token, index);
    if (ends) {
        engine_publish_text(e, r, index + 1, now_ns);
        engine_end(e, q, ENGINE_EOS, now_ns);
        return;
    }
    if (!engine_banned_take(e, q, token)) {
        engine_end(e, q, ENGINE_STUCK, now_ns);
        return;
    }
    engine_publish_text(e, r, banned_n_final(r->banned), now_ns);
    if (engine_n_text(r) == r->max_tokens)
        engine_end(e, q, ENGINE_LENGTH, now_ns);
}

static void take_sample(struct engine *e, struct sequence *q, const struct asked *a,
                        const struct step_result *result, uint64_t now_ns)
{
    struct engine_request *r = q->r;
    uint32_t index = a->index;
    if (engine_is_masked(r) &&
        !engine_constrain_allows(e, a->mask, result->token)) { /* there was no mask: nothing may follow */
        engine_end(e, q, ENGINE_STUCK, now_ns);
        return;
    }
    r->out[index] = (struct engine_token){result->token, r->want_logprobs ? result->logprob : 0.0f};
    if (r->want_logprobs && r->n_top)
        take_tops(r->top + (size_t)index * r->n_top, result, r->n_top);
    if (r->banned) {
        take_banned(e, q, result->token, now_ns);
        return;
    }
    if (index == 0)
        r->first_ns = now_ns;
    engine_times_publish(e);
    atomic_store_explicit(&r->n_out, index + 1, memory_order_release);
    engine_count_tokens(e, now_ns, 0, 1);
    engine_draft_token(e, r->slot, index, result->token);
    if (engine_ends(e, r, result->token, index))
        engine_end(e, q, ENGINE_EOS, now_ns);
    else if (index + 1 == r->max_tokens)
        engine_end(e, q, ENGINE_LENGTH, now_ns);
    else
        engine_list(e, r);
}

/* Accepts the sequence's rows of a finished step, up to position `end`; their tokens are final. */
static void accept_rows(struct engine *e, struct sequence *q, uint32_t slot, uint32_t end, uint64_t now_ns)
{
    const struct engine_request *r = q->r;
    uint32_t n_prompt = end < r->n_prompt ? end : r->n_prompt;
    if (q->n_done < n_prompt) {
        uint32_t known = q->n_known > q->n_done ? q->n_known : q->n_done; /* shared pages are accepted */
        q->late = r->banned && n_prompt == r->n_prompt;
        if (known + q->late < n_prompt)
            kv_cache_accept(e->kv, slot, r->prompt + known, n_prompt - known - q->late);
        if (!q->forked) /* forks share one prompt, which counts once */
            engine_count_tokens(e, now_ns, n_prompt - q->n_done, 0);
        q->n_done = n_prompt;
        e->room = true; /* a queued request may wait for these pages */
    }
    end = engine_final_rows(r, end);
    if (q->late && end >= r->n_prompt) {
        kv_cache_accept(e->kv, slot, r->prompt + r->n_prompt - 1, 1);
        q->late = false;
    }
    for (; q->n_done < end; q->n_done++)
        kv_cache_accept(e->kv, slot, &r->out[q->n_done - r->n_prompt].token, 1);
}

/* Publishes the progress of the prompt, after its targets are stored. Ends a request that only fills the
 * cache. */
static void publish_progress(struct engine *e, struct sequence *q, uint64_t now_ns)
{
    struct engine_request *r = q->r;
    uint32_t n_prompt = q->n_done < r->n_prompt ? q->n_done : r->n_prompt;
    if (atomic_load_explicit(&r->n_prompt_done, memory_order_relaxed) == n_prompt)
        return;
    atomic_store_explicit(&r->n_prompt_done, n_prompt, memory_order_release);
    if (n_prompt < r->n_prompt)
        return;
    atomic_store_explicit(&r->state, ENGINE_DECODE, memory_order_release);
    if (r->max_tokens == 0)
        engine_end(e, q, ENGINE_LENGTH, now_ns);
}

/* Takes what the vectors of prompts need of the step's rows. They stay only until the next step runs, which
 * is why a decoder that keeps hidden states finishes one step in each advance. */
static void take_embeddings(struct engine *e, const struct flight *f, uint64_t now_ns)
{
    for (uint32_t i = 0; i < f->n_spans; i++) {
        struct sequence *q = &e->seqs[f->spans[i].slot];
        if (q->r && q->r->pooling && !engine_embed_rows(e, q, &f->spans[i]))
            engine_end(e, q, ENGINE_NOT_FINITE, now_ns);
    }
}

static void fail_not_finite(struct engine *e, struct flight *f, uint64_t now_ns)
{
    for (uint32_t i = 0; i < f->n_logits; i++) {
        struct sequence *q = &e->seqs[f->asked[i].slot];
        if (q->r && !f->asked[i].dropped && (f->results[i].flags & STEP_RESULT_NOT_FINITE))
            engine_end(e, q, ENGINE_NOT_FINITE, now_ns);
    }
}

/* Applies the results of a finished step. -EIO if they are invalid. */
static int retire(struct engine *e, struct flight *f, uint64_t now_ns, struct error *why)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < f->n_logits; i++)
        rc = check_result(e, f, &f->results[i], why);
    if (rc < 0)
        return rc;
    engine_draft_check(e, f);
    fail_not_finite(e, f, now_ns); /* first: pages of such a sequence must not be published */
    take_embeddings(e, f, now_ns);
    for (uint32_t i = 0; i < f->n_spans; i++) {
        uint32_t slot = f->spans[i].slot;
        if (e->seqs[slot].r)
            accept_rows(e, &e->seqs[slot], slot, f->spans[i].end, now_ns);
    }
    for (uint32_t i = 0; i < f->n_logits; i++) {
        const struct asked *a = &f->asked[i];
        if (a->target && e->seqs[a->slot].r)
            take_target(e->seqs[a->slot].r, a->index, &f->results[i]);
    }
    e->retired = f->id;
    engine_states_retire(e);
    for (uint32_t i = 0; i < f->n_spans; i++)
        if (e->seqs[f->spans[i].slot].r)
            publish_progress(e, &e->seqs[f->spans[i].slot], now_ns);
    for (uint32_t i = 0; i < f->n_logits; i++) {
        const struct asked *a = &f->asked[i];
        if (a->target || a->dropped || !e->seqs[a->slot].r)
            continue;
        if (engine_draws(e->seqs[a->slot].r))
            engine_sample_keep(e, a, &f->results[i]);
        else
            take_sample(e, &e->seqs[a->slot], a, &f->results[i], now_ns);
    }
    for (uint32_t i = 0; i < f->n_spans; i++) /* those that ended earlier and waited for this step */
        engine_release(e, f->spans[i].slot);
    engine_disk_retire(e, now_ns);
    return 0;
}

void engine_take_drawn(struct engine *e)
{
    uint32_t slots[STEP_MAX_SLOTS], n = engine_sample_draw(e, slots);
    uint64_t now = n ? clock_ns() : 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct engine_draw *d = &e->draws[slots[i]];
        take_sample(e, &e->seqs[slots[i]], &d->asked, &d->result, now);
    }
    if (n) /* the steps would wait for draws without drafts, too */
        engine_draft_woken(e, clock_ns());
}

static struct flight *find_flight(struct engine *e, uint64_t id)
{
    for (uint32_t i = 0; i < e->n_flights; i++) {
        struct flight *f = &e->flights[(e->first_flight + i) % MAX_FLIGHTS];
        if (f->id == id)
            return f;
    }
    return NULL;
}

static int keep_result(struct engine *e, const struct step_result *r, struct error *why)
{
    struct flight *f = find_flight(e, r->step);
    if (!f || r->logit_index >= f->n_logits || f->n_results == f->n_logits)
        return error_set(why, -EIO,
                         "the decoder gave a result for logit row %u of step %llu, which is not running",
                         r->logit_index, (unsigned long long)r->step);
    f->results[r->logit_index] = *r;
    f->n_results++;
    return 0;
}

void engine_advance(struct engine *e)
{
    static_assert(MAX_FLIGHTS * STEP_MAX_LOGITS == 64, "results of all flights");
    struct step_result results[MAX_FLIGHTS * STEP_MAX_LOGITS];
    struct error why = {0};
    uint64_t done = 0, begun_ns = e->cfg.times ? clock_ns() : 0;
    int n = executor_advance(e->x, results, MAX_FLIGHTS * STEP_MAX_LOGITS, &done, &why);
    int rc = n < 0 ? n : 0;
    for (int i = 0; rc == 0 && i < n; i++)
        rc = keep_result(e, &results[i], &why);
    while (rc == 0 && e->n_flights > 0) {
        struct flight *f = &e->flights[e->first_flight];
        if (f->id > done || f->n_results < f->n_logits)
            break;
        uint64_t now = clock_ns();
        measure(e, f, now);
        e->retired_ns = now;
        e->first_flight = (e->first_flight + 1) % MAX_FLIGHTS;
        e->n_flights--;
        engine_times_step(e, f, begun_ns, now);
        rc = retire(e, f, now, &why);
    }
    if (rc < 0) {
        error_set(&why, rc, "the decoder failed: %s", strerror(-rc));
        engine_fail(e, &why);
    }
}
