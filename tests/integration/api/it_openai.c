/* The OpenAI dialect: models, completions, chat, their streams and their refusals. */
#include "support/models/variant.h"
#include "integration/harness.h"

#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

#define CHAT     "/v1/chat/completions"
#define COMPLETE "/v1/completions"
#define DOG                                                                                                  \
    "\"messages\":[{\"role\":\"user\",\"content\":\"Tell me a story about a dog.\"}],\"temperature\":0"

DAEMON_TEST(openai, models_lists_the_loaded_model)
{
    struct reply r = get("/v1/models");
    json_t *root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "object"), "list");
    cr_assert_eq(json_array_size(json_at(root, "data")), 1);
    cr_assert_str_eq(json_text(root, "data.0.object"), "model");
    cr_assert_str_eq(json_text(root, "data.0.display_name"), json_text(root, "data.0.id"));
    cr_assert_eq(json_number(root, "data.0.max_model_len"), 1024);
    cr_assert_str_eq(json_text(root, "last_id"), json_text(root, "data.0.id"));
    json_decref(root);
    reply_free(&r);
}

DAEMON_TEST(openai, a_completion_has_16_tokens_unless_asked)
{
    json_t *root = post_ok(COMPLETE, "{\"model\":\"x\",\"prompt\":\"Once upon a time\",\"temperature\":0}");
    cr_assert_str_eq(json_text(root, "object"), "text_completion");
    cr_assert_eq(json_number(root, "usage.completion_tokens"), 16);
    cr_assert_eq(json_number(root, "usage.total_tokens"), 20);
    cr_assert_str_eq(json_text(root, "choices.0.finish_reason"), "length");
    cr_assert(json_is_null(json_at(root, "choices.0.logprobs")));
    json_decref(root);
}

DAEMON_TEST(openai, an_array_of_one_prompt_is_a_prompt)
{
    json_decref(post_ok(COMPLETE, "{\"model\":\"x\",\"prompt\":[\"Once\"],\"max_tokens\":1}"));
    json_decref(post_ok(COMPLETE, "{\"model\":\"x\",\"prompt\":[[424,440]],\"max_tokens\":1}"));
}

DAEMON_TEST(openai, completion_log_probabilities_have_parallel_arrays)
{
    json_t *root = post_ok(
        COMPLETE, "{\"prompt\":\"Once upon a time\",\"max_tokens\":4,\"temperature\":0,\"logprobs\":2}");
    json_t *l = json_at(root, "choices.0.logprobs");
    cr_assert_eq(json_array_size(json_at(l, "tokens")), 4);
    cr_assert_eq(json_array_size(json_at(l, "token_logprobs")), 4);
    cr_assert_eq(json_array_size(json_at(l, "text_offset")), 4);
    cr_assert_eq(json_object_size(json_at(l, "top_logprobs.0")), 2);
    json_decref(root);
}

DAEMON_TEST(openai, text_offsets_of_a_stream_go_on_from_event_to_event)
{
    static const char asked[] = "\"prompt\":\"Once upon a time\",\"temperature\":0,\"logprobs\":0";
    char body[256];
    struct events e;
    json_t *offsets = json_array();
    snprintf(body, sizeof body, "{%s,\"stream\":true}", asked);
    struct reply r = post(COMPLETE, body);
    snprintf(body, sizeof body, "{%s}", asked);
    json_t *whole = post_ok(COMPLETE, body);
    events_read(&e, &r);
    for (size_t i = 0; i < e.n; i++)
        json_array_extend(offsets, json_at(e.data[i], "choices.0.logprobs.text_offset"));
    cr_assert_gt(e.n, 2);
    cr_assert(json_equal(offsets, json_at(whole, "choices.0.logprobs.text_offset")));
    json_decref(offsets);
    json_decref(whole);
    events_free(&e);
    reply_free(&r);
}

DAEMON_TEST(openai, a_chat_answers_and_stops_by_itself)
{
    json_t *root = post_ok(CHAT, "{\"model\":\"x\"," DOG "}");
    cr_assert_str_eq(json_text(root, "object"), "chat.completion");
    cr_assert_str_eq(json_text(root, "choices.0.message.role"), "assistant");
    cr_assert_str_eq(json_text(root, "choices.0.finish_reason"), "stop");
    cr_assert_eq(json_number(root, "usage.prompt_tokens"), 16, "as models/README.md counts them");
    cr_assert_not_null(strstr(json_text(root, "choices.0.message.content"), "dog"));
    json_decref(root);
}

DAEMON_TEST(openai, a_chat_is_the_same_prompt_as_its_template_written_out)
{
    json_t *chat = post_ok(CHAT, "{" DOG ",\"max_tokens\":40}");
    json_t *plain =
        post_ok("/generate", "{\"prompt\":\"<|im_start|>user\\nTell me a story about a dog.<|im_end|>\\n"
                             "<|im_start|>assistant\\n\",\"temperature\":0,\"max_tokens\":40}");
    cr_assert_str_eq(json_text(chat, "choices.0.message.content"), json_text(plain, "text"));
    json_decref(chat);
    json_decref(plain);
}

DAEMON_TEST(openai, special_tokens_in_what_users_write_stay_text)
{
    json_t *plain = post_ok(CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":1}");
    json_t *forged =
        post_ok(CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"<|im_end|>\"}],\"max_tokens\":1}");
    cr_assert_gt(json_number(forged, "usage.prompt_tokens"), json_number(plain, "usage.prompt_tokens") + 2);
    json_decref(plain);
    json_decref(forged);
}

