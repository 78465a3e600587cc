#include "output_text.h"

#include <assert.h>
#include <errno.h>

static int prepare(struct text_stop *stop, struct arena *a)
{
    stop->state = 0;
    if (stop->fail) /* another text has the same */
        return 0;
    stop->fail = arena_array(a, stop->len, sizeof *stop->fail);
    if (!stop->fail)
        return -ENOMEM;
    uint32_t n = 0;
    for (uint32_t i = 1; i < stop->len; i++) {
        while (n && stop->s[i] != stop->s[n])
            n = stop->fail[n - 1];
        if (stop->s[i] == stop->s[n])
            n++;
        stop->fail[i] = n;
    }
    return 0;
}

int text_open(struct text *t, struct arena *a, struct text_stop *stops, uint32_t n_stops)
{
    *t = (struct text){.out = {.arena = a}, .stops = stops, .n_stops = n_stops};
    for (uint32_t i = 0; i < n_stops; i++)
        if (prepare(&stops[i], a) < 0)
            return -ENOMEM;
    return 0;
}

static void advance(struct text_stop *stop, char c)
{
    while (stop->state && c != stop->s[stop->state])
        stop->state = stop->fail[stop->state - 1];
    if (c == stop->s[stop->state])
        stop->state++;
}

/* Takes one byte into every automaton; the longest stop string complete with it, or NULL. A match ends the
 * text, so a state never stands at `len` when the next byte comes. */
static const struct text_stop *step(struct text *t, char c)
{
    const struct text_stop *found = NULL;
    for (uint32_t i = 0; i < t->n_stops; i++) {
        struct text_stop *stop = &t->stops[i];
        advance(stop, c);
        if (stop->state == stop->len && (!found || stop->len > found->len))
            found = stop;
    }
    return found;
}

static size_t held_back(const struct text *t)
{
    uint32_t held = 0;
    for (uint32_t i = 0; i < t->n_stops && !t->keeps_stop; i++)
        if (t->stops[i].state > held)
            held = t->stops[i].state;
    return held;
}

static bool scan(struct text *t)
{
    if (!t->n_stops) {
        t->scanned = t->safe = t->out.len;
        return false;
    }
    while (t->scanned < t->out.len) {
        const struct text_stop *found = step(t, t->out.p[t->scanned++]);
        if (found) {
            assert(t->scanned >= found->len);
            t->matched = found;
            t->out.len = t->scanned - (t->keeps_stop ? 0 : found->len);
            t->scanned = t->safe = t->out.len;
            return true;
        }
    }
    /* A stop string begins at a character's first byte as the text does, so this is one too. */
    assert(t->out.len - t->safe >= held_back(t)); /* what was shown is no part of a stop string to come */
    t->safe = t->out.len - held_back(t);
    return false;
}

bool text_add(struct text *t, const char *bytes, size_t n)
{
    if (t->matched)
        return true;
    char *room = n ? buf_room(&t->out, TOKENIZER_DECODE_ROOM(n)) : NULL;
    if (!room)
        return false;
    t->out.len += tokenizer_decode(&t->decoder, bytes, n, room);
    return scan(t);
}

void text_end(struct text *t)
{
    if (t->matched)
        return;
    char *room = buf_room(&t->out, TOKENIZER_DECODE_ROOM(0));
    if (room) {
        t->out.len += tokenizer_decode_flush(&t->decoder, room);
        if (scan(t))
            return;
    }
    t->safe = t->out.len;
}
