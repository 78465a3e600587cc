#include "model_set.h"
#include "api/admin.h"
#include "backend/backend.h"
#include "backend/executor.h"
#include "base/api_error.h"
#include "base/clock.h"
#include "base/exit_code.h"
#include "base/log.h"
#include "gguf/gguf.h"
#include "kv/prefix_disk.h"
#include "model/model.h"
#include "model_dir.h"
#include "model_file.h"
#include "model_reader.h"
#include "model_room.h"
#include "service/server.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROGRESS_MS 100
#define MS          1000000ull
#define NONE        (-1)
#define NO_ROOM_S   600 /* so long a model that did not fit alone takes no other's place again */
#define RETRY_S     30  /* of what has no memory */

/* A model that is loaded, or about to be. */
struct place {
    int number;            /* in the directory; NONE: the place is free */
    struct loader *loader; /* takes requests unless it is loading, closing or the victim */
    struct server_model model;
};

struct figures { /* of each model that there is */
    uint64_t n_loads, n_failed, n_late;
    uint64_t tried;     /* the turn in which it was loaded beside */
    struct {            /* it did not fit alone: when, and the file as it was then */
        uint64_t at_ns; /* 0: that never happened */
        uint64_t bytes;
        int64_t modified;
        char why[sizeof((struct error *)0)->text];
    } no_room;
};

struct model_set {
    struct model_set_options options;
    struct model_dir dir;
    struct figures *figures; /* [n_figures], by number */
    int n_figures;
    struct place places[MODEL_SET_MOST];
    struct prefix_dir *prefix_dir; /* what they keep on disk */
    int first;                     /* the number of the first model */
    struct place *loading;         /* its loader's thread is at it */
    struct place *closing;         /* in the hands of the pool */
    struct loader *checking;       /* reads the file of checked_number, for which another is to go; or NULL */
    int checked_number;
    bool is_checked;      /* its file is a model's */
    struct place *victim; /* takes no new requests, and is closed after its last */
    int wanted;           /* room is made for it */
    uint64_t turn;        /* counts models that were wanted */
    bool needs_room;      /* it did not fit beside the others */
    int failed;           /* it could not be loaded: what waits for it is told */
    struct error why;
    bool served, stopping;
    uv_timer_t *timer;
    struct model_reader reading;
    uv_work_t work;
    char last_error[sizeof((struct error *)0)->text];
    int last;
    uint64_t last_ns;
    uint64_t moves; /* sum over the models that were closed */
};

static const char *name_of(const struct model_set *set, int number)
{
    return set->dir.entries[number].name;
}

static struct place *place_of(struct model_set *set, int number)
{
    for (int i = 0; i < MODEL_SET_MOST; i++)
        if (set->places[i].number == number)
            return &set->places[i];
    return NULL;
}

static bool is_ready(const struct model_set *set, const struct place *p)
{
    return p && p->number != NONE && p != set->loading && p != set->closing;
}

/* The figures of a number, which may be new; NULL without memory. */
static struct figures *figures_of(struct model_set *set, int number)
{
    if (number >= set->n_figures) {
        struct figures *more = realloc(set->figures, (size_t)set->dir.n * sizeof *more);
        if (!more)
            return NULL;
        memset(more + set->n_figures, 0, (size_t)(set->dir.n - set->n_figures) * sizeof *more);
        set->figures = more;
        set->n_figures = set->dir.n;
    }
    return &set->figures[number];
}

static void count(struct model_set *set, int number, const struct error *err)
{
    struct figures *f = figures_of(set, number);
    if (f && err)
        f->n_failed++;
    else if (f)
        f->n_loads++;
    set->last = number;
    set->last_ns = clock_ns();
    snprintf(set->last_error, sizeof set->last_error, "%s", err ? err->text : "");
}

/* No room was found for it, though no other was loaded: others are not closed for it again, until its file is
 * another or time has passed. */
static bool has_no_room(struct model_set *set, int number)
{
    const struct figures *f = figures_of(set, number);
    if (!f || !f->no_room.at_ns || clock_ns() - f->no_room.at_ns > NO_ROOM_S * 1000 * MS)
        return false;
    model_dir_look(&set->dir, number);
    const struct model_dir_entry *e = &set->dir.entries[number];
    return e->bytes == f->no_room.bytes && e->modified == f->no_room.modified;
}

