/* Banned strings: a text is drawn as by a plain reference, which searches the whole text after each token,
 * and as often as the reference's probabilities say. */
#include "sampler/banned.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { N_VOCAB = 8, N_TOKENS = 3, LONG = 40, N_TEXTS = 512 /* N_VOCAB ^ N_TOKENS */ };

static const char *const pieces[N_VOCAB] = {"a", "b", "c", "ab", "bc", "cab", "", "xa"};
static const char *const usual[] = {"abc", "cc", "bab"};

static const char *piece(const void *context, int32_t token, uint32_t *len)
{
    (void)context;
    *len = (uint32_t)strlen(pieces[token]);
    return pieces[token];
}

/* The logits of a model that sees its last token alone. */
static void logits_behind(int32_t last, float logits[N_VOCAB])
{
    for (int32_t i = 0; i < N_VOCAB; i++)
        logits[i] = (float)((i * 7 + (last + 1) * 5) % 11) / 4;
}

/* ---- the reference ---- */

struct plain {
    const char *const *strings;
    int n_strings, n, final;
    bool constrained;
    int late; /* 0, or 1 and the position from which on single tokens are withdrawn */
    int32_t tokens[LONG];
    unsigned bans[LONG + 1]; /* by position, a bit per token */
};

static int token_at_byte(const struct plain *p, size_t byte)
{
    size_t end = 0;
    for (int i = 0; i < p->n; i++)
        if ((end += strlen(pieces[p->tokens[i]])) > byte)
            return i;
    return p->n;
}

static void text_of(const struct plain *p, char *text)
{
    *text = 0;
    for (int i = 0; i < p->n; i++)
        strcat(text, pieces[p->tokens[i]]);
}

static bool ends_with(const char *text, size_t len, const char *s, size_t n)
{
    return n <= len && !memcmp(text + len - n, s, n);
}

/* A constraint by the last token alone. Some tokens must be followed by one or two others. */
static unsigned may_follow(int32_t last)
{
    static const unsigned bits[N_VOCAB + 1] = {0xff, 0x06, 0x05, 0x0a, 0x04, 0x41, 0x80, 0xbf, 0x12};
    return bits[last + 1];
}

static unsigned allowed(const struct plain *p)
{
    unsigned bits = 0, may = p->constrained ? may_follow(p->n ? p->tokens[p->n - 1] : -1) : 0xff;
    for (int t = 0; t < N_VOCAB; t++) {
        bool within = false;
        for (int i = 0; i < p->n_strings; i++)
            within = within || strstr(pieces[t], p->strings[i]);
        bits |= !within && !(p->bans[p->n] >> t & 1) ? 1u << t : 0;
    }
    return bits & may;
}

static int first_held(const struct plain *p)
{
    char text[256];
    text_of(p, text);
    size_t len = strlen(text), longest = 0;
    for (int i = 0; i < p->n_strings; i++)
        for (size_t n = 1; n < strlen(p->strings[i]); n++)
            if (ends_with(text, len, p->strings[i], n) && n > longest)
                longest = n;
    return longest ? token_at_byte(p, len - longest) : p->n;
}

/* Withdraws the tokens from one on. */
static void shorten(struct plain *p, int at)
{
    p->bans[at] |= 1u << p->tokens[at];
    for (int i = at + 1; i <= LONG; i++)
        p->bans[i] = 0;
    p->late = at + 1 < p->late ? 0 : p->late;
    p->n = at;
}

/* Where no token may follow. False: there is no way back. */
static bool plain_go_back(struct plain *p)
{
    if (p->bans[p->n] && (!p->late || p->n + 1 < p->late)) {
        p->bans[p->n] = 0;
        p->late = p->n + 1;
        return true;
    }
    if (p->n == p->final)
        return false;
    shorten(p, p->n - 1);
    return true;
}

/* True if the text stays; else it was shortened. */
static bool plain_take(struct plain *p, int32_t token)
{
    char text[256];
    p->tokens[p->n++] = token;
    text_of(p, text);
    for (size_t end = 1; end <= strlen(text); end++) {
        size_t longest = 0;
        for (int i = 0; i < p->n_strings; i++) {
            size_t n = strlen(p->strings[i]);
            longest = ends_with(text, end, p->strings[i], n) && n > longest ? n : longest;
        }
        if (!longest)
            continue;
        int at = token_at_byte(p, end - longest);
        at = at > p->final ? at : p->final; /* a withdrawal has revived a beginning */
        shorten(p, p->late && at + 1 >= p->late ? p->n - 1 : at);
        return false;
    }
    p->final = first_held(p) > p->final ? first_held(p) : p->final;
    p->late = p->final + 1 > p->late ? 0 : p->late;
    return true;
}

/* Adds the probability of each text of N_TOKENS tokens that begins like this one, but for ways of less than
 * 1e-8. */
