/* engine_private.h - the engine's state, shared by its parts: engine.c (the thread and its rounds),
 * engine_mailbox.c (the state that threads share), engine_admit.c (queue to slot), engine_fork.c (choices of
 * one prompt), engine_states.c (recurrent states), engine_banned.c (withdrawn tokens), engine_step.c (slots
 * to step, results to requests), engine_end.c (ends of requests), engine_embed.c (vectors of prompts),
 * engine_sample.c (tokens drawn by chains of filters), engine_stats.c (figures), engine_times.c (times of
 * tokens, for measurements), engine_speculate.c (drafts), engine_spill.c (pages to the disk and back).
 * Thread: engine only, except the fields guarded by `lock` and the atomics; and in engine_sample_draw(),
 * while the engine thread waits for it, the decoder's team, whose threads each write the slots that they draw
 * for: draws[], seqs[].drawing, seqs[].draw_ns and the state of the request's chain. Memory: engine_open()
 * allocates all; the system counts draw_logits and scratch once they are used. */
#pragma once
#include "base/clock.h"
#include "engine.h"
#include "engine_queue.h"
#include "kv/kv_cache.h"
#include "step_cost.h"

#include <pthread.h>

#define MAX_FLIGHTS            2
#define RATE_SECONDS           10
#define ENGINE_MAX_HIT         (STEP_MAX_EDITS - 64) /* pages; the table edits of such a hit fit into one step */
#define NO_SLOT                UINT32_MAX
#define ENGINE_SNAPSHOT_POINTS 4 /* positions of one prompt at which its state is kept */

/* The holder of a slot: a running request or, when `r` is NULL, an ended one that steps in flight still
 * name. */
struct sequence {
    struct engine_request *r;
    bool busy;
    bool fresh;         /* its settings have not been sent to the decoder */
    uint32_t n_rows;    /* positions below it are computed or in flight */
    uint32_t n_done;    /* positions below it are computed and their step is retired */
    uint32_t n_table;   /* page table entries that were sent */
    uint32_t n_samples; /* tokens requested from the decoder: received or in flight */
    bool masked;        /* of a constrained text: the mask of its next token is made */
    uint32_t mask;      /* its number for step_logit.mask, 0: no token may follow */
    bool drawing;       /* its next token is to be drawn: struct engine_draw */
    uint64_t draw_ns;   /* how long the last draw took */
    uint32_t n_taken;   /* tokens of r->out that its matcher has taken */
    bool saved;         /* the matcher can go back: to where it had taken n_saved of them */
    uint32_t n_saved;
    uint32_t ahead;     /* the number of the mask behind its first draft; those behind others follow */
    uint64_t last_step; /* id of the newest step that names it; 0: none */
    uint64_t admitted;  /* sequence number of its admission */

    uint32_t first;     /* of a choice: the slot of the first choice, whose prompt it waits for */
    uint32_t n_waiting; /* of a first choice: the number of choices that wait for its prompt */
    bool forked;        /* another sequence computed its prompt */
    bool copies;        /* its first row needs a copy of page copy_from, and of its window page */
    uint32_t copy_from;

    bool late; /* the cache has yet to accept the prompt's last token, whose row may be computed again */
    uint32_t n_known; /* positions below it have keys and values: their rows only advance the state */
    bool loads;       /* its first row follows the state of load_from */
    bool own_load;    /* load_from is a backup, which serves once */
    uint32_t load_from;
    uint32_t backup;            /* the snapshot for the state before the drafts of a step, or SNAPSHOT_NONE */
    bool keeps_states;          /* for the prefix cache */
    uint32_t n_snapshot_points; /* positions of the prompt behind which its state is kept */
    uint32_t snapshot_points[ENGINE_SNAPSHOT_POINTS]; /* multiples of 64 */
    uint32_t text_snapshot; /* the newest position of its text that has a snapshot, or 0 */

