/* tokenizer_merge.c - merges the symbols of a word into tokens. The two neighbours of the smallest rank, the
 * leftmost first, become one symbol, until no pair merges. A short word is searched for its best pair. A long
 * word has a list of pairs for each rank and a heap of the ranks that have a pair: a merge changes three
 * pairs at most, so n bytes take O(n log ranks), mostly reading memory forward. */
#include "tokenizer_private.h"
#include "base/utf8.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SHORT       48         /* symbols; up to this number a plain search is faster */
#define NOWHERE     UINT32_MAX /* no node */
#define NO_RANK     UINT32_MAX
#define CACHE_WORDS 4096 /* a power of two */
#define CACHE_BYTES 22
#define CACHE_IDS   10
#define CACHE_FROM  2048 /* bytes; for a shorter text the cache is not worth its memory */

struct node { /* one symbol of a long word */
    uint32_t symbol;
    uint32_t at;            /* first byte in the word */
    uint32_t prev, next;    /* neighbours in the word; the last one's next is n, the number of nodes */
    uint32_t before, after; /* neighbours in the list of its rank */
    uint32_t rank;          /* of the pair of this symbol and the next */
};

struct bucket { /* list of the pairs of one rank, by position of their first symbol */
    uint32_t head, tail;
    bool waiting;  /* the rank is in the heap */
    bool unsorted; /* a pair was added out of order */
};

struct cached { /* a word and its ids; `len` 0: an empty slot */
    uint8_t len, n;
    char word[CACHE_BYTES];
    int32_t ids[CACHE_IDS];
};

struct merger {
    const struct tokenizer *t;
    struct id_list *ids;
    struct cached *cache; /* or NULL */
    struct node *nodes;
    size_t room;
    struct bucket *buckets; /* one per rank; empty between words */
    uint32_t *heap;
    size_t n_heap;
    const char *word;
    size_t len;
};

int id_list_add(struct id_list *l, int32_t id)
{
    if (l->max && l->n == l->max)
        return -E2BIG;
    if (l->n == l->room) {
        size_t room = l->room * 2 + 64;
        int32_t *ids = realloc(l->ids, room * sizeof *ids);
        if (!ids)
            return -ENOMEM;
        l->ids = ids;
        l->room = room;
    }
    l->ids[l->n++] = id;
    return 0;
}

int merger_open(struct merger **out, const struct tokenizer *t, struct id_list *ids, size_t text_len)
{
    struct merger *m = calloc(1, sizeof *m);
    if (!m)
        return -ENOMEM;
    *m = (struct merger){.t = t, .ids = ids};
    if (text_len >= CACHE_FROM) /* if this fails, words take longer and give the same ids */
        m->cache = calloc(CACHE_WORDS, sizeof *m->cache);
    *out = m;
    return 0;
}

void merger_close(struct merger *m)
{
    if (!m)
        return;
    free(m->cache);
    free(m->nodes);
    free(m->buckets);
    free(m->heap);
    free(m);
}

/* ---- pairs that merge ---- */

static uint32_t merge_rank(const struct tokenizer *t, uint32_t left, uint32_t right, uint32_t *symbol)
{
    for (uint32_t i = hash_word(left, right) & t->merge_mask;; i = (i + 1) & t->merge_mask) {
        const struct merge *slot = &t->merges[i];
        if (slot->left == NO_SYMBOL) /* checked first, as `left` may be NO_SYMBOL too */
            return NO_RANK;
        if (slot->left == left && slot->right == right) {
            *symbol = slot->symbol;
            return slot->rank;
        }
    }
}

void merges_put(struct tokenizer *t, struct merge merge)
{
    uint32_t i = hash_word(merge.left, merge.right) & t->merge_mask;
    for (; t->merges[i].left != NO_SYMBOL; i = (i + 1) & t->merge_mask)
        if (t->merges[i].left == merge.left && t->merges[i].right == merge.right)
            return;
    t->merges[i] = merge;
}

