/* Every refusal of POST /generate: status, type, the field and the limit in words. */
#include "integration/harness.h"

static void refused(const char *body, const char *words)
{
    expect_words(post("/generate", body), 400, "invalid_request", words);
}

/* A field beside a good prompt. */
static void field(const char *member, const char *words)
{
    char body[256];
    snprintf(body, sizeof body, "{\"prompt\":\"Once\",%s}", member);
    refused(body, words);
}

DAEMON_TEST(refuse, values_out_of_range_are_named_with_both_limits)
{
    field("\"temperature\":7", "temperature must be between 0 and 2 (got 7)");
    field("\"top_p\":1.5", "top_p must be between 0 and 1 (got 1.5)");
    field("\"top_k\":-1", "top_k must be between 0 and");
    field("\"min_p\":-0.5", "min_p must be between 0 and 1 (got -0.5)");
    field("\"n\":129", "n must be between 1 and 128 (got 129)");
    field("\"logprobs\":21", "logprobs must be between 0 and 20 (got 21)");
    field("\"prompt_logprobs\":21", "prompt_logprobs must be between 0 and 20 (got 21)");
    field("\"max_tokens\":-1", "max_tokens must be between 0 and 1024 (got -1)");
    field("\"max_tokens\":1e12", "max_tokens must be between 0 and 1024 (got 1e+12)");
    field("\"seed\":-1", "seed must be between 0 and 9007199254740991 (got -1)");
    field("\"priority\":101", "priority must be between -100 and 100 (got 101)");
    field("\"presence_penalty\":2.5", "presence_penalty must be between -2 and 2 (got 2.5)");
}

DAEMON_TEST(refuse, wrong_types_are_named)
{
    field("\"temperature\":\"hot\"", "temperature must be a number (got a string)");
    field("\"stream\":1", "stream must be true or false (got 1)");
    field("\"max_tokens\":1.5", "max_tokens must be an integer (got 1.5)");
    field("\"stop\":7", "stop must be a string or an array of strings (got 7)");
    field("\"stop\":[\"a\",7]", "stop must be a string or an array of strings (got 7)");
    field("\"stop\":\"\"", "stop must not contain an empty string");
    field("\"logit_bias\":[]", "logit_bias must be an object");
    field("\"logit_bias\":{\"x\":1}", "logit_bias: \"x\" is not a token id");
    field("\"logit_bias\":{\"4096\":1}", "logit_bias: \"4096\" is not a token id between 0 and 4095");
    field("\"logit_bias\":{\"1\":\"x\"}", "logit_bias[1] must be a number between -100 and 100");
    field("\"stop_token_ids\":[5000]", "stop_token_ids[0] must be between 0 and 4095 (got 5000)");
}

DAEMON_TEST(refuse, a_second_spelling_of_a_token_id_is_no_id)
{
    field("\"logit_bias\":{\"11\":1,\"011\":2}", "logit_bias: \"011\" is not a token id");
    field("\"logit_bias\":{\"00\":2}", "logit_bias: \"00\" is not a token id");
    json_decref(generate("{\"prompt\":\"Once\",\"max_tokens\":1,\"logit_bias\":{\"0\":-1,\"10\":1}}"));
}

DAEMON_TEST(refuse, unknown_fields_are_named)
{
    field("\"temprature\":1", "unknown field \"temprature\" (did you mean \"temperature\"?)");
}

/* A dialect's error names what its client has sent, also where Hearth calls it otherwise. */
DAEMON_TEST(refuse, fields_have_their_dialects_names)
{
#define ASKED "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],"
    static const char *const cases[][3] = {
        {"/completion", "{\"prompt\":\"a\",\"n_predict\":\"x\"}", "n_predict must be an integer"},
        {"/completion", "{\"prompt\":\"a\",\"max_tokens\":\"x\"}", "max_tokens must be an integer"},
        {"/completion", "{\"prompt\":\"a\",\"repeat_penalty\":-4}", "repeat_penalty must be between"},
        {"/completion", "{\"prompt\":\"a\",\"repeat_last_n\":1.5}", "repeat_last_n must be an integer"},
        {"/api/chat", "{" ASKED "\"options\":{\"temperature\":9}}", "options.temperature must be between"},
        {"/api/chat", "{" ASKED "\"options\":{\"repeat_penalty\":-9}}",
         "options.repeat_penalty must be between"},
        {"/api/generate", "{\"prompt\":\"a\",\"options\":{\"stop\":[1]}}", "options.stop must be a string"},
        {"/api/chat", "{" ASKED "\"options\":{\"num_predict\":\"x\"}}", "options.num_predict must be"},
        {"/api/chat", "{" ASKED "\"options\":{\"repeat_last_n\":1.5}}", "options.repeat_last_n must be"},
        {"/api/chat", "{" ASKED "\"options\":{\"seed\":9223372036854775807}}", "(got 9223372036854775807)"},
        {"/api/chat", "{" ASKED "\"format\":{\"type\":5}}", "\"format: "},
        {"/v1/responses", "{\"input\":\"a\",\"max_output_tokens\":\"x\"}",
         "max_output_tokens must be an integer"},
        {"/v1/responses", "{\"input\":\"a\",\"reasoning\":{\"effort\":\"x\"}}",
         "reasoning.effort must be none"},
        {"/v1/responses", "{\"input\":[{\"role\":\"x\",\"content\":\"a\"}]}", "input.role must be system"},
        {"/v1/messages", "{" ASKED "\"max_tokens\":5,\"stop_sequences\":[1]}",
         "stop_sequences must be a string"},
        {"/v1/messages",
         "{" ASKED "\"max_tokens\":5,\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":99999999999}}",
         "thinking.budget_tokens must be between"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct reply r = post(cases[i][0], cases[i][1]);
        cr_assert_eq(r.status, 400, "%s: %s", cases[i][1], r.body);
        cr_assert(strstr(r.body, cases[i][2]), "%s: %s", cases[i][1], r.body);
        reply_free(&r);
    }
}