    bool restoring;         /* waits for pages of its prompt from the disk, without rows */
    uint32_t restore_end;   /* pages of the prompt below this index come from the disk */
    uint32_t restore_asked; /* pages below this index are requested */
    uint32_t restore_sent;  /* pages below this index are in a step that imports them */
    uint32_t restore_done;  /* pages below this index are there */
    /* Recurrent models: the pages from restore_parts on are the parts of the state behind restore_state
     * tokens. */
    uint32_t restore_parts, restore_state;
    uint32_t restore_all;      /* restore_end, before any failed */
    uint32_t restore_window;   /* pages from this index on come with their window pages */
    uint32_t restore_snapshot; /* SNAPSHOT_NONE: there is none */
    struct kv_key restore_state_key;
    uint64_t restore_ns;       /* when the last page arrived */
    struct kv_key restore_key; /* key of page restore_asked - 1 */
};

/* The least number of prompt rows beside running texts, at any step_ms, so that prompts make progress;
 * less a remainder of engine.rows_together. */
#define ENGINE_PREFILL_BESIDE 16

/* Classes of the number of texts in a step: 1, 2, 3 to 4, 5 to 8 ... up to STEP_MAX_LOGITS. */
#define ENGINE_TEXT_CLASSES 7
static inline uint32_t engine_text_class(uint32_t n)
{
    uint32_t at = 0;
    while (at + 1 < ENGINE_TEXT_CLASSES && n > 1u << at)
        at++;
    return at;
}

/* A snapshot that a step in flight writes or, with `end` 0, is the last to read. */
struct saving {
    uint32_t snapshot, slot, end; /* of the state of `slot` behind the rows below `end` */
    uint64_t admitted, step;
};

/* A step in flight, and the meaning of its rows and results. */
struct flight {
    uint64_t id;
    uint64_t started_ns, submit_ns; /* submit_ns: duration of the submit call */
    uint32_t n_prefill, n_decode;   /* rows */
    uint32_t n_draft;               /* draft rows */
    double depth;                   /* of all rows, in units of step_cost.h */
    uint32_t n_spans, n_logits, n_results;
    struct span {
        uint32_t slot, end; /* the step has rows of this slot up to position `end`, */
        uint32_t row, n;    /* n of them from this row on */
    } spans[STEP_MAX_SLOTS];
    struct asked {
        uint32_t slot;
        uint32_t index; /* of the sampled token or, with `target`, of the prompt token */
        bool target;
        bool dropped;  /* it follows a wrong draft: the result is void */
        uint32_t mask; /* of a constrained text, as in step_logit */
    } asked[STEP_MAX_LOGITS];
    struct step_result results[STEP_MAX_LOGITS];
};

/* A slot's result, whose token a chain of filters has yet to draw. */
struct engine_draw {
    struct step_result result;
    struct asked asked;
    uint64_t since_ns; /* the draw has waited since then */
};

struct rate { /* tokens computed in one second of CLOCK_MONOTONIC */
    _Atomic uint64_t second, prompt, generated;
};

struct engine {
    struct executor *x;
    struct engine_config cfg;
    int32_t *end_tokens;
    uint32_t n_ctx, max_rows, n_vocab; /* n_vocab 0: unknown */
    uint32_t rows_together;            /* as the backend's, at most ENGINE_PREFILL_BESIDE */
    uint32_t rows_of_a_pass;           /* the least of a step of prompts alone, at any step_ms */
    uint32_t n_pages;
    uint32_t n_windows; /* window pages; 0: the backend has none */
    bool shares_pages;
    uint32_t n_snapshots; /* of recurrent states */
    bool recurrent;
    uint64_t kv_bytes, opened_ns;
    pthread_t thread;

    /* Shared with other threads, guarded by lock. */
    pthread_mutex_t lock;
    pthread_cond_t wakeup;
    bool sleeping, cancelling, pinged, closing;
    STAILQ_HEAD(, engine_request) inbox, ready;
    struct error fault;

