/* faults.c - see faults.h. Compiled for the emulator only: a GPU would hang on much of this. */
#include "faults.h"

static void lanes_of_a_warp_at_different_barriers(const struct faults_args *a)
{
    (void)a;
    if (simt_lane() < 16)
        simt_bar_sync(1, FAULTS_THREADS);
    else
        simt_bar_sync(1, FAULTS_THREADS);
}

static void warps_that_bring_different_counts(const struct faults_args *a)
{
    (void)a;
    simt_bar_sync(0, FAULTS_THREADS);
    simt_bar_sync(1, simt_warp() == 0 ? 64 : 32);
    simt_bar_sync(1, simt_warp() == 0 ? 32 : 64);
}

static void barrier_for_more_threads_than_there_are(const struct faults_args *a)
{
    (void)a;
    simt_bar_sync(1, FAULTS_THREADS + 32);
}

static void halves_of_two_warps_at_a_barrier(const struct faults_args *a)
{
    (void)a;
    if (simt_lane() < 16)
        simt_bar_sync(1, 32);
}

static void lanes_that_shuffle_at_different_lines(const struct faults_args *a)
{
    uint32_t v = simt_lane() & 1 ? simt_shfl_xor_u32(1, 1) : simt_shfl_xor_u32(2, 1);
    a->words[simt_thread()] = v;
}

static void lane_that_returns_before_a_shuffle(const struct faults_args *a)
{
    if (simt_lane() == 7)
        return;
    a->words[simt_thread()] = simt_shfl_u32(1, 0);
}

static void warp_that_never_comes_to_the_barrier(const struct faults_args *a)
{
    (void)a;
    if (simt_warp() == 0)
        simt_bar_sync(1, FAULTS_THREADS);
}

static void poll_of_a_word_that_nobody_writes(const struct faults_args *a)
{
    while (simt_ld_acquire_gpu(&a->words[0]) == 0) {
    }
}

/* Polls 20 words by thread 0 of block 0, which stores every other one itself. */
static void poll_many(const struct faults_args *a)
{
    if (simt_block() || simt_thread())
        return;
    for (uint32_t i = 0; i < 20; i += 2)
        simt_st_relaxed_gpu(&a->words[i], 1);
    for (uint32_t all = 0; !all;) {
        all = 1;
        for (uint32_t i = 0; i < 20; i++)
            all &= simt_ld_relaxed_gpu(&a->words[i]);
    }
}

static void polls_of_many_words_that_nobody_writes(const struct faults_args *a)
{
    poll_many(a);
}

static void polls_of_many_words_that_another_block_writes(const struct faults_args *a)
{
    poll_many(a);
    if (simt_block() && simt_thread() == 0)
        for (uint32_t i = 1; i < 20; i += 2)
            simt_st_relaxed_gpu(&a->words[i], 1);
}

static void store_past_the_end_of_a_part(const struct faults_args *a)
{
    (void)a;
    SIMT_SHARED uint32_t *part = simt_carve(0, 64);
    simt_carve(64, 64);
    if (simt_thread() == 0)
        part[16] = 1;
}

static void load_past_the_end_of_a_buffer(const struct faults_args *a)
{
    if (simt_block() == 0)
        a->words[simt_thread()] = (uint32_t)a->constant[simt_thread() * 4 + 4];
}

static void store_to_read_only_memory(const struct faults_args *a)
{
    *(char *)a->constant = 1;
}

static void load_of_another_threads_local(const struct faults_args *a)
{
    uint32_t mine = simt_thread();
    if (simt_block())
        return;
    if (simt_thread() == 0)
        a->pointers[0] = (uint64_t)(uintptr_t)&mine;
    simt_bar_sync(1, FAULTS_THREADS);
    if (simt_thread() == 1)
        a->words[0] = *(const uint32_t *)(uintptr_t)a->pointers[0];
    simt_bar_sync(1, FAULTS_THREADS);
}

static void copy_from_an_unaligned_address(const struct faults_args *a)
{
    SIMT_SHARED char *part = simt_carve(0, 64);
    simt_cp_async16(part, a->constant + 8);
}

