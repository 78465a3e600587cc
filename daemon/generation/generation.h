/* generation.h - a generation: the request that asks the engine for tokens, in any dialect.
 *
 * accepted -> preparing (parse, validate, tokenise; on the pool when that takes long) -> submitted (queued,
 * prefill, decode) -> replying (the client takes what is still to be shown) -> finished, with exactly
 * one outcome. Its dialect reads the fields and words the reply;
 * everything between is common. A generation has one prompt or several, and of each one choice or several:
 * texts with seeds of their own, each of which ends by itself; it has finished when all have. Of many prompts
 * and choices only as many are the engine's at once as it has slots for; the others follow as these end, or
 * as slots are free, past the queue. The first choices of a prompt are submitted together and share its
 * computation; further ones follow one by one, and find its pages in the prefix cache. A stream's 200 is sent
 * with the first text or keep-alive comment, so all trouble before that has a status of its own; comments
 * begin while it waits for its model to be loaded.
 *
 * A reply that its client reads slowly is kept as tokens, a tenth of their size as JSON or less, and written
 * a window (REPLY_WINDOW) ahead of it.
 *
 * Thread: loop, except generation's preparation, which touches nothing but its own memory.
 * Memory: all in the request's arena. */
#pragma once
#include "answer.h"
#include "chat/chat_template.h"
#include "constraint.h"
#include "engine/engine.h"
#include "fim_prompt.h"
#include "json/json_fields.h"
#include "generator.h"
#include "http/http.h"
#include "json/json.h"
#include "output_text.h"
#include "sampling_fields.h"
#include "field_names.h"

#define GENERATE_MAX_STOPS    64
#define GENERATE_MAX_STOP     1024 /* bytes of one */
#define GENERATE_MAX_STOP_IDS 256
#define GENERATE_MAX_MS       (7u * 24 * 3600 * 1000) /* a week: most of a timeout */
#define GENERATE_MAX_TOKENS   256                     /* default of /generate */
#define GENERATE_MAX_CHOICES  128                     /* as OpenAI allows */
#define GENERATE_MAX_PROMPTS  256                     /* prompts times choices in one request for texts */
#define GENERATE_MAX_INPUTS   2048       /* prompts in one request for vectors, as OpenAI allows */
#define GENERATE_MAX_COUNTED  (1u << 20) /* tokens of a prompt that is only counted: dialect.counted */
/* Tokens and alternatives, about 64 KB and 0.5 ms of writing: no more are written at once. The rest of a
 * reply is written as its client reads it. So that no event of a running stream is larger, tokens without
 * text wait for text only until they are this many. */
#define GENERATE_INLINE_ENTRIES 1024

/* Calls that a client insists on. */
struct tool_choice {
    bool forced;      /* at least one call must come */
    const char *one;  /* the only function that may be called; NULL: any, or those of `of` */
    const json_t *of; /* an array of tools, the body's; NULL: any */
};

struct infill { /* a text in the middle; the body's strings, while it is prepared */
    struct fim_text prefix, prompt, suffix; /* `prompt` is what was typed behind the prefix */
    struct fim_file *files;
    size_t n_files;
};

/* A tool whose name begins with that of its namespace. */
struct namespaced {
    const char *name;
    size_t namespace_len;
};

/* A prompt as it was given: the body's text, or ids. */
struct prompt_given {
    const char *text; /* NULL: ids */
    size_t len;
    int32_t *ids;
    size_t n_ids;
};

/* A prompt of a generation. */
struct prompt {
    int32_t *ids;
    uint32_t n_ids, max_tokens;
    const char *echo; /* [echo_len]: its text, which the reply begins with; or NULL */
    size_t echo_len;
};

/* The vectors that a client asks for. */
struct embed_params {
    bool base64, as_sums; /* as_sums: not of length 1 */
    bool truncates;       /* a prompt is cut to the context */
    uint32_t dimensions;  /* its first values alone; 0: all */
};

