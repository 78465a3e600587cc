/* request.c - one HTTP request: its reply, its suspension, its memory. */
#include "http.h"
#include "base/log.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

void make_id(char *out, const char *prefix)
{
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    unsigned char random[ID_RANDOM * 2];
    size_t n = strlen(prefix), i = 0;
    memcpy(out, prefix, n);
    while (i < ID_RANDOM) {
        if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
            continue; /* interrupted before the pool was ready: at boot only */
        for (size_t k = 0; k < sizeof random && i < ID_RANDOM; k++)
            if (random[k] < 248) /* 4 x 62: no letter is likelier than another */
                out[n + i++] = letters[random[k] % 62];
    }
    out[n + ID_RANDOM] = '\0';
}

void api_error_put_context(struct buf *out, const struct api_error *e)
{
    if (e->has_context) {
        buf_printf(out, ",\"n_prompt_tokens\":%llu,\"n_ctx\":%u", (unsigned long long)e->n_prompt_tokens,
                   e->n_ctx);
        if (e->estimated)
            buf_puts(out, ",\"estimated\":true");
    }
    if (e->has_queue)
        buf_printf(out, ",\"queue_depth\":%u,\"queue_limit\":%u", e->queue_depth, e->queue_limit);
}

void api_error_put(struct buf *out, const struct api_error *e)
{
    buf_puts(out, "{\"error\":{\"type\":");
    json_put_str(out, e->type);
    buf_puts(out, ",\"message\":");
    json_put_str(out, e->message);
    buf_puts(out, ",\"param\":");
    json_put_str(out, e->param[0] ? e->param : NULL);
    buf_printf(out, ",\"code\":%d", e->status);
    api_error_put_context(out, e);
    buf_puts(out, "}}\n");
}

#define NO_MEMORY                                                                                            \
    "{\"error\":{\"type\":\"queue_full\",\"message\":\"out of memory\",\"param\":null,\"code\":503}}\n"
const char no_memory_reply[] = NO_MEMORY;
static const char no_memory_event[] = "event: error\ndata: " NO_MEMORY "\n";
/* In the form of api_ollama_put_error(). */
static const char no_memory_line[] = "{\"error\":\"out of memory\"}\n";

/* `failed` stays, so that nothing is added to what is not the arena's. */
static void take_fixed(struct request *r, const char *words)
{
    r->out = (struct buf){.arena = &r->arena, .p = (char *)words, .len = strlen(words), .failed = true};
    r->out_at = 0;
    r->out_whole = r->out.len;
}

bool request_wrote(struct request *r)
{
    assert(!r->writing);
    if (!r->out.failed)
        r->out_whole = r->out.len;
    return !r->out.failed;
}

/* Bytes [r->out_at, the result) may be sent. */
static size_t ready(const struct request *r)
{
    size_t end = r->out.failed ? r->out_whole : r->out.len;
    const struct reply_list *l = STAILQ_FIRST(&r->lists);
    return l && l->at < end ? l->at : end;
}

static size_t take(const struct buf *from, size_t *at, size_t end, char *out, size_t max)
{
    size_t n = end - *at < max ? end - *at : max;
    if (n)
        memcpy(out, from->p + *at, n);
    *at += n;
    return n;
}

static void write_items(struct request *r)
{
    struct reply_list *l = STAILQ_FIRST(&r->lists);
    for (; l->i < l->to && r->items.len < REPLY_WINDOW; l->i++) {
        if (l->begun)
            buf_puts(&r->items, l->between);
        l->begun = true;
        l->put(&r->items, l);
    }
}

static void items_written(struct request *r)
{
    r->writing = false;
    r->gone |= r->items.failed; /* half of it is sent: there is no way to tell but to end here */
    const struct reply_list *l = STAILQ_FIRST(&r->lists);
    assert(l->i <= l->to);
    if (l->i == l->to)
        STAILQ_REMOVE_HEAD(&r->lists, link);
    if (r->dropped)
        r->dropped(r);
    if (!r->connection)
        return;
    if (r->limited)
        connection_continue(r->connection);
    request_resume(r);
}

/* Lets the pool write the next items of the first list. */
static void begin_items(struct request *r)
{
    r->items.len = r->items_at = 0;
    r->writing = true;
    if (r->limited) /* the client waits for the pool: its timeout stops */
        connection_pause(r->connection);
    request_run(r, POOL_REPLY, write_items, items_written);
}

/* Sends an error in place of what there was no memory for, and nothing after it. */
static void end_short(struct request *r)
{
    take_fixed(r, r->route->lines ? no_memory_line : no_memory_event);
    r->cut_short = r->stream_ended = true;
}

