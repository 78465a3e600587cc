#include "model_swap.h"
#include "backend/backend.h"
#include "base/clock.h"
#include "backend/executor.h"
#include "gguf/gguf.h"
#include "base/log.h"
#include "model/model.h"
#include "model_file.h"
#include "service/server.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROGRESS_MS 100

enum state {
    IDLE,
    CHECKING,  /* the file is read, the current model serves */
    LOADING,   /* beside the current one, or as the first */
    DRAINING,  /* no request begins, those that run end */
    CLOSING,   /* no request has the old model, the pool closes it */
    REPLACING, /* nothing serves, the new one is loaded */
    RESTORING, /* nothing serves, the old one is loaded again */
    LEAVING,   /* the new one serves, the last requests of the old one end; then it is closed */
};

struct swap {
    struct swap_options options;
    /* Neither changes after swap_open(). */
    char dir[PATH_MAX];   /* no model outside of it but the first; resolved */
    char first[PATH_MAX]; /* the model of the start, as it was given */
    enum state state;
    struct loader *current, *next, *old; /* old: not closed yet, while LEAVING */
    struct loader *closing;              /* in the hands of the pool */
    bool loading;                        /* next's thread is at it */
    bool stopping, suspended;
    char want[PATH_MAX]; /* "": none, the model is being put away */
    char back[PATH_MAX]; /* the model to restore after a failure; "" until one has served */
    uv_timer_t *timer;   /* progress, or the end of a drain's patience */
    uv_work_t work;
    char last_model[PATH_MAX], last_error[sizeof((struct error *)0)->text];
    uint64_t last_ns, n_done, n_failed;
    uint64_t moves; /* sum over the models that were closed */
};

/* A path as an administrator would write it. */
static const char *short_name(const struct swap *sw, const char *path)
{
    size_t n = strlen(sw->dir);
    return n > 1 && !strncmp(path, sw->dir, n) && path[n] == '/' ? path + n + 1 : path;
}

/* --- what is remembered of a swap --- */

static void ended(struct swap *sw, const struct error *err)
{
    snprintf(sw->last_model, sizeof sw->last_model, "%s", short_name(sw, sw->want));
    snprintf(sw->last_error, sizeof sw->last_error, "%s", err ? err->text : "");
    sw->last_ns = clock_ns();
    if (err)
        sw->n_failed++;
    else
        sw->n_done++;
}

/* --- closing --- */

static void close_on_pool(uv_work_t *work)
{
    struct swap *sw = work->data;
    loader_close(sw->closing);
}

static void load_next(struct swap *sw, enum state state, const char *path);

static void on_closed(uv_work_t *work, int status)
{
    struct swap *sw = work->data;
    (void)status; /* it is never cancelled */
    sw->moves += loader_moves(sw->closing);
    free(sw->closing);
    sw->closing = NULL;
    if (sw->stopping)
        return;
    if (sw->state == CLOSING && sw->want[0]) {
        load_next(sw, REPLACING, sw->want);
        return;
    }
    if (sw->state == CLOSING)
        log_info("the model is suspended: memory and device are free");
    sw->state = IDLE;
}

/* No request has it any more. Giving back its memory takes a while: the loop does not wait for that. */
static void close_old(struct swap *sw, struct loader **old)
{
    assert(*old && !sw->closing);
    sw->closing = *old;
    *old = NULL;
    sw->work.data = sw;
    uv_queue_work(sw->options.loop, &sw->work, close_on_pool, on_closed);
}

/* --- draining --- */

static void on_patience_over(uv_timer_t *timer)
{
    struct swap *sw = timer->data;
    log_info("requests did not finish in time for the next model: cancelled");
    server_cancel_leaving(sw->options.server);
}

static void on_left(void *context)
{
    struct swap *sw = context;
    if (sw->stopping)
        return;
    if (sw->state == DRAINING) {
        uv_timer_stop(sw->timer);
        sw->state = CLOSING;
        close_old(sw, &sw->current);
    } else if (sw->state == LEAVING) {
        close_old(sw, &sw->old);
    }
}

