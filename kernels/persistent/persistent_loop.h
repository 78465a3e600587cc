/* persistent_loop.h - the persistent loop: the work of each thread of a launch, from its first step to its
 * last. The including source defines the ops and passes them to resident_run():
 *
 *   bool OPS(struct walk *w)        compute warps: do this block's share of op w->op (interpreter.h)
 *   bool STREAM(struct stream *s)   producer warp: fetches what the compute warps consume, in their order
 *
 * The compute warps of every block go from step to step: they wait until the I/O warp publishes one, pass the
 * producer what it must know of it, do the page ops, and run the program. The producer warp runs the same
 * program, ahead of them, round after round, whether or not a step is there: it waits only for room in the
 * ring and, before the first op with PROGRAM_HEAD, for the step gate, since only a published step tells
 * whether there is a head to run. A round is a step with rows.
 *
 * Ending: a thread sets the abort word; the compute warps and the producer see it at their next wait; all
 * meet at the block's last barrier; block 0's I/O warp waits for every block and makes the last write.
 *
 * Thread: resident_run(): all threads of every block. Below it, each section names its warps. */
#pragma once
#include "io_warp.h"
#include "device/step_gate.h"
#include "page_ops.h"

#define RESIDENT_BAR         0    /* all threads of the block: at the start and at the end */
#define RESIDENT_SPINS       64   /* polls for the next step at full speed, before sleeping */
#define RESIDENT_SLEEP_MIN   32   /* ns, doubled at each further poll */
#define RESIDENT_SLEEP_MAX   1024 /* the longest delay for a step that wakes an idle decoder */
#define RESIDENT_ABORT_TURNS 8

/* State of the producer warp's run through the program. */
struct stream {
    const struct decoder_args *args;
    struct ring ring;
    struct ring_place place;
    struct flow_guard guard; /* without a deadline: it also waits for work */
    struct gate experts;
    const SIMT_GLOBAL struct program_op *op;
    const SIMT_GLOBAL struct schedule_op *plan;
};

typedef bool resident_op(struct walk *w);
typedef bool resident_stream(struct stream *s);

SIMT_INLINE struct flow_guard resident_guard(const struct decoder_args *args)
{
    return (struct flow_guard){.words = DECODER_AT(uint32_t, args->abort_word),
                               .counters = DECODER_AT(const uint32_t, args->counters),
                               .deadline_ns = args->deadline_ns};
}

/* Uses simt_opaque() so that offsets are added where they are used, not kept in registers from the start of
 * the launch on. */
SIMT_INLINE struct ring resident_ring(const struct decoder_args *args)
{
    const struct decoder_shared *s = &args->shared;
    uint32_t zero = simt_opaque(0);
    return ring_at(s->stages + zero, s->mbarriers + zero, s->n_stages, s->stage_bytes);
}

/* --- the compute warps --- */

/* Waits for step `number` of this launch, by thread 0. */
SIMT_INLINE bool resident_poll(const struct walk *w, uint32_t number)
{
    const SIMT_GLOBAL uint32_t *published = DECODER_AT(const uint32_t, w->args->published);
    uint32_t sleep_ns = RESIDENT_SLEEP_MIN;
    for (uint32_t turn = 0; (int32_t)(simt_ld_acquire_gpu(published) - number) <= 0; turn++) {
        if (turn % RESIDENT_ABORT_TURNS == 0 && simt_ld_relaxed_gpu(&w->guard.words[FLOW_ABORT]))
            return false;
        if (turn < RESIDENT_SPINS)
            continue;
        simt_nanosleep(sleep_ns);
        sleep_ns = sleep_ns * 2 < RESIDENT_SLEEP_MAX ? sleep_ns * 2 : RESIDENT_SLEEP_MAX;
    }
    return true;
}

/* Position of the compute warps, in one word (struct walk_kept): the step's place in the rings, the op's
 * index, and the step's numbers of rows and logits, so that between two ops only the op itself is read from
 * global memory. */
#define RESIDENT_INDEX_SHIFT  1 /* DECODER_RING is 2 */
#define RESIDENT_ROWS_SHIFT   14
#define RESIDENT_LOGITS_SHIFT 24
_Static_assert(DECODER_RING == 1 << RESIDENT_INDEX_SHIFT && STEP_MAX_ROWS < 1 << 10 &&
                   STEP_MAX_LOGITS < 256 &&
                   DECODER_MAX_OPS < 1 << (RESIDENT_ROWS_SHIFT - RESIDENT_INDEX_SHIFT),
               "a word");

SIMT_INLINE uint32_t resident_at(uint32_t result, const SIMT_GLOBAL struct step *step)
{
    return result | step->n_rows << RESIDENT_ROWS_SHIFT | step->n_logits << RESIDENT_LOGITS_SHIFT;
}

SIMT_INLINE uint32_t resident_index(uint32_t at)
{
    return at % (1u << RESIDENT_ROWS_SHIFT) >> RESIDENT_INDEX_SHIFT;
}