/* Returns the rank of a pair, or NO_RANK. The pair's text is `len` bytes of the word from `at`. */
static inline uint32_t pair_rank(const struct merger *m, uint32_t left, uint32_t right, size_t at, size_t len,
                                 uint32_t *symbol)
{
    const struct tokenizer *t = m->t;
    if (t->merges)
        return merge_rank(t, left, right, symbol);
    uint32_t id = text_map_find(&t->by_text, &t->text, m->word + at, len);
    if (id == NO_SYMBOL || !token_is_plain(t, id))
        return NO_RANK;
    *symbol = id;
    return t->rank[id];
}

/* ---- output ---- */

static int put_byte(struct merger *m, unsigned char byte)
{
    int32_t id = m->t->byte_token[byte];
    return id < 0 ? 0 : id_list_add(m->ids, id);
}

/* SPM: writes a text that is no token as byte tokens, or as the unknown token if a byte has none. */
static int put_spm_text(struct merger *m, const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (m->t->byte_token[(unsigned char)s[i]] < 0)
            return m->t->unknown < 0 ? 0 : id_list_add(m->ids, m->t->unknown);
    int rc = 0;
    for (size_t i = 0; rc >= 0 && i < len; i++)
        rc = put_byte(m, (unsigned char)s[i]);
    return rc;
}

static int put_symbol(struct merger *m, uint32_t symbol, size_t at, size_t len)
{
    if (symbol < m->t->n_vocab)
        return id_list_add(m->ids, (int32_t)symbol);
    if (m->t->spm)
        return put_spm_text(m, m->word + at, len);
    int rc = 0;
    for (size_t i = 0; rc >= 0 && i < len; i++)
        rc = put_byte(m, (unsigned char)m->word[at + i]);
    return rc;
}

/* ---- first symbols ---- */

/* Returns the symbol that begins at byte `at`, and its length. */
static uint32_t first_symbol(const struct merger *m, size_t at, size_t *len)
{
    const struct tokenizer *t = m->t;
    *len = 1;
    if (!t->spm)
        return t->byte_symbol[(unsigned char)m->word[at]];
    size_t n = utf8_char(m->word + at, m->len - at);
    if (n)
        *len = n;
    uint32_t id = text_map_find(&t->by_text, &t->text, m->word + at, *len);
    return id != NO_SYMBOL && token_is_plain(t, id) ? id : NO_SYMBOL;
}

/* ---- short words ---- */

struct short_word {
    uint32_t symbol[SHORT], rank[SHORT], merged[SHORT];
    uint32_t at[SHORT + 1];
    size_t n;
};

static void rank_short(const struct merger *m, struct short_word *w, size_t i)
{
    w->rank[i] = i + 1 < w->n ? pair_rank(m, w->symbol[i], w->symbol[i + 1], w->at[i],
                                          w->at[i + 2] - w->at[i], &w->merged[i])
                              : NO_RANK;
}

static void merge_at(const struct merger *m, struct short_word *w, size_t i)
{
    w->symbol[i] = w->merged[i];
    w->n--;
    size_t moved = w->n - i - 1;
    memmove(&w->symbol[i + 1], &w->symbol[i + 2], moved * sizeof w->symbol[0]);
    memmove(&w->rank[i + 1], &w->rank[i + 2], moved * sizeof w->rank[0]);
    memmove(&w->merged[i + 1], &w->merged[i + 2], moved * sizeof w->merged[0]);
    memmove(&w->at[i + 1], &w->at[i + 2], (moved + 1) * sizeof w->at[0]);
    rank_short(m, w, i);
    if (i)
        rank_short(m, w, i - 1);
}

