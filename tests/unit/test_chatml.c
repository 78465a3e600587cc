/* Which chat templates are ChatML, which of them say something by themselves, and which are refused. */
#include "chatml.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGE     "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
#define EACH(first) "{% for message in messages %}" first MESSAGE "{% endfor %}"
#define ANSWER      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
#define DEFAULT                                                                                              \
    "{% if loop.first and messages[0]['role'] != 'system' %}" SYSTEM("You are helpful.") "{% endif %}"
#define SYSTEM(text) "{{ '<|im_start|>system\\n" text "<|im_end|>\\n' }}"

static struct chatml found;

static const char *detect(const char *text)
{
    return chatml_detect(text, strlen(text), &found);
}

static void is_plain(const char *text)
{
    const char *why = detect(text);
    cr_assert_null(why, "%s: %s", why, text);
    cr_assert_eq(found.n_system, 0);
}

static void is_refused(const char *text, const char *words)
{
    const char *why = detect(text);
    cr_assert_not_null(why, "taken: %s", text);
    cr_assert_not_null(strstr(why, words), "%s", why);
}

static void has_default(const char *text, const char *system)
{
    const char *why = detect(text);
    cr_assert_null(why, "%s: %s", why, text);
    cr_assert_eq(found.n_system, strlen(system));
    cr_assert_arr_eq(found.system, system, found.n_system);
}

/* How the families with tools begin: what stands there is said of tools alone. */
static const char with_tools[] =
    "{%- if tools %}\n    {{- '<|im_start|>system\\n' }}\n    {%- if messages[0]['role'] == 'system' %}\n"
    "        {{- messages[0]['content'] }}\n    {%- else %}\n        {{- 'You are a made-up one. You are "
    "good.' }}\n"
    "    {%- endif %}\n    {{- \"\\n\\n# Tools\\n\\nYou are provided with function signatures within <tools>"
    "</tools>:\\n<tools>\" }}\n    {{- \"\\n</tools>\\n<tool_call>\\n</tool_call><|im_end|>\\n\" }}\n{%- "
    "else %}\n"
    "    {%- if messages[0]['role'] == 'system' %}\n"
    "        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}\n    {%- else %}\n"
    "        {{- '<|im_start|>system\\nYou are a made-up one. You are good.<|im_end|>\\n' }}\n    {%- endif "
    "%}\n"
    "{%- endif %}\n" EACH("") ANSWER;

Test(chatml, no_template_is_plain_chatml)
{
    cr_assert_null(chatml_detect(NULL, 0, &found));
    cr_assert_eq(found.n_system, 0);
    cr_assert_not(found.changes_tools || found.changes_answers);
}

Test(chatml, the_demo_models_template_is_plain_chatml)
{
    is_plain(EACH("") ANSWER);
    cr_assert_not(found.changes_tools || found.changes_answers);
}

Test(chatml, real_line_ends_are_as_good_as_written_ones)
{
    is_plain("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
             "{% if add_generation_prompt %}{{ \"<|im_start|>assistant\n\" }}{% endif %}");
}

Test(chatml, a_default_system_message_is_read)
{
    has_default(EACH(DEFAULT) ANSWER, "You are helpful.");
}

Test(chatml, a_default_system_message_beside_tools_is_read)
{
    has_default(with_tools, "You are a made-up one. You are good.");
    cr_assert(found.changes_tools);
}

Test(chatml, a_line_end_inside_a_default_system_message_is_one)
{
    has_default(EACH(SYSTEM("Be brief.\\nBe kind.")) ANSWER, "Be brief.\nBe kind.");
}

Test(chatml, a_default_system_message_that_cannot_be_read_is_refused)
{
    is_refused(EACH(SYSTEM("Answer in \\\\boxed{}.")) ANSWER, "cannot be read");
    is_refused(EACH(SYSTEM("Today is ' + date + '.")) ANSWER, "cannot be read");
    is_refused("{% set default = 'You are helpful.' %}" EACH("") ANSWER, "cannot be read");
    is_refused("{% set system_message = 'Be brief.' %}" EACH("") ANSWER, "cannot be read");
    is_refused("{{ '<|im_start|>system\\nBe brief.", "");
}

Test(chatml, a_default_system_message_longer_than_its_room_is_refused)
{
    char text[2 * CHATML_MAX_SYSTEM], system[CHATML_MAX_SYSTEM + 2];
    memset(system, 'a', sizeof system);
    system[CHATML_MAX_SYSTEM + 1] = '\0';
    snprintf(text, sizeof text, SYSTEM("%s") "%s", system, EACH("") ANSWER);
    is_refused(text, "cannot be read");
    system[CHATML_MAX_SYSTEM] = '\0';
    snprintf(text, sizeof text, SYSTEM("%s") "%s", system, EACH("") ANSWER);
    has_default(text, system);
}

Test(chatml, two_default_system_messages_are_refused)
{
    is_refused(SYSTEM("Be brief.") SYSTEM("Be kind.") EACH("") ANSWER, "several");
}

Test(chatml, templates_of_other_families_are_refused)
{
    is_refused("{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + "
               "m['content'] | trim + '<|eot_id|>' }}{% endfor %}",
               "is not ChatML");
    is_refused("", "is not ChatML");
}

Test(chatml, a_template_that_trims_is_refused)
{
    is_refused("{{ '<|im_start|>user\\n' + message['content'] | trim + '<|im_end|>\\n' }}" ANSWER, "trims");
}

Test(chatml, a_message_without_a_line_end_is_refused)
{
    is_refused("{{ '<|im_start|>user\\n' + message['content'] + '<|im_end|>' }}" ANSWER, "line");
    is_refused(EACH("") ANSWER "<|im_end|>", "line");
}

Test(chatml, an_answer_that_begins_with_a_thought_is_refused)
{
    is_refused(EACH("") "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}",
               "begins an answer");
    is_refused(
        EACH(
            "") "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{{ '<think>\\n' }}{% endif %}",
        "begins an answer");
    is_refused(EACH(""), "begins an answer");
}

Test(chatml, thoughts_that_a_client_must_switch_off_are_not_in_the_way)
{
    is_plain(EACH("") "{%- if add_generation_prompt %}\n{{- '<|im_start|>assistant\\n' }}\n"
                      "{%- if enable_thinking is defined and enable_thinking is false %}\n"
                      "{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}");
    cr_assert(found.changes_answers);
}

/* What a file says is not to be trusted: nothing beyond a template's end is read, wherever it ends. */
Test(chatml, a_template_cut_anywhere_is_read_to_its_end_only)
{
    for (size_t n = 0; n < sizeof with_tools; n++) {
        char *copy = malloc(n ? n : 1);
        memcpy(copy, with_tools, n);
        const char *why = chatml_detect(copy, n, &found);
        cr_assert(why || n > sizeof with_tools - 40, "taken at %zu", n);
        free(copy);
    }
}