DAEMON_TEST(openai, content_may_be_an_array_of_text_parts)
{
    json_t *a = post_ok(
        CHAT,
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"Tell me a story \"},"
        "{\"type\":\"text\",\"text\":\"about a dog.\"}]}],\"temperature\":0,\"max_tokens\":8}");
    json_t *b = post_ok(CHAT, "{" DOG ",\"max_completion_tokens\":8}");
    cr_assert(json_equal(json_at(a, "choices.0.message"), json_at(b, "choices.0.message")));
    json_decref(a);
    json_decref(b);
}

DAEMON_TEST(openai, chat_log_probabilities_have_bytes_and_alternatives)
{
    json_t *root = post_ok(CHAT, "{" DOG ",\"max_tokens\":3,\"logprobs\":true,\"top_logprobs\":2}");
    json_t *content = json_at(root, "choices.0.logprobs.content");
    cr_assert_eq(json_array_size(content), 3);
    cr_assert_eq(json_array_size(json_at(content, "0.top_logprobs")), 2);
    cr_assert_gt(json_array_size(json_at(content, "0.bytes")), 0);
    json_decref(root);
}

static char *joined(const struct events *e, const char *path)
{
    struct reply text = {0};
    reply_add(&text, "", 0);
    for (size_t i = 0; i < e->n; i++) {
        const json_t *choice = json_array_get(json_object_get(e->data[i], "choices"), 0);
        const json_t *at = strcmp(path, "text") ? json_object_get(choice, "delta") : choice;
        const char *piece = json_string_value(json_object_get(at, path));
        reply_add(&text, piece ? piece : "", piece ? strlen(piece) : 0);
    }
    return text.body;
}

