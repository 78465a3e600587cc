#include "ngram_index.h"
#include "base/hash.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CANDIDATES  8 /* most places compared for the longest match */
#define LONG_ENOUGH 8 /* a source with a match of so many tokens continues behind one token that differs */
#define MIN_BUCKETS 64

static uint32_t buckets_for(uint32_t n)
{
    uint32_t buckets = MIN_BUCKETS;
    while (buckets < n && buckets < 1u << 30)
        buckets *= 2;
    return buckets;
}

int lookup_open(struct lookup *l, uint32_t capacity, struct error *err)
{
    uint32_t buckets = buckets_for(capacity);
    *l = (struct lookup){.capacity = capacity};
    l->tokens = calloc(capacity + 1, sizeof *l->tokens);
    l->previous = calloc((size_t)capacity + 1, sizeof *l->previous);
    for (int i = 0; i < 2; i++)
        l->after[i] = calloc(buckets, sizeof *l->after[i]);
    if (l->tokens && l->previous && l->after[0] && l->after[1])
        return 0;
    lookup_close(l);
    return error_set(err, -ENOMEM, "an index of %u tokens: out of memory", capacity);
}

void lookup_close(struct lookup *l)
{
    free(l->tokens);
    free(l->previous);
    free(l->after[0]);
    free(l->after[1]);
    *l = (struct lookup){0};
}

void lookup_begin(struct lookup *l, uint32_t n_max)
{
    assert(n_max <= l->capacity);
    uint32_t buckets = buckets_for(n_max);
    l->n = l->source = l->length = 0;
    l->expects = false;
    l->n_max = n_max;
    l->mask = buckets - 1;
    for (int i = 0; i < 2; i++)
        memset(l->after[i], 0, buckets * sizeof *l->after[i]);
}

/* The bucket of the last 2 + i tokens. */
static uint32_t *bucket(const struct lookup *l, int i)
{
    const int32_t *end = l->tokens + l->n;
    uint64_t h = hash_word((uint32_t)end[-1], (uint32_t)end[-2]);
    if (i)
        h = hash_word(h, (uint32_t)end[-3]);
    return &l->after[i][h & l->mask];
}

/* Adds the end of the sequence to the index. */
static void remember(struct lookup *l)
{
    if (l->n >= 2)
        *bucket(l, 0) = l->n;
    if (l->n >= 3) {
        uint32_t *latest = bucket(l, 1);
        l->previous[l->n] = *latest;
        *latest = l->n;
    }
}

static uint32_t common_past(const struct lookup *l, uint32_t place)
{
    uint32_t n = 0;
    while (n < LOOKUP_LONGEST && n < place && l->tokens[place - 1 - n] == l->tokens[l->n - 1 - n])
        n++;
    return n;
}

static void consider(struct lookup *l, uint32_t place)
{
    uint32_t length = common_past(l, place);
    if (length < 2 || (l->expects && length <= l->length))
        return;
    l->expects = true;
    l->source = place;
    l->length = length;
}

/* Sets the source to a place behind an earlier occurrence of the last tokens, if there is one. */
static void find(struct lookup *l)
{
    l->expects = false;
    if (l->n >= 3) {
        uint32_t place = *bucket(l, 1);
        for (uint32_t i = 0; place && i < CANDIDATES; i++, place = l->previous[place])
            consider(l, place);
    }
    if (l->n >= 2 && !l->expects && *bucket(l, 0))
        consider(l, *bucket(l, 0));
}

void lookup_feed(struct lookup *l, const int32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n && l->n < l->n_max; i++) {
        l->tokens[l->n++] = tokens[i];
        remember(l);
    }
}

void lookup_add(struct lookup *l, int32_t token)
{
    bool right = l->expects && l->tokens[l->source] == token;
    uint32_t behind = l->source + 1, length = l->length;
    bool trusted = l->expects && length >= LONG_ENOUGH;
    assert(l->n <= l->n_max && l->n_max <= l->capacity);
    if (l->n == l->n_max) {
        l->expects = false;
        return;
    }
    l->tokens[l->n++] = token;
    if (right) {
        l->source = behind;
        l->length += length < LOOKUP_LONGEST;
    } else {
        find(l);
        if (!l->expects && trusted) {
            l->expects = true;
            l->source = behind;
            l->length = 0;
        }
    }
    remember(l);
}

void lookup_draft(const struct lookup *l, int32_t *out, uint32_t n)
{
    assert(l->expects && l->source < l->n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t place = l->source + i;
        out[i] = place < l->n ? l->tokens[place] : out[place - l->n];
    }
}
