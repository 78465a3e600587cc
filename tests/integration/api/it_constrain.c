/* Constrained texts over HTTP: every field that asks for one, what is refused, and that nothing beside them
 * matters. */
#include "grammar/matcher.h"
#include "integration/harness.h"
#include "schema/schema.h"

#include <unistd.h>

#define CHAT "/v1/chat/completions"
#define HI   "\"messages\":[{\"role\":\"user\",\"content\":\"Tell me.\"}],\"seed\":7,\"max_tokens\":200"
#define PERSON                                                                                               \
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},\"age\":{"         \
    "\"type\":"                                                                                              \
    "\"integer\",\"minimum\":3,\"maximum\":12},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"a\","     \
    "\"b\","                                                                                                 \
    "\"c\"]},\"uniqueItems\":true,\"maxItems\":3}},\"required\":[\"name\",\"age\",\"tags\"],"                \
    "\"additionalProperties\":false}"

/* The text is of the schema: all of one, or only the beginning. */
static void expect_text(const char *schema, const char *text, bool whole)
{
    struct grammar *g;
    struct matcher *m;
    cr_assert_eq(schema_compile_text(&g, schema, strlen(schema), NULL), 0);
    cr_assert_eq(matcher_open(&m, g), 0);
    cr_assert_eq(matcher_bytes(m, text, strlen(text)), strlen(text), "%s", text);
    cr_assert_eq(matcher_can_end(m), whole, "%s", text);
    matcher_close(m);
    grammar_unref(g);
}

static void expect_valid(const char *schema, const char *text)
{
    expect_text(schema, text, true);
}

DAEMON_TEST(constrain, response_format_gives_json_of_the_schema)
{
    json_t *root =
        post_ok(CHAT, "{" HI ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"p\","
                      "\"strict\":true,\"schema\":" PERSON "}}}");
    cr_assert_str_eq(json_text(root, "choices.0.finish_reason"), "stop");
    expect_valid(PERSON, json_text(root, "choices.0.message.content"));
    json_decref(root);
}

DAEMON_TEST(constrain, every_field_that_asks_for_a_language_is_obeyed)
{
    static const char *const asks[] = {"\"regex\":\"(yes|no)\"",
                                       "\"guided_regex\":\"yes|no\"",
                                       "\"grammar\":\"root ::= \\\"yes\\\" | \\\"no\\\"\"",
                                       "\"guided_grammar\":\"root ::= \\\"yes\\\" | \\\"no\\\"\"",
                                       "\"guided_grammar\":\"start: \\\"yes\\\" | /no/\"",
                                       "\"guided_choice\":[\"yes\",\"no\"]",
                                       "\"structured_outputs\":{\"choice\":[\"yes\",\"no\"]}",
                                       "\"structured_outputs\":{\"regex\":\"yes|no\"}"};
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
        char body[256];
        snprintf(body, sizeof body, "{\"prompt\":\"Once\",\"seed\":%zu,%s}", i, asks[i]);
        json_t *root = post_ok("/generate", body);
        const char *text = json_text(root, "text");
        cr_assert(!strcmp(text, "yes") || !strcmp(text, "no"), "%s: %s", asks[i], text);
        cr_assert_str_eq(json_text(root, "finish_reason"), "eos");
        json_decref(root);
    }
    static const char *const schemas[] = {
        "\"json_schema\":{\"const\":[1]}", "\"guided_json\":{\"const\":[1]}",
        "\"response_format\":{\"type\":\"json_object\",\"schema\":{\"const\":[1]}}",
        "\"guided_json\":\"{\\\"const\\\":[1]}\"",
        "\"structured_outputs\":{\"json\":\" {\\\"const\\\":[1]}\"}"};
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        char body[256];
        snprintf(body, sizeof body, "{\"prompt\":\"Once\",\"temperature\":0,%s}", schemas[i]);
        json_t *root = post_ok("/generate", body);
        expect_valid("{\"const\":[1]}", json_text(root, "text"));
        json_decref(root);
    }
}