static void remember_no_room(struct model_set *set, int number, const struct error *err)
{
    struct figures *f = figures_of(set, number);
    const struct model_dir_entry *e = &set->dir.entries[number];
    if (!f)
        return;
    f->no_room.at_ns = clock_ns();
    f->no_room.bytes = e->bytes;
    f->no_room.modified = e->modified;
    snprintf(f->no_room.why, sizeof f->no_room.why, "%s", err->text);
}

static bool is_busy(const struct model_set *set)
{
    return set->loading || set->closing || set->checking;
}

static void look(struct model_set *set);

/* --- closing --- */

static void close_on_pool(uv_work_t *work)
{
    struct model_set *set = work->data;
    loader_close(set->closing->loader);
}

static void free_place(struct place *p)
{
    free(p->loader);
    *p = (struct place){.number = NONE};
}

static void on_closed(uv_work_t *work, int status)
{
    struct model_set *set = work->data;
    (void)status; /* it is never cancelled */
    if (!set->stopping)
        log_info("%s is unloaded", name_of(set, set->closing->number));
    set->moves += loader_moves(set->closing->loader);
    free_place(set->closing);
    set->closing = NULL;
    if (!set->stopping)
        server_look(set->options.server);
}

/* Giving back its memory takes a while: the loop does not wait for that. */
static void begin_close(struct model_set *set, struct place *p)
{
    assert(!set->closing);
    set->closing = p;
    set->work.data = set;
    uv_queue_work(set->options.loop, &set->work, close_on_pool, on_closed);
}

/* No request has it. */
static void close_place(struct model_set *set, struct place *p)
{
    assert(is_ready(set, p) && !p->model.n_users);
    server_remove_model(set->options.server, &p->model);
    if (set->victim == p)
        set->victim = NULL;
    begin_close(set, p);
}

/* --- loading --- */

static void serve(struct model_set *set, struct place *p)
{
    p->model = loader_model(p->loader);
    p->model.name = name_of(set, p->number);
    server_add_model(set->options.server, &p->model, p->number == set->first);
    if (set->served) {
        log_info("%s is loaded", p->model.name);
        return;
    }
    set->served = true;
    server_set_state(set->options.server, SERVER_READY);
    set->options.serves(set->options.context);
}

static int load(struct model_set *set, int number, struct error *err);

/* The first by name may be a download that was cut off, or a part of another model (an image encoder): the
 * other models are served all the same. One that the configuration names must load, and an error that is not
 * the file's would recur with the next one. False: there is no other, or *err says why it cannot be read. */
static bool take_next_first(struct model_set *set, struct error *err)
{
    int code = exit_code_of(err->code), next = model_dir_after(&set->dir, set->first);
    bool of_file = code == EXIT_MODEL_MISSING || code == EXIT_MODEL_BROKEN || code == EXIT_MODEL_UNSUPPORTED;
    if (set->options.cfg->model[0] || !of_file || next < 0)
        return false;
    log_warn("%s: %s is not the first model", err->text, name_of(set, set->first));
    set->first = next;
    return load(set, next, err) == 0;
}

/* Its requests are told when they are looked at, which is next. */
static void fail(struct model_set *set, int number, int rc, struct error *err)
{
    count(set, number, err);
    if (!set->served) {
        if (!take_next_first(set, err))
            set->options.lost(set->options.context, err);
        return;
    }
    log_error("%s could not be loaded: %s", name_of(set, number), err->text);
    set->failed = number;
    set->why = *err;
    set->why.code = rc;
    if (number == set->wanted) {
        set->wanted = NONE;
        set->victim = NULL;
    }
}

static bool is_alone(const struct model_set *set)
{
    for (int i = 0; i < MODEL_SET_MOST; i++)
        if (is_ready(set, &set->places[i]))
            return false;
    return true;
}

/* A model that is loaded during the drain serves no request: figures and names are not read from it. If
 * another is being closed, the loop serves no one any more, and close_all() comes to this one too. */
static void leave_unserved(struct model_set *set, struct place *p)
{
    if (is_ready(set, p) && !set->closing)
        begin_close(set, p);
}

