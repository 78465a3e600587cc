/* toolcall_formats.c - the formats: data alone. Sources: the chat templates of the models themselves. */
#include "toolcall_private.h"

static const struct tags coder_tags = {
    .open = "<function=",
    .open_end = ">",
    .close = "</function>",
    .param = "<parameter=",
    .key_end = ">",
    .value = "",
    .value_end = "</parameter>",
    .section_end = "</tool_call>",
    .strips_newline = true,
};
static const struct tags glm_tags = {
    .open = "",
    .open_end = "",
    .close = "</tool_call>",
    .param = "<arg_key>",
    .key_end = "</arg_key>",
    .value = "<arg_value>",
    .value_end = "</arg_value>",
};
static const struct tags dsml_tags = {
    .open = "<｜DSML｜invoke name=\"",
    .open_end = "\">",
    .close = "</｜DSML｜invoke>",
    .param = "<｜DSML｜parameter name=\"",
    .key_end = "\"",
    .value = ">",
    .value_end = "</｜DSML｜parameter>",
    .section_end = "</｜DSML｜function_calls>",
};
static const struct tags minimax_tags = {
    .open = "<invoke name=\"",
    .open_end = "\">",
    .close = "</invoke>",
    .param = "<parameter name=\"",
    .key_end = "\"",
    .value = ">",
    .value_end = "</parameter>",
    .section_end = "</minimax:tool_call>",
};

#define THINK    .think = "<think>"
#define BRACKETS .think = "[THINK]"

/* clang-format off */
#define THINK_MARKS {"<think>", MARK_THINK, false}, {"</think>", MARK_THINK_END, false}
#define TOOL_CALL_MARKS {"<tool_call>", MARK_CALL, false}, {"</tool_call>", MARK_CALL_END, false}
#define MISTRAL_MARKS {"[TOOL_CALLS]", MARK_MISTRAL, false}, {"[THINK]", MARK_THINK, false}, {"[/THINK]", MARK_THINK_END, false}
/* With full-width bars and, as distills write them, with ASCII's. */
#define DEEPSEEK_MARKS THINK_MARKS, \
    {"<｜tool▁calls▁begin｜>", MARK_SECTION, true}, {"<｜tool▁call▁begin｜>", MARK_DEEPSEEK, true}, \
    {"<｜tool▁call▁end｜>", MARK_CALL_END, false}, {"<｜tool▁calls▁end｜>", MARK_CALL_END, false}, \
    {"<|tool_calls_begin|>", MARK_SECTION, true}, {"<|tool_call_begin|>", MARK_DEEPSEEK, true}, \
    {"<|tool_call_end|>", MARK_CALL_END, false}, {"<|tool_calls_end|>", MARK_CALL_END, false}