DAEMON_TEST(constrain, a_text_that_was_cut_is_a_beginning_of_the_language)
{
    for (int seed = 0; seed < 10; seed++) {
        char body[512];
        snprintf(body, sizeof body, "{\"prompt\":\"Once\",\"seed\":%d,\"max_tokens\":8,\"json_schema\":%s}",
                 seed, PERSON);
        json_t *root = post_ok("/generate", body);
        const char *text = json_text(root, "text");
        cr_assert_str_eq(json_text(root, "finish_reason"), "length");
        cr_assert_gt(strlen(text), 0);
        expect_text(PERSON, text, false);
        json_decref(root);
    }
}

DAEMON_TEST(constrain, what_cannot_be_held_is_a_400_with_keyword_and_path)
{
    expect_words(
        post("/generate",
             "{\"prompt\":\"a\",\"json_schema\":{\"properties\":{\"x\":{\"type\":\"array\",\"uniqueItems\":"
             "true}}}}"),
        400, "invalid_request", "uniqueItems at #/properties/x cannot be enforced exactly");
    expect_words(post("/generate", "{\"prompt\":\"a\",\"regex\":\"a(?<=b)\"}"), 400, "invalid_request",
                 "a lookbehind");
    expect_words(post("/generate", "{\"prompt\":\"a\",\"grammar\":\"root ::= root \\\"a\\\"\"}"), 400,
                 "invalid_request", "left recursion: rule root");
    expect_words(post("/generate", "{\"prompt\":\"a\",\"regex\":\"a\",\"json_schema\":{}}"), 400,
                 "invalid_request", "one constraint is allowed");
    expect_words(
        post("/generate",
             "{\"prompt\":\"a\",\"json_schema\":{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}}"),
        400, "invalid_request", "no text satisfies it");
    expect_words(post(CHAT, "{" HI ",\"response_format\":{\"type\":\"json_object\",\"schema\":7}}"), 400,
                 "invalid_request", "response_format.schema must be a JSON schema");
    expect_words(
        post(CHAT, "{" HI ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":7}}}"),
        400, "invalid_request", "response_format.json_schema.schema must be a JSON schema");
    expect_words(post(CHAT, "{" HI ",\"response_format\":{\"type\":\"xml\"}}"), 400, "invalid_request",
                 "response_format.type must be");
}

DAEMON_TEST(constrain, a_regex_bomb_costs_its_own_request_only)
{
    expect_words(post("/generate", "{\"prompt\":\"a\",\"regex\":\"(a|b)*a(a|b){30}\"}"), 400,
                 "invalid_request", "too large an automaton");
    expect_words(
        post("/generate", "{\"prompt\":\"a\",\"regex\":\"((((a{1,999}){1,999}){1,999}){1,999}){1,999}\"}"),
        400, "invalid_request", "too large an automaton");
    json_decref(post_ok("/generate", "{\"prompt\":\"a\",\"max_tokens\":1}"));
}

/* The template's loop takes more operations than the event loop gives a prompt, so a chat whose grammar is
 * known is prepared twice. */
Test(constrain, a_chat_that_is_prepared_twice_ends_with_its_grammar)
{
    char path[] = "/tmp/hearth-template-XXXXXX";
    int fd = mkstemp(path);
    cr_assert_geq(dprintf(fd,
                          "{{ messages[0]['content'] }}{%% for i in range(2500) %%}{%% if i == -1 %%}x{%% "
                          "endif %%}{%% endfor %%}"),
                  0);
    close(fd);
    daemon_start((const char *[]){"--chat-template", path, NULL});
    unlink(path);
    for (int i = 0; i < 2; i++) {
        json_t *root = post_ok(CHAT, "{" HI ",\"regex\":\"yes|no\",\"ignore_eos\":true,\"min_tokens\":20}");
        const char *text = json_text(root, "choices.0.message.content");
        cr_assert(!strcmp(text, "yes") || !strcmp(text, "no"), "%s", text);
        cr_assert_str_eq(json_text(root, "choices.0.finish_reason"), "stop");
        json_decref(root);
    }
    daemon_stop();
}

