/* memo_store.h - the remembered masks of a vocabulary (JSON strings) or of a grammar: by the state of a part,
 * and by frame (frame_memo.h). A grammar keeps 8 MB of them: 19 KB each for 150,000 tokens, 170 KB where
 * characters count. Thread: the engine's. Memory: counted in grammar_bytes(). */
#pragma once
#include "memo_walk.h"

#define MEMO_RECENT  4
#define MEMO_BUCKETS 512

LIST_HEAD(memo_list, memo);

struct vocabulary_memos {
    const struct vocabulary *of;
    struct memo **memo; /* by key */
    uint32_t n;
    size_t n_bytes;                         /* of all */
    struct any_string any;                  /* of a vocabulary's */
    TAILQ_HEAD(, memo) by_use;              /* only those of a grammar */
    const struct memo *recent[MEMO_RECENT]; /* of a grammar's: the newest, in turns */
    uint32_t n_recent;
    struct frames *frames; /* of a grammar's: frame_memo.h; NULL: not made yet */
    bool frameless;        /* ... and there are none */
    struct memo_list by_frame[MEMO_BUCKETS];
    uint64_t n_made; /* numbers memos of frames */
};

void memo_free(struct memo *o); /* NULL is fine */
/* Counts bytes that a store has taken. */
void memo_take(struct matcher *m, struct vocabulary_memos *s, size_t n);
/* Forgets the grammar's memos that were used longest ago, but those that masks are being made with. The bytes
 * of memos of JSON strings have no bound: their number is known, and they are the vocabulary's. */
bool memo_room(struct matcher *m, const struct vocabulary *v, const struct vocabulary_memos *s);
/* Keeps a memo of a part, by its state's key, or of a frame. */
void memo_keep(struct matcher *m, const struct vocabulary *v, struct vocabulary_memos *s, struct memo *o);
/* The grammar's memo of a frame, made from the memo `from` (0: none) and for the state; NULL. */
struct memo *memo_of_frame(const struct vocabulary_memos *s, uint64_t from, uint32_t state);
/* A memo of a grammar is used: it will be forgotten later than others. */
void memo_used(struct vocabulary_memos *s, struct memo *o);