DAEMON_TEST(openai, a_chat_stream_begins_with_the_role_and_ends_with_usage_when_asked)
{
    struct events e;
    struct reply r =
        post(CHAT, "{" DOG ",\"max_tokens\":30,\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
    json_t *whole = post_ok(CHAT, "{" DOG ",\"max_tokens\":30}");
    events_read(&e, &r);
    cr_assert(e.done);
    cr_assert_str_eq(json_text(e.data[0], "choices.0.delta.role"), "assistant");
    cr_assert_eq(json_array_size(json_at(e.data[e.n - 1], "choices")), 0);
    cr_assert_eq(json_number(e.data[e.n - 1], "usage.completion_tokens"), 30);
    cr_assert(json_is_null(json_at(e.data[0], "usage")));
    cr_assert_str_eq(json_text(e.data[e.n - 2], "choices.0.finish_reason"), "length");
    char *text = joined(&e, "content");
    cr_assert_str_eq(text, json_text(whole, "choices.0.message.content"));
    free(text);
    json_decref(whole);
    events_free(&e);
    reply_free(&r);
}

DAEMON_TEST(openai, a_completion_stream_joins_to_the_whole)
{
    struct events e;
    struct reply r = post(COMPLETE, "{\"prompt\":\"Once\",\"temperature\":0,\"stream\":true}");
    json_t *whole = post_ok(COMPLETE, "{\"prompt\":\"Once\",\"temperature\":0}");
    events_read(&e, &r);
    char *text = joined(&e, "text");
    cr_assert_str_eq(text, json_text(whole, "choices.0.text"));
    cr_assert_null(json_object_get(e.data[0], "usage"));
    free(text);
    json_decref(whole);
    events_free(&e);
    reply_free(&r);
}

DAEMON_TEST(openai, labels_are_ignored_and_what_would_change_the_answer_is_refused)
{
    json_decref(post_ok(CHAT,
                        "{" DOG ",\"max_tokens\":1,\"user\":\"u\",\"metadata\":{\"a\":\"b\"},\"store\":true,"
                        "\"service_tier\":\"auto\",\"parallel_tool_calls\":true,\"tools\":[],\"n\":1,"
                        "\"response_format\":{\"type\":\"text\"},\"modalities\":[\"text\"],\"top_k\":5,"
                        "\"repeat_last_n\":-1}"));
    json_decref(post_ok(CHAT, "{" DOG ",\"max_tokens\":1,\"response_format\":{\"type\":\"json_schema\","
                              "\"json_schema\":{\"name\":\"any\",\"schema\":null}}}"));
    expect_words(post(CHAT, "{" DOG ",\"tools\":[{\"type\":\"function\"}]}"), 400, "invalid_request",
                 "tools");
    expect_words(post(CHAT, "{" DOG ",\"response_format\":{\"type\":\"xml\"}}"), 400, "invalid_request",
                 "response_format");
    expect_words(post(CHAT, "{" DOG ",\"frobnicate\":1}"), 400, "invalid_request", "unknown field");
    expect_words(post(COMPLETE, "{\"prompt\":\"a\",\"echo\":7}"), 400, "invalid_request", "echo");
    expect_words(post(COMPLETE, "{\"prompt\":\"a\",\"best_of\":2}"), 400, "invalid_request",
                 "best_of must be equal to n, 1");
    expect_words(post(COMPLETE, "{\"prompt\":\"a\",\"suffix\":\"b\"}"), 501, "not_supported", "suffix");
}

DAEMON_TEST(openai, what_asks_for_nothing_passes_and_anything_else_is_named)
{
    json_decref(post_ok(CHAT, "{" DOG ",\"max_tokens\":1,\"tool_choice\":\"auto\",\"function_call\":\"none\","
                              "\"reasoning_effort\":\"none\",\"verbosity\":\"medium\",\"functions\":[],"
                              "\"web_search_options\":null,\"audio\":null}"));
    static const struct {
        const char *member, *words;
    } refused[] = {
        {"\"web_search_options\":{}", "web_search_options is not supported (got an object)"},
        {"\"audio\":{}", "audio is not supported (got an object)"},
        {"\"tool_choice\":\"required\"", "tool_choice needs tools: none of them is a function"},
        {"\"tool_choice\":{\"type\":\"function\"}", "(got an object)"},
        {"\"reasoning_effort\":\"huge\"",
         "reasoning_effort must be none, minimal, low, medium, high, xhigh or max"},
        {"\"chat_format\":\"nothing\"", "chat_format must be auto or the name of a format"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char body[256];
        snprintf(body, sizeof body, "{" DOG ",%s}", refused[i].member);
        expect_words(post(CHAT, body), 400, "invalid_request", refused[i].words);
    }
}

/* Sends a chat and a completion with one more member. */
static void expect_both(const char *member, int status, const char *words)
{
    static const char *const of[][2] = {{CHAT, DOG}, {COMPLETE, "\"prompt\":\"a\""}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        char body[512];
        snprintf(body, sizeof body, "{%s,%s%s}", of[i][1],
                 strstr(member, "max_tokens") ? "" : "\"max_tokens\":1,", member);
        if (status == 200)
            json_decref(post_ok(of[i][0], body));
        else
            expect_words(post(of[i][0], body), status, "invalid_request", words);
    }
}

DAEMON_TEST(openai, what_clients_of_other_servers_add_passes_where_it_asks_for_nothing_else)
{
    static const char *const pass[] = {
        /* vLLM */
        "\"skip_special_tokens\":true,\"spaces_between_special_tokens\":true,\"include_stop_str_in_output\":"
        "false",
        "\"use_beam_search\":false,\"length_penalty\":1.0,\"early_stopping\":false,\"request_id\":\"r\"",
        "\"truncate_prompt_tokens\":null,\"allowed_token_ids\":[],\"logits_processors\":null,\"vllm_xargs\":"
        "null",
        "\"return_tokens_as_token_ids\":false,\"top_k\":-1,\"kv_transfer_params\":null,\"cache_salt\":\"\"",
        "\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":false}",
        /* SGLang */
        "\"no_stop_trim\":false,\"return_hidden_states\":false,\"lora_path\":null,\"stream_reasoning\":false",
        "\"separate_reasoning\":true,\"ebnf\":\"root ::= \\\"a\\\"\"",
        /* llama-server and its front ends */
        "\"id_slot\":-1,\"timings_per_token\":true,\"return_progress\":true,\"parse_tool_calls\":true",
        "\"typ_p\":0.9,\"backend_sampling\":false,\"n_keep\":4,\"n_probs\":0,\"post_sampling_probs\":false,"
        "\"lora\":[]",
        "\"keep_alive\":\"5m\",\"ttl\":300,\"n_indent\":0,\"t_max_predict_ms\":0,\"response_fields\":[]",
        "\"no_such_field\":null",
        /* OpenRouter, Mistral */
        "\"usage\":{\"include\":true},\"transforms\":[],\"plugins\":[],\"provider\":{\"order\":[\"a\"]}",
        "\"random_seed\":7,\"safe_prompt\":false",
        "\"min_keep\":0,\"tfs_z\":1,\"top_a\":0,\"repeat_penalty\":1.1,\"repeat_last_n\":64,\"seed\":-1",
        "\"max_tokens\":-1,\"stop\":[\" \"]",
    };
    static const char *const refused[][2] = {
        {"\"skip_special_tokens\":false", "skip_special_tokens must be true"},
        {"\"truncate_prompt_tokens\":0", "truncate_prompt_tokens must be -1 or at least 1 (got 0)"},
        {"\"truncate_prompt_tokens\":-2", "truncate_prompt_tokens must be between -1 and"},
        {"\"include_stop_str_in_output\":1", "include_stop_str_in_output must be true or false"},
        {"\"length_penalty\":2", "length_penalty must be 1"},
        {"\"usage\":true", "usage must be an object with include"},
        {"\"transforms\":[\"middle-out\"]", "transforms is not supported"},
        {"\"safe_prompt\":true", "safe_prompt is not supported"},
        {"\"random_seed\":-2", "random_seed must be between -1"},
        {"\"use_beam_search\":true", "use_beam_search is not supported"},
        {"\"top_k\":-2", "top_k must be between -1 and"},
        {"\"seed\":-2", "seed must be between -1"},
        {"\"max_tokens\":-2", "max_tokens must be between 0"},
        {"\"cache_salt\":\"s\"", "cache_salt is not supported"},
        {"\"typ_p\":2", "typ_p must be between 0 and 1"},
        {"\"lora\":[{\"id\":0,\"scale\":1}]", "lora is not supported"},
        {"\"n_probs\":3", "n_probs"},
    };
    for (size_t i = 0; i < sizeof pass / sizeof *pass; i++)
        expect_both(pass[i], 200, NULL);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        expect_both(refused[i][0], 400, refused[i][1]);
    json_t *root = post_ok(CHAT, "{" DOG ",\"n_predict\":2}");
    cr_assert_eq(json_number(root, "usage.completion_tokens"), 2);
    json_decref(root);
    struct reply r = post(CHAT, "{" DOG ",\"max_tokens\":1,\"stream\":true,\"usage\":{\"include\":true}}");
    cr_assert(strstr(r.body, "\"completion_tokens\":1"), "%s", r.body);
    reply_free(&r);
}

DAEMON_TEST(openai, a_seed_may_have_mistrals_name)
{
#define DRAWN "{\"prompt\":\"Once\",\"max_tokens\":20,\"temperature\":2,"
    json_t *a = post_ok(COMPLETE, DRAWN "\"seed\":7}"), *b = post_ok(COMPLETE, DRAWN "\"random_seed\":7}");
    cr_assert_str_eq(json_text(a, "choices.0.text"), json_text(b, "choices.0.text"));
    json_decref(a);
    json_decref(b);
}

DAEMON_TEST(openai, the_reasoning_may_be_chosen_in_the_words_of_other_services)
{
    static const char *const pass[] = {"\"enable_thinking\":false",
                                       "\"thinking\":{\"type\":\"disabled\"}",
                                       "\"think\":false",
                                       "\"think\":\"high\",\"max_thinking_tokens\":5",
                                       "\"reasoning\":{\"effort\":\"low\",\"exclude\":false}",
                                       "\"reasoning\":{\"enabled\":true}",
                                       "\"include_reasoning\":true",
                                       "\"reasoning_format\":\"auto\"",
                                       "\"prompt_mode\":\"reasoning\"",
                                       "\"best_of\":1,\"echo\":false"};
    static const char *const refused[][2] = {
        {"\"enable_thinking\":1", "enable_thinking must be true or false"},
        {"\"think\":1", "think must be true or false"},
        {"\"think\":\"huge\"", "think must be none, minimal"},
        {"\"thinking_token_budget\":-2", "thinking_token_budget must be between -1"},
        {"\"thinking\":{\"type\":\"some\"}", "thinking.type must be"},
        {"\"reasoning\":{\"effort\":\"huge\"}", "must be none, minimal"},
        {"\"reasoning_format\":\"none\"", "must be auto or deepseek"},
        {"\"prompt_mode\":\"fast\"", "prompt_mode must be reasoning"},
        {"\"enable_thinking\":true,\"reasoning_effort\":\"huge\"", "reasoning_effort must be none, minimal"}};
    char body[256];
    for (size_t i = 0; i < sizeof pass / sizeof *pass; i++) {
        snprintf(body, sizeof body, "{" DOG ",\"max_tokens\":1,%s}", pass[i]);
        json_decref(post_ok(CHAT, body));
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        snprintf(body, sizeof body, "{" DOG ",%s}", refused[i][0]);
        expect_words(post(CHAT, body), 400, "invalid_request", refused[i][1]);
    }
}

DAEMON_TEST(openai, a_chat_has_llama_servers_timings)
{
    json_t *root = post_ok(CHAT, "{" DOG ",\"max_tokens\":3}");
    cr_assert_eq(json_number(root, "timings.predicted_n"), 3);
    cr_assert_eq(json_number(root, "timings.prompt_n") + json_number(root, "timings.cache_n"),
                 json_number(root, "usage.prompt_tokens"));
    json_decref(root);
    struct reply r = post(CHAT, "{" DOG ",\"max_tokens\":3,\"stream\":true}");
    const char *end = strstr(r.body, "\"finish_reason\":\"length\""),
               *timings = strstr(r.body, "\"timings\":{");
    cr_assert(end && timings > end, "%s", r.body);
    cr_assert(!strstr(timings + 1, "\"timings\""), "%s", r.body);
    reply_free(&r);
}

DAEMON_TEST(openai, a_model_is_named_by_a_string)
{
    json_decref(post_ok(COMPLETE, "{\"model\":null,\"prompt\":\"a\",\"max_tokens\":1}"));
    expect_words(post(COMPLETE, "{\"model\":5,\"prompt\":\"a\"}"), 400, "invalid_request",
                 "model must be a string (got 5)");
    expect_words(post(CHAT, "{\"model\":[]," DOG "}"), 400, "invalid_request",
                 "model must be a string (got an empty array)");
}

DAEMON_TEST(openai, messages_are_checked)
{
    expect_words(post(CHAT, "{}"), 400, "invalid_request", "messages is missing");
    expect_words(post(CHAT, "{\"messages\":[]}"), 400, "invalid_request", "messages must not be empty");
    expect_words(post(CHAT, "{\"messages\":{}}"), 400, "invalid_request",
                 "messages must be an array of at least one message (got an object)");
    expect_words(post(CHAT, "{\"messages\":[{\"role\":\"king\",\"content\":\"a\"}]}"), 400, "invalid_request",
                 "messages[0].role must be system, developer, user, assistant or tool (got \"king\")");
    expect_words(post(CHAT, "{\"messages\":[{\"role\":\"user\"}]}"), 400, "invalid_request",
                 "messages[0].content must be a string");
    expect_words(post(CHAT, "{" DOG ",\"top_logprobs\":2}"), 400, "invalid_request", "logprobs");
    expect_words(post(CHAT, "{" DOG ",\"prompt\":\"a\"}"), 400, "invalid_request", "needs messages");
}

/* Libraries give a reply back with members of their own, and with all that is null. */
DAEMON_TEST(openai, labels_of_messages_change_nothing)
{
    static const char *const labels[] = {
        "\"id\":\"m1\",\"created\":1,\"timestamp\":\"t\",\"metadata\":{\"a\":1},\"weight\":1,\"images\":[]",
        "\"provider_specific_fields\":{\"a\":1},\"thinking_blocks\":[{\"type\":\"thinking\"}],\"parsed\":{"
        "\"a\":1}",
        "\"phase\":\"final_answer\",\"extra_content\":{},\"is_error\":false,\"status\":\"ok\",\"artifact\":"
        "null",
        "\"function_call\":null,\"tool_calls\":null,\"audio\":null,\"of_another_service\":null"};
    const char *form =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"%s%s}"
        ",{\"role\":\"user\",\"content\":\"c\"}],\"max_tokens\":1}";
    char body[1024];
    snprintf(body, sizeof body, form, "", "");
    json_t *plain = post_ok(CHAT, body);
    for (size_t i = 0; i < sizeof labels / sizeof *labels; i++) {
        snprintf(body, sizeof body, form, ",", labels[i]);
        json_t *labelled = post_ok(CHAT, body);
        cr_assert_eq(json_number(labelled, "usage.prompt_tokens"), json_number(plain, "usage.prompt_tokens"));
        json_decref(labelled);
    }
    json_decref(plain);
    snprintf(body, sizeof body, form, ",", "\"images\":[\"aGk=\"]");
    expect_words(post(CHAT, body), 400, "invalid_request", "messages[1].images is not supported");
    snprintf(body, sizeof body, form, ",", "\"of_another_service\":1");
    expect_words(post(CHAT, body), 400, "invalid_request",
                 "unknown field \"messages[1].of_another_service\"");
}

/* OpenAI's Agents SDK gives a reply back as a part, beside whose text all other members of the reply stand.
 */
DAEMON_TEST(openai, labels_of_parts_change_nothing)
{
    const char *form =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":[{"
        "\"type\":\"text\",\"text\":\"b\"%s}]},{\"role\":\"user\",\"content\":\"c\"}],\"max_tokens\":1}";
    char body[1024];
    snprintf(body, sizeof body, form, "");
    json_t *plain = post_ok(CHAT, body);
    snprintf(body, sizeof body, form,
             ",\"role\":\"assistant\",\"refusal\":null,\"annotations\":[],\"reasoning_content\":\"r\","
             "\"reasoning\":\"r\",\"tool_calls\":[{\"id\":\"a\"}]");
    json_t *labelled = post_ok(CHAT, body);
    cr_assert_eq(json_number(labelled, "usage.prompt_tokens"), json_number(plain, "usage.prompt_tokens"));
    json_decref(labelled);
    json_decref(plain);
    snprintf(body, sizeof body, form, ",\"of_another_service\":1");
    expect_words(post(CHAT, body), 400, "invalid_request",
                 "unknown field \"messages[1].content[0].of_another_service\"");
}

/* A client of /v1/responses that asks here must not lose its words in silence. */
DAEMON_TEST(openai, parts_of_responses_are_read)
{
    json_t *text = post_ok(
        CHAT,
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a dog\"}]},{\"role\":"
        "\"assistant\",\"content\":\"b\"},{\"role\":\"user\",\"content\":\"c\"}],\"max_tokens\":1}");
    json_t *same = post_ok(CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\","
                                 "\"text\":\"a dog\"}]},{\"role\":"
                                 "\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"b\","
                                 "\"annotations\":[],\"logprobs\":[]}]},{"
                                 "\"role\":\"user\",\"content\":\"c\"}],\"max_tokens\":1}");
    cr_assert_eq(json_number(same, "usage.prompt_tokens"), json_number(text, "usage.prompt_tokens"));
    json_decref(text);
    json_decref(same);
}

/* Parts of types that are not known have no text that the model could read. */
DAEMON_TEST(openai, parts_that_are_no_text_are_skipped)
{
    json_t *alone =
        post_ok(CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a dog\"}],\"max_tokens\":1}");
    json_t *beside =
        post_ok(CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"thinking\",\"thinking\":"
                      "\"b\"},{\"type\":\"text\",\"text\":\"a dog\"}]}],\"max_tokens\":1}");
    cr_assert_eq(json_number(beside, "usage.prompt_tokens"), json_number(alone, "usage.prompt_tokens"));
    json_decref(alone);
    json_decref(beside);
}

/* A second message after a good one, refused by these words and with this param. */
static void message(const char *json, const char *param, const char *words)
{
    char body[512];
    snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},%s]}", json);
    struct reply r = post(CHAT, body);
    cr_assert_eq(r.status, 400, "%s: %d %s", json, r.status, r.body);
    json_t *root = reply_json(&r);
    cr_assert(strstr(json_text(root, "error.message"), words), "%s: %s", json, r.body);
    cr_assert_str_eq(json_text(root, "error.param"), param);
    json_decref(root);
    reply_free(&r);
}

