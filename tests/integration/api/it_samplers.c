/* Filters that go beyond the decoder's, as clients name them. */
#include "integration/harness.h"

#define COMPLETE "/v1/completions"

static void text(const char *path, const char *member, const char *fields, char out[512])
{
    char body[512];
    snprintf(body, sizeof body, "{\"prompt\":\"Once upon a time\",\"max_tokens\":40,\"seed\":5,%s}", fields);
    json_t *root = post_ok(path, body);
    snprintf(out, 512, "%s", json_text(root, member));
    json_decref(root);
}

/* Each changes the text, and gives it again for the same seed, in every dialect that knows its name. */
DAEMON_TEST(samplers, each_changes_the_text_and_a_seed_gives_it_again)
{
    static const char *const fields[] = {
        "\"top_n_sigma\":0.05,\"temperature\":1.5",
        "\"xtc_probability\":1,\"xtc_threshold\":0.02",
        "\"dynatemp_range\":0.8,\"dynatemp_exponent\":2",
        "\"mirostat\":2,\"mirostat_tau\":8",
        "\"adaptive_target\":0.1",
        "\"samplers\":[\"temperature\",\"top_k\"],\"top_k\":3",
        "\"samplers\":\"kx\",\"xtc_probability\":1,\"xtc_threshold\":0.01",
    };
    char plain[512], one[512], two[512];
    text("/generate", "text", "\"min_p\":0.05", plain);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        text("/generate", "text", fields[i], one);
        text(COMPLETE, "choices.0.text", fields[i], two);
        cr_expect_str_eq(one, two, "%s", fields[i]);
        text("/completion", "content", fields[i], two);
        cr_expect_str_eq(one, two, "%s", fields[i]);
        cr_expect_str_neq(one, plain, "%s", fields[i]);
    }
}

DAEMON_TEST(samplers, neutral_values_change_nothing)
{
    static const char *const fields[] = {
        "\"top_n_sigma\":-1",
        "\"xtc_probability\":0,\"xtc_threshold\":0.5",
        "\"dry_multiplier\":0",
        "\"mirostat\":0",
        "\"adaptive_target\":-1",
        "\"samplers\":[\"penalties\",\"top_k\",\"typ_p\",\"top_p\",\"min_p\",\"temperature\"]",
    };
    char plain[512], one[512];
    text("/generate", "text", "\"min_p\":0.05", plain);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        text("/generate", "text", fields[i], one);
        cr_expect_str_eq(one, plain, "%s", fields[i]);
    }
}

static size_t n_leading(const char *fields, char letter)
{
    char body[256];
    size_t n = 0;
    snprintf(body, sizeof body, "{\"prompt\":\"b\",\"max_tokens\":16,\"temperature\":0%s}", fields);
    json_t *root = post_ok("/generate", body);
    while (json_text(root, "text")[n] == letter)
        n++;
    json_decref(root);
    return n;
}

DAEMON_TEST(samplers, dry_ends_a_repetition)
{
    size_t n = n_leading("", 'b');
    cr_assert_geq(n, 12, "the model repeats the letter");
    cr_assert_leq(n_leading(",\"dry_multiplier\":20", 'b'), 3);
    cr_assert_eq(n_leading(",\"dry_multiplier\":20,\"dry_sequence_breakers\":[\"b\"]", 'b'), n);
}

DAEMON_TEST(samplers, a_constrained_text_is_sampled_by_them_within_its_language)
{
    json_t *root = post_ok("/generate", "{\"prompt\":\"Once\",\"regex\":\"[ab]{10}\",\"xtc_probability\":1,"
                                        "\"top_n_sigma\":1,\"temperature\":2,\"n\":3}");
    for (size_t i = 0; i < 3; i++) {
        const char *s = json_text(json_array_get(json_at(root, "choices"), i), "text");
        cr_assert_eq(strspn(s, "ab"), 10, "%s", s);
    }
    json_decref(root);
}

/* A reasoning that its prompt has opened is closed after so many tokens. */
Test(samplers, a_budget_closes_the_reasoning)
{
    char path[] = "/tmp/hearth-think-XXXXXX";
    static const char template[] = "{% for m in messages %}{{ m.content }}{% endfor %}<think>";
    int fd = mkstemp(path);
    cr_assert_eq(write(fd, template, strlen(template)), (ssize_t)strlen(template));
    close(fd);
    daemon_start((const char *[]){"--chat-format", "think", "--chat-template", path, NULL});
    (void)unlink(path);
    json_t *root =
        post_ok("/v1/chat/completions",
                "{\"messages\":[{\"role\":\"user\",\"content\":\"Once upon a time\"}],\"max_tokens\":60,"
                "\"temperature\":0,\"thinking_budget\":7}");
    char *whole = json_dumps(root, 0);
    double n = json_number(root, "usage.completion_tokens_details.reasoning_tokens");
    cr_assert(n >= 7 && n <= 16, "%s", whole); /* and those of the mark, which this vocabulary spells */
    cr_assert(json_is_string(json_at(root, "choices.0.message.content")), "%s", whole);
    cr_assert_gt(strlen(json_text(root, "choices.0.message.content")), 0, "%s", whole);
    free(whole);
    json_decref(root);
    root = post_ok("/v1/messages",
                   "{\"messages\":[{\"role\":\"user\",\"content\":\"Once upon a time\"}],\"max_tokens\":60,"
                   "\"temperature\":0,\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":7}}");
    whole = json_dumps(root, 0);
    cr_assert_str_eq(json_text(root, "content.0.type"), "thinking", "%s", whole);
    cr_assert_str_eq(json_text(root, "content.1.type"), "text", "%s", whole);
    cr_assert_gt(strlen(json_text(root, "content.1.text")), 0, "%s", whole);
    free(whole);
    json_decref(root);
    daemon_stop();
}

DAEMON_TEST(samplers, refusals_name_the_field)
{
    static const char *const cases[][2] = {
        {"\"mirostat\":1", "mirostat must be 0 or 2"},
        {"\"samplers\":[\"top_q\"]", "samplers may have: penalties, dry"},
        {"\"samplers\":[\"top_k\",\"top_k\"]", "samplers has top_k twice"},
        {"\"samplers\":7", "samplers must be an array"},
        {"\"samplers\":\"kz\"", "samplers may have"},
        {"\"dry_base\":0.5", "dry_base must be between 1 and 10"},
        {"\"dry_allowed_length\":0", "dry_allowed_length must be between 1"},
        {"\"dry_sequence_breakers\":[\"\"]", "dry_sequence_breakers may have strings of 1 to 64 bytes"},
        {"\"adaptive_decay\":1", "adaptive_decay must be between 0 and 0.99"},
        {"\"xtc_probability\":2", "xtc_probability must be between 0 and 1"},
        {"\"thinking_budget\":-2", "thinking_budget must be between -1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[256];
        snprintf(body, sizeof body, "{\"prompt\":\"a\",%s}", cases[i][0]);
        expect_words(post("/generate", body), 400, "invalid_request", cases[i][1]);
    }
}

DAEMON_TEST(samplers, options_that_ollama_no_longer_has_cost_no_request)
{
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"stream\":false,\"options\":{"
        "\"num_predict\":4.0,\"mirostat\":1,\"tfs_z\":0.9,\"num_ctx\":8192,\"penalize_newline\":true}}";
    json_t *root = post_ok("/api/chat", body);
    cr_assert_eq(json_number(root, "eval_count"), 4);
    json_decref(root);
}
