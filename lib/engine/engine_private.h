/* engine_private.h - what the parts of the engine share: engine.c (thread, borders, figures), engine_admit.c
 * (queue to slot), engine_fork.c (choices of one prompt), engine_step.c (slots to step), engine_retire.c
 * (results to requests), engine_speculate.c (tokens that are likely to come), engine_spill.c (pages to the
 * disk and back). Thread: engine only, but for what `lock` guards and the atomics. */
#pragma once
#include "base/clock.h"
#include "engine.h"
#include "engine_queue.h"
#include "kv/kv_cache.h"
#include "step_cost.h"

#include <pthread.h>

#define MAX_FLIGHTS    2
#define RATE_SECONDS   10
#define ENGINE_MAX_HIT (STEP_MAX_EDITS - 64) /* shared pages: their edits fit into one step */
#define NO_SLOT        UINT32_MAX

/* What holds a slot: a running request, or, when `r` is NULL, the remains of an ended one that steps in
 * flight still name. */
struct sequence {
    struct engine_request *r;
    bool busy;
    bool fresh;         /* the decoder does not know its settings yet */
    uint32_t n_rows;    /* positions below are computed or in flight */
    uint32_t n_done;    /* positions below are computed, their step retired */
    uint32_t n_table;   /* page table entries that were sent */
    uint32_t n_samples; /* tokens asked for: received or in flight */
    uint64_t last_step; /* newest step that names it; 0: none */
    uint64_t admitted;  /* number of its admission: the oldest is the smallest */

    uint32_t first;     /* of a choice: slot of the first, whose prompt it waits for, or NO_SLOT */
    uint32_t n_waiting; /* of a first choice: others that wait for its prompt */
    bool forked;        /* its prompt was computed by another */
    bool copies;        /* its first row needs a copy of page copy_from */
    uint32_t copy_from;

    bool restoring;            /* waits for pages of its prompt from the disk; no rows until then */
    uint32_t restore_end;      /* pages of the prompt up to here come from there */
    uint32_t restore_asked;    /* are asked for up to here */
    uint32_t restore_sent;     /* are in a step that imports them up to here */
    uint64_t restore_ns;       /* when the last one came */
    struct kv_key restore_key; /* of page restore_asked - 1 */
};

/* Rows that products take together on 512-bit vectors: a rest of them is a panel too. */
#define ENGINE_ROWS_TOGETHER 8
/* Prompt rows beside running texts, whatever the time says: as many as make progress, less a rest. The fewest
 * that a step which leaves prompt for later then has: */
#define ENGINE_PREFILL_BESIDE 16
#define ENGINE_LEAST_CHUNK    (ENGINE_PREFILL_BESIDE - ENGINE_ROWS_TOGETHER + 1)

/* A step in flight: what its rows and results mean. */
struct flight {
    uint64_t id;
    uint64_t started_ns, submit_ns; /* submit_ns: time inside submit */
    uint32_t n_prefill, n_decode;   /* rows */
    uint32_t n_draft;               /* further rows of those that decode */
    double depth;                   /* of all rows, for their price */
    uint32_t n_spans, n_logits, n_results;
    struct span {
        uint32_t slot, end; /* rows of this slot up to this position */
    } spans[STEP_MAX_SLOTS];
    struct asked {
        uint32_t slot;
        uint32_t index; /* of the token: sampled, or (target) in the prompt */
        bool target;
        bool dropped; /* a wrong draft came before it: the result says nothing */
    } asked[STEP_MAX_LOGITS];
    struct step_result results[STEP_MAX_LOGITS];
};

struct rate { /* tokens of one second of CLOCK_MONOTONIC */
    _Atomic uint64_t second, prompt, generated;
};

struct engine {
    struct executor *x;
    struct engine_config cfg;
    int32_t *end_tokens;
    uint32_t n_ctx, max_rows, n_vocab; /* n_vocab 0: unknown */
    uint32_t n_pages;
    bool shares_pages;
    uint64_t kv_bytes, opened_ns;
    pthread_t thread;

    /* Borders: guarded by lock. */
    pthread_mutex_t lock;
    pthread_cond_t bell;
    bool sleeping, cancelling, pinged, closing;
    struct engine_request *inbox, **inbox_end;
    struct engine_request *ready, **ready_end;
    struct error fault;