    /* Used by the engine thread only. */
    struct engine_queue queue;
    struct kv_cache *kv;
    struct saving *savings; /* [n_snapshots] */
    uint32_t n_savings;
    struct engine_disk *disk;   /* or NULL */
    struct engine_draft *draft; /* or NULL */
    uint64_t closing_ns;        /* when the thread first saw `closing`, or 0 */
    struct sequence *seqs;      /* [n_slots] */
    uint32_t *order;            /* [n_slots] scratch: slots in prefill */
    uint32_t n_live;            /* running requests */
    uint32_t turn;              /* first slot to decode when there are more than logit rows */
    uint64_t n_admitted;
    uint64_t next_deadline; /* no deadline is earlier; UINT64_MAX: there is none */
    /* The idleness after which the executor wants to use it, and when that is reached; UINT64_MAX: never. */
    uint64_t idle_wait_ns, idle_at_ns;
    bool room;  /* slots, pages or the queue have changed since the last admission */
    bool built; /* e->step and the next flight are built, but the decoder had no room */
    bool news;  /* a request was listed since the last wake */
    struct flight flights[MAX_FLIGHTS];
    uint32_t first_flight, n_flights;
    uint64_t last_id, retired; /* ids of the newest steps submitted and retired */
    uint64_t retired_ns;
    /* Measured averages in ms, 0: not measured yet: a step of decode rows alone; a row of a step of prefill
     * rows alone. `beside` is the cost of a row of any kind where prefill runs beside texts. */
    double decode_ms, prefill_row_ms;
    struct row_price beside;
    double text_ms[ENGINE_TEXT_CLASSES]; /* a step of texts alone, by engine_text_class() */
    struct step step;
    float *hidden; /* [engine_n_embedding()] scratch */
    /* Drawing by chains; its pages come with their first use. */
    struct engine_draw *draws;    /* [n_slots] */
    float *draw_logits;           /* [n_slots][n_vocab] */
    struct draw_scratch *scratch; /* [n_scratch]: threads that draw at once */
    uint32_t n_scratch;
    uint32_t *masks; /* [n_masks][mask_words], one per slot; NULL: the backend cannot constrain */
    uint32_t n_masks, mask_words;
    uint32_t n_ahead;        /* masks behind drafts in the step that is being built: they follow the slots' */
    uint64_t masks_until_ns; /* when the time ends that a step may wait for masks and forced drafts */
    uint32_t mask_turn;      /* the slot whose mask is the next to go on with */
    /* With cfg.times: those of the step that is being retired; the tokens whose times are written, and of
     * them those that were told; [program's ops] what the executor said last, and its sum. */
    struct engine_times step_times;
    uint32_t n_timed, n_told;
    uint64_t *op_ns, ops_ns;

    /* Figures, written by the engine thread (n_open and rejected also by engine_submit()). */
    _Atomic bool faulted, idle;
    _Atomic uint32_t n_open, n_held, n_running; /* requests unfinished, queued without room, running */
    _Atomic uint64_t completed, failed, rejected, cancelled, timed_out;
    _Atomic uint64_t prompt_tokens, cached_tokens, generated_tokens, steps, heartbeat_ns;
    _Atomic uint64_t drafted, accepted, forced, draft_steps, steps_saved, draft_requests, turned_off;
    _Atomic uint32_t pages_total, pages_used, pages_cached, snapshots_kept;
    _Atomic uint32_t windows_used, windows_cached;
    struct rate rates[RATE_SECONDS + 1];
};

static inline void count(_Atomic uint64_t *figure, uint64_t n)
{
    atomic_fetch_add_explicit(figure, n, memory_order_relaxed);
}

/* True if the prompt's rows may begin behind pages of the prefix cache: nothing is asked of the rows before.
 */
