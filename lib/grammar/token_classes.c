#include "token_classes.h"
#include "vocabulary.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- the classes ---- */

/* Ranges that patterns tell apart often; each sign of ASCII has a class of its own. */
static const struct {
    uint8_t lo, hi, class;
} ranges[] = {{0x00, 0x1f, 0},  {0x7f, 0x7f, 1},  {'\t', '\t', 2},  {'\n', '\n', 3},  {'\r', '\r', 4},
              {'0', '0', 5},    {'1', '1', 6},    {'2', '9', 7},    {'a', 'f', 8},    {'g', 'z', 9},
              {'A', 'F', 10},   {'G', 'Z', 11},   {0xc2, 0xc2, 12}, {0xc3, 0xdf, 13}, {0xe0, 0xe0, 14},
              {0xe1, 0xe1, 15}, {0xe2, 0xe2, 16}, {0xe3, 0xe3, 17}, {0xe4, 0xe9, 18}, {0xea, 0xee, 19},
              {0xef, 0xef, 20}, {0xf0, 0xf4, 21}};
#define FIRST_SIGN 22 /* 0x20 to 0x2f, 0x3a to 0x40, 0x5b to 0x60, 0x7b to 0x7e: 33 */

static void set_class_table(uint8_t table[256])
{
    uint8_t sign = FIRST_SIGN;
    for (unsigned b = 0; b < 256; b++)
        table[b] = TOKEN_BROKEN;
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        memset(table + ranges[i].lo, ranges[i].class, (size_t)ranges[i].hi - ranges[i].lo + 1);
    for (unsigned b = 0x20; b < 0x7f; b++)
        if (table[b] == TOKEN_BROKEN)
            table[b] = sign++;
}

bool token_character(uint8_t lead, uint8_t *lo, uint8_t *hi, uint32_t *more)
{
    if (lead < 0xc2 || lead > 0xf4)
        return false;
    *lo = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    *hi = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    *more = lead < 0xe0 ? 0 : lead < 0xf0 ? 1 : 2;
    return true;
}

/* ---- of each node and token ---- */

/* The place of a walk through the trie: classes so far, and what the character that has begun still needs. */
struct place {
    uint64_t classes;
    uint32_t end; /* of the node's children */
    uint32_t more;
    uint8_t lo, hi;
    bool within, broken;
};

/* Returns the classes that the byte adds. */
static uint64_t step(struct place *p, uint8_t byte, uint8_t class)
{
    if (p->within && !p->broken && p->lo <= byte && byte <= p->hi) {
        p->within = p->more > 0;
        p->more -= p->within;
        p->lo = 0x80;
        p->hi = 0xbf;
        return 0;
    }
    p->broken |= p->within || class == TOKEN_BROKEN;
    p->within = !p->broken && token_character(byte, &p->lo, &p->hi, &p->more);
    uint64_t added = UINT64_C(1) << (p->broken ? TOKEN_BROKEN : class);
    p->classes |= added;
    return added;
}

struct token_set {
    uint64_t classes;
    int32_t token;
};

static int by_classes(const void *x, const void *y)
{
    const struct token_set *a = x, *b = y;
    if (a->classes != b->classes)
        return a->classes < b->classes ? -1 : 1;
    return a->token < b->token ? -1 : a->token > b->token;
}

/* Fills c->from with each node's own classes; lists the tokens. Returns their number. */
static uint32_t walk(struct token_classes *c, const struct vocabulary *v, struct place *places,
                     struct token_set *list)
{
    uint32_t top = 0, n = 0;
    places[0] = (struct place){.end = v->n_nodes};
    for (uint32_t node = 0; node < v->n_nodes; node++) {
        while (node == places[top].end)
            top--;
        const struct vocabulary_node *o = &v->nodes[node];
        places[top + 1] = places[top];
        struct place *p = &places[++top];
        p->end = o->end;
        c->from[node] = step(p, o->byte, c->class_of[o->byte]);
        if (top == 1)
            c->weight[c->class_of[o->byte]] += o->end - node;
        for (int32_t t = o->token; t >= 0; t = v->same[t])
            list[n++] = (struct token_set){p->classes, t};
    }
    return n;
}

static void add_children(struct token_classes *c, const struct vocabulary *v)
{
    for (uint32_t node = v->n_nodes; node-- > 0;) {
        uint32_t tall = 0;
        for (uint32_t k = node + 1; k < v->nodes[node].end; k = v->nodes[k].end) {
            c->from[node] |= c->from[k];
            tall = c->tall[k] > tall ? c->tall[k] : tall;
        }
        c->tall[node] = (uint8_t)(tall < 254 ? tall + 1 : 255);
    }
}

static void set_bit(uint32_t *mask, int32_t token)
{
    mask[token / 32] |= 1u << (token % 32);
}

static bool keep_sets(struct token_classes *c, struct token_set *list, uint32_t n)
{
    if (n)
        qsort(list, n, sizeof *list, by_classes);
    for (uint32_t i = 0; i < n; i++)
        c->n_sets += i == 0 || list[i].classes != list[i - 1].classes;
    c->sets = malloc((c->n_sets + 1) * sizeof *c->sets);
    c->first = malloc((c->n_sets + 1) * sizeof *c->first);
    c->tokens = malloc((n + 1) * sizeof *c->tokens);
    if (!c->sets || !c->first || !c->tokens)
        return false;
    for (uint32_t i = 0, s = 0; i < n; i++) {
        if (i == 0 || list[i].classes != list[i - 1].classes) {
            c->sets[s] = list[i].classes;
            c->first[s++] = i;
        }
        c->tokens[i] = list[i].token;
        set_bit(c->all, list[i].token);
    }
    c->first[c->n_sets] = n;
    return true;
}

int token_classes_open(struct token_classes *c, const struct vocabulary *v)
{
    *c = (struct token_classes){.n_mask_words = vocabulary_mask_words(v)};
    set_class_table(c->class_of);
    struct token_set *list = malloc((v->n_tokens + 1) * sizeof *list);
    struct place *places = malloc((v->max_len + 2) * sizeof *places);
    c->from = malloc((v->n_nodes + 1) * sizeof *c->from);
    c->tall = malloc(v->n_nodes + 1);
    c->all = calloc(c->n_mask_words + 1, sizeof *c->all);
    bool ok = list && places && c->from && c->tall && c->all;
    if (ok) {
        uint32_t n = walk(c, v, places, list);
        add_children(c, v);
        ok = keep_sets(c, list, n);
    }
    free(list);
    free(places);
    return ok ? 0 : -ENOMEM;
}

void token_classes_close(struct token_classes *c)
{
    free(c->from);
    free(c->tall);
    free(c->sets);
    free(c->first);
    free(c->tokens);
    free(c->all);
    *c = (struct token_classes){0};
}

/* ---- masks ---- */

void token_classes_mask(const struct token_classes *c, uint64_t allowed, uint32_t *mask)
{
    uint32_t n = 0, n_all = c->first[c->n_sets];
    for (uint32_t s = 0; s < c->n_sets; s++)
        n += c->sets[s] & ~allowed ? 0 : c->first[s + 1] - c->first[s];
    bool most = n > n_all / 2; /* then the others are fewer */
    if (most)
        memcpy(mask, c->all, c->n_mask_words * sizeof *mask);
    for (uint32_t s = 0; s < c->n_sets; s++) {
        bool inside = !(c->sets[s] & ~allowed);
        if (inside == most)
            continue;
        for (uint32_t i = c->first[s]; i < c->first[s + 1]; i++)
            mask[c->tokens[i] / 32] ^= 1u << (c->tokens[i] % 32);
    }
}