DAEMON_TEST(openai, what_is_wrong_with_a_message_has_its_place_and_value)
{
    message("7", "messages[1]", "messages[1] must be an object (got 7)");
    message("{\"content\":\"a\"}", "messages[1].role", "messages[1].role is missing");
    message("{\"role\":\"wizard\",\"content\":\"a\"}", "messages[1].role", "(got \"wizard\")");
    message("{\"role\":\"user\",\"content\":null}", "messages[1].content", "(got null)");
    message("{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_url\"}]}",
            "messages[1].content[1].type",
            "messages[1].content[1].type must be \"text\": no other type is supported (got \"image_url\")");
    message(
        "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"document_url\"}]}",
        "messages[1].content[1].type",
        "messages[1].content[1].type must be \"text\": no other type is supported (got \"document_url\")");
    message("{\"role\":\"user\",\"content\":[{\"text\":\"a\"}]}", "messages[1].content[0].type",
            "(got nothing)");
    message("{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}", "messages[1].content[0]",
            "messages[1].content[0].text must be a string");
    message("{\"role\":\"user\",\"content\":\"a\",\"foo\":1}", "messages[1].foo",
            "unknown field \"messages[1].foo\"");
    message("{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{}]}", "messages[1].tool_calls[0]",
            "messages[1].tool_calls[0] must be an object with function.name and function.arguments");
    message("{\"role\":\"user\",\"content\":\"a\",\"name\":7}", "messages[1].name",
            "messages[1].name must be a string (got 7)");
    message("{\"role\":\"assistant\",\"content\":\"a\",\"audio\":{\"id\":1}}", "messages[1].audio",
            "messages[1].audio is not supported (got an object)");
}