static inline bool engine_reuses(const struct engine_request *r)
{
    bool whole = r->pooling == ENGINE_POOL_MEAN || r->pooling == ENGINE_POOL_FIRST;
    return r->cache_prompt && !r->want_prompt_logprobs && !whole;
}

/* True if each of its tokens needs a mask. */
static inline bool engine_is_masked(const struct engine_request *r)
{
    return r->constraint || r->banned;
}

/* True if the host draws its tokens. */
static inline bool engine_draws(const struct engine_request *r)
{
    return r->chain != NULL;
}

/* The tokens of its text: those in n_out, and behind them those that are held back (engine_banned.c). */
uint32_t engine_n_text(const struct engine_request *r);

/* True if the next row needs the last token on the host, where it is not known yet: for the mask of a
 * constraint, or because the host draws it. */
static inline bool engine_token_waits(const struct sequence *q)
{
    return (engine_is_masked(q->r) || q->r->chain) && q->n_samples > engine_n_text(q->r);
}

/* engine_decodes: the next step may hold a row of it that samples a token: its mask is made. engine_prefills:
 * it may hold rows of its prompt. */
static inline bool engine_decodes(const struct sequence *q)
{
    return q->r && q->n_rows >= q->r->n_prompt && q->n_samples < q->r->max_tokens && !engine_token_waits(q) &&
           (!engine_is_masked(q->r) || q->masked);
}

static inline bool engine_prefills(const struct sequence *q)
{
    return q->r && q->n_rows < q->r->n_prompt && q->first == NO_SLOT && !q->restoring;
}

/* The number by which steps name a window page; WINDOW_NONE: 0. */
static inline uint32_t engine_window(const struct engine *e, uint32_t window)
{
    return window == WINDOW_NONE ? 0 : e->n_pages + window;
}

/* Operations of a step that move or copy a page with its window page. */
static inline uint32_t engine_page_ops(const struct engine *e)
{
    return e->n_windows ? 2 : 1;
}

/* The functions below stand in order of calls: each file calls only itself and the files above it. */

/* engine_states.c: of a model with recurrent layers; without one they do nothing. Takes the memory. */
int engine_states_open(struct engine *e, struct error *err);
void engine_states_close(struct engine *e);
/* Sets where the sequence begins, and at which positions its state will be kept: `share`: for the prefix
 * cache. n_cached: tokens whose pages it shares. Returns the position of its first row. */
uint32_t engine_states_begin(struct engine *e, uint32_t slot, uint32_t n_cached, bool share);
/* True if the sequence's state at `point` of its prompt, a multiple of 64 that it has not reached, will be
 * kept. */
bool engine_states_keep(const struct engine *e, struct sequence *q, uint32_t point);
/* Adds to the step the operations on states that n rows of the slot from q->n_rows on need. False, and
 * nothing was added: the step has no room for them. */
bool engine_states_send(struct engine *e, uint32_t slot, uint32_t n);
/* The sequence's rows that are computed once more, after wrong drafts. */
static inline uint32_t engine_states_again(const struct sequence *q)
{
    return q->n_known > q->n_rows ? q->n_known - q->n_rows : 0;
}
/* Begins the sequence, which has no rows yet, with the last state that its pages have by now. */
void engine_states_begin_again(struct engine *e, uint32_t slot);
/* Call before drafts are added behind the next row of the slot: false if the state behind that row cannot be
 * saved. */
bool engine_states_back_up(struct engine *e, uint32_t slot);
/* Call when the step is done, n_right of the drafts are right, and the rows of the others were taken back. */
void engine_states_take_back(struct engine *e, struct sequence *q, uint32_t n_right, bool all);
/* The sequence ends: no step in flight names its slot. */
void engine_states_end(struct engine *e, struct sequence *q);
/* Sets with which state the choice in `slot`, which forks now, begins; the first one is in `of`, its prompt's
 * rows from `first_row` on are in this step. */
