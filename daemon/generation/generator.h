/* generator.h - what requests for tokens share: the model that new ones run on and the one before it, the
 * generations in progress, and whether another may begin. Thread: loop, but for progress_ppm. Memory: the
 * models' objects are the caller's, see struct server_model. */
#pragma once
#include "engine/engine.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

struct api_error;
struct chat_template;
struct config;
struct constraints;
struct executor;
struct generation;
struct http_server;
struct model;
struct tokenizer;
struct toolcall_format;

enum server_state { SERVER_LOADING, SERVER_READY, SERVER_DRAINING, SERVER_STALLED, SERVER_SUSPENDED };

/* The model that requests run on. The objects stay the caller's and must live until the model has been left
 * or server_end() has returned. */
struct server_model {
    struct engine *engine; /* opened with cfg.wake = server_wake, cfg.context = the server */
    const struct tokenizer *tokenizer;
    const struct model *model;
    const struct executor *executor;  /* for /stats: executor_info() */
    const char *why;                  /* for /stats: why the backend is not a better one, or "" */
    uint64_t hash;                    /* model_hash(): part of the fingerprint */
    struct constraints *constraints;  /* NULL: texts cannot be constrained */
    const struct chat_template *chat; /* of /v1/chat/completions; NULL: there is none */
    /* The server's own. */
    const struct toolcall_format *format; /* the marks of tool calls and reasoning */
    uint32_t n_ctx;                       /* tokens a request may have in all */
    char fingerprint[20];
    uint32_t n_users;     /* requests that hold it */
    uint32_t n_expensive; /* chats that are not tried on the loop, as another took too long there */
};

struct generator {
    struct http_server *http;
    const struct config *cfg;
    enum server_state state;
    bool draining;
    _Atomic uint32_t progress_ppm; /* of the load; any thread */
    struct server_model models[2]; /* room for the two below */
    struct server_model *model;    /* new requests run on; NULL: loading, or suspended */
    struct server_model *leaving;  /* requests still run on; or NULL */
    struct engine_stats past;      /* figures of those that are gone: what counts up */
    void (*left)(void *context);   /* see server_on_left() */
    void *left_context;
    LIST_HEAD(, generation) generations; /* accepted and not finished */
    uint32_t n_active;                   /* of `generations` */
    uint32_t n_preparing;                /* accepted, not submitted to the engine yet */
    uint32_t n_texts;                    /* /tokenize and /detokenize on the pool */
};

struct server_load { /* requests as /stats counts them: of several choices each that runs */
    uint32_t running, waiting;
};

struct server_load generator_load(const struct generator *g);
const char *server_state_name(enum server_state state); /* as /health shows it */
/* No effect while it drains. */
void generator_set_state(struct generator *g, enum server_state state);
/* Why no work is taken in the server's state: fills *e and returns -1, or 0 when it is ready. */
int generator_refuses(const struct generator *g, struct api_error *e);
/* The same, and when the queue is full. */
int generator_admits(struct generator *g, struct api_error *e);
/* The same for a text of /tokenize and /detokenize: a drain refuses each, a full queue one that is too long
 * to be read on the spot. */
int generator_admits_text(struct generator *g, bool is_long, struct api_error *e);
/* Depth, limit and Retry-After of a queue_full. */
void generator_queue_full(struct generator *g, struct api_error *e);

/* New requests run on *m (copied) from here on; NULL: on none. */
void generator_set_model(struct generator *g, const struct server_model *m);
/* The current model, for as long as its user wants to have it. */
struct server_model *generator_take_model(struct generator *g);
void generator_give_model(struct generator *g, struct server_model *m);
/* News for the generations of all models in use, then: is one left? */
void generator_take_news(struct generator *g);
/* Figures of the current model's engine (zeros: there is none), with what counts up and what runs and waits
 * summed over all models there were. */
void generator_stats(const struct generator *g, struct engine_stats *out);
/* Refuse the waiting requests of the model that is being left, or cancel all. */
void generator_refuse_leaving(struct generator *g);
void generator_cancel_leaving(struct generator *g);
