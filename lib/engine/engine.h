/* engine.h - many requests, one decoder: queue, continuous batching, paged KV cache with shared prefixes,
 * cancel, deadlines.
 *
 * One engine thread owns executor and KV cache. Every step it takes all decoding sequences (one row each)
 * plus prefill chunks sized so that the step stays within step_ms, and it builds the next step while one or
 * two run (steps_in_flight). A request is admitted only when pages for prompt + max_tokens are reserved, so
 * an accepted request never dies for memory. Its tokens do not depend on what else runs, on chunking, on a
 * prefix hit or on steps_in_flight.
 *
 * Order of admission: larger priority + seconds waited first, then first come. A request that does not fit
 * (no pages) may be passed by later ones for two seconds from when it first stood at the head; then nobody
 * passes until it has been admitted. A request whose beginning is just being computed by another waits for
 * those pages. Of a step's prefill rows the oldest prompt gets at least half; the rest goes to the shortest
 * first.
 *
 * A request is a struct of the caller: filled before engine_submit(), read-only for the caller until it is
 * terminal, but for the outputs that are published as below. It goes through queued, prefill, decode, and
 * exactly one terminal state.
 *
 * Several choices of one prompt are requests linked by next_choice, which differ in their sampling settings
 * and outputs only. They are admitted together, with pages for all of them reserved. The first computes the
 * prompt; the others fork from it: they share its full pages, get a copy of the partial one, and compute the
 * last prompt token again for logits of their own. Until then they live and die with the first; afterwards
 * each has an end of its own. Their tokens are those that each would have alone.
 *
 * Where a text repeats what it or its prompt said before, a step holds further rows of one sequence (see
 * engine_speculate.c); such a sequence, and what runs beside it, has one step in flight.
 *
 * Threads: engine_submit, engine_cancel, engine_next from one thread (the event loop); engine_stats from any.
 * The engine calls cfg.wake from its own thread when engine_next has something; calls coalesce. */
#pragma once
#include "base/error.h"
#include "backend/executor.h"
#include "abi/step.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine;
struct prefix_disk;
struct tokenizer;

enum engine_state {
    ENGINE_NEW,
    ENGINE_QUEUED,
    ENGINE_PREFILL,
    ENGINE_DECODE,
    /* terminal */
    ENGINE_DONE,
};

enum engine_finish {
    ENGINE_RUNNING,
    ENGINE_EOS,           /* an end token of the model, or one of stop_ids */
    ENGINE_LENGTH,        /* max_tokens */
    ENGINE_TIMEOUT,       /* deadline_ns, while running */
    ENGINE_QUEUE_TIMEOUT, /* queue_deadline_ns or deadline_ns, before it ran */
    ENGINE_CANCELLED,
    ENGINE_FAULT,      /* decoder fault: the whole engine is stopped, see engine_fault() */
    ENGINE_NOT_FINITE, /* this request's logits were not finite */
};

struct engine_token { /* one per sampled token, the end token included */
    int32_t token;
    float logprob; /* 0 unless logprobs were asked for */
};

#define ENGINE_MAX_CHOICES 8

/* Speculation: rows for tokens that the request's own text makes likely, taken when they turn out right. It
 * changes no token and no log-probability, and pays for itself or stops. */
enum engine_speculation {
    ENGINE_SPECULATE_AUTO,
    ENGINE_SPECULATE_OFF,
    ENGINE_SPECULATE_ALWAYS, /* whether it pays or not: for tests */
};

struct engine_request {
    /* Input: set before engine_submit, constant afterwards. */
    struct engine_request *next_choice; /* another choice of the same prompt, or NULL */
    const int32_t *prompt;              /* n_prompt >= 1 ids, all in range */
    uint32_t n_prompt;
    uint32_t max_tokens; /* 0: only fill the cache; n_prompt + max_tokens <= n_ctx */
    uint32_t min_tokens;
    bool ignore_eos;
    bool cache_prompt;  /* reuse and leave prefix pages */
    bool want_logprobs; /* of the chosen tokens; with n_top alternatives */
    uint32_t n_top;
    bool want_prompt_logprobs; /* for every prompt token but the first; reads no prefix hits */
    uint32_t n_prompt_top;
    const int32_t *stop_ids;
    uint32_t n_stop_ids;
    struct step_sampling sampling;
    const struct step_bias *biases; /* sampling.n_bias of them */
    /* Text that may come again, beside the prompt: speculation looks there first. Says nothing to the model.
     */
    const int32_t *hint;
    uint32_t n_hint;
    uint64_t salt;                           /* prefix sharing happens only between equal salts */
    int32_t priority;                        /* larger first; +1 per second waited */
    uint64_t queue_deadline_ns, deadline_ns; /* CLOCK_MONOTONIC; 0: none */
    void *user;                              /* the caller's */

    /* Output room, provided by the caller: [max_tokens], and where alternatives were asked for [max_tokens *
     * n_top], [n_prompt], [n_prompt * n_prompt_top]. prompt_out[0] is unused. */
    struct engine_token *out;
    struct step_top *top;
    struct engine_token *prompt_out;
    struct step_top *prompt_top;

