/* POST /generate of the real daemon: text, seeds, stops, log-probabilities, limits of the context. */
#include "integration/harness.h"

#include <math.h>

#define GREEDY "{\"prompt\":\"Once upon a time\",\"temperature\":0,\"max_tokens\":24"

static char *text_of(const char *body)
{
    json_t *root = generate(body);
    char *text = strdup(json_text(root, "text"));
    json_decref(root);
    return text;
}

static void same_text(const char *a, const char *b)
{
    char *x = text_of(a), *y = text_of(b);
    cr_assert_str_eq(x, y);
    free(x);
    free(y);
}

DAEMON_TEST(generate, a_greedy_story_begins_as_stories_do)
{
    json_t *root = generate(GREEDY "}");
    cr_assert_eq(strncmp(json_text(root, "text"), ", there was", 11), 0, "%s", json_text(root, "text"));
    cr_assert_str_eq(json_text(root, "finish_reason"), "length");
    cr_assert_eq(json_number(root, "usage.prompt_tokens"), 4);
    cr_assert_eq(json_number(root, "usage.completion_tokens"), 24);
    cr_assert_eq(json_array_size(json_at(root, "tokens")), 24);
    cr_assert_gt(json_real_value(json_at(root, "timings.ttft_ms")), 0);
    cr_assert_gt(json_real_value(json_at(root, "timings.tokens_per_s")), 0);
    json_decref(root);
}

DAEMON_TEST(generate, curl_gets_the_same_reply)
{
    const char *body = GREEDY "}";
    struct reply r = curl_post("/generate", body, strlen(body));
    cr_assert_eq(r.status, 200, "%s", r.body);
    json_t *root = reply_json(&r);
    char *text = text_of(body);
    cr_assert_str_eq(json_text(root, "text"), text);
    free(text);
    json_decref(root);
    reply_free(&r);
}

DAEMON_TEST(generate, token_ids_are_a_prompt_like_text)
{
    same_text(GREEDY "}", "{\"prompt\":[424,440,258,397],\"temperature\":0,\"max_tokens\":24}");
}

DAEMON_TEST(generate, the_seed_in_the_reply_gives_the_same_text_again)
{
    char body[160];
    json_t *first = generate("{\"prompt\":\"Once\",\"max_tokens\":32}");
    snprintf(body, sizeof body, "{\"prompt\":\"Once\",\"max_tokens\":32,\"seed\":%lld}",
             json_number(first, "seed"));
    char *again = text_of(body);
    cr_assert_str_eq(json_text(first, "text"), again);
    free(again);
    json_decref(first);
}

DAEMON_TEST(generate, another_seed_gives_another_text)
{
    char *a = text_of("{\"prompt\":\"Once\",\"max_tokens\":32,\"seed\":1}");
    char *b = text_of("{\"prompt\":\"Once\",\"max_tokens\":32,\"seed\":2}");
    cr_assert_str_neq(a, b);
    free(a);
    free(b);
}

DAEMON_TEST(generate, a_stop_string_cuts_the_text_before_it)
{
    char *whole = text_of(GREEDY "}");
    char body[200];
    const char *stop = strchr(whole + 12, ' ') + 1; /* from inside the text, most of it: over many tokens */
    snprintf(body, sizeof body, GREEDY ",\"stop\":[\"never\",\"%.12s\"]}", stop);
    json_t *root = generate(body);
    const char *text = json_text(root, "text"), *at = strstr(whole, json_text(root, "stop"));
    cr_assert_not_null(at);
    cr_assert_eq(strlen(text), (size_t)(at - whole));
    cr_assert_eq(strncmp(text, whole, strlen(text)), 0);
    cr_assert_str_eq(json_text(root, "finish_reason"), "stop");
    json_decref(root);
    free(whole);
}