static void on_loaded(void *context)
{
    struct model_set *set = context;
    struct place *p = set->loading;
    struct error err = {0};
    int rc = loader_finish(p->loader, &err), number = p->number;
    set->loading = NULL;
    uv_timer_stop(set->timer);
    if (rc < 0) {
        loader_close(p->loader);
        free_place(p);
    }
    if (set->stopping) {
        leave_unserved(set, p);
        return;
    }
    if (rc == 0) {
        count(set, number, NULL);
        if (number == set->wanted)
            set->wanted = NONE;
        serve(set, p);
    } else if (rc == -ENOMEM && set->served && number != set->wanted) {
        log_info("%s waits: it has no room beside the loaded models: %s", name_of(set, number), err.text);
    } else if (rc == -ENOMEM && !is_alone(set) && !has_no_room(set, number)) {
        log_info("%s has no room beside the loaded models: %s", name_of(set, number), err.text);
        set->needs_room = set->is_checked = true; /* its file was read before */
        set->checked_number = number;
    } else {
        if (rc == -ENOMEM && is_alone(set))
            remember_no_room(set, number, &err);
        fail(set, number, rc, &err);
    }
    server_look(set->options.server);
}

static void on_progress(uv_timer_t *timer)
{
    struct model_set *set = timer->data;
    if (set->loading && !set->served)
        server_set_progress(set->options.server, loader_progress(set->loading->loader));
    if (set->served)
        server_look(set->options.server); /* what waits may have waited too long */
}

/* Starts a loader of the model's file, or at &set->checking one that only checks it. */
static int start_loader(struct model_set *set, struct loader **l, int number, void (*done)(void *context),
                        struct error *err)
{
    const char *file = set->dir.entries[number].file;
    struct loader_options options = {.cfg = set->options.cfg,
                                     .path = file,
                                     .prefix_dir = set->prefix_dir,
                                     .check = l == &set->checking,
                                     .wake = server_wake,
                                     .wake_context = set->options.server,
                                     .done = done,
                                     .done_context = set};
    assert(!is_busy(set));
    *l = calloc(1, sizeof **l);
    if (!*l)
        return error_set(err, -ENOMEM, "%s: out of memory", file);
    int rc = loader_start(*l, set->options.loop, &options, err);
    if (rc < 0) {
        free(*l);
        *l = NULL;
    }
    return rc;
}

static int load(struct model_set *set, int number, struct error *err)
{
    struct place *p = place_of(set, NONE);
    assert(p);
    log_info("loading %s", set->dir.entries[number].file);
    model_dir_look(&set->dir, number);
    int rc = start_loader(set, &p->loader, number, on_loaded, err);
    if (rc < 0)
        return rc;
    p->number = number;
    set->loading = p;
    uv_timer_start(set->timer, on_progress, PROGRESS_MS, PROGRESS_MS);
    return 0;
}

/* --- making room --- */

static bool fills_device(const struct place *p)
{
    struct backend_info info;
    executor_info(p->loader->runtime.executor, &info);
    return info.memory_total > 0;
}

/* Chooses among all models if there must be room, else among those that fill a device: two decoders cannot
 * both live there, whatever else is loaded. */
static struct place *choose_victim_of(struct model_set *set, bool needs_room)
{
    struct model_room_candidate c[MODEL_SET_MOST] = {0};
    for (int i = 0; i < MODEL_SET_MOST; i++) {
        const struct place *p = &set->places[i];
        if (is_ready(set, p))
            c[i] = (struct model_room_candidate){.ready = true,
                                                 .fills = fills_device(p),
                                                 .busy = p->model.n_users,
                                                 .first = p->number == set->first,
                                                 .idle_ns = p->model.idle_ns};
    }
    int best = model_room_choose(c, MODEL_SET_MOST, needs_room || !place_of(set, NONE));
    return best < 0 ? NULL : &set->places[best];
}

static struct place *choose_victim(struct model_set *set)
{
    return choose_victim_of(set, set->needs_room);
}

/* Closes a model for the wanted one, or asks it to leave. */
static void make_room(struct model_set *set, struct place *victim)
{
    if (!set->victim && victim->model.n_users)
        log_info("%s takes no more requests: %s has no room beside it", name_of(set, victim->number),
                 name_of(set, set->wanted));
    set->victim = victim;
    if (!victim->model.n_users) {
        close_place(set, victim);
        set->needs_room = false; /* it is tried again */
    }
}

