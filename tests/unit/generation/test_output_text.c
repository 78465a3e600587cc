/* Text out of tokens: stop strings over token borders, whole characters only. */
#include "generation/output_text.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

struct run {
    struct arena a;
    struct text t;
    struct text_stop stops[4];
    char seen[256]; /* what a stream would have shown, piece by piece */
    size_t n_seen;
};

static void open_run(struct run *r, const char *const *stops)
{
    uint32_t n = 0;
    memset(r, 0, sizeof *r);
    for (; stops[n]; n++)
        r->stops[n] = (struct text_stop){.s = stops[n], .len = (uint32_t)strlen(stops[n])};
    cr_assert_eq(text_open(&r->t, &r->a, r->stops, n), 0);
}

static void show(struct run *r)
{
    cr_assert_geq(r->t.safe, r->n_seen, "shown text was taken back");
    memcpy(r->seen + r->n_seen, r->t.out.p + r->n_seen, r->t.safe - r->n_seen);
    r->n_seen = r->t.safe;
}

static bool add(struct run *r, const char *piece)
{
    bool ended = text_add(&r->t, piece, strlen(piece));
    show(r);
    return ended;
}

static void finish(struct run *r, const char *text, const char *stop)
{
    text_end(&r->t);
    show(r);
    cr_assert(r->n_seen == strlen(text) && !memcmp(r->seen, text, r->n_seen), "\"%.*s\", not \"%s\"",
              (int)r->n_seen, r->seen, text);
    cr_assert_eq(r->t.matched != NULL, stop != NULL);
    if (stop)
        cr_assert_str_eq(r->t.matched->s, stop);
    arena_close(&r->a);
}

static const char *const none[] = {NULL};

Test(text, without_stop_strings_everything_is_shown_at_once)
{
    struct run r;
    open_run(&r, none);
    cr_assert(!add(&r, "Once"));
    cr_assert_eq(r.n_seen, 4);
    add(&r, " upon");
    finish(&r, "Once upon", NULL);
}

Test(text, a_stop_string_over_three_tokens_is_found_and_not_shown)
{
    struct run r;
    open_run(&r, (const char *[]){"STOP", NULL});
    cr_assert(!add(&r, "go S"));
    cr_assert_eq(r.n_seen, 3, "the S may be the beginning of the stop string");
    cr_assert(!add(&r, "TO"));
    cr_assert(add(&r, "P and more"));
    finish(&r, "go ", "STOP");
}

Test(text, held_text_is_shown_when_it_turns_out_to_be_none)
{
    struct run r;
    open_run(&r, (const char *[]){"STOP", NULL});
    add(&r, "ST");
    cr_assert_eq(r.n_seen, 0);
    add(&r, "AR");
    finish(&r, "STAR", NULL);
}

Test(text, held_text_is_shown_at_the_end)
{
    struct run r;
    open_run(&r, (const char *[]){"STOP", NULL});
    add(&r, "a STO");
    finish(&r, "a STO", NULL);
}

Test(text, a_stop_string_that_begins_inside_a_failed_one_is_found)
{
    struct run r;
    open_run(&r, (const char *[]){"aab", NULL});
    add(&r, "aa");
    cr_assert(add(&r, "ab"));
    finish(&r, "a", "aab");
}

Test(text, the_stop_string_complete_first_wins_however_tokens_cut_it)
{
    static const char text[] = "x abcdef y";
    for (size_t cut = 1; cut < sizeof text - 1; cut++) {
        struct run r;
        char head[16];
        open_run(&r, (const char *[]){"abcdef", "cd", NULL});
        snprintf(head, sizeof head, "%.*s", (int)cut, text);
        if (!add(&r, head))
            cr_assert(add(&r, text + cut), "cut at %zu", cut);
        finish(&r, "x ab", "cd");
    }
}

Test(text, of_two_complete_at_the_same_byte_the_longer_one_wins)
{
    struct run r;
    open_run(&r, (const char *[]){"b", "ab", NULL});
    cr_assert(add(&r, "xab"));
    finish(&r, "x", "ab");
}

Test(text, a_character_cut_in_three_is_shown_whole)
{
    struct run r;
    open_run(&r, none);
    add(&r, "\xf0\x9f");
    cr_assert_eq(r.n_seen, 0);
    add(&r, "\x98");
    cr_assert_eq(r.n_seen, 0);
    add(&r, "\x80!");
    finish(&r, "\xf0\x9f\x98\x80!", NULL);
}

Test(text, half_a_character_at_the_end_is_the_replacement_character)
{
    struct run r;
    open_run(&r, none);
    add(&r, "a\xf0\x9f");
    finish(&r, "a\xef\xbf\xbd", NULL);
}

Test(text, a_stop_string_of_several_bytes_per_character_is_found_over_cut_characters)
{
    struct run r;
    open_run(&r, (const char *[]){"\xc3\xa9\xc3\xa8", NULL});
    add(&r, "caf\xc3");
    add(&r, "\xa9\xc3");
    cr_assert(add(&r, "\xa8"));
    finish(&r, "caf", "\xc3\xa9\xc3\xa8");
}

Test(text, an_empty_piece_changes_nothing)
{
    struct run r;
    open_run(&r, (const char *[]){"STOP", NULL});
    add(&r, "ST");
    add(&r, "");
    cr_assert(add(&r, "OP"));
    finish(&r, "", "STOP");
}

Test(text, every_cut_of_a_periodic_text_gives_the_same_answer)
{
    static const char text[] = "ababababcab";
    for (unsigned cuts = 0; cuts < 1u << 10; cuts++) {
        struct run r;
        bool ended = false;
        open_run(&r, (const char *[]){"ababc", "bbb", NULL});
        for (size_t from = 0, to = 1; from < 11 && !ended; from = to++) {
            char piece[16];
            while (to < 11 && !(cuts >> (to - 1) & 1))
                to++;
            snprintf(piece, sizeof piece, "%.*s", (int)(to - from), text + from);
            ended = add(&r, piece);
        }
        cr_assert(ended);
        finish(&r, "abab", "ababc");
    }
}

Test(text, a_text_that_keeps_its_stop_string_ends_with_it_and_holds_nothing_back)
{
    struct run r;
    open_run(&r, (const char *const[]){"abc", "bcd", NULL});
    r.t.keeps_stop = true;
    cr_assert(!add(&r, "xab"));
    cr_assert_eq(r.n_seen, 3, "what may become a stop string is shown");
    cr_assert(add(&r, "cde"));
    finish(&r, "xabc", "abc");
}
