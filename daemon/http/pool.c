#include "pool.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define TURN_CLIENTS 64 /* clients of a turn that are remembered; those behind them wait for the next */

TAILQ_HEAD(job_list, pool_job);

struct queue {
    struct job_list jobs; /* by turn */
    uint64_t turn;        /* the turn of the job that began last */
    uint64_t begun[TURN_CLIENTS];
    unsigned n_begun;                   /* clients with a job of this turn that has begun */
    uint64_t running[POOL_MAX_THREADS]; /* clients whose jobs run now */
    unsigned n_running;
};

struct worker {
    struct pool *pool;
    enum pool_class class;
    pthread_t thread;
};

struct pool {
    pthread_mutex_t lock;
    pthread_cond_t came[POOL_N_CLASSES]; /* a job of this class, or the end */
    struct queue waiting[POOL_N_CLASSES];
    struct job_list done;
    bool closing;
    struct worker workers[POOL_N_CLASSES * POOL_MAX_THREADS];
    unsigned n_workers;
    void (*wake)(void *context);
    void *context;
};

/* No job waits, so the turn has ended: only clients whose jobs still run have had theirs of the next. A job
 * that another had before, however long ago, sets it back no more. */
static void queue_begin_turn(struct queue *q)
{
    memcpy(q->begun, q->running, q->n_running * sizeof *q->begun);
    q->n_begun = q->n_running;
}

/* True when the client may have had its job of this turn. */
static bool has_begun(const struct queue *q, uint64_t client)
{
    for (unsigned i = 0; i < q->n_begun; i++)
        if (q->begun[i] == client)
            return true;
    return q->n_begun == TURN_CLIENTS;
}

/* Behind the jobs of its turn, which is the one after that of its client's last job, begun or waiting: a
 * client that adds a job whenever one has begun goes behind all that wait in this turn. */
static void queue_add_in_turn(struct queue *q, struct pool_job *job)
{
    struct pool_job *other;
    if (TAILQ_EMPTY(&q->jobs))
        queue_begin_turn(q);
    job->turn = q->turn + has_begun(q, job->client);
    TAILQ_FOREACH(other, &q->jobs, link)
        if (other->client == job->client)
            job->turn = other->turn + 1;
    TAILQ_FOREACH_REVERSE(other, &q->jobs, job_list, link)
        if (other->turn <= job->turn)
            break;
    if (other)
        TAILQ_INSERT_AFTER(&q->jobs, other, job, link);
    else
        TAILQ_INSERT_HEAD(&q->jobs, job, link);
}

/* False when it is not there. */
static bool queue_remove(struct queue *q, struct pool_job *job)
{
    struct pool_job *other;
    TAILQ_FOREACH(other, &q->jobs, link)
        if (other == job)
            break;
    if (other)
        TAILQ_REMOVE(&q->jobs, job, link);
    return other;
}

static struct pool_job *remove_first(struct job_list *jobs)
{
    struct pool_job *job = TAILQ_FIRST(jobs);
    if (job)
        TAILQ_REMOVE(jobs, job, link);
    return job;
}

static struct pool_job *queue_take_in_turn(struct queue *q)
{
    struct pool_job *job = remove_first(&q->jobs);
    if (!job)
        return NULL;
    if (job->turn != q->turn)
        q->n_begun = 0;
    q->turn = job->turn;
    if (q->n_begun < TURN_CLIENTS)
        q->begun[q->n_begun++] = job->client;
    assert(q->n_running < POOL_MAX_THREADS);
    q->running[q->n_running++] = job->client;
    return job;
}

/* A job of this client, which queue_take_in_turn() returned, has run. */
static void queue_ran(struct queue *q, uint64_t client)
{
    unsigned i = 0;
    while (i < q->n_running && q->running[i] != client)
        i++;
    assert(i < q->n_running); /* else another client's job would count as its own */
    q->running[i] = q->running[--q->n_running];
}

/* --- the threads --- */