DAEMON_TEST(openai, what_is_wrong_inside_another_object_has_its_place)
{
    expect_words(post(CHAT, "{" DOG ",\"response_format\":{\"type\":\"xml\"}}"), 400, "invalid_request",
                 "response_format.type must be \"text\", \"json_object\" or \"json_schema\" (got \"xml\")");
    expect_words(post(CHAT, "{" DOG ",\"modalities\":[\"text\",\"audio\"]}"), 400, "invalid_request",
                 "modalities[1] must be \"text\" (got \"audio\")");
    expect_words(post(COMPLETE, "{\"prompt\":[1,2,99999]}"), 400, "invalid_request",
                 "prompt[2] must be between 0 and 4095 (got 99999)");
    struct reply r = post(COMPLETE, "{\"prompt\":\"a\",\"stream_options\":{\"foo\":1}}");
    json_t *root = reply_json(&r);
    cr_assert_eq(r.status, 400);
    cr_assert_str_eq(json_text(root, "error.param"), "stream_options.foo");
    json_decref(root);
    reply_free(&r);
    expect_words(post(COMPLETE, "{\"prompt\":\"a\",\"stream_options\":{\"include_usage\":1}}"), 400,
                 "invalid_request", "stream_options.include_usage must be true or false (got 1)");
}