/* The settings that a client may ask for: /generate's names. */
struct params {
    struct prompt_given *several; /* [n_several] while they are prepared; 0: there is one, as follows */
    size_t n_several;
    const char *prompt; /* a string's bytes, or NULL: then ids */
    size_t prompt_len;
    int32_t *ids;
    size_t n_ids;
    bool has_prompt;
    bool add_special, parse_special;
    struct chat chat; /* messages NULL: none */
    bool no_tools, one_call;
    bool continues, last_is_begun; /* the body, or the message itself: the last one, an assistant's, is the
                                      begun answer */
    struct tool_choice choice;
    json_t *tool_list;           /* the functions among the body's tools, while it is prepared; owned */
    struct toolcall_tools tools; /* the tools whose calls are read */
    const struct toolcall_format *format; /* of the text; NULL: the model's */
    const char *prompt_end;               /* it may have opened the reasoning */
    size_t prompt_end_len;
    const char *reasoning_effort;        /* for the template; NULL: not given */
    const struct namespaced *namespaces; /* [n_namespaces] tools that are in one: see responses_reader.c */
    uint32_t n_namespaces;
    const char *echoed; /* OpenAI's responses: the members of the body that the reply gives back, as JSON */

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
    bool include_stop_str_in_output; /* the string or token that ended the text is part of it */
    struct step_bias *biases;
    uint32_t n_biases;
    bool has_logprobs; /* of the chosen tokens */
    uint32_t logprobs, prompt_logprobs;
    bool has_timeout_ms, has_queue_timeout_ms;
    uint32_t timeout_ms, queue_timeout_ms;
    int32_t priority;
    struct constraint constraint;
    json_t *schema; /* the constraint's, if it came as a text, while it is prepared; owned */
    struct banned_field banned;
    struct sampling sampling; /* filters that the decoder lacks */

    int32_t truncate_prompt_tokens; /* the prompt's last tokens that stay; -1: all that fit; 0: it is whole */
    struct infill infill;
    bool echoes;
    struct embed_params embed;

    /* The OpenAI dialect's own. */
    bool include_usage, chat_logprobs, has_best_of;
    uint32_t best_of;
};

/* The places where a generation is prepared. The body's size chooses the first; a preparation that exceeds
 * its limits there (generation_prepare.c) begins again at the next. */
enum generation_effort {
    EFFORT_LOOP, /* about 2 ms at most */
    EFFORT_POOL, /* about 20 ms at most: POOL_PROMPT */
    EFFORT_LONG, /* POOL_LONG_PROMPT */
};

enum generation_state {
    GENERATION_PREPARING,
    GENERATION_SUBMITTED,
    GENERATION_REPLYING, /* the engine has let go of it; its client takes what it has still to show */
    GENERATION_FINISHED,
};

/* One text of a generation (choice.c). */
struct choice {
    struct generation *g;
    uint32_t index;          /* the prompt's, times p.n, and the choice's among those of the prompt */
    struct engine_request e; /* e.user is the choice */
    struct text text;
    struct answer *answer; /* of a dialect with `event` */

    uint32_t n_tokens; /* of e.out, taken into the text */
    uint32_t *ends; /* of a stream, and with an answer: [max_tokens] bytes of text that are safe with each of
                       these */
    uint32_t event_tokens;       /* of these, in events already */
    size_t event_text;           /* bytes of text in events already */
    size_t event_offset;         /* text_offset of the first token in no event yet */
    size_t echo_at, echo_offset; /* bytes and characters of the prompt's echo before its next token */
    uint64_t last_ns;            /* the newest token came; 0: none yet */
    bool done;                   /* the engine has let go of it */
    const char *finish;          /* finish_reason, /generate's words; NULL: the text has not ended yet */
    bool told;                   /* of a stream: its last event is written */
};

