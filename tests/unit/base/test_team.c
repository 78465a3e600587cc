/* A team of threads: each unit is dealt once a round. */
#include "base/team.h"

#include <criterion/criterion.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define UNITS 1000

struct deal_job {
    struct team *team;
    uint32_t n, lead, chunk, rounds, late;
    atomic_uint taken[UNITS];
};

static void deal_all(void *context, uint32_t member)
{
    struct deal_job *job = context;
    for (uint32_t round = 0; round < job->rounds; round++) {
        struct team_deal deal = team_deal_lead(job->team, member, job->n, job->lead, job->chunk);
        if (member == job->late)
            usleep(2000);
        for (uint32_t first, last; team_next(&deal, &first, &last);)
            for (uint32_t i = first; i < last; i++)
                atomic_fetch_add(&job->taken[i], 1);
        team_barrier(job->team, member);
    }
}

static void expect_each_unit_once_a_round(uint32_t n_threads, uint32_t n, uint32_t lead, uint32_t chunk,
                                          uint32_t late)
{
    struct deal_job *job = calloc(1, sizeof *job);
    *job = (struct deal_job){.n = n, .lead = lead, .chunk = chunk, .rounds = 5, .late = late};
    cr_assert_eq(team_open(&job->team, n_threads, NULL), 0);
    for (uint32_t run = 0; run < 3; run++)
        team_run(job->team, deal_all, job);
    for (uint32_t i = 0; i < UNITS; i++)
        cr_assert_eq(job->taken[i], i < n ? 15 : 0, "%u threads, n %u, pieces of %u and %u: unit %u",
                     n_threads, n, lead, chunk, i);
    team_close(job->team);
    free(job);
}

Test(team, every_unit_is_done_exactly_once)
{
    expect_each_unit_once_a_round(1, 1000, 0, 7, 9);
    expect_each_unit_once_a_round(2, 1000, 0, 1, 9);
    expect_each_unit_once_a_round(3, 1, 0, 1, 9);
    expect_each_unit_once_a_round(3, 0, 0, 1, 9);
    expect_each_unit_once_a_round(7, 5, 0, 64, 9);
    expect_each_unit_once_a_round(4, 999, 0, 13, 9);
    expect_each_unit_once_a_round(1, 1000, 700, 7, 9);
    expect_each_unit_once_a_round(2, 1000, 375, 11, 9);
    expect_each_unit_once_a_round(3, 10, 64, 2, 9);
}

Test(team, a_late_member_loses_its_units_but_none_is_lost)
{
    expect_each_unit_once_a_round(3, 500, 0, 5, 1);
    expect_each_unit_once_a_round(3, 500, 120, 5, 1);
}

struct sizes_job {
    struct team *team;
    uint32_t n, sizes[16];
};

static void take_all(void *context, uint32_t member)
{
    struct sizes_job *job = context;
    struct team_deal deal = team_deal_lead(job->team, member, 100, 35, 10);
    for (uint32_t first, last; member == 0 && job->n < 16 && team_next(&deal, &first, &last);)
        job->sizes[job->n++] = last - first;
}

Test(team, only_the_first_piece_of_a_members_own_part_is_long)
{
    struct sizes_job job = {0};
    cr_assert_eq(team_open(&job.team, 2, NULL), 0);
    team_run(job.team, take_all, &job);
    static const uint32_t sizes[] = {35, 10, 5, 10, 10, 10, 10, 10};
    cr_assert_eq(job.n, sizeof sizes / sizeof *sizes);
    cr_assert_eq(memcmp(job.sizes, sizes, sizeof sizes), 0);
    team_close(job.team);
}

struct order_job {
    struct team *team;
    uint32_t values[8], sums[8];
};

static void write_then_read(void *context, uint32_t member)
{
    struct order_job *job = context;
    for (uint32_t round = 1; round <= 2000; round++) {
        job->values[member] = round;
        team_barrier(job->team, member);
        for (uint32_t i = 0; i < team_size(job->team); i++)
            job->sums[member] += job->values[i] == round;
        team_barrier(job->team, member);
    }
}

Test(team, what_was_written_before_a_barrier_is_seen_after_it)
{
    struct order_job job = {0};
    cr_assert_eq(team_open(&job.team, 3, NULL), 0);
    team_run(job.team, write_then_read, &job);
    for (uint32_t i = 0; i < 3; i++)
        cr_assert_eq(job.sums[i], 3 * 2000);
    team_close(job.team);
}

static void nothing(void *context, uint32_t member)
{
    (void)context;
    (void)member;
}

