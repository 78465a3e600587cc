/* toy_feed.h - an endless sequence of steps of every kind for the toy decoder, from a seed. Thread: one per
 * feed. */
#pragma once
#include "toy_model.h"

struct toy_feed {
    struct kv_layout layout;
    uint64_t random, id;
    uint32_t n_slots;             /* slots that get rows */
    uint32_t n_windows;           /* window pages; 0: there are none */
    uint32_t next_pos[TOY_SLOTS]; /* 0: the slot is free */
};

void toy_feed_open(struct toy_feed *f, const struct kv_layout *layout, uint64_t seed);
/* Fills in a zeroed step. */
void toy_feed_next(struct toy_feed *f, struct step *step);