static int merge_short(struct merger *m, struct short_word *w)
{
    for (size_t i = 0; i < w->n; i++)
        rank_short(m, w, i);
    for (;;) {
        size_t best = 0;
        for (size_t i = 1; i < w->n; i++)
            if (w->rank[i] < w->rank[best])
                best = i;
        if (w->rank[best] == NO_RANK)
            break;
        merge_at(m, w, best);
    }
    int rc = 0;
    for (size_t i = 0; rc >= 0 && i < w->n; i++)
        rc = put_symbol(m, w->symbol[i], w->at[i], w->at[i + 1] - w->at[i]);
    return rc;
}

/* Returns false when the word has too many symbols. */
static bool fill_short(const struct merger *m, struct short_word *w)
{
    w->n = 0;
    for (size_t at = 0, len; at < m->len; at += len) {
        if (w->n == SHORT)
            return false;
        w->at[w->n] = (uint32_t)at;
        w->symbol[w->n++] = first_symbol(m, at, &len);
    }
    w->at[w->n] = (uint32_t)m->len;
    return true;
}

/* ---- the heap of ranks ---- */

static void heap_push(struct merger *m, uint32_t rank)
{
    assert(m->n_heap < m->t->n_ranks); /* `waiting` keeps a rank from being there twice */
    size_t i = m->n_heap++;
    for (; i && m->heap[(i - 1) / 2] > rank; i = (i - 1) / 2)
        m->heap[i] = m->heap[(i - 1) / 2];
    m->heap[i] = rank;
}

static void heap_pop(struct merger *m)
{
    uint32_t last = m->heap[--m->n_heap];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < m->n_heap; i = child) {
        if (child + 1 < m->n_heap && m->heap[child + 1] < m->heap[child])
            child++;
        if (m->heap[child] >= last)
            break;
        m->heap[i] = m->heap[child];
    }
    m->heap[i] = last;
}

/* ---- the pairs of one rank ---- */

static void bucket_remove(struct merger *m, uint32_t i)
{
    struct node *node = &m->nodes[i];
    if (node->rank == NO_RANK)
        return;
    struct bucket *b = &m->buckets[node->rank];
    if (node->before == NOWHERE)
        b->head = node->after;
    else
        m->nodes[node->before].after = node->after;
    if (node->after == NOWHERE)
        b->tail = node->before;
    else
        m->nodes[node->after].before = node->before;
    node->rank = NO_RANK;
}

/* Links node i behind `before`; NOWHERE: as the first. */
static void bucket_link(struct merger *m, struct bucket *b, uint32_t i, uint32_t before)
{
    struct node *node = &m->nodes[i];
    node->before = before;
    node->after = before == NOWHERE ? b->head : m->nodes[before].after;
    if (before == NOWHERE)
        b->head = i;
    else
        m->nodes[before].after = i;
    if (node->after == NOWHERE)
        b->tail = i;
    else
        m->nodes[node->after].before = i;
}

/* Returns the node to link pair i behind. Merging goes from left to right, so a new pair belongs at the end
 * or, in the list that is being merged, among the first two. A pair that belongs elsewhere is put at the end,
 * and the list is sorted before it is used. */
static uint32_t place_for(const struct merger *m, struct bucket *b, uint32_t i)
{
    if (b->tail == NOWHERE) {
        b->unsorted = false;
        return NOWHERE;
    }
    if (i > b->tail)
        return b->tail;
    if (i < b->head)
        return NOWHERE;
    uint32_t second = m->nodes[b->head].after;
    if (second != NOWHERE && i < second)
        return b->head;
    b->unsorted = true;
    return b->tail;
}

static void bucket_add(struct merger *m, uint32_t i, uint32_t rank)
{
    assert(rank < m->t->n_ranks);
    struct bucket *b = &m->buckets[rank];
    m->nodes[i].rank = rank;
    bucket_link(m, b, i, place_for(m, b, i));
    if (!b->waiting) {
        b->waiting = true;
        heap_push(m, rank);
    }
}