void engine_states_fork(struct engine *e, uint32_t slot, uint32_t of, uint32_t first_row);
/* Hands the snapshots of the finished steps to the prefix cache, after their rows were accepted. */
void engine_states_retire(struct engine *e);

/* Call when rows of the slot's sequence are computed anew from q->n_rows on, and none is in flight: it goes
 * on from an earlier state. */
void engine_states_go_back(struct engine *e, uint32_t slot);

/* engine_fork.c: true if the n choices can share pages; otherwise each computes the prompt by itself. Any
 * thread. */
bool engine_can_fork(const struct engine *e, const struct engine_request *r, uint32_t n);
/* Call when the prompt in `slot` is computed or in flight, except its last token, and its rows from
 * `first_row` on are in e->step: the choices that wait for it continue from there. */
void engine_fork(struct engine *e, uint32_t slot, uint32_t first_row);

/* engine_times.c: for cfg.times, without which they do nothing: takes the memory. 0 or -ENOMEM. */
int engine_times_open(struct engine *e, struct error *err);
void engine_times_close(struct engine *e);
/* The next tokens are of this step, which a call of executor_advance() from begun_ns to seen_ns returned. */
void engine_times_step(struct engine *e, const struct flight *f, uint64_t begun_ns, uint64_t seen_ns);
void engine_times_publish(struct engine *e); /* call before the token is published */
void engine_times_tell(struct engine *e);    /* before cfg.wake */
void engine_times_back(struct engine *e);    /* after it */

/* engine_stats.c: counts tokens, for totals and rates. */
void engine_count_tokens(struct engine *e, uint64_t now_ns, uint32_t prompt, uint32_t generated);
/* Publishes the figures of cache and slots for engine_stats(). */
void engine_publish_stats(struct engine *e);

/* engine_mailbox.c: puts the request on the list of engine_next(). */
void engine_list(struct engine *e, struct engine_request *r);
/* The same for an ended request: engine_next() makes it ENGINE_DONE. The engine does not touch it
 * afterwards. */
void engine_list_ended(struct engine *e, struct engine_request *r);
/* Calls cfg.wake if a request was listed since the last call. */
void engine_wake(struct engine *e);
void engine_ask_to_close(struct engine *e); /* any thread */
struct engine_news {                        /* posted by other threads */
    struct engine_request *inbox;
    bool cancelling, pinged, closing;
    bool slept;
};
/* True if a request, a cancel or the end of the engine waits. Any thread. */
bool engine_has_mail(void *engine);
/* Collects the news. With `sleep` it first waits for them, until e->idle_at_ns if `idle`, else for 20 ms at
 * most. Publishes `idle`. */
struct engine_news engine_wait(struct engine *e, bool idle, bool sleep);

/* engine_banned.c: publishes the first n tokens of a text whose tokens are held back, if there are
 * more of them than before. */
void engine_publish_text(struct engine *e, struct engine_request *r, uint32_t n, uint64_t now_ns);
/* Takes the token that was drawn for a text with banned strings, which may shorten it. False: it goes back
 * too often. */
bool engine_banned_take(struct engine *e, struct sequence *q, int32_t token);
/* Goes back from where its constraint leaves no token. False: it cannot, and may be shorter all the same. */
bool engine_banned_go_back(struct engine *e, struct sequence *q);
/* The seed of its next draw. */
uint64_t engine_seed(const struct engine_request *r);
/* Those of the rows below `end` that will not be computed again. */
uint32_t engine_final_rows(const struct engine_request *r, uint32_t end);