struct generation {
    struct request *request;
    struct http_server *server;
    struct server_model *model; /* it runs on, even if another is loaded meanwhile; its until it has finished.
                                   NULL: it is not known yet, or awaited */
    struct arena *arena;        /* the request's */
    const struct dialect *dialect;
    LIST_ENTRY(generation) link; /* of generator.generations */
    /* Set only where bodies name their model (generation_model.c): */
    char model_name[256];
    int awaited;             /* the model's number */
    bool waits;              /* in generator.waiting, by `waiting` */
    bool wants_stream;       /* the body asks for one, as far as is known before it is read */
    uint64_t model_late_ns;  /* the wait for the model ends then; 0: when the model is there */
    uint64_t model_limit_ms; /* the same, from the arrival of the body */
    const char *model_limit; /* the name of the field that sets it */
    TAILQ_ENTRY(generation) waiting;
    enum generation_state state;
    enum request_outcome outcome;
    enum generation_effort effort;
    struct grammar *grammar;       /* of a constrained text; NULL: any text */
    struct banned_strings *banned; /* of its texts; NULL: none */
    bool shares_grammar;           /* it counts what the grammar holds */
    bool exceeded;                 /* its preparation exceeded what `effort` allows, and left nothing */
    bool cancelled;                /* by the client's leaving, a drain's end, ... */
    bool refused;                  /* before it ran the server stopped taking work: 503, as its state says */
    bool outgrown;                 /* cancelled, as its grammar had no room in body_memory */
    bool abandoned;                /* answered with an error while the engine, which is stuck, still has it */

    char id[ID_RANDOM + 16];
    int64_t created; /* Unix seconds */
    json_t *body;    /* while preparing */
    json_t *sent;    /* while preparing, if it was translated: the body as it came */
    struct params p;
    struct prompt *prompts; /* [n_prompts] */
    uint32_t n_prompts;
    struct choice *choices; /* [n_choices]; n_choices is 0 until the body has been read */
    uint32_t n_choices, n_running;
    uint32_t n_submitted; /* the engine has, or had, the first n_submitted choices */
    int late_rc;          /* the engine's refusal of a later prompt, with its words, or 0 */
    struct error late;
    size_t room;      /* bytes of the arena that are kept for tokens to come */
    uint64_t sent_ns; /* the newest event or comment was written */
    bool started;     /* of a stream: the 200 is on its way */
    bool begun;       /* what precedes the first event is written */
    bool ended;       /* all that it has to show is written, or stands in lists */
    bool later;       /* long lists are written as the client takes them */
};

/* A piece of a reply: bytes [text, text + len) and tokens [from, to) of a choice. */
struct piece {
    const char *text;
    size_t len;
    uint32_t from, to;
};

struct dialect_of_body {
    const char *member;
    const struct dialect *dialect;
};

struct dialect {
    const char *id_prefix;
    /* Other dialects of the route, each for bodies that have its member and no `prompt`; ends with an empty
     * row; or NULL. */
    const struct dialect_of_body *others;
    /* Writes errors where the body has chosen the dialect; NULL: as the route does. */
    void (*put_error)(struct buf *out, const struct api_error *e);
    const struct field *fields; /* before the common ones, which hold as well */
    const struct field
        *own_fields;            /* and before these, of what `translate` writes or the route has; or NULL */
    const struct field *extras; /* and before all, names that clients of other servers use; or NULL */
    /* Makes a chat of the body: OpenAI's members, which `fields` read (chat_json.h). A new reference, or NULL
     * with *err. NULL: the body is read as it is. */
    json_t *(*translate)(const json_t *body, struct api_error *err);
    const struct field_name *names; /* of fields that it renames, for errors; or NULL */
    bool counts;                    /* `reply` is due once the prompt is prepared: nothing is generated */
    uint32_t counted;    /* most tokens of a prompt of which `reply` gives the number alone; 0: the context */
    bool embeds;         /* vectors of the prompts; `fields` are all that there are */
    const char *prompts; /* the member that may have several prompts; NULL: one prompt alone */
    /* Defaults other than /generate's. */
    void (*defaults)(struct params *p);
    /* Checks that concern several fields, and the making of ids out of something else than `prompt` (then it
     * sets p.ids). Called for each prompt. 0 or -1 with *err. May run on the pool. */
    int (*prepare)(struct generation *g, struct api_error *err);
    void (*reply)(struct generation *g, struct buf *out);
    /* Events; each writes whole "data: ...\n\n" records: before all, text of a choice, its end, after all.
     * `begin` may be NULL. */
    void (*begin)(struct generation *g, struct buf *out);
    void (*delta)(struct choice *c, struct buf *out, const struct piece *piece);
    void (*end)(struct choice *c, struct buf *out, const struct piece *piece);
    void (*last)(struct generation *g, struct buf *out);
    /* Writes what the scanner found in a stream. NULL: the text is shown as it is. */
    void (*event)(struct choice *c, struct buf *out, const struct toolcall_event *e);
    bool whole_calls;  /* its streams show a call when it is complete */
    bool whole_events; /* `event` is called for whole replies too */
    bool mends;        /* takes escapes that are no character as U+FFFD, so that a talk can go on */
    bool clamps;       /* max_tokens is a ceiling: what does not fit is cut off */
    bool streams;      /* unless the body says "stream": false */
};
extern const struct dialect dialect_embeddings, dialect_ollama_embed, dialect_ollama_embeddings,
    dialect_llama_embedding, dialect_tei_embed, dialect_tgi, dialect_tgi_root, dialect_tgi_generate,
    dialect_sglang;
