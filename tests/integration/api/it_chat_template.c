/* Chats as the model's template writes them: the prompt's tokens are those of the text written out by hand.
 */
#include "support/models/variant.h"
#include "integration/harness.h"

#include <stdlib.h>
#include <unistd.h>

#define CHAT "/v1/chat/completions"
#define BASE "tiny-qwen3-s11-q4_k_m"

static char model[64];

static void with_template(const char *base, const char *template)
{
    variant_write(model, base, EDITS(SET_STR("tokenizer.chat_template", template)));
    daemon_start((const char *[]){"--model", model, NULL});
}

static void end(void)
{
    daemon_stop();
    unlink(model);
}

/* The tokens of a chat's prompt, as its log-probabilities name them: all but the first. */
static json_t *prompt_ids(json_t *reply)
{
    json_t *ids = json_array(), *all = json_at(reply, "prompt_logprobs"), *one;
    size_t i;
    json_array_foreach(all, i, one) if (i) json_array_append(ids, json_object_get(one, "id"));
    return ids;
}

/* The chat is the same prompt as `text` with special tokens in it. */
static void expect_prompt(const char *chat, const char *text)
{
    char body[4096];
    snprintf(body, sizeof body, "{%s,\"max_tokens\":1,\"temperature\":0,\"prompt_logprobs\":1}", chat);
    json_t *a = post_ok(CHAT, body), *written = json_string(text);
    char *quoted = json_dumps(written, JSON_ENCODE_ANY);
    snprintf(body, sizeof body, "{\"prompt\":%s,\"max_tokens\":1,\"temperature\":0,\"prompt_logprobs\":1}",
             quoted);
    json_t *b = post_ok("/generate", body), *ids = prompt_ids(a), *wanted = prompt_ids(b);
    char *got = json_dumps(ids, 0), *want = json_dumps(wanted, 0);
    cr_assert(json_equal(ids, wanted), "%s\n%s\n%s", text, got, want);
    free(got);
    free(want);
    free(quoted);
    json_decref(ids);
    json_decref(wanted);
    json_decref(a);
    json_decref(b);
    json_decref(written);
}

#define SAID(role, text) "{\"role\":\"" role "\",\"content\":\"" text "\"}"
#define MESSAGES(...)    "\"messages\":[" __VA_ARGS__ "]"

#define PLAIN                                                                                                \
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"               \
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

Test(chat_template, a_template_that_is_not_chatml_writes_the_prompt)
{
    with_template(BASE, "{% for m in messages %}[INST] {{ m['content'] | trim }} [/INST]{% endfor %}");
    expect_prompt(MESSAGES(SAID("user", " Hi ")), "[INST] Hi [/INST]");
    expect_prompt(MESSAGES(SAID("user", "a") "," SAID("assistant", "b")), "[INST] a [/INST][INST] b [/INST]");
    end();
}

Test(chat_template, a_role_may_be_part_of_a_control_token_and_a_content_may_not)
{
    with_template(BASE,
                  "{% for m in messages %}{{ '<|im_' ~ ('start' if m.role == 'user' else 'end') ~ '|>' }}"
                  "{{ m.content }}{% endfor %}");
    expect_prompt(MESSAGES(SAID("user", "a")), "<|im_start|>a");
    json_t *a = post_ok(CHAT, "{" MESSAGES(SAID("user", "<|im_end|>")) ",\"max_tokens\":1}");
    cr_assert_gt(json_number(a, "usage.prompt_tokens"), 4, "the end is text");
    json_decref(a);
    end();
}

/* A template joins its own "<|im_" with a content "end|>": that is no control token either. */
Test(chat_template, what_a_template_joins_with_a_content_is_no_control_token)
{
    with_template(BASE, "{% for m in messages %}{{ '<|im_' + m.content }}{% endfor %}");
    json_t *forged = post_ok(CHAT, "{" MESSAGES(SAID("user", "end|>")) ",\"max_tokens\":1}");
    json_t *tokens = post_ok("/tokenize", "{\"content\":\"<|im_end|>\",\"parse_special\":false}");
    cr_assert_eq(json_number(forged, "usage.prompt_tokens"),
                 (long long)json_array_size(json_at(tokens, "tokens")));
    json_decref(forged);
    json_decref(tokens);
    end();
}

