/* server_driver.h - what the tests of the HTTP side share: a server on a loop of its own thread, over an
 * engine of the test's own (fake_engine.h), with the demo model's vocabulary. */
#pragma once
#include "fake_engine.h"

#include "chat/chat_template.h"
#include "config/config.h"
#include "gguf/gguf.h"
#include "http/http.h"
#include "service/server_private.h"
#include "http_client.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

#include <pthread.h>
#include <semaphore.h>
#include <sys/mman.h>

static struct {
    uv_loop_t loop;
    uv_async_t call;
    sem_t called;
    void (*function)(void);
    pthread_t thread;
    struct config cfg;
    struct server *server;
    struct model *model;
    struct tokenizer *tokenizer;
    struct chat_template *chat;
    uint16_t port;
    atomic_bool drained;
    int inherited; /* a listening socket for the server, 0: none */
    int client;    /* of a test that asks from the loop's own thread */
} f;

static inline void on_call(uv_async_t *handle)
{
    (void)handle;
    f.function();
    sem_post(&f.called);
}

/* Runs a function on the loop's thread and waits for it. */
static inline void on_loop(void (*function)(void))
{
    f.function = function;
    uv_async_send(&f.call);
    sem_wait(&f.called);
}

static inline void *run_loop(void *arg)
{
    uv_run(&f.loop, UV_RUN_DEFAULT);
    return arg;
}

static inline void set_model(void)
{
    struct server_model m = {.engine = (struct engine *)&fake, .tokenizer = f.tokenizer, .model = f.model};
    cr_assert_eq(chat_template_open(&f.chat, "", model_gguf(f.model), f.tokenizer, NULL), 0);
    m.chat = f.chat;
    m.hash = model_hash(f.model, 0);
    server_set_model(f.server, &m);
    server_set_state(f.server, SERVER_READY);
}

/* Sets what the fake engine will say. */
static inline void script(const char *text)
{
    int32_t *ids = NULL;
    size_t n = 0;
    cr_assert_eq(tokenizer_encode(f.tokenizer, text, strlen(text),
                                  (struct tokenizer_flags){.parse_special = true}, 0, &ids, &n, NULL),
                 0);
    cr_assert_leq(n, 256);
    memcpy(fake.script, ids, n * sizeof *ids);
    fake.n_script = (uint32_t)n;
    free(ids);
}

static inline void open_server(const char *const *keys)
{
    struct error err = {0};
    cr_assert_eq(config_defaults(&f.cfg, &err), 0);
    f.cfg.port = 0;
    for (; keys && keys[0]; keys += 2)
        cr_assert_eq(config_set(&f.cfg, keys[0], keys[1], &err), 0, "%s", err.text);
    cr_assert_eq(model_open(&f.model, HEARTH_SOURCE_DIR "/models/hearth-stories-6m-q4_k_m.gguf", &err), 0,
                 "%s", err.text);
    cr_assert_eq(tokenizer_open(&f.tokenizer, model_gguf(f.model), &err), 0, "%s", err.text);
    uv_loop_init(&f.loop);
    uv_async_init(&f.loop, &f.call, on_call);
    sem_init(&f.called, 0, 0);
    cr_assert_eq(server_open(&f.server, &f.loop, &f.cfg, &f.inherited, f.inherited > 0, &err), 0, "%s",
                 err.text);
    f.port = server_port(f.server);
    fake.n_ctx = 256;
    fake.finish = ENGINE_EOS;
    fake.server = f.server;
    uv_timer_init(&f.loop, &fake.timer);
    uv_timer_start(&fake.timer, fake_tick, 1, 1);
}

static inline void start_keys(const char *const *keys)
{
    open_server(keys);
    set_model();
    script(" there was a cat.<|endoftext|>");
    pthread_create(&f.thread, NULL, run_loop, NULL);
}

static inline void stop_loop(void)
{
    uv_stop(&f.loop);
}

static inline void close_any(uv_handle_t *handle, void *arg)
{
    (void)arg;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

static inline void stop(void)
{
    if (!f.server)
        return;
    on_loop(stop_loop);
    pthread_join(f.thread, NULL);
    cr_assert_eq(server_end(f.server), 0);
    server_wake(f.server); /* an engine that is still open may do so */
    server_free(f.server);
    uv_walk(&f.loop, close_any, NULL);
    uv_run(&f.loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&f.loop), 0, "a handle was left open");
    cr_assert_eq(fake.n_live, 0, "a request was left to the engine");
    chat_template_close(f.chat);
    tokenizer_close(f.tokenizer);
    model_close(f.model);
    config_free(&f.cfg);
}

/* --- the pool --- */

static struct {
    sem_t begun, end;
    enum pool_class class;
    struct request requests[POOL_MAX_THREADS]; /* whose jobs they are, for the server */
    int n_queued;                              /* requests that have not come back to the loop */
    bool again;
} blocked;

static inline void block(struct pool_job *job)
{
    (void)job;
    sem_post(&blocked.begun);
    sem_wait(&blocked.end);
}

/* These requests are no memory of the heap. */
static inline void keep(struct request *r)
{
    request_ref(r);
    blocked.n_queued--;
}

/* If those before have all run: with one thread another client's job may come between two of them. */
static inline void queue_blocks(void)
{
    blocked.again = blocked.n_queued > 0;
    if (blocked.again)
        return;
    blocked.n_queued = POOL_MAX_THREADS;
    sem_init(&blocked.begun, 0, 0);
    sem_init(&blocked.end, 0, 0);
    for (int i = 0; i < POOL_MAX_THREADS; i++) {
        struct request *r = &blocked.requests[i];
        *r = (struct request){.server = &f.server->http, .refs = 1, .job.run = block, .worked = keep};
        f.server->http.n_jobs++;
        pool_add(f.server->http.pool, blocked.class, &r->job);
    }
}

/* Takes the threads of a class until let_go(). With one thread the second job is the next for it. */
static inline void take_pool(enum pool_class class)
{
    blocked.class = class;
    for (blocked.again = true; blocked.again; usleep(1000))
        on_loop(queue_blocks);
    sem_wait(&blocked.begun);
    if (sysconf(_SC_NPROCESSORS_ONLN) > POOL_FEW_CORES)
        sem_wait(&blocked.begun);
}

static inline void let_go(void)
{
    for (int i = 0; i < POOL_MAX_THREADS; i++)
        sem_post(&blocked.end);
}

/* A test over a ready server with the keys and values that follow the name; at its end everything must be
 * closed. (Criterion does not count what fails in .fini.) */
#define SERVER_TEST(suite, name, ...)                                                                        \
    static void suite##_##name(void);                                                                        \
    Test(suite, name)                                                                                        \
    {                                                                                                        \
        start_keys((const char *[]){__VA_ARGS__ __VA_OPT__(, ) NULL});                                       \
        suite##_##name();                                                                                    \
        stop();                                                                                              \
    }                                                                                                        \
    static void suite##_##name(void)

static inline struct reply post(const char *path, const char *body)
{
    return client_once(f.port, "POST", path, "", body);
}

static inline struct reply get(const char *path)
{
    return client_once(f.port, "GET", path, "", NULL);
}

static inline bool wait_for(atomic_uint *counter, unsigned n)
{
    for (int i = 0; i < 120000 && *counter < n; i++)
        usleep(1000);
    return *counter >= n;
}
