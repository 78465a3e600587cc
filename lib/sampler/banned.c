#include "banned.h"
#include "base/hash.h"

#include <assert.h>
#include <string.h>

#define RING                  (BANNED_MAX_HELD + 1)
#define NOWHERE               UINT32_MAX
#define WITHDRAWALS           1024 /* of any text, */
#define WITHDRAWALS_PER_TOKEN 16   /* and for each token that it may get */

/* How far the end of a text has come into each string: bytes of it. */
struct progress {
    uint8_t n[BANNED_MAX_STRINGS];
};

struct banned_string {
    const char *s;
    uint8_t len;
    uint8_t border[BANNED_MAX_BYTES]; /* [i]: the longest proper beginning that ends its first i + 1 bytes */
};

struct banned_strings {
    uint32_t n, n_vocab;
    struct banned_string *of; /* [n] */
    const uint32_t *within;   /* [n_vocab] bits: tokens whose own bytes contain a string */
    sampler_piece *piece;
    const void *context;
};

struct banned {
    const struct banned_strings *strings;
    uint32_t n_tokens, n_final, most_held;
    uint32_t n_withdrawals, most_withdrawals;
    uint32_t late_from; /* from this position on the token that completes a string is withdrawn; NOWHERE */
    struct progress progress;
    struct {
        int32_t token;
        uint32_t len;
        struct progress before;
    } held[RING];                 /* by position, of the newest tokens */
    struct sampler_chain *chains; /* [RING] before each of them; NULL: no chain draws */
    uint32_t n_bans;
    struct ban {
        uint32_t position;
        int32_t token;
    } bans[BANNED_MAX_BANS]; /* in order of positions */
};

/* ---- strings ---- */

/* Goes one byte on in a string of which n bytes have come. */
static uint8_t advance(const struct banned_string *s, uint8_t n, char byte)
{
    if (n == s->len)
        n = s->border[n - 1];
    while (n > 0 && s->s[n] != byte)
        n = s->border[n - 1];
    return n + (s->s[n] == byte);
}

static void find_borders(struct banned_string *s)
{
    s->border[0] = 0;
    for (uint8_t i = 1; i < s->len; i++)
        s->border[i] = advance(s, s->border[i - 1], s->s[i]);
}

/* Goes one byte on in all of them. Returns the length of the longest that is complete; 0: none is. */
static uint32_t advance_all(const struct banned_strings *s, struct progress *p, char byte)
{
    uint32_t complete = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        p->n[i] = advance(&s->of[i], p->n[i], byte);
        if (p->n[i] == s->of[i].len && s->of[i].len > complete)
            complete = s->of[i].len;
    }
    return complete;
}

static bool contains_one(const struct banned_strings *s, const bool begins[256], const char *text,
                         uint32_t len)
{
    for (uint32_t at = 0; at < len; at++)
        for (uint32_t i = 0; begins[(uint8_t)text[at]] && i < s->n; i++)
            if (s->of[i].len <= len - at && !memcmp(text + at, s->of[i].s, s->of[i].len))
                return true;
    return false;
}

static bool find_within(struct arena *a, struct banned_strings *s)
{
    bool begins[256] = {false};
    uint32_t *within = arena_array(a, (s->n_vocab + 31) / 32, sizeof *within);
    for (uint32_t i = 0; i < s->n; i++)
        begins[(uint8_t)s->of[i].s[0]] = true;
    for (uint32_t token = 0; within && token < s->n_vocab; token++) {
        uint32_t len = 0;
        const char *text = s->piece(s->context, (int32_t)token, &len);
        if (text && contains_one(s, begins, text, len))
            within[token / 32] |= 1u << (token % 32);
    }
    s->within = within;
    return within != NULL;
}

struct banned_strings *banned_strings_open(struct arena *a, const char *const *strings, uint32_t n,
                                           uint32_t n_vocab, sampler_piece *piece, const void *context)
{
    struct banned_strings *s = arena_zalloc(a, sizeof *s);
    assert(n <= BANNED_MAX_STRINGS);
    if (!s)
        return NULL;
    *s = (struct banned_strings){.n_vocab = n_vocab, .piece = piece, .context = context};
    s->of = arena_array(a, n, sizeof *s->of);
    for (; s->of && s->n < n; s->n++) {
        size_t len = strlen(strings[s->n]);
        struct banned_string *to = &s->of[s->n];
        assert(len > 0 && len <= BANNED_MAX_BYTES);
        to->len = (uint8_t)len;
        to->s = arena_copy(a, strings[s->n], len);
        if (!to->s)
            return NULL;
        find_borders(to);
    }
    return s->of && find_within(a, s) ? s : NULL;
}

/* ---- a text ---- */

struct banned *banned_open(struct arena *a, const struct banned_strings *s, bool chained)
{
    struct banned *b = arena_zalloc(a, sizeof *b);
    if (!b)
        return NULL;
    b->strings = s;
    if (chained && !(b->chains = arena_array(a, RING, sizeof *b->chains)))
        return NULL;
    banned_begin(b, BANNED_MAX_HELD, 0);
    return b;
}