DAEMON_TEST(refuse, what_another_route_knows_is_told)
{
    field("\"max_completion_tokens\":9", "unknown field \"max_completion_tokens\" (use max_tokens)");
    field("\"messages\":[]", "unknown field \"messages\" (supported by POST /v1/chat/completions)");
    field("\"best_of\":1", "unknown field \"best_of\" (supported by POST /v1/completions)");
    field("\"inputs\":\"a\"", "unknown field \"inputs\" (supported by POST / and POST /generate_stream)");
    expect_words(post("/v1/completions", "{\"prompt\":\"a\",\"messages\":[]}"), 400, "invalid_request",
                 "(supported by POST /v1/chat/completions)");
    expect_words(post("/v1/completions", "{\"prompt\":\"a\",\"stream_options\":{\"messages\":1}}"), 400,
                 "invalid_request", "unknown field \"stream_options.messages\" (known: ");
}

DAEMON_TEST(refuse, a_prompt_must_be_there_and_be_one)
{
    refused("{}", "prompt is missing");
    refused("{\"prompt\":null}", "prompt is missing");
    refused("{\"prompt\":\"\"}", "at least one token");
    refused("{\"prompt\":[]}", "at least one token");
    refused("{\"prompt\":7}", "prompt must be a string or an array of token ids (got 7)");
    refused("{\"prompt\":[1,-1]}", "prompt[1] must be between 0 and 4095 (got -1)");
    refused("{\"prompt\":[1,\"a\"]}", "prompt[1] must be an integer (got a string)");
    refused("{\"prompt\":[\"a\",\"b\"]}", "several prompts");
}

/* A client of a dialect can read it. */
DAEMON_TEST(refuse, an_unknown_route_is_refused_in_the_form_of_its_folder)
{
    static const char *const paths[] = {"/api/pull", "/api/x/y"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct reply r = post(paths[i], "{}");
        cr_assert_eq(r.status, 404, "%d", r.status);
        json_t *root = reply_json(&r);
        cr_assert(strstr(json_text(root, "error"), "no route /api/"), "%s", r.body);
        json_decref(root);
        reply_free(&r);
    }
    expect_words(post("/v1/xyz", "{}"), 404, "not_found", "no route /v1/xyz");
    expect_words(post("/apix", "{}"), 404, "not_found", "no route /apix");
}

DAEMON_TEST(refuse, malformed_json_has_line_and_column)
{
    refused("{\"prompt\":\n\"a\"", "line 2");
    refused("", "empty");
    refused("[]", "object");
    refused("{\"prompt\":\"a\",\"prompt\":\"b\"}", "duplicate");
    refused("{\"prompt\":\"\\u0000\"}", "\\u0000");
    refused("{\"prompt\":\"\\ud800\"}", "surrogate");
    refused("{\"prompt\":\"\xff\"}", "line 1");
}

static json_t *exceeded(const char *body)
{
    struct reply r = post("/generate", body);
    cr_assert_eq(r.status, 400, "%d: %s", r.status, r.body);
    json_t *root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "error.type"), "context_exceeded", "%s", r.body);
    cr_assert_eq(json_number(root, "error.n_ctx"), 1024);
    reply_free(&r);
    return root;
}

DAEMON_TEST(refuse, max_tokens_over_the_context_says_how_long_the_prompt_is)
{
    json_t *root = exceeded("{\"prompt\":\"Once upon a time\",\"max_tokens\":1021}");
    cr_assert_eq(json_number(root, "error.n_prompt_tokens"), 4);
    cr_assert_null(json_object_get(json_at(root, "error"), "estimated"));
    json_decref(root);
}

