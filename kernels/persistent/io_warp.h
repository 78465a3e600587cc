/* io_warp.h - the I/O warp of block 0: the only warp that accesses host memory. It copies steps from the
 * pinned ring, publishes them to the blocks, and copies results back (device_abi.h has the protocol).
 *
 * Three actions are separate, so that nothing waits for PCIe without need: a step is *copied* and checked
 * while the one before runs; it is *published* the moment that one has ended, after its edits and settings
 * are applied; only then are the ended step's results *answered*, that is, copied to the host.
 *
 * Thread: all lanes of the I/O warp call every function with the same state, except those marked lane 0; lane
 * 0 alone reads words that others change, and shares what it reads. */
#pragma once
#include "io_check.h"

#define BORDER_SLEEP_MIN 100 /* ns, doubled at each idle turn */
#define BORDER_SLEEP_MAX 20000
#define BORDER_HOST_TURN 4  /* turns between two reads of the host's words while a step runs, */
#define BORDER_FULL_TURN 64 /* or while no further step can be copied: then only to see DECODER_ABORT */
#define BORDER_STOP_LOOK 8  /* reads of the host's words between two that read `stop` too */

struct border {
    const struct decoder_args *args;
    SIMT_GLOBAL struct decoder_control *control;
    struct flow_guard guard;
    uint32_t copied, published, ended, answered; /* steps of this launch so far */
    struct border_fault fault;                   /* of the last copied step, one per lane */
    uint32_t faults;                             /* bit mask of lanes that found a fault */
    /* Lane 0 only: */
    uint32_t turns, looks, beat, sleep_ns;
    uint64_t began, idle_since, moved_at;
};

enum border_news {
    BORDER_OVER = 1,  /* the abort word is set */
    BORDER_ENDED = 2, /* the running step has ended */
    BORDER_STEP = 4,  /* there is a step to copy */
    BORDER_LEAVE = 8, /* end in order */
    BORDER_ABORT = 16,
    BORDER_CLOSING = 32, /* the time quantum is over: publish nothing more */
};

SIMT_INLINE SIMT_GLOBAL uint32_t *border_counter(const struct border *b, uint32_t counter)
{
    return DECODER_AT(uint32_t, b->args->counters) + counter * DECODER_LINE;
}

/* Index, of DECODER_RING, of a step of this launch in every ring. */
SIMT_INLINE uint32_t border_place(const struct border *b, uint32_t number)
{
    return (b->args->first_step + number) % DECODER_RING;
}

SIMT_INLINE SIMT_GLOBAL struct decoder_step *border_staged(const struct border *b, uint32_t number)
{
    return (SIMT_GLOBAL struct decoder_step *)(DECODER_AT(char, b->args->staged) +
                                               border_place(b, number) * b->args->staged_stride);
}

SIMT_INLINE SIMT_GLOBAL struct step *border_step(const struct border *b, uint32_t number)
{
    return (SIMT_GLOBAL struct step *)((SIMT_GLOBAL char *)border_staged(b, number) + DECODER_STEP_AT);
}

/* --- times for the host --- */

SIMT_INLINE SIMT_GLOBAL struct decoder_border_mark *border_mark(const struct border *b, uint32_t number)
{
    uint64_t n_marks = (uint64_t)simt_n_blocks() * (b->args->n_counters / DECODER_PHASES);
    return DECODER_AT(struct decoder_border_mark, b->args->trace + n_marks * sizeof(struct decoder_mark)) +
           border_place(b, number);
}

SIMT_INLINE bool border_notes_times(const struct border *b)
{
    return b->args->trace && simt_lane() == 0;
}

/* --- copying a step --- */

SIMT_INLINE void border_copy_array(SIMT_GLOBAL void *to, const SIMT_GLOBAL void *from, uint32_t bytes)
{
    SIMT_GLOBAL simt_u4 *target = (SIMT_GLOBAL simt_u4 *)to;
    const SIMT_GLOBAL simt_u4 *source = (const SIMT_GLOBAL simt_u4 *)from;
    SIMT_SMALL_LOOP
    for (uint32_t i = simt_lane(); i < (bytes + 15) / 16; i += SIMT_LANES)
        target[i] = source[i];
}

