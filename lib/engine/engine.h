/* engine.h - schedules many requests on one decoder: queue, continuous batching, paged KV cache with shared
 * prefixes, cancel, deadlines.
 *
 * One engine thread owns the executor and the KV cache. Each step holds one row of every decoding sequence
 * plus prefill chunks, sized so that the step stays within step_ms. The engine builds the next step while one
 * or two run (steps_in_flight). A request is admitted only when pages for prompt + max_tokens are reserved,
 * so an admitted request never runs out of memory. Its tokens do not depend on the other requests, on
 * chunking, on a prefix hit or on steps_in_flight.
 *
 * Order of admission: the largest (priority + seconds waited) first, then first come. A request without room
 * (no pages) may be passed by later ones for two seconds from the time it became the first of the queue; then
 * no request passes it until it is admitted. A request whose prefix another request is computing waits for
 * those pages. The oldest prompt gets at least half of a step's prefill rows, and all that it can use while
 * no prompt has less left; the rest goes to the shortest prompts first.
 *
 * The caller owns a request: it fills the struct before engine_submit() and only reads it until the state is
 * terminal; the engine publishes the outputs as described below. A request goes through queued, prefill,
 * decode, and exactly one terminal state.
 *
 * Several choices of one prompt are requests linked by next_choice. They differ in their sampling settings
 * and outputs only. They are admitted together, with pages for all of them reserved. The first computes the
 * prompt. The others fork from it: they share its full pages, get a copy of the partial one, and compute the
 * last prompt token again for logits of their own. Until the fork they end with the first choice; afterwards
 * each ends by itself. The tokens of a choice are those that it would have alone.
 *
 * A constrained request gets a mask of the tokens that may come next with every row that samples. The mask
 * follows from its text alone, so its tokens do not depend on the other requests either. It has one step in
 * flight, and the steps beside it wait for its token. Where its grammar leaves one way for several bytes,
 * their tokens are its drafts.
 *
 * A text without some strings (`banned`) gets masks, too. Its tokens are published when they cannot be
 * withdrawn any more; until then its pages are its own.
 *
 * A request with a chain of filters is sampled between steps, by any thread of the decoder's team, from
 * logits that the decoder exports; so is its constraint obeyed. It too has one step in flight and no drafts.
 *
 * Where a text repeats tokens of itself or of its prompt, a step holds draft rows of that sequence too (see
 * engine_speculate.c). Such a sequence, and those that run beside it, have one step in flight.
 *
 * Thread: engine_open, engine_submit, engine_cancel, engine_next, engine_forget and engine_close from one
 * thread at a time (the loader, then the event loop); the other functions from any. The engine thread calls
 * cfg.wake when engine_next() has something; several calls may coalesce into one. Memory: engine_open()
 * allocates all; requests belong to the caller. Errors: a negative errno with words; a decoder fault ends
 * every request with ENGINE_FAULT, see engine_fault(). */
#pragma once
#include "base/error.h"
#include "backend/executor.h"
#include "abi/step.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

struct engine;
struct prefix_disk;
struct tokenizer;
struct matcher;
struct banned;
struct vocabulary;
struct sampler_chain;

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
    ENGINE_EOS,           /* an end token of the model or one of stop_ids was sampled */
    ENGINE_LENGTH,        /* max_tokens */
    ENGINE_TIMEOUT,       /* deadline_ns, while running */
    ENGINE_QUEUE_TIMEOUT, /* queue_deadline_ns or deadline_ns, before it ran */
    ENGINE_CANCELLED,
    ENGINE_FAULT,      /* decoder fault: the whole engine stops, see engine_fault() */
    ENGINE_NOT_FINITE, /* this request's logits were not finite */
    ENGINE_STUCK,      /* no token can follow in this request's grammar, or without its banned strings */
};

struct engine_token { /* one per sampled token, also for the end token */
    int32_t token;
    float logprob; /* natural log; 0 unless want_logprobs */
};

#define ENGINE_MAX_CHOICES 8

/* Speculation: a step also computes rows for tokens that the request's own text makes likely, and keeps those
 * that are sampled. It changes no token and no log-probability, and turns itself off when it does not pay. */
enum engine_speculation {
    ENGINE_SPECULATE_AUTO,
    ENGINE_SPECULATE_OFF,
    ENGINE_SPECULATE_ALWAYS, /* also when it does not pay: for tests */
};

/* The vector of a prompt, made of the hidden states of its tokens behind the last norm. */
enum engine_pooling {
    ENGINE_POOL_NONE, /* none is wanted */
    ENGINE_POOL_MEAN, /* the sum in the order of the tokens, then divided by their number, in floats */
    ENGINE_POOL_FIRST,
    ENGINE_POOL_LAST,
};