/* A literal of 15,000 bytes takes more than half a MB as a grammar; the cache has 256 KB. */
static void ask_long_literal(int i)
{
    static char body[16384];
    char letters[15001];
    memset(letters, 'a', sizeof letters - 1);
    letters[sizeof letters - 1] = 0;
    snprintf(body, sizeof body, "{\"prompt\":\"a\",\"max_tokens\":1,\"grammar\":\"root ::= \\\"%s%d\\\"\"}",
             letters, i);
    json_decref(post_ok("/generate", body));
}

DAEMON_TEST(constrain, kept_grammars_take_a_share_of_body_memory, "--body-memory", "1M")
{
    ask_long_literal(100);
#ifndef __SANITIZE_ADDRESS__ /* it keeps what was freed */
    long long before = own_memory();
#endif
    for (int i = 101; i < 128; i++)
        ask_long_literal(i);
#ifndef __SANITIZE_ADDRESS__
    long long grown = own_memory() - before;
    cr_assert_lt(grown, 6 << 20, "grown by %lld bytes", grown);
#endif
}

/* 300 rules with one language, which each of 8 choices walks. */
DAEMON_TEST(constrain, a_grammar_too_ambiguous_for_a_mask_costs_its_own_request_only)
{
    static char body[16384];
    size_t n = (size_t)snprintf(body, sizeof body, "{\"prompt\":\"a\",\"n\":8,\"grammar\":\"root ::= r0");
    for (int i = 1; i < 300; i++)
        n += (size_t)snprintf(body + n, sizeof body - n, "|r%d", i);
    for (int i = 0; i < 300; i++)
        n += (size_t)snprintf(body + n, sizeof body - n, "\\nr%d ::= [a-z] r%d \\\"i\\\" | \\\"!\\\"", i, i);
    snprintf(body + n, sizeof body - n, "\"}");
    for (int i = 0; i < 2; i++)
        expect_words(post("/generate", body), 400, "invalid_request", "grammar: too ambiguous");
    json_decref(post_ok("/generate", "{\"prompt\":\"a\",\"max_tokens\":1,\"regex\":\"a+\"}"));
}

DAEMON_TEST(constrain, several_choices_and_equal_seeds_give_what_each_gives_alone)
{
    json_t *both = post_ok("/generate", "{\"prompt\":\"Once\",\"seed\":5,\"n\":2,\"json_schema\":" PERSON
                                        ",\"max_tokens\":200}");
    json_t *second = post_ok("/generate", "{\"prompt\":\"Once\",\"seed\":6,\"json_schema\":" PERSON
                                          ",\"max_tokens\":200}");
    cr_assert_str_eq(json_text(both, "choices.1.text"), json_text(second, "text"));
    expect_valid(PERSON, json_text(both, "choices.0.text"));
    expect_valid(PERSON, json_text(second, "text"));
    json_decref(both);
    json_decref(second);
}

/* Members whose names are forced; the texts of three seeds. */
static void ask_long_names(char *out[3])
{
    for (int i = 0; i < 3; i++) {
        char body[700];
        snprintf(
            body, sizeof body,
            "{\"prompt\":\"Once\",\"seed\":%d,\"max_tokens\":300,\"json_schema\":{\"type\":\"object\","
            "\"properties\":{\"identification_number\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":99},"
            "\"personal_description\":{\"type\":\"string\",\"maxLength\":20},"
            "\"membership_confirmed\":{\"type\":\"boolean\"}},\"required\":[\"identification_number\","
            "\"personal_description\",\"membership_confirmed\"],\"additionalProperties\":false}}",
            i);
        json_t *root = post_ok("/generate", body);
        cr_assert_str_eq(json_text(root, "finish_reason"), "eos");
        out[i] = strdup(json_text(root, "text"));
        json_decref(root);
    }
}

Test(constrain, forced_names_are_drafted_and_the_text_is_the_same)
{
    char *plain[3], *drafted[3];
    daemon_start((const char *[]){"--speculation", "off", NULL});
    ask_long_names(plain);
    cr_assert_eq(stat_number("speculation.forced"), 0);
    daemon_stop();
    daemon_start((const char *[]){NULL});
    ask_long_names(drafted);
    cr_assert_geq(stat_number("speculation.accepted"), stat_number("speculation.forced"));
    daemon_stop();
    for (int i = 0; i < 3; i++) {
        cr_assert_str_eq(plain[i], drafted[i]);
        free(plain[i]);
        free(drafted[i]);
    }
}