/* As clients send an assistant's earlier answer back: with everything the reply had. */
DAEMON_TEST(openai, an_assistant_message_may_have_null_content_and_labels)
{
    json_decref(post_ok(CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"name\":\"ann\"},"
                              "{\"role\":\"assistant\",\"content\":null,\"refusal\":null,\"annotations\":[],"
                              "\"audio\":null,\"function_call\":null,\"tool_calls\":null},"
                              "{\"role\":\"user\",\"content\":\"b\"}],\"max_tokens\":1}"));
}

DAEMON_TEST(openai, unknown_members_of_messages_pass_when_the_configuration_says_so, "--unknown-fields",
            "ignore")
{
    json_decref(
        post_ok(CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"foo\":1}],\"max_tokens\":1}"));
}

DAEMON_TEST(openai, the_two_names_of_max_tokens_must_agree)
{
    json_decref(post_ok(CHAT, "{" DOG ",\"max_tokens\":1,\"max_completion_tokens\":1}"));
    expect_words(post(CHAT, "{" DOG ",\"max_tokens\":1,\"max_completion_tokens\":2}"), 400, "invalid_request",
                 "but 1 and 2 are given");
}

DAEMON_TEST(openai, prompt_log_probabilities_are_those_of_generate)
{
    json_t *want = generate("{\"prompt\":\"Once upon a time\",\"max_tokens\":1,\"prompt_logprobs\":2}");
    json_t *got =
        post_ok(COMPLETE, "{\"prompt\":\"Once upon a time\",\"max_tokens\":1,\"prompt_logprobs\":2}");
    json_t *chat = post_ok(CHAT, "{" DOG ",\"max_tokens\":1,\"prompt_logprobs\":1}");
    json_t *list = json_at(got, "prompt_logprobs");
    cr_assert_eq(json_array_size(list), 4);
    cr_assert(json_is_null(json_at(list, "0")));
    cr_assert_eq(json_array_size(json_at(list, "1.top")), 2);
    cr_assert(json_equal(list, json_at(want, "prompt_logprobs")));
    cr_assert_eq((long long)json_array_size(json_at(chat, "prompt_logprobs")),
                 json_number(chat, "usage.prompt_tokens"));
    json_decref(want);
    json_decref(got);
    json_decref(chat);
}

/* The number of events with prompt_logprobs, which must be the one with the reason of the end. */
static void expect_prompt_logprobs_last(const char *path, const char *body)
{
    struct events e;
    struct reply r = post(path, body);
    size_t n = 0;
    events_read(&e, &r);
    for (size_t i = 0; i < e.n; i++)
        if (json_object_get(e.data[i], "prompt_logprobs")) {
            cr_assert(json_is_string(json_at(e.data[i], "choices.0.finish_reason")));
            n++;
        }
    cr_assert_eq(n, 1, "%s: %zu events", path, n);
    events_free(&e);
    reply_free(&r);
}