/* The order is that of choosing: the first whose marks are all in the template. */
static const struct toolcall_format formats[] = {
    {.name = "harmony", /* gpt-oss: channels and recipients */ .harmony = true,
     .marks = {{"<|end|>", MARK_HARMONY_END, true}, {"<|return|>", MARK_HARMONY_END, true},
               {"<|call|>", MARK_HARMONY_END, true}, {"<|start|>", MARK_HARMONY_HEADER, true},
               {"<|channel|>", MARK_HARMONY_HEADER, true}, {"<|message|>", MARK_DROP, false},
               {"<|constrain|>", MARK_DROP, false}},
     .template_marks = {"<|channel|>", "<|message|>"}},
    {.name = "gemma4", /* Gemma 4: call:name{key:value}, reasoning in a channel */
     .think = "<|channel>thought",
     .marks = {{"<|channel>thought", MARK_THINK, false}, {"<channel|>", MARK_THINK_END, false},
               {"<|tool_call>", MARK_GEMMA, false}, {"<tool_call|>", MARK_CALL_END, false}, {"<|\"|>", MARK_DROP, false}},
     .inner = {"<|channel>"}, .template_marks = {"<|tool_call>", "call:"}},
    {.name = "deepseek-v3.2", /* DeepSeek V3.2, V4: DSML tags */ THINK, .tags = &dsml_tags,
     .marks = {THINK_MARKS, {"<｜DSML｜function_calls>", MARK_SECTION, true}, {"<｜DSML｜tool_calls>", MARK_SECTION, true},
               {"<｜DSML｜invoke name=\"", MARK_FUNCTION, true}, {"</｜DSML｜invoke>", MARK_CALL_END, false},
               {"</｜DSML｜function_calls>", MARK_CALL_END, false}, {"</｜DSML｜tool_calls>", MARK_CALL_END, false}},
     .inner = {"｜DSML｜"}, .template_marks = {"｜DSML｜"}},
    {.name = "deepseek-r1", /* DeepSeek R1, V3 and distills: type, name, fenced JSON */ THINK,
     .marks = {DEEPSEEK_MARKS}, .inner = {"<｜tool▁sep｜>", "<|tool_sep|>"},
     .template_marks = {"<｜tool▁call▁begin｜>", "```json"}},
    {.name = "deepseek-v3.1", /* DeepSeek V3.1: name, separator, JSON */ THINK,
     .marks = {DEEPSEEK_MARKS}, .inner = {"<｜tool▁sep｜>", "<|tool_sep|>"}, .template_marks = {"<｜tool▁call▁begin｜>"}},
    {.name = "kimi-k2", /* Kimi K2: functions.name:0 and JSON */ THINK,
     .marks = {THINK_MARKS, {"<|tool_calls_section_begin|>", MARK_SECTION, true}, {"<|tool_call_begin|>", MARK_KIMI, true},
               {"<|tool_call_end|>", MARK_CALL_END, false}, {"<|tool_calls_section_end|>", MARK_CALL_END, false}},
     .inner = {"<|tool_call_argument_begin|>"}, .template_marks = {"<|tool_call_argument_begin|>"}},
    {.name = "command-r7b", /* Command R7B, Command A: a JSON list as action */
     .think = "<|START_THINKING|>",
     .marks = {{"<|START_THINKING|>", MARK_THINK, false}, {"<|END_THINKING|>", MARK_THINK_END, false},
               {"<|START_ACTION|>", MARK_CALL, false}, {"<|END_ACTION|>", MARK_CALL_END, false},
               {"<|START_RESPONSE|>", MARK_DROP, false}, {"<|END_RESPONSE|>", MARK_DROP, false},
               {"<|START_TEXT|>", MARK_DROP, false}, {"<|END_TEXT|>", MARK_DROP, false}},
     .template_marks = {"<|START_ACTION|>"}},
    {.name = "minimax", /* MiniMax M2: <invoke name=...> */ THINK, .tags = &minimax_tags,
     .marks = {THINK_MARKS, {"<minimax:tool_call>", MARK_SECTION, true}, {"</minimax:tool_call>", MARK_CALL_END, false},
               {"<invoke name=\"", MARK_FUNCTION, true}},
     .template_marks = {"<minimax:tool_call>"}},
    {.name = "lfm2", /* LFM2: Python calls in a list */ THINK,
     .marks = {THINK_MARKS, {"<|tool_call_start|>", MARK_LIST, false}, {"<|tool_call_end|>", MARK_CALL_END, false}},
     .template_marks = {"<|tool_call_start|>"}},
    {.name = "glm-4.7", /* GLM-4.7 and later: the same without newlines */ THINK, .tags = &glm_tags,
     .marks = {THINK_MARKS, TOOL_CALL_MARKS}, .template_marks = {"<arg_key>", "</arg_key><arg_value>"}},
    {.name = "glm-4.6", /* GLM-4.5, 4.6: a name, arg_key and arg_value */ THINK, .tags = &glm_tags,
     .marks = {THINK_MARKS, TOOL_CALL_MARKS}, .template_marks = {"<arg_key>"}},
    {.name = "qwen3.5", /* Qwen3.5 and later: Qwen3-Coder's calls, reasoning */ THINK, .tags = &coder_tags,
     .marks = {THINK_MARKS, TOOL_CALL_MARKS, {"<function=", MARK_FUNCTION, false}},
     .template_marks = {"<function=", "<parameter=", "<think>"}},
    {.name = "qwen3-coder", /* Qwen3-Coder: <function=...><parameter=...> */ .tags = &coder_tags,
     .marks = {TOOL_CALL_MARKS, {"<function=", MARK_FUNCTION, false}}, .template_marks = {"<function=", "<parameter="}},
    {.name = "mistral-callid", /* Mistral Small 3.2: [TOOL_CALLS]name[CALL_ID]id[ARGS]{...} */ BRACKETS,
     .marks = {MISTRAL_MARKS}, .inner = {"[CALL_ID]", "[ARGS]"}, .template_marks = {"[CALL_ID]", "[ARGS]"}},
    {.name = "mistral-args", /* Devstral, Magistral, Ministral 3: [TOOL_CALLS]name[ARGS]{...} */ BRACKETS,
     .marks = {MISTRAL_MARKS}, .inner = {"[CALL_ID]", "[ARGS]"}, .template_marks = {"[TOOL_CALLS]", "[ARGS]"}},
    {.name = "mistral-nemo", /* Mistral 7B v0.3, Nemo: [TOOL_CALLS] and a JSON list */ BRACKETS,
     .marks = {MISTRAL_MARKS}, .template_marks = {"[TOOL_CALLS]"}},
    {.name = "phi-4-mini", /* Phi-4-mini: JSON between <|tool_call|> and <|/tool_call|> */ THINK,
     .marks = {THINK_MARKS, {"<|tool_call|>", MARK_CALL, false}, {"<|/tool_call|>", MARK_CALL_END, false}},
     .template_marks = {"<|tool_call|>", "<|/tool_call|>"}},
    {.name = "granite", /* Granite 3.x: <|tool_call|> and a JSON list; response tags */ THINK,
     .marks = {THINK_MARKS, {"<|tool_call|>", MARK_CALL, false}, {"<response>", MARK_DROP, false},
               {"</response>", MARK_DROP, false}},
     .template_marks = {"<|tool_call|>"}},
    {.name = "hermes", /* Hermes 2/3, Qwen2.5, QwQ, Qwen3: JSON in <tool_call> */ THINK,
     .marks = {THINK_MARKS, TOOL_CALL_MARKS}, .template_marks = {"<tool_call>"}},
    {.name = "llama3-json", /* Llama 3.1 to 3.3: a bare JSON object with parameters */ .bare = true,
     .marks = {{"<|python_tag|>", MARK_PYTHON, false}, {"<function=", MARK_LLAMA, false}, {"</function>", MARK_CALL_END, false}},
     .template_marks = {"<|start_header_id|>", "parameters"}},
    {.name = "think", /* no calls; reasoning between <think> and </think> */ THINK,
     .marks = {THINK_MARKS}, .template_marks = {"<think>"}},
    {.name = "none"}, /* no calls, no reasoning: all is text */
};
/* clang-format on */
#define N_FORMATS (sizeof formats / sizeof *formats)

