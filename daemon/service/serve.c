/* hearthd serve: the life of the daemon. Bind, load beside the loop, warm up, say READY, watch, drain. */
#include "backend/backend.h"
#include "base/exit_code.h"
#include "serve.h"
#include "config/config.h"
#include "engine/engine.h"
#include "backend/executor.h"
#include "close_watch.h"
#include "service/models/load_notice.h"
#include "base/log.h"
#include "base/memory.h"
#include "service/models/model_file.h"
#include "base/notify.h"
#include "serve_text.h"
#include "server.h"
#include "service/models/model_set.h"
#include "service/models/model_swap.h"
#include "base/watchdog.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#define PROGRESS_MS 100
/* Requests have these looks to end after the drain; then the process exits. Looks are counted, not time:
 * a process that was stopped and goes on has them all. */
#define GRACE_LOOKS   4
#define GRACE_LOOK_MS 500
/* systemd waits this long after the last sign of progress. */
#define EXTEND "EXTEND_TIMEOUT_USEC=30000000"

enum phase {
    PHASE_LOADING,
    PHASE_READY,
    PHASE_DRAINING,
    PHASE_CLOSING, /* server, models and swap are being freed: no callback may use them */
};

struct serve {
    struct config *cfg;
    struct config as_read;         /* *cfg before it was fitted to the machine; its strings are cfg's */
    struct config_arguments *args; /* SIGHUP reads them again */
    char path[PATH_MAX];
    struct notify notify;
    uv_loop_t loop;
    uv_signal_t sigterm, sigint, sighup;
    uv_timer_t tick;  /* progress while loading, watchdog afterwards, progress while closing */
    uv_timer_t guard; /* ends a process whose requests do not end */
    uint32_t n_guard_looks;
    struct server *server;
    struct swap *swap;     /* of one model; or NULL */
    struct model_set *set; /* of several; or NULL */
    struct watch {
        struct loader *loader; /* the loader whose progress it has seen */
        struct watchdog dog;
        uint32_t n_unsettled;  /* choices of its tuning that are to be measured again, as logged */
    } watches[MODEL_SET_MOST]; /* of each model that is loaded: see loaded() */
    enum phase phase;
    struct load_notice notice;
    struct close_watch closing;
    bool inherited; /* sockets came from the service manager */
    int exit_code;
};

/* ---- the models ---- */

static void stop_models(struct serve *s)
{
    if (s->set)
        model_set_stop(s->set);
    else
        swap_stop(s->swap);
}

static bool close_models(struct serve *s)
{
    return s->set ? model_set_close(s->set) : swap_close(s->swap);
}

static void view_models(const struct serve *s, struct swap_view *out)
{
    if (s->set)
        model_set_view(s->set, out);
    else
        swap_view(s->swap, out);
}

/* The model loaded at a place; NULL: none. Without a set the first place has the model that serves, the
 * second the one that is being left. */
static struct loader *loaded(const struct serve *s, uint32_t place)
{
    if (s->set)
        return model_set_loader(s->set, place);
    return place == 0 ? swap_current(s->swap) : place == 1 ? swap_leaving(s->swap) : NULL;
}

/* ---- ending ---- */

static void on_drained(void *context)
{
    struct serve *s = context;

    uv_stop(&s->loop);
}

static void on_guard(uv_timer_t *timer)
{
    struct serve *s = timer->data;

    if (s->n_guard_looks++ < GRACE_LOOKS)
        return;
    log_error("requests did not finish in time: exiting");
    _exit(s->exit_code);
}

static void drain(struct serve *s, uint64_t timeout_ms)
{
    s->phase = PHASE_DRAINING;
    notify_state(&s->notify, "STOPPING=1\n" EXTEND, "Draining, %u running", server_load(s->server).running);
    s->n_guard_looks = 0;
    uv_timer_start(&s->guard, on_guard, timeout_ms, GRACE_LOOK_MS);
    server_drain(s->server, timeout_ms, on_drained, s);
}

static void on_stop_signal(uv_signal_t *handle, int number)
{
    struct serve *s = handle->data;
    const char *name = number == SIGTERM ? "SIGTERM" : "SIGINT";

    if (s->phase == PHASE_LOADING) {
        log_info("%s while loading: exiting", name);
        uv_stop(&s->loop);
    } else if (s->phase == PHASE_READY) {
        struct server_load load = server_load(s->server);
        log_info(
            "%s: draining, %u running, %u waiting and refused, for at most %u ms (a second signal cancels)",
            name, load.running, load.waiting, s->cfg->drain_timeout_ms);
        stop_models(s);
        drain(s, s->cfg->drain_timeout_ms);
    } else if (s->phase == PHASE_DRAINING) {
        log_info("%s again: cancelling running requests", name);
        drain(s, 0);
    } else {
        log_info("%s again: the model is being closed", name);
    }
}