/* Both fields; bad_words keeps what precedes a string, banned_strings goes back to where it began. */
DAEMON_TEST(constrain, banned_strings_do_not_occur)
{
    static const char *const fields[] = {"bad_words", "banned_strings"};
#define STORY "{\"prompt\":\"Once upon a time\",\"max_tokens\":120,\"seed\":%d%s}"
    static const char *const banned[] = {" little", "girl", "was a", "the", "."};
    int n_found = 0;
    for (int seed = 0; seed < 12; seed++) {
        char body[400], with[200];
        snprintf(body, sizeof body, STORY, seed, "");
        json_t *plain = post_ok("/generate", body);
        snprintf(with, sizeof with, ",\"%s\":[\"xyzzy\",\"é\"]", fields[seed % 2]);
        snprintf(body, sizeof body, STORY, seed, with);
        json_t *same = post_ok("/generate", body);
        snprintf(with, sizeof with,
                 ",\"ignore_eos\":true,\"%s\":[\" little\",\"girl\",\"was a\",\"the\",\".\"]",
                 fields[seed % 2]);
        snprintf(body, sizeof body, STORY, seed, with);
        json_t *without = post_ok("/generate", body);
        cr_assert_str_eq(json_text(plain, "text"), json_text(same, "text"));
        cr_assert_eq(json_number(without, "usage.completion_tokens"), 120);
        for (size_t i = 0; i < sizeof banned / sizeof *banned; i++) {
            n_found += strstr(json_text(plain, "text"), banned[i]) != NULL;
            cr_assert_not(strstr(json_text(without, "text"), banned[i]), "%s", json_text(without, "text"));
        }
        json_decref(plain);
        json_decref(same);
        json_decref(without);
    }
    cr_assert_gt(n_found, 20, "the model writes them by itself");
    expect_words(post("/generate", "{\"prompt\":\"a\",\"banned_strings\":\"x\"}"), 400, "invalid_request",
                 "banned_strings must be an array of at most 64 strings");
    expect_words(post("/generate", "{\"prompt\":\"a\",\"bad_words\":[\"\"]}"), 400, "invalid_request",
                 "bad_words may have strings of 1 to 128 bytes");
    expect_words(post("/generate", "{\"prompt\":\"a\",\"bad_words\":[\"b\"],\"regex\":\"a\"}"), 400,
                 "invalid_request", "one constraint is allowed");
}

/* The events of a stream add up to the text. */
static void expect_stream(const char *body, const char *text)
{
    struct events e = {0};
    struct reply r = post("/generate", body);
    events_read(&e, &r);
    char *all = events_text(&e, "text");
    cr_assert_str_eq(all, text);
    free(all);
    events_free(&e);
    reply_free(&r);
}

/* "Once upon a time, there was a little girl": no event shows a part of what is withdrawn, equal seeds give
 * equal texts, each choice its own, and what precedes the string is what the model writes without bans. */
