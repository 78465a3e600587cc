/* faults.h - kernel with one fault at a time, for the emulator's own tests. The name describes the fault; the
 * kind is the expected report, "" for correct code that must pass.
 * Thread: filled by the host before the launch. */
#pragma once
#include "device/simt.h"

#define FAULTS_THREADS 64
#define FAULTS_SHARED  256

struct faults_args {
    uint32_t which;
    SIMT_GLOBAL uint32_t *words;      /* [64], zero */
    const SIMT_GLOBAL char *constant; /* [256], read-only */
    SIMT_GLOBAL uint32_t *host;       /* [4], shared with the host */
    SIMT_GLOBAL uint64_t *pointers;   /* [1] */
};

/*                   name                                        kind             sm: 0 both */
#define FAULTS(X)                                                                                            \
    X(lanes_of_a_warp_at_different_barriers, "collective", 0)                                                \
    X(warps_that_bring_different_counts, "collective", 0)                                                    \
    X(barrier_for_more_threads_than_there_are, "collective", 0)                                              \
    X(halves_of_two_warps_at_a_barrier, "collective", 0)                                                     \
    X(lanes_that_shuffle_at_different_lines, "collective", 0)                                                \
    X(lane_that_returns_before_a_shuffle, "collective", 0)                                                   \
    X(warp_that_never_comes_to_the_barrier, "hang", 0)                                                       \
    X(poll_of_a_word_that_nobody_writes, "hang", 0)                                                          \
    X(polls_of_many_words_that_nobody_writes, "hang", 0)                                                     \
    X(polls_of_many_words_that_another_block_writes, "", 0)                                                  \
    X(store_past_the_end_of_a_part, "bounds", 0)                                                             \
    X(load_past_the_end_of_a_buffer, "bounds", 0)                                                            \
    X(store_to_read_only_memory, "bounds", 0)                                                                \
    X(load_of_another_threads_local, "bounds", 0)                                                            \
    X(copy_from_an_unaligned_address, "bounds", 0)                                                           \
    X(parts_that_overlap, "misuse", 0)                                                                       \
    X(ordered_word_on_shared_memory, "misuse", 0)                                                            \
    X(return_with_a_copy_in_flight, "misuse", 0)                                                             \
    X(load_of_shared_memory_never_written, "uninitialised", 0)                                               \
    X(gpu_scope_on_memory_of_the_host, "scope", 0)                                                           \
    X(sys_scope_on_memory_of_the_host, "", 0)                                                                \
    X(arrival_at_no_mbarrier, "mbarrier", 0)                                                                 \
    X(arrival_where_all_have_arrived, "mbarrier", 90)                                                        \
    X(two_threads_store_one_byte, "race", 0)                                                                 \
    X(two_threads_store_bytes_of_one_word, "", 0)                                                            \
    X(plain_load_of_a_word_that_is_being_added_to, "race", 0)                                                \
    X(order_by_a_shuffle_alone, "race", 0)                                                                   \
    X(release_sequence_ended_by_a_store, "race", 0)                                                          \
    X(release_sequence_continued_by_an_add, "", 0)                                                           \
    X(shared_adds_between_barriers, "", 0)                                                                   \
    X(plain_load_of_a_shared_word_being_added_to, "race", 0)                                                 \
    X(shared_add_to_a_word_never_written, "uninitialised", 0)                                                \
    X(shared_add_to_global_memory, "misuse", 0)                                                              \
    X(relaxed_load_and_no_fence, "race", 0)                                                                  \
    X(relaxed_load_and_a_fence, "", 0)                                                                       \
    X(bulk_copy_of_an_own_store, "race", 90)                                                                 \
    X(bulk_copy_of_an_own_store_after_a_proxy_fence, "", 90)                                                 \
    X(thread_copy_of_an_own_store, "", 80)

enum fault {
#define FAULT_NUMBER(name, kind, sm) FAULT_##name,
    FAULTS(FAULT_NUMBER)
};