/* NULL is fine. */
static void log_lines(const char *text)
{
    while (text && *text) {
        int n = (int)strcspn(text, "\n");
        log_error("%.*s", n, text);
        text += n + (text[n] == '\n');
    }
}

/* The decoder is gone: what runs gets an error, the process ends, the service manager starts it again. */
static void give_up(struct serve *s, const char *words)
{
    log_error("%s", words);
    s->exit_code = EXIT_FAULT;
    server_fail(s->server, words);
    drain(s, 0);
    notify_status(&s->notify, "", "%s", words);
}

static void give_up_silent(struct serve *s, const struct watchdog *dog, enum watchdog_verdict verdict)
{
    bool decoder = verdict == WATCHDOG_DECODER_STALLED;
    char words[96];

    snprintf(words, sizeof words, "the %s is not responding: no heartbeat for %llu ms",
             decoder ? "decoder" : "engine thread",
             (unsigned long long)(decoder ? dog->decoder_silent_ns : dog->engine_silent_ns) / 1000000);
    give_up(s, words);
}

/* ---- watching ---- */

static void send_status(struct serve *s, const struct engine_stats *stats)
{
    struct swap_view v;

    view_models(s, &v);
    if (v.model)
        notify_status(&s->notify, "", "%u running, %u waiting, loading %s, %.0f %%", stats->running,
                      stats->waiting, v.model, v.progress * 100);
    else if (v.suspended)
        notify_status(&s->notify, "", "Suspended, %u running", stats->running);
    else
        notify_status(&s->notify, "", "%u running, %u waiting, %.0f tokens/s", stats->running, stats->waiting,
                      stats->tokens_per_s);
}

/* Logs that other work disturbed the tuning at load, and that it was made up for. */
static void say_tuning(struct watch *w, const struct backend_tuning *t)
{
    uint32_t n = t ? t->n_unsettled : 0;

    if (n && !w->n_unsettled)
        log_info("cpu_tuning: other work on this machine disturbed %u of %u choices; they are measured again "
                 "while no request runs",
                 n, t->n_choices);
    else if (!n && w->n_unsettled)
        log_info("cpu_tuning: %u choices were measured again, all are settled", t->n_again);
    w->n_unsettled = n;
}

/* Checks that engine and decoder live, and adds the engine's figures to *sum; else the process is
 * ending. */
static bool look_at(struct serve *s, struct watch *w, struct loader *l, struct engine_stats *sum)
{
    struct engine_stats stats;
    struct backend_info info;

    if (!l)
        return true;
    if (w->loader != l)
        *w = (struct watch){.loader = l, .dog.limit_ns = s->cfg->watchdog_ms * 1000000ull};
    engine_stats(l->engine, &stats);
    executor_info(l->runtime.executor, &info);
    say_tuning(w, info.tuning);
    if (stats.faulted) {
        struct error err = {0};
        engine_fault(l->engine, &err);
        log_lines(info.account);
        give_up(s, err.text);
        return false;
    }
    struct watchdog_signs signs = {.now_ns = uv_hrtime(),
                                   .engine_ns = stats.heartbeat_ns,
                                   .decoder_ns = info.heartbeat_ns,
                                   .decoder_idle = info.state != BACKEND_RUNNING};
    enum watchdog_verdict verdict = watchdog_check(&w->dog, &signs);
    if (verdict != WATCHDOG_ALIVE) {
        give_up_silent(s, &w->dog, verdict);
        return false;
    }
    engine_ping(l->engine);
    sum->running += stats.running;
    sum->waiting += stats.waiting;
    sum->tokens_per_s += stats.tokens_per_s;
    return true;
}

/* While no model is loaded, watches the event loop alone. */
static void on_watch(uv_timer_t *timer)
{
    struct serve *s = timer->data;
    struct engine_stats stats = {0};

    if (s->exit_code == EXIT_FAULT)
        return;
    for (uint32_t i = 0; i < MODEL_SET_MOST; i++)
        if (!look_at(s, &s->watches[i], loaded(s, i), &stats))
            return;
    notify_send(&s->notify, "WATCHDOG=1");
    if (s->phase == PHASE_READY)
        send_status(s, &stats);
    else if (s->phase == PHASE_DRAINING) /* what keeps it from its end lives, and on_guard() bounds it */
        notify_status(&s->notify, EXTEND, "Draining, %u running", stats.running);
}