DAEMON_TEST(constrain, a_banned_string_is_withdrawn_before_the_client_sees_it)
{
#define WITHOUT                                                                                              \
    "{\"prompt\":\"Once upon a time\",\"max_tokens\":60,\"ignore_eos\":true,%s"                              \
    "\"banned_strings\":[\" there was a little girl\",\" a little boy\"]}"
    char body[400];
    json_t *plain =
        post_ok("/generate", "{\"prompt\":\"Once upon a time\",\"temperature\":0,\"max_tokens\":60}");
    const char *found = strstr(json_text(plain, "text"), " there was a little girl");
    cr_assert(found, "%s", json_text(plain, "text"));
    snprintf(body, sizeof body, WITHOUT, "\"temperature\":0,");
    json_t *whole = post_ok("/generate", body);
    const char *text = json_text(whole, "text");
    size_t n_before = (size_t)(found - json_text(plain, "text")), n_same = 0;
    cr_assert_eq(strncmp(text, json_text(plain, "text"), n_before), 0, "%s", text);
    cr_assert_neq(strncmp(text + n_before, " there", 6), 0, "it went back to where the string began: %s",
                  text);
    cr_assert_not(strstr(text, " a little boy"), "%s", text);
    cr_assert_eq(json_number(whole, "usage.completion_tokens"), 60);
    snprintf(body, sizeof body, WITHOUT, "\"temperature\":0,\"stream\":true,");
    expect_stream(body, text);
    snprintf(body, sizeof body, WITHOUT, "\"n\":3,\"temperature\":0.8,\"mirostat\":2,\"seed\":4,");
    json_t *once = post_ok("/v1/completions", body), *again = post_ok("/v1/completions", body);
    for (size_t i = 0; i < 3; i++) {
        char at[32];
        snprintf(at, sizeof at, "choices.%zu.text", i);
        cr_assert_str_eq(json_text(once, at), json_text(again, at));
        n_same += !strcmp(json_text(once, at), json_text(once, "choices.0.text"));
        cr_assert_not(strstr(json_text(once, at), " a little boy"));
        cr_assert_not(strstr(json_text(once, at), " there was a little girl"));
    }
    cr_assert_lt(n_same, 3);
    json_decref(once);
    json_decref(again);
    json_decref(whole);
    json_decref(plain);
}

#define KINDS                                                                                                \
    "{\"type\":\"object\",\"properties\":{\"kind\":{\"enum\":[\"girl\",\"goose\",\"gander\"]},\"name\":{"    \
    "\"type\":"                                                                                              \
    "\"string\",\"minLength\":20,\"maxLength\":60}},\"required\":[\"kind\",\"name\"],"                       \
    "\"additionalProperties\":false}"

/* The schema and the strings hold at once, streamed or whole, and with filters on the host; equal seeds give
 * equal texts. */
DAEMON_TEST(constrain, banned_strings_hold_beside_a_schema)
{
    static const char *const banned[] = {"girl", "the", "and ", "wa", "o"};
    static const char *const also[] = {"", ",\"temperature\":0", ",\"mirostat\":2"};
    int n_found = 0;
    for (int seed = 0; seed < 16; seed++) {
        char body[1000];
        int n = snprintf(
            body, sizeof body,
            "{\"prompt\":\"Once upon a time\",\"max_tokens\":200,\"seed\":%d%s,\"json_schema\":" KINDS, seed,
            also[seed % 3]);
        snprintf(body + n, sizeof body - (size_t)n, "}");
        json_t *plain = post_ok("/generate", body);
        snprintf(body + n, sizeof body - (size_t)n,
                 ",\"banned_strings\":[\"girl\",\"the\",\"and \",\"wa\",\"o\"]}");
        json_t *whole = post_ok("/generate", body);
        const char *text = json_text(whole, "text");
        expect_valid(KINDS, text);
        for (size_t i = 0; i < sizeof banned / sizeof *banned; i++) {
            n_found += strstr(json_text(plain, "text"), banned[i]) != NULL;
            cr_assert_not(strstr(text, banned[i]), "%s", text);
        }
        snprintf(body + n, sizeof body - (size_t)n,
                 ",\"stream\":true,\"banned_strings\":[\"girl\",\"the\",\"and \",\"wa\",\"o\"]}");
        expect_stream(body, text);
        json_decref(plain);
        json_decref(whole);
    }
    cr_assert_gt(n_found, 20, "the model writes them by itself: %d", n_found);
}

