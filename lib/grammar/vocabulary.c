#include "vocabulary.h"
#include "matcher.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct word {
    const char *s;
    uint32_t len, token;
};

static int by_bytes(const void *x, const void *y)
{
    const struct word *a = x, *b = y;
    uint32_t n = a->len < b->len ? a->len : b->len;
    int c = memcmp(a->s, b->s, n);
    if (c != 0)
        return c;
    if (a->len != b->len)
        return a->len < b->len ? -1 : 1;
    return a->token < b->token ? -1 : 1;
}

static uint32_t common(const struct word *a, const struct word *b)
{
    uint32_t n = 0;
    while (n < a->len && n < b->len && a->s[n] == b->s[n])
        n++;
    return n;
}

static size_t count_nodes(const struct word *w, uint32_t n)
{
    size_t nodes = 0;
    for (uint32_t i = 0; i < n; i++)
        nodes += w[i].len - (i ? common(&w[i - 1], &w[i]) : 0);
    return nodes;
}

/* Lays the sorted words out. `open` [max_len + 1] has the node of each depth on the way to the last word. */
static void lay_out(struct vocabulary *v, const struct word *w, uint32_t n, uint32_t *open)
{
    uint32_t depth = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t shared = i ? common(&w[i - 1], &w[i]) : 0;
        for (; depth > shared; depth--)
            v->nodes[open[depth]].end = v->n_nodes;
        if (i && shared == w[i].len) { /* the same bytes */
            int32_t *at = &v->nodes[open[depth]].token;
            v->nodes[open[depth]].shared = true;
            while (*at >= 0)
                at = &v->same[*at];
            *at = (int32_t)w[i].token;
            continue;
        }
        for (; depth < w[i].len; v->n_nodes++) {
            struct vocabulary_node *node = &v->nodes[v->n_nodes];
            node->byte = (uint8_t)w[i].s[depth++];
            node->depth = depth < 255 ? (uint8_t)depth : 255;
            node->token = -1;
            open[depth] = v->n_nodes;
        }
        v->nodes[open[depth]].token = (int32_t)w[i].token;
    }
    for (; depth > 0; depth--)
        v->nodes[open[depth]].end = v->n_nodes;
}

static int build(struct vocabulary *v, struct word *w, uint32_t n)
{
    if (n)
        qsort(w, n, sizeof *w, by_bytes);
    size_t n_nodes = count_nodes(w, n);
    v->nodes = calloc(n_nodes + 1, sizeof *v->nodes);
    uint32_t *open = calloc(v->max_len + 1, sizeof *open);
    if (v->nodes && open)
        lay_out(v, w, n, open);
    free(open);
    return v->nodes && open ? 0 : -ENOMEM;
}

int vocabulary_open(struct vocabulary **out, uint32_t n_tokens,
                    const char *(*piece)(const void *context, int32_t token, uint32_t *len),
                    const void *context, const int32_t *ends, uint32_t n_ends, struct error *err)
{
    struct vocabulary *v = calloc(1, sizeof *v);
    struct word *w = calloc(n_tokens + 1, sizeof *w);
    bool ok = v && w;
    if (ok) {
        v->n_tokens = n_tokens;
        v->same = malloc((n_tokens + 1) * sizeof *v->same);
        v->bytes = calloc(n_tokens + 1, sizeof *v->bytes);
        v->lens = calloc(n_tokens + 1, sizeof *v->lens);
        v->ends = calloc(n_ends + 1, sizeof *v->ends);
        v->n_ends = n_ends;
        ok = v->same && v->bytes && v->lens && v->ends && memo_store_open(&v->strings) == 0;
    }
    uint32_t n = 0;
    for (uint32_t t = 0; ok && t < n_tokens; t++) {
        uint32_t len = 0;
        const char *s = piece(context, (int32_t)t, &len);
        v->same[t] = -1;
        if (!s || !len)
            continue;
        v->bytes[t] = s;
        v->lens[t] = len;
        v->max_len = len > v->max_len ? len : v->max_len;
        w[n++] = (struct word){s, len, t};
    }
    if (ok && n_ends)
        memcpy(v->ends, ends, n_ends * sizeof *ends);
    ok = ok && build(v, w, n) == 0 && token_classes_open(&v->classes, v) == 0;
    free(w);
    if (ok)
        *out = v;
    else
        vocabulary_close(v);
    return ok ? 0 : error_set(err, -ENOMEM, "vocabulary: out of memory");
}

void vocabulary_close(struct vocabulary *v)
{
    if (!v)
        return;
    memo_store_close(v->strings);
    token_classes_close(&v->classes);
    free(v->nodes);
    free(v->same);
    free(v->bytes);
    free(v->lens);
    free(v->ends);
    free(v);
}

int32_t vocabulary_longest(const struct vocabulary *v, const char *s, uint32_t n)
{
    uint32_t node = 0, end = v->n_nodes, at = 0;
    int32_t token = -1;
    while (at < n && node < end) {
        if (v->nodes[node].byte != (uint8_t)s[at]) {
            node = v->nodes[node].end;
            continue;
        }
        if (v->nodes[node].token >= 0)
            token = v->nodes[node].token;
        end = v->nodes[node].end;
        node++;
        at++;
    }
    while (token >= 0 && v->same[token] >= 0)
        token = v->same[token];
    return token;
}
