/* attend_reference.h - lib/cpu/attention.c over the steps of a case, and its cache in the device's order. */
#pragma once
#include "attend_cases.h"

struct reference;

struct reference *reference_open(const struct attend_case *c, const float *cosines, const float *sines,
                                 const uint32_t *tables, uint32_t pages_per_slot, uint32_t n_pages);
void reference_close(struct reference *r);
/* Puts a token into the cache. */
void reference_append(struct reference *r, uint32_t slot, uint32_t pos, uint32_t kv_head, const float *k,
                      const float *v);
/* One step; in [n_rows][in_stride] is changed as the decoder changes it. */
void reference_step(struct reference *r, const struct attend_case *c, const struct step *step, float *in,
                    float *out);
/* Copies the tokens below each slot's length into a cache as kv_tile.h orders it. */
void reference_to_device(const struct reference *r, const uint32_t *lengths, char *kv);
/* The first difference in those tokens: false, and where. */
bool reference_equals(const struct reference *r, const uint32_t *lengths, const char *kv, char *where,
                      size_t size);
