/* request.c - one HTTP request: its reply, its suspension, its memory. */
#include "generation/generation.h"
#include "http.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define POOL_NICE 5

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

static void put_context(struct buf *out, const struct api_error *e)
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
    put_context(out, e);
    buf_puts(out, "}}\n");
}

#define NO_MEMORY                                                                                            \
    "{\"error\":{\"type\":\"queue_full\",\"message\":\"out of memory\",\"param\":null,\"code\":503}}\n"
const char no_memory_reply[] = NO_MEMORY;
static const char no_memory_event[] = "event: error\ndata: " NO_MEMORY "\n";

/* `failed` stays, so that nothing is added to what is not the arena's. */
static void take_fixed(struct request *r, const char *words)
{
    r->out = (struct buf){.arena = &r->arena, .p = (char *)words, .len = strlen(words), .failed = true};
    r->out_at = 0;
    r->out_whole = r->out.len;
}

bool request_wrote(struct request *r)
{
    if (!r->out.failed)
        r->out_whole = r->out.len;
    return !r->out.failed;
}

size_t request_take(struct request *r, char *out, size_t max)
{
    if (r->out.failed && r->out_at == r->out_whole && !r->cut_short) {
        take_fixed(r, no_memory_event);
        r->cut_short = r->stream_ended = true;
    }
    size_t n = (r->out.failed ? r->out_whole : r->out.len) - r->out_at;
    n = n < max ? n : max;
    if (n)
        memcpy(out, r->out.p + r->out_at, n);
    r->out_at += n;
    if (r->out_at == r->out.len)
        r->out.len = r->out_at = r->out_whole = 0;
    return n;
}

void request_reply(struct request *r, int status)
{
    if (r->out.failed) { /* no memory for the reply: its place is taken by one that needs none */
        take_fixed(r, no_memory_reply);
        r->error = (struct api_error){0};
        api_out_of_memory(&r->error);
        r->retry_after_s = r->error.retry_after_s;
        r->content_type = NULL;
        status = r->error.status;
    }
    r->status = status;
    r->phase = REQUEST_REPLY;
}

void request_fail(struct request *r, const struct api_error *e)
{
    if (e != &r->error)
        r->error = *e;
    r->out.len = r->out_at = 0;
    api_error_put(&r->out, &r->error);
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
    if (!r->watched)
        connection_watch(r->connection);
    r->watched = true;
}

void request_resume(struct request *r)
{
    if (!r->suspended)
        return;
    r->suspended = false;
    r->connection->listener->dirty = true;
    MHD_resume_connection(r->mhd);
}

void request_drop_body(struct request *r)
{
    r->server->body_bytes -= r->body_cap;
    free(r->body);
    r->body = NULL;
    r->body_len = r->body_cap = 0;
}

bool request_has_room(struct request *r)
{
    struct server *s = r->server;
    if (r->out.cap <= REQUEST_LARGE_REPLY || !s->reply_bytes ||
        s->reply_bytes + r->out.cap <= s->cfg->body_memory)
        return true;
    arena_close(&r->arena);
    r->out = (struct buf){.arena = &r->arena};
    server_queue_full(s, &r->error);
    api_fail(&r->error, 503, "queue_full", NULL,
             "body_memory, %llu bytes, is used up by replies that clients have not read yet",
             (unsigned long long)s->cfg->body_memory);
    return false;
}

/* A client that takes a large reply more slowly than it would have to send a body is cut: until then the
 * reply is memory of ours. */
void request_hold(struct request *r)
{
    const struct config *cfg = r->server->cfg;
    if (r->out.cap <= REQUEST_LARGE_REPLY)
        return;
    r->out_held = r->out.cap;
    r->server->reply_bytes += r->out_held;
    connection_limit(r->connection, cfg->body_timeout_ms * (1 + r->out.cap / cfg->max_body));
}

void request_ref(struct request *r)
{
    r->refs++;
}

void request_unref(struct request *r)
{
    if (--r->refs)
        return;
    request_drop_body(r);
    r->server->reply_bytes -= r->out_held;
    arena_close(&r->arena);
    free(r);
}

/* --- work on the pool --- */

/* A long prompt's tokenising gives way to the tokens of others; Linux keeps a nice value per thread. */
static void give_way(void)
{
    static _Thread_local bool done;
    if (!done)
        setpriority(PRIO_PROCESS, (id_t)gettid(), POOL_NICE);
    done = true;
}

static void on_work(uv_work_t *work)
{
    give_way();
    struct request *r = work->data;
    r->work(r);
}

static void on_worked(uv_work_t *work, int status)
{
    struct request *r = work->data;
    (void)status; /* it is never cancelled */
    r->server->n_pool--;
    r->on_pool = false;
    r->worked(r);
    struct server *s = r->server;
    request_unref(r);
    server_run_listeners(s);
}

void request_run(struct request *r, bool is_long, void (*work)(struct request *),
                 void (*worked)(struct request *))
{
    if (!is_long) {
        work(r);
        worked(r);
        return;
    }
    r->work = work;
    r->worked = worked;
    r->pool_work.data = r;
    r->on_pool = true;
    request_ref(r);
    r->server->n_pool++;
    uv_queue_work(r->server->loop, &r->pool_work, on_work, on_worked);
}

void request_prepare(struct request *r, void (*work)(struct request *), void (*worked)(struct request *))
{
    bool is_long = r->body_len > REQUEST_INLINE_BODY;
    if (is_long) {
        r->phase = REQUEST_WAITING;
        request_suspend(r);
    }
    request_run(r, is_long, work, worked);
}