/* Often enough for both watchdogs, and never more than once in 50 ms. */
static uint64_t watch_interval_ms(const struct serve *s)
{
    uint64_t ms = 1000;

    if (s->cfg->watchdog_ms && s->cfg->watchdog_ms / 5 < ms)
        ms = s->cfg->watchdog_ms / 5;
    if (s->notify.watchdog_us && s->notify.watchdog_us / 2000 < ms)
        ms = s->notify.watchdog_us / 2000;
    return ms > 50 ? ms : 50;
}

/* ---- loading ---- */

static void on_progress(uv_timer_t *timer)
{
    struct serve *s = timer->data;
    struct swap_view v;

    view_models(s, &v);
    if (s->cfg->log_format == LOG_TEXT)
        serve_show_progress(v.progress);
    if (load_notice_due(&s->notice, v.progress, v.moves, uv_hrtime()))
        notify_status(&s->notify, EXTEND, "Loading %s, %u %%", s->set ? model_set_first(s->set) : s->path,
                      s->notice.percent);
}

static void say_chat_format(const struct serve *s)
{
    bool unread;
    const char *format = server_chat_format(s->server, &unread);

    if (unread)
        log_warn("chat format: %s; the chat template takes tools, but its format of calls is not known: "
                 "calls stay text "
                 "(chat_format sets a format)",
                 format);
    else
        log_info("chat format: %s", format);
}

static void say_memory(const struct loader *l)
{
    struct backend_info info;
    char line[256];

    executor_info(l->runtime.executor, &info);
    serve_memory_line(&info, engine_draw_bytes(l->engine), line, sizeof line);
    log_info("%s", line);
}

static void start_line(struct serve *s, char *line, size_t room)
{
    struct loader *l = loaded(s, 0);
    struct serve_facts facts = {.where = server_where(s->server),
                                .runtime = &l->runtime,
                                .slots = s->cfg->slots,
                                .n_ctx = engine_n_ctx(l->engine)};

    if (l->runtime.why[0])
        log_info("%s", l->runtime.why);
    serve_start_line(&facts, line, room);
    log_info("%s", line);
    say_memory(l);
    say_chat_format(s);
}

/* --- models that requests may name --- */
static void say_names(const struct serve *s)
{
    char names[1024];

    model_set_names(s->set, names, sizeof names);
    log_info("models in %s: %s", s->cfg->models, names);
}

static void say_ready(struct serve *s)
{
    char line[512], curl[512];

    start_line(s, line, sizeof line);
    if (s->set)
        say_names(s);
    serve_curl_line(server_where(s->server), s->cfg->api_keys.n > 0 || s->cfg->api_keys_file[0], curl,
                    sizeof curl);
    log_info("%s", curl);
    notify_state(&s->notify, "READY=1", "%s", line);
}

/* The first model, or another in its place. */
static void on_serves(void *context)
{
    struct serve *s = context;
    char line[512];

    if (s->phase != PHASE_LOADING) {
        start_line(s, line, sizeof line);
        return;
    }
    uv_timer_stop(&s->tick);
    serve_hide_progress();
    s->phase = PHASE_READY;
    say_ready(s);
    uv_timer_start(&s->tick, on_watch, 0, watch_interval_ms(s));
}

/* No model, and none to go back to. At start the exit code says what is wrong with the one that is
 * configured; later a new start, with that one, may well help. */
static void on_lost(void *context, const struct error *err)
{
    struct serve *s = context;

    serve_hide_progress();
    s->exit_code = exit_fail(err);
    if (s->phase != PHASE_LOADING)
        s->exit_code = EXIT_INTERNAL;
    notify_status(&s->notify, "", "%s", err->text);
    uv_stop(&s->loop);
}

/* ---- libuv's memory ---- */

/* If libuv finds no memory for a table of its own, it ends the process without a message. At start we check
 * first; later the tables exist (server.c). */
static bool starts;

static void *checked(void *p, size_t size)
{
    if (p || !size || !starts)
        return p;
    log_error("out of memory");
    _exit(EXIT_MEMORY);
}

static void *checked_malloc(size_t size)
{
    return checked(malloc(size), size);
}

static void *checked_calloc(size_t n, size_t size)
{
    return checked(calloc(n, size), n * size);
}

static void *checked_realloc(void *p, size_t size)
{
    return checked(realloc(p, size), size);
}

/* ---- starting ---- */

