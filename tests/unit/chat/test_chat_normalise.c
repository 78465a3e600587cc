/* Messages that a template refuses behind others become part of them: the texts, and the memory it takes. */
#include "chat/chat_normalise.h"
#include "chat/chat_template.h"
#include "gguf/gguf.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static struct {
    struct model *model;
    struct tokenizer *tokenizer;
    struct chat_template *chat;
    struct arena arena; /* of the messages */
} f;

/* Mistral's refuses a user's message behind another, and a late system message. */
static void open_mistral(void)
{
    struct error err = {0};
    cr_assert_eq(model_open(&f.model, HEARTH_SOURCE_DIR "/models/hearth-stories-6m-q4_k_m.gguf", &err), 0);
    cr_assert_eq(tokenizer_open(&f.tokenizer, model_gguf(f.model), &err), 0);
    cr_assert_eq(chat_template_open(&f.chat, HEARTH_TEST_DATA "/templates/mistral.jinja", model_gguf(f.model),
                                    f.tokenizer, &err),
                 0, "%s", err.text);
    cr_assert(chat_template_folds_user(f.chat) && !chat_template_takes_late_system(f.chat));
}

static void close_mistral(void)
{
    chat_template_close(f.chat);
    tokenizer_close(f.tokenizer);
    model_close(f.model);
    arena_close(&f.arena);
}

static void say(struct jinja_list *list, const char *role, struct jinja_value content)
{
    struct jinja_dict *d = jinja_dict_open(&f.arena);
    cr_assert_eq(jinja_dict_add(&f.arena, d, jinja_word("role"), jinja_word(role)), 0);
    cr_assert_eq(jinja_dict_add(&f.arena, d, jinja_word("content"), content), 0);
    cr_assert_eq(jinja_list_add(&f.arena, list, jinja_dict_value(d)), 0);
}

static struct jinja_value parts(int n)
{
    struct jinja_list *list = jinja_list_open(&f.arena);
    for (int i = 0; i < n; i++)
        cr_assert_eq(jinja_list_add(&f.arena, list, jinja_int(i)), 0);
    return jinja_list_value(list);
}

static void expect_member(const struct jinja_value *message, const char *name, const char *text)
{
    const struct jinja_value *v = jinja_dict_find(message->dict, name, strlen(name));
    cr_assert(v && v->kind == JINJA_TEXT && jinja_text_is(v->text, text), "not %s: %.*s", text,
              v ? (int)v->text.len : 0, v ? v->text.s : "");
}

Test(chat_normalise, a_run_of_messages_is_one_with_empty_lines_between)
{
    static const char *const said[][2] = {{"user", ""},  {"user", "a"},      {"system", ""},  {"system", "b"},
                                          {"user", "c"}, {"assistant", "d"}, {"system", "e"}, {"user", "f"}};
    open_mistral();
    struct jinja_list *list = jinja_list_open(&f.arena);
    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        say(list, said[i][0], jinja_string(said[i][1], strlen(said[i][1]), true));
    cr_assert_eq(chat_normalise(&f.arena, f.chat, &list), 0);
    cr_assert_eq(list->n, 3);
    expect_member(&list->items[0], "role", "user");
    expect_member(&list->items[0], "content", "a\n\nb\n\nc");
    expect_member(&list->items[1], "content", "d");
    expect_member(&list->items[2], "role", "user");
    expect_member(&list->items[2], "content", "e\n\nf");
    close_mistral();
}

Test(chat_normalise, a_run_of_parts_is_one_list)
{
    open_mistral();
    struct jinja_list *list = jinja_list_open(&f.arena);
    say(list, "user", parts(2));
    say(list, "user", parts(1));
    say(list, "user", jinja_string("x", 1, true));
    cr_assert_eq(chat_normalise(&f.arena, f.chat, &list), 0);
    cr_assert_eq(list->n, 1);
    cr_assert_eq(jinja_dict_find(list->items[0].dict, "content", 7)->list->n, 3);
    close_mistral();
}

