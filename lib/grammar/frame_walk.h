/* frame_walk.h - the walk of the trie for a memo of a frame (frame_memo.h). It goes by threads, as any walk
 * does; but a thread in a regular part of the grammar takes what is below a large node by the part's tables,
 * and another walk goes on from where that part ends. Thread: the engine's. Memory: tables and walks until
 * it is closed; items on the matcher's pool, which it takes back. */
#pragma once
#include "frame_memo.h"

struct frame_walk;

/* A walk that fills a memo's mask and exits. NULL: no memory. */
struct frame_walk *frame_walk_open(struct matcher *m, const struct vocabulary *v, struct memo *o);
void frame_walk_close(struct frame_walk *f); /* NULL is fine */
/* Walks the whole trie from a state, with nothing known of its frame. */
void frame_walk_all(struct frame_walk *f, uint32_t state);
/* Walks on from the exits of a memo, as the thread is there. */
void frame_walk_exits(struct frame_walk *f, const struct memo *from, struct thread t);
/* Takes what threads in parts lead to below a node, if that is large, and leaves the others in *c. */
void frame_walk_parts(struct frame_walk *f, uint32_t node, struct config *c);