/* Merges two sorted lists linked by `after`. */
static uint32_t lists_merge(struct node *nodes, uint32_t a, uint32_t b)
{
    uint32_t head = NOWHERE, *link = &head;
    while (a != NOWHERE && b != NOWHERE) {
        uint32_t *least = a < b ? &a : &b;
        *link = *least;
        link = &nodes[*least].after;
        *least = *link;
    }
    *link = a != NOWHERE ? a : b;
    return head;
}

/* Sorts bottom-up by merging the runs that are in order already. */
static void bucket_sort(struct merger *m, struct bucket *b)
{
    struct node *nodes = m->nodes;
    uint32_t sorted[32];
    size_t n = 0;
    for (uint32_t run = b->head; run != NOWHERE;) {
        uint32_t last = run;
        while (nodes[last].after != NOWHERE && nodes[last].after > last)
            last = nodes[last].after;
        uint32_t rest = nodes[last].after;
        nodes[last].after = NOWHERE;
        size_t k = 0;
        for (; k < n && sorted[k] != NOWHERE; k++) {
            run = lists_merge(nodes, sorted[k], run);
            sorted[k] = NOWHERE;
        }
        assert(k < 32);
        sorted[k] = run;
        n = k == n ? n + 1 : n;
        run = rest;
    }
    uint32_t all = NOWHERE;
    for (size_t k = 0; k < n; k++)
        all = lists_merge(nodes, sorted[k], all);
    b->head = all;
    b->tail = NOWHERE;
    for (uint32_t i = all; i != NOWHERE; i = nodes[i].after) {
        nodes[i].before = b->tail;
        b->tail = i;
    }
    b->unsorted = false;
}

/* ---- long words ---- */

static int reserve_long(struct merger *m, size_t n)
{
    if (n >= NOWHERE)
        return -E2BIG;
    if (n > m->room) {
        free(m->nodes);
        m->room = 0;
        m->nodes = malloc(n * sizeof *m->nodes);
        if (!m->nodes)
            return -ENOMEM;
        m->room = n;
    }
    if (m->buckets)
        return 0;
    size_t n_ranks = m->t->n_ranks;
    m->heap = malloc((n_ranks + 1) * sizeof *m->heap);
    m->buckets = malloc((n_ranks + 1) * sizeof *m->buckets);
    if (!m->heap || !m->buckets) {
        free(m->heap);
        free(m->buckets);
        m->heap = NULL;
        m->buckets = NULL;
        return -ENOMEM;
    }
    for (size_t i = 0; i < n_ranks; i++)
        m->buckets[i] = (struct bucket){.head = NOWHERE, .tail = NOWHERE};
    return 0;
}

/* Puts the pair that begins at node i into the list of its rank. `n` is the number of nodes. */
static void rank_node(struct merger *m, uint32_t i, uint32_t n)
{
    struct node *node = &m->nodes[i];
    bucket_remove(m, i);
    if (node->next == n)
        return;
    const struct node *next = &m->nodes[node->next];
    size_t end = next->next == n ? m->len : m->nodes[next->next].at;
    uint32_t symbol;
    uint32_t rank = pair_rank(m, node->symbol, next->symbol, node->at, end - node->at, &symbol);
    if (rank != NO_RANK)
        bucket_add(m, i, rank);
}

static void merge_node(struct merger *m, uint32_t i, uint32_t n)
{
    struct node *node = &m->nodes[i];
    uint32_t gone = node->next;
    bucket_remove(m, i);
    bucket_remove(m, gone);
    node->next = m->nodes[gone].next;
    size_t end = node->next == n ? m->len : m->nodes[node->next].at;
    pair_rank(m, node->symbol, m->nodes[gone].symbol, node->at, end - node->at, &node->symbol);
    if (node->next != n)
        m->nodes[node->next].prev = i;
    if (node->prev != NOWHERE)
        rank_node(m, node->prev, n);
    rank_node(m, i, n);
}

