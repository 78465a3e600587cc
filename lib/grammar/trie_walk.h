/* trie_walk.h - the tokens that may follow a configuration: a walk of a part of the vocabulary's trie, node
 * by node, by the matcher's threads. Thread: the engine's. Memory: items on the matcher's pool, which it
 * takes back. */
#pragma once
#include "memo_walk.h"

/* The items that a walk has put on the pool, and takes back. */
struct trie_mark {
    uint32_t n_pool, n_frames, n_links;
};

#define TRIE_LEVELS 256

struct trie_walk {
    struct matcher *m;
    const struct vocabulary *v;
    uint32_t *mask;
    struct memo *memo;         /* being made, or NULL */
    struct config *level;      /* trie_levels() made it */
    uint64_t pause;            /* with less work left the walk pauses */
    struct frame_walk *frames; /* frame_walk.h, for a memo of a frame; or NULL */
    /* The place of the walk: `node` is next; nodes at the levels [0, top] end at ends[]. */
    uint32_t node, top;
    uint32_t ends[TRIE_LEVELS];
    struct trie_mark marks[TRIE_LEVELS];
    size_t n_text;
};

struct config *trie_levels(const struct vocabulary *v); /* to be freed; NULL: no memory */
struct trie_mark trie_mark(const struct matcher *m);
void trie_go_back(struct matcher *m, struct trie_mark to);
void trie_set_token(const struct trie_walk *w, int32_t token, uint32_t count);
/* Prepares to walk the nodes [node, end), children of a node whose configuration is level[0]. */
void trie_walk_begin(struct trie_walk *w, uint32_t node, uint32_t end);
/* True when all is walked, or the matcher has failed; false when the walk pauses: called again it goes on. */
bool trie_walk(struct trie_walk *w);