/* All of the texts begin alike, so the bans of their beginning cannot stay. */
DAEMON_TEST(constrain, a_text_is_found_where_banned_strings_leave_one)
{
    for (int seed = 0; seed < 8; seed++) {
        char body[300];
        snprintf(body, sizeof body,
                 "{\"prompt\":\"Once\",\"seed\":%d,\"guided_choice\":[\"a little girl\",\"a little boy\",\"a "
                 "little bird\"],"
                 "\"banned_strings\":[\"le girl\",\"a little bo\"]}",
                 seed);
        json_t *root = post_ok("/generate", body);
        cr_assert_str_eq(json_text(root, "text"), "a little bird");
        cr_assert_str_eq(json_text(root, "finish_reason"), "eos");
        json_decref(root);
    }
    expect_words(
        post("/generate", "{\"prompt\":\"Once\",\"guided_choice\":[\"girl\"],\"banned_strings\":[\"girl\"]}"),
        400, "invalid_request", "no text without them was found that guided_choice allows");
    json_t *both = post_ok(
        "/generate",
        "{\"prompt\":\"Once\",\"max_tokens\":40,\"bad_words\":[\"the\"],\"banned_strings\":[\"was\"]}");
    cr_assert_not(strstr(json_text(both, "text"), "the"));
    cr_assert_not(strstr(json_text(both, "text"), "was"));
    json_decref(both);
}

DAEMON_TEST(constrain, a_format_holds_in_the_other_dialects)
{
    static const struct {
        const char *path, *body, *text;
    } cases[] = {
        {"/api/chat",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"stream\":false,\"format\":" PERSON "}",
         "message.content"},
        {"/api/generate", "{\"prompt\":\"a\",\"stream\":false,\"format\":" PERSON "}", "response"},
        {"/v1/messages",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":200,\"output_config\":{"
         "\"format\":{\"type\":\"json_schema\",\"schema\":" PERSON "}}}",
         "content.0.text"},
        {"/v1/responses",
         "{\"input\":\"a\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"p\",\"strict\":true,"
         "\"schema\":" PERSON "}}}",
         "output.0.content.0.text"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *root = post_ok(cases[i].path, cases[i].body);
        expect_valid(PERSON, json_text(root, cases[i].text));
        json_decref(root);
    }
}

DAEMON_TEST(constrain, a_constraint_and_settings_are_taken_by_their_names_in_every_dialect)
{
#define SAID "\"messages\":[{\"role\":\"user\",\"content\":\"Tell me.\"}]"
    static const struct {
        const char *path, *body, *text;
    } dialects[] = {
        {"/generate", "\"prompt\":\"a\"", "text"},
        {"/completion", "\"prompt\":\"a\"", "content"},
        {"/generate_stream", "\"inputs\":\"a\",\"stream\":false", "generated_text"},
        {"/v1/completions", "\"prompt\":\"a\"", "choices.0.text"},
        {CHAT, SAID, "choices.0.message.content"},
        {"/v1/responses", "\"input\":\"Tell me.\"", "output.0.content.0.text"},
        {"/v1/messages", SAID ",\"max_tokens\":50", "content.0.text"},
        {"/api/chat", SAID ",\"stream\":false", "message.content"},
        {"/api/generate", "\"prompt\":\"a\",\"stream\":false", "response"},
        {"/api/generate", "\"prompt\":\"a\",\"raw\":true,\"stream\":false", "response"},
    };
    for (size_t i = 0; i < sizeof dialects / sizeof *dialects; i++) {
        char body[256];
        snprintf(body, sizeof body, "{%s,\"regex\":\"ab{3}c\"}", dialects[i].body);
        json_t *root = post_ok(dialects[i].path, body);
        cr_assert_str_eq(json_text(root, dialects[i].text), "abbbc", "%s", dialects[i].path);
        json_decref(root);
        snprintf(body, sizeof body, "{%s,\"regex\":7}", dialects[i].body);
        struct reply r = post(dialects[i].path, body);
        cr_assert_eq(r.status, 400, "%s: %s", dialects[i].path, r.body);
        cr_assert_not_null(strstr(r.body, "regex"), "%s", r.body);
        reply_free(&r);
        if (strncmp(dialects[i].path, "/v1/", 4) && strncmp(dialects[i].path, "/api/chat", 9))
            continue;
        snprintf(body, sizeof body, "{%s,\"logit_bias\":[1]}", dialects[i].body);
        r = post(dialects[i].path, body);
        cr_assert_eq(r.status, 400, "%s: %s", dialects[i].path, r.body);
        cr_assert_not_null(strstr(r.body, "logit_bias"), "%s", r.body);
        reply_free(&r);
    }
}