DAEMON_TEST(generate, what_ended_a_text_is_part_of_it_on_request)
{
#define KEPT                                                                                                 \
    "{\"prompt\":\"Once upon a "                                                                             \
    "time\",\"temperature\":0,\"include_stop_str_in_output\":true,\"max_tokens\":20"
    json_t *root = generate(KEPT ",\"stop\":\"lit\"}"); /* the token is longer */
    cr_assert_str_eq(json_text(root, "text"), ", there was a lit");
    cr_assert_str_eq(json_text(root, "stop"), "lit");
    json_decref(root);
    root = generate(KEPT ",\"stop_token_ids\":[389]}");
    cr_assert_str_eq(json_text(root, "text"), ", there was a little");
    json_decref(root);
    struct events e;
    struct reply r = post("/generate", KEPT ",\"stream\":true,\"stop\":\"was a lit\"}");
    char text[128] = "";
    events_read(&e, &r);
    for (size_t i = 0; i < e.n; i++)
        strcat(text, json_text(e.data[i], "text"));
    cr_assert_str_eq(text, ", there was a lit");
    cr_assert_str_eq(json_text(e.data[1], "text"), " there");
    cr_assert_str_eq(json_text(e.data[2], "text"), " was", "nothing is held back");
    reply_free(&r);
    events_free(&e);
}

/* Checks that the text is that of another prompt, with as many tokens. */
static void same_as_of(const char *body, const char *other)
{
    json_t *a = generate(body), *b = generate(other);
    cr_assert_str_eq(json_text(a, "text"), json_text(b, "text"));
    cr_assert_eq(json_number(a, "usage.prompt_tokens"), json_number(b, "usage.prompt_tokens"), "%s", body);
    json_decref(a);
    json_decref(b);
}

DAEMON_TEST(generate, a_truncated_prompt_is_its_last_tokens)
{
#define LAST(n, more) "{\"temperature\":0,\"truncate_prompt_tokens\":" n more
    same_as_of(LAST("2", ",\"max_tokens\":9,\"prompt\":[424,440,258,397]}"),
               "{\"temperature\":0,\"max_tokens\":9,\"prompt\":[258,397]}");
    same_as_of(LAST("2", ",\"max_tokens\":9,\"prompt\":\"Once upon a time\"}"),
               "{\"temperature\":0,\"max_tokens\":9,\"prompt\":[258,397]}");
    same_as_of(LAST("4", ",\"max_tokens\":9,\"prompt\":\"Once upon a time\"}"),
               "{\"temperature\":0,\"max_tokens\":9,\"prompt\":[424,440,258,397]}");
    char *body = long_prompt("One day a cat sat. ", 1000, ",\"max_tokens\":24,\"truncate_prompt_tokens\":-1");
    json_t *root = generate(body); /* 5,000 tokens, of which the context has room for 1,000 */
    cr_assert_eq(json_number(root, "usage.prompt_tokens"), 1000);
    json_decref(root);
    free(body);
    body = long_prompt("One day a cat sat. ", 1000, ",\"truncate_prompt_tokens\":-1");
    root = generate(body);
    cr_assert_eq(json_number(root, "usage.prompt_tokens"), 1023);
    cr_assert_eq(json_number(root, "usage.completion_tokens"), 1);
    json_decref(root);
    free(body);
    root = post_ok(
        "/v1/chat/completions",
        LAST("5", ",\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"a b c d e f\"}]}"));
    cr_assert_eq(json_number(root, "usage.prompt_tokens"), 5);
    json_decref(root);
    expect_words(post("/v1/completions", LAST("2", ",\"echo\":true,\"prompt\":\"Once upon a time\"}")), 400,
                 "invalid_request", "a prompt that is echoed cannot be truncated");
}

DAEMON_TEST(generate, max_tokens_0_only_fills_the_cache)
{
    json_t *root = generate("{\"prompt\":\"Once upon a time\",\"max_tokens\":0}");
    cr_assert_str_eq(json_text(root, "text"), "");
    cr_assert_str_eq(json_text(root, "finish_reason"), "length");
    cr_assert_eq(json_number(root, "usage.completion_tokens"), 0);
    json_decref(root);
}

DAEMON_TEST(generate, a_prompt_seen_before_is_taken_from_the_cache)
{
    char *body = long_prompt("One day a cat sat. ", 40, ",\"max_tokens\":4,\"temperature\":0");
    json_t *first = generate(body), *second = generate(body);
    cr_assert_eq(json_number(first, "usage.cached_tokens"), 0);
    cr_assert_geq(json_number(second, "usage.cached_tokens"), 64);
    cr_assert_str_eq(json_text(first, "text"), json_text(second, "text"));
    json_decref(first);
    json_decref(second);
    free(body);
}