static void enumerate(const struct plain *p, double probability, double of[N_TEXTS])
{
    float logits[N_VOCAB];
    double sum = 0;
    unsigned bits = allowed(p);
    if (p->n == N_TOKENS) {
        int at = 0;
        for (int i = 0; i < N_TOKENS; i++)
            at = at * N_VOCAB + p->tokens[i];
        of[at] += probability;
        return;
    }
    struct plain back = *p;
    if (!bits && plain_go_back(&back))
        enumerate(&back, probability, of);
    logits_behind(p->n ? p->tokens[p->n - 1] : -1, logits);
    for (int t = 0; t < N_VOCAB; t++)
        sum += bits >> t & 1 ? exp((double)logits[t]) : 0;
    for (int t = 0; t < N_VOCAB && probability > 1e-8; t++) {
        struct plain next = *p;
        if (!(bits >> t & 1))
            continue;
        plain_take(&next, t);
        enumerate(&next, probability * exp((double)logits[t]) / sum, of);
    }
}

/* ---- the text in question ---- */

struct drawn {
    struct banned *b;
    struct step_sampling set;
    bool constrained;
    int32_t tokens[LONG];
};

static bool mask_of(const struct drawn *d, uint32_t *mask, const struct sampler_chain *chain)
{
    uint32_t n = banned_n_tokens(d->b);
    if (!d->constrained)
        return banned_mask(d->b, mask, N_VOCAB, chain);
    *mask = may_follow(n ? d->tokens[n - 1] : -1);
    return banned_restrict(d->b, mask, N_VOCAB, chain);
}

/* Goes back until a token may follow. False: none may. */
static bool find_mask(struct drawn *d, uint32_t *mask, struct sampler_chain *chain, double *n_back)
{
    while (!mask_of(d, mask, chain)) {
        if (banned_go_back(d->b, chain) != BANNED_WITHDRAWN)
            return false;
        ++*n_back;
    }
    return true;
}

static struct sampler_input input_of(const struct drawn *d, const struct step_sampling *set,
                                     const uint32_t *mask, const float *logits)
{
    return (struct sampler_input){
        .logits = logits, .n_vocab = N_VOCAB, .set = set, .position = banned_n_tokens(d->b), .mask = mask};
}

static uint64_t scratch[1 << 20];

/* Draws one token, which may be withdrawn. */
static enum banned_verdict draw(struct drawn *d, struct sampler_chain *chain)
{
    float logits[N_VOCAB];
    uint32_t mask, n = banned_n_tokens(d->b);
    struct step_sampling set = d->set;
    cr_assert(sampler_chain_scratch_size(N_VOCAB) <= sizeof scratch);
    cr_assert(sampler_scratch_size(N_VOCAB) <= sizeof scratch);
    set.seed = banned_seed(d->b, set.seed);
    cr_assert(mask_of(d, &mask, chain));
    logits_behind(n ? d->tokens[n - 1] : -1, logits);
    struct sampler_input in = input_of(d, &set, &mask, logits);
    d->tokens[n] = chain ? sampler_chain_pick(chain, &in, scratch) : sampler_pick(&in, scratch);
    return banned_take(d->b, d->tokens[n], chain);
}

/* 200,000 texts; the sum of (seen - expected)^2 / expected is about the number of texts that are expected
 * often enough, and its deviation the root of twice that. */
static void expect_frequencies(bool constrained)
{
    static double of[N_TEXTS], n_seen[N_TEXTS];
    uint32_t mask;
    struct arena a = {0};
    struct plain p = {.strings = usual, .n_strings = 3, .constrained = constrained};
    struct banned_strings *s = banned_strings_open(&a, usual, 3, N_VOCAB, piece, NULL);
    struct drawn d = {.b = banned_open(&a, s, false),
                      .set = {.temperature = 1, STEP_SAMPLING_NEUTRAL},
                      .constrained = constrained};
    const double n_texts = 200000;
    double sum = 0, distance = 0, n_classes = 0, n_withdrawn = 0, n_back = 0, n_stuck = 0;
    memset(of, 0, sizeof of);
    memset(n_seen, 0, sizeof n_seen);
    enumerate(&p, 1, of);
    for (uint32_t seed = 1; seed <= (uint32_t)n_texts; seed++) {
        int at = 0;
        d.set.seed = seed;
        banned_begin(d.b, BANNED_MAX_HELD, N_TOKENS);
        while (banned_n_tokens(d.b) < N_TOKENS && find_mask(&d, &mask, NULL, &n_back))
            n_withdrawn += draw(&d, NULL) == BANNED_WITHDRAWN;
        if (banned_n_tokens(d.b) < N_TOKENS) { /* no token is left: the reference leaves it out, too */
            n_stuck++;
            continue;
        }
        for (int i = 0; i < N_TOKENS; i++)
            at = at * N_VOCAB + d.tokens[i];
        n_seen[at]++;
    }
    for (int i = 0; i < N_TEXTS; i++) {
        sum += of[i];
        cr_assert(of[i] > 0 || n_seen[i] == 0, "text %d has a banned string", i);
        if (of[i] * n_texts < 10)
            continue;
        n_classes++;
        distance += (n_seen[i] - of[i] * n_texts) * (n_seen[i] - of[i] * n_texts) / (of[i] * n_texts);
    }
    cr_assert_leq(fabs(sum + n_stuck / n_texts - 1), 0.004, "%g, %g stuck", sum, n_stuck);
    cr_assert_gt(n_withdrawn, n_texts / 20, "%g", n_withdrawn);
    cr_assert_eq(n_back > n_texts / 100, constrained, "%g", n_back);
    cr_assert_gt(n_classes, constrained ? 20 : 100, "%g", n_classes);
    cr_assert_leq(fabs(distance - n_classes), 4 * sqrt(2 * n_classes), "%g of %g", distance, n_classes);
    arena_close(&a);
}