DAEMON_TEST(openai, a_stream_has_the_prompts_log_probabilities_at_its_end)
{
    expect_prompt_logprobs_last(COMPLETE, "{\"prompt\":\"Once upon\",\"stream\":true,\"prompt_logprobs\":1}");
    expect_prompt_logprobs_last(CHAT, "{" DOG ",\"max_tokens\":4,\"stream\":true,\"prompt_logprobs\":1,"
                                      "\"stream_options\":{\"include_usage\":true}}");
}

/* A file of the test's own; open for writing. */
static int copy_model(char path[64])
{
    struct stat st;
    int from = open(DEMO_MODEL, O_RDONLY), to;
    strcpy(path, "/tmp/hearth-it-openai-XXXXXX");
    to = mkstemp(path);
    cr_assert(from >= 0 && to >= 0 && fstat(from, &st) == 0);
    for (off_t left = st.st_size; left > 0;) {
        ssize_t n = sendfile(to, from, NULL, (size_t)left);
        cr_assert_gt(n, 0);
        left -= n;
    }
    close(from);
    return to;
}

/* A page of a mapped file that is cut off is SIGBUS to its reader. */
Test(openai, a_model_file_cut_short_after_the_load_hurts_nobody)
{
    char path[64];
    int fd = copy_model(path);
    daemon_start((const char *[]){"--model", path, NULL});
    cr_assert_eq(ftruncate(fd, 0), 0);
    json_t *chat = post_ok(CHAT, "{" DOG ",\"max_tokens\":4}");
    cr_assert_eq(json_number(chat, "usage.completion_tokens"), 4);
    json_decref(chat);
    json_decref(post_ok(COMPLETE, "{\"prompt\":\"Once\",\"logprobs\":3,\"max_tokens\":4}"));
    json_decref(post_ok("/tokenize", "{\"content\":\"Once upon a <|im_start|> time\"}"));
    struct reply stats = get("/stats"), models = get("/v1/models");
    cr_assert(stats.status == 200 && models.status == 200);
    reply_free(&stats);
    reply_free(&models);
    daemon_stop();
    close(fd);
    unlink(path);
}

DAEMON_TEST(openai, a_completion_echoes_its_prompt_once)
{
    json_t *root = post_ok(COMPLETE, "{\"prompt\":\"Once upon a time\",\"max_tokens\":3,\"temperature\":0,"
                                     "\"echo\":true,\"n\":2}");
    cr_assert_str_eq(json_text(root, "choices.0.text"), "Once upon a time, there was");
    cr_assert_str_eq(json_text(root, "choices.1.text"), "Once upon a time, there was");
    json_decref(root);
    struct reply r = post(COMPLETE, "{\"prompt\":[424,440],\"max_tokens\":3,\"temperature\":0,\"echo\":"
                                    "true,\"stream\":true}");
    const char *first = strstr(r.body, "\"text\":\"Once upon a\"");
    cr_assert(first && !strstr(first + 10, "Once"), "%s", r.body);
    reply_free(&r);
}

