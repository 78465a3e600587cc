/* generation.h - a generation: the request that asks the engine for tokens, in whatever dialect.
 *
 * accepted -> preparing (parse, validate, tokenise; on the pool when the body is large) -> submitted (queued,
 * prefill, decode) -> replying (its end is written; on the pool when that is long) -> finished, with exactly
 * one outcome. Its dialect reads the fields and words the reply;
 * everything between is common. A generation has one choice or several: texts of the same prompt with seeds
 * of their own, each of which ends by itself; it has finished when all have. A stream's 200 is sent with the
 * first text or keep-alive comment, so all trouble before that has a status of its own.
 *
 * Thread: loop, except generation's preparation and its reply, which touch nothing but its own memory.
 * Memory: all in the request's arena. */
#pragma once
#include "chat_template.h"
#include "engine/engine.h"
#include "json/json_fields.h"
#include "http/http.h"
#include "json/json.h"
#include "output_text.h"

#define GENERATE_MAX_STOPS    16
#define GENERATE_MAX_STOP     1024 /* bytes of one */
#define GENERATE_MAX_STOP_IDS 256
#define GENERATE_MAX_TOKENS   256 /* default of /generate */
#define GENERATE_MAX_CHOICES  ENGINE_MAX_CHOICES
/* Tokens and alternatives, about 2 ms of writing: no more are written on the loop at once. What the end of a
 * generation has to show beyond them is written on the pool; and so that an event of a running stream is not
 * more, tokens that have no text yet wait for it until they are so many, and then go without. */
#define GENERATE_INLINE_ENTRIES 4096

/* What a client may ask for: /generate's names. */
struct params {
    const char *prompt; /* a string's bytes, or NULL: then ids */
    size_t prompt_len;
    int32_t *ids;
    size_t n_ids;
    bool has_prompt;
    bool add_special, parse_special;
    struct chat chat; /* messages NULL: none */
    bool no_tools;

    uint32_t max_tokens, min_tokens;
    bool has_max_tokens;
    bool ignore_eos, cache_prompt, stream;
    float temperature, top_p, min_p, typical_p;
    float repetition_penalty, presence_penalty, frequency_penalty;
    uint32_t top_k, penalty_last_n, n;
    uint64_t seed;
    bool has_seed;
    struct text_stop *stops;
    uint32_t n_stops;
    int32_t *stop_ids;
    uint32_t n_stop_ids;
    struct step_bias *biases;
    uint32_t n_biases;
    bool has_logprobs; /* of the chosen tokens */
    uint32_t logprobs, prompt_logprobs;
    bool has_timeout_ms, has_queue_timeout_ms;
    uint32_t timeout_ms, queue_timeout_ms;
    int32_t priority;

    /* The OpenAI dialect's own. */
    bool include_usage, chat_logprobs, has_best_of;
    uint32_t best_of;
};

enum generation_state {
    GENERATION_PREPARING,
    GENERATION_SUBMITTED,
    GENERATION_REPLYING,
    GENERATION_FINISHED,
};
enum generation_outcome {
    GENERATION_NONE,
    GENERATION_COMPLETED,
    GENERATION_CANCELLED,
    GENERATION_TIMED_OUT,
    GENERATION_FAILED,
};

/* One text of a generation (choice.c). */
struct choice {
    struct generation *g;
    uint32_t index;
    struct engine_request e; /* e.user is the choice */
    struct text text;

    uint32_t n_tokens;     /* of e.out, taken into the text */
    uint32_t event_tokens; /* of these, in events already */
    size_t event_text;     /* bytes of text in events already */
    size_t event_offset;   /* text_offset of the first token in no event yet */
    uint64_t last_ns;      /* the newest token came; 0: none yet */
    bool done;             /* the engine has let go of it */
    const char *finish;    /* finish_reason, /generate's words; NULL: the text has not ended yet */
    bool told;             /* of a stream: its last event is written */
};

struct generation {
    struct request *request;
    struct server *server;
    struct server_model *model; /* it runs on, whatever is loaded meanwhile; its until it has finished */
    struct arena *arena;        /* the request's */
    const struct dialect *dialect;
    struct generation *next, *prev;
    enum generation_state state;
    enum generation_outcome outcome;
    bool cancelled; /* by the client's leaving, a drain's end, ... */
    bool refused;   /* before it ran the server stopped taking work: 503, as its state says */
    bool abandoned; /* answered with an error while the engine, which is stuck, still has it */

    char id[ID_RANDOM + 16];
    int64_t created; /* Unix seconds */
    json_t *body;    /* while preparing */
    struct params p;
    struct choice *choices; /* [n_choices]; n_choices is 0 until the body has been read */
    uint32_t n_choices, n_running;
    uint64_t sent_ns; /* the newest event or comment was written */
    bool started;     /* of a stream: the 200 is on its way */
};

