/* SGLang's dialect of POST /generate, and TGI's there: the body chooses. */
#include "integration/harness.h"

#define ROUTE "/generate"
#define ASK   "\"text\":\"Once upon a time\",\"sampling_params\":{\"temperature\":0,\"max_new_tokens\":6"

DAEMON_TEST(sglang, a_text_and_its_ids_give_the_same_reply)
{
    json_t *text = post_ok(ROUTE, "{" ASK "}}");
    json_t *ids =
        post_ok(ROUTE, "{\"input_ids\":[424,440,258,397],\"stream\":null,\"rid\":\"a\","
                       "\"sampling_params\":{\"temperature\":0,\"max_new_tokens\":6,\"top_k\":-1}}");
    cr_assert_str_eq(json_text(text, "text"), ", there was a little girl");
    cr_assert_str_eq(json_text(ids, "text"), json_text(text, "text"));
    cr_assert(json_equal(json_at(ids, "output_ids"), json_at(text, "output_ids")));
    cr_assert_eq(json_array_size(json_at(text, "output_ids")), 6);
    cr_assert_str_eq(json_text(text, "meta_info.finish_reason.type"), "length");
    cr_assert_eq(json_number(text, "meta_info.finish_reason.length"), 6);
    cr_assert_eq(json_number(text, "meta_info.prompt_tokens"), 4);
    cr_assert_eq(json_number(text, "meta_info.completion_tokens"), 6);
    cr_assert_gt(json_real_value(json_at(text, "meta_info.e2e_latency")), 0);
    json_decref(text);
    json_decref(ids);
}

DAEMON_TEST(sglang, several_texts_have_a_list_of_replies)
{
    json_t *root = post_ok(ROUTE, "{\"text\":[\"Once upon a time\",\"The dog\"],\"sampling_params\":{"
                                  "\"temperature\":0,\"max_new_tokens\":3,\"n\":2}}");
    cr_assert_eq(json_array_size(root), 4);
    cr_assert_str_eq(json_text(root, "0.text"), ", there was");
    cr_assert_str_eq(json_text(root, "1.text"), ", there was");
    cr_assert_eq(json_number(root, "2.meta_info.prompt_tokens"), 2);
    json_decref(root);
}

DAEMON_TEST(sglang, what_ended_a_text_is_matched)
{
    json_t *root = post_ok(ROUTE, "{" ASK ",\"stop\":[\" little\"]}}");
    cr_assert_str_eq(json_text(root, "text"), ", there was a");
    cr_assert_str_eq(json_text(root, "meta_info.finish_reason.type"), "stop");
    cr_assert_str_eq(json_text(root, "meta_info.finish_reason.matched"), " little");
    json_decref(root);
    root = post_ok(ROUTE, "{" ASK ",\"stop\":[\" little\"],\"no_stop_trim\":true}}");
    cr_assert_str_eq(json_text(root, "text"), ", there was a little");
    json_decref(root);
    root = post_ok(ROUTE, "{" ASK ",\"stop_token_ids\":[282]}}");
    cr_assert_str_eq(json_text(root, "text"), ", there");
    cr_assert_eq(json_number(root, "meta_info.finish_reason.matched"), 282);
    json_decref(root);
    root = post_ok(ROUTE, "{" ASK ",\"json_schema\":\"{\\\"const\\\":true}\"}}");
    cr_assert_str_eq(json_text(root, "text"), "true");
    json_decref(root);
}