DAEMON_TEST(generate, an_end_token_ends_the_text_and_is_not_in_it)
{
    json_t *root = generate("{\"prompt\":\"<|im_start|>user\\nTell me a story about a dog.<|im_end|>\\n"
                            "<|im_start|>assistant\\n\",\"temperature\":0,\"max_tokens\":600}");
    cr_assert_str_eq(json_text(root, "finish_reason"), "eos");
    cr_assert_null(strstr(json_text(root, "text"), "<|im_end|>"));
    size_t n = json_array_size(json_at(root, "tokens"));
    cr_assert_eq(json_number(root, "usage.completion_tokens"), (long long)n);
    cr_assert_geq(json_integer_value(json_array_get(json_at(root, "tokens"), n - 1)), 4093);
    json_decref(root);
}

DAEMON_TEST(generate, ignore_eos_goes_on_to_max_tokens)
{
    json_t *root =
        generate("{\"prompt\":\"The end.\",\"temperature\":0,\"max_tokens\":300,\"ignore_eos\":true}");
    cr_assert_str_eq(json_text(root, "finish_reason"), "length");
    cr_assert_eq(json_number(root, "usage.completion_tokens"), 300);
    json_decref(root);
}

#define FIRST_END 4093 /* of the demo model's vocabulary: from here on end tokens and ChatML's */

static uint32_t n_ends(const json_t *root, size_t from, size_t to)
{
    uint32_t n = 0;
    for (size_t i = from; i < to; i++)
        n += json_integer_value(json_array_get(json_at(root, "tokens"), i)) >= FIRST_END;
    return n;
}

DAEMON_TEST(generate, ignore_eos_keeps_end_tokens_out_of_the_text)
{
    json_t *root =
        generate("{\"prompt\":\"Once upon a time\",\"ignore_eos\":true,\"seed\":1,\"max_tokens\":400}");
    cr_assert_eq(json_array_size(json_at(root, "tokens")), 400);
    cr_assert_eq(n_ends(root, 0, 400), 0);
    json_decref(root);
}

DAEMON_TEST(generate, no_end_token_comes_before_min_tokens)
{
    json_t *root =
        generate("{\"prompt\":\"Once upon a time\",\"min_tokens\":300,\"seed\":1,\"max_tokens\":600}");
    cr_assert_geq(json_array_size(json_at(root, "tokens")), 300);
    cr_assert_eq(n_ends(root, 0, 300), 0);
    json_decref(root);
}

DAEMON_TEST(generate, a_banned_token_does_not_come)
{
    json_t *plain = generate(GREEDY "}");
    long long first = json_integer_value(json_array_get(json_at(plain, "tokens"), 0));
    char body[200];
    snprintf(body, sizeof body, GREEDY ",\"logit_bias\":{\"%lld\":-100}}", first);
    json_t *biased = generate(body);
    size_t i;
    json_t *token;
    json_array_foreach(json_at(biased, "tokens"), i, token) cr_assert_neq(json_integer_value(token), first);
    json_decref(plain);
    json_decref(biased);
}

DAEMON_TEST(generate, alternatives_are_sorted_and_the_greedy_token_is_the_first)
{
    json_t *root = generate(GREEDY ",\"logprobs\":5}"), *entry, *top;
    size_t i, k;
    json_array_foreach(json_at(root, "logprobs"), i, entry)
    {
        double before = 0;
        cr_assert_eq(json_array_size(json_at(entry, "top")), 5);
        cr_assert_eq(json_number(entry, "id"), json_number(entry, "top.0.id"));
        json_array_foreach(json_at(entry, "top"), k, top)
        {
            double p = json_number_value(json_at(top, "logprob"));
            cr_assert(p <= before && isfinite(p));
            before = p;
        }
    }
    cr_assert_eq(i, 24);
    json_decref(root);
}

DAEMON_TEST(generate, prompt_log_probabilities_come_for_every_token_but_the_first)
{
    json_t *root = generate("{\"prompt\":\"Once upon a time\",\"max_tokens\":1,\"prompt_logprobs\":2}");
    json_t *list = json_at(root, "prompt_logprobs");
    cr_assert_eq(json_array_size(list), 4);
    cr_assert(json_is_null(json_array_get(list, 0)));
    cr_assert_eq(json_number(list, "3.id"), 397);
    cr_assert_eq(json_array_size(json_at(list, "3.top")), 2);
    json_decref(root);
}

