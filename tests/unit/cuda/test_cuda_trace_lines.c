/* The clocks of blocks as one (lib/cuda/cuda_trace.c): from what a device can tell, ticks of each SM from an
 * origin of its own and a global timer that moves in jumps, the times come back to a small part of a jump. */
#include "cuda/cuda_decoder.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#define N_BLOCKS     132u
#define N_OPS        183u
#define STEP         7u
#define JUMP_NS      1024u
#define TICKS_PER_NS 1.755
#define START_NS     1000000.0
#define OP_NS        1531.0
#define JITTER_NS    400u

/* Blocks end an op within JITTER_NS of one another. */
static double end_ns(uint32_t block, uint32_t op)
{
    uint32_t hash = (block * 183u + op + 1) * 2654435761u;
    return START_NS + OP_NS * (op + 1) + (hash >> 16) % JITTER_NS;
}

/* They begin at times spread over a jump, as those of a grid do. */
static double begin_ns(uint32_t block, uint32_t op)
{
    return op ? end_ns(block, op - 1) : START_NS + block * (double)JUMP_NS / N_BLOCKS;
}

static uint64_t ticks(uint32_t block, double ns)
{
    return block * UINT64_C(1000000007) + (uint64_t)(ns * TICKS_PER_NS);
}

#define READY_NS (START_NS - 700)
#define ENDED_NS (START_NS + OP_NS * N_OPS + 900)

/* The border's notes of the step lie in the second place, those of the step before in the first. */
static void note_border(struct decoder_border_mark *border)
{
    border[0] = (struct decoder_border_mark){
        .step = STEP - 1, .ready = ticks(0, READY_NS - 90000), .ended = ticks(0, READY_NS - 50)};
    border[1] =
        (struct decoder_border_mark){.step = STEP, .ready = ticks(0, READY_NS), .ended = ticks(0, ENDED_NS)};
}

static struct decoder_mark *notes(void)
{
    size_t n = (size_t)N_BLOCKS * N_OPS;
    struct decoder_mark *marks =
        calloc(1, n * sizeof *marks + DECODER_RING * sizeof(struct decoder_border_mark));
    cr_assert_not_null(marks);
    note_border((struct decoder_border_mark *)(void *)(marks + n));
    for (uint32_t b = 0; b < N_BLOCKS; b++)
        for (uint32_t i = 0; i < N_OPS; i++) {
            struct decoder_mark *m = &marks[b * N_OPS + i];
            m->step = STEP;
            m->begin = ticks(b, begin_ns(b, i));
            m->end = ticks(b, end_ns(b, i));
            m->begin_ns = (uint64_t)begin_ns(b, i) / JUMP_NS * JUMP_NS;
        }
    return marks;
}

/* The ends of an op in all blocks, beside block 0's: the skew comes from these. */
Test(cuda_trace_lines, blocks_are_aligned_to_a_small_part_of_the_timers_jump)
{
    struct decoder_mark *marks = notes();
    struct trace t;
    double worst = 0;
    cr_assert_eq(trace_open(&t, N_BLOCKS, N_OPS, NULL), 0);
    cuda_trace_convert(&t, marks);
    cr_assert_eq(t.step, STEP);
    for (uint32_t b = 1; b < N_BLOCKS; b++)
        for (uint32_t i = 0; i < N_OPS; i++) {
            double later = (double)trace_mark(&t, b, i)->end_ns - (double)trace_mark(&t, 0, i)->end_ns;
            worst = fmax(worst, fabs(later - (end_ns(b, i) - end_ns(0, i))));
        }
    cr_assert_lt(worst, JUMP_NS / 8.0, "%.0f ns", worst);
    trace_close(&t);
    free(marks);
}

/* The border's times are those of its step, on the line of block 0's ops, before and behind them. */
Test(cuda_trace_lines, the_border_is_aligned_as_its_block_is)
{
    struct decoder_mark *marks = notes();
    struct trace t;
    cr_assert_eq(trace_open(&t, N_BLOCKS, N_OPS, NULL), 0);
    cuda_trace_convert(&t, marks);
    const struct trace_mark *first = trace_mark(&t, 0, 0);
    double before = (double)first->begin_ns - (double)t.ready_ns;
    double all = (double)t.ended_ns - (double)t.ready_ns;
    cr_assert_lt(fabs(before - (START_NS - READY_NS)), 2.0, "%.0f ns", before);
    cr_assert_lt(fabs(all - (ENDED_NS - READY_NS)), 0.001 * all, "%.0f ns", all);
    trace_close(&t);
    free(marks);
}

/* Without ops of the latest step a block has no times. */
Test(cuda_trace_lines, a_block_without_ops_in_the_step_has_no_times)
{
    struct decoder_mark *marks = notes();
    struct trace t;
    cr_assert_eq(trace_open(&t, N_BLOCKS, N_OPS, NULL), 0);
    for (uint32_t i = 0; i < N_OPS; i++)
        marks[N_OPS + i].step = STEP - 1;
    cuda_trace_convert(&t, marks);
    cr_assert_eq(trace_mark(&t, 1, 0)->end_ns, 0);
    cr_assert_gt(trace_mark(&t, 0, 0)->end_ns, 0);
    trace_close(&t);
    free(marks);
}
