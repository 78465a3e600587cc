/* sampler_select.h - the tokens that are still in play, cut to the beginning of an order or drawn from: what
 * sampler.h and sampler_chain.h have in common. Sums of probabilities are sums of integer masses, so the
 * tokens that stay are those of a full sort, though nothing is sorted: ranges of an order are left out first,
 * and few tokens selected one by one. The formulas are those of sampler.h. Thread: any, one caller at a time
 * for a set. Memory: the caller's. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define TOKENS_BLOCK 64   /* tokens that are walked together, and skipped together when none can matter */
#define TOKENS_FEW   1024 /* tokens that are selected one by one; of more, ranges are left out first */

struct sampler_loops;
struct sampler_noise;

/* One token of few. `key` is what the current filter orders by (larger first). */
struct candidate {
    float key;
    uint32_t id;
    uint64_t mass;
};

/* Tokens still in play, one at least. With more than TOKENS_FEW the ids ascend; functions that leave some out
 * keep the order of the others. */
struct tokens {
    uint32_t n;
    float *x;
    uint32_t *id;
    uint64_t *mass; /* scratch of a filter */
};

/* The largest logit (NaN is skipped), -inf when there is none. */
float tokens_max(const float *x, uint32_t n);
/* Moves those of tokens [at, at + n), n <= TOKENS_BLOCK, that are kept to [kept, ...); the new end. `mass`:
 * theirs, or NULL. Call in the order of blocks, and set n in the end. */
uint32_t tokens_keep(struct tokens *set, uint64_t *mass, uint32_t at, uint32_t n, const bool *keep,
                     uint32_t kept);
/* Moves the shortest run of the order whose masses reach `need` to the front of the few, unordered. Returns
 * its length (>= 1). All masses are above 0; need <= their sum. */
uint32_t candidates_select(struct candidate *set, uint32_t n, uint64_t need);

/* Filters; few[TOKENS_FEW] is scratch. 0 < k < n; p < 1, of min_p > 0. `beyond`: the masses must reach more
 * than their share, as llama-server's typical_p asks. */
void tokens_top_k(const struct sampler_loops *loops, struct tokens *set, uint32_t k, struct candidate *few);
void tokens_typical_p(const struct sampler_loops *loops, struct tokens *set, float p, bool beyond,
                      struct candidate *few);
void tokens_top_p(const struct sampler_loops *loops, struct tokens *set, float p, struct candidate *few);
void tokens_min_p(const struct sampler_loops *loops, struct tokens *set, float p);

#define TOKENS_REACH 28.0f /* a token of a mass lies at most 27.73 below the likeliest */

/* The id of the largest score as the loops have it; UINT32_MAX: every score is -inf. */
uint32_t tokens_draw(const struct sampler_loops *loops, const struct sampler_noise *noise,
                     const struct tokens *t);
