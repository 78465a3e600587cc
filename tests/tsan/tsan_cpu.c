/* The team and the cpu backend under ThreadSanitizer: dealing and barriers, two steps in flight, decode and
 * prefill rows together, and info() from another thread all the while. */
#include "backend/backend.h"
#include "base/team.h"
#include "backend/executor.h"
#include "model/model.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *what)
{
    fprintf(stderr, "tsan_cpu: %s\n", what);
    exit(1);
}

/* --- the team: plain variables that only barriers and deals protect --- */

#define UNITS 200

struct sums {
    struct team *team;
    uint32_t taken[UNITS]; /* by the member that got the unit */
    uint32_t seen[16];
};

static void deal_and_look(void *context, uint32_t member)
{
    struct sums *s = context;
    for (uint32_t round = 1; round <= 200; round++) {
        struct team_deal deal = team_deal(s->team, member, UNITS, 1 + round % 9);
        for (uint32_t first, last; team_next(&deal, &first, &last);)
            for (uint32_t i = first; i < last; i++)
                s->taken[i]++;
        team_barrier(s->team, member);
        for (uint32_t i = 0; i < UNITS; i++)
            s->seen[member] += s->taken[i];
        team_barrier(s->team, member);
    }
}

static void hammer_team(uint32_t n_threads)
{
    static struct sums s;
    memset(&s, 0, sizeof s);
    if (team_open(&s.team, n_threads, NULL) < 0)
        fail("no team");
    for (uint32_t run = 0; run < 5; run++)
        team_run(s.team, deal_and_look, &s);
    team_close(s.team);
    for (uint32_t i = 0; i < UNITS; i++)
        if (s.taken[i] != 5 * 200)
            fail("a unit was done more or less than once a round");
    for (uint32_t i = 1; i < n_threads; i++)
        if (s.seen[i] != s.seen[0])
            fail("members saw different sums");
}

/* --- the backend --- */

static atomic_bool stop;

static void *watch(void *context)
{
    struct backend_info info;
    uint64_t steps = 0;
    while (!atomic_load(&stop)) {
        executor_info(context, &info);
        if (info.steps < steps || info.launches != 1)
            fail("info() went backwards");
        steps = info.steps;
    }
    return NULL;
}

static void drain(struct executor *x, uint64_t until)
{
    struct step_result results[STEP_MAX_LOGITS];
    uint64_t done = 0;
    while (done < until)
        if (executor_advance(x, results, STEP_MAX_LOGITS, &done, NULL) < 0)
            fail("poll");
}

/* Slot 0 decodes, slot 1 takes its prompt in chunks of `chunk`; two steps are always in flight. */
static void hammer_backend(struct executor *x, uint32_t chunk, uint32_t n_steps)
{
    struct step *s = calloc(1, sizeof *s);
    for (uint32_t i = 0; i < 8; i++)
        s->edits[s->n_edits++] = (struct step_table_edit){.slot = i / 4, .index = i % 4, .page = 7 - i};
    for (uint32_t i = 0; i < n_steps; i++) {
        s->id++;
        s->rows[0] = (struct step_row){.pos = i, .token = i ? STEP_LAST_SAMPLED : 3};
        s->logits[0] = (struct step_logit){.target = -1, .flags = STEP_LOGPROB, .n_top = 3};
        s->n_rows = s->n_logits = 1;
        for (uint32_t j = 0; j < chunk; j++)
            s->rows[s->n_rows++] = (struct step_row){
                .slot = 1, .pos = i * chunk + j, .token = (int32_t)(i + j), .logit_index = STEP_NO_LOGITS};
        int rc;
        while ((rc = executor_submit(x, s, NULL)) == -EAGAIN)
            drain(x, s->id - 2);
        if (rc < 0)
            fail("submit");
        s->n_edits = 0;
    }
    drain(x, s->id);
    free(s);
}

static void run_backend(uint32_t chunk, uint32_t n_threads, const char *isa, uint32_t n_steps)
{
    struct model *m = NULL;
    struct executor *x = NULL;
    struct error err = {0};
    struct backend_config cfg = {
        .n_threads = n_threads, .isa = isa, .n_slots = 2, .n_ctx = 256, .steps_in_flight = 2};
    if (model_open(&m, HEARTH_TEST_DATA "/tiny-qwen3-s11-q8_0.gguf", &err) < 0 ||
        executor_open(&x, EXECUTOR_PERSISTENT, &cpu_backend, &cfg, m, &err) < 0)
        fail(err.text);
    pthread_t watcher;
    atomic_store(&stop, false);
    if (pthread_create(&watcher, NULL, watch, x))
        fail("no thread");
    hammer_backend(x, chunk, n_steps);
    atomic_store(&stop, true);
    pthread_join(watcher, NULL);
    executor_close(x);
    model_close(m);
}

int main(void)
{
    hammer_team(1);
    hammer_team(2);
    hammer_team(5);
    /* The SIMD products may come from a tree without ThreadSanitizer: the scalar ones show it their accesses.
     */
    run_backend(0, 3, "auto", 30);
    run_backend(7, 3, "auto", 30);
    run_backend(7, 3, "scalar", 5);
    puts("tsan_cpu: done");
    return 0;
}