DAEMON_TEST(generate, the_log_names_requests_but_never_their_text)
{
    struct reply r = client_once(daemon_.port, "POST", "/generate", "X-Request-Id: mark-77\r\n",
                                 "{\"prompt\":\"Zanzibar\",\"max_tokens\":3,\"temperature\":0}");
    json_t *root = reply_json(&r);
    char *log = daemon_read_log();
    for (int left = 300000; !strstr(log, "mark-77"); left--) { /* the line comes when the reply has left */
        cr_assert_gt(left, 0, "%s", log);
        usleep(1000);
        free(log);
        log = daemon_read_log();
    }
    cr_assert_null(strstr(log, "Zanzibar"));
    free(log);
    json_decref(root);
    reply_free(&r);
}

DAEMON_TEST(tokens, text_becomes_ids_and_text_again)
{
    struct reply r = post("/tokenize", "{\"content\":\"Once upon a time\"}");
    json_t *root = reply_json(&r);
    cr_assert_eq(json_array_size(json_at(root, "tokens")), 4);
    cr_assert_eq(json_number(root, "tokens.0"), 424);
    json_decref(root);
    reply_free(&r);
    r = post("/detokenize", "{\"tokens\":[424,440,258,397]}");
    root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "content"), "Once upon a time");
    cr_assert_str_eq(json_text(root, "prompt"), "Once upon a time");
    json_decref(root);
    reply_free(&r);
}

#define TALK "\"messages\":[{\"role\":\"user\",\"content\":\"Once\"}]"

/* Also in a body that is read on the pool. */
DAEMON_TEST(tokens, a_conversation_has_the_ids_of_its_prompt)
{
    char body[8000];
    json_t *prompt = post_ok("/apply-template", "{" TALK "}");
    snprintf(body, sizeof body, "{\"prompt\":\"%s\"}",
             "<|im_start|>user\\nOnce<|im_end|>\\n<|im_start|>assistant\\n");
    json_t *text = post_ok("/tokenize", body);
    cr_assert_str_eq(json_text(prompt, "prompt"),
                     "<|im_start|>user\nOnce<|im_end|>\n<|im_start|>assistant\n");
    for (int blanks = 0; blanks <= 6000; blanks += 6000) {
        snprintf(body, sizeof body, "{%*s" TALK ",\"return_token_strs\":true}", blanks, "");
        json_t *chat = post_ok("/tokenize", body);
        cr_assert(json_equal(json_at(chat, "tokens"), json_at(text, "tokens")));
        cr_assert_eq(json_number(chat, "count"), json_number(text, "count"));
        cr_assert_eq(json_number(chat, "max_model_len"), 1024);
        cr_assert_str_eq(json_text(chat, "token_strs.0"), "<|im_start|>");
        cr_assert_eq(json_array_size(json_at(chat, "token_strs")), json_number(chat, "count"));
        json_decref(chat);
        snprintf(body, sizeof body, "{%*s\"messages\":5}", blanks, "");
        expect_words(post("/tokenize", body), 400, "invalid_request", "messages must be an array");
    }
    expect_words(post("/tokenize", "{" TALK ",\"prompt\":\"a\"}"), 400, "invalid_request",
                 "a chat needs messages");
    expect_words(post("/tokenize", "{" TALK ",\"frob\":1}"), 400, "invalid_request",
                 "unknown field \"frob\"");
    json_decref(prompt);
    json_decref(text);
}

DAEMON_TEST(tokens, their_texts_come_when_asked_for)
{
    json_t *root = post_ok("/tokenize", "{\"prompt\":\"Once \\u00e9\",\"return_token_strs\":true}");
    cr_assert_str_eq(json_text(root, "token_strs.0"), "Once");
    cr_assert_eq(json_array_size(json_at(root, "token_strs")), json_number(root, "count"));
    json_decref(root);
    root = post_ok("/tokenize", "{\"content\":\"Once \\u00e9\",\"with_pieces\":true}");
    cr_assert_str_eq(json_text(root, "tokens.0.piece"), "Once");
    cr_assert_eq(json_number(root, "tokens.0.id"), 424);
    cr_assert_eq(json_number(root, "tokens.2.piece.0"), 0xc3); /* a byte of two */
    json_decref(root);
}