Test(banned, texts_come_as_often_as_the_reference_says)
{
    expect_frequencies(false);
}

Test(banned, constrained_texts_come_as_often_as_the_reference_says)
{
    expect_frequencies(true);
}

static const char *const many[][3] = {
    {"abc", "cc", "bab"}, {"aaaa", "abab", "cabca"}, {"bcbcbcb", "xaxa", "aba"}, {"cabcabcab", "bb", "acxa"}};

static void follow(struct drawn *d, struct plain *p, struct sampler_chain *chain)
{
    struct sampler_chain before[LONG + 1];
    uint32_t mask;
    for (int steps = 0; p->n < LONG && steps < 5000; steps++) {
        if (!mask_of(d, &mask, chain)) {
            cr_assert_eq(allowed(p), 0);
            bool back = banned_go_back(d->b, chain) == BANNED_WITHDRAWN;
            cr_assert_eq(back, plain_go_back(p));
            if (!back)
                return;
            cr_assert_eq((uint32_t)p->n, banned_n_tokens(d->b));
            cr_assert(!chain || !memcmp(chain, &before[p->n], sizeof *chain));
            continue;
        }
        cr_assert_eq(mask, allowed(p));
        if (chain)
            before[p->n] = *chain;
        int n = p->n;
        bool stays = draw(d, chain) == BANNED_FINE;
        cr_assert_eq(plain_take(p, d->tokens[n]), stays);
        cr_assert_eq((uint32_t)p->n, banned_n_tokens(d->b));
        cr_assert_eq((uint32_t)p->final, banned_n_final(d->b));
        if (chain && !stays)
            cr_assert_eq(memcmp(chain, &before[p->n], sizeof *chain), 0);
    }
}

Test(banned, text_bans_and_what_is_held_back_are_those_of_the_reference)
{
    for (uint32_t seed = 1; seed <= 2000; seed++) {
        struct arena a = {0};
        struct plain p = {.strings = many[seed % 4], .n_strings = 3, .constrained = seed % 3 == 0};
        struct banned_strings *s = banned_strings_open(&a, p.strings, 3, N_VOCAB, piece, NULL);
        struct drawn d = {.b = banned_open(&a, s, seed % 2),
                          .set = {.seed = seed, .temperature = 1, STEP_SAMPLING_NEUTRAL},
                          .constrained = seed % 3 == 0};
        struct sampler_chain chain;
        sampler_chain_defaults(&chain);
        chain.mirostat = seed % 4 == 1;
        chain.adaptive_target = seed % 4 == 3 ? 0.3f : -1;
        sampler_chain_begin(&chain);
        banned_begin(d.b, BANNED_MAX_HELD, LONG);
        follow(&d, &p, seed % 2 ? &chain : NULL);
        arena_close(&a);
    }
}

/* Any two letters in a row are banned, so that the text can only go on with tokens without bytes. */
Test(banned, withdrawals_and_what_is_held_back_have_limits)
{
    static const char *const all[] = {"aa", "ab", "ac", "ax", "ba", "bb", "bc", "bx", "ca", "cb", "cc", "cx"};
    struct arena a = {0};
    struct banned_strings *s = banned_strings_open(&a, all, 12, N_VOCAB, piece, NULL);
    struct drawn d = {.b = banned_open(&a, s, false), .set = {.temperature = 1, STEP_SAMPLING_NEUTRAL}};
    enum banned_verdict verdict = BANNED_FINE;
    int n_drawn = 0;
    banned_begin(d.b, 2, LONG);
    for (; verdict != BANNED_HOPELESS && banned_n_tokens(d.b) < LONG && n_drawn < 100000; n_drawn++) {
        uint32_t mask;
        if (!mask_of(&d, &mask, NULL))
            break;
        verdict = draw(&d, NULL);
        cr_assert_leq(banned_n_tokens(d.b) - banned_n_final(d.b), 2);
    }
    cr_assert_lt(n_drawn, 100000, "it goes on for ever");
    arena_close(&a);
}