/* Copies only the used entries of each array. */
SIMT_INLINE void border_copy_arrays(SIMT_GLOBAL struct step *to, const SIMT_GLOBAL struct step *from)
{
    border_copy_array(to->rows, from->rows, to->n_rows * sizeof *to->rows);
    border_copy_array(to->logits, from->logits, to->n_logits * sizeof *to->logits);
    border_copy_array(to->edits, from->edits, to->n_edits * sizeof *to->edits);
    border_copy_array(to->page_ops, from->page_ops, to->n_page_ops * sizeof *to->page_ops);
    border_copy_array(to->slots, from->slots, to->n_slots * sizeof *to->slots);
    border_copy_array(to->biases, from->biases, to->n_biases * sizeof *to->biases);
    border_copy_array(to->history, from->history, to->n_history * sizeof *to->history);
}

SIMT_INLINE void border_copy(struct border *b)
{
    const struct decoder_args *a = b->args;
    const SIMT_GLOBAL struct step *from =
        (const SIMT_GLOBAL struct step *)(DECODER_AT(const char, a->steps) +
                                          border_place(b, b->copied) * a->step_stride);
    SIMT_GLOBAL struct step *to = border_step(b, b->copied);
    b->fault.what = 0;
    border_copy_array(to, from, offsetof(struct step, rows));
    simt_syncwarp();
    border_check_counts(&b->fault, a, to);
    if (!b->fault.what) { /* uniform over the lanes */
        border_copy_arrays(to, from);
        simt_syncwarp();
        border_check_arrays(&b->fault, a, to);
    }
    b->faults = simt_ballot(b->fault.what != 0);
    if (!b->faults) {
        bool lone = border_lone_rows(to);
        if (simt_lane() == 0)
            border_staged(b, b->copied)->lone_rows = lone;
    }
    b->copied++;
}

/* --- publishing it --- */

/* Lane l has the slots l, l + 32, ...: so edits of a slot keep their order. */
SIMT_INLINE void border_apply_edits(const struct border *b, const SIMT_GLOBAL struct step *s)
{
    const struct decoder_slots *slots = &b->args->slots;
    SIMT_GLOBAL uint32_t *tables = DECODER_AT(uint32_t, slots->tables);
    SIMT_GLOBAL uint32_t *windows = DECODER_AT(uint32_t, slots->windows);
    SIMT_SMALL_LOOP
    for (uint32_t i = 0; i < s->n_edits; i++) {
        const SIMT_GLOBAL struct step_table_edit *e = &s->edits[i];
        size_t at = (size_t)e->slot * slots->pages_per_slot + e->index;
        if (e->slot % SIMT_LANES != simt_lane())
            continue;
        tables[at] = e->page;
        if (slots->n_windows)
            windows[at] = e->window ? e->window - slots->n_pages : 0;
    }
}

/* Sets up a slot for a new sequence. */
SIMT_INLINE void border_take_slot(const struct border *b, const SIMT_GLOBAL struct step *s,
                                  const SIMT_GLOBAL struct step_slot *from)
{
    const struct decoder_slots *slots = &b->args->slots;
    uint32_t start = from->start - from->n_history, lane = simt_lane();
    SIMT_GLOBAL int32_t *history = DECODER_AT(int32_t, slots->history) + (size_t)from->slot * slots->n_ctx;
    SIMT_GLOBAL uint64_t *biases = DECODER_AT(uint64_t, slots->biases) + (size_t)from->slot * STEP_MAX_BIAS;
    const SIMT_GLOBAL uint64_t *new_biases = (const SIMT_GLOBAL uint64_t *)s->biases;
    border_copy_array(DECODER_AT(struct step_sampling, slots->sampling) + from->slot, &from->sampling,
                      sizeof from->sampling);
    if (lane == 0)
        DECODER_AT(uint32_t, slots->start)[from->slot] = start;
    SIMT_SMALL_LOOP
    for (uint32_t i = lane; i < from->n_history; i += SIMT_LANES)
        history[start + i] = s->history[from->history_offset + i];
    SIMT_SMALL_LOOP
    for (uint32_t i = lane; i < from->sampling.n_bias; i += SIMT_LANES)
        biases[i] = new_biases[from->sampling.bias_offset + i];
}
_Static_assert(sizeof(struct step_bias) == sizeof(uint64_t), "step_bias");