static void on_checked(void *context)
{
    struct model_set *set = context;
    struct loader *l = set->checking;
    struct error err = {0};
    int rc = loader_finish(l, &err), number = set->checked_number;
    const struct place *victim = choose_victim(set);
    set->checking = NULL;
    if (rc == 0 && !set->stopping && victim)
        rc = loader_check_size(l, victim->loader, &err);
    loader_close(l);
    free(l);
    if (set->stopping)
        return;
    if (rc == 0)
        set->is_checked = true;
    else
        fail(set, number, rc, &err);
    server_look(set->options.server);
}

/* Reads the file: one that is no model takes no other's place. */
static int check(struct model_set *set, int number, struct error *err)
{
    set->checked_number = number;
    return start_loader(set, &set->checking, number, on_checked, err);
}

/* Checks the wanted model, makes room for it, or loads it. */
static int advance(struct model_set *set, int number, struct error *err)
{
    struct place *victim = set->victim ? set->victim : choose_victim(set);
    if (!victim)
        return load(set, number, err);
    if (has_no_room(set, number))
        return error_set(err, -ENOMEM, "%s", figures_of(set, number)->no_room.why);
    if (!set->is_checked || set->checked_number != number)
        return check(set, number, err);
    make_room(set, victim);
    return 0;
}

/* Loads what has been waited for longest. Models stay until it is known that they are in its way. */
static void fetch(struct model_set *set)
{
    int number = server_wanted_model(set->options.server);
    if (number != set->wanted) {
        set->wanted = number;
        set->turn++;
        set->needs_room = set->is_checked = false;
        bool left = set->victim != NULL;
        set->victim = NULL;
        if (left) /* some may wait for the one that need not go any more */
            server_look(set->options.server);
    }
    if (number == NONE || place_of(set, number))
        return;
    struct error err = {0};
    int rc = advance(set, number, &err);
    if (rc < 0) {
        fail(set, number, rc, &err);
        server_look(set->options.server);
    }
}

static bool may_fit_beside(void *context, int number)
{
    struct model_set *set = context;
    const struct figures *f = figures_of(set, number);
    return number != set->wanted && !place_of(set, number) && f && f->tried != set->turn;
}

/* While the wanted model waits for the last requests of another, the next ones that are waited for may have
 * room as things are. Each is tried once, so that it never takes the room made for the wanted one twice. */
static void fetch_beside(struct model_set *set)
{
    struct error err = {0};
    if (!set->victim || choose_victim_of(set, false))
        return;
    int number = server_wanted_beside(set->options.server, may_fit_beside, set);
    if (number == NONE)
        return;
    figures_of(set, number)->tried = set->turn;
    int rc = load(set, number, &err);
    if (rc < 0) {
        fail(set, number, rc, &err);
        server_look(set->options.server);
    }
}

/* --- closing what is idle --- */

/* Returns the time at which it is closed unless a request comes; 0: it stays. */
static uint64_t closes_at(const struct model_set *set, const struct place *p)
{
    uint64_t ttl_s = set->options.cfg->model_ttl_s;
    if (!ttl_s || !is_ready(set, p) || p->number == set->first || p->model.n_users)
        return 0;
    return p->model.idle_ns + ttl_s * 1000 * MS;
}

static void close_idle(struct model_set *set, uint64_t now_ns)
{
    for (int i = 0; i < MODEL_SET_MOST && !set->closing; i++) {
        uint64_t at = closes_at(set, &set->places[i]);
        if (at && now_ns >= at)
            close_place(set, &set->places[i]);
    }
}

static void on_due(uv_timer_t *timer)
{
    server_look(((struct model_set *)timer->data)->options.server);
}

/* Wakes when a model has been idle for long enough, or a request has waited too long. */
static void set_timer(struct model_set *set, uint64_t now_ns)
{
    uint64_t next = server_next_late_ns(set->options.server);
    if (set->loading) /* the timer shows progress */
        return;
    for (int i = 0; i < MODEL_SET_MOST; i++) {
        uint64_t at = closes_at(set, &set->places[i]);
        if (at && (!next || at < next))
            next = at;
    }
    if (next)
        uv_timer_start(set->timer, on_due, next > now_ns ? (next - now_ns) / MS + 1 : 1, 0);
    else
        uv_timer_stop(set->timer);
}

static void look(struct model_set *set)
{
    uint64_t now_ns = clock_ns();
    if (set->stopping || !set->served)
        return;
    set->failed = NONE; /* those that waited have been told */
    if (!is_busy(set))
        fetch(set);
    if (!is_busy(set))
        fetch_beside(set);
    if (!is_busy(set))
        close_idle(set, now_ns);
    set_timer(set, now_ns);
}

