/* memo_walk.h - the walk of the whole trie by one state of a part of a grammar, for a memo: by tables of the
 * states' bytes, and from the mask of another state, of any JSON string, or of all tokens of some characters,
 * where most of the trie reads alike. Thread: the engine's. Memory: scratch of one call; the keys are the
 * vocabulary's. */
#pragma once
#include "matcher_private.h"

#include <sys/queue.h>

struct exit_node { /* a node whose byte leaves the part */
    uint32_t node;
    uint32_t count; /* characters of the token before it */
};
struct memo {
    uint32_t *mask;          /* tokens that stay inside */
    uint8_t *counts;         /* [n_tokens]: their characters, 255 for other tokens; NULL where none count */
    uint32_t n_inside, most; /* tokens in the mask; the largest of the counts */
    struct exit_node *exits; /* by node */
    uint32_t n_exits, exit_room;
    uint32_t state;           /* of the grammar it was made for */
    TAILQ_ENTRY(memo) by_use; /* of a grammar's: the one that was used last is the last */
    uint32_t n_users;         /* masks that are being made with it */
    uint32_t exit_state;
    /* `exits` lists the nodes that have one of these bytes: all that may come behind the exit. */
    bool byte_exit;
    uint64_t exit_bytes[4]; /* a set */
    uint32_t n_exit_bytes;
    bool useless; /* no mask: walk instead. A part with more than one way out, a frame of little or much work
                   */
    bool wide;    /* behind the exit all depends on the frame: the base of a frame's memo, of no use alone */
    /* Of a frame (frame_memo.h): exits are where it ends. It was made from the memo with the number `from`.
     */
    bool frame;
    uint64_t id, from;
    LIST_ENTRY(memo) by_frame;
};

/* Any JSON string, as the vocabulary's trie sees it. */
struct any_string {
    struct grammar *g;
    uint32_t states[GRAMMAR_STRING_MEMOS]; /* of g, by memo key */
    uint8_t *keys; /* [n_nodes]: the memo key of the state behind a node, from key 0; ANY_STRING_NONE: several
                      or none */
};
#define ANY_STRING_NONE 255

/* Takes a reference to g, a grammar of builder_string(). 0 or -ENOMEM. */
int any_string_open(struct any_string *a, const struct vocabulary *v, struct grammar *g);
void any_string_close(struct any_string *a); /* zeros are fine */

static inline bool memo_exits_by(const struct memo *o, uint8_t byte)
{
    return o->exit_bytes[byte / 64] >> (byte % 64) & 1;
}
static inline void memo_exit_by(struct memo *o, uint8_t byte)
{
    o->n_exit_bytes += !memo_exits_by(o, byte);
    o->exit_bytes[byte / 64] |= UINT64_C(1) << (byte % 64);
}
bool memo_add_exit(struct memo *o, uint32_t node, uint32_t count);

/* Masks that a new one may begin with. */
struct memo_bases {
    const struct memo *const *memos; /* [n_memos]: of states of the grammar, with the same way out */
    uint32_t n_memos;
    const struct memo *string; /* of key 0, with `any`; or NULL */
    const struct any_string *any;
};

/* Fills the mask and exits of o->state. `slow` walks a node and what is below it from a state with several
 * ways. False: tables for so many states have no room, or the walk's work has run out; what stands in the
 * mask and the exits is of no use then. */
bool memo_walk(struct matcher *m, const struct vocabulary *v, struct memo *o, const struct memo_bases *bases,
               bool (*slow)(void *context, uint32_t state, uint32_t node), void *context);

/* Tables of the states of one grammar's parts, for several walks. */
struct part_tables;
struct part_tables *part_tables_open(const struct grammar *g); /* NULL: no memory */
void part_tables_close(struct part_tables *all);               /* NULL is fine */
/* The same below a node alone, from o->state behind it: what it finds is added to the mask and the exits.
 * False leaves the mask as it is, with tokens that may come but not all. */
bool part_walk(struct matcher *m, const struct vocabulary *v, struct memo *o, struct part_tables *tables,
               uint32_t node, bool (*slow)(void *context, uint32_t state, uint32_t node), void *context);