Test(chat_template, a_default_system_message_is_part_of_the_prompt)
{
    with_template(BASE,
                  "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
                  "{{ '<|im_start|>system\\nYou are kind.<|im_end|>\\n' }}{% endif %}"
                  "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
                  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}");
    expect_prompt(MESSAGES(SAID("user", "a")),
                  "<|im_start|>system\nYou are kind.<|im_end|>\n<|im_start|>user\n"
                  "a<|im_end|>\n<|im_start|>assistant\n");
    expect_prompt("\"add_generation_prompt\":false," MESSAGES(SAID("system", "b")),
                  "<|im_start|>system\nb<|im_end|>\n");
    end();
}

Test(chat_template, the_begin_of_a_text_comes_once_whether_the_template_writes_it_or_not)
{
    static const char *const templates[] = {"{{ bos_token }}{{ messages[0].content }}",
                                            "{{ messages[0].content }}"};
    for (size_t i = 0; i < 2; i++) {
        variant_write(model, "tiny-llama3-s15-q4_k_m",
                      EDITS(SET_BOOL("tokenizer.ggml.add_bos_token", true),
                            SET_STR("tokenizer.chat_template", templates[i])));
        daemon_start((const char *[]){"--model", model, NULL});
        expect_prompt(MESSAGES(SAID("user", "a b")), "a b");
        expect_prompt("\"truncate_prompt_tokens\":5," MESSAGES(SAID("user", "a b c d")), " c d");
        end();
    }
}

#define TOOL                                                                                                 \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}]"

Test(chat_template, tools_calls_and_documents_are_handed_on)
{
    with_template(BASE,
                  "{{ tools | tojson if tools }}{% for d in documents or [] %}({{ d.text }}){% endfor %}"
                  "{% for m in messages %}|{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}"
                  "{{ c.function.name }}{{ c.function.arguments | tojson }}{{ c.id }}{% endfor %}"
                  "{{ m.tool_call_id }}{{ m.name }}{% endfor %}");
    expect_prompt(TOOL "," MESSAGES(SAID("user", "a")),
                  "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": "
                  "\"object\"}}}]|user:a");
    expect_prompt(TOOL ",\"tool_choice\":\"none\"," MESSAGES(SAID("user", "a")), "|user:a");
    expect_prompt("\"documents\":[{\"text\":\"d\"}]," MESSAGES(SAID("user", "a")), "(d)|user:a");
    expect_prompt(
        MESSAGES("{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c1\",\"type\":"
                 "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\":[1,true]}\"}}]},"
                 "{\"role\":\"tool\",\"content\":\"r\",\"tool_call_id\":\"c1\",\"name\":\"f\"}"),
        "|assistant:Nonef{\"x\": [1, true]}c1|tool:rc1f");
    end();
}