/* --- reading the directory --- */

static void refresh(struct model_set *set)
{
    if (!set->stopping)
        model_reader_refresh(&set->reading);
}

/* --- what the server asks --- */

static int number_of(struct model_set *set, const char *name)
{
    int number = model_dir_find(&set->dir, name);
    for (int i = 0; number < 0 && i < MODEL_SET_MOST; i++) /* the name in the file */
        if (is_ready(set, &set->places[i]) && !strcmp(model_config(set->places[i].model.model)->name, name))
            return set->places[i].number;
    return number;
}

static int find(void *context, const char *name, struct api_error *e)
{
    struct model_set *set = context;
    char names[240];
    if (!name[0])
        return set->first;
    int number = number_of(set, name);
    if (number < 0) { /* it may be new */
        refresh(set);
        number = number_of(set, name);
    }
    if (number < 0 && set->reading.on) {
        model_dir_look_for(&set->dir, name);
        number = number_of(set, name);
    }
    if (number >= 0)
        return number;
    model_dir_names(&set->dir, names, sizeof names);
    return api_fail(e, 404, "not_found", "model", "no model %.100s (there are: %s)", name, names);
}

static struct server_model *get(void *context, int number, struct api_error *e)
{
    struct model_set *set = context;
    struct place *p = place_of(set, number);
    if (is_ready(set, p) && p != set->victim)
        return &p->model;
    if (number != set->failed)
        return NULL;
    e->retry_after_s = set->why.code == -ENOMEM ? RETRY_S : 0;
    api_fail(e, set->why.code == -ENOMEM ? 503 : 500, "internal", NULL, "model %.100s cannot be loaded: %s",
             name_of(set, number), set->why.text);
    return NULL;
}

static void count_late(void *context, int number)
{
    struct figures *f = figures_of(context, number);
    if (f)
        f->n_late++;
}

static void look_again(void *context)
{
    look(context);
}

static const char *state_of(const struct model_set *set, const struct place *p)
{
    return !p                  ? "file"
           : p == set->loading ? "loading"
           : p == set->closing ? "closing"
           : p == set->victim  ? "leaving"
                               : "ready";
}

static void read_names(void *context)
{
    refresh(context);
}

static bool view(void *context, int number, struct model_view *out)
{
    struct model_set *set = context;
    if (number >= set->dir.n)
        return false;
    const struct model_dir_entry *entry = &set->dir.entries[number];
    struct place *p = place_of(set, number);
    const struct figures *f = figures_of(set, number);
    uint64_t at = p ? closes_at(set, p) : 0, now_ns = clock_ns();
    *out = (struct model_view){.name = p || entry->present ? entry->name : NULL,
                               .state = state_of(set, p),
                               .model = is_ready(set, p) ? &p->model : NULL,
                               .bytes = entry->bytes,
                               .modified = entry->modified,
                               .unloads_in_ms = !at           ? 0
                                                : at > now_ns ? (at - now_ns) / MS + 1
                                                              : 1,
                               .n_loads = f ? f->n_loads : 0,
                               .n_failed = f ? f->n_failed : 0,
                               .n_late = f ? f->n_late : 0};
    return true;
}

static const struct model_source source = {
    .find = find, .get = get, .late = count_late, .look = look_again, .read_names = read_names, .view = view};

/* --- what administrators ask --- */

static void find_none(const void *context, const char *word, struct swap_found *out)
{
    (void)context;
    (void)word;
    (void)out; /* refuse_swap() answers */
}

static int refuse_swap(void *context, const struct swap_found *found, struct error *err)
{
    (void)context;
    (void)found;
    return error_set(err, -EBUSY, "models is set: each request names its model");
}

static int refuse_suspend(void *context, struct error *err)
{
    return refuse_swap(context, NULL, err);
}

static void view_as_swap(const void *context, struct swap_view *out)
{
    model_set_view(context, out);
}

static const struct server_admin admin = {.find = find_none,
                                          .swap = refuse_swap,
                                          .suspend = refuse_suspend,
                                          .resume = refuse_suspend,
                                          .view = view_as_swap};

