/* delta_net.h - the recurrent layers of the cpu decoder (kernels/abi/delta.h): the states of all slots, and a
 * step's rows through them.
 * The adjacent rows of one sequence form a group. A unit of the convolution is (group, head of queries, keys
 * or values), of the net (group, value head): no two units touch the same part of a state. A sequence that
 * begins at position 0 begins with a state of zeros, whatever the slot had; a group may begin with a copy of
 * another state (STEP_STATE_LOAD), and leave copies of its own behind any of its rows (STEP_STATE_SAVE),
 * which its units make head by head while the head lies in the processor's cache. Thread: open, close and
 * plan by member 0; the rest by any member. Memory: taken in delta_open(). Errors: those of open;
 * step_check() has checked that a slot's rows follow one another, and the operations on states. */
#pragma once
#include "base/error.h"
#include "base/memory.h"
#include "cpu/ops/ops.h"
#include "rows.h"
#include "abi/step.h"

struct graph;
struct weights;

struct delta_group {
    uint32_t slot, first, n; /* rows of the step */
    uint32_t source;         /* the state that it begins with; the slot's own unless loaded */
    bool begins;             /* at position 0 */
};

struct delta_save {
    uint32_t group, after; /* behind that many of its rows, 1.. */
    uint32_t to;           /* state */
};

struct delta_net {
    const struct ops *ops;
    struct delta_shape shape;
    uint32_t n_layers;          /* 0: the model has no recurrent layers */
    struct memory_block states; /* [n_states][n_layers]: of the slots, then snapshots */
    struct memory_block taps;   /* [n_layers][heads of q, k and v][n_taps][their dims] */

    uint32_t n_groups; /* of the step that runs */
    struct delta_group groups[STEP_MAX_ROWS];
    uint32_t n_saves;
    struct delta_save saves[STEP_MAX_PAGE_OPS]; /* those of a group by `after` */
};

/* Bytes of one state, and of n_states and the taps. */
size_t delta_state_size(const struct delta_shape *shape, uint32_t n_layers);
size_t delta_size(const struct delta_shape *shape, uint32_t n_layers, uint32_t n_states);
/* Takes the memory; the caller has set ops, shape and n_layers. The graph's taps are read from `w`. */
int delta_open(struct delta_net *d, const struct graph *g, const struct weights *w, uint32_t n_states,
               struct error *err);
void delta_close(struct delta_net *d);
void delta_plan(struct delta_net *d, const struct step *step);

/* Convolves a head's channels of a group's rows and notes the last rows in the state. `out` may be `in`. */
void delta_convolve(const struct delta_net *d, uint32_t layer, uint32_t group, uint32_t head, struct rows in,
                    struct rows out);
/* Brings one head of a row of channels, if of queries or keys, to its length. */
void delta_unit_head(const struct delta_net *d, uint32_t head, float *x, float eps);
/* The same behind a silu, of any head. */
void delta_activate_head(const struct delta_net *d, uint32_t head, float *x, float eps);
/* The gates of a row: out[2 heads] from its b and alpha, which may lie there. `together`: b has both. */
void delta_gates(const struct delta_shape *s, const float *a, const float *dt, const float *b,
                 const float *alpha, bool together, float *out);
/* A group's rows through the net of one value head. */
void delta_scan(const struct delta_net *d, uint32_t layer, uint32_t group, uint32_t head, struct rows in,
                struct rows gates, struct rows out);