/* Resolves the rows' tokens and adds them to their slots' histories. */
SIMT_INLINE void border_take_rows(const struct border *b, const SIMT_GLOBAL struct step *s)
{
    const struct decoder_slots *slots = &b->args->slots;
    SIMT_GLOBAL int32_t *history = DECODER_AT(int32_t, slots->history);
    SIMT_GLOBAL int32_t *tokens = border_staged(b, b->published)->tokens;
    SIMT_SMALL_LOOP
    for (uint32_t i = simt_lane(); i < s->n_rows; i += SIMT_LANES) {
        const SIMT_GLOBAL struct step_row *row = &s->rows[i];
        int32_t token = row->token;
        if (token == STEP_LAST_SAMPLED)
            token = DECODER_AT(const int32_t, slots->last_sampled)[row->slot];
        if ((uint32_t)token >= b->args->buffers.n_vocab) /* nothing was sampled: the sequence has failed */
            token = 0;
        tokens[i] = token;
        history[(size_t)row->slot * slots->n_ctx + row->pos] = token;
    }
}

/* Publishes the last copied step, or fails if it has a fault. */
SIMT_INLINE void border_publish(struct border *b)
{
    const SIMT_GLOBAL struct step *s = border_step(b, b->published);
    if (b->faults) {
        if (simt_lane() == (uint32_t)__builtin_ctz(b->faults))
            flow_fail(&b->guard, DECODER_RANGE, b->fault.what, b->fault.value, b->fault.limit);
        return;
    }
    if (border_notes_times(b)) {
        border_mark(b, b->published)->step = s->id;
        border_mark(b, b->published)->ready = simt_clock();
    }
    border_apply_edits(b, s);
    SIMT_SMALL_LOOP
    for (uint32_t i = 0; i < s->n_slots; i++) {
        border_take_slot(b, s, &s->slots[i]);
        simt_syncwarp();
    }
    border_take_rows(b, s);
    b->published++;
    b->moved_at = 0;
    simt_syncwarp();
    if (simt_lane() == 0)
        simt_st_release_gpu(DECODER_AT(uint32_t, b->args->published), b->published);
}

/* --- its end --- */

SIMT_INLINE SIMT_GLOBAL struct step_result *border_results(const struct border *b, uint64_t ring,
                                                           uint32_t number)
{
    return DECODER_AT(struct step_result, ring) + border_place(b, number) * STEP_MAX_LOGITS;
}

/* Stores the token that each slot sampled: the next step may refer to it. */
SIMT_INLINE void border_end(struct border *b)
{
    const SIMT_GLOBAL struct step *s = border_step(b, b->ended);
    const SIMT_GLOBAL struct step_result *results = border_results(b, b->args->buffers.results, b->ended);
    SIMT_GLOBAL int32_t *last = DECODER_AT(int32_t, b->args->slots.last_sampled);
    if (simt_lane() == 0)
        SIMT_SMALL_LOOP
    for (uint32_t i = 0; i < s->n_logits; i++)
        if (s->logits[i].target < 0)
            last[s->rows[s->logits[i].row].slot] = results[i].token;
    if (border_notes_times(b))
        border_mark(b, b->ended)->ended = simt_clock();
    simt_syncwarp();
    b->ended++;
}

SIMT_INLINE void border_answer(struct border *b)
{
    uint32_t n = border_step(b, b->answered)->n_logits;
    border_copy_array(border_results(b, b->args->results, b->answered),
                      border_results(b, b->args->buffers.results, b->answered),
                      n * sizeof(struct step_result));
    b->answered++;
    simt_syncwarp();
    if (simt_lane() == 0)
        simt_st_release_sys(&b->control->completed, b->args->first_step + b->answered);
}

