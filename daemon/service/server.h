/* server.h - the HTTP side of the daemon as daemon/service/serve.c sees it: listeners, connections, requests.
 *
 * Life: server_open() binds and answers at once (health; everything else 503 loading) ->
 * server_set_progress() while the model loads elsewhere -> server_set_model() ->
 * server_set_state(SERVER_READY) -> server_drain() -> server_end() -> (the engine is closed) ->
 * server_free(). In between another model may be set: what has begun ends on the one it began on. The server
 * has no signal handling and never exits.
 *
 * Thread: the one that runs the uv loop, except server_wake() (any thread) and server_set_progress() (any
 * thread). Memory: a request owns one arena, freed whole when its connection is done with it. */
#pragma once
#include "api/admin.h"
#include "base/error.h"
#include "generation/generator.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct chat_template;
struct config;
struct engine;
struct executor;
struct model;
struct stream_times;
struct server; /* opaque: the fields are in server_private.h */
struct tokenizer;

/* Binds and listens: on `fds` (already listening sockets of a service manager, now the server's) when n_fds >
 * 0, which then replace host, port and unix_socket; else on every address of cfg->host at cfg->port (0: any)
 * and on cfg->unix_socket when that is set. `cfg` must outlive the server. Errors: -EADDRINUSE, -EACCES,
 * -EINVAL, -ENOMEM; the words name the address. The uv loop must not be running yet, or be in one of its
 * callbacks. */
int server_open(struct server **out, uv_loop_t *loop, const struct config *cfg, const int *fds, int n_fds,
                struct error *err);

/* Returns how many connections at once so many descriptors hold, beside those for health and other things; 0:
 * none. */
uint32_t server_connections_within(uint64_t n_descriptors);

/* Checks that server_open() could listen where the configuration says, as far as can be seen without doing
 * so: the same errors of a host that has no address, of one port for two and of a unix_socket with no place
 * to be in; the same warning of a certificate that nothing shows. */
int server_check(const struct config *cfg, struct error *err);

/* Returns where it listens, for people: "http://127.0.0.1:8080", "unix:/run/hearth.sock", "a, b" for several.
 */
const char *server_where(const struct server *s);
/* A warning about how it listens, for the operator, or "". */
const char *server_warning(const struct server *s);
/* The port of the first TCP listener, 0 when there is none. For tests. */
uint16_t server_port(const struct server *s);

/* For measurements: keeps the times of streams in *times, which outlives the server. Before the loop runs. */
void server_keep_times(struct server *s, struct stream_times *times);

/* Reads key files and certificate again; what is broken is logged and stays as it was. */
void server_reload(struct server *s);

/* Sets how much of the model is loaded, 0..1; any thread. */
void server_set_progress(struct server *s, double fraction);
/* Sets the model that requests run on from here on; the struct is copied. Before SERVER_READY there must be
 * one. NULL: on none, in a state that takes no requests. The one before, if there was one, is left: see
 * below; the one before that must have been. */
void server_set_model(struct server *s, const struct server_model *m);
/* Lets requests name one of several models. Call before the loop runs, instead of server_set_model(). */
void server_set_source(struct server *s, const struct model_source *source, void *context);
/* A model of the source's takes requests; `first`: also those that name none. *m stays the caller's, and its
 * own fields are filled. It may go once it has no user. */
void server_add_model(struct server *s, struct server_model *m, bool first);
void server_remove_model(struct server *s, struct server_model *m);
/* Makes the server call source->look() soon, after it has asked for the models that requests wait for. */
void server_look(struct server *s);
/* The number of the model that has been waited for longest, or -1. */
int server_wanted_model(const struct server *s);
/* The same of those for which may() says yes. */
int server_wanted_beside(const struct server *s, bool (*may)(void *context, int number), void *context);
/* The first time at which one that waits will have waited too long; 0: none. */
uint64_t server_next_late_ns(const struct server *s);
/* Returns how the model marks tool calls and reasoning; `unread`: its template takes tools, but no format is
 * known for the calls. */
const char *server_chat_format(const struct server *s, bool *unread);
/* True if requests still run on a model that new ones no longer begin on. */
bool server_is_leaving(const struct server *s);
/* `left` is called from the loop once none has it any more: its objects may go. Never from inside a call of
 * the server's. Once, before the first model is replaced. */
void server_on_left(struct server *s, void (*left)(void *context), void *context);
/* For the model that is being left: what waits is refused as the server's state says, or all that runs is
 * cancelled. */
void server_refuse_leaving(struct server *s);
void server_cancel_leaving(struct server *s);
/* Before the loop runs. */
void server_set_admin(struct server *s, const struct server_admin *admin, void *context);
/* Sets what /health says and whether new requests are taken (only SERVER_READY takes them). DRAINING is set
 * by server_drain(). STALLED fails nothing that runs; the caller may go back to READY. */
void server_set_state(struct server *s, enum server_state state);
enum server_state server_state(const struct server *s);

/* Tells the loop that engine_next() has something: the engine's cfg.wake. Any thread, async-signal-safe,
 * coalesces. `server` is a struct server *. */
void server_wake(void *server);

/* The decoder is stuck: STALLED, and all that runs or waits gets an error now, though the engine still holds
 * it. The caller then calls server_drain(0) and the end of the process. */
void server_fail(struct server *s, const char *words);

struct server_load server_load(const struct server *s);

/* Stops taking work: what is not running yet gets 503 draining, what runs may finish for `timeout_ms`, then
 * it is cancelled. Inherited sockets stop accepting (new connections wait in their backlog for the next
 * process); own listeners go on answering health and refuse the rest. `done` is called once, from the loop,
 * when no request is left. A second call only shortens the time: with 0 everything is cancelled now. */
void server_drain(struct server *s, uint64_t timeout_ms, void (*done)(void *context), void *context);

/* Ends what is left, closes connections and listeners. Call it outside uv_run(): it runs the loop itself
 * until their handles are closed. The engine must still be open, and may go on to call server_wake() until it
 * is closed; after a return of 0 the server uses no model any longer. -ETIMEDOUT: the engine does not let go
 * of its requests; then nothing may be freed, only the process ended. */
int server_end(struct server *s);
/* After server_end(), and after the last thread that calls server_wake(): frees. Runs the loop once more.
 * NULL is fine. */
void server_free(struct server *s);