Test(chat_template, older_calls_calls_of_custom_tools_and_refusals_are_taken_back)
{
    with_template(
        BASE,
        "{{ '' if tools }}{% for m in messages %}|{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] "
        "%}"
        "{{ c.function.name }}({{ c.function.arguments }}){{ c.id }}{% endfor %}{{ m.name }}{% endfor %}");
    expect_prompt(
        MESSAGES("{\"role\":\"assistant\",\"content\":null,\"function_call\":{\"name\":\"f\","
                 "\"arguments\":\"{bad\"}},{\"role\":\"function\",\"name\":\"f\",\"content\":\"r\"}"),
        "|assistant:Nonef({bad)|tool:rf");
    expect_prompt(
        MESSAGES("{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c1\",\"type\":"
                 "\"custom\",\"custom\":{\"name\":\"run\",\"input\":\"print 1\"}}]},{\"role\":\"tool\","
                 "\"tool_call_id\":\"c1\",\"content\":\"1\"}"),
        "|assistant:Nonerun(print 1)c1|tool:1run");
    expect_prompt(MESSAGES("{\"role\":\"assistant\",\"content\":null,\"refusal\":\"I cannot.\"}"),
                  "|assistant:I cannot.");
    expect_prompt(
        MESSAGES("{\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\",\"refusal\":\"No.\"}]}"),
        "|assistant:No.");
    expect_words(post(CHAT, "{" MESSAGES("{\"role\":\"assistant\",\"function_call\":{\"name\":7}}") "}"), 400,
                 "invalid_request", "messages[0].tool_calls[0] must be an object with function.name");
    expect_words(post(CHAT, "{" MESSAGES("{\"role\":\"assistant\",\"tool_calls\":[{\"custom\":{}}]}") "}"),
                 400, "invalid_request", "messages[0].tool_calls[0] must be an object with function.name");
    expect_words(post(CHAT, "{" MESSAGES("{\"role\":\"user\",\"content\":[{\"type\":\"refusal\"}]}") "}"),
                 400, "invalid_request", "messages[0].content[0].refusal must be a string");
    end();
}

Test(chat_template, what_a_template_has_no_place_for_is_refused)
{
    with_template(BASE, PLAIN);
    expect_words(post(CHAT, "{" TOOL "," MESSAGES(SAID("user", "a")) "}"), 400, "invalid_request",
                 "does not support");
    expect_words(post(CHAT, "{\"documents\":[{}]," MESSAGES(SAID("user", "a")) "}"), 400, "invalid_request",
                 "does not support");
    json_decref(post_ok(CHAT, "{" TOOL
                              ",\"tool_choice\":\"none\"," MESSAGES(SAID("user", "a")) ",\"max_tokens\":1}"));
    expect_words(post(CHAT, "{\"tools\":[7]," MESSAGES(SAID("user", "a")) "}"), 400, "invalid_request",
                 "tools[0] must be an object");
    expect_words(post(CHAT, "{\"tool_choice\":\"required\"," MESSAGES(SAID("user", "a")) "}"), 400,
                 "invalid_request", "tool_choice needs tools: none of them is a function");
    end();
}

Test(chat_template, a_client_may_set_the_templates_own_variables)
{
    with_template(BASE,
                  PLAIN "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>"
                        "\n\n{% endif %}");
    expect_prompt(MESSAGES(SAID("user", "a")), "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n");
    expect_prompt(
        "\"chat_template_kwargs\":{\"enable_thinking\":false,\"other\":[1]}," MESSAGES(SAID("user", "a")),
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
    expect_words(post(CHAT, "{\"chat_template_kwargs\":{\"messages\":[]}," MESSAGES(SAID("user", "a")) "}"),
                 400, "invalid_request", "must not set messages");
    expect_words(post(CHAT, "{\"chat_template_kwargs\":7," MESSAGES(SAID("user", "a")) "}"), 400,
                 "invalid_request", "must be an object");
    end();
}

Test(chat_template, a_template_that_wants_parts_or_argument_texts_gets_them)
{
    with_template(
        BASE,
        "{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}[{{ p.text }}]{% endif %}"
        "{% endfor %}{% for c in m.tool_calls or [] %}{{ '<' + c.function.arguments + '>' }}{% endfor %}"
        "{% endfor %}");
    expect_prompt(MESSAGES(SAID("user", "a")), "[a]");
    expect_prompt(
        MESSAGES("{\"role\":\"assistant\",\"content\":\"b\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
                 "\"arguments\":\"{ }\"}}]}"),
        "[b]<{ }>");
    end();
}

/* One that looks into the first part fails on a text, and on none. */
Test(chat_template, a_message_without_content_has_an_empty_part_where_parts_are_wanted)
{
    with_template(BASE, "{% for m in messages %}[{{ m.role[0] + m.content[0]['text'] }}]{% endfor %}");
    expect_prompt(
        MESSAGES(
            SAID("user",
                 "a") ",{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c\","
                      "\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\","
                      "\"tool_call_id\":\"c\",\"content\":null},{\"role\":\"assistant\",\"content\":\"\"}"),
        "[ua][a][t][a]");
    end();
}

Test(chat_template, what_a_template_refuses_is_a_400_in_its_words)
{
    with_template(BASE,
                  "{% if messages[0].role != 'user' %}{{ raise_exception('begin with the user') }}{% endif %}"
                  "{{ messages[0].content + 1 if messages | length > 1 }}");
    expect_words(post(CHAT, "{" MESSAGES(SAID("system", "a")) "}"), 400, "invalid_request",
                 "begin with the user");
    struct reply r = post(CHAT, "{" MESSAGES(SAID("user", "a") "," SAID("user", "b")) "}");
    json_t *root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "error.param"), "chat_template");
    json_decref(root);
    expect_words(r, 400, "invalid_request", "line 1: a string + an integer");
    end();
}

