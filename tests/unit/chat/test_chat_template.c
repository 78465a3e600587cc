/* The forms that model families' templates have: conversations of tests/data/templates, and the texts that
 * these templates' rules give, written by hand.
 *
 * The files are our own, in the manner of the families' ones. Those were compared by hand, outside of the
 * repository, with Jinja 3.1.6 set up as transformers does it, in 61 conversations each (with and without a
 * system message, tools, calls and documents): of 70 distinct templates, 18 of chujiezheng/chat_templates and
 * 52 more of models/templates of ik_llama.cpp, 66 give the same bytes or refuse the same conversations, each
 * time. The others: functionary 3.1 joins texts with "|safe", whose escaping of the rest is left out here;
 * llama-cpp-deepseek-r1 writes a generator with tojson, which Jinja refuses and Hearth writes; DeepSeek V3.2
 * and V4 want a filter from_json that Jinja has not either, and are refused when they are opened. */
#include "support/jinja_render.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define CHAT(...)                                                                                            \
    "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"tools\":null,\"messages\":[" __VA_ARGS__ "]"
#define ASK             ",\"add_generation_prompt\":true}"
#define TELL            ",\"add_generation_prompt\":false}"
#define SAY(role, text) "{\"role\":\"" role "\",\"content\":\"" text "\"}"
#define SYSTEM          SAY("system", "Be kind.")
#define USER            SAY("user", " Hi ")
#define ANSWER          SAY("assistant", "Yo.")
#define CALL(id, f, args)                                                                                    \
    "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"" f "\",\"arguments\":" args "}}"
#define CALLS(...)       "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[" __VA_ARGS__ "]}"
#define RESULT(id, text) "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":\"" text "\"}"
#define TOOL                                                                                                 \
    "{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":{\"type\":\"object\","             \
    "\"properties\":"                                                                                        \
    "{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]}}}"
#define WITH_TOOL(...)                                                                                       \
    "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"tools\":[" TOOL "],\"messages\":[" __VA_ARGS__ "]"

static char *read_template(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, HEARTH_TEST_DATA "/templates/%s.jinja", name);
    FILE *f = fopen(path, "re");
    cr_assert_not_null(f, "%s", path);
    char *text = calloc(1, 65536);
    cr_assert_gt(fread(text, 1, 65535, f), 0);
    fclose(f);
    return text;
}

static void expect_chat(const char *name, const char *json, const char *expected)
{
    char *t = read_template(name);
    expect_text(t, json, expected);
    free(t);
}

static void expect_raise(const char *name, const char *json, const char *words)
{
    char *t = read_template(name);
    expect_fails(t, json, -EINVAL, words);
    free(t);
}

Test(chat_template, chatml)
{
    expect_chat(
        "chatml", CHAT(USER) ASK,
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n"
        "<|im_start|>assistant\n");
    expect_chat("chatml", CHAT(SYSTEM "," USER "," ANSWER) TELL,
                "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n"
                "<|im_start|>assistant\nYo.<|im_end|>\n");
}

Test(chat_template, llama_2)
{
    expect_chat("llama2", CHAT(USER) ASK, "<s>[INST] Hi [/INST]");
    expect_chat("llama2", CHAT(SYSTEM "," USER "," ANSWER "," USER) ASK,
                "<s>[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\n Hi [/INST] Yo. </s><s>[INST] Hi [/INST]");
    expect_raise("llama2", CHAT(USER "," USER) ASK, "Roles must alternate user/assistant/user/assistant/...");
}

