/* sample.c - the node ARGMAX: samples, a block per logit row (any number of blocks works); all threads of the
 * block are compute threads, and the phases of sample.h follow one another inside it. Shared memory:
 * args.work + SAMPLE_WORK_BYTES. Floor: 4 bytes a logit once, 607,744 for a row of 151,936; once more for a
 * log-probability, and once more for a draw (sample.h). Must match decoder_choose() of lib/cpu/cpu_step.c
 * in every bit: tests/simt/sampling/sampling.c, and in whole models tests/cuda/test_cuda_twin.c (eager). */
#include "sampling/sample.h"

SIMT_KERNEL(argmax, struct sample_args, DECODER_MAX_CREW, 1)
{
    struct sample s = {args, simt_carve(args.work, SAMPLE_WORK_BYTES)};
    struct crew crew = crew_of(simt_n_threads());
    uint32_t n_segments = sample_n_segments(args.n_vocab);
    for (uint32_t index = simt_block(); index < sample_n_rows(&s); index += simt_n_blocks()) {
        struct sample_row row = {.way = SAMPLE_NOTHING};
        for (uint32_t i = 0; i < n_segments; i++) {
            row = sample_prepare(&s, &crew, index, i);
            sample_segment(&s, &crew, index, i, &row);
        }
        crew_sync(&crew);
        for (uint32_t i = 0; i < n_segments; i++)
            sample_draw_segment(&s, &crew, index, i);
        crew_sync(&crew);
        sample_result(&s, &crew, index, &row);
    }
}