    /* The engine thread's. */
    struct engine_queue queue;
    struct kv_cache *kv;
    struct engine_disk *disk;   /* or NULL */
    struct engine_draft *draft; /* or NULL */
    uint64_t closing_ns;        /* since when engine_close() waits, or 0 */
    struct sequence *seqs;      /* [n_slots] */
    uint32_t *order;            /* [n_slots] scratch: slots in prefill */
    uint32_t n_live;            /* running requests */
    uint32_t turn;              /* slot whose turn it is when there are more than logit rows */
    uint64_t n_admitted;
    uint64_t next_deadline; /* nothing is due before; UINT64_MAX: never */
    bool room;              /* something has changed since admission was tried */
    bool built;             /* e->step and the next flight are ready, the decoder had no room yet */
    bool news;              /* something was listed since the last wake */
    struct flight flights[MAX_FLIGHTS];
    uint32_t first_flight, n_flights;
    uint64_t last_id, retired; /* step ids: submitted, retired */
    uint64_t retired_ns;
    /* Measured, 0: not yet. A step of decoding alone; a row of prefill alone; a row of any kind where texts
     * run beside prefill. */
    double decode_ms, prefill_row_ms;
    struct row_price beside;
    struct step step;

    /* Figures: written by the engine thread (n_open, rejected also by the submitting one). */
    _Atomic bool faulted, idle;
    _Atomic uint32_t n_open, n_held, n_running; /* requests: unfinished, in the queue without room, running */
    _Atomic uint64_t completed, failed, rejected, cancelled, timed_out;
    _Atomic uint64_t prompt_tokens, cached_tokens, generated_tokens, steps, heartbeat_ns;
    _Atomic uint64_t drafted, accepted, draft_steps, steps_saved, draft_requests, turned_off;
    _Atomic uint32_t pages_total, pages_used, pages_cached;
    struct rate rates[RATE_SECONDS + 1];
};

static inline void count(_Atomic uint64_t *figure, uint64_t n)
{
    atomic_fetch_add_explicit(figure, n, memory_order_relaxed);
}

/* Whether a row of it that gives a token may be in the next step; whether rows of its prompt may. */
static inline bool engine_decodes(const struct sequence *q)
{
    return q->r && q->n_rows >= q->r->n_prompt && q->n_samples < q->r->max_tokens;
}

static inline bool engine_prefills(const struct sequence *q)
{
    return q->r && q->n_rows < q->r->n_prompt && q->first == NO_SLOT && !q->restoring;
}

/* engine.c: puts the request on the list of engine_next(). */
void engine_list(struct engine *e, struct engine_request *r);
/* The one way in which a request ends. The engine does not touch it afterwards. */
void engine_finish(struct engine *e, struct engine_request *r, enum engine_finish finish, uint64_t now_ns);
/* As engine_finish, for one that has a slot: slot and pages return when no step in flight names them. */
void engine_end(struct engine *e, struct sequence *q, enum engine_finish finish, uint64_t now_ns);
/* Returns slot and pages of an ended sequence, if no step in flight names it. */
void engine_release(struct engine *e, uint32_t slot);
/* Stops everything: every request ends with ENGINE_FAULT. */
void engine_fail(struct engine *e, const struct error *why);
void engine_count_tokens(struct engine *e, uint64_t now_ns, uint32_t prompt, uint32_t generated);

/* engine_admit.c: moves requests from the queue into slots. */
void engine_admit(struct engine *e, uint64_t now_ns);
/* engine_fork.c: whether the choices can share pages here; else each computes the prompt by itself. */
bool engine_can_fork(const struct engine *e, const struct engine_request *r, uint32_t n);
/* The prompt in `slot` is computed or in flight but for its last token: those who wait for it go on from
 * there. */
void engine_fork(struct engine *e, uint32_t slot);
/* What `slot` held has ended: a choice that waited waits no more, and those that waited for a first one end
 * too. */
void engine_fork_end(struct engine *e, uint32_t slot, enum engine_finish finish, uint64_t now_ns);
/* engine_step.c: fills e->step and *f with the next step's work; false when there is none now. */
bool engine_build(struct engine *e, struct flight *f);
/* engine_retire.c: whether the token ends the text; `n` tokens came before it. */
bool engine_ends(const struct engine *e, const struct engine_request *r, int32_t token, uint32_t n);
/* Hands the results of a finished step out. False: they make no sense (*why says what). */
bool engine_retire(struct engine *e, struct flight *f, uint64_t now_ns, struct error *why);
