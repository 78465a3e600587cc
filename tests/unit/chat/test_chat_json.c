/* Texts of many blocks become one text of a chat: its words, and the bytes it takes. */
#include "chat/chat_json.h"
#include "generation/generation.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { N_BLOCKS = 1000, BLOCK = 500, ALL = N_BLOCKS * (BLOCK + 1) - 1 };

static size_t n_bytes; /* that jansson asked for */

static void *count(size_t n)
{
    n_bytes += n;
    return malloc(n);
}

static const char *block_text(void)
{
    static char text[BLOCK + 1];
    memset(text, 'w', BLOCK);
    return text;
}

static json_t *blocks(const char *type, const char *name)
{
    json_t *list = json_array();
    for (int i = 0; i < N_BLOCKS; i++)
        cr_assert_eq(json_array_append_new(list, json_pack("{ssss}", "type", type, name, block_text())), 0);
    return list;
}

/* Translates a body of one message, and counts the bytes. */
static json_t *translate_one(const char *role, json_t *content)
{
    struct api_error err = {0};
    json_t *body = json_pack("{s[{ssso}]}", "messages", "role", role, "content", content);
    n_bytes = 0;
    json_t *chat = dialect_messages.translate(body, &err);
    cr_assert(chat, "%s", err.message);
    json_decref(body);
    return chat;
}

static void expect_one_copy(const json_t *chat, const char *name)
{
    const json_t *message = json_array_get(json_object_get(chat, "messages"), 0);
    cr_assert_eq(json_string_length(json_object_get(message, name)), ALL);
    cr_assert_leq(n_bytes, ALL + 16384, "%zu bytes", n_bytes);
}

Test(chat_json, anthropics_blocks_of_text_are_copied_once)
{
    json_set_alloc_funcs(count, free);
    json_t *chat = translate_one("user", blocks("text", "text"));
    expect_one_copy(chat, "content");
    json_decref(chat);
}

Test(chat_json, anthropics_blocks_of_thinking_are_copied_once)
{
    json_set_alloc_funcs(count, free);
    json_t *chat = translate_one("assistant", blocks("thinking", "thinking"));
    expect_one_copy(chat, "reasoning_content");
    json_decref(chat);
}

Test(chat_json, anthropics_results_of_blocks_are_copied_once)
{
    json_set_alloc_funcs(count, free);
    json_t *result =
        json_pack("{ssssso}", "type", "tool_result", "tool_use_id", "x", "content", blocks("text", "text"));
    json_t *chat = translate_one("user", json_pack("[o]", result));
    expect_one_copy(chat, "content");
    json_decref(chat);
}

static const char *gathered(struct chat_json *c, json_t *message)
{
    chat_json_text(c, message, "content");
    return json_string_value(json_object_get(message, "content"));
}

Test(chat_json, gathered_texts_are_lines_and_none_is_no_member)
{
    struct api_error err = {0};
    struct chat_json c;
    cr_assert_eq(chat_json_open(&c, &err), 0);
    json_t *message = chat_json_message(&c, "user");
    cr_assert_null(gathered(&c, message));
    chat_json_gather(&c, "");
    cr_assert_str_eq(gathered(&c, message), "");
    chat_json_gather(&c, "a");
    chat_json_gather(&c, "b");
    cr_assert_str_eq(gathered(&c, message), "a\nb");
    cr_assert_str_eq(gathered(&c, message), "a\nb");
    chat_json_gather(&c, "c");
    cr_assert_str_eq(gathered(&c, message), "c");
    json_decref(chat_json_close(&c));
}

Test(chat_json, gathered_texts_take_their_length_and_room_to_grow)
{
    struct api_error err = {0};
    struct chat_json c;
    cr_assert_eq(chat_json_open(&c, &err), 0);
    for (int i = 0; i < N_BLOCKS; i++)
        chat_json_gather(&c, block_text());
    cr_assert_eq(c.text.len, ALL);
    cr_assert_leq(c.arena.total, 2 * ALL + ARENA_BLOCK);
    json_decref(chat_json_close(&c));
}