static void parts_that_overlap(const struct faults_args *a)
{
    (void)a;
    simt_carve(0, 64);
    simt_carve(48, 64);
}

static void ordered_word_on_shared_memory(const struct faults_args *a)
{
    (void)a;
    SIMT_SHARED uint32_t *part = simt_carve(0, 64);
    simt_st_release_gpu(part, 1);
}

static void return_with_a_copy_in_flight(const struct faults_args *a)
{
    SIMT_SHARED char *part = simt_carve(0, 256);
    if (simt_thread() < 16)
        simt_cp_async16(part + simt_thread() * 16, a->constant + simt_thread() * 16);
}

static void load_of_shared_memory_never_written(const struct faults_args *a)
{
    SIMT_SHARED uint32_t *part = simt_carve(0, 256);
    a->words[simt_thread()] = part[simt_thread()];
}

static void gpu_scope_on_memory_of_the_host(const struct faults_args *a)
{
    a->words[simt_thread()] = simt_ld_acquire_gpu(&a->host[0]);
}

static void sys_scope_on_memory_of_the_host(const struct faults_args *a)
{
    if (simt_thread() == 0)
        simt_st_release_sys(&a->host[1], simt_ld_acquire_sys(&a->host[0]) + 1);
}

static void arrival_at_no_mbarrier(const struct faults_args *a)
{
    (void)a;
    SIMT_SHARED uint64_t *m = simt_carve(0, 16);
    simt_mbar_arrive(m);
}

#if SIMT_SM >= 90
static void arrival_where_all_have_arrived(const struct faults_args *a)
{
    (void)a;
    SIMT_SHARED uint64_t *m = simt_carve(0, 16);
    if (simt_thread() == 0) {
        simt_mbar_init(m, 1);
        simt_mbar_arrive_expect_tx(m, 16);
        simt_mbar_arrive(m);
    }
}

/* One thread copies what it wrote itself: ordered by the program, but written past the async proxy. */
static void copy_own_store(const struct faults_args *a, bool fence)
{
    SIMT_SHARED uint64_t *m = simt_carve(0, 16);
    SIMT_SHARED char *part = simt_carve(16, 16);
    if (simt_block() || simt_thread())
        return;
    simt_mbar_init(m, 1);
    simt_fence_mbar_init();
    a->words[0] = 1;
    if (fence)
        simt_fence_proxy_async();
    simt_mbar_arrive_expect_tx(m, 16);
    simt_bulk_copy(part, (const SIMT_GLOBAL char *)a->words, 16, m);
    while (!simt_mbar_try_wait(m, 0)) {
    }
}

static void bulk_copy_of_an_own_store(const struct faults_args *a)
{
    copy_own_store(a, false);
}

static void bulk_copy_of_an_own_store_after_a_proxy_fence(const struct faults_args *a)
{
    copy_own_store(a, true);
}
#else
static void thread_copy_of_an_own_store(const struct faults_args *a)
{
    SIMT_SHARED char *part = simt_carve(0, 16);
    if (simt_block() || simt_thread())
        return;
    a->words[0] = 1;
    simt_cp_async16(part, (const SIMT_GLOBAL char *)a->words);
    simt_cp_async_commit();
    simt_cp_async_wait(0);
    a->words[0] = *(SIMT_SHARED uint32_t *)part;
}
#endif

static void two_threads_store_one_byte(const struct faults_args *a)
{
    ((SIMT_GLOBAL char *)a->words)[simt_thread() / 2 + simt_block() * 32] = (char)simt_thread();
}

static void two_threads_store_bytes_of_one_word(const struct faults_args *a)
{
    ((SIMT_GLOBAL char *)a->words)[simt_thread() + simt_block() * FAULTS_THREADS] = (char)simt_thread();
}

static void plain_load_of_a_word_that_is_being_added_to(const struct faults_args *a)
{
    if (simt_thread() % 2)
        simt_red_relaxed_gpu_add(&a->words[0], 1);
    else if (a->words[0] == 1000)
        a->words[simt_thread() + 1] = 1;
}