void model_set_view(const struct model_set *set, struct swap_view *out)
{
    const struct place *serves = place_of((struct model_set *)set, set->first);
    const struct place *moving = set->closing ? set->closing : set->loading;
    uint64_t n_done = 0, n_failed = 0;
    for (int i = 0; i < set->n_figures; i++) {
        n_done += set->figures[i].n_loads;
        n_failed += set->figures[i].n_failed;
    }
    *out = (struct swap_view){.state = set->loading ? "loading" : "idle",
                              .model = set->loading ? name_of(set, set->loading->number) : NULL,
                              .serves = is_ready(set, serves) ? name_of(set, set->first) : NULL,
                              .progress = set->loading ? loader_progress(set->loading->loader) : 0,
                              .moves = set->moves + (moving ? loader_moves(moving->loader) : 0),
                              .last_model = set->last == NONE ? NULL : name_of(set, set->last),
                              .last_error = set->last_error[0] ? set->last_error : NULL,
                              .last_ns = set->last_ns,
                              .n_done = n_done,
                              .n_failed = n_failed};
}

/* --- life --- */

static int find_first(struct model_set *set, struct error *err)
{
    const struct config *cfg = set->options.cfg;
    char path[PATH_MAX];
    set->first = model_dir_first(&set->dir);
    if (!cfg->model[0])
        return set->first >= 0 ? 0 : error_set(err, -ENOENT, "models %s: no .gguf in it", set->dir.path);
    int rc = model_file_find(path, cfg->model, err);
    if (rc < 0)
        return rc;
    set->first = model_dir_add(&set->dir, path);
    return set->first < 0 ? error_set(err, -ENOMEM, "out of memory") : 0;
}

static void on_timer_closed(uv_handle_t *handle)
{
    free(handle);
}

static void free_set(struct model_set *set)
{
    if (set->timer)
        uv_close((uv_handle_t *)set->timer, on_timer_closed);
    model_dir_free(&set->dir);
    prefix_dir_close(set->prefix_dir);
    free(set->figures);
    free(set);
}

int model_set_open(struct model_set **out, const struct model_set_options *options, struct error *err)
{
    struct model_set *set = calloc(1, sizeof *set);
    if (!set)
        return error_set(err, -ENOMEM, "out of memory");
    set->options = *options;
    set->reading = (struct model_reader){.loop = options->loop, .dir = &set->dir};
    set->wanted = set->failed = set->last = NONE;
    for (int i = 0; i < MODEL_SET_MOST; i++)
        set->places[i].number = NONE;
    set->timer = malloc(sizeof *set->timer);
    if (set->timer) {
        uv_timer_init(options->loop, set->timer);
        set->timer->data = set;
    }
    int rc = set->timer && prefix_dir_open(&set->prefix_dir) == 0
                 ? model_dir_open(&set->dir, options->cfg->models, err)
                 : error_set(err, -ENOMEM, "out of memory");
    if (rc == 0)
        rc = find_first(set, err);
    if (rc == 0)
        rc = load(set, set->first, err);
    if (rc < 0) {
        free_set(set);
        return rc;
    }
    server_set_source(options->server, &source, set);
    server_set_admin(options->server, &admin, set);
    *out = set;
    return 0;
}

void model_set_stop(struct model_set *set)
{
    set->stopping = true;
    uv_timer_stop(set->timer);
}

static struct place *next_to_close(struct model_set *set)
{
    for (int i = 0; i < MODEL_SET_MOST; i++)
        if (is_ready(set, &set->places[i]))
            return &set->places[i];
    return NULL;
}

/* On the pool too, so that the loop sees whether it gets anywhere. What is cached reaches the disk, whatever
 * is being loaded. */
static void close_all(struct model_set *set)
{
    while (set->closing || set->reading.on || next_to_close(set)) {
        if (!set->closing && next_to_close(set))
            begin_close(set, next_to_close(set));
        uv_run(set->options.loop, UV_RUN_ONCE);
    }
}

bool model_set_close(struct model_set *set)
{
    model_set_stop(set);
    close_all(set);
    if (set->loading || set->checking)
        return false;
    free_set(set);
    return true;
}

struct loader *model_set_loader(const struct model_set *set, uint32_t place)
{
    const struct place *p = &set->places[place];
    return is_ready(set, p) ? p->loader : NULL;
}

const char *model_set_first(const struct model_set *set)
{
    return set->dir.entries[set->first].file;
}

void model_set_names(const struct model_set *set, char *out, size_t room)
{
    model_dir_names(&set->dir, out, room);
}