Test(chat_normalise, a_run_takes_the_memory_of_its_text_once)
{
    enum { N = 1000, EACH = 500 };
    static char words[EACH];
    struct arena a = {0};
    memset(words, 'w', EACH);
    open_mistral();
    struct jinja_list *list = jinja_list_open(&f.arena);
    for (int i = 0; i < N; i++)
        say(list, "user", jinja_string(words, EACH, true));
    cr_assert_eq(chat_normalise(&a, f.chat, &list), 0);
    cr_assert_eq(list->n, 1);
    cr_assert_eq(jinja_dict_find(list->items[0].dict, "content", 7)->text.len, N * (EACH + 2) - 2);
    cr_assert_leq(a.total, N * (EACH + 2) + 2 * ARENA_BLOCK);
    arena_close(&a);
    close_mistral();
}

/* --- names of results --- */

/* Adds a member to a message. */
static void put(struct jinja_value *message, const char *name, struct jinja_value value)
{
    cr_assert_eq(jinja_dict_add(&f.arena, message->dict, jinja_word(name), value), 0);
}

static struct jinja_value call(const char *id, const char *function)
{
    struct jinja_value v = jinja_dict_value(jinja_dict_open(&f.arena)),
                       of = jinja_dict_value(jinja_dict_open(&f.arena));
    put(&of, "name", jinja_string(function, strlen(function), true));
    put(&v, "id", jinja_string(id, strlen(id), true));
    put(&v, "function", of);
    return v;
}

static void say_calls(struct jinja_list *list, const struct jinja_value *calls, size_t n)
{
    struct jinja_list *of = jinja_list_open(&f.arena);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(jinja_list_add(&f.arena, of, calls[i]), 0);
    say(list, "assistant", jinja_none());
    put(&list->items[list->n - 1], "tool_calls", jinja_list_value(of));
}

static void say_result(struct jinja_list *list, const char *id)
{
    say(list, "tool", jinja_string("r", 1, true));
    put(&list->items[list->n - 1], "tool_call_id", jinja_string(id, strlen(id), true));
}

Test(chat_normalise, a_result_is_named_after_the_newest_call_of_its_id)
{
    struct jinja_list *list = jinja_list_open(&f.arena);
    say_result(list, "a");
    say_calls(list, (struct jinja_value[]){call("a", "one"), call("b", "two"), call("a", "three")}, 3);
    say_result(list, "a");
    say_result(list, "b");
    say_calls(list, (struct jinja_value[]){call("b", "four")}, 1);
    say_result(list, "b");
    say_result(list, "a");
    say_result(list, "c");
    cr_assert_eq(chat_normalise(&f.arena, NULL, &list), 0);
    cr_assert_null(jinja_dict_find(list->items[0].dict, "name", 4));
    expect_member(&list->items[2], "name", "one");
    expect_member(&list->items[3], "name", "two");
    expect_member(&list->items[5], "name", "four");
    expect_member(&list->items[6], "name", "one");
    cr_assert_null(jinja_dict_find(list->items[7].dict, "name", 4));
    arena_close(&f.arena);
}

/* Compared with each other they would take minutes. */
Test(chat_normalise, as_many_calls_and_results_as_a_body_holds_are_named)
{
    enum { N = 50000 };
    static char ids[N][12];
    struct jinja_list *list = jinja_list_open(&f.arena);
    for (int i = 0; i < N; i++) {
        snprintf(ids[i], sizeof ids[i], "%05d", i);
        say_calls(list, (struct jinja_value[]){call(ids[i], ids[i])}, 1);
    }
    for (int i = 0; i < N; i++)
        say_result(list, ids[i]);
    cr_assert_eq(chat_normalise(&f.arena, NULL, &list), 0);
    for (int i = 0; i < N; i++)
        expect_member(&list->items[N + i], "name", ids[i]);
    arena_close(&f.arena);
}