static void drain(struct swap *sw)
{
    struct server *server = sw->options.server;
    uint32_t patience = sw->options.cfg->drain_timeout_ms;
    sw->state = DRAINING;
    server_set_progress(server, 0);
    server_set_state(server, sw->want[0] ? SERVER_LOADING : SERVER_SUSPENDED);
    server_set_model(server, NULL);
    if (!server_is_leaving(server)) {
        on_left(sw);
        return;
    }
    log_info("no request starts until a model is loaded; running ones have %u ms", patience);
    server_refuse_leaving(server);
    uv_timer_start(sw->timer, on_patience_over, patience, 0);
}

/* --- loading --- */

static void on_progress(uv_timer_t *timer)
{
    struct swap *sw = timer->data;
    if (sw->loading)
        server_set_progress(sw->options.server, loader_progress(sw->next));
}

static void serve_next(struct swap *sw)
{
    struct loader *l = sw->next;
    struct server_model m = loader_model(l);
    assert(l && !sw->old);
    sw->old = sw->current;
    sw->current = l;
    sw->next = NULL;
    sw->suspended = false;
    server_set_model(sw->options.server, &m);
    server_set_state(sw->options.server, SERVER_READY);
    sw->state = sw->old ? LEAVING : IDLE;
    sw->options.serves(sw->options.context);
    if (sw->old && !server_is_leaving(sw->options.server))
        close_old(sw, &sw->old);
}

/* The model asked for cannot be had. The model before serves on, or is loaded again. */
static void give_up(struct swap *sw, const struct error *err)
{
    bool lost = !sw->back[0] || sw->state == RESTORING;
    sw->state = IDLE;
    if (lost) {
        sw->options.lost(sw->options.context, err);
        return;
    }
    ended(sw, err);
    log_error("the model swap failed: %s", err->text);
    if (sw->suspended)
        server_set_state(sw->options.server, SERVER_SUSPENDED);
    else if (!sw->current)
        load_next(sw, RESTORING, sw->back);
}

static void drop_next(struct swap *sw)
{
    loader_close(sw->next);
    free(sw->next);
    sw->next = NULL;
}

static void on_loaded(void *context)
{
    struct swap *sw = context;
    struct error err = {0};
    assert(sw->next && sw->loading);
    int rc = loader_finish(sw->next, &err);
    sw->loading = false;
    uv_timer_stop(sw->timer);
    if (sw->stopping)
        return;
    if (rc == 0 && sw->state != CHECKING) {
        if (sw->state != RESTORING && sw->back[0])
            ended(sw, NULL);
        serve_next(sw);
        return;
    }
    if (rc == 0)
        rc = loader_check_size(sw->next, sw->current, &err);
    drop_next(sw);
    if (rc == 0)
        drain(sw);
    else if (rc == -ENOMEM && sw->state == LOADING && sw->current) {
        log_info("not enough memory beside the current model: %s", err.text);
        drain(sw);
    } else
        give_up(sw, &err);
}

static int start_loader(struct swap *sw, const char *path, struct error *err)
{
    struct loader_options options = {.cfg = sw->options.cfg,
                                     .path = path,
                                     .check = sw->state == CHECKING,
                                     .wake = server_wake,
                                     .wake_context = sw->options.server,
                                     .done = on_loaded,
                                     .done_context = sw};
    assert(!sw->next && !sw->loading); /* one load at a time */
    sw->next = calloc(1, sizeof *sw->next);
    if (!sw->next)
        return error_set(err, -ENOMEM, "%s: out of memory", path);
    int rc = loader_start(sw->next, sw->options.loop, &options, err);
    if (rc < 0) {
        free(sw->next);
        sw->next = NULL;
        return rc;
    }
    sw->loading = true;
    server_set_progress(sw->options.server, 0);
    uv_timer_start(sw->timer, on_progress, PROGRESS_MS, PROGRESS_MS);
    return 0;
}