extern const struct dialect dialect_generate, dialect_completions, dialect_chat, dialect_messages,
    dialect_count, dialect_ollama_chat, dialect_ollama_generate, dialect_responses, dialect_llama,
    dialect_infill, dialect_template, dialect_tokenize, dialect_chat_count, dialect_responses_count;

/* Rows that every dialect knows: /generate's own. */
extern const struct field generate_fields[];
int read_prompt(struct field_reader *r, const struct field *f, const json_t *value);
/* The model that the body names, "" where it names none or null; r->error where that is no string. */
void generation_read_model(struct request *r, char *name, size_t room);
/* The name of the model, which was found before. */
int read_model_name(struct field_reader *r, const struct field *f, const json_t *value);
/* max_tokens, under any of its names; given under two names it must be the same. */
int read_max_tokens(struct field_reader *r, const struct field *f, const json_t *value);
/* truncate_prompt_tokens: -1, or 1 and more. */
int read_truncation(struct field_reader *r, const struct field *f, const json_t *value);

/* generation_turns.c: submits what comes next, one choice or those that are linked. 0 or the engine's error.
 */
int generation_submit_next(struct generation *g, struct error *words);
/* One of its choices has ended: submits another in its place, whether or not others wait. */
void generation_replace(struct generation *g);
/* Gives the engine of m more of its generations, the oldest first, as long as it has slots for them. */
void generation_fill_slots(const struct generator *s, const struct server_model *m);
/* Ends the choices that the engine has not got. */
void generation_end_unsubmitted(struct generation *g, enum engine_finish finish);

/* generation_model.c: finds the model that the body names, waits for it and begins. */
void generation_find_model(struct generation *g);
/* Begins what waits for models that are there now, and ends what cannot have its own, or no longer wants to.
 */
void generation_take_models(struct generator *generator);
/* Begins on m, which it now holds. */
void generation_begin_on(struct generation *g, struct server_model *m);
/* Ends one that has no model: request->error says why, or it was cancelled or refused. */
void generation_end_without(struct generation *g);

/* Takes the request over, whose body is there. */
void generation_open(struct request *r, const struct dialect *dialect);
/* The engine has something for it. */
void generation_news(struct choice *c);
/* Cancels it in any state; idempotent. */
void generation_cancel(struct generation *g);
/* No more work is taken: refused unless it runs already. */
void generation_refuse(struct generation *g);
/* Prompt tokens that wait for m, or of NULL for a model to be loaded, those of bodies that are still to be
 * read estimated. */