Test(chat_template, llama_3)
{
    expect_chat("llama3", CHAT(SYSTEM "," USER) ASK,
                "<s><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|><|start_header_id|>user"
                "<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
    expect_chat("llama3", CHAT(USER "," ANSWER) TELL,
                "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant"
                "<|end_header_id|>\n\nYo.<|eot_id|>");
}

#define HEADER(role) "<|start_header_id|>" role "<|end_header_id|>\n\n"
#define TOOL_BY_4                                                                                            \
    "{\n    \"type\": \"function\",\n    \"function\": {\n        \"name\": \"add\",\n"                      \
    "        \"parameters\": {\n            \"type\": \"object\",\n            \"properties\": {\n"          \
    "                \"a\": {\n                    \"type\": \"integer\"\n                }\n            "   \
    "},\n"                                                                                                   \
    "            \"required\": [\n                \"a\"\n            ]\n        }\n    }\n}"

Test(chat_template, llama_3_1_with_a_date_and_without_tools)
{
    expect_chat("llama3_tools", CHAT(SYSTEM "," USER) ASK,
                "<s>" HEADER("system") "Today: 26 Jul 2024\n\nBe kind.<|eot_id|>" HEADER(
                    "user") "Hi<|eot_id|>" HEADER("assistant"));
    expect_chat("llama3_tools", CHAT(USER) ",\"date_string\":\"01 Jan 2030\"" TELL,
                "<s>" HEADER("system") "Today: 01 Jan 2030\n\n<|eot_id|>" HEADER("user") "Hi<|eot_id|>");
}

Test(chat_template, llama_3_1_with_tools_and_a_call)
{
    expect_chat(
        "llama3_tools",
        WITH_TOOL(SYSTEM "," USER "," CALLS(CALL("1", "add", "{\"a\":[1,true]}")) "," RESULT("1", "2")) ASK,
        "<s>" HEADER("system") "Environment: ipython\nToday: 26 Jul 2024\n\nBe kind.<|eot_id|>" HEADER(
            "user") "Answer with a call of one of these.\n\n" TOOL_BY_4
                    "\n\nHi<|eot_id|>" HEADER("assistant") "{\"name\": \"add\", \"parameters\": {\"a\": [1, "
                                                           "true]}}<|eot_id|>" HEADER(
                                                               "ipython") "2<|eot_id|>" HEADER("assistant"));
    expect_chat("llama3_tools", WITH_TOOL(USER) ",\"tools_in_user_message\":false" TELL,
                "<s>" HEADER("system") "Environment: ipython\nToday: 26 Jul 2024\n\nFunctions:\n\n" TOOL_BY_4
                                       "\n\n<|eot_id|>" HEADER("user") "Hi<|eot_id|>");
    expect_raise("llama3_tools", CHAT(USER "," CALLS(CALL("1", "f", "{}") "," CALL("2", "f", "{}"))) ASK,
                 "One call of a tool at a time.");
}

Test(chat_template, mistral)
{
    expect_chat("mistral", CHAT(SYSTEM "," USER "," ANSWER "," USER) ASK,
                "<s>[INST]  Hi [/INST] Yo.</s>[INST] Be kind.\n\n Hi [/INST]");
    expect_raise("mistral", CHAT(USER "," USER) ASK, "roles must alternate");
}

Test(chat_template, mistral_with_tools_and_calls)
{
    expect_chat(
        "mistral",
        WITH_TOOL(USER "," CALLS(CALL("call00001", "add", "{\"a\":1}") "," CALL(
            "call00002", "add", "{}")) "," RESULT("call00001", "2")) ASK,
        "<s>[AVAILABLE_TOOLS] [{\"type\": \"function\", \"function\": {\"name\": \"add\", \"parameters\": "
        "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}}, \"required\": [\"a\"]}}}]"
        "[/AVAILABLE_TOOLS][INST]  Hi [/INST][TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"a\": 1}, "
        "\"id\": \"call00001\"}, {\"name\": \"add\", \"arguments\": {}, \"id\": \"call00002\"}]</s>"
        "[TOOL_RESULTS] {\"content\": 2, \"call_id\": \"call00001\"}[/TOOL_RESULTS]");
    expect_raise("mistral", CHAT(USER "," CALLS(CALL("1", "f", "{}"))) ASK, "nine letters");
}

Test(chat_template, zephyr)
{
    expect_chat("zephyr", CHAT(SYSTEM "," USER) ASK,
                "<|system|>\nBe kind.</s>\n<|user|>\n Hi </s>\n<|assistant|>\n");
    expect_chat("zephyr", CHAT(USER "," ANSWER) TELL, "<|user|>\n Hi </s>\n<|assistant|>\nYo.</s>\n");
}

Test(chat_template, gemma)
{
    expect_chat("gemma", CHAT(USER "," ANSWER "," USER) ASK,
                "<s><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nYo.<end_of_turn>\n"
                "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n");
    expect_raise("gemma", CHAT(SYSTEM "," USER) ASK, "System role not supported");
}

Test(chat_template, gemma_3)
{
    expect_chat("gemma3", CHAT(SYSTEM "," USER) ASK,
                "<s><start_of_turn>user\nBe kind.\n\nHi<end_of_turn>\n<start_of_turn>model\n");
    expect_chat("gemma3",
                CHAT("{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\" a \"},{\"type\":"
                     "\"image\"},{\"type\":\"text\",\"text\":\"b\"}]}") TELL,
                "<s><start_of_turn>user\na<start_of_image>b<end_of_turn>\n");
}

Test(chat_template, phi_3_and_4)
{
    expect_chat("phi3", CHAT(SYSTEM "," USER) ASK,
                "<|system|>\nBe kind.<|end|>\n<|user|>\n Hi <|end|>\n<|assistant|>\n");
    expect_chat("phi3", CHAT(USER "," ANSWER) TELL, "<|user|>\n Hi <|end|>\n<|assistant|>\nYo.<|end|>\n</s>");
    expect_chat("phi4", CHAT("{\"role\":\"system\",\"content\":\"Be kind.\",\"tools\":\"[f]\"}," USER) ASK,
                "<|system|>Be kind.<|tool|>[f]<|/tool|><|end|><|user|> Hi <|end|><|assistant|>");
}

#define TURN(role, text) "<|im_start|>" role "\n" text "<|im_end|>\n"

Test(chat_template, qwen_3_and_its_thinking_switch)
{
    expect_chat("qwen3", CHAT(SYSTEM "," USER) ASK,
                TURN("system", "Be kind.") TURN("user", " Hi ") "<|im_start|>assistant\n");
    expect_chat("qwen3", CHAT(USER) ",\"enable_thinking\":false" ASK,
                TURN("user", " Hi ") "<|im_start|>assistant\n<think>\n\n</think>\n\n");
    expect_chat("qwen3", CHAT(USER) ",\"enable_thinking\":true" ASK,
                TURN("user", " Hi ") "<|im_start|>assistant\n");
    expect_chat("qwen3", CHAT(USER) ",\"enable_thinking\":false" TELL, TURN("user", " Hi "));
}

#define THOUGHT SAY("assistant", "<think>\\nhm\\n</think>\\n\\nYo.")

Test(chat_template, qwen_3_drops_the_thoughts_before_the_last_question)
{
    expect_chat("qwen3", CHAT(USER "," THOUGHT "," USER) ASK,
                TURN("user", " Hi ") TURN("assistant", "Yo.") TURN("user", " Hi ") "<|im_start|>assistant\n");
    expect_chat("qwen3", CHAT(USER "," THOUGHT) TELL,
                TURN("user", " Hi ") TURN("assistant", "<think>\nhm\n</think>\n\nYo."));
    expect_chat("qwen3",
                CHAT(USER ",{\"role\":\"assistant\",\"content\":\"Yo.\",\"reasoning_content\":\"why\"}") TELL,
                TURN("user", " Hi ") TURN("assistant", "<think>\nwhy\n</think>\n\nYo."));
}

#define QWEN_TOOLS                                                                                           \
    "# Tools\n\nThese may be called:\n<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"add\", "  \
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}}, "              \
    "\"required\": "                                                                                         \
    "[\"a\"]}}}\n</tools>\n\nOne object per call:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": " \
    "<args-json-object>}\n</tool_call>"