SIMT_INLINE uint32_t resident_n_rows(uint32_t at)
{
    return at >> RESIDENT_ROWS_SHIFT & ((1u << (RESIDENT_LOGITS_SHIFT - RESIDENT_ROWS_SHIFT)) - 1);
}

SIMT_INLINE uint32_t resident_n_logits(uint32_t at)
{
    return at >> RESIDENT_LOGITS_SHIFT;
}

/* Number of ops, as plan_open() counts them; without an access to memory. */
SIMT_INLINE uint32_t resident_n_ops(const struct decoder_args *args)
{
    return args->n_counters / DECODER_PHASES;
}
_Static_assert(DECODER_N_COUNTERS < DECODER_PHASES, "the rest of a division");

/* A block's state at op `index` of a step, rebuilt from the launch's parameter, so that an op has its
 * registers to itself. */
SIMT_INLINE struct walk resident_walk(const struct decoder_args *args, uint32_t at)
{
    uint32_t result = at % DECODER_RING, index = resident_index(at);
    const SIMT_GLOBAL struct program *program = DECODER_AT(const struct program, args->program);
    const SIMT_GLOBAL char *staged = DECODER_AT(const char, args->staged) + result * args->staged_stride;
    struct walk w = {.args = args,
                     .crew = crew_of(args->n_crew),
                     .ring = resident_ring(args),
                     .guard = resident_guard(args),
                     .uses = simt_carve(args->shared.uses + simt_opaque(0), args->n_counters * 4),
                     .program = program,
                     .op = &program->ops[index],
                     .plan = DECODER_AT(const struct schedule_op, args->plan) + index,
                     .seen = (const SIMT_GLOBAL struct decoder_step *)staged,
                     .step = (const SIMT_GLOBAL struct step *)(staged + DECODER_STEP_AT),
                     .index = index,
                     .before = index ? (index - 1) * DECODER_PHASES : WALK_NOTHING,
                     .result = result};
    w.guard.op = index;
    return w;
}

/* Waits for the next step and begins it. *at is any position in the previous step and becomes the new step's
 * first op. False: end. */
SIMT_INLINE bool resident_begin(const struct decoder_args *args, uint32_t *at)
{
    uint32_t result = (*at + 1) % DECODER_RING;
    struct walk w = resident_walk(args, result);
    struct gate gate = gate_of(args, GATE_STEP);
    bool go = true;
    walk_note_place(args, 0, DECODER_PLACE_STEP);
    if (simt_thread() == 0)
        go = resident_poll(&w, gate.word[GATE_STEPS]);
    if (crew_any(&w.crew, !go))
        return false;
    if (simt_thread() == 0) {
        gate.word[GATE_STEPS]++;
        if (w.step->n_rows) /* a wait that fails here fails for all threads at the next one */
            gate_put(&gate, w.step->n_logits, &w.guard);
    }
    *at = resident_at(result, w.step);
    return !w.step->n_page_ops || pages_run(&w);
}

SIMT_INLINE uint32_t resident_rows(const struct walk *w, uint32_t at)
{
    return w->op->flags & PROGRAM_HEAD ? resident_n_logits(at) : resident_n_rows(at);
}

/* Returns whether the op has any rows. If the step has both rows and logits, the op need not be read. */
SIMT_INLINE bool resident_runs(const struct walk *w, uint32_t at)
{
    return (resident_n_rows(at) && resident_n_logits(at)) || resident_rows(w, at);
}

/* True if the op that ran has more to do. */
SIMT_INLINE bool resident_again(const struct decoder_args *args)
{
    return gate_of(args, GATE_EXPERTS).word[GATE_AGAIN];
}

/* Runs one op, if the step has rows for it. False: end. */
SIMT_INLINE bool resident_run_op(const struct decoder_args *args, uint32_t at, resident_op *ops)
{
    walk_note_place(args, 0,
                    resident_index(at) + 1); /* before `w` needs its registers: behind it sm_80 spills */
    struct walk w = resident_walk(args, at);
    w.n_rows = resident_rows(&w, at);
    if (!w.n_rows)
        return true;
    if (walk_notes_times(&w) && !resident_again(args)) /* an op of several calls begins with the first */
        walk_note_begin(&w);
    return ops(&w);
}

/* Signals an op's end, if it ran and is not quiet; the last op's, which is the step's, always. */
SIMT_INLINE void resident_end_op(const struct decoder_args *args, uint32_t at)
{
    struct walk w = resident_walk(args, at);
    bool ran = resident_runs(&w, at), quiet = *walk_quiet(args, w.index);
    if (ran && simt_thread() == 0)
        *walk_quiet(args, w.index + 1) = GATE_LOUD;
    if (ran && quiet)
        crew_sync(&w.crew);
    else if (ran || w.index + 1 == resident_n_ops(args))
        walk_signal_counter(&w, w.index * DECODER_PHASES);
    if (ran)
        walk_note_end(&w);
    if (ran && simt_block() == 0 && simt_thread() == 0)
        simt_red_relaxed_gpu_add(DECODER_AT(uint32_t, args->progress), 1);
}