static void load_next(struct swap *sw, enum state state, const char *path)
{
    struct error err = {0};
    sw->state = state;
    log_info("%s %s", state == RESTORING ? "restoring" : "loading", path);
    if (start_loader(sw, path, &err) < 0)
        give_up(sw, &err);
}

/* --- what is asked for --- */

static int check_idle(const struct swap *sw, struct error *err)
{
    if (sw->stopping)
        return error_set(err, -ESHUTDOWN, "the server is shutting down");
    if (sw->state == LEAVING)
        return error_set(err, -EBUSY, "the last requests of the model before %s are still running",
                         short_name(sw, sw->current->path));
    if (sw->state != IDLE)
        return error_set(err, -EBUSY, "another model swap is in progress: %s",
                         short_name(sw, sw->want[0] ? sw->want : sw->back));
    return 0;
}

/* Two decoders cannot both live on a device that one of them fills. */
static bool is_exclusive(const struct loader *l)
{
    struct backend_info info;
    executor_info(l->runtime.executor, &info);
    return info.memory_total > 0;
}

/* Below model_dir, or the model of the start by the name that GET /admin/model gives it: it may lie
 * elsewhere.
 */
static void find_model(const void *context, const char *word, struct swap_found *out)
{
    const struct swap *sw = context;
    out->rc = model_file_below(out->path, sw->dir, word, &out->why);
    if (out->rc == -ENOENT && !strcmp(word, sw->first)) {
        snprintf(out->path, sizeof out->path, "%s", sw->first);
        out->rc = 0;
    }
}

static int swap_begin(void *context, const struct swap_found *found, struct error *err)
{
    struct swap *sw = context;
    const char *path = found->path;
    int rc = check_idle(sw, err);
    if (rc == 0 && found->rc < 0)
        rc = error_set(err, found->rc, "%s", found->why.text);
    if (rc < 0)
        return rc;
    snprintf(sw->want, sizeof sw->want, "%s", path);
    if (sw->current)
        snprintf(sw->back, sizeof sw->back, "%s", sw->current->path);
    if (!sw->current) { /* it is put away, and fetched back only when asked for */
        server_set_state(sw->options.server, SERVER_LOADING);
        load_next(sw, REPLACING, path);
        return 0;
    }
    sw->state = is_exclusive(sw->current) ? CHECKING : LOADING;
    rc = start_loader(sw, path, err);
    if (rc < 0)
        sw->state = IDLE;
    else
        log_info("loading %s%s", path, sw->state == LOADING ? " beside the current model" : "");
    return rc;
}

static int swap_suspend(void *context, struct error *err)
{
    struct swap *sw = context;
    int rc = check_idle(sw, err);
    if (rc < 0)
        return rc;
    if (sw->suspended)
        return 1;
    snprintf(sw->back, sizeof sw->back, "%s", sw->current->path);
    sw->want[0] = '\0';
    sw->suspended = true;
    log_info("suspending the model");
    drain(sw);
    return 0;
}

static int swap_resume(void *context, struct error *err)
{
    struct swap *sw = context;
    int rc = check_idle(sw, err);
    if (rc < 0)
        return rc;
    if (!sw->suspended)
        return 1;
    strcpy(sw->want, sw->back);
    server_set_state(sw->options.server, SERVER_LOADING);
    load_next(sw, REPLACING, sw->want);
    return 0;
}

static void view(const void *context, struct swap_view *out)
{
    swap_view(context, out);
}

static const struct server_admin admin = {
    .find = find_model, .swap = swap_begin, .suspend = swap_suspend, .resume = swap_resume, .view = view};

/* --- life --- */