    /* Output, published by the engine: entries below n_out (acquire) are final; `finish` and the times are
     * final once state (acquire) is ENGINE_DONE, after which the engine never touches the request again. */
    _Atomic uint32_t n_out;
    _Atomic uint32_t n_prompt_done; /* prompt tokens computed or found in the cache */
    _Atomic uint32_t state;         /* enum engine_state */
    enum engine_finish finish;
    uint32_t
        n_cached; /* prompt tokens taken from the prefix cache; 0 where the first choice's prompt is used */
    uint64_t queued_ns, started_ns, first_ns, done_ns; /* CLOCK_MONOTONIC; 0: did not happen */

    /* The engine's own. */
    _Atomic bool cancelled;
    _Atomic bool listed;
    bool ended; /* finish is set; engine_next() will make the state terminal */
    struct engine_request *next_ready, *next_queued, *prev_queued;
    int64_t order;       /* place in the queue, smaller first */
    uint64_t blocked_ns; /* first in the queue and without room since */
    uint32_t slot;
    uint32_t n_together; /* choices that are admitted with it, itself included */
};

struct engine_config {
    uint32_t n_slots, n_ctx;
    uint32_t queue_limit;     /* waiting requests */
    uint32_t step_ms;         /* time budget of a step; 0: the backend's default */
    uint32_t steps_in_flight; /* 1 or 2 */
    uint32_t
        max_chunk;     /* rows of one prefill chunk; 0: no bound but the step's (tests force odd chunkings) */
    bool prefix_cache; /* where the backend can share pages; else it stays off */
    enum engine_speculation speculation;
    /* Where pages of the prefix cache outlive it; NULL: nowhere. Must outlive the engine, which is the only
     * one to be attached to it. Backends that cannot export pages do without. */
    struct prefix_disk *disk;
    const int32_t *end_tokens; /* sorted; copied */
    uint32_t n_end_tokens;
    void (*wake)(void *context);
    void *context;
};

/* Starts the engine thread; the executor is the engine's until engine_close() returns (which does not close
 * it). */
int engine_open(struct engine **out, struct executor *x, const struct engine_config *cfg, struct error *err);
/* Cancels everything, waits for the thread. Requests not yet reported are terminal (CANCELLED) on return.
 * NULL is fine. */
void engine_close(struct engine *e);

/* A request that finds a free slot does not count against queue_limit: n_slots + queue_limit requests are
 * accepted at once, fewer when it is pages that are short. Every choice counts, but one with several is let
 * in when there is room for one of them: else a short queue would never take it. `state` becomes terminal in
 * engine_next() or engine_close(), on the caller's thread. 0; -EAGAIN: the queue is full; -EINVAL: cannot
 * ever run (words say the limit); -EIO: the decoder has failed. */
int engine_submit(struct engine *e, struct engine_request *r, struct error *err);
/* Requests that would count against queue_limit if `n_more` came to those that are open: what is beyond the
 * slots or, when pages are short, what has found none. engine_submit() refuses when the one it would add
 * makes this more than queue_limit; a caller that refuses earlier asks the same. Any thread. */
uint32_t engine_queue_depth(const struct engine *e, uint32_t n_more);
/* In any phase; the request still becomes terminal through engine_next(). Idempotent. */
void engine_cancel(struct engine *e, struct engine_request *r);
/* The next request with news (tokens, state), or NULL. A request is listed at most once until taken. */
struct engine_request *engine_next(struct engine *e);

struct engine_stats {
    uint32_t running, waiting, queue_limit;
    uint64_t completed, failed, rejected, cancelled, timed_out;
    uint64_t prompt_tokens, cached_tokens, generated_tokens;
    uint64_t steps;
    bool speculates;
    uint64_t drafted, accepted;          /* rows for tokens that were likely, and those of them that came */
    uint64_t draft_steps;                /* steps that had such rows */
    uint64_t steps_saved;                /* that the same tokens would have needed more */
    uint64_t draft_requests, turned_off; /* requests that had such rows; that stopped, as they did not pay */
    uint32_t pages_total, pages_used, pages_cached; /* used: held by a live sequence; cached: evictable */
    bool has_disk;                                  /* the figures of prefix_disk_stats() */
    uint64_t disk_pages, disk_bytes, disk_hits, disk_spilled, disk_errors;
    uint64_t kv_bytes;
    double prompt_tokens_per_s, tokens_per_s; /* over the last ten seconds */
    bool faulted;
    uint64_t heartbeat_ns; /* the engine thread's last sign of life: with every step, and asleep for want of
                              work only when asked by engine_ping */
    bool idle;             /* nothing running, nothing waiting */
};
/* Everything counted so far (not what runs or waits) counts no more: what was asked for has been a warm-up.
 * Only while nothing runs or waits. */
void engine_forget(struct engine *e);
void engine_stats(const struct engine *e, struct engine_stats *out);
/* Asks the engine thread for a sign of life (heartbeat_ns). Never blocks. */
void engine_ping(struct engine *e);
/* After a decoder fault: its words. */
bool engine_fault(const struct engine *e, struct error *out);
uint32_t engine_n_ctx(const struct engine *e); /* tokens a request may have in all */