struct engine_request {
    /* Input: set before engine_submit, constant afterwards. */
    struct engine_request *next_choice; /* another choice of the same prompt, or NULL */
    const int32_t *prompt;              /* n_prompt >= 1 ids, all in range */
    uint32_t n_prompt;
    uint32_t max_tokens; /* 0: only fills the prefix cache; n_prompt + max_tokens <= n_ctx */
    uint32_t min_tokens;
    bool ignore_eos;
    bool cache_prompt;  /* reuse pages of the prefix cache and leave pages in it */
    bool want_logprobs; /* of the sampled tokens; with n_top alternatives */
    uint32_t n_top;
    bool want_prompt_logprobs; /* of every prompt token but the first; disables prefix hits */
    uint32_t n_prompt_top;
    enum engine_pooling pooling; /* a prompt whose vector is wanted has max_tokens 0 and no choices */
    const int32_t *stop_ids;
    uint32_t n_stop_ids;
    struct step_sampling sampling;
    const struct step_bias *biases; /* sampling.n_bias of them */
    uint64_t salt;                  /* requests share prefixes only if their salts are equal */
    /* A text that must stay in a language: the matcher at its beginning, which the engine's thread uses until
     * the request is terminal; NULL: any text. */
    struct matcher *constraint;
    const struct vocabulary *vocabulary;
    struct banned *banned; /* strings that the text must not contain, with no token taken, which the engine's
                              thread uses until the request is terminal; NULL: none. */
    /* Filters that the decoder lacks (sampler_chain.h), at their beginning: the engine's thread or one of the
     * decoder's team samples with them, from the decoder's logits, and the engine has their state until the
     * request is terminal; NULL: none. */
    struct sampler_chain *chain;
    bool begun;       /* a part of a caller's request that runs already: queue_limit does not count it */
    int32_t priority; /* larger first; +1 per second waited */
    uint64_t queue_deadline_ns, deadline_ns; /* CLOCK_MONOTONIC; 0: none */
    void *user;                              /* for the caller */

    /* Output buffers of the caller: out [max_tokens]; and where they are wanted, top [max_tokens * n_top],
     * prompt_out [n_prompt], prompt_top [n_prompt * n_prompt_top], embedding [engine_n_embedding()].
     * prompt_out[0] is unused. `embedding` is final when the request is terminal. */
    struct engine_token *out;
    struct step_top *top;
    struct engine_token *prompt_out;
    struct step_top *prompt_top;
    float *embedding;

    /* Output, published by the engine. Entries below n_out (acquire) are final. `finish` and the times are
     * final once state (acquire) is ENGINE_DONE; after that the engine never touches the request again. */
    _Atomic uint32_t n_out;
    _Atomic uint32_t n_prompt_done; /* prompt tokens computed or found in the cache */
    _Atomic uint32_t state;         /* enum engine_state */
    enum engine_finish finish;
    uint32_t n_cached; /* prompt tokens found in the prefix cache; 0 for a choice that forks from the first */
    uint64_t queued_ns, started_ns, first_ns, done_ns; /* CLOCK_MONOTONIC; 0: has not happened */

    /* Private to the engine. */
    _Atomic bool cancelled;
    _Atomic bool listed;
    bool ended; /* finish is set; engine_next() will make the state terminal */
    STAILQ_ENTRY(engine_request) ready, submitted;
    TAILQ_ENTRY(engine_request) queued;
    int64_t order;       /* key of the queue, smallest first */
    uint64_t blocked_ns; /* CLOCK_MONOTONIC; first in the queue and without room since then; 0: never */
    uint32_t slot;
    uint32_t n_together; /* choices that are admitted together, this one included */
};

/* When a generated token was where, in ns of CLOCK_MONOTONIC, each time no earlier than those above it.
 * begun_ns and seen_ns are of the call of executor_advance() that returned its step's result: on cpu the step
 * is computed in it. */
struct engine_times {
    uint64_t submitted_ns; /* its step was given to the executor; without order to begun_ns */
    uint64_t begun_ns;
    uint64_t seen_ns;
    uint64_t published_ns; /* the token is published next */
    uint64_t told_ns; /* cfg.wake is called next. A token that needs no call, since one before it is still on
                         its way, has the times of the next call, or 0 where there was none */
    uint64_t back_ns; /* it has returned, and the engine's thread has lent its CPU to the one that woke */
    uint64_t ops_ns;  /* no time, but how long the step's ops took; 0: executor_program_ns() is unknown */
};

struct engine_config {
    uint32_t n_slots, n_ctx;
    uint32_t queue_limit;     /* requests that may wait, see engine_submit() */
    uint32_t step_ms;         /* time budget of a step; 0: the backend's default */
    uint32_t steps_in_flight; /* 1 or 2 */
    uint32_t
        max_chunk;     /* rows of one prefill chunk; 0: as many as a step holds (tests force odd chunkings) */
    uint64_t draw_ns;  /* a step waits so long for tokens that chains draw, and for draws that have begun by
                          then; 0: 4 ms, or a step's time */
    bool prefix_cache; /* takes effect only where the backend can share pages */
    enum engine_speculation speculation;
    /* Keeps pages of the prefix cache on disk; NULL: they are not kept. It outlives the engine, which is the
     * only user attached to it. It is unused with backends that cannot export pages. */
    struct prefix_disk *disk;
    const int32_t *end_tokens; /* sorted; copied */
    uint32_t n_end_tokens;
    void (*wake)(void *context);
    void *context;
    /* For measurements: the times of the first n_times tokens of all requests, in the order of publishing,
     * are written here until engine_close(). `wake` is not NULL then. NULL: none are taken. */
    struct engine_times *times;
    uint32_t n_times;
};