/* A key that was changed for nothing would go unnoticed until the next restart. */
static void warn_of_changes(struct serve *s, const struct config *again)
{
    char names[1024];

    s->as_read.log_level = again->log_level;
    config_changes(&s->as_read, again, names, sizeof names);
    if (*names)
        log_warn("SIGHUP: changed, and in force only after a restart: %s", names);
}

static void on_reload(uv_signal_t *handle, int number)
{
    struct serve *s = handle->data;
    struct config again;
    struct error err = {0};

    (void)number;
    if (s->phase == PHASE_CLOSING)
        return;
    if (config_load(&again, s->args, &err) < 0) {
        log_error("SIGHUP: %s; nothing was changed", err.text);
    } else {
        log_info("SIGHUP: log_level is now %s; reading key files and certificate again",
                 config_log_level_name(again.log_level));
        warn_of_changes(s, &again);
        log_set_level((enum log_level)again.log_level);
        server_reload(s->server);
    }
    config_free(&again);
}

/* systemd's soft limit is 1,024 descriptors, which is less than max_connections needs. If the hard limit is
 * too low as well, connections that cannot be accepted would keep health from being answered: there may be
 * fewer, and with room for none the start is refused. */
static int fit_descriptor_limit(struct config *cfg, struct error *err)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return 0;
    if (limit.rlim_cur < limit.rlim_max) {
        rlim_t soft = limit.rlim_cur;
        limit.rlim_cur = limit.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
            limit.rlim_cur = soft;
    }
    uint32_t most = server_connections_within(limit.rlim_cur);
    if (!most)
        return error_set(err, -EINVAL,
                         "this process may open at most %llu files and sockets, which is too few "
                         "(LimitNOFILE, ulimit -Hn)",
                         (unsigned long long)limit.rlim_cur);
    if (cfg->max_connections <= most)
        return 0;
    log_warn("max_connections is %u, not %u: this process may open at most %llu files and sockets "
             "(LimitNOFILE, ulimit -Hn)",
             most, cfg->max_connections, (unsigned long long)limit.rlim_cur);
    cfg->max_connections = most;
    return 0;
}

static int open_loop(struct serve *s, struct error *err)
{
    uv_replace_allocator(checked_malloc, checked_realloc, checked_calloc, free);
    int rc = uv_loop_init(&s->loop);

    if (rc < 0)
        return error_set(err, rc, "event loop: %s", uv_strerror(rc));
    struct {
        uv_signal_t *handle;
        int number;
        uv_signal_cb callback;
    } signals[] = {{&s->sigterm, SIGTERM, on_stop_signal},
                   {&s->sigint, SIGINT, on_stop_signal},
                   {&s->sighup, SIGHUP, on_reload}};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        uv_signal_init(&s->loop, signals[i].handle);
        signals[i].handle->data = s;
        uv_signal_start(signals[i].handle, signals[i].callback, signals[i].number);
    }
    uv_timer_init(&s->loop, &s->tick);
    uv_timer_init(&s->loop, &s->guard);
    s->tick.data = s->guard.data = s;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of its writer */
    signal(SIGUSR1, SIG_IGN); /* scripts send these two to daemons to rotate a log or to hear of them: */
    signal(SIGUSR2, SIG_IGN); /* one that has no use for them must not end of it */
    return 0;
}

static int bind_early(struct serve *s, struct error *err)
{
    int fds[64], first = 0, n = notify_listen_fds(&first, err);

    if (n < 0)
        return n;
    for (int i = 0; i < n; i++)
        fds[i] = first + i;
    s->inherited = n > 0;
    if (n > 0)
        log_info("%d socket%s from the service manager replace%s host, port and unix_socket", n,
                 n == 1 ? "" : "s", n == 1 ? "s" : "");
    if (n > 0 && s->cfg->tls_port)
        log_warn("nothing listens on tls_port %u: sockets from the service manager speak HTTP without TLS",
                 s->cfg->tls_port);
    struct error inner = {0};
    int rc = server_open(&s->server, &s->loop, s->cfg, fds, n, &inner);
    if (rc < 0) /* an address that cannot be used is an error of configuration, for every errno */
        return error_set(err, rc == -ENOMEM || rc == -EADDRINUSE ? rc : -EINVAL, "%s", inner.text);
    if (server_warning(s->server)[0])
        log_warn("%s", server_warning(s->server));
    return 0;
}

static int open_set(struct serve *s, struct error *err)
{
    struct model_set_options options = {.loop = &s->loop,
                                        .cfg = s->cfg,
                                        .server = s->server,
                                        .serves = on_serves,
                                        .lost = on_lost,
                                        .context = s};

    return model_set_open(&s->set, &options, err);
}