Test(chat_template, qwen_3_with_tools_calls_and_results)
{
    expect_chat("qwen3", WITH_TOOL(SYSTEM "," USER) ASK,
                TURN("system", "Be kind.\n\n" QWEN_TOOLS) TURN("user", " Hi ") "<|im_start|>assistant\n");
    expect_chat("qwen3",
                WITH_TOOL(USER "," CALLS(CALL("1", "add", "{\"a\":1}") "," CALL(
                    "2", "add", "{\"a\":2}")) "," RESULT("1", "r1") "," RESULT("2", "r2")) ASK,
                TURN("system", QWEN_TOOLS) TURN("user", " Hi ") TURN(
                    "assistant", "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>\n"
                                 "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 2}}\n</tool_call>")
                    TURN("user", "<tool_response>\nr1\n</tool_response>\n<tool_response>\nr2\n</"
                                 "tool_response>") "<|im_start|>assistant\n");
}

Test(chat_template, deepseek)
{
    expect_chat("deepseek", CHAT(SYSTEM "," USER "," THOUGHT "," USER) ASK,
                "<s>Be kind.<｜User｜> Hi <｜Assistant｜>\n\nYo.<｜end▁of▁sentence｜><｜User｜> Hi "
                "<｜Assistant｜><think>\n");
    expect_chat("deepseek", CHAT(SYSTEM "," SYSTEM "," USER) TELL, "<s>Be kind.\n\nBe kind.<｜User｜> Hi ");
}

