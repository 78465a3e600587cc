/* Decoders of one process take their steps in turns. */
#include "cpu/turn.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static atomic_int n_inside, n_waits, most_inside;
static atomic_uint steps[3];

static void ignore(void *context)
{
    (void)context;
}

static void *take_steps(void *arg)
{
    for (int i = 0; i < 2000; i++) {
        turn_take(ignore, NULL);
        int inside = atomic_fetch_add(&n_inside, 1) + 1;
        if (inside > atomic_load(&most_inside))
            atomic_store(&most_inside, inside);
        atomic_fetch_add((atomic_uint *)arg, 1);
        atomic_fetch_sub(&n_inside, 1);
        turn_give();
    }
    return NULL;
}

Test(turn, one_at_a_time_has_it_and_all_get_it)
{
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, take_steps, &steps[i]), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    cr_assert_eq(most_inside, 1);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(steps[i], 2000);
}

static void count(void *context)
{
    (void)context;
    atomic_fetch_add(&n_waits, 1);
}

static void *wait_once(void *arg)
{
    (void)arg;
    turn_take(count, NULL);
    turn_give();
    return NULL;
}

Test(turn, one_that_waits_shows_its_life)
{
    pthread_t thread;
    turn_take(ignore, NULL);
    cr_assert_eq(pthread_create(&thread, NULL, wait_once, NULL), 0);
    while (atomic_load(&n_waits) < 3)
        usleep(1000);
    turn_give();
    pthread_join(thread, NULL);
}

struct asker {
    atomic_int n_waits, place;
};

static atomic_int n_served;

static void count_own(void *context)
{
    atomic_fetch_add(&((struct asker *)context)->n_waits, 1);
}

static void *ask(void *arg)
{
    struct asker *a = arg;
    turn_take(count_own, a);
    atomic_store(&a->place, atomic_fetch_add(&n_served, 1));
    turn_give();
    return NULL;
}

Test(turn, who_asked_first_comes_first)
{
    static struct asker askers[4];
    pthread_t threads[4];
    turn_take(ignore, NULL);
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(pthread_create(&threads[i], NULL, ask, &askers[i]), 0);
        while (!atomic_load(&askers[i].n_waits))
            usleep(1000);
    }
    turn_give();
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        cr_assert_eq(askers[i].place, i);
    }
}

Test(turn, it_is_tried_only_where_nobody_has_it)
{
    cr_assert(turn_try());
    cr_assert_not(turn_try());
    turn_give();
    turn_take(ignore, NULL);
    cr_assert_not(turn_try());
    turn_give();
    cr_assert(turn_try());
    turn_give();
}
