/* text_map.c - a pool of texts, and a hash map from texts to their ids. */
#include "tokenizer_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* It has no random seed: a model file of colliding texts makes only its own loading slow. */
static uint32_t text_hash(const char *s, size_t len)
{
    return (uint32_t)hash_bytes(0, s, len);
}

int text_pool_reserve(struct text_pool *p, size_t n_texts, size_t n_bytes)
{
    if (n_bytes > UINT32_MAX || n_texts >= UINT32_MAX)
        return -E2BIG;
    if (n_bytes > p->room_bytes) {
        char *bytes = realloc(p->bytes, n_bytes);
        if (!bytes)
            return -ENOMEM;
        p->bytes = bytes;
        p->room_bytes = n_bytes;
    }
    if (n_texts > p->room_texts || !p->at) {
        uint32_t *at = realloc(p->at, (n_texts + 1) * sizeof *at);
        if (!at)
            return -ENOMEM;
        p->at = at;
        p->room_texts = n_texts;
        p->at[p->n] = p->n ? p->at[p->n] : 0;
    }
    return 0;
}

int text_pool_add(struct text_pool *p, const char *s, size_t len)
{
    size_t used = p->n ? p->at[p->n] : 0;
    if (len > UINT32_MAX - used)
        return -E2BIG;
    if (used + len > p->room_bytes || p->n + (size_t)1 > p->room_texts) {
        size_t texts =
            p->n + (size_t)1 > p->room_texts ? p->room_texts + p->room_texts / 2 + 64 : p->room_texts;
        size_t bytes = used + len + p->room_bytes / 2;
        if (bytes > UINT32_MAX)
            bytes = UINT32_MAX;
        int rc = text_pool_reserve(p, texts, bytes);
        if (rc < 0)
            return rc;
    }
    if (len)
        memcpy(p->bytes + used, s, len);
    p->at[++p->n] = (uint32_t)(used + len);
    return 0;
}

void text_pool_close(struct text_pool *p)
{
    free(p->bytes);
    free(p->at);
    *p = (struct text_pool){0};
}

static void slot_put(struct text_map *m, struct text_slot slot)
{
    uint32_t i = slot.hash & m->mask;
    while (m->slots[i].id != NO_SYMBOL)
        i = (i + 1) & m->mask;
    m->slots[i] = slot;
}

int text_map_reserve(struct text_map *m, size_t n)
{
    size_t size = 16;
    while (size / 3 * 2 < n)
        size *= 2;
    if (m->slots && size <= m->mask + (size_t)1)
        return 0;
    if (size > UINT32_MAX)
        return -E2BIG;
    struct text_map grown = {malloc(size * sizeof *grown.slots), (uint32_t)size - 1, m->n};
    if (!grown.slots)
        return -ENOMEM;
    memset(grown.slots, 0xFF, size * sizeof *grown.slots); /* all NO_SYMBOL */
    for (size_t i = 0; m->slots && i <= m->mask; i++)
        if (m->slots[i].id != NO_SYMBOL)
            slot_put(&grown, m->slots[i]);
    free(m->slots);
    *m = grown;
    return 0;
}

static uint32_t slot_of(const struct text_map *m, const struct text_pool *pool, const char *s, size_t len,
                        uint32_t hash)
{
    uint32_t i = hash & m->mask;
    assert(m->n <= m->mask); /* a free slot ends the search */
    for (; m->slots[i].id != NO_SYMBOL; i = (i + 1) & m->mask) {
        if (m->slots[i].hash != hash)
            continue;
        size_t n;
        const char *text = text_at(pool, m->slots[i].id, &n);
        if (n == len && !memcmp(text, s, len))
            break;
    }
    return i;
}

uint32_t text_map_put(struct text_map *m, const struct text_pool *pool, uint32_t id, bool replace)
{
    size_t len;
    const char *s = text_at(pool, id, &len);
    uint32_t hash = text_hash(s, len);
    struct text_slot *slot = &m->slots[slot_of(m, pool, s, len, hash)];
    uint32_t before = slot->id;
    if (before == NO_SYMBOL)
        m->n++;
    if (before == NO_SYMBOL || replace)
        *slot = (struct text_slot){hash, id};
    return before;
}

uint32_t text_map_find(const struct text_map *m, const struct text_pool *pool, const char *s, size_t len)
{
    return m->slots ? m->slots[slot_of(m, pool, s, len, text_hash(s, len))].id : NO_SYMBOL;
}