SIMT_INLINE void resident_keep(const struct decoder_args *args, uint32_t at)
{
    simt_syncwarp(); /* all lanes have read it */
    if (simt_lane() == 0)
        walk_kept(args)->at = at;
    simt_syncwarp();
}

/* Runs step after step, op after op. The loop has a second entry, which is never taken: the compiler moves
 * nothing ahead of a loop with two entries, and so leaves the registers to the ops. (Otherwise it would keep
 * what every op derives from the thread's number: forty words, each of which takes one instruction to
 * compute.) */
SIMT_INLINE void resident_crew(const struct decoder_args *args, resident_op *ops)
{
    uint32_t at = (args->first_step + 1) % DECODER_RING;
    if (simt_lane() == 0)
        walk_kept(args)->place.turns = 0;
    if (simt_opaque(0))
        goto end;
begin:
    if (!resident_begin(args, &at))
        return;
    resident_keep(args, at);
run:
    if (!resident_run_op(args, at, ops))
        return;
end:
    at = walk_kept(args)->at;
    if (!resident_again(args)) {
        resident_end_op(args, simt_opaque(at));
        at += 1 << RESIDENT_INDEX_SHIFT;
        resident_keep(args, at);
    }
    if (resident_index(at) < resident_n_ops(args))
        goto run;
    goto begin;
}

/* --- the producer warp --- */

/* Runs through the program once. False: end. */
SIMT_INLINE bool resident_round(struct stream *s, struct gate *gate, resident_stream *stream)
{
    const SIMT_GLOBAL struct program *program = DECODER_AT(const struct program, s->args->program);
    bool gated = false;
    uint32_t n_logits = 0;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        s->op = &program->ops[i];
        s->plan = DECODER_AT(const struct schedule_op, s->args->plan) + i;
        if ((s->op->flags & PROGRAM_HEAD) && !gated) {
            if (!gate_get(gate, &n_logits, &s->guard))
                return false;
            gated = true;
        }
        if ((s->op->flags & PROGRAM_HEAD) && !n_logits)
            continue;
        if (s->plan->n_groups && !stream(s))
            return false;
    }
    return gated || gate_get(gate, &n_logits, &s->guard);
}

SIMT_INLINE void resident_producer(const struct decoder_args *args, resident_stream *stream)
{
    struct gate gate = gate_of(args, GATE_STEP);
    struct stream s = {.args = args,
                       .ring = resident_ring(args),
                       .guard = resident_guard(args),
                       .experts = gate_of(args, GATE_EXPERTS)};
    s.guard.deadline_ns = 0;
    while (resident_round(&s, &gate, stream)) {
    }
    ring_close(&s.ring, &s.place);
}

/* --- a block --- */

SIMT_INLINE void resident_border(const struct decoder_args *args)
{
    struct border b;
    struct flow_guard guard = resident_guard(args);
    border_open(&b, args, &guard);
    border_run(&b);
    border_tell(&b);
}

SIMT_INLINE void resident_open(const struct decoder_args *args)
{
    const struct decoder_shared *shared = &args->shared;
    struct ring ring;
    struct gate gate = gate_of(args, GATE_STEP), experts = gate_of(args, GATE_EXPERTS);
    ring_open(&ring, shared->stages, shared->mbarriers, shared->n_stages, shared->stage_bytes,
              args->n_crew / SIMT_LANES);
    gate_open(&gate);
    gate_open(&experts);
    SIMT_SHARED uint32_t *uses = simt_carve(shared->uses, args->n_counters * 4);
    for (uint32_t i = simt_thread(); i < args->n_counters; i += simt_n_threads())
        uses[i] = 0;
}

/* Called by all threads of the block when they have finished their parts. */
SIMT_INLINE void resident_close(const struct decoder_args *args)
{
    simt_bar_sync(RESIDENT_BAR, args->n_crew + 2 * SIMT_LANES); /* without a register kept for it */
    walk_note_place(args, 1, 1);
    uint32_t left = DECODER_AT(const struct program, args->program)->n_ops * DECODER_PHASES + DECODER_LEFT;
    if (simt_thread() == 0)
        simt_red_release_gpu_add(DECODER_AT(uint32_t, args->counters) + left * DECODER_LINE, 1);
    if (simt_block() == 0 && simt_warp() == args->n_crew / SIMT_LANES + 1)
        border_leave(args);
}

SIMT_INLINE void resident_run(const struct decoder_args *args, resident_op *ops, resident_stream *stream)
{
    resident_open(args);
    simt_bar_sync(RESIDENT_BAR, simt_n_threads());
    if (simt_thread() < args->n_crew)
        resident_crew(args, ops);
    else if (simt_warp() == args->n_crew / SIMT_LANES)
        resident_producer(args, stream);
    else if (simt_block() == 0)
        resident_border(args);
    resident_close(args);
}
