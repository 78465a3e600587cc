/* engine.c - the engine's thread: its rounds, open and close. */
#include "engine_spill.h"
#include "engine_speculate.h"
#include "model/program.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_IDLE_NS 500000000u /* before the executor is asked what it would do with idleness */

/* ---- the thread ---- */

static bool is_idle(const struct engine *e)
{
    return e->n_live == 0 && e->queue.n == 0 && e->n_flights == 0;
}

/* Lends an idle executor this thread once it has been idle for as long as it asked for. */
static void use_idleness(struct engine *e, bool idle)
{
    uint64_t now = clock_ns();
    if (!idle || e->faulted || e->closing_ns || e->idle_wait_ns == UINT64_MAX) {
        e->idle_at_ns = UINT64_MAX;
        return;
    }
    if (now >= e->idle_at_ns && !engine_has_mail(e)) {
        e->idle_wait_ns = executor_idle(e->x, engine_has_mail, e);
        now = clock_ns();
        e->idle_at_ns = UINT64_MAX;
    }
    if (e->idle_at_ns == UINT64_MAX && e->idle_wait_ns < UINT64_MAX - now)
        e->idle_at_ns = now + e->idle_wait_ns;
}

/* Collects what other threads have posted; sleeps first when there is no work. */
static struct engine_news wait_for_news(struct engine *e)
{
    bool idle = is_idle(e);
    use_idleness(e, idle);
    bool sleep = e->n_flights == 0 && (idle || engine_disk_waits(e)) && !engine_disk_wants_step(e);
    struct engine_news news = engine_wait(e, idle, sleep);
    if (news.slept)
        engine_draft_woken(e, clock_ns());
    return news;
}

static void *engine_main(void *arg)
{
    struct engine *e = arg;
    pthread_setname_np(pthread_self(), "engine");
    for (;;) {
        struct engine_news news = wait_for_news(e);
        uint64_t now = clock_ns();
        atomic_store_explicit(&e->heartbeat_ns, now, memory_order_relaxed);
        engine_enqueue(e, news.inbox);
        if (news.closing && !e->closing_ns)
            e->closing_ns = now;
        if (news.closing)
            engine_end_all(e, ENGINE_CANCELLED, now);
        else if (news.cancelling)
            engine_end_cancelled(e, now);
        if (e->faulted)
            engine_end_all(e, ENGINE_FAULT, now);
        engine_end_due(e, now);
        engine_disk_move(e, now);
        engine_admit(e, now);
        engine_publish_stats(e);
        if (!e->faulted)
            engine_take_drawn(e);
        while (!e->faulted && e->n_flights < e->cfg.steps_in_flight && !engine_draft_holds(e) &&
               !engine_constrain_holds(e) && engine_submit_step(e))
            ;
        engine_wake(e); /* requests that were cancelled or have started are reported before the step */
        if (e->n_flights > 0 || (news.pinged && !e->faulted)) /* a ping checks an idle device, too */
            engine_advance(e);
        engine_publish_stats(e);
        engine_wake(e);
        if (news.closing && e->n_flights == 0 && !engine_disk_lingers(e, now)) {
            if (!e->faulted)
                executor_park(e->x); /* the executor may stay open without an engine */
            return NULL;
        }
    }
}

/* ---- open and close ---- */

uint32_t engine_n_ctx(const struct engine *e)
{
    return e->n_ctx;
}

