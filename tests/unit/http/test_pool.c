/* The pool's order: clients take turns, and what is cancelled before it has begun is handed back as it is. */
#include "http/pool.h"

#include <criterion/criterion.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <unistd.h>

static struct pool *pool;
static sem_t begun, end, wakes;
static atomic_uint n_run;

struct work {
    struct pool_job job;
    unsigned number; /* in the order of beginning, from 1; 0: it has not run */
};

static void run(struct pool_job *job)
{
    ((struct work *)job)->number = ++n_run;
}

static void block(struct pool_job *job)
{
    (void)job;
    sem_post(&begun);
    sem_wait(&end);
}

static void wake(void *context)
{
    sem_post(context);
}

static struct pool_job blocks[POOL_MAX_THREADS];

static int n_threads(void)
{
    return sysconf(_SC_NPROCESSORS_ONLN) > POOL_FEW_CORES ? POOL_MAX_THREADS : 1;
}

static void open_pool(void)
{
    sem_init(&begun, 0, 0);
    sem_init(&end, 0, 0);
    sem_init(&wakes, 0, 0);
    n_run = 0;
    cr_assert_eq(pool_open(&pool, wake, &wakes, NULL), 0);
}

static void block_all(void)
{
    for (int i = 0; i < n_threads(); i++) {
        blocks[i] = (struct pool_job){.run = block};
        pool_add(pool, POOL_TEXT, &blocks[i]);
        sem_wait(&begun);
    }
}

static void open_blocked(void)
{
    open_pool();
    block_all();
}

static void add(struct work *w, uint64_t client)
{
    *w = (struct work){.job = {.run = run, .client = client}};
    pool_add(pool, POOL_TEXT, &w->job);
}

/* Takes n jobs back; those of the end are among them. */
static void finish(int n)
{
    for (int i = 0; i < n_threads(); i++)
        sem_post(&end);
    for (n += n_threads(); n; n--) {
        sem_wait(&wakes);
        cr_assert_not_null(pool_next(pool));
    }
    cr_assert_null(pool_next(pool));
    pool_close(pool);
}

/* On two threads neighbours may change places. */
Test(pool, clients_take_turns)
{
    struct work a[6], b[2], c[1];
    open_blocked();
    for (int i = 0; i < 6; i++)
        add(&a[i], 1);
    for (int i = 0; i < 2; i++)
        add(&b[i], 2);
    add(&c[0], 3);
    finish(9);
    cr_assert_leq(b[0].number, 3);
    cr_assert_leq(c[0].number, 4);
    cr_assert_leq(b[1].number, 6);
    cr_assert_geq(a[5].number, 8);
}

Test(pool, a_client_that_comes_back_goes_behind_those_that_wait)
{
    struct work a[2], b[2];
    open_blocked();
    add(&a[0], 1);
    add(&b[0], 2);
    add(&b[1], 2);
    add(&a[1], 1);
    finish(4);
    if (n_threads() == 1)
        cr_assert(a[0].number == 1 && b[0].number == 2 && b[1].number == 3 && a[1].number == 4);
    cr_assert_geq(a[1].number, 3);
}

/* Clients 2 to 4 wait with two jobs each when client 9 comes, which is owed its turn before their second
 * ones. */
static unsigned number_beside_others(bool had_one)
{
    struct work before, mine, others[6];
    open_pool();
    if (had_one) {
        add(&before, 9);
        sem_wait(&wakes);
        cr_assert_eq(pool_next(pool), &before.job);
        n_run = 0;
    }
    block_all();
    for (int i = 0; i < 6; i++)
        add(&others[i], 2 + (uint64_t)(i / 2));
    add(&mine, 9);
    finish(7);
    return mine.number;
}

Test(pool, a_job_of_a_turn_that_has_ended_sets_a_client_back_no_more)
{
    unsigned most = (unsigned)(3 + n_threads()); /* on two threads neighbours may change places */
    cr_assert_leq(number_beside_others(false), most);
    cr_assert_leq(number_beside_others(true), most);
}

/* --- clients that add a job whenever one has begun --- */

#define MOST_CLIENTS 80
#define MOST_ROUNDS  8

static struct work patient[4], restless[MOST_CLIENTS][MOST_ROUNDS];

static void run_until_told(struct pool_job *job)
{
    run(job);
    block(job);
}

static void add_long(struct work *w, uint64_t client)
{
    *w = (struct work){.job = {.run = run_until_told, .client = client}};
    pool_add(pool, POOL_TEXT, &w->job);
}

/* One job of every client at first, the next of each while the one before it runs. A job ends only when all
 * threads have one, so each has its number before the next begins. */
static void run_rounds(int n_clients, int n_rounds)
{
    int added[MOST_CLIENTS] = {0};
    for (int i = 0; i < n_clients; i++)
        add_long(&restless[i][added[i]++], 2 + (uint64_t)i);
    for (int n = 4 + n_clients * n_rounds; n; n--) {
        sem_post(&end);
        sem_wait(&begun);
        for (int i = 0; i < n_clients; i++)
            if (added[i] < n_rounds && restless[i][added[i] - 1].number)
                add_long(&restless[i][added[i]++], 2 + (uint64_t)i);
    }
    finish(4 + n_clients * n_rounds);
}

/* Client 1 has four jobs at once, each of which waits for one of every other client. */
static void expect_turns(int n_clients, int n_rounds)
{
    open_blocked();
    for (int i = 0; i < 4; i++)
        add_long(&patient[i], 1);
    run_rounds(n_clients, n_rounds);
    for (int i = 0; i < 4; i++) {
        unsigned most = (unsigned)(i * (n_clients + 1) + 1);
        cr_assert_leq(patient[i].number, most, "job %d began as number %u", i, patient[i].number);
    }
}

Test(pool, clients_that_come_back_at_once_starve_no_other)
{
    expect_turns(2, MOST_ROUNDS);
}

Test(pool, clients_that_come_back_at_once_starve_no_other_when_they_are_many)
{
    expect_turns(MOST_CLIENTS, MOST_ROUNDS);
}

Test(pool, a_cancelled_job_comes_back_at_once_and_has_not_run)
{
    struct work a[3];
    open_blocked();
    for (int i = 0; i < 3; i++)
        add(&a[i], 1);
    pool_cancel(pool, &a[2].job);
    sem_wait(&wakes);
    cr_assert_eq(pool_next(pool), &a[2].job);
    pool_cancel(pool, &a[0].job);
    sem_wait(&wakes);
    cr_assert_eq(pool_next(pool), &a[0].job);
    pool_cancel(pool, &blocks[0]); /* has begun */
    cr_assert_null(pool_next(pool));
    finish(1);
    cr_assert(!a[0].number && a[1].number == 1 && !a[2].number);
}
