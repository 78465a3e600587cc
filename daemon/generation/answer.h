/* answer.h - a choice's text taken apart: content, reasoning and tool calls, for the dialects that show them
 * (dialect.event). Fed piece by piece, a stream's events go to the dialect at once; a whole reply's are
 * collected. Thread: loop, but answer_open(), which may run on the pool. Memory: the arena's. */
#pragma once
#include "chat/call_id.h"
#include "base/buf.h"
#include "toolcall/toolcall.h"

#include <stdint.h>

#define ANSWER_MAX_MARKS 32

struct choice;
struct generation;
struct piece;
struct api_error;

struct answer_call {
    char id[CALL_ID + 1];
    struct buf name, arguments;
    bool complete;
};

struct answer {
    struct choice *choice;
    struct toolcall_scanner *scanner;
    int32_t marks[ANSWER_MAX_MARKS]; /* control tokens that are part of the text */
    uint32_t n_marks;
    struct buf content, reasoning; /* of a whole reply */
    struct answer_call *calls; /* [n_calls], their arguments of a whole reply, or where the dialect asks */
    uint32_t n_calls;
    uint32_t n_reasoning_tokens;
    const struct piece *piece; /* the piece being fed */
    bool reasoning_last, failed, ended;
    int block; /* of a stream in blocks: what is open, as its dialect says; 0: nothing */
    uint32_t n_blocks;
    void *own;        /* the dialect's */
    bool passed_over; /* the call that is being read is one too many */
};

/* For choices of dialects with `event`. 0, or -1 with *err. */
int answer_open(struct choice *c, struct api_error *err);
bool answer_shows_token(const struct answer *a, int32_t token);
/* Takes the next piece of the text; `last`: the text ends with it. */
void answer_take(struct choice *c, const struct piece *piece, bool last);
/* Takes the whole text: a->content, reasoning and calls are filled. */
void answer_take_whole(struct choice *c);
/* Tokens of reasoning, of all choices. */
uint32_t answer_n_reasoning(const struct generation *g);
/* OpenAI's words: stop, length, tool_calls. */
const char *answer_finish(const struct choice *c);