static int configure(struct engine *e, const struct engine_config *cfg, struct error *err)
{
    struct backend_info info;
    executor_info(e->x, &info);
    if (cfg->n_slots == 0 || cfg->n_slots > STEP_MAX_SLOTS)
        return error_set(err, -EINVAL, "slots %u: 1 to %d", cfg->n_slots, STEP_MAX_SLOTS);
    if (cfg->steps_in_flight < 1 || cfg->steps_in_flight > MAX_FLIGHTS)
        return error_set(err, -EINVAL, "steps_in_flight must be 1 or 2 (got %u)", cfg->steps_in_flight);
    if (info.n_pages == 0 || info.max_rows == 0)
        return error_set(err, -EINVAL, "backend %s has no KV pages", info.name);
    e->cfg = *cfg;
    e->n_pages = info.n_pages;
    e->shares_pages = info.shares_pages;
    e->recurrent = info.recurrent;
    e->n_snapshots = info.n_snapshots;
    e->cfg.prefix_cache = cfg->prefix_cache && info.shares_pages;
    e->cfg.speculation = info.recurrent && !info.n_snapshots ? ENGINE_SPECULATE_OFF : cfg->speculation;
    if (cfg->step_ms == 0)
        e->cfg.step_ms = info.default_step_ms;
    uint64_t room = (uint64_t)info.n_pages * KV_PAGE_TOKENS;
    e->n_ctx = cfg->n_ctx < room ? cfg->n_ctx : (uint32_t)room;
    if (e->n_ctx < 2)
        return error_set(err, -EINVAL, "n_ctx %u: at least 2, a token of prompt and one of text", e->n_ctx);
    e->max_rows = info.max_rows < STEP_MAX_ROWS ? info.max_rows : STEP_MAX_ROWS;
    assert(info.rows_together > 0);
    e->rows_together =
        info.rows_together < ENGINE_PREFILL_BESIDE ? info.rows_together : ENGINE_PREFILL_BESIDE;
    e->rows_of_a_pass = info.rows_of_a_pass < e->max_rows ? info.rows_of_a_pass : e->max_rows;
    e->n_vocab = executor_program(e->x) ? executor_program(e->x)->n_vocab : 0;
    e->n_windows = info.n_windows;
    e->kv_bytes =
        info.n_pages * (kv_page_size(&info.kv) - info.window_bytes) + info.n_windows * info.window_bytes;
    uint64_t windows =
        (uint64_t)cfg->n_slots * kv_windows_of(info.window, cfg->steps_in_flight * e->max_rows);
    if (info.n_windows && info.n_windows < windows)
        return error_set(err, -EINVAL, "backend %s has %u window pages, %u slots need %llu", info.name,
                         info.n_windows, cfg->n_slots, (unsigned long long)windows);
    e->pages_total = info.n_pages;
    e->last_id = e->retired = info.steps; /* an earlier engine may have used the executor */
    struct kv_cache_config kv = {
        .n_pages = info.n_pages,
        .n_seqs = cfg->n_slots,
        .n_ctx = e->n_ctx,
        .max_hit = ENGINE_MAX_HIT,
        .n_snapshots = info.n_snapshots,
        .n_windows = info.n_windows,
        .window = info.window,
    };
    int rc = engine_disk_open(e, err);
    kv.keep = e->disk != NULL;
    return rc < 0 ? rc : kv_cache_open(&e->kv, &kv, err);
}

static int alloc_memory(struct engine *e, struct error *err)
{
    e->seqs = calloc(e->cfg.n_slots, sizeof *e->seqs);
    e->order = calloc(e->cfg.n_slots, sizeof *e->order);
    e->end_tokens = calloc(e->cfg.n_end_tokens + 1, sizeof *e->end_tokens);
    e->hidden = calloc(engine_n_embedding(e) + 1, sizeof *e->hidden);
    if (!e->seqs || !e->order || !e->end_tokens || !e->hidden)
        return error_set(err, -ENOMEM, "no memory for %u slots", e->cfg.n_slots);
    if (e->cfg.n_end_tokens)
        memcpy(e->end_tokens, e->cfg.end_tokens, e->cfg.n_end_tokens * sizeof *e->end_tokens);
    e->cfg.end_tokens = e->end_tokens;
    int rc = engine_constrain_open(e, err);
    if (rc == 0)
        rc = engine_states_open(e, err);
    if (rc == 0)
        rc = engine_sample_open(e, err);
    if (rc == 0)
        rc = engine_times_open(e, err);
    if (rc < 0)
        return rc;
    return engine_draft_open(e, err);
}

/* Blocks all signals in the new thread: the event loop handles them. */
static int start_thread(struct engine *e, struct error *err)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&e->thread, NULL, engine_main, e);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc)
        return error_set(err, -rc, "engine thread: %s", strerror(rc));
    return 0;
}

static void engine_free(struct engine *e)
{
    engine_disk_close(e); /* first: the disk's thread wakes the engine */
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->wakeup);
    engine_constrain_close(e);
    engine_sample_close(e);
    engine_times_close(e);
    engine_draft_close(e);
    engine_states_close(e);
    kv_cache_close(e->kv);
    free(e->seqs);
    free(e->order);
    free(e->hidden);
    free(e->end_tokens);
    free(e);
}

int engine_open(struct engine **out, struct executor *x, const struct engine_config *cfg, struct error *err)
{
    struct engine *e = calloc(1, sizeof *e);
    if (!e)
        return error_set(err, -ENOMEM, "no memory for the engine");
    e->x = x;
    STAILQ_INIT(&e->inbox);
    STAILQ_INIT(&e->ready);
    engine_queue_open(&e->queue);
    e->next_deadline = UINT64_MAX;
    e->idle_at_ns = UINT64_MAX;
    e->idle_wait_ns = FIRST_IDLE_NS;
    e->opened_ns = clock_ns();
    e->heartbeat_ns = e->opened_ns;
    e->idle = true;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->wakeup, NULL);
    int rc = configure(e, cfg, err);
    if (rc == 0)
        rc = alloc_memory(e, err);
    if (rc == 0)
        rc = start_thread(e, err);
    if (rc < 0) {
        engine_free(e);
        return rc;
    }
    *out = e;
    return 0;
}

void engine_close(struct engine *e)
{
    if (!e)
        return;
    engine_ask_to_close(e);
    pthread_join(e->thread, NULL);
    while (engine_next(e))
        ;
    engine_free(e);
}