/* Clients look for these sentences. */
DAEMON_TEST(refuse, a_dialect_says_in_its_own_words_what_does_not_fit)
{
    char *body = long_prompt("once ", 1500, "");
    expect_words(post("/v1/completions", "{\"prompt\":\"Once upon a time\",\"max_tokens\":1021}"), 400,
                 "invalid_request_error",
                 "maximum context length is 1024 tokens. However, you requested 1025 tokens: 4 prompt");
    struct reply r = post("/api/generate", body);
    cr_assert_eq(r.status, 400);
    cr_assert_not_null(
        strstr(r.body, "{\"error\":\"the input length exceeds the context length: the prompt has"), "%s",
        r.body);
    reply_free(&r);
    free(body);
}

DAEMON_TEST(refuse, a_prompt_over_the_context_is_refused_by_count)
{
    char *body = long_prompt("once ", 1500, "");
    json_t *root = exceeded(body);
    cr_assert_gt(json_number(root, "error.n_prompt_tokens"), 1024);
    json_decref(root);
    free(body);
}

DAEMON_TEST(refuse, a_huge_prompt_is_refused_by_size_with_a_lower_bound)
{
    char *body = long_prompt("once upon a time ", 100000, "");
    json_t *root = exceeded(body);
    cr_assert(json_is_true(json_at(root, "error.estimated")));
    cr_assert_gt(json_number(root, "error.n_prompt_tokens"), 1024);
    json_decref(root);
    free(body);
}

static void expect_param(const char *path, const char *body, const char *param, const char *words)
{
    struct reply r = post(path, body);
    json_t *root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "error.param"), param, "%s", r.body);
    json_decref(root);
    cr_assert_eq(r.status, 400);
    cr_assert(strstr(r.body, words), "\"%s\" lacks \"%s\"", r.body, words);
    reply_free(&r);
}

/* Refused by count, and by size. */
DAEMON_TEST(refuse, what_is_too_long_is_named_as_the_route_calls_it)
{
    static const size_t lengths[] = {1500, 100000};
    for (size_t i = 0; i < 2; i++) {
        char *prompt = long_prompt("once ", lengths[i], ""), *chat = malloc(strlen(prompt) + 64);
        expect_param("/generate", prompt, "prompt", "context_exceeded");
        expect_param("/v1/completions", prompt, "prompt", "context_length_exceeded");
        sprintf(chat, "{\"messages\":[{\"role\":\"user\",\"content\":%s]}", strchr(prompt, ':') + 1);
        expect_param("/v1/chat/completions", chat, "messages", "context_length_exceeded");
        free(prompt);
        free(chat);
    }
}

/* {"<name>":[1,1,...]} with n more than one. */
static char *array_of(const char *name, size_t n)
{
    char *body = malloc(2 * n + 64);
    int at = sprintf(body, "{\"%s\":[1", name);
    for (size_t i = 0; i < n; i++) {
        body[at++] = ',';
        body[at++] = '1';
    }
    strcpy(body + at, "]}");
    return body;
}

static char *long_array(const char *name)
{
    return array_of(name, 1 << 20);
}

DAEMON_TEST(refuse, too_many_ids_for_detokenize_are_named_with_the_limit)
{
    static const size_t over[] = {5120, 5121, 5183, 5184, 1 << 20};
    char *body = array_of("tokens", 5119);
    struct reply r = post("/detokenize", body);
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
    free(body);
    for (size_t i = 0; i < sizeof over / sizeof *over; i++) {
        body = array_of("tokens", over[i]);
        expect_param("/detokenize", body, "tokens", "tokens may have at most 5120 ids (n_ctx + 4096)");
        free(body);
    }
}

DAEMON_TEST(refuse, an_array_of_too_many_values_is_refused_before_parsing)
{
    char *body = long_array("stop_token_ids");
    refused(body, "more than 5120 values");
    free(body);
}

DAEMON_TEST(refuse, a_prompt_of_too_many_ids_is_over_the_context)
{
    char *body = long_array("prompt");
    json_t *root = exceeded(body);
    cr_assert(json_is_true(json_at(root, "error.estimated")));
    cr_assert_eq(json_number(root, "error.n_prompt_tokens"), 1025);
    json_decref(root);
    free(body);
}

DAEMON_TEST(refuse, refusals_are_counted_apart_from_failures)
{
    refused("{}", "prompt is missing");
    cr_assert_eq(stat_number("requests.rejected"), 1);
    cr_assert_eq(stat_number("requests.failed"), 0);
}

DAEMON_TEST(refuse, the_server_goes_on_after_all_of_it)
{
    refused("{", "line 1");
    json_decref(generate("{\"prompt\":\"Once\",\"max_tokens\":1}"));
}

DAEMON_TEST(ignore, unknown_fields_pass_when_the_configuration_says_so, "--unknown-fields", "ignore")
{
    json_decref(generate("{\"prompt\":\"Once\",\"max_tokens\":1,\"frobnicate\":{}}"));
}
