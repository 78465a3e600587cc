/* tokenizer_specials.c - finds the texts of special tokens in a text and cuts it there. */
#include "tokenizer_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void set_bit(uint64_t *bits, unsigned i)
{
    bits[i / 64] |= UINT64_C(1) << i % 64;
}

static bool has_bit(const uint64_t *bits, unsigned i)
{
    return bits[i / 64] >> i % 64 & 1;
}

static int longer_first(const void *a, const void *b)
{
    const struct special_length *x = a, *y = b;
    return (x->len < y->len) - (x->len > y->len);
}

static void merge_equal_lengths(struct specials *s)
{
    qsort(s->lengths, s->n_lengths, sizeof *s->lengths, longer_first);
    size_t n = 0;
    for (size_t i = 0; i < s->n_lengths; i++) {
        struct special_length *one = &s->lengths[i];
        if (!n || s->lengths[n - 1].len != one->len) {
            s->lengths[n++] = *one;
            continue;
        }
        for (size_t k = 0; k < sizeof one->last / sizeof one->last[0]; k++)
            s->lengths[n - 1].last[k] |= one->last[k];
    }
    s->n_lengths = n;
}

static void note_start(struct specials *s, const unsigned char *text, size_t len)
{
    if (len > 1)
        set_bit(s->starts, text[0] << 8 | text[1]);
    else
        for (unsigned next = 0; next < 256; next++)
            set_bit(s->starts, text[0] << 8 | next);
}

int specials_open(struct specials *s, const struct tokenizer *t, uint32_t attrs)
{
    size_t n = 0;
    for (uint32_t id = 0; id < t->n_vocab; id++)
        n += (t->attr[id] & attrs) != 0;
    s->lengths = calloc(n + 1, sizeof *s->lengths);
    if (!s->lengths || text_map_reserve(&s->map, n) < 0)
        return -ENOMEM;
    for (uint32_t id = 0; id < t->n_vocab; id++) {
        size_t len;
        const char *text = text_at(&t->text, id, &len);
        if (!(t->attr[id] & attrs) || !len)
            continue;
        text_map_put(&s->map, &t->text, id, false);
        note_start(s, (const unsigned char *)text, len);
        s->lengths[s->n_lengths].len = len;
        set_bit(s->lengths[s->n_lengths++].last, (unsigned char)text[len - 1]);
    }
    merge_equal_lengths(s);
    return 0;
}

void specials_close(struct specials *s)
{
    free(s->lengths);
    free(s->map.slots);
}

static bool may_start(const struct specials *s, const char *text, size_t left)
{
    unsigned next = left > 1 ? (unsigned char)text[1] : 0;
    return has_bit(s->starts, (unsigned)(unsigned char)text[0] << 8 | next);
}

/* Returns the special token of this length at text, or NO_SYMBOL. */
static uint32_t special_at(const struct specials *s, const struct tokenizer *t,
                           const struct special_length *l, const char *text, size_t left)
{
    if (l->len > left || !has_bit(l->last, (unsigned char)text[l->len - 1]))
        return NO_SYMBOL;
    return text_map_find(&s->map, &t->text, text, l->len);
}

static int fragments_add(struct fragments *f, size_t at, size_t len, int32_t token)
{
    if (!len)
        return 0;
    if (f->n == f->room) {
        size_t room = f->room * 2 + 8;
        struct fragment *list = realloc(f->list, room * sizeof *list);
        if (!list)
            return -ENOMEM;
        f->list = list;
        f->room = room;
    }
    f->list[f->n++] = (struct fragment){at, len, token};
    return 0;
}

/* Marks the lengths of special tokens that the text has; false for none. A text without special tokens costs
 * this one pass only. */
static bool lengths_in(const struct specials *s, const struct tokenizer *t, const char *text, size_t len,
                       bool *occurs)
{
    size_t n_left = s->n_lengths;
    for (size_t i = 0; i < len && n_left; i++) {
        if (!may_start(s, text + i, len - i))
            continue;
        for (size_t k = 0; k < s->n_lengths; k++) {
            if (occurs[k] || special_at(s, t, &s->lengths[k], text + i, len - i) == NO_SYMBOL)
                continue;
            occurs[k] = true;
            n_left--;
        }
    }
    return n_left < s->n_lengths;
}

/* Tells whether text with these marks may become this token. */
static bool may_become(const struct tokenizer *t, uint32_t id, const unsigned char *plain, size_t len)
{
    return !plain || t->attr[id] & TOKEN_USER || !memchr(plain, 1, len);
}

static int cut_text(const struct specials *s, const struct tokenizer *t, const char *text,
                    const unsigned char *plain, struct fragment f, const struct special_length *l,
                    struct fragments *out)
{
    size_t from = f.at, end = f.at + f.len;
    int rc = 0;
    assert(l->len); /* else the search would not move on */
    for (size_t i = f.at; rc >= 0 && i + l->len <= end;) {
        uint32_t id = NO_SYMBOL;
        if (may_start(s, text + i, end - i))
            id = special_at(s, t, l, text + i, end - i);
        if (id == NO_SYMBOL || !may_become(t, id, plain ? plain + i : NULL, l->len)) {
            i++;
            continue;
        }
        rc = fragments_add(out, from, i - from, -1);
        if (rc >= 0)
            rc = fragments_add(out, i, l->len, (int32_t)id);
        from = i += l->len;
    }
    return rc < 0 ? rc : fragments_add(out, from, end - from, -1);
}

/* Cuts every fragment of text at the special tokens of one length. */
static int cut_all(const struct specials *s, const struct tokenizer *t, const char *text,
                   const unsigned char *plain, const struct special_length *l, struct fragments *f)
{
    struct fragments cut = {0};
    int rc = 0;
    for (size_t i = 0; rc >= 0 && i < f->n; i++) {
        struct fragment *one = &f->list[i];
        rc = one->token < 0 ? cut_text(s, t, text, plain, *one, l, &cut)
                            : fragments_add(&cut, one->at, one->len, one->token);
    }
    if (rc < 0) {
        free(cut.list);
        return rc;
    }
    free(f->list);
    *f = cut;
    return 0;
}

int specials_cut(const struct specials *s, const struct tokenizer *t, const char *text, size_t len,
                 const unsigned char *plain, struct fragments *out)
{
    *out = (struct fragments){0};
    int rc = fragments_add(out, 0, len, -1);
    bool *occurs = calloc(s->n_lengths + 1, sizeof *occurs);
    if (!occurs)
        rc = -ENOMEM;
    if (rc >= 0 && lengths_in(s, t, text, len, occurs))
        for (size_t k = 0; rc >= 0 && k < s->n_lengths; k++)
            if (occurs[k])
                rc = cut_all(s, t, text, plain, &s->lengths[k], out);
    free(occurs);
    if (rc < 0) {
        free(out->list);
        *out = (struct fragments){0};
    }
    return rc;
}