DAEMON_TEST(sglang, events_have_the_text_from_its_beginning_and_their_own_tokens)
{
    json_t *whole = post_ok(ROUTE, "{" ASK "},\"return_logprob\":true,\"top_logprobs_num\":2}");
    json_t *ids = json_array(), *scores = json_array(), *tops = json_array();
    char text[256] = "";
    struct events e;
    struct reply r = post(ROUTE, "{" ASK "},\"stream\":true,\"return_logprob\":true,\"top_logprobs_num\":2}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    cr_assert(strstr(r.body, "data: [DONE]\n\n"), "%s", r.body);
    events_read(&e, &r);
    cr_assert_geq(e.n, 6);
    for (size_t i = 0; i < e.n; i++) {
        const char *now = json_text(e.data[i], "text");
        cr_assert_eq(strncmp(now, text, strlen(text)), 0, "\"%s\" after \"%s\"", now, text);
        snprintf(text, sizeof text, "%s", now);
        json_array_extend(ids, json_at(e.data[i], "output_ids"));
        json_array_extend(scores, json_at(e.data[i], "meta_info.output_token_logprobs"));
        json_array_extend(tops, json_at(e.data[i], "meta_info.output_top_logprobs"));
        cr_assert_eq(json_number(e.data[i], "meta_info.completion_tokens"), json_array_size(ids));
        cr_assert_eq(json_is_null(json_at(e.data[i], "meta_info.finish_reason")), i + 1 < e.n);
    }
    cr_assert_str_eq(text, json_text(whole, "text"));
    cr_assert(json_equal(ids, json_at(whole, "output_ids")));
    cr_assert(json_equal(scores, json_at(whole, "meta_info.output_token_logprobs")));
    cr_assert(json_equal(tops, json_at(whole, "meta_info.output_top_logprobs")));
    cr_assert_eq(json_array_size(json_at(whole, "meta_info.output_top_logprobs.5")), 2);
    json_decref(ids);
    json_decref(scores);
    json_decref(tops);
    json_decref(whole);
    events_free(&e);
    reply_free(&r);
}

DAEMON_TEST(sglang, refusals_name_the_field_as_it_was_sent)
{
    static const char *const cases[][2] = {
        {"{\"text\":null}", "text is missing"},
        {"{\"text\":5}", "text must be a string or an array (got 5)"},
        {"{\"input_ids\":[5,-1]}", "input_ids[1] must be between 0 and 4095 (got -1)"},
        {"{\"text\":\"a\",\"input_ids\":[1]}", "text and input_ids: one of them is allowed"},
        {"{\"text\":\"a\",\"sampling_params\":[]}", "sampling_params must be an object (got an empty array)"},
        {"{\"text\":\"a\",\"sampling_params\":{\"temperature\":7}}", "sampling_params.temperature must be"},
        {"{\"text\":\"a\",\"sampling_params\":{\"max_new_tokens\":-1}}",
         "sampling_params.max_new_tokens must be"},
        {"{\"text\":\"a\",\"sampling_params\":{\"frob\":1}}", "unknown field \\\"frob\\\""},
        {"{\"text\":\"a\",\"sampling_params\":{\"stop_regex\":\"a\"}}",
         "sampling_params.stop_regex is not supported"},
        {"{\"text\":\"a\",\"sampling_params\":{\"skip_special_tokens\":false}}",
         "sampling_params.skip_special_tokens is not supported"},
        {"{\"text\":\"a\",\"sampling_params\":{\"json_schema\":\"{\"}}",
         "sampling_params.json_schema must be a JSON schema, also where it is a text: line 1"},
        {"{\"text\":\"a\",\"lora_path\":\"x\"}", "lora_path is not supported"},
        {"{\"text\":\"a\",\"return_logprob\":true,\"logprob_start_len\":0}",
         "logprob_start_len is not supported"},
        {"{\"prompt\":\"a\",\"text\":\"a\"}", "unknown field \\\"text\\\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct reply r = post(ROUTE, cases[i][0]);
        cr_expect_eq(r.status, 400, "%s: %s", cases[i][0], r.body);
        cr_expect(strstr(r.body, cases[i][1]), "%s: %s", cases[i][0], r.body);
        reply_free(&r);
    }
    json_decref(post_ok(ROUTE, "{\"text\":\"a\",\"lora_path\":\"\",\"image_data\":null,\"session_params\":{},"
                               "\"sampling_params\":{\"skip_special_tokens\":true,\"stop_regex\":null,"
                               "\"max_new_tokens\":1}}"));
}

DAEMON_TEST(sglang, inputs_are_tgis_with_its_errors)
{
    json_t *root = post_ok(ROUTE, "{\"inputs\":\"Once upon a time\",\"parameters\":{\"max_new_tokens\":3,"
                                  "\"details\":true,\"top_n_tokens\":2}}");
    cr_assert_str_eq(json_text(root, "generated_text"), ", there was");
    cr_assert_eq(json_array_size(json_at(root, "details.top_tokens")), 3);
    cr_assert_eq(json_array_size(json_at(root, "details.top_tokens.2")), 2);
    cr_assert_eq(json_number(root, "details.top_tokens.0.0.id"), json_number(root, "details.tokens.0.id"));
    json_decref(root);
    struct reply r = post(ROUTE, "{\"inputs\":5}");
    cr_assert_eq(r.status, 400);
    cr_assert(strstr(r.body, "{\"error\":\"inputs must be a string"), "%s", r.body);
    reply_free(&r);
    r = post("/generate_stream",
             "{\"inputs\":\"Once\",\"parameters\":{\"max_new_tokens\":2,\"top_n_tokens\":3}}");
    cr_assert(strstr(r.body, "\"top_tokens\":[{\"id\":"), "%s", r.body);
    reply_free(&r);
}