uint64_t generation_waiting_tokens(const struct generator *s, const struct server_model *m);
/* The engine has it, and none of it has begun. */
bool generation_is_queued(const struct generation *g);
/* 0 while queue_tokens and body_memory have room for what it takes, else -EAGAIN with the words. */
int generation_check_room(const struct generation *g, struct error *words);
/* Ends a preparation that exceeds what the current thread allows: -1. */
int generation_exceeded(struct generation *g);
/* Returns the limit that holds for it: its own, else the configuration's, within its limits. 0: none. */
uint64_t generation_timeout_ms(const struct generation *g);
uint64_t generation_queue_timeout_ms(const struct generation *g);
/* Bytes that it takes of body_memory, beside its grammar, from its submission until its reply is taken. */
size_t generation_memory(const struct generation *g);
/* Answers with a 500 (or an error event) now, without waiting for the engine to let go. */
void generation_abandon(struct generation *g, const char *words);
/* Its part of the access line, in any state. */
void generation_log(const struct generation *g, struct log_access *line);
/* Its outcome; counts its texts that have ended, each by how, in any state. */
enum request_outcome generation_count(const struct generation *g, struct stats *stats);

/* Sets the defaults of fields that a request omits. */
void generation_defaults(struct params *p);
/* generation_prepare.c: fills g->p and the choices from the body, or r->error, or says g->exceeded. May run
 * on the pool. */
void generation_prepare(struct request *r);
/* Most template operations on the current thread; 0: the template's own limit. */
unsigned generation_operations(const struct generation *g);
/* Most tokens of a prompt: the context, or what is counted at most. */
size_t generation_most_ids(const struct generation *g);
/* Encodes text into p.ids (appending), refusing what has more tokens than generation_most_ids(). */
int generation_encode(struct generation *g, const char *text, size_t len, struct tokenizer_flags flags,
                      struct api_error *err);
/* Refuses a prompt that is known not to fit, before any of it was encoded. */
int generation_too_long(struct generation *g, struct api_error *err);
int generation_append_id(struct generation *g, int32_t id, struct api_error *err);

/* The parts of replies. */
struct timings {
    double queue_ms, prefill_ms, ttft_ms, decode_ms, prompt_tokens_per_s, tokens_per_s;
};
void generation_timings(const struct generation *g, struct timings *out);
uint32_t generation_n_tokens(const struct generation *g); /* of all choices; any state */
uint32_t generation_n_prompt(const struct generation *g); /* tokens of all prompts; once submitted */
/* The prompt of a choice. */
static inline const struct prompt *choice_prompt(const struct choice *c)
{
    return &c->g->prompts[c->index / c->g->p.n];
}
/* Prompt tokens from the cache; of each prompt 0 until a token of it has come or the engine is done: it may
 * be writing them. */
uint32_t generation_n_cached(const struct generation *g);
struct piece choice_whole(const struct choice *c);
/* Tokens and alternatives in no event yet; of a whole reply, all. */
size_t choice_n_unshown(const struct choice *c);

/* choice.c: output room and text, once `e` is filled. 0 or -1 with *err. May run on the pool. */
int choice_open(struct choice *c, struct api_error *err);
/* Takes the tokens that are there into the text. */
void choice_take(struct choice *c);
/* Tells if its text is whole, as far as the model goes; the engine has let go of it. */
bool choice_ended_well(const struct choice *c);
/* Its text ends here. */
void choice_end(struct choice *c);
/* Writes a stream's next event: the text since the last one, or its end. False
 * when there is none yet, or none any more. */
bool choice_tell(struct choice *c);
/* True when all others have told their ends: what concerns all choices goes with its own. */
bool choice_tells_last(const struct choice *c);
/* The engine has let go of it: gives back the room for tokens that have not come. */
void choice_trim(struct choice *c);
/* Sends the 200 and writes what precedes the first event, once. */
void generation_begin(struct generation *g);
/* After each event or comment that was written: a stream without memory for it ends. */
void generation_wrote(struct generation *g);
/* There is no memory to go on: what still runs is cancelled, and it will have failed. */
void generation_starve(struct generation *g);
/* The functions below append to the request's `out`; long lists and texts of a reply as its client takes
 * them. */
/* Items [from, to) of a choice, one by one, with commas between them. */
void put_items(const struct choice *c, uint32_t from, uint32_t to,
               void (*put)(struct buf *out, struct reply_list *l));
/* A piece's text as a string. */
void put_piece_text(const struct choice *c, const struct piece *piece);
/* The log-probabilities of the prompt's tokens: an array that begins with null. */
void put_prompt_logprobs(struct generation *g, struct buf *out);