/* Linux keeps a nice value per thread. */
static void give_way(enum pool_class class)
{
    static const int nice_of[] = {
        [POOL_PROMPT] = 5, [POOL_LONG_PROMPT] = 7, [POOL_REPLY] = 5, [POOL_TEXT] = 10, [POOL_FILES] = 5};
    setpriority(PRIO_PROCESS, (id_t)gettid(), nice_of[class]);
}

/* The next job of a class, or NULL at the end. Called and left with the lock held. */
static struct pool_job *wait_for_job(struct pool *p, enum pool_class class)
{
    struct pool_job *job;
    while (!(job = queue_take_in_turn(&p->waiting[class])) && !p->closing)
        pthread_cond_wait(&p->came[class], &p->lock);
    return job;
}

static void *work(void *arg)
{
    const struct worker *w = arg;
    struct pool *p = w->pool;
    struct pool_job *job;
    give_way(w->class);
    pthread_mutex_lock(&p->lock);
    while ((job = wait_for_job(p, w->class))) {
        pthread_mutex_unlock(&p->lock);
        job->run(job);
        pthread_mutex_lock(&p->lock);
        queue_ran(&p->waiting[w->class], job->client);
        TAILQ_INSERT_TAIL(&p->done, job, link);
        pthread_mutex_unlock(&p->lock);
        p->wake(p->context);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static int start(struct pool *p, enum pool_class class, struct error *err)
{
    struct worker *w = &p->workers[p->n_workers];
    *w = (struct worker){.pool = p, .class = class};
    if (pthread_create(&w->thread, NULL, work, w) != 0)
        return error_set(err, -ENOMEM, "cannot start the pool's threads");
    p->n_workers++;
    return 0;
}

/* --- life --- */

int pool_open(struct pool **out, void (*wake)(void *context), void *context, struct error *err)
{
    struct pool *p = calloc(1, sizeof *p);
    int rc = p ? 0 : error_set(err, -ENOMEM, "out of memory"), n = 1;
    if (!p)
        return rc;
    p->wake = wake;
    p->context = context;
    pthread_mutex_init(&p->lock, NULL);
    TAILQ_INIT(&p->done);
    for (int i = 0; i < POOL_N_CLASSES; i++) {
        pthread_cond_init(&p->came[i], NULL);
        TAILQ_INIT(&p->waiting[i].jobs);
    }
    if (sysconf(_SC_NPROCESSORS_ONLN) > POOL_FEW_CORES)
        n = POOL_MAX_THREADS;
    for (int i = 0; i < POOL_N_CLASSES * n && rc == 0; i++)
        rc = start(p, (enum pool_class)(i / n), err);
    if (rc < 0) {
        pool_close(p);
        return rc;
    }
    *out = p;
    return 0;
}

void pool_add(struct pool *p, enum pool_class class, struct pool_job *job)
{
    pthread_mutex_lock(&p->lock);
    job->class = class;
    queue_add_in_turn(&p->waiting[class], job);
    pthread_cond_signal(&p->came[class]);
    pthread_mutex_unlock(&p->lock);
}

void pool_cancel(struct pool *p, struct pool_job *job)
{
    pthread_mutex_lock(&p->lock);
    bool waited = queue_remove(&p->waiting[job->class], job);
    if (waited)
        TAILQ_INSERT_TAIL(&p->done, job, link);
    pthread_mutex_unlock(&p->lock);
    if (waited)
        p->wake(p->context);
}

struct pool_job *pool_next(struct pool *p)
{
    pthread_mutex_lock(&p->lock);
    struct pool_job *job = remove_first(&p->done);
    pthread_mutex_unlock(&p->lock);
    return job;
}

void pool_close(struct pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    for (int i = 0; i < POOL_N_CLASSES; i++)
        pthread_cond_broadcast(&p->came[i]);
    pthread_mutex_unlock(&p->lock);
    for (unsigned i = 0; i < p->n_workers; i++)
        pthread_join(p->workers[i].thread, NULL);
    for (int i = 0; i < POOL_N_CLASSES; i++)
        pthread_cond_destroy(&p->came[i]);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
