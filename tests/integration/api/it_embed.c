/* Vectors of texts in the dialects that ask for them, and several prompts in one request. */
#include "integration/harness.h"

#include <math.h>
#include <string.h>

#define EMBED    "/v1/embeddings"
#define COMPLETE "/v1/completions"
#define N_EMBD   256

/* A refusal in any form. */
static void refused(const char *path, const char *body, const char *words)
{
    struct reply r = post(path, body);
    cr_assert_eq(r.status, 400, "%s: %d: %s", body, r.status, r.body);
    cr_assert(strstr(r.body, words), "%s: %s", body, r.body);
    reply_free(&r);
}

static void vector_of(const json_t *list, float *out)
{
    cr_assert_eq(json_array_size(list), N_EMBD);
    for (size_t i = 0; i < N_EMBD; i++)
        out[i] = (float)json_number_value(json_array_get(list, i));
}

static double length_of(const float *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

static int digit(char c)
{
    const char *all = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
               *at = strchr(all, c);
    return c && at ? (int)(at - all) : -1;
}

static size_t from_base64(const char *s, unsigned char *out)
{
    size_t n = 0;
    uint32_t bits = 0, n_bits = 0;
    for (; digit(*s) >= 0; s++) {
        bits = bits << 6 | (uint32_t)digit(*s);
        n_bits += 6;
        if (n_bits >= 8) {
            n_bits -= 8;
            out[n++] = (unsigned char)(bits >> n_bits);
        }
    }
    return n;
}

DAEMON_TEST(embed, a_vector_has_length_one_and_is_the_same_in_every_form)
{
    static float plain[N_EMBD], other[N_EMBD], packed[N_EMBD + 1];
    json_t *root = post_ok(EMBED, "{\"model\":\"x\",\"input\":\"Once upon a time\"}");
    cr_assert_str_eq(json_text(root, "data.0.object"), "embedding");
    cr_assert_eq(strncmp(json_text(root, "id"), "embd-", 5), 0);
    cr_assert_eq(json_number(root, "usage.total_tokens"), 4);
    vector_of(json_at(root, "data.0.embedding"), plain);
    cr_assert_float_eq(length_of(plain, N_EMBD), 1, 1e-6);
    json_decref(root);
    root = post_ok(EMBED, "{\"input\":[\"x\",\"Once upon a time\"],\"encoding_format\":\"base64\"}");
    cr_assert_eq(from_base64(json_text(root, "data.1.embedding"), (unsigned char *)packed), sizeof plain);
    cr_assert_eq(memcmp(plain, packed, sizeof plain), 0);
    json_decref(root);
    root = post_ok("/api/embed", "{\"model\":\"x\",\"input\":\"Once upon a time\",\"options\":{}}");
    vector_of(json_at(root, "embeddings.0"), other);
    cr_assert_eq(memcmp(plain, other, sizeof plain), 0);
    cr_assert_eq(json_number(root, "prompt_eval_count"), 4);
    json_decref(root);
    root = post_ok("/embedding", "{\"content\":\"Once upon a time\"}");
    vector_of(json_at(root, "0.embedding.0"), other);
    cr_assert_eq(memcmp(plain, other, sizeof plain), 0);
    json_decref(root);
    root = post_ok("/embeddings", "{\"model\":\"x\",\"input\":\"Once upon a time\"}");
    vector_of(json_at(root, "0.embedding.0"), other);
    cr_assert_eq(memcmp(plain, other, sizeof plain), 0);
    json_decref(root);
    root = post_ok("/embed", "{\"inputs\":[\"Once upon a time\"],\"normalize\":true}");
    vector_of(json_at(root, "0"), other);
    cr_assert_eq(memcmp(plain, other, sizeof plain), 0);
    json_decref(root);
    root = post_ok("/api/embeddings", "{\"prompt\":\"Once upon a time\"}"); /* as it is, not of length 1 */
    vector_of(json_at(root, "embedding"), other);
    double length = length_of(other, N_EMBD);
    cr_assert_float_neq(length, 1, 1e-2);
    for (size_t i = 0; i < N_EMBD; i++)
        cr_assert_float_eq((double)other[i] / length, (double)plain[i], 1e-6);
    json_decref(root);
}

DAEMON_TEST(embed, fewer_dimensions_are_the_first_ones_made_length_one)
{
    static float all[N_EMBD];
    json_t *root = post_ok(EMBED, "{\"input\":\"Once\"}");
    vector_of(json_at(root, "data.0.embedding"), all);
    json_decref(root);
    root = post_ok(EMBED, "{\"input\":\"Once\",\"dimensions\":8}");
    const json_t *few = json_at(root, "data.0.embedding");
    cr_assert_eq(json_array_size(few), 8);
    for (size_t i = 0; i < 8; i++)
        cr_assert_float_eq(json_number_value(json_array_get(few, i)), (double)all[i] / length_of(all, 8),
                           1e-6);
    json_decref(root);
    expect_words(post(EMBED, "{\"input\":\"a\",\"dimensions\":257}"), 400, "invalid_request",
                 "dimensions must be at most 256");
}

/* More texts than slots: they follow one another past the queue, and each has the vector it has alone. */
DAEMON_TEST(embed, many_texts_have_the_vectors_that_each_has_alone, "--slots", "2", "--queue-limit", "1")
{
    static char body[16384];
    static float one[N_EMBD], many[N_EMBD];
    char *at = body + sprintf(body, "{\"input\":[");
    for (int i = 0; i < 100; i++)
        at += sprintf(at, "%s\"Tom had %d dogs and a cat named Tim, who was %d years old.\"", i ? "," : "", i,
                      i);
    strcpy(at, "]}");
    json_t *root = post_ok(EMBED, body);
    cr_assert_eq(json_array_size(json_at(root, "data")), 100);
    for (size_t i = 0; i < 100; i += 33) {
        snprintf(body, sizeof body,
                 "{\"input\":\"Tom had %zu dogs and a cat named Tim, who was %zu years old.\"}", i, i);
        json_t *alone = post_ok(EMBED, body);
        const json_t *item = json_array_get(json_at(root, "data"), i);
        cr_assert_eq(json_number(item, "index"), i);
        vector_of(json_at(item, "embedding"), many);
        vector_of(json_at(alone, "data.0.embedding"), one);
        cr_assert_eq(memcmp(one, many, sizeof one), 0, "text %zu", i);
        json_decref(alone);
    }
    json_decref(root);
}

DAEMON_TEST(embed, ids_are_taken_as_texts_are_and_long_texts_are_cut_where_that_is_asked)
{
    json_t *root = post_ok(EMBED, "{\"input\":[[424,440],[1]]}");
    cr_assert_eq(json_number(root, "usage.prompt_tokens"), 3);
    json_decref(root);
    char *text = long_prompt("word ", 3000, ""), *body = NULL;
    cr_assert_gt(asprintf(&body, "{\"input\"%s", text + strlen("{\"prompt\"")), 0);
    refused(EMBED, body, "the context has 1024");
    root = post_ok("/api/embed", body);
    cr_assert_eq(json_number(root, "prompt_eval_count"), 1024);
    json_decref(root);
    free(body);
    cr_assert_gt(asprintf(&body, "{\"truncate_prompt_tokens\":-1,\"input\"%s", text + strlen("{\"prompt\"")),
                 0);
    root = post_ok(EMBED, body);
    cr_assert_eq(json_number(root, "usage.prompt_tokens"), 1024);
    json_decref(root);
    root = post_ok(EMBED, "{\"input\":[[424,440,7],[1],[5,440,7]],\"truncate_prompt_tokens\":2}");
    cr_assert_eq(json_number(root, "usage.prompt_tokens"), 5);
    cr_assert(json_equal(json_at(root, "data.0.embedding"), json_at(root, "data.2.embedding")));
    json_decref(root);
    free(text);
    free(body);
}

DAEMON_TEST(embed, refusals_name_the_field)
{
    static const char *const cases[][2] = {
        {"{}", "input is missing"},
        {"{\"input\":[]}", "at least one token"},
        {"{\"input\":\"\"}", "at least one token"},
        {"{\"input\":[\"a\",\"\"]}", "at least one token"},
        {"{\"input\":[\"a\",3]}", "input[1] must be a string or an array of token ids (got 3)"},
        {"{\"input\":[[1],[99999]]}", "input[1][0] must be between 0 and 4095 (got 99999)"},
        {"{\"input\":{}}", "input must be a string"},
        {"{\"input\":\"a\",\"encoding_format\":\"hex\"}", "encoding_format must be \"float\" or \"base64\""},
        {"{\"input\":\"a\",\"dimensions\":0}", "dimensions must be"},
        {"{\"input\":\"a\",\"temperature\":1}", "unknown field \"temperature\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_words(post(EMBED, cases[i][0]), 400, "invalid_request", cases[i][1]);
    struct reply r = post("/api/embed", "{}");
    json_t *root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "error"), "input is missing");
    json_decref(root);
    reply_free(&r);
    refused("/api/embeddings", "{\"prompt\":[\"a\",\"b\"]}", "several prompts");
}

DAEMON_TEST(embed, an_executor_without_hidden_states_refuses_by_name, "--executor", "eager")
{
    expect_words(post(EMBED, "{\"input\":\"a\"}"), 501, "not_supported", "keep no hidden states");
}

/* --- several prompts --- */

static json_t *alone(const char *prompt, int seed, const char *more)
{
    char body[256];
    snprintf(body, sizeof body, "{\"prompt\":\"%s\",\"max_tokens\":12,\"seed\":%d%s}", prompt, seed, more);
    return post_ok(COMPLETE, body);
}

static const char *const prompts[] = {"Once", "One day", "Tom and Sue", "The cat", "A big dog"};
#define SEVERAL                                                                                              \
    "{\"prompt\":[\"Once\",\"One day\",\"Tom and Sue\",\"The cat\",\"A big "                                 \
    "dog\"],\"max_tokens\":12,\"seed\":7,"

DAEMON_TEST(several, prompts_have_their_choices_in_order_each_as_alone, "--slots", "2")
{
    json_t *root = post_ok(COMPLETE, SEVERAL "\"n\":2}");
    double n_prompt = 0;
    cr_assert_eq(json_array_size(json_at(root, "choices")), 10);
    for (size_t i = 0; i < 10; i++) {
        json_t *one = alone(prompts[i / 2], 7 + (int)(i % 2), "");
        const json_t *choice = json_array_get(json_at(root, "choices"), i);
        cr_assert_eq(json_number(choice, "index"), i);
        cr_assert_str_eq(json_text(choice, "text"), json_text(one, "choices.0.text"), "choice %zu", i);
        n_prompt += i % 2 ? 0 : json_number(one, "usage.prompt_tokens");
        json_decref(one);
    }
    cr_assert_eq(json_number(root, "usage.prompt_tokens"), n_prompt);
    cr_assert_eq(json_number(root, "usage.completion_tokens"), 120);
    json_decref(root);
}

DAEMON_TEST(several, prompts_are_streamed_with_the_index_of_each_and_its_echo)
{
    static char texts[5][512];
    struct events e;
    struct reply r = post(COMPLETE, SEVERAL "\"stream\":true,\"echo\":true}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    events_read(&e, &r);
    for (size_t i = 0; i < e.n; i++)
        strncat(texts[(size_t)json_number(e.data[i], "choices.0.index") % 5],
                json_text(e.data[i], "choices.0.text"), 100);
    for (size_t i = 0; i < 5; i++) {
        json_t *one = alone(prompts[i], 7, ",\"echo\":true");
        cr_assert_str_eq(texts[i], json_text(one, "choices.0.text"));
        json_decref(one);
    }
    events_free(&e);
    reply_free(&r);
}

DAEMON_TEST(several, one_that_does_not_fit_refuses_all_by_name)
{
    expect_words(post(COMPLETE, "{\"prompt\":[\"a\",\"\"]}"), 400, "invalid_request", "at least one token");
    refused(COMPLETE, "{\"prompt\":[\"a\",\"b c d e\"],\"max_tokens\":1022}", "exceed the context of 1024");
    expect_words(post(COMPLETE, "{\"prompt\":[\"a\",\"b\"],\"prompt_logprobs\":1}"), 400, "invalid_request",
                 "prompt_logprobs needs a single prompt (got 2)");
    refused("/infill", "{\"prompt\":[\"a\",\"b\"]}", "must be a string");
    char *body = NULL, *text = malloc(257 * 4 + 1);
    for (int i = 0; i < 257; i++)
        strcpy(text + 4 * i, "\"a\",");
    text[257 * 4 - 1] = 0;
    cr_assert_gt(asprintf(&body, "{\"prompt\":[%s]}", text), 0);
    expect_words(post(COMPLETE, body), 400, "invalid_request", "at most 256 prompts");
    free(body);
    text[256 * 4 - 1] = 0;
    cr_assert_gt(asprintf(&body, "{\"prompt\":[%s],\"n\":2}", text), 0);
    expect_words(post(COMPLETE, body), 400, "invalid_request", "times n, 2, must be at most 256 texts");
    free(body);
    free(text);
}

/* Texts that the engine has not got end with the others. */
DAEMON_TEST(several, a_client_that_leaves_cancels_those_that_wait_too, "--slots", "1", SLOW)
{
    int fd = client_connect(daemon_.port);
    client_request(fd, "POST", COMPLETE, "",
                   "{\"prompt\":[\"a\",\"b\",\"c\",\"d\"],\"max_tokens\":1000,\"ignore_eos\":true}");
    wait_stat("requests.running", 1);
    close(fd);
    wait_stat("requests.cancelled", 1);
    wait_stat("requests.running", 0);
    json_decref(post_ok(COMPLETE, "{\"prompt\":\"a\",\"max_tokens\":2}"));
}

/* [first, text, text, text], each of about 300 tokens but the first. */
static char *long_prompts(const char *first)
{
    char *text = malloc(300 * 6 + 1), *body = NULL;
    for (int i = 0; i < 300; i++)
        memcpy(text + 6 * i, " story", 6);
    text[300 * 6] = 0;
    cr_assert_gt(asprintf(&body,
                          "{\"prompt\":[\"%s\",\"%s\",\"%s\",\"%s\"],\"max_tokens\":400,"
                          "\"ignore_eos\":true}",
                          first, text, text, text),
                 0);
    free(text);
    return body;
}

/* Its first prompt runs; the others wait, and count. */
/* Where the slots are others', one of four prompts waits in the queue for all. */
DAEMON_TEST(several, prompts_do_not_fill_the_queue, "--slots", "4", "--queue-limit", "2", SLOW)
{
#define FOUR "{\"prompt\":[\"a\",\"b\",\"c\",\"d\"],\"max_tokens\":1000,\"ignore_eos\":true}"
    int first = client_connect(daemon_.port), second = client_connect(daemon_.port);
    client_request(first, "POST", COMPLETE, "", FOUR);
    wait_stat("requests.running", 4);
    client_request(second, "POST", COMPLETE, "", FOUR);
    wait_stat("requests.waiting", 1);
    int third = client_connect(daemon_.port);
    client_request(third, "POST", COMPLETE, "", "{\"prompt\":\"a\",\"max_tokens\":1}");
    wait_stat("requests.waiting", 2);
    expect_words(post("/generate", "{\"prompt\":\"a\"}"), 503, "queue_full", "queue_limit is 2");
    close(first);
    struct reply r;
    client_read(third, &r, false);
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
    wait_stat("requests.running", 4); /* the slots that are free now are the second's */
    close(second);
    wait_stat("requests.running", 0);
    close(third);
}

DAEMON_TEST(several, prompts_that_wait_count_in_queue_tokens, "--slots", "1", "--queue-tokens", "1000", SLOW)
{
    char *body = long_prompts("a");
    int fd = client_connect(daemon_.port);
    client_request(fd, "POST", COMPLETE, "", body);
    wait_stat("requests.running", 1);
    expect_words(post(COMPLETE, body), 503, "queue_full", "prompt tokens are waiting");
    close(fd);
    free(body);
}

/* Each has a matcher of its own; the sanitized daemon finds one that is left. */
DAEMON_TEST(several, prompts_with_a_constraint_each_match_it)
{
    json_t *root = post_ok(
        COMPLETE, "{\"prompt\":[\"a\",\"b\",\"c\"],\"n\":2,\"max_tokens\":20,\"regex\":\"[xyz]{3}\"}");
    cr_assert_eq(json_array_size(json_at(root, "choices")), 6);
    for (size_t i = 0; i < 6; i++) {
        const char *text = json_text(json_array_get(json_at(root, "choices"), i), "text");
        cr_assert(strlen(text) == 3 && strspn(text, "xyz") == 3, "%s", text);
    }
    json_decref(root);
}

DAEMON_TEST(several, lists_of_one_are_one_prompt)
{
    json_t *root = post_ok(COMPLETE, "{\"prompt\":[[5,6]],\"max_tokens\":2}");
    cr_assert_eq(json_number(root, "usage.prompt_tokens"), 2);
    json_decref(root);
    refused(COMPLETE, "{\"prompt\":[[[\"a\",\"b\"]]]}", "prompt[0]");
}

/* A first input that waits too long ends the request, and no other input is begun. */
DAEMON_TEST(embed, inputs_that_wait_too_long_are_refused_together, "--slots", "1")
{
    int fd[6];
    for (int i = 0; i < 6; i++) {
        fd[i] = client_connect(daemon_.port);
        client_request(fd[i], "POST", "/generate", "",
                       "{\"prompt\":\"a\",\"max_tokens\":1000,\"ignore_eos\":true}");
    }
    wait_stat("requests.waiting", 5);
    struct reply r = post(EMBED, "{\"input\":[\"a\",\"b\",\"c\"],\"queue_timeout_ms\":20}");
    struct reply shown = get("/stats");
    json_t *stats = reply_json(&shown);
    cr_assert_eq(r.status, 504, "%s", r.body);
    cr_assert_lt(json_number(stats, "requests.completed"), 6);
    json_decref(stats);
    reply_free(&shown);
    reply_free(&r);
    for (int i = 0; i < 6; i++)
        close(fd[i]);
}