#define CALLED(args)                                                                                         \
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n" args "\n```<｜tool▁call▁end｜>"

Test(chat_template, deepseek_with_calls_whose_arguments_are_texts)
{
    const char *chat = CHAT(USER "," CALLS(CALL("1", "add", "\"{1}\"") "," CALL(
        "2", "add", "\"{2}\"")) "," RESULT("1", "r1") "," RESULT("2", "r2") "," ANSWER) TELL;
    expect_chat("deepseek", chat,
                "<s><｜User｜> Hi <｜Assistant｜><｜tool▁calls▁begin｜>" CALLED("{1}") "\n" CALLED(
                    "{2}") "<｜tool▁calls▁end｜><｜end▁of▁sentence｜><｜tool▁outputs▁begin｜><"
                           "｜tool▁output▁begin｜>r1"
                           "<｜tool▁output▁end｜>\n<｜tool▁output▁begin｜>r2<｜tool▁output▁end｜><"
                           "｜tool▁outputs▁end｜>Yo."
                           "<｜end▁of▁sentence｜>");
    char *t = read_template("deepseek");
    expect_fails(t, CHAT(USER "," CALLS(CALL("1", "add", "{}"))) ASK, -EBADMSG, "a string + a dict");
    free(t);
}

Test(chat_template, macros_that_call_themselves)
{
    expect_chat("macros", WITH_TOOL(SYSTEM "," USER "," ANSWER) TELL,
                "add({a: number}0)\n<|system|>Be kind.<|end|><|user|>Hi<|end|><|assistant|>Yo.<|end|>");
    expect_chat("macros",
                "{\"messages\":[" USER
                "],\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
                "\"properties\":{\"z\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},\"b\":{\"enum\":["
                "\"x\",1]},"
                "\"c\":{\"type\":\"object\",\"properties\":{\"d\":{}}}}}}}]}",
                "f({b?: \"x\" | 1; c?: {d?: any}1; z?: string[]}0)\n<|user|>Hi<|end|>");
    expect_raise("macros", "{\"messages\":[]}", "nothing was said");
}

/* Control tokens of a template are its own, with any text around them; contents are the user's to the byte.
 */
Test(chat_template, every_form_marks_what_users_wrote)
{
    static const char *const names[] = {"chatml", "llama2",   "llama3", "llama3_tools", "mistral",
                                        "zephyr", "gemma",    "gemma3", "phi3",         "phi4",
                                        "qwen3",  "deepseek", "macros"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *t = read_template(names[i]);
        cr_assert_eq(render_bytes(t, strlen(t), CHAT(SAY("user", "A<|im_end|>B")) ASK), 0);
        free(t);
        const struct jinja_text *out = &rendered.text;
        const char *user = memmem(out->s, out->len, "A<|im_end|>B", 12);
        cr_assert(user && out->plain, "%s", names[i]);
        for (size_t k = 0; k < out->len; k++)
            cr_assert_eq(out->plain[k], out->s + k >= user && out->s + k < user + 12, "%s: byte %zu",
                         names[i], k);
    }
}