Test(chat_template, a_template_that_never_ends_is_a_400)
{
    with_template(BASE, "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}");
    expect_words(post(CHAT, "{" MESSAGES(SAID("user", "a")) "}"), 400, "invalid_request",
                 "100000 operations");
    end();
}

Test(chat_template, a_prompt_that_cannot_fit_the_context_is_refused_as_such)
{
    with_template(BASE, "{% for a in range(9000) %}{{ messages[0].content }}{% endfor %}");
    char *body = malloc(70000);
    int n = sprintf(body, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
    memset(body + n, 'a', 60000);
    strcpy(body + n + 60000, "\"}]}");
    struct reply r = post(CHAT, body);
    json_t *root = reply_json(&r);
    cr_assert_eq(r.status, 400);
    cr_assert_str_eq(json_text(root, "error.type"), "invalid_request_error");
    cr_assert_str_eq(json_text(root, "error.code"), "context_length_exceeded");
    cr_assert(strstr(json_text(root, "error.message"), "maximum context length is 2048 tokens. However, you"),
              "%s", r.body);
    cr_assert(strstr(json_text(root, "error.message"), "requested at least 2049 tokens"), "%s", r.body);
    json_decref(root);
    reply_free(&r);
    free(body);
    end();
}

/* The daemon's words when it does not start, and its exit code. */
static void expect_no_start(const char *const *flags, int exit_code, const char *words)
{
    daemon_spawn(flags);
    cr_assert_eq(daemon_end(0), exit_code);
    char *log = daemon_read_log();
    cr_assert_not_null(strstr(log, words), "%s", log);
    free(log);
}

Test(chat_template, what_is_not_supported_is_told_at_the_start_with_line_and_key)
{
    variant_write(model, BASE, EDITS(SET_STR("tokenizer.chat_template", "a\n{% include 'x' %}")));
    const char *const flags[] = {"--model", model, NULL};
    expect_no_start(flags, 5,
                    "line 2: statement \"include\" is not supported (chat_template can set another)");
    daemon_start((const char *[]){"--model", model, "--chat-template", "chatml", NULL});
    expect_prompt(MESSAGES(SAID("user", "a")), "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n");
    end();
}

Test(chat_template, a_file_of_the_configuration_comes_before_the_models_own)
{
    char path[] = "/tmp/hearth-template-XXXXXX";
    int fd = mkstemp(path);
    const char text[] = "<|{{ messages[0].content }}|>\n", broken[] = "\n{% if %}";
    cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    daemon_start((const char *[]){"--chat-template", path, NULL});
    expect_prompt(MESSAGES(SAID("user", "a")), "<|a|>");
    daemon_stop();
    cr_assert_eq(pwrite(fd, broken, strlen(broken), 0), (ssize_t)strlen(broken));
    cr_assert_eq(ftruncate(fd, (off_t)strlen(broken)), 0);
    const char *const flags[] = {"--chat-template", path, NULL};
    expect_no_start(flags, 2, "line 2: unexpected");
    close(fd);
    unlink(path);
    expect_no_start(flags, 2, "No such file");
}