/* Writes more; true when some of it can be sent now. */
static bool go_on_writing(struct request *r)
{
    bool failed = r->out.failed && !r->cut_short;
    if (failed && !STAILQ_EMPTY(&r->lists) && STAILQ_FIRST(&r->lists)->at > r->out_whole)
        STAILQ_INIT(&r->lists);
    if (!STAILQ_EMPTY(&r->lists))
        begin_items(r);
    else if (failed)
        end_short(r);
    else if (r->more)
        r->more(r);
    return !r->writing && r->out_at < ready(r);
}

/* A client that takes it fast enough gets its time for the next bytes. */
static void count_taken(struct request *r, size_t n)
{
    r->n_taken += n;
    if (r->limited && r->n_taken >= r->server->cfg->max_body)
        request_limit(r);
}

size_t request_take(struct request *r, char *out, size_t max)
{
    size_t n = 0;
    while (n < max && !r->writing) {
        if (r->items_at < r->items.len)
            n += take(&r->items, &r->items_at, r->items.len, out + n, max - n);
        else if (r->out_at < ready(r))
            n += take(&r->out, &r->out_at, ready(r), out + n, max - n);
        else if (n || !go_on_writing(r))
            break;
    }
    if (r->out_at == r->out.len && STAILQ_EMPTY(&r->lists))
        r->out.len = r->out_at = r->out_whole = 0;
    count_taken(r, n);
    return n;
}

size_t request_n_ahead(const struct request *r)
{
    if (r->writing)
        return REPLY_WINDOW;
    assert(r->out_at <= r->out.len); /* else no client would seem to take its stream fast enough */
    assert(r->items_at <= r->items.len);
    size_t n = r->out.len - r->out_at + r->items.len - r->items_at;
    return !STAILQ_EMPTY(&r->lists) && n < REPLY_WINDOW ? REPLY_WINDOW : n;
}

/* Takes the room that most items need, while the client can still be told that there is none. */
static bool open_items(struct request *r)
{
    r->items.arena = &r->items_arena;
    return r->items.cap || buf_room(&r->items, 2 * REPLY_WINDOW);
}

void request_put_list(struct request *r, struct reply_list list, bool later)
{
    assert(!r->writing); /* the pool reads the lists, and what they are made of is the arena's */
    if (r->out.failed)   /* the bytes before the list are not sent: its generation may end now */
        return;
    struct reply_list *l = later && open_items(r) ? arena_alloc(&r->arena, sizeof *l) : NULL;
    for (; !later && list.i < list.to; list.i++) {
        if (list.begun)
            buf_puts(&r->out, list.between);
        list.begun = true;
        list.put(&r->out, &list);
    }
    if (!later || list.i == list.to)
        return;
    if (!l) {
        r->out.failed = true;
        return;
    }
    list.at = r->out.len;
    *l = list;
    STAILQ_INSERT_TAIL(&r->lists, l, link);
}

void request_reply(struct request *r, int status)
{
    assert(!r->writing);
    if (r->out.failed) { /* no memory for the reply: its place is taken by one that needs none */
        take_fixed(r, no_memory_reply);
        STAILQ_INIT(&r->lists);
        r->more = NULL;
        r->error = (struct api_error){0};
        api_out_of_memory(&r->error);
        r->retry_after_s = r->error.retry_after_s;
        r->content_type = NULL;
        status = r->error.status;
    }
    r->status = status;
    r->phase = REQUEST_REPLY;
}

void request_put_error(struct request *r, const struct api_error *e)
{
    const struct route *form = r->route ? r->route : route_beside(r->server->routes, r->path);
    if (r->put_error)
        r->put_error(&r->out, e);
    else if (form && form->put_error)
        form->put_error(&r->out, e);
    else
        api_error_put(&r->out, e);
}

void request_fail(struct request *r, const struct api_error *e)
{
    assert(!r->writing);
    if (e != &r->error)
        r->error = *e;
    r->out.len = r->out_at = 0;
    STAILQ_INIT(&r->lists);
    request_put_error(r, &r->error);
    r->retry_after_s = r->error.retry_after_s;
    r->close |= r->error.close;
    request_reply(r, r->error.status);
}

void request_suspend(struct request *r)
{
    if (r->suspended)
        return;
    r->suspended = true;
    MHD_suspend_connection(r->mhd);
    connection_watch(r->connection);
}

void request_wait(struct request *r)
{
    if (r->phase < REQUEST_STREAM)
        r->phase = REQUEST_WAITING;
    request_suspend(r);
}

void request_resume(struct request *r)
{
    if (!r->suspended)
        return;
    r->suspended = false;
    r->connection->listener->dirty = true;
    MHD_resume_connection(r->mhd);
}