size_t toolcall_n_formats(void)
{
    return N_FORMATS;
}

const struct toolcall_format *toolcall_format_at(size_t i)
{
    return &formats[i];
}

const struct toolcall_format *toolcall_format_find(const char *name)
{
    for (size_t i = 0; i < N_FORMATS; i++)
        if (!strcmp(formats[i].name, name))
            return &formats[i];
    return NULL;
}

const char *toolcall_format_name(const struct toolcall_format *f)
{
    return f->name;
}

const char *toolcall_format_mark(const struct toolcall_format *f, size_t i)
{
    size_t n = 0;
    while (f->marks[n].action)
        n++;
    if (i < n)
        return f->marks[i].s;
    i -= n;
    const struct tags none = {0}, *t = f->tags ? f->tags : &none;
    const char *const rest[] = {t->param, t->key_end,  t->value,    t->value_end,
                                t->close, f->inner[0], f->inner[1], f->inner[2]};
    for (size_t k = 0; k < sizeof rest / sizeof *rest; k++)
        if (rest[k] && *rest[k] && !i--)
            return rest[k];
    return NULL;
}

bool toolcall_format_reasons(const struct toolcall_format *f)
{
    return f->think || f->harmony;
}

bool toolcall_format_calls(const struct toolcall_format *f)
{
    if (f->bare || f->harmony)
        return true;
    for (const struct mark *m = f->marks; m->action; m++)
        if (m->action >= MARK_CALL)
            return true;
    return false;
}

static bool writes(const struct toolcall_format *f, const char *source, size_t n)
{
    for (size_t i = 0; i < sizeof f->template_marks / sizeof *f->template_marks && f->template_marks[i]; i++)
        if (!memmem(source, n, f->template_marks[i], strlen(f->template_marks[i])))
            return false;
    return f->template_marks[0] || !strcmp(f->name, "none");
}

const struct toolcall_format *toolcall_format_of_template(const char *source, size_t n)
{
    size_t i = 0;
    while (!writes(&formats[i], source, n))
        i++;
    return &formats[i];
}
