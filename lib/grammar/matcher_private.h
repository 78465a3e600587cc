/* matcher_private.h - the threads and frames of a matcher, for matcher.c, matcher_mask.c and
 * matcher_ahead.c. */
#pragma once
#include "matcher.h"

#define NO_FRAME UINT32_MAX

/* A language that was called at one place of the text, by one caller or several: what follows its end.
 * Callers share it, so alternatives with common parts cost no more than their sum. */
struct frame {
    uint32_t rule, links; /* the first of its links */
    uint32_t mark;        /* bytes of text when it was called */
    uint32_t depth;
    uint32_t ended; /* the closure in which it ended without input */
};
struct link { /* a caller: where to go on, in which frame */
    uint32_t back, count, below;
    uint32_t next;
};
struct thread {
    uint32_t state, count, stack;
    uint32_t next; /* of the same state in one closure */
};
struct config { /* threads [first, first + n) of the pool */
    uint32_t first, n;
    bool can_end;
    bool exits; /* the part of the grammar was left, with `exit_count` */
    uint32_t exit_count;
};

/* The matcher as it was before a look ahead: frames and links are only added meanwhile. */
struct matcher_saved {
    struct config now;
    uint32_t n_frames, n_links, room;
    size_t n_text, n_bytes;
    struct thread pool[];
};

struct matcher {
    struct grammar *g;
    struct thread *pool;
    uint32_t n_pool, pool_room;
    struct frame *frames;
    uint32_t n_frames, frame_room;
    struct link *links;
    uint32_t n_links, link_room;
    uint32_t *turn_of, *head; /* [n_states]: threads of the closure `turn`, by state */
    uint32_t turn;
    struct config now; /* the threads of the text so far: the front of the pool */
    bool failed;
    bool ambiguous;       /* failed for more threads than MATCHER_MAX_THREADS, or for lack of work */
    uint64_t work;        /* steps left of this walk */
    bool alone;           /* a walk inside one part: bounds are ignored */
    uint32_t depth_limit; /* of frames, those that a way to the end needs among them */
    bool too_deep;        /* a way was left for it */
    char *text;           /* with unique items */
    size_t n_text, text_room;
    struct mask_job *job; /* the mask that is being made, or NULL */
    struct matcher_saved *saved;
    bool looks;     /* behind matcher_save(): frames stay where they are */
    size_t n_bytes; /* of all of it, counted in the grammar */
};

/* Counts memory that the matcher has taken. */
void matcher_take(struct matcher *m, size_t n);

/* Makes room for n more threads on the pool; false: for lack of memory, or `ambiguous`. */
bool matcher_pool_room(struct matcher *m, uint32_t n);

/* Takes steps of the walk's work; false when it is spent: the matcher has failed. */
bool matcher_work(struct matcher *m, uint64_t steps);
bool matcher_step(struct matcher *m, const struct config *from, uint8_t byte, struct config *to);
/* Adds what a thread reaches without input to a fresh configuration at the end of the pool. */
bool matcher_start(struct matcher *m, struct thread t, struct config *to);
/* The same of what follows where a frame ends. */
bool matcher_behind(struct matcher *m, uint32_t stack, struct config *to);
/* True if some caller of the frame may go on, or it is the frame of the whole text. */
bool matcher_may_leave(struct matcher *m, uint32_t stack);
uint32_t matcher_depth(const struct matcher *m); /* of the deepest frame of the text so far */
struct matcher_item {                            /* of an array, in the text */
    size_t start, len;
};
/* Finds the next earlier item that begins like the text of the frame, which is an item's that must differ
 * from them; zeros before the first. False: there is none, or the frame is another's. */
bool matcher_item_like(struct matcher *m, uint32_t stack, struct matcher_item *item);
/* Drops a mask that is being made. */
void matcher_stop_mask(struct matcher *m);
bool matcher_put_text(struct matcher *m, size_t at, char byte);
