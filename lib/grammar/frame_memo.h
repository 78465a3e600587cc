/* frame_memo.h - remembered masks of what a frame allows: the tokens that a state of a rule takes before the
 * rule ends, whatever called it. Where a token ends the frame earlier the rest depends on the callers: such
 * nodes of the trie are the memo's exits, those alone whose byte some caller could read. Masks over several
 * frames are made from those: with the exits of the first resolved in the state to which its caller comes
 * back. What takes few steps is not remembered, nor what takes too many. There are none for items that must
 * differ, for states whose frame is counted, and where frames are deep: the limit of their depth must not
 * tell. Thread: the engine's. Memory: of the grammar's store; 29 bytes per state, at most 580 KB. */
#pragma once
#include "memo_store.h"
#include "trie_walk.h"

/* Frames for which memos are made are no deeper, and their walks go no deeper below them. */
#define FRAME_MEMO_DEPTH (GRAMMAR_MAX_DEPTH / 2)

struct frames; /* what the states of each rule lead to */

/* Of the matcher's grammar, made at the first call; NULL: it has no memos of frames. */
struct frames *frames_of(struct matcher *m, const struct vocabulary *v);
void frames_close(struct frames *f); /* NULL is fine */
/* True if the state's frame counts nothing. */
bool frames_plain(const struct frames *f, uint32_t state);
/* Adds to a memo's exit bytes all that may come from a state on, in its frame and behind it. */
void frames_add_bytes(struct frames *f, const struct grammar *g, uint32_t state, struct memo *o);

/* The state outside to which the part of a state leads; NO_FRAME: it is in none, or one that counts. */
uint32_t frames_exit(const struct frames *f, uint32_t state);
/* Sets the exit bytes of a memo with an exit state. */
void frames_exit_bytes(struct frames *f, const struct grammar *g, struct memo *o);

/* The memo of a state's frame, or that which goes on with a memo's exits in another state; NULL: walk.
 * *budget bounds the steps of memos that are made. */
struct memo *frame_memo(struct matcher *m, const struct vocabulary *v, uint32_t state, uint64_t *budget);
struct memo *frame_memo_on(struct matcher *m, const struct vocabulary *v, struct memo *from, uint32_t state,
                           uint64_t *budget);
/* Steps that the memos of one mask may take. */
uint64_t frame_memo_budget(const struct vocabulary *v);
/* Exits of a memo that are resolved anew each time; with more of them, another memo is made. */
uint32_t frame_memo_few(const struct vocabulary *v);