void banned_begin(struct banned *b, uint32_t most_held, uint32_t max_tokens)
{
    b->n_tokens = b->n_final = b->n_withdrawals = b->n_bans = 0;
    b->most_held = most_held < BANNED_MAX_HELD ? most_held : BANNED_MAX_HELD;
    b->most_withdrawals = WITHDRAWALS + WITHDRAWALS_PER_TOKEN * max_tokens;
    b->progress = (struct progress){0};
    b->late_from = NOWHERE;
}

uint32_t banned_n_tokens(const struct banned *b)
{
    return b->n_tokens;
}

uint32_t banned_n_final(const struct banned *b)
{
    return b->n_final;
}

uint64_t banned_seed(const struct banned *b, uint64_t seed)
{
    return b->n_withdrawals ? hash_word(seed, b->n_withdrawals) : seed;
}

bool banned_mask(struct banned *b, uint32_t *mask, uint32_t n_vocab, const struct sampler_chain *chain)
{
    uint32_t n_words = (n_vocab + 31) / 32;
    memset(mask, 0xff, n_words * sizeof *mask);
    if (n_vocab % 32)
        mask[n_words - 1] = (1u << (n_vocab % 32)) - 1;
    return banned_restrict(b, mask, n_vocab, chain);
}

bool banned_restrict(struct banned *b, uint32_t *mask, uint32_t n_vocab, const struct sampler_chain *chain)
{
    const struct banned_strings *s = b->strings;
    uint32_t any = 0, n_words = (n_vocab + 31) / 32, n_known = (s->n_vocab + 31) / 32;
    for (uint32_t i = 0; i < n_words && i < n_known; i++)
        mask[i] &= ~s->within[i];
    for (uint32_t i = 0; i < b->n_bans; i++)
        if (b->bans[i].position == b->n_tokens && (uint32_t)b->bans[i].token < n_vocab)
            mask[b->bans[i].token / 32] &= ~(1u << (b->bans[i].token % 32));
    for (uint32_t i = 0; i < n_words; i++)
        any |= mask[i];
    if (b->chains && chain)
        b->chains[b->n_tokens % RING] = *chain;
    return any != 0;
}

/* The token that has the byte `back` bytes before the end of the first n tokens, or the first that is not
 * final if that is later. */
static uint32_t token_back(const struct banned *b, uint32_t n, uint32_t back)
{
    while (n > b->n_final + 1 && back > b->held[(n - 1) % RING].len)
        back -= b->held[--n % RING].len;
    return n - 1;
}

/* Forgets the bans whose position is final or lies behind `position`, where other tokens will come. */
static void drop_bans(struct banned *b, uint32_t position)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_bans; i++)
        if (b->bans[i].position >= b->n_final && b->bans[i].position <= position)
            b->bans[n++] = b->bans[i];
    b->n_bans = n;
}

static enum banned_verdict withdraw(struct banned *b, uint32_t position, struct sampler_chain *chain)
{
    drop_bans(b, position);
    if (position < b->late_from)
        b->late_from = NOWHERE;
    b->n_tokens = position;
    b->progress = b->held[position % RING].before;
    if (b->chains && chain)
        *chain = b->chains[position % RING];
    if (b->n_bans == BANNED_MAX_BANS || b->n_withdrawals == b->most_withdrawals)
        return BANNED_HOPELESS;
    b->n_withdrawals++;
    b->bans[b->n_bans++] = (struct ban){position, b->held[position % RING].token};
    return BANNED_WITHDRAWN;
}

/* Holds back the tokens that may become part of a string. */
static void hold(struct banned *b)
{
    uint32_t longest = 0;
    for (uint32_t i = 0; i < b->strings->n; i++)
        longest = b->progress.n[i] > longest ? b->progress.n[i] : longest;
    b->n_final = longest ? token_back(b, b->n_tokens, longest) : b->n_tokens;
    if (b->n_tokens - b->n_final > b->most_held)
        b->n_final = b->n_tokens - b->most_held;
    if (b->n_final > b->late_from)
        b->late_from = NOWHERE;
}

enum banned_verdict banned_take(struct banned *b, int32_t token, struct sampler_chain *chain)
{
    uint32_t len = 0, index = b->n_tokens++;
    const char *text = b->strings->piece(b->strings->context, token, &len);
    b->held[index % RING].token = token;
    b->held[index % RING].before = b->progress;
    b->held[index % RING].len = 0;
    for (uint32_t i = 0; text && i < len; i++) {
        uint32_t complete = advance_all(b->strings, &b->progress, text[i]);
        b->held[index % RING].len = i + 1;
        if (complete) {
            uint32_t first = token_back(b, index + 1, complete);
            return withdraw(b, first < b->late_from ? first : index, chain);
        }
    }
    hold(b);
    return BANNED_FINE;
}

enum banned_verdict banned_go_back(struct banned *b, struct sampler_chain *chain)
{
    uint32_t n = b->n_tokens;
    bool bans = b->n_bans && b->bans[b->n_bans - 1].position == n;
    if (!bans || n >= b->late_from)
        return n > b->n_final ? withdraw(b, n - 1, chain) : BANNED_HOPELESS;
    while (b->n_bans && b->bans[b->n_bans - 1].position == n)
        b->n_bans--;
    b->late_from = n;
    return BANNED_WITHDRAWN;
}