static size_t count_symbols(const struct merger *m)
{
    if (!m->t->spm)
        return m->len;
    size_t n = 0;
    for (size_t at = 0, len; at < m->len; at += len, n++) {
        len = utf8_char(m->word + at, m->len - at);
        len += !len;
    }
    return n;
}

static int merge_long(struct merger *m)
{
    size_t count = count_symbols(m);
    int rc = reserve_long(m, count);
    if (rc < 0)
        return rc;
    uint32_t n = (uint32_t)count;
    size_t at = 0, len;
    for (uint32_t i = 0; i < n; i++, at += len) {
        uint32_t symbol = first_symbol(m, at, &len);
        m->nodes[i] =
            (struct node){symbol, (uint32_t)at, i ? i - 1 : NOWHERE, i + 1, NOWHERE, NOWHERE, NO_RANK};
    }
    for (uint32_t i = 0; i < n; i++)
        rank_node(m, i, n);
    while (m->n_heap) {
        uint32_t rank = m->heap[0];
        struct bucket *b = &m->buckets[rank];
        if (b->head == NOWHERE) {
            b->waiting = false;
            heap_pop(m);
            continue;
        }
        if (b->unsorted)
            bucket_sort(m, b);
        merge_node(m, b->head, n);
    }
    for (uint32_t i = 0; rc >= 0 && i < n; i = m->nodes[i].next) {
        const struct node *node = &m->nodes[i];
        size_t end = node->next == n ? m->len : m->nodes[node->next].at;
        rc = put_symbol(m, node->symbol, node->at, end - node->at);
    }
    return rc;
}

/* ---- words ---- */

/* Gemma 4: the token that is a whole run of line ends, or NO_SYMBOL. */
static uint32_t line_ends(const struct merger *m)
{
    const struct tokenizer *t = m->t;
    if (!t->spm || !t->merges || m->word[0] != '\n')
        return NO_SYMBOL;
    uint32_t id = text_map_find(&t->by_text, &t->text, m->word, m->len);
    return id != NO_SYMBOL && token_is_plain(t, id) ? id : NO_SYMBOL;
}

static int merge_word(struct merger *m)
{
    uint32_t whole = line_ends(m);
    if (whole != NO_SYMBOL)
        return id_list_add(m->ids, (int32_t)whole);
    if (m->t->ignore_merges) {
        uint32_t id = text_map_find(&m->t->by_piece, &m->t->piece, m->word, m->len);
        if (id != NO_SYMBOL)
            return id_list_add(m->ids, (int32_t)id);
    }
    /* Refuse a word that must give too many ids before merging it. */
    if (m->ids->max && m->len / m->t->max_word > m->ids->max)
        return -E2BIG;
    struct short_word w;
    return fill_short(m, &w) ? merge_short(m, &w) : merge_long(m);
}

static struct cached *cache_slot(const struct merger *m, const char *word, size_t len)
{
    if (!m->cache || len > CACHE_BYTES || len < 2)
        return NULL;
    return &m->cache[hash_bytes(0, word, len) & (CACHE_WORDS - 1)];
}

int merger_word(struct merger *m, const char *word, size_t len)
{
    struct cached *c = cache_slot(m, word, len);
    int rc = 0;
    if (c && c->len == len && !memcmp(c->word, word, len)) {
        for (unsigned i = 0; rc >= 0 && i < c->n; i++)
            rc = id_list_add(m->ids, c->ids[i]);
        return rc;
    }
    size_t before = m->ids->n;
    m->word = word;
    m->len = len;
    rc = merge_word(m);
    if (rc >= 0 && c && m->ids->n - before <= CACHE_IDS) {
        c->len = (uint8_t)len;
        c->n = (uint8_t)(m->ids->n - before);
        memcpy(c->word, word, len);
        memcpy(c->ids, m->ids->ids + before, c->n * sizeof c->ids[0]);
    }
    return rc;
}
