/* tsan_swap.c - swapping models under ThreadSanitizer: the loop, the loading thread, the pool that closes,
 * two engines, and clients that ask, read figures and leave meanwhile; every few swaps the model is put away
 * and fetched back. Ends with 0 when every reply was whole or a 503 that says why, and every load went well.
 */
#include "config/config.h"
#include "service/server.h"
#include "service/models/model_swap.h"
#include "support/http_socket.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { N_CLIENTS = 2, N_ROUNDS = 4 };

static uv_loop_t loop;
static uv_async_t finished;
static uint16_t port;
static _Atomic uint32_t n_wrong, n_good, n_refused;
static _Atomic bool over;
static struct server *server;
static struct swap *swap;
static pthread_t clients[N_CLIENTS];
static bool drained;

/* Sends; `out` gets the reply, whole unless `leave`. Returns the status, 0 for one that left. */
static int ask(const char *method, const char *path, const char *body, bool leave, char *out, size_t room)
{
    size_t n = 0;
    int fd = client_dial(port);
    if (fd < 0)
        abort();
    ssize_t got = client_request(fd, method, path, "x-api-key: boss\r\nConnection: close\r\n", body);
    while (!leave && n + 1 < room && (got = recv(fd, out + n, room - n - 1, 0)) > 0)
        n += (size_t)got;
    out[n] = '\0';
    close(fd);
    return n > 12 ? atoi(out + 9) : 0;
}

static void *client(void *arg)
{
    static _Thread_local char reply[65536];
    char body[256];
    for (unsigned i = (unsigned)(uintptr_t)arg; !atomic_load(&over); i++) {
        snprintf(body, sizeof body,
                 "{\"prompt\":[%u,7,9],\"max_tokens\":%u,\"stream\":%s,\"ignore_eos\":true}", 1 + i % 40,
                 2 + i % 9, i % 2 ? "true" : "false");
        bool leave = i % 7 == 3;
        int status = ask("POST", "/generate", body, leave, reply, sizeof reply);
        if (leave)
            continue;
        bool refused = status == 503 && (strstr(reply, "\"loading\"") || strstr(reply, "\"suspended\""));
        bool good = status == 200 && strstr(reply, "\"finish_reason\":\"length\"");
        atomic_fetch_add(good ? &n_good : refused ? &n_refused : &n_wrong, 1);
        if (!good && !refused)
            fprintf(stderr, "tsan_swap: %s\n", reply);
        ask("GET", i % 3 ? "/stats" : "/metrics", "", false, reply, sizeof reply);
    }
    return NULL;
}

static void wait_idle(void)
{
    char reply[4096] = "";
    while (!strstr(reply, "\"state\":\"idle\"")) {
        usleep(2000);
        ask("GET", "/admin/model", "", false, reply, sizeof reply);
    }
    if (strstr(reply, "\"ok\":false"))
        atomic_fetch_add(&n_wrong, 1);
}

static void expect_begun(const char *path, const char *body)
{
    char reply[4096];
    if (ask("POST", path, body, false, reply, sizeof reply) != 202)
        atomic_fetch_add(&n_wrong, 1);
    wait_idle();
}

static void *administrator(void *arg)
{
    wait_idle();
    for (int i = 0; i < N_ROUNDS; i++) {
        expect_begun("/admin/model", i % 2 ? "{\"model\":\"tiny-qwen3-s11-q4_k_m.gguf\"}"
                                           : "{\"model\":\"tiny-qwen3-s11-q8_0.gguf\"}");
        if (i % 3 == 2) {
            expect_begun("/admin/suspend", "");
            expect_begun("/admin/resume", "");
        }
    }
    atomic_store(&over, true);
    for (int i = 0; i < N_CLIENTS; i++)
        pthread_join(clients[i], NULL);
    uv_async_send(&finished);
    return arg;
}

static void on_serves(void *context)
{
    (void)context;
}

static void on_lost(void *context, const struct error *err)
{
    (void)context;
    fprintf(stderr, "tsan_swap: %s\n", err->text);
    exit(1);
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
    swap_stop(swap);
    server_drain(server, 60000, on_drained, NULL);
}

static int fail(const struct error *err)
{
    fprintf(stderr, "tsan_swap: %s\n", err->text);
    return 1;
}

static int configure(struct config *cfg, struct error *err)
{
    static char key[] = "/tmp/hearth-key-XXXXXX";
    static const char *const keys[][2] = {{"backend", "cpu"}, {"threads", "1"}, {"slots", "4"},
                                          {"n_ctx", "256"},   {"port", "0"},    {"admin_key_file", key}};
    int fd = mkstemp(key), rc = fd < 0 || write(fd, "boss\n", 5) != 5 ? -1 : config_defaults(cfg, err);
    close(fd);
    for (size_t i = 0; rc == 0 && i < sizeof keys / sizeof *keys; i++)
        rc = config_set(cfg, keys[i][0], keys[i][1], err);
    if (rc == 0)
        rc = server_open(&server, &loop, cfg, NULL, 0, err);
    unlink(key);
    return rc;
}

int main(void)
{
    struct error err = {0};
    struct config cfg;
    pthread_t boss;
    uv_loop_init(&loop);
    uv_async_init(&loop, &finished, on_finished);
    if (configure(&cfg, &err) < 0)
        return fail(&err);
    struct swap_options options = {
        .loop = &loop, .cfg = &cfg, .server = server, .serves = on_serves, .lost = on_lost};
    if (swap_open(&swap, &options, HEARTH_TEST_DATA "/tiny-qwen3-s11-q4_k_m.gguf", &err) < 0)
        return fail(&err);
    port = server_port(server);
    for (uintptr_t i = 0; i < N_CLIENTS; i++)
        if (pthread_create(&clients[i], NULL, client, (void *)i) != 0)
            return 1;
    if (pthread_create(&boss, NULL, administrator, NULL) != 0)
        return 1;
    uv_run(&loop, UV_RUN_DEFAULT);
    pthread_join(boss, NULL);
    if (server_end(server) < 0)
        return 1;
    printf("%u replies, %u refused, %u wrong\n", n_good, n_refused, n_wrong);
    bool good = swap_close(swap) && drained && !n_wrong && n_good > 0;
    server_free(server);
    config_free(&cfg);
    uv_run(&loop, UV_RUN_DEFAULT);
    return good && uv_loop_close(&loop) == 0 ? 0 : 1;
}