/* --- polling, by lane 0 --- */

/* A poll is relaxed, and what it found is acquired by a second load: an acquire drops all that L1 holds, and
 * this warp polls all the time beside block 0's compute warps. */

/* Copies the blocks' progress to the host's heartbeat while a step runs. Its deadline catches a block that is
 * lost where no other block waits for it, at the end of a step; the blocks' own waits have shorter deadlines
 * and better records. */
SIMT_INLINE void border_forward_progress(struct border *b, uint32_t end, uint32_t value, uint32_t target)
{
    uint32_t beat = simt_ld_relaxed_gpu(DECODER_AT(const uint32_t, b->args->progress));
    uint64_t now = simt_globaltimer();
    if (beat != b->beat)
        simt_st_relaxed_sys(&b->control->heartbeat, beat);
    if (beat != b->beat || !b->moved_at)
        b->moved_at = now;
    b->beat = beat;
    if (b->args->deadline_ns && now - b->moved_at >= 2 * b->args->deadline_ns)
        flow_fail(&b->guard, FLOW_DEADLINE, end * DECODER_LINE, value, target);
}

SIMT_INLINE bool border_is_full(const struct border *b)
{
    return b->copied - b->answered >= DECODER_RING;
}

/* Reads the host's words. Each read crosses PCIe and takes a microsecond, and only new steps are urgent, so
 * the others are read seldom until the ring is full. `submitted` is read last: after DECODER_DRAIN has been
 * acquired it includes all steps submitted before. */
SIMT_INLINE uint32_t border_look_at_host(struct border *b)
{
    bool asks = border_is_full(b) || ++b->looks % BORDER_STOP_LOOK == 0;
    uint32_t stop = asks ? simt_ld_relaxed_sys(&b->control->stop) : DECODER_RUN, news = 0;
    if (stop == DECODER_DRAIN)
        stop = simt_ld_acquire_sys(&b->control->stop);
    uint32_t submitted = simt_ld_relaxed_sys(&b->control->submitted) - b->args->first_step;
    if (stop == DECODER_ABORT)
        news |= BORDER_ABORT;
    if (stop == DECODER_DRAIN && submitted == b->answered)
        news |= BORDER_LEAVE;
    if ((int32_t)(submitted - b->copied) > 0 && !border_is_full(b)) {
        (void)simt_ld_acquire_sys(&b->control->submitted); /* the step that lies behind it */
        news |= BORDER_STEP;
    }
    return news;
}

/* Waits while there is nothing to do. */
SIMT_INLINE uint32_t border_idle(struct border *b)
{
    uint64_t now = simt_globaltimer();
    if (!b->idle_since)
        b->idle_since = now;
    uint64_t idle_ns = now - b->idle_since;
    if (b->args->park_after_ms && idle_ns >= b->args->park_after_ms * 1000000ull)
        return BORDER_LEAVE;
    if (idle_ns < b->args->spin_ns)
        return 0;
    simt_nanosleep(b->sleep_ns);
    b->sleep_ns = b->sleep_ns * 2 < BORDER_SLEEP_MAX ? b->sleep_ns * 2 : BORDER_SLEEP_MAX;
    return 0;
}