static void order_by_a_shuffle_alone(const struct faults_args *a)
{
    SIMT_SHARED uint32_t *part = simt_carve(0, 256);
    uint32_t other = simt_thread() ^ 1;
    part[simt_thread()] = simt_lane();
    simt_shfl_u32(0, 0);
    if (simt_block() == 0)
        a->words[simt_thread()] = part[other];
}

/* Block 0 stores and releases, its second warp writes the flag again in one of two ways, block 1 acquires
 * that. */
static void three_hands(const struct faults_args *a, bool by_store)
{
    SIMT_GLOBAL uint32_t *data = &a->words[0], *flag = &a->words[1];
    if (simt_lane())
        return;
    if (simt_block() == 0 && simt_warp() == 0) {
        *data = 7;
        simt_st_release_gpu(flag, 1);
    } else if (simt_block() == 0) {
        while (simt_ld_relaxed_gpu(flag) != 1) {
        }
        if (by_store)
            simt_st_relaxed_gpu(flag, 2);
        else
            simt_red_relaxed_gpu_add(flag, 1);
    } else if (simt_warp() == 0) {
        while (simt_ld_relaxed_gpu(flag) != 2) { /* an acquire could see the 1 */
        }
        simt_ld_acquire_gpu(flag);
        a->words[2] = *data;
    }
}

static void release_sequence_ended_by_a_store(const struct faults_args *a)
{
    three_hands(a, true);
}

static void release_sequence_continued_by_an_add(const struct faults_args *a)
{
    three_hands(a, false);
}

static void receive(const struct faults_args *a, bool fence)
{
    SIMT_GLOBAL uint32_t *data = &a->words[0], *flag = &a->words[1];
    if (simt_thread())
        return;
    if (simt_block() == 0) {
        *data = 7;
        simt_st_release_gpu(flag, 1);
    } else {
        while (simt_ld_relaxed_gpu(flag) != 1) {
        }
        if (fence)
            simt_fence_acq_rel_gpu();
        a->words[2] = *data;
    }
}

static void shared_adds_between_barriers(const struct faults_args *a)
{
    SIMT_SHARED uint32_t *s = simt_carve(0, 16);
    if (simt_thread() == 0)
        s[0] = 0;
    simt_bar_sync(1, FAULTS_THREADS);
    simt_atom_shared_add(s, 1);
    simt_bar_sync(1, FAULTS_THREADS);
    if (s[0] != FAULTS_THREADS)
        a->words[64] = 1; /* out of bounds: a report */
}

static void plain_load_of_a_shared_word_being_added_to(const struct faults_args *a)
{
    SIMT_SHARED uint32_t *s = simt_carve(0, 16);
    if (simt_thread() == 0)
        s[0] = 0;
    simt_bar_sync(1, FAULTS_THREADS);
    if (simt_thread() < 32)
        simt_atom_shared_add(s, 1);
    else
        a->words[0] = s[0];
}

static void shared_add_to_a_word_never_written(const struct faults_args *a)
{
    (void)a;
    SIMT_SHARED uint32_t *s = simt_carve(0, 16);
    simt_atom_shared_add(s, 1);
}

static void shared_add_to_global_memory(const struct faults_args *a)
{
    simt_atom_shared_add(a->words, 1);
}

static void relaxed_load_and_no_fence(const struct faults_args *a)
{
    receive(a, false);
}

static void relaxed_load_and_a_fence(const struct faults_args *a)
{
    receive(a, true);
}

#if SIMT_SM >= 90
#define FAULT_80(name)
#define FAULT_90(name) [FAULT_##name] = name,
#else
#define FAULT_80(name) [FAULT_##name] = name,
#define FAULT_90(name)
#endif
#define FAULT_0(name)               [FAULT_##name] = name,
#define FAULT_ENTRY(name, kind, sm) FAULT_##sm(name)

SIMT_KERNEL(faults, struct faults_args, FAULTS_THREADS, 1)
{
    static void (*const entries[])(const struct faults_args *) = {FAULTS(FAULT_ENTRY)};
    entries[args.which](&args);
}
