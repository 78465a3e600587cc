/* product_walk.c - runs the products of a program, one op after the other as in the persistent decoder,
 * without the I/O warp and everything else. The program has MATMUL ops only; `steps` is the step, in device
 * memory. */
#include "experts/product_op.h"

#define PRODUCT_WALK_THREADS 480 /* a number, which the PTX needs */
_Static_assert(PRODUCT_WALK_THREADS == DECODER_MAX_CREW + SIMT_LANES, "the I/O warp is one more");

SIMT_INLINE void produce(const struct decoder_args *args, struct walk *w)
{
    SIMT_SHARED char *fold = walk_fold(w);
    SIMT_SHARED struct product *p = product_at(fold, 1);
    struct ring_place place = {0};
    bool go = true;
    for (uint32_t i = 0; go && i < w->program->n_ops; i++) {
        simt_syncwarp();
        product_open(p, args, w->program, &w->program->ops[i], &w->plan[i], NULL, 0, false);
        simt_syncwarp();
        product_ask_vectors(p);
        go = product_produce(p, fold, &w->ring, &place, &w->guard);
    }
    ring_close(&w->ring, &place);
}

SIMT_INLINE void consume(const struct decoder_args *args, struct walk *w)
{
    const SIMT_GLOBAL struct schedule_op *plan = w->plan;
    for (uint32_t i = simt_thread(); i < args->n_counters; i += w->crew.n_threads)
        w->uses[i] = 0; /* the first op's barrier orders this, too */
    for (w->index = 0; w->index < w->program->n_ops; w->index++) {
        w->op = &w->program->ops[w->index];
        w->plan = &plan[w->index];
        w->n_rows = w->op->flags & PROGRAM_HEAD ? w->step->n_logits : w->step->n_rows;
        if (!product_op(w, false))
            return;
        walk_signal_counter(w, w->index * DECODER_PHASES);
        w->before = w->index * DECODER_PHASES;
    }
}

SIMT_KERNEL(product_walk, struct decoder_args, PRODUCT_WALK_THREADS, 1)
{
    struct walk w = {.args = &args, .crew = crew_of(args.n_crew), .before = WALK_NOTHING};
    w.guard = (struct flow_guard){.words = DECODER_AT(uint32_t, args.abort_word),
                                  .counters = DECODER_AT(const uint32_t, args.counters)};
    w.program = DECODER_AT(const struct program, args.program);
    w.plan = DECODER_AT(const struct schedule_op, args.plan);
    w.step = DECODER_AT(const struct step, args.steps);
    w.uses = simt_carve(args.shared.uses, args.n_counters * 4);
    ring_open(&w.ring, args.shared.stages, args.shared.mbarriers, args.shared.n_stages,
              args.shared.stage_bytes, w.crew.n_warps);
    struct gate step = gate_of(&args, GATE_STEP), experts = gate_of(&args, GATE_EXPERTS);
    gate_open(&step);
    gate_open(&experts);
    if (simt_thread() < args.n_crew && simt_lane() == 0)
        walk_kept(&args)->place.turns = 0;
    simt_bar_sync(0, simt_n_threads());
    if (simt_thread() < args.n_crew)
        consume(&args, &w);
    else
        produce(&args, &w);
}
