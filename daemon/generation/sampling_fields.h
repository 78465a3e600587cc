/* sampling_fields.h - the filters of a chain (sampler/sampler_chain.h) as requests ask for them, under
 * llama-server's names: top_n_sigma, xtc_probability, xtc_threshold, dynatemp_range, dynatemp_exponent,
 * dry_multiplier, dry_base, dry_allowed_length, dry_penalty_last_n, dry_sequence_breakers, mirostat (0 or 2),
 * mirostat_tau, mirostat_eta, adaptive_target, adaptive_decay, samplers (an order), and thinking_budget. A
 * request that asks for none of them is sampled by the decoder. Thread: any, one at a time per request.
 * Memory: the request's arena. */
#pragma once
#include "json/json_fields.h"
#include "sampler/sampler_chain.h"

struct engine_request;
struct generation;

#define SAMPLING_MAX_BREAKERS 16 /* strings, of SAMPLING_MAX_BREAKER bytes each */
#define SAMPLING_MAX_BREAKER  64

struct sampling { /* of a request */
    struct sampler_chain chain;
    bool has_order;
    int32_t dry_last_n;      /* -1: all */
    int32_t thinking_budget; /* -1: none */
    const char *breakers[SAMPLING_MAX_BREAKERS];
    uint32_t n_breakers;
    bool has_breakers; /* else llama-server's: a newline, : " * */
    bool chained;      /* there is a chain; set by sampling_prepare() */
};

extern const struct field sampling_fields[];

void sampling_defaults(struct sampling *s);
/* Decides if there is a chain, and makes tokens of its strings. 0, or -1 with *err, or with g->exceeded: the
 * vocabulary must be searched on the pool. Call when the prompt is made. */
int sampling_prepare(struct generation *g, struct api_error *err);
/* Gives a choice its chain, at the beginning. 0 or -1 with *err. */
int sampling_begin(struct generation *g, struct engine_request *e, struct api_error *err);