void request_count_body(struct request *r, size_t cap)
{
    struct http_server *s = r->server;
    assert(s->body_bytes >= r->body_cap);
    s->body_bytes = s->body_bytes - r->body_cap + cap;
    if (r->route && r->route->text)
        s->text_bytes = s->text_bytes - r->body_cap + cap;
    r->body_cap = cap;
}

void request_drop_body(struct request *r)
{
    request_count_body(r, 0);
    free(r->body);
    r->body = NULL;
    r->body_len = 0;
}

bool request_has_room(struct request *r)
{
    struct http_server *s = r->server;
    uint64_t others = s->reply_bytes - r->held;
    if (r->arena.total <= REQUEST_LARGE_REPLY || others <= REQUEST_LARGE_REPLY ||
        others + r->arena.total <= s->cfg->body_memory)
        return true;
    arena_close(&r->arena);
    r->out = (struct buf){.arena = &r->arena};
    s->ops->queue_full(s, &r->error);
    api_fail(&r->error, 503, "queue_full", NULL,
             "body_memory, %llu bytes, is used up by replies that clients have not read yet",
             (unsigned long long)s->cfg->body_memory);
    return false;
}

void request_hold(struct request *r, size_t n)
{
    assert(r->server->reply_bytes >= r->held);
    r->server->reply_bytes += n;
    r->server->reply_bytes -= r->held;
    r->held = n;
    if (r->connection)
        connection_held(r->connection, n);
}

void request_hold_reply(struct request *r)
{
    assert(!r->writing);
    request_hold(r, r->arena.total + r->items_arena.total);
    connection_drop_unread(r->connection);
}

void request_answered(struct request *r)
{
    connection_answered(r->connection, r->owner != 0);
}

/* A client that takes a reply more slowly than it would have to send a body is cut: until then the reply
 * takes memory here. */
void request_limit(struct request *r)
{
    r->limited = true;
    r->n_taken = 0;
    connection_limit(r->connection, r->server->cfg->body_timeout_ms);
}

/* --- what its connection asks --- */

void request_start_ticks(struct request *r, uint64_t ms)
{
    connection_start_ticks(r->connection, ms);
}

static void tick(struct request *r)
{
    if (r->ops)
        r->ops->tick(r);
}

/* A client that is still sending gets no reply; the log and the counters should know better than that the
 * client left. */
static void cut_body(struct request *r)
{
    api_fail(&r->error, 408, "timeout", NULL, "the body was incomplete after body_timeout_ms, %u",
             r->server->cfg->body_timeout_ms);
    r->cut = true;
}

void request_give_up(struct request *r)
{
    r->gone = true;
    if (r->ops)
        r->ops->drop(r);
    if (r->suspended)
        request_resume(r);
    else
        connection_shut(r->connection); /* blocked in writing: libmicrohttpd sees the end now */
}

static void drop_reply(struct request *r)
{
    log_info("%s: its reply, %zu bytes, was dropped unread: the replies of all clients exceed body_memory",
             r->id, r->held);
    request_hold(r, 0);
    request_give_up(r);
}

const struct connection_ops request_connection_ops = {
    .tick = tick,
    .cut_body = cut_body,
    .give_up = request_give_up,
    .drop_reply = drop_reply,
};

/* --- memory --- */

void request_ref(struct request *r)
{
    r->refs++;
}

void request_unref(struct request *r)
{
    assert(r->refs > 0);
    if (--r->refs)
        return;
    request_drop_body(r);
    request_hold(r, 0);
    arena_close(&r->arena);
    arena_close(&r->items_arena);
    free(r);
}

/* --- work on the pool --- */

static struct request *request_of(struct pool_job *job)
{
    return (struct request *)((char *)job - offsetof(struct request, job));
}

static void run_job(struct pool_job *job)
{
    struct request *r = request_of(job);
    r->work(r);
}

void request_run(struct request *r, enum pool_class class, void (*work)(struct request *),
                 void (*worked)(struct request *))
{
    assert(!r->working); /* its one job would stand in a queue twice */
    r->work = work;
    r->worked = worked;
    r->job.run = run_job;
    r->job.client = r->client;
    r->working = true;
    request_ref(r);
    r->server->n_jobs++;
    pool_add(r->server->pool, class, &r->job);
}

void request_wait_for(struct request *r, enum pool_class class, void (*work)(struct request *),
                      void (*worked)(struct request *))
{
    request_wait(r);
    request_run(r, class, work, worked);
}

void request_cancel_work(struct request *r)
{
    if (r->working)
        pool_cancel(r->server->pool, &r->job);
}

void http_take_jobs(struct http_server *s)
{
    struct pool_job *job;
    while ((job = pool_next(s->pool))) {
        struct request *r = request_of(job);
        assert(s->n_jobs > 0);
        s->n_jobs--;
        r->working = false;
        r->worked(r);
        request_unref(r);
    }
}