SIMT_INLINE uint32_t border_look_around(struct border *b)
{
    bool runs = b->published != b->ended;
    uint32_t news = 0, target = (b->ended + 1) * simt_n_blocks(), end = b->guard.op * DECODER_PHASES;
    if (runs) {
        uint32_t value = simt_ld_relaxed_gpu(border_counter(b, end));
        if ((int32_t)(value - target) >= 0) {
            (void)simt_ld_acquire_gpu(border_counter(b, end)); /* the results and tokens that lie behind it */
            news |= BORDER_ENDED;
        } else
            border_forward_progress(b, end, value, target);
    }
    /* Read after the acquire above: a thread that gave up a wait for words still ends its op, and set the
     * abort word before that. */
    if (simt_ld_relaxed_gpu(&b->guard.words[FLOW_ABORT]))
        return BORDER_OVER;
    if (!runs || ++b->turns % (border_is_full(b) ? BORDER_FULL_TURN : BORDER_HOST_TURN) == 0)
        news |= border_look_at_host(b);
    if (b->args->quantum_ms && simt_globaltimer() - b->began >= b->args->quantum_ms * 1000000ull)
        news |= BORDER_CLOSING;
    if (runs || news) {
        b->idle_since = 0;
        b->sleep_ns = BORDER_SLEEP_MIN;
        return news;
    }
    return border_idle(b);
}

/* --- the loop --- */

SIMT_INLINE uint32_t border_look(struct border *b)
{
    uint32_t news = 0;
    if (simt_lane() == 0)
        news = border_look_around(b);
    news = simt_shfl_u32(news, 0);
    simt_syncwarp();
    return news;
}

/* Acts on the news. False: this launch has nothing more to do. */
SIMT_INLINE bool border_act(struct border *b, uint32_t news)
{
    bool closing = news & BORDER_CLOSING;
    if (news & BORDER_ENDED)
        border_end(b);
    if (b->copied != b->published && b->published == b->ended && !closing)
        border_publish(b);
    if (b->answered != b->ended)
        border_answer(b);
    if ((news & BORDER_STEP) && !closing) {
        border_copy(b);
        if (b->published == b->ended)
            border_publish(b);
    }
    return !closing || b->published != b->ended;
}

/* Runs until the launch must end. On return the abort word is set, by this warp or another thread. */
SIMT_INLINE void border_run(struct border *b)
{
    uint32_t news = 0, why = DECODER_LEAVING;
    do
        news = border_look(b);
    while (!(news & (BORDER_OVER | BORDER_ABORT | BORDER_LEAVE)) && border_act(b, news));
    if (news & BORDER_OVER)
        return;
    if (news & BORDER_ABORT)
        why = DECODER_ABORTED;
    if (simt_lane() == 0)
        flow_fail(&b->guard, why, 0, 0, 0);
}

/* Reports to the host why the launch ends, if it failed. */
SIMT_INLINE void border_tell(struct border *b)
{
    uint32_t why = 0;
    if (simt_lane() != 0)
        return;
    while (!why) /* the thread that claimed it may still be writing the record */
        why = simt_ld_acquire_gpu(&b->guard.words[FLOW_ABORT]);
    if (why == DECODER_LEAVING)
        return;
    SIMT_SMALL_LOOP
    for (uint32_t i = 0; i < FLOW_WORDS - FLOW_WHAT; i++)
        simt_st_relaxed_sys(&b->control->error[i], b->guard.words[FLOW_WHAT + i]);
    simt_st_release_sys(&b->control->failed, why);
}

/* Makes the launch's last write, when no block accesses memory any more. */
SIMT_INLINE void border_leave(const struct decoder_args *args)
{
    uint32_t left = DECODER_AT(const struct program, args->program)->n_ops * DECODER_PHASES + DECODER_LEFT;
    const SIMT_GLOBAL uint32_t *counter = DECODER_AT(const uint32_t, args->counters) + left * DECODER_LINE;
    if (simt_lane() != 0)
        return;
    while (simt_ld_acquire_gpu(counter) != simt_n_blocks()) {
    }
    simt_st_release_sys(&DECODER_AT(struct decoder_control, args->control)->left, args->launch);
}

SIMT_INLINE void border_open(struct border *b, const struct decoder_args *args,
                             const struct flow_guard *guard)
{
    *b = (struct border){.args = args,
                         .control = DECODER_AT(struct decoder_control, args->control),
                         .guard = *guard,
                         .sleep_ns = BORDER_SLEEP_MIN,
                         .began = simt_globaltimer()};
    b->guard.op =
        DECODER_AT(const struct program, args->program)->n_ops - 1; /* the op whose end is the step's */
}