DAEMON_TEST(tokens, a_long_text_is_encoded_on_the_pool)
{
    size_t n = 200000;
    char *body = malloc(n + 32);
    int at = sprintf(body, "{\"content\":\"");
    for (size_t i = 0; i < n; i++)
        body[at + (int)i] = "once upon "[i % 10];
    strcpy(body + at + n, "\"}");
    struct reply r = post("/tokenize", body);
    cr_assert_eq(r.status, 200, "%s", r.body);
    json_t *root = reply_json(&r);
    cr_assert_gt(json_array_size(json_at(root, "tokens")), n / 10);
    json_decref(root);
    reply_free(&r);
    free(body);
}

DAEMON_TEST(tokens, wrong_ids_are_named)
{
    expect_words(post("/detokenize", "{\"tokens\":[1,4096]}"), 400, "invalid_request",
                 "tokens[1] must be between 0 and 4095 (got 4096)");
    expect_words(post("/detokenize", "{}"), 400, "invalid_request", "tokens is missing");
    expect_words(post("/tokenize", "{\"content\":5}"), 400, "invalid_request", "content must be a string");
}

/* ---- the float oracle, whose cache has no pages to share ---- */

#define EXACT      "--arithmetic", "exact", "--executor", "eager", "--threads", "1"
#define CAT        "One day a cat sat on a mat. "
#define LONG_CAT   CAT CAT CAT CAT CAT CAT CAT CAT CAT CAT
#define DOG        "A big dog ran to see the lake. "
#define LONG_DOG   DOG DOG DOG DOG DOG DOG DOG DOG DOG DOG DOG DOG
#define SHORT_TEXT "\",\"temperature\":0,\"max_tokens\":8}"

DAEMON_TEST(generate, exact_arithmetic_says_the_same_of_a_prompt_seen_before, EXACT)
{
    const char *p = "{\"prompt\":\"" LONG_CAT "It" SHORT_TEXT;
    char *first = text_of(p);
    free(text_of("{\"prompt\":\"" LONG_DOG SHORT_TEXT)); /* takes the slot, with another beginning */
    char *again = text_of(p);
    cr_assert_str_eq(first, again);
    free(first);
    free(again);
}

DAEMON_TEST(generate, exact_arithmetic_answers_requests_with_one_beginning_side_by_side, EXACT)
{
    static const char *const bodies[] = {"{\"prompt\":\"" LONG_CAT "It" SHORT_TEXT,
                                         "{\"prompt\":\"" LONG_CAT "Then a dog" SHORT_TEXT,
                                         "{\"prompt\":\"" LONG_CAT "The mat" SHORT_TEXT};
    int fds[3];
    for (int i = 0; i < 3; i++) {
        fds[i] = client_connect(daemon_.port);
        cr_assert(client_request(fds[i], "POST", "/generate", "", bodies[i]));
    }
    for (int i = 0; i < 3; i++) {
        struct reply r;
        client_read(fds[i], &r, false);
        close(fds[i]);
        cr_assert_eq(r.status, 200, "%s", r.body);
        json_t *root = reply_json(&r);
        char *alone = text_of(bodies[i]);
        cr_assert_str_eq(json_text(root, "text"), alone);
        free(alone);
        json_decref(root);
        reply_free(&r);
    }
}

DAEMON_TEST(generate, the_last_of_sixty_four_stop_strings_ends_the_text)
{
    char body[2048] = "{\"prompt\":\"Once upon a time\",\"temperature\":0,\"stop\":[";
    for (int i = 0; i < 63; i++)
        sprintf(body + strlen(body), "\"no such text %d\",", i);
    size_t n = strlen(body);
    strcpy(body + n, "\"named\"]}");
    json_t *root = generate(body);
    cr_assert_str_eq(json_text(root, "finish_reason"), "stop");
    cr_assert_str_eq(json_text(root, "text"), ", there was a little girl ");
    json_decref(root);
    strcpy(body + n, "\"named\",\"one more\"]}");
    expect_words(post("/generate", body), 400, "invalid_request",
                 "stop may have at most 64 strings (got 65)");
    json_decref(generate("{\"prompt\":\"Once\",\"max_tokens\":1,\"stop\":[]}"));
}