Test(team, progress_counts_every_piece_and_nothing_else)
{
    struct deal_job *job = calloc(1, sizeof *job);
    *job = (struct deal_job){.n = 40, .chunk = 4, .rounds = 5, .late = 9};
    cr_assert_eq(team_open(&job->team, 2, NULL), 0);
    cr_assert_eq(team_progress(job->team), 0);
    team_run(job->team, deal_all, job);
    cr_assert_eq(team_progress(job->team), 5 * 2 * 5); /* each member's part, 20 units, is 5 pieces */
    team_run(job->team, nothing, NULL);
    cr_assert_eq(team_progress(job->team), 5 * 2 * 5);
    team_close(job->team);
    free(job);
}

static void bind_to_one_cpu(void)
{
    cpu_set_t all, one;
    cr_assert_eq(sched_getaffinity(0, sizeof all, &all), 0);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &all))
        cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    cr_assert_eq(sched_setaffinity(0, sizeof one, &one), 0);
}

/* The CPU time of all threads; the one that measures sleeps meanwhile. */
static uint64_t process_cpu_ns(void)
{
    struct timespec used;
    cr_assert_eq(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used), 0);
    return (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

static void expect_no_cpu_when_idle(uint32_t n_threads)
{
    struct team *t = NULL;
    cr_assert_eq(team_open(&t, n_threads, NULL), 0);
    for (int i = 0; i < 100; i++)
        team_run(t, nothing, NULL);
    uint64_t used = UINT64_MAX;
    for (int i = 0; i < 20 && used > 1000000; i++) { /* once all are past the spin, on a busy machine */
        uint64_t before = process_cpu_ns();
        usleep(100000);
        used = process_cpu_ns() - before;
    }
    cr_assert_leq(used, 1000000, "%u threads: %llu ns in 100 ms", n_threads, (unsigned long long)used);
    team_close(t);
}

Test(team, an_idle_team_uses_no_cpu)
{
    expect_no_cpu_when_idle(team_cores()); /* who spin first, where there are at least two cores */
    bind_to_one_cpu();
    expect_no_cpu_when_idle(2); /* who do not */
}

struct affinity_job {
    struct team *team;
    cpu_set_t wanted;
    uint32_t run;
    atomic_uint n_looked, n_wrong;
};

/* One member after the other is late, so that all others sleep in the barrier and are woken by it. */
static void look_at_affinity(void *context, uint32_t member)
{
    struct affinity_job *job = context;
    cpu_set_t set;
    if (member == job->run % team_size(job->team))
        usleep(300);
    team_barrier(job->team, member);
    sched_getaffinity(0, sizeof set, &set);
    job->n_looked++;
    job->n_wrong += !CPU_EQUAL(&set, &job->wanted);
}

Test(team, members_that_were_woken_may_run_where_they_might_before)
{
    struct affinity_job job = {0};
    sched_getaffinity(0, sizeof job.wanted, &job.wanted);
    cr_assert_eq(team_open(&job.team, 0, NULL), 0);
    for (; job.run < 100; job.run++) {
        team_run(job.team, look_at_affinity, &job);
        usleep(200); /* the others go to sleep */
    }
    cr_assert_eq(job.n_looked, 100 * team_size(job.team));
    cr_assert_eq(job.n_wrong, 0);
    team_close(job.team);
}

Test(team, more_members_than_cores_still_finish)
{
    struct team *t = NULL;
    cr_assert_eq(team_open(&t, 16, NULL), 0);
    cr_assert_eq(team_size(t), 16);
    for (int i = 0; i < 50; i++)
        team_run(t, nothing, NULL);
    team_close(t);
}

Test(team, too_many_threads_are_refused_with_the_limit)
{
    struct team *t = NULL;
    struct error err = {0};
    cr_assert_lt(team_open(&t, TEAM_MAX + 1, &err), 0);
    cr_assert_not_null(strstr(err.text, "257"));
    cr_assert_not_null(strstr(err.text, "256"));
}

Test(team, the_default_is_at_least_one_and_at_most_the_cores)
{
    cr_assert_geq(team_cores(), 1);
    cr_assert_leq((long)team_cores(), sysconf(_SC_NPROCESSORS_ONLN));
}

Test(team, a_process_bound_to_one_cpu_gets_one_thread)
{
    struct team *t = NULL;
    bind_to_one_cpu();
    cr_assert_eq(team_cores(), 1);
    cr_assert_eq(team_open(&t, 0, NULL), 0);
    cr_assert_eq(team_size(t), 1);
    team_close(t);
}

Test(team, members_spin_only_where_each_has_a_core)
{
    struct team *t = NULL;
    cr_assert_eq(team_open(&t, team_cores(), NULL), 0);
    cr_assert(team_spins(t));
    team_close(t);
    bind_to_one_cpu();
    cr_assert_eq(team_open(&t, 2, NULL), 0);
    cr_assert_not(team_spins(t));
    team_close(t);
}