/* A piece of a reply: bytes [text, text + len) and tokens [from, to) of a choice. */
struct piece {
    const char *text;
    size_t len;
    uint32_t from, to;
};

struct dialect {
    const char *id_prefix;
    const struct field *fields; /* before the common ones, which hold as well */
    /* Defaults other than /generate's. */
    void (*defaults)(struct params *p);
    /* Checks that concern several fields, and whatever makes ids out of something else than `prompt` (then it
     * sets p.ids). 0 or -1 with *err. May run on the pool. */
    int (*prepare)(struct generation *g, struct api_error *err);
    /* May run on the pool. */
    void (*reply)(struct generation *g, struct buf *out);
    /* Events; each writes whole "data: ...\n\n" records: before all, text of a choice, its end, after all.
     * `begin` may be NULL. The ends that come with that of all may run on the pool, and so does `last`. */
    void (*begin)(struct generation *g, struct buf *out);
    void (*delta)(struct choice *c, struct buf *out, const struct piece *piece);
    void (*end)(struct choice *c, struct buf *out, const struct piece *piece);
    void (*last)(struct generation *g, struct buf *out);
};
extern const struct dialect dialect_generate, dialect_completions, dialect_chat;

/* Rows that every dialect knows: /generate's own. */
extern const struct field generate_fields[];
/* max_tokens, under whatever name; given under two names it must be the same. */
int read_max_tokens(struct field_reader *r, const struct field *f, const json_t *value);

/* The engine has something for it. */
void generation_news(struct choice *c);
/* In any state; idempotent. */
void generation_cancel(struct generation *g);
/* No more work is taken: refused unless it runs already. */
void generation_refuse(struct generation *g);
/* Prompt tokens that wait, those of bodies that are still to be read estimated. */
uint64_t generation_waiting_tokens(const struct server *s);
/* Answers with a 500 (or an error event) now, without waiting for the engine to let go. */
void generation_abandon(struct generation *g, const char *words);
void generation_tick(struct generation *g);
enum generation_outcome generation_outcome(const struct generation *g);
/* Its part of the access line, in whatever state it is. */
struct log_access;
void generation_log(const struct generation *g, struct log_access *line);
/* Its texts that have ended, each by how, in whatever state it is. */
void generation_count_ends(const struct generation *g, struct stats *stats);

/* generation_prepare.c: fills g->p and the choices from the body, or r->error. May run on the pool. */
void generation_prepare(struct request *r);
/* What holds for it: its own, else the configuration's, within its limits. 0: none. */
uint64_t generation_timeout_ms(const struct generation *g);
uint64_t generation_queue_timeout_ms(const struct generation *g);
/* Encodes text into p.ids (appending), refusing what cannot fit the context. */
int generation_encode(struct generation *g, const char *text, size_t len, struct tokenizer_flags flags,
                      struct api_error *err);
/* Refuses a prompt that is known not to fit, before any of it was encoded. */
int generation_too_long(struct generation *g, struct api_error *err);
int generation_append_id(struct generation *g, int32_t id, struct api_error *err);

/* What replies are made of. */
struct timings {
    double queue_ms, prefill_ms, ttft_ms, decode_ms, prompt_tokens_per_s, tokens_per_s;
};
void generation_timings(const struct generation *g, struct timings *out);
uint32_t generation_n_tokens(const struct generation *g); /* of all choices; any state */
struct piece choice_whole(const struct choice *c);
/* Tokens and alternatives in no event yet; of a whole reply, all. */
size_t choice_n_unshown(const struct choice *c);

/* choice.c: output room and text, once `e` is filled. 0 or -1 with *err. May run on the pool. */
int choice_open(struct choice *c, struct api_error *err);
/* Takes the tokens that are there into the text and, of a stream, into events. */
void choice_take(struct choice *c);
/* Whether its text is whole, as far as the model goes; the engine has let go of it. */
bool choice_ended_well(const struct choice *c);
/* Its text ends here. */
void choice_end(struct choice *c);
/* Of a stream, after that: its last event. May run on the pool. */
void choice_tell_end(struct choice *c);
/* Whether all others have told theirs: what concerns all choices goes with it. */
bool choice_tells_last(const struct choice *c);
/* What comes before the first event is written, and the 200 is on its way. */
void generation_begin(struct generation *g);
/* After each event or comment that was written: a stream without memory for it ends. */
void generation_wrote(struct generation *g);
/* There is no memory to go on: what still runs is cancelled, and it will have failed. */
void generation_starve(struct generation *g);
/* "text":"..." of one token, and "bytes":[...] when it is not valid UTF-8 by itself. */
void put_token_text(struct buf *out, const struct tokenizer *t, int32_t token, const char *name);
/* {"id":..,"text":..,"logprob":..,"top":[..]} of token i. */
void put_logprobs(const struct choice *c, struct buf *out, uint32_t from, uint32_t to);
void put_prompt_logprobs(struct generation *g, struct buf *out);
