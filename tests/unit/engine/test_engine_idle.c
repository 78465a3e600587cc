/* An idle engine lends its thread to its executor, until there is work. */
#include "support/engine_driver.h"

static sem_t began;
static _Atomic uint32_t n_calls;
static _Atomic bool was_wanted;

/* Works until it is wanted, as measuring in parts does. */
static uint64_t work_until_wanted(struct backend *be, bool (*wanted)(void *context), void *context)
{
    (void)be;
    n_calls++;
    sem_post(&began);
    while (!wanted(context))
        sched_yield();
    was_wanted = true;
    return UINT64_MAX;
}

static uint64_t want_three(struct backend *be, bool (*wanted)(void *context), void *context)
{
    (void)be;
    cr_assert_not(wanted(context));
    sem_post(&began);
    return ++n_calls < 3 ? 1000000 : UINT64_MAX;
}

static struct rig *open_idle(uint64_t (*idle)(struct backend *, bool (*)(void *), void *))
{
    struct rig_config c = usual;
    c.idle = idle;
    sem_init(&began, 0, 0);
    return rig_open(c);
}

static void wait_begun(void)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += PATIENCE_S;
    cr_assert_eq(sem_timedwait(&began, &end), 0, "the executor was never asked");
}

Test(engine_idle, idleness_is_lent_to_the_executor_and_a_request_ends_that)
{
    struct rig *rig = open_idle(work_until_wanted);
    wait_begun();
    const int32_t prompt[] = {5, 6, 7};
    struct engine_request *r = request_new(prompt, 3, 5);
    submit(rig, r);
    wait_done(rig, r);
    cr_assert(was_wanted);
    request_free(r);
    cr_assert_eq(n_calls, 1);
    rig_close(rig);
}

Test(engine_idle, the_end_of_the_engine_ends_it_too)
{
    struct rig *rig = open_idle(work_until_wanted);
    wait_begun();
    rig_close(rig);
    cr_assert(was_wanted);
}

Test(engine_idle, the_executor_is_asked_until_it_wants_no_more_beside_pings)
{
    struct rig *rig = open_idle(want_three);
    for (int i = 0; i < 3; i++) {
        engine_ping(rig->e);
        wait_begun();
    }
    engine_ping(rig->e);
    rig_close(rig);
    cr_assert_eq(n_calls, 3);
}