/* Starts the engine thread. The engine uses the executor until engine_close() returns, but does not close it.
 * `cfg` is copied. -EINVAL: a setting out of range; -ENOMEM; or the error of pthread_create(). */
int engine_open(struct engine **out, struct executor *x, const struct engine_config *cfg, struct error *err);
/* Cancels every request and joins the thread. Every request is terminal on return, also those that
 * engine_next() has not returned. NULL is fine. */
void engine_close(struct engine *e);

/* True if requests may have a constraint: the backend takes masks. Any thread. */
bool engine_constrains(const struct engine *e);
/* Bytes that the draws of further filters take (DRY, XTC …): the logits of each slot, 4 bytes a token of the
 * vocabulary, and for each thread that draws, at most 8 and no more than slots, some 32 bytes a token and 8 a
 * token of the context. Taken when the engine opens, resident once used. n_threads: of the executor's team.
 * Any thread. */
uint64_t engine_draw_size(uint32_t n_slots, uint32_t n_threads, uint32_t n_vocab, uint32_t n_ctx);
uint64_t engine_draw_bytes(const struct engine *e); /* of this engine */
/* The width of the vectors that `pooling` asks for; 0: the executor keeps no hidden states, and a request
 * that asks is refused. Any thread. */
uint32_t engine_n_embedding(const struct engine *e);
/* Queues the request. One that finds a free slot does not count against queue_limit: n_slots + queue_limit
 * requests are accepted at once, fewer when pages are short. Every choice counts, but a request with several
 * choices is accepted when there is room for one of them, because a short queue would otherwise never accept
 * it. `state` becomes terminal in engine_next() or engine_close(), on the caller's thread. Returns 0;
 * -EAGAIN: the queue is full; -EINVAL: the request can never run (the words name the limit); -EIO: the
 * decoder has failed. */
int engine_submit(struct engine *e, struct engine_request *r, struct error *err);
/* The number of requests that would count against queue_limit with `n_more` added to the open ones: those
 * beyond the slots or, when pages are short, those without pages. engine_submit() refuses a request that
 * makes this more than queue_limit; a caller that refuses earlier asks the same question. Any thread. */
uint32_t engine_queue_depth(const struct engine *e, uint32_t n_more);
/* Returns how many requests run at a time when there are enough of them: the slots, or those that the engine
 * found memory for when it looked last. */
uint32_t engine_at_once(const struct engine *e);
/* Cancels a request in any phase. It still becomes terminal through engine_next(). Idempotent. */
void engine_cancel(struct engine *e, struct engine_request *r);
/* Returns the next request with new tokens or a new state, or NULL. A request is listed at most once until it
 * is returned. */
struct engine_request *engine_next(struct engine *e);

struct engine_stats {
    uint32_t running, waiting, queue_limit;
    uint64_t completed, failed, rejected, cancelled, timed_out;
    uint64_t prompt_tokens, cached_tokens, generated_tokens;
    uint64_t steps;
    bool speculates;
    uint32_t snapshots_total, snapshots_kept; /* of recurrent states */
    bool shares_prefixes;                     /* the prefix cache is on, and the model can have one */
    uint64_t drafted, accepted;               /* draft rows, and those of them that were sampled */
    uint64_t forced;                          /* of the accepted, those that a grammar forced */
    uint64_t draft_steps;                     /* steps with draft rows */
    uint64_t steps_saved;                     /* steps that the same tokens would have needed in addition */
    uint64_t draft_requests, turned_off;      /* requests with draft rows; requests that stopped drafting */
    uint32_t pages_total, pages_used, pages_cached; /* used: held by a live sequence; cached: evictable */
    /* Pages of the layers with windows, where they are apart: kept for a window, or for the prefix cache. */
    uint32_t windows_total, windows_used, windows_cached;
    bool has_disk; /* the disk_ fields are valid */
    uint64_t disk_pages, disk_bytes, disk_hits, disk_spilled, disk_errors;
    uint64_t kv_bytes;
    double prompt_tokens_per_s, tokens_per_s; /* over the last ten seconds */
    bool faulted;
    uint64_t heartbeat_ns; /* CLOCK_MONOTONIC of the latest step; while idle, of the latest engine_ping() */
    bool idle;             /* no request runs or waits */
};
/* Resets the counters (not the figures of running and waiting requests), after a warm-up. Call only while no
 * request runs or waits. */
void engine_forget(struct engine *e);
/* Reads the figures. Any thread. */
void engine_stats(const struct engine *e, struct engine_stats *out);
/* Asks the engine thread to update heartbeat_ns. Any thread, never blocks for long. */
void engine_ping(struct engine *e);
/* True after a decoder fault, whose words it copies to *out. Any thread. */
bool engine_fault(const struct engine *e, struct error *out);
uint32_t engine_n_ctx(const struct engine *e); /* tokens a request may have, prompt included */
