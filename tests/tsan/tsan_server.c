/* tsan_server.c - the HTTP side's threads under ThreadSanitizer: the loop, the pool that prepares large
 * bodies and writes long replies, the engine's own over a decoder without a model, and clients that stream,
 * leave in the middle and read figures. Ends with 0 when every client that stayed got its reply and the drain
 * found nothing left. The times that `hearthd bench --hops` asks for are taken, too. */
#include "config/config.h"
#include "engine/engine.h"
#include "support/fake_backend.h"
#include "support/http_socket.h"
#include "http/stream_times.h"
#include "model/model.h"
#include "service/server.h"
#include "tokenizer/tokenizer.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

enum { N_CLIENTS = 4, N_REQUESTS = 60, N_LONG = 6000, N_TIMES = 4000 };

static struct engine_times engine_times[N_TIMES];
static struct stream_taken taken[N_TIMES];
static struct stream_handed handed[N_TIMES];
static struct stream_times stream_times = {.taken = taken, .handed = handed, .room = N_TIMES};

static uv_loop_t loop;
static uv_async_t finished;
static uint16_t port;
static _Atomic uint32_t n_running = N_CLIENTS, n_wrong, n_good;
static struct server *server;
static bool drained;

static int dial(void)
{
    int fd = client_dial(port);
    if (fd < 0)
        abort();
    return fd;
}

/* Every third body is long enough for the pool, and every seventh reply. */
static void ask(int fd, uint32_t i)
{
    static const char spaces[] = "                                                                ";
    char body[N_LONG + 256];
    bool long_reply = i % 7 == 0;
    int n =
        snprintf(body, sizeof body,
                 "{\"prompt\":[%u,%u,7],\"max_tokens\":%u,\"seed\":%u,\"stream\":%s,\"logprobs\":%u,\"n\":%u,"
                 "\"ignore_eos\":%s",
                 i, i + 1, long_reply ? 30 : i % 30, i, i % 2 ? "true" : "false", long_reply ? 20 : i % 3,
                 long_reply ? 8 : 1, long_reply ? "true" : "false");
    for (int k = 0; i % 3 == 0 && k < N_LONG; k += 64)
        n += snprintf(body + n, sizeof body - (size_t)n, "%s", spaces);
    snprintf(body + n, sizeof body - (size_t)n, "}");
    client_request(fd, "POST", "/generate", "Connection: close\r\n", body);
}

static void check_reply(int fd)
{
    char text[16] = "", rest[4096];
    ssize_t n = recv(fd, text, 12, MSG_WAITALL);
    atomic_fetch_add(n == 12 && !memcmp(text, "HTTP/1.1 200", 12) ? &n_good : &n_wrong, 1);
    while (recv(fd, rest, sizeof rest, 0) > 0)
        ;
}

static void *client(void *arg)
{
    uint32_t who = (uint32_t)(uintptr_t)arg;
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        int fd = dial();
        ask(fd, who * N_REQUESTS + i);
        if (i % 5 == 4)
            usleep(i * 50); /* and leaves, in any phase */
        else
            check_reply(fd);
        close(fd);
        if (i % 10 == 0) {
            fd = dial();
            client_request(fd, "GET", "/stats", "Connection: close\r\n", NULL);
            check_reply(fd);
            close(fd);
        }
    }
    if (atomic_fetch_sub(&n_running, 1) == 1)
        uv_async_send(&finished);
    return NULL;
}

static void on_drained(void *context)
{
    (void)context;
    drained = true;
    uv_stop(&loop);
}

static void on_finished(uv_async_t *handle)
{
    uv_close((uv_handle_t *)handle, NULL);
    server_drain(server, 60000, on_drained, NULL);
}

/* True if times were taken, each no earlier than the one before it. */
static bool times_ascend(void)
{
    uint32_t n = 0;
    for (; n < N_TIMES && engine_times[n].back_ns; n++) {
        const struct engine_times *t = &engine_times[n];
        if (t->begun_ns > t->seen_ns || t->seen_ns > t->published_ns || t->published_ns > t->told_ns ||
            t->told_ns > t->back_ns)
            return false;
    }
    for (uint32_t i = 0; i < stream_times.n_taken; i++)
        if (taken[i].turn_ns > taken[i].taken_ns)
            return false;
    return n > 0 && stream_times.n_taken > 0 && stream_times.n_handed > 0;
}

static int fail(const struct error *err)
{
    fprintf(stderr, "tsan_server: %s\n", err->text);
    return 1;
}

int main(void)
{
    static const int32_t end_tokens[] = {3, 17, 42};
    struct error err = {0};
    struct config cfg;
    struct server_model m = {0};
    struct executor *x = NULL;
    struct model *model = NULL;
    struct tokenizer *tokenizer = NULL;
    pthread_t threads[N_CLIENTS];
    uv_loop_init(&loop);
    uv_async_init(&loop, &finished, on_finished);
    if (config_defaults(&cfg, &err) < 0)
        return fail(&err);
    cfg.port = 0;
    if (server_open(&server, &loop, &cfg, NULL, 0, &err) < 0 ||
        model_open(&model, HEARTH_SOURCE_DIR "/models/hearth-stories-6m-q4_k_m.gguf", &err) < 0 ||
        tokenizer_open(&tokenizer, model_gguf(model), &err) < 0)
        return fail(&err);
    struct fake *fake = fake_open(20, 4, end_tokens, 3);
    struct engine_config ecfg = {.n_slots = 4,
                                 .n_ctx = 256,
                                 .queue_limit = 256,
                                 .steps_in_flight = 2,
                                 .prefix_cache = true,
                                 .end_tokens = end_tokens,
                                 .n_end_tokens = 3,
                                 .wake = server_wake,
                                 .context = server,
                                 .times = engine_times,
                                 .n_times = N_TIMES};
    if (executor_wrap(&x, &fake->be, &err) < 0 || engine_open(&m.engine, x, &ecfg, &err) < 0)
        return fail(&err);
    m.executor = x;
    m.model = model;
    m.tokenizer = tokenizer;
    port = server_port(server);
    server_keep_times(server, &stream_times);
    server_set_model(server, &m);
    server_set_state(server, SERVER_READY);
    for (uintptr_t i = 0; i < N_CLIENTS; i++)
        if (pthread_create(&threads[i], NULL, client, (void *)i) != 0)
            return 1;
    uv_run(&loop, UV_RUN_DEFAULT);
    for (int i = 0; i < N_CLIENTS; i++)
        pthread_join(threads[i], NULL);
    if (server_end(server) < 0)
        return 1;
    engine_close(m.engine);
    server_free(server);
    executor_close(x);
    tokenizer_close(tokenizer);
    model_close(model);
    config_free(&cfg);
    uv_run(&loop, UV_RUN_DEFAULT);
    bool closed = uv_loop_close(&loop) == 0;
    printf("%u replies, %u wrong\n", n_good, n_wrong);
    return drained && closed && !n_wrong && n_good > 0 && times_ascend() ? 0 : 1;
}