/* engine_end.c: true if the token ends the text, which has `n` tokens before it. */
bool engine_ends(const struct engine *e, const struct engine_request *r, int32_t token, uint32_t n);
/* Ends a request with a slot: slot and pages are released when no step in flight names them. */
void engine_end(struct engine *e, struct sequence *q, enum engine_finish finish, uint64_t now_ns);
/* Releases slot and pages of an ended sequence, if no step in flight names it. */
void engine_release(struct engine *e, uint32_t slot);
/* Ends every waiting and running request, with ENGINE_CANCELLED or ENGINE_FAULT. */
void engine_end_all(struct engine *e, enum engine_finish finish, uint64_t now_ns);
/* engine_end_cancelled() ends the cancelled requests, engine_end_due() those whose deadline has passed. */
void engine_end_cancelled(struct engine *e, uint64_t now_ns);
void engine_end_due(struct engine *e, uint64_t now_ns);
/* Notes the deadlines of a request that is queued or has started, so that engine_end_due() checks them in
 * time. */
void engine_note_deadline(struct engine *e, const struct engine_request *r, bool queued);
/* Records a decoder fault and ends every request with ENGINE_FAULT. */
void engine_fail(struct engine *e, const struct error *why);

/* engine_constrain.c: takes the memory of the masks, if the backend uses them. 0 or -ENOMEM. */
int engine_constrain_open(struct engine *e, struct error *err);
void engine_constrain_close(struct engine *e);
/* Makes the masks of next tokens, the slots in turns, for as long as a step may wait for them; what is not
 * complete then goes on at the next step. */
void engine_constrain_masks(struct engine *e);
/* Begins the time that engine_constrain_masks() has; what is made for drafts has what is left of it. */
void engine_constrain_begin(struct engine *e);
/* False when that time is over. Beats the heartbeat. */
bool engine_constrain_has_time(struct engine *e);
/* True if a mask is still to be made. */
bool engine_constrain_pending(const struct engine *e);
/* Tells if the mask, which is that of the token's row, allows it; false too where there was none. The matcher
 * reads it when the next mask is made, within the same time. */
bool engine_constrain_allows(const struct engine *e, uint32_t mask, int32_t token);
/* Writes drafts of at most `most` tokens, whose bytes must come next; their number. The text may be cut into
 * other tokens. It takes as long as a part of a mask. */
uint32_t engine_constrain_forced(const struct engine *e, uint32_t slot, int32_t *tokens, uint32_t most);
/* Makes the masks behind n drafts, for the step that is being built; how many of these there are: those for
 * which there was time. */
uint32_t engine_constrain_ahead(struct engine *e, uint32_t slot, const int32_t *tokens, uint32_t n);
/* True if no further step may be submitted now: a sequence waits for its token (engine_token_waits()). */
bool engine_constrain_holds(const struct engine *e);
/* engine_sample.c: the memory of chains. 0 or -ENOMEM. */
int engine_sample_open(struct engine *e, struct error *err);
void engine_sample_close(struct engine *e);
/* Keeps the logits of a row of the newest finished step until the request's chain has drawn the token that
 * replaces the decoder's. */
void engine_sample_keep(struct engine *e, const struct asked *a, const struct step_result *result);
/* Draws tokens for as long as a step may wait for them, on the decoder's threads where it has some. It
 * leaves the others to later rounds. Writes the slots whose draw has its token, slots[n_slots].
 * Returns their number. */
uint32_t engine_sample_draw(struct engine *e, uint32_t *slots);
/* True if a token is still to be drawn. */
bool engine_sample_pending(const struct engine *e);
/* engine_embed.c: takes the rows of a finished step into the vector that the sequence's prompt asks for. Call
 * before another step runs. False: the vector is not finite. */
bool engine_embed_rows(struct engine *e, const struct sequence *q, const struct span *rows);
/* engine_admit.c: queues what has come in; moves requests from the queue into slots. */
void engine_enqueue(struct engine *e, struct engine_request *inbox);
void engine_admit(struct engine *e, uint64_t now_ns);
/* engine_step.c: builds the next step and submits it; false when there is none, or no room for it. */
bool engine_submit_step(struct engine *e);
/* Draws tokens that chains have to draw, and applies them. Call before steps are submitted. */
void engine_take_drawn(struct engine *e);
/* Runs the decoder and retires the finished steps. */
void engine_advance(struct engine *e);
