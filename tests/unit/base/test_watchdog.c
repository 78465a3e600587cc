/* The watchdog: stalled or not. Time is an argument. */
#include "base/watchdog.h"

#include <criterion/criterion.h>

#define SECOND 1000000000ull

/* Checks once a second for n seconds; heartbeats advance only where asked. Returns the last verdict. */
struct scene {
    struct watchdog w;
    struct watchdog_signs signs;
};

static struct scene scene_with_limit(uint64_t seconds)
{
    return (struct scene){.w.limit_ns = seconds * SECOND, .signs = {SECOND, 1, 1, true}};
}

static enum watchdog_verdict run(struct scene *s, int n, bool engine, bool decoder)
{
    enum watchdog_verdict verdict = WATCHDOG_ALIVE;
    for (int i = 0; i < n; i++) {
        verdict = watchdog_check(&s->w, &s->signs);
        s->signs.now_ns += SECOND;
        s->signs.engine_ns += engine;
        s->signs.decoder_ns += decoder;
    }
    return verdict;
}

Test(watchdog, an_idle_decoder_needs_no_heartbeat)
{
    struct scene s = scene_with_limit(10);
    cr_assert_eq(run(&s, 1000, true, false), WATCHDOG_ALIVE);
}

Test(watchdog, a_running_decoder_without_heartbeat_is_stalled_after_the_limit)
{
    struct scene s = scene_with_limit(10);
    run(&s, 5, true, false);
    s.signs.decoder_idle = false;
    cr_assert_eq(run(&s, 10, true, false), WATCHDOG_ALIVE);
    cr_assert_eq(run(&s, 2, true, false), WATCHDOG_DECODER_STALLED);
}

Test(watchdog, an_old_heartbeat_is_not_held_against_a_decoder_that_just_began)
{
    struct scene s = scene_with_limit(10);
    run(&s, 1000, true, false);
    s.signs.decoder_idle = false;
    cr_assert_eq(run(&s, 2, true, false), WATCHDOG_ALIVE);
}

Test(watchdog, a_running_decoder_with_heartbeat_is_alive)
{
    struct scene s = scene_with_limit(10);
    s.signs.decoder_idle = false;
    cr_assert_eq(run(&s, 1000, true, true), WATCHDOG_ALIVE);
}

Test(watchdog, an_engine_inside_a_long_step_lives_by_the_decoders_heartbeat)
{
    struct scene s = scene_with_limit(10);
    s.signs.decoder_idle = false;
    cr_assert_eq(run(&s, 1000, false, true), WATCHDOG_ALIVE);
}

Test(watchdog, an_engine_that_does_not_answer_is_stalled)
{
    struct scene s = scene_with_limit(10);
    cr_assert_eq(run(&s, 12, false, false), WATCHDOG_ENGINE_STALLED);
}

Test(watchdog, a_heartbeat_in_time_starts_the_count_anew)
{
    struct scene s = scene_with_limit(10);
    run(&s, 9, false, false);
    run(&s, 1, true, false);
    cr_assert_eq(run(&s, 9, false, false), WATCHDOG_ALIVE);
}

Test(watchdog, a_process_that_was_stopped_for_an_hour_is_not_stalled)
{
    struct scene s = scene_with_limit(10);
    s.signs.decoder_idle = false;
    run(&s, 3, true, true);
    s.signs.now_ns += 3600 * SECOND;
    cr_assert_eq(run(&s, 1, false, false), WATCHDOG_ALIVE);
    cr_assert_eq(run(&s, 3, true, true), WATCHDOG_ALIVE);
}

Test(watchdog, no_limit_means_no_verdict)
{
    struct scene s = scene_with_limit(0);
    s.signs.decoder_idle = false;
    cr_assert_eq(run(&s, 1000, false, false), WATCHDOG_ALIVE);
}
