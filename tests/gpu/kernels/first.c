/* first.c - the skeleton of the persistent decoder, for the first minute on a new GPU. See gpu_kernels.h. One
 * block per SM, launched cooperatively: n_crew compute threads, a producer warp, an I/O warp. In a step the
 * producers stream all words through their rings; the compute warps add them up and meet at a grid barrier,
 * where each block checks its neighbour's mark; block 0 then passes the sum to its I/O warp, the only warp
 * that accesses host memory. tests/gpu/parts/part_first.c has the expected sums. */
#include "guard.h"
#include "device/weight_ring.h"

static SIMT_GLOBAL uint32_t *word(const struct first_args *args, enum first_word which)
{
    return GPU_AT(uint32_t, args->counters) + which * GPU_LINE;
}

struct first_crew {
    const struct first_args *args;
    struct crew crew;
    struct ring ring;
    struct ring_place at;
    struct flow_guard guard;
};

/* Adds up the block's words. False: end. */
static bool add_pieces(struct first_crew *f, uint32_t *sum)
{
    const struct first_args *args = f->args;
    bool go = true;
    for (uint32_t i = 0; i < args->n_pieces && go; i++) {
        go = ring_take(&f->ring, &f->at, &f->guard);
        if (!go)
            break;
        const SIMT_SHARED simt_u4 *stage = (const SIMT_SHARED simt_u4 *)ring_stage(&f->ring, &f->at);
        for (uint32_t j = simt_thread(); j < args->piece_bytes / 16; j += args->n_crew) {
            simt_u4 w = stage[j];
            *sum += w[0] + w[1] + w[2] + w[3];
        }
        ring_give(&f->ring, &f->at);
    }
    return !crew_any(&f->crew, !go);
}

/* Waits for all blocks; what each wrote before is then visible to its neighbour. False: aborted. */
static bool meet(struct first_crew *f, uint32_t step)
{
    const struct first_args *args = f->args;
    uint32_t block = simt_block(), n = simt_n_blocks();
    SIMT_GLOBAL uint32_t *marks = GPU_AT(uint32_t, args->marks) + step % 2 * n;
    if (simt_thread() == 0)
        marks[block] = step + block;
    if (block != args->missing)
        flow_signal(word(args, FIRST_ARRIVED), args->n_crew);
    if (!flow_wait(word(args, FIRST_ARRIVED), step * n, &f->guard, args->n_crew))
        return false;
    uint32_t neighbour = block + 1 < n ? block + 1 : 0;
    if (simt_thread() == 0 && marks[neighbour] != step + neighbour)
        simt_red_relaxed_gpu_add(GPU_AT(uint32_t, args->total) + 1, 1);
    return true;
}

/* Waits for a step, without a deadline: the I/O warp may wait long. False: there will be none. */
static bool published(const struct first_args *args, uint32_t step, bool whole_crew)
{
    struct flow_guard guard = gpu_guard(args->counters, FIRST_GUARD);
    guard.deadline_ns = 0;
    bool go = whole_crew ? flow_wait(word(args, FIRST_PUBLISHED), step, &guard, args->n_crew)
                         : gpu_wait_warp(word(args, FIRST_PUBLISHED), step, &guard);
    return go && simt_ld_relaxed_gpu(word(args, FIRST_LEAVE)) != step;
}

static void work(struct first_crew *f)
{
    const struct first_args *args = f->args;
    for (uint32_t step = 1; published(args, step, true); step++) {
        uint32_t sum = 0;
        if (!add_pieces(f, &sum))
            return;
        simt_red_relaxed_gpu_add(GPU_AT(uint32_t, args->total), sum);
        if (!meet(f, step))
            return;
        if (simt_block() == 0)
            flow_signal(word(args, FIRST_DONE), args->n_crew);
    }
}

static void produce(struct first_crew *f)
{
    const struct first_args *args = f->args;
    size_t bytes = (size_t)args->n_pieces * args->piece_bytes;
    const SIMT_GLOBAL char *mine = GPU_AT(const char, args->words) + simt_block() * bytes;
    bool go = true;
    for (uint32_t step = 1; go && published(args, step, false); step++)
        for (size_t i = 0; go && i < bytes; i += args->piece_bytes)
            go = ring_fill(&f->ring, &f->at, mine + i, args->piece_bytes, &f->guard);
    ring_close(&f->ring, &f->at);
}

/* Waits until the host asks for step number `step`. False: the host asks to end, or has asked for nothing for
 * park_us. */
static bool next_step(const struct first_args *args, uint32_t step)
{
    SIMT_GLOBAL struct first_host *host = GPU_AT(struct first_host, args->host);
    uint64_t since = simt_globaltimer();
    while (simt_ld_acquire_sys(&host->asked) - args->first_step != step) {
        if (simt_ld_relaxed_sys(&host->stop) || simt_globaltimer() - since > args->park_us * 1000ull)
            return false;
        simt_nanosleep(200);
    }
    return true;
}

/* False: the host aborted before the step was done, or the blocks gave up. */
static bool finish_step(const struct first_args *args, uint32_t step, const struct flow_guard *guard)
{
    SIMT_GLOBAL struct first_host *host = GPU_AT(struct first_host, args->host);
    SIMT_GLOBAL uint32_t *total = GPU_AT(uint32_t, args->total);
    while (simt_ld_acquire_gpu(word(args, FIRST_DONE)) != step) {
        if (simt_ld_relaxed_sys(&host->stop) == FIRST_ABORT)
            flow_fail(guard, FIRST_ABORT, FIRST_DONE * GPU_LINE, 0, step);
        if (simt_ld_relaxed_gpu(&guard->words[FLOW_ABORT]))
            return false;
    }
    simt_st_relaxed_sys(&host->answer, simt_ld_relaxed_gpu(total) ^ simt_ld_relaxed_sys(&host->key));
    simt_st_relaxed_sys(&host->wrong, simt_ld_relaxed_gpu(total + 1));
    simt_st_release_sys(&host->answered, args->first_step + step);
    return true;
}

static void guard_border(const struct first_args *args)
{
    SIMT_GLOBAL struct first_host *host = GPU_AT(struct first_host, args->host);
    struct flow_guard guard = gpu_guard(args->counters, FIRST_GUARD);
    uint32_t step = 1;
    for (; next_step(args, step); step++) {
        simt_st_release_gpu(word(args, FIRST_PUBLISHED), step);
        if (!finish_step(args, step, &guard))
            break;
    }
    simt_st_relaxed_gpu(word(args, FIRST_LEAVE), step);
    simt_st_release_gpu(word(args, FIRST_PUBLISHED), step);
    simt_st_release_sys(&host->left, args->launch);
}

SIMT_KERNEL(gpu_first, struct first_args, DECODER_MAX_THREADS, 1)
{
    struct first_crew f = {.args = &args, .crew = crew_of(args.n_crew)};
    f.guard = gpu_guard(args.counters, FIRST_GUARD);
    ring_open(&f.ring, 0, args.n_stages * args.piece_bytes, args.n_stages, args.piece_bytes,
              args.n_crew / SIMT_LANES);
    simt_bar_sync(0, simt_n_threads());
    if (simt_thread() < args.n_crew)
        work(&f);
    else if (simt_thread() < args.n_crew + SIMT_LANES)
        produce(&f);
    else if (simt_block() == 0 && simt_lane() == 0)
        guard_border(&args);
}
