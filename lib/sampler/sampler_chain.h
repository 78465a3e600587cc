/* sampler_chain.h - sampling by a chain of filters in an order of the caller's, on the host: what sampler.h
 * does not offer. llama-server's names and formulas; l is a logit, p the softmax of what is left, H its
 * entropy in nats:
 *
 *   penalties    as in sampler.h
 *   dry          n = the longest end of the context that came before with x behind it, up to a breaker;
 *                n >= allowed: l[x] -= multiplier * base^(n - allowed), the exponent at most 88.7 / ln(base)
 *   top_n_sigma  l >= max - n * sigma, sigma of the logits that are left
 *   top_k, typical_p, top_p, min_p
 *   xtc          with its probability, once for a token: of all with p >= threshold only the least likely
 *                stays
 *   temperature  l / T; T = 0: the largest alone. With a range T = lo + (hi - lo) * (H / ln n)^exponent,
 *                where lo, hi = T -+ range, lo >= 0, and n tokens are left
 *   mirostat 2   in place of all filters behind penalties, dry and temperature: p >= 2^-mu, one token at
 *                least; then mu -= eta * (-log2 p of the drawn - tau)
 *   adaptive_p   behind all: t = clamp(2 * target - the decayed mean of the p of drawn tokens, 0, 1),
 *                d = |p - t| / 0.3, l = 5 - 10 * d * d / (1 + d)
 *
 * The drawn token is the largest l + arith_gumbel(seed, position, token); the coin of xtc is a word of the
 * same generator that belongs to no token, so switching it on does not move the noise. top_k, typical_p,
 * top_p and min_p are those of sampler.h, with integer masses, but typical_p's must exceed its share. Other
 * sums are doubles in a fixed order: the same inputs give the same token on every machine.
 * A reasoning that has `budget` tokens is closed: the tokens that spell the rest of its mark are forced,
 * where no mask forbids it.
 *
 * Cost: a few passes over what is left for each filter; prefixes of an order are found by ranges, nothing is
 * sorted (151,936 tokens of flat logits, a Zen 4 core, AVX-512: 0.7 ms with no filter, 1 with most, 3.4 with
 * typical_p and top_p: tests/bench/bench_sampler.c); dry is linear in the history, times the breakers of
 * several tokens. Thread: one caller at a time per chain and scratch. Memory: the caller's; a chain has
 * state of its text, and begins again with sampler_chain_begin(). */
#pragma once
#include "sampler.h"

enum sampler_filter {
    SAMPLER_PENALTIES,
    SAMPLER_DRY,
    SAMPLER_TOP_N_SIGMA,
    SAMPLER_TOP_K,
    SAMPLER_TYPICAL_P,
    SAMPLER_TOP_P,
    SAMPLER_MIN_P,
    SAMPLER_XTC,
    SAMPLER_TEMPERATURE,
    SAMPLER_N_FILTERS,
};

struct sampler_tokens { /* a sequence of tokens */
    const int32_t *ids;
    uint32_t n;
};

/* Returns the bytes of a token, which stay valid, and *len; NULL: it has none. */
typedef const char *sampler_piece(const void *context, int32_t token, uint32_t *len);

struct sampler_mark {
    const char *text;
    uint32_t n;          /* bytes */
    const int32_t *next; /* [n]: the token that goes on behind so many of its bytes, -1: there is none */
};

/* The reasoning of a text: `limit` tokens at most behind `open`, then `close`, each however it is cut into
 * tokens. */
struct sampler_budget {
    bool on, begins_inside; /* the prompt has opened it */
    uint32_t limit;
    struct sampler_mark open, close; /* open has no `next`; close has one byte at least */
    sampler_piece *piece;
    const void *context;
};

struct sampler_chain {
    uint8_t order[SAMPLER_N_FILTERS]; /* enum sampler_filter */
    uint32_t n_order;
    float top_n_sigma;                    /* 0: off */
    float xtc_probability, xtc_threshold; /* 0: off; above 0.5: off */
    float dynatemp_range, dynatemp_exponent;
    float dry_multiplier, dry_base; /* 0: off */
    uint32_t dry_allowed_length, dry_last_n;
    const struct sampler_tokens *breakers; /* of several tokens each */
    uint32_t n_breakers;
    const uint32_t *single; /* [n_single] bits: tokens that are breakers by themselves; NULL: none */
    uint32_t n_single;
    bool mirostat;
    float mirostat_tau, mirostat_eta;
    float adaptive_target, adaptive_decay; /* below 0: off */
    struct sampler_budget budget;

    /* State. */
    double mu;                             /* of mirostat */
    double adaptive_p, adaptive_n;         /* sums of decayed probabilities and of their weights */
    bool inside;                           /* the reasoning */
    uint32_t n_inside, n_opened, n_closed; /* its tokens; bytes of the marks that end the text */
    bool forcing;
};

struct sampler_candidate {
    float x; /* the logit */
    int32_t id;
};

/* Switches everything off, in llama-server's order. */
void sampler_chain_defaults(struct sampler_chain *c);
/* Before the first token of a text. */
void sampler_chain_begin(struct sampler_chain *c);
/* The tokens of history that the chain looks at: at most so many before the position. */
uint32_t sampler_chain_history(const struct sampler_chain *c, const struct step_sampling *set);
size_t sampler_chain_scratch_size(uint32_t n_vocab); /* bytes; 8-byte aligned, any content */
/* Runs the filters. Returns the number of tokens left, 1 at least, and *out, which lies in the scratch, in no
 * order: x are their logits at the end. For pick, and for tests. */
uint32_t sampler_chain_filter(struct sampler_chain *c, const struct sampler_input *in, void *scratch,
                              struct sampler_candidate **out);
/* Draws a token and takes it into the state. */
int32_t sampler_chain_pick(struct sampler_chain *c, const struct sampler_input *in, void *scratch);