/* model_dir, else where the first model lies. */
static void find_dir(struct swap *sw, const char *path)
{
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    if (sw->options.cfg->model_dir[0])
        snprintf(dir, sizeof dir, "%s", sw->options.cfg->model_dir);
    else if (slash)
        snprintf(dir, sizeof dir, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    else
        strcpy(dir, ".");
    if (!realpath(dir, sw->dir)) {
        log_warn("model_dir %s: %s; no other model can be loaded", dir, strerror(errno));
        sw->dir[0] = '\0';
    }
}

static void on_timer_closed(uv_handle_t *handle)
{
    free(handle);
}

int swap_open(struct swap **out, const struct swap_options *options, const char *path, struct error *err)
{
    struct swap *sw = calloc(1, sizeof *sw);
    if (sw)
        sw->timer = malloc(sizeof *sw->timer);
    if (!sw || !sw->timer) {
        free(sw);
        return error_set(err, -ENOMEM, "out of memory");
    }
    sw->options = *options;
    uv_timer_init(options->loop, sw->timer);
    sw->timer->data = sw;
    find_dir(sw, path);
    snprintf(sw->want, sizeof sw->want, "%s", path);
    snprintf(sw->first, sizeof sw->first, "%s", path);
    sw->state = LOADING;
    int rc = start_loader(sw, path, err);
    if (rc < 0) {
        (void)swap_close(sw);
        return rc;
    }
    server_on_left(options->server, on_left, sw);
    server_set_admin(options->server, &admin, sw);
    *out = sw;
    return 0;
}

void swap_stop(struct swap *sw)
{
    sw->stopping = true;
    uv_timer_stop(sw->timer);
}

/* On the pool too, so that the loop sees whether it gets anywhere. Cached pages reach the disk even while
 * another model is loaded. */
static void close_all(struct swap *sw)
{
    for (;;) {
        struct loader **l = sw->old                    ? &sw->old
                            : sw->current              ? &sw->current
                            : !sw->loading && sw->next ? &sw->next
                                                       : NULL;
        if (!sw->closing && !l)
            return;
        if (!sw->closing)
            close_old(sw, l);
        uv_run(sw->options.loop, UV_RUN_ONCE);
    }
}

bool swap_close(struct swap *sw)
{
    swap_stop(sw);
    close_all(sw);
    if (sw->loading)
        return false;
    uv_close((uv_handle_t *)sw->timer, on_timer_closed);
    free(sw);
    return true;
}

struct loader *swap_current(const struct swap *sw)
{
    return sw->current;
}

struct loader *swap_leaving(const struct swap *sw)
{
    return sw->old;
}

void swap_view(const struct swap *sw, struct swap_view *out)
{
    static const char *const names[] = {
        [IDLE] = "idle",        [CHECKING] = "checking", [LOADING] = "loading",     [DRAINING] = "draining",
        [CLOSING] = "draining", [REPLACING] = "loading", [RESTORING] = "restoring", [LEAVING] = "leaving"};
    const char *wanted = sw->state == RESTORING ? sw->back : sw->want;
    bool busy = sw->state != IDLE && sw->state != LEAVING && wanted[0];
    bool serves = sw->current && sw->state != DRAINING;
    const struct loader *moving = sw->closing ? sw->closing : sw->loading ? sw->next : NULL;
    *out = (struct swap_view){.state = names[sw->state],
                              .model = busy ? short_name(sw, wanted) : NULL,
                              .serves = serves ? short_name(sw, sw->current->path) : NULL,
                              .progress = sw->loading ? loader_progress(sw->next) : 0,
                              .moves = sw->moves + (moving ? loader_moves(moving) : 0),
                              .suspended = sw->suspended,
                              .last_model = sw->last_model[0] ? sw->last_model : NULL,
                              .last_error = sw->last_error[0] ? sw->last_error : NULL,
                              .last_ns = sw->last_ns,
                              .n_done = sw->n_done,
                              .n_failed = sw->n_failed};
}
