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
    const char *name;      /* as clients know it; NULL: the one in the file */
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
    enum engine_pooling pooling;          /* makes a prompt's vector; NONE: a model that ranks has none */
    uint32_t n_ctx;                       /* tokens a request may have in all */
    char fingerprint[20];
    uint32_t n_users;              /* requests that hold it */
    uint32_t n_preparing;          /* requests that hold it, and are not submitted to the engine yet */
    uint32_t n_expensive;          /* chats that are not tried on the loop, as another took too long there */
    uint64_t idle_ns;              /* the last user gave it back; CLOCK_MONOTONIC */
    LIST_ENTRY(server_model) link; /* of generator.loaded */
};

struct model_view { /* a model that requests may name, as lists show it */
    const char *name,
        *state; /* "ready", "loading", "leaving" (others wait for its room), "closing" or "file" */
    const struct server_model *model; /* NULL: it is not loaded */
    uint64_t bytes;                   /* size of the file */
    int64_t modified;                 /* Unix seconds, of the file */
    uint64_t unloads_in_ms;           /* 0: it stays, or it is not loaded */
    uint64_t n_loads, n_failed;
    uint64_t n_late; /* requests that waited too long for it */
};

/* The owner of the models, if a request may name one of several (model_set.h). A model is known by its
 * number. Called on the loop. */
struct model_source {
    /* The number of the one that `name` means ("": the request named none), or -1 with a 404 in *e. */
    int (*find)(void *context, const char *name, struct api_error *e);
    /* The model, if requests may begin on it; else NULL, with *e set when it cannot be had. */
    struct server_model *(*get)(void *context, int number, struct api_error *e);
    /* A request has waited too long for this model. */
    void (*late)(void *context, int number);
    /* A request waits for a model, waits no longer, or was the last user of one: loads and closes what that
     * asks for. */
    void (*look)(void *context);
    void (*read_names)(void *context);                               /* finds new files */
    bool (*view)(void *context, int number, struct model_view *out); /* false: there are not so many */
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
    /* With a source requests name their model, and `model` is the one for requests that name none; while that
     * is not loaded, another that is, or NULL. */
    const struct model_source *source; /* NULL: there is one model, which all run on */
    void *source_context;
    LIST_HEAD(, server_model) loaded;
    TAILQ_HEAD(generations_waiting, generation) waiting; /* for their models, oldest first */
    uint32_t n_waiting;                                  /* of `waiting` */
    uint64_t waiting_bytes;                              /* of their bodies */
    bool look_due;                                       /* source->look() is */
    struct engine_stats past;                            /* figures of those that are gone: what counts up */
    void (*left)(void *context);                         /* see server_on_left() */
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
/* The same, and when the queue is full; of several models, when every queue is. */
int generator_admits(struct generator *g, struct api_error *e);
/* The queue of *m, or that of requests which wait for models to be loaded (NULL), has room for one more: 0,
 * else -1 with *e. */
int generator_admits_to(struct generator *g, const struct server_model *m, struct api_error *e);
/* The same for a text of /tokenize and /detokenize: a drain refuses each, a full queue one that is too long
 * to be read on the spot. */
int generator_admits_text(struct generator *g, bool is_long, struct api_error *e);
/* Depth, limit and Retry-After of a queue_full; m as of generator_admits_to(). */
void generator_queue_full(struct generator *g, const struct server_model *m, struct api_error *e);

/* New requests run on *m (copied) from here on; NULL: on none. */
void generator_set_model(struct generator *g, const struct server_model *m);
/* The current model, for as long as its user wants to have it. */
struct server_model *generator_ref_model(struct generator *g);
/* The same of the model that a request names (""; or one model is all there is: the current one). NULL with
 * *e: there is none, or it is not loaded. */
struct server_model *generator_ref_loaded(struct generator *g, const char *name, struct api_error *e);
void generator_unref_model(struct generator *g, struct server_model *m);
/* News for the generations of all models in use, then: is one left? */
void generator_take_news(struct generator *g);
/* Figures of the current model's engine (zeros: there is none), with what counts up and what runs and waits
 * summed over all models there were. */
void generator_stats(const struct generator *g, struct engine_stats *out);
/* Finds new files before models are listed: a walk of a directory, so once for each reply. */
void generator_read_names(const struct generator *g);
/* The models that a request may name, one by one from *i = 0; of one model it alone. False: there are no
 * more. */
bool generator_next_model(const struct generator *g, int *i, struct model_view *out);
/* For a source: *m, which stays the caller's, is loaded, and `first` where requests that name none want it;
 * or it goes, and has no user. */
void generator_add_model(struct generator *g, struct server_model *m, bool first);
void generator_remove_model(struct generator *g, struct server_model *m);
/* Looks at those that wait for models, and lets the source look, in the next turn of the loop. */
void generator_look(struct generator *g);
/* Refuse the waiting requests of the model that is being left, or cancel all. */
void generator_refuse_leaving(struct generator *g);
void generator_cancel_leaving(struct generator *g);