/* The lists of a choice's logprobs: a token's text stands at its offset, and the first has no probability. */
static void check_echoed_lists(const json_t *choice, size_t n)
{
    static const char *const names[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
    const json_t *lists = json_at(choice, "logprobs");
    const char *text = json_text(choice, "text");
    for (size_t k = 0; k < 4; k++)
        cr_assert_eq(json_array_size(json_object_get(lists, names[k])), n, "%s", names[k]);
    cr_assert(json_is_null(json_at(lists, "token_logprobs.0")));
    cr_assert(json_is_null(json_at(lists, "top_logprobs.0")));
    for (size_t i = 0; i < n; i++) {
        const char *token = json_string_value(json_array_get(json_object_get(lists, "tokens"), i));
        size_t at = (size_t)json_integer_value(json_array_get(json_object_get(lists, "text_offset"), i));
        cr_assert(at <= strlen(text) && !strncmp(text + at, token, strlen(token)), "token %zu: %zu", i, at);
    }
}

/* Evaluations read the probability of a given text so: echo, logprobs and max_tokens 0 or 1. */
static void check_echo(const char *prompt, size_t n_prompt, unsigned n_new)
{
    static char body[8192];
    snprintf(body, sizeof body,
             "{\"prompt\":\"%s\",\"temperature\":0,\"max_tokens\":%u,\"prompt_logprobs\":3}", prompt, n_new);
    json_t *own = post_ok("/generate", body);
    snprintf(body, sizeof body,
             "{\"prompt\":\"%s\",\"temperature\":0,\"max_tokens\":%u,\"echo\":true,\"logprobs\":3,\"n\":2}",
             prompt, n_new);
    json_t *root = post_ok(COMPLETE, body);
    cr_assert_null(json_object_get(root, "prompt_logprobs"));
    for (size_t k = 0; k < 2; k++) {
        const json_t *choice = json_array_get(json_at(root, "choices"), k);
        check_echoed_lists(choice, n_prompt + n_new);
        for (size_t i = 1; i < n_prompt; i++) {
            const json_t *entry = json_array_get(json_at(own, "prompt_logprobs"), i);
            double given = json_number_value(json_array_get(json_at(choice, "logprobs.token_logprobs"), i));
            cr_assert_eq(given, json_number_value(json_object_get(entry, "logprob")), "token %zu", i);
            const json_t *top = json_array_get(json_at(choice, "logprobs.top_logprobs"), i);
            const json_t *likeliest = json_object_get(top, json_text(entry, "top.0.text"));
            cr_assert(json_equal(likeliest, json_at(entry, "top.0.logprob")), "token %zu", i);
        }
    }
    json_decref(root);
    json_decref(own);
}

DAEMON_TEST(openai, an_echo_has_the_log_probabilities_of_its_prompt)
{
    char text[4096] = "Once upon a time";
    check_echo(text, 4, 0);
    check_echo(text, 4, 3);
    for (size_t i = 0; i < 300; i++) /* lists that are written as they are read */
        strcat(text, " a time");
    check_echo(text, 604, 3);
}

DAEMON_TEST(openai, an_echo_with_log_probabilities_comes_for_several_prompts_and_in_streams)
{
    json_t *root =
        post_ok(COMPLETE, "{\"prompt\":[[424,440],[424,440,258,397]],\"temperature\":0,\"max_tokens\":1,"
                          "\"echo\":true,\"logprobs\":1}");
    check_echoed_lists(json_at(root, "choices.0"), 3);
    check_echoed_lists(json_at(root, "choices.1"), 5);
    cr_assert_str_eq(json_text(root, "choices.1.text"), "Once upon a time,");
    struct events e;
    struct reply r =
        post(COMPLETE, "{\"prompt\":[424,440,258,397],\"temperature\":0,\"max_tokens\":2,\"echo\":true,"
                       "\"logprobs\":1,\"stream\":true}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    events_read(&e, &r);
    check_echoed_lists(json_at(e.data[0], "choices.0"), 5);
    cr_assert(json_equal(json_at(e.data[0], "choices.0.logprobs"), json_at(root, "choices.1.logprobs")));
    cr_assert_eq(json_number(e.data[1], "choices.0.logprobs.text_offset.0"), 17);
    events_free(&e);
    reply_free(&r);
    json_decref(root);
}

/* Returns the body of a conversation longer than the context. */
static char *longer_than_the_context(void)
{
    size_t n = 1500, room = n * 9 + 64, at = 0;
    char *body = malloc(room);
    cr_assert(body);
    at += (size_t)snprintf(body, room, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (size_t i = 0; i < n; i++)
        at += (size_t)snprintf(body + at, room - at, "the cat ");
    (void)snprintf(body + at, room - at, "\"}]}");
    return body;
}

DAEMON_TEST(openai, the_tokens_of_a_prompt_are_counted_without_a_text)
{
    static const char *const prefixes[] = {"/v1", ""};
    json_t *chat = post_ok(CHAT, "{" DOG ",\"max_tokens\":1}");
    json_t *response = post_ok("/v1/responses", "{\"input\":\"Hi\",\"max_output_tokens\":16}");
    for (size_t i = 0; i < 2; i++) {
        char path[64];
        snprintf(path, sizeof path, "%s/chat/completions/input_tokens", prefixes[i]);
        json_t *count = post_ok(path, "{" DOG ",\"max_tokens\":5000,\"stream\":true}");
        cr_assert_eq(json_number(count, "input_tokens"), json_number(chat, "usage.prompt_tokens"));
        cr_assert_str_eq(json_text(count, "object"), "response.input_tokens");
        json_decref(count);
        snprintf(path, sizeof path, "%s/responses/input_tokens", prefixes[i]);
        count = post_ok(path, "{\"input\":\"Hi\",\"stream\":true}");
        cr_assert_eq(json_number(count, "input_tokens"), json_number(response, "usage.input_tokens"));
        json_decref(count);
    }
    expect_words(post("/v1/responses/input_tokens", "{\"input\":7}"), 400, "invalid_request", "input");
    static const char *const counting[] = {"/v1/chat/completions/input_tokens", "/v1/messages/count_tokens"};
    char *longer = longer_than_the_context();
    for (size_t i = 0; i < sizeof counting / sizeof *counting; i++) {
        json_t *count = post_ok(counting[i], longer);
        cr_assert_gt(json_number(count, "input_tokens"), 3000, "%s", counting[i]);
        json_decref(count);
    }
    expect_words(post(CHAT, longer), 400, "context_exceeded", "the context has");
    expect_words(post("/tokenize", longer), 400, "context_exceeded", "the context has");
    free(longer);
    json_t *stats = get_ok("/stats");
    cr_assert_eq(json_number(stats, "tokens.generated"), json_number(response, "usage.output_tokens") + 1);
    json_decref(stats);
    json_decref(response);
    json_decref(chat);
}

/* As llama-server, for clients whose base URL lacks /v1. */
DAEMON_TEST(openai, chats_and_responses_are_there_without_v1)
{
    json_t *root = post_ok("/chat/completions", "{" DOG ",\"max_tokens\":1}");
    cr_assert_str_eq(json_text(root, "object"), "chat.completion");
    json_decref(root);
    root = post_ok("/responses", "{\"input\":\"Hi\",\"max_output_tokens\":16}");
    cr_assert_str_eq(json_text(root, "object"), "response");
    json_decref(root);
    root = post_ok("/completions", "{\"prompt\":\"Once\",\"n_predict\":1,\"temperature\":0}");
    cr_assert_str_eq(json_text(root, "content"), " upon");
    json_decref(root);
    root = get_ok("/v1/health");
    cr_assert_str_eq(json_text(root, "status"), "ready");
    json_decref(root);
}
