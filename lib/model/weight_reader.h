/* weight_reader.h - the weights of a model on their way from the file to a backend: by several threads, group
 * by group, each group once, into memory of the caller's, who packs them from there while they are in the
 * cache. The reader adds up a sum of all bytes it has read, which depends neither on order nor on threads nor
 * on the backend: what model_hash() wants.
 *
 * Thread: open and close from one; weight_reader_rows() from any. Memory: none is taken. */
#pragma once
#include "base/error.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WEIGHT_GROUP 16 /* rows: what is read, summed and packed as one; MATMUL_ROWS and TILE_ROWS */

struct model;

struct weight_reader {
    const struct model *model;
    atomic_bool failed;
    _Atomic uint64_t sum;
    struct error err; /* of the first thread that failed */
};

void weight_reader_open(struct weight_reader *r, const struct model *m);
/* Reads rows of groups [first, last) of weight `index`, as they lie in the file, into `out`. Returns 0 or a
 * negative errno, -ECANCELED if an earlier read has failed: nothing more need be read. The words of the first
 * failure are weight_reader_close()'s. */
int weight_reader_groups(struct weight_reader *r, uint32_t index, uint32_t first, uint32_t last, void *out);
/* Once no thread reads any longer: 0 with the sum, or why one has failed. */
int weight_reader_close(struct weight_reader *r, uint64_t *sum, struct error *err);

/* Groups that a weight has. */
uint32_t weight_groups(const struct model *m, uint32_t index);
/* Bytes that weight_reader_groups() writes for so many groups of a weight, at most. */
size_t weight_groups_size(const struct model *m, uint32_t index, uint32_t n_groups);
/* So many groups of a weight that they fit a core's cache, at least 1. */
uint32_t weight_groups_at_once(const struct model *m, uint32_t index);