static int open_models(struct serve *s, struct error *err)
{
    struct swap_options options = {.loop = &s->loop,
                                   .cfg = s->cfg,
                                   .server = s->server,
                                   .serves = on_serves,
                                   .lost = on_lost,
                                   .context = s};
    return s->cfg->models[0] ? open_set(s, err) : swap_open(&s->swap, &options, s->path, err);
}

/* LimitCORE=0 alone would not do: the kernel pipes cores to a program whatever the limit. Before keys are
 * read. */
static void forbid_cores(void)
{
    memory_keep_pagemap();
    if (prctl(PR_SET_DUMPABLE, 0) < 0)
        log_warn("a crash may leave a core with keys and prompts: PR_SET_DUMPABLE: %s", strerror(errno));
}

static int start(struct serve *s, struct error *err)
{
    struct error inner = {0};

    if (notify_open(&s->notify, &inner) < 0)
        log_warn("%s; the service manager is not notified", inner.text);
    if (!s->cfg->core_dumps)
        forbid_cores();
    int rc = fit_descriptor_limit(s->cfg, err);
    runtime_prepare(s->cfg);
    if (rc == 0 && !s->cfg->models[0])
        rc = model_file_find(s->path, s->cfg->model, err);
    starts = true;
    if (rc == 0)
        rc = open_loop(s, err);
    if (rc == 0)
        rc = bind_early(s, err);
    starts = false;
    if (rc == 0)
        rc = open_models(s, err);
    if (rc == 0)
        rc = uv_timer_start(&s->tick, on_progress, 0, PROGRESS_MS);
    return rc;
}

/* ---- the command ---- */

/* Not the signals': that would bring their default actions back, and one that comes now would end the
 * process. */
static void close_handle(uv_handle_t *handle, void *context)
{
    (void)context;
    if (handle->type == UV_SIGNAL)
        uv_unref(handle);
    else if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

/* The service manager waits as long as models are closed and cached pages reach the disk. A disk that hangs
 * costs those pages: the next process does not wait for it. */
static void on_closing(uv_timer_t *timer)
{
    struct serve *s = timer->data;
    struct swap_view v;

    view_models(s, &v);
    switch (close_watch_look(&s->closing, v.moves + memory_parts_given())) {
    case CLOSE_MOVED:
        notify_send(&s->notify, EXTEND);
        break;
    case CLOSE_STILL:
        break;
    case CLOSE_HANGS:
        log_error("closing the model got nowhere for %d ms: exiting", CLOSE_STILL_MOST * CLOSE_LOOK_MS);
        _exit(s->exit_code);
    }
}

/* Before the server is freed: until then the engine may wake it. False: a load goes on, which cannot be
 * interrupted. */
static bool close_watched(struct serve *s)
{
    uv_timer_start(&s->tick, on_closing, 0, CLOSE_LOOK_MS);
    bool closed = close_models(s);
    uv_timer_stop(&s->tick);
    return closed;
}

/* Frees everything. Server and swap run the loop until their handles are closed, so signals still arrive. */
static void finish(struct serve *s)
{
    bool loading = s->phase == PHASE_LOADING;

    if (s->exit_code == EXIT_FAULT && !loading) /* the engine never lets go of its requests */
        _exit(s->exit_code);
    s->phase = PHASE_CLOSING;
    uv_timer_stop(&s->tick);  /* it looks at the engines */
    uv_timer_stop(&s->guard); /* requests have ended; cached pages may take longer to reach a slow disk */
    notify_send(&s->notify, EXTEND);
    stop_models(s); /* a load that ends from here on serves no request */
    if (server_end(s->server) < 0)
        _exit(s->exit_code);
    if (!close_watched(s)) {
        log_info("bye");
        _exit(s->exit_code);
    }
    server_free(s->server);
    uv_walk(&s->loop, close_handle, NULL);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    notify_close(&s->notify);
}

static int run(struct serve *s)
{
    struct error err = {0};

    if (start(s, &err) < 0) {
        notify_status(&s->notify, "", "%s", err.text);
        return exit_fail(&err); /* the process ends: what is open goes with it */
    }
    uv_run(&s->loop, UV_RUN_DEFAULT);
    finish(s);
    if (s->exit_code == EXIT_CLEAN)
        log_info("bye");
    return s->exit_code;
}

int serve(struct config *cfg, struct config_arguments *args)
{
    static struct serve s;
    s.cfg = cfg;
    s.as_read = *cfg;
    s.args = args;
    s.notify.fd = -1;
    s.notice.percent = UINT32_MAX;
    return run(&s);
}
