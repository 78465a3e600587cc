/* attend_reference.h - lib/cpu/attention.c over the steps of a case, and conversion of its cache to the
 * device's order.
 * Thread: one per reference. */
#pragma once
#include "attend_cases.h"

struct reference;

struct reference *reference_open(const struct attend_case *c, const float *cosines, const float *sines,
                                 const uint32_t *tables, uint32_t pages_per_slot, uint32_t n_pages);
void reference_close(struct reference *r);
/* Stores a token in the cache. */
void reference_append(struct reference *r, uint32_t slot, uint32_t pos, uint32_t kv_head, const float *k,
                      const float *v);
/* Runs one step; changes in [n_rows][in_stride] as the decoder does. */
void reference_step(struct reference *r, const struct attend_case *c, const struct step *step, float *in,
                    float *out);
/* Copies the tokens below each slot's length into a cache in the order of kv_tile.h. */
void reference_to_device(const struct reference *r, const uint32_t *lengths, char *kv);
/* Compares those tokens. False: sets the place of the first difference. */
bool reference_equals(const struct reference *r, const uint32_t *lengths, const char *kv, char *where,
                      size_t size);
