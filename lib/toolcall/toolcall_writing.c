/* toolcall_writing.c - how calls are written: data, by format. */
#include "toolcall_writing.h"
#include "toolcall_private.h"

#define JSON_CALL "{\"name\": \"\1\", \"arguments\": \2}"

static const struct toolcall_writing writings[] = {
    {.format = "hermes",
     .begin = "",
     .call = "<tool_call>\n" JSON_CALL "\n</tool_call>",
     .between = "\n",
     .end = ""},
    {.format = "qwen3-coder",
     .begin = "",
     .call = "<tool_call>\n<function=\1>\n\2</function>\n</tool_call>",
     .between = "\n",
     .param = "<parameter=\1>\n\2\n</parameter>\n",
     .end = ""},
    {.format = "qwen3.5",
     .begin = "",
     .call = "<tool_call>\n<function=\1>\n\2</function>\n</tool_call>",
     .between = "\n",
     .param = "<parameter=\1>\n\2\n</parameter>\n",
     .end = ""},
    {.format = "glm-4.6",
     .begin = "",
     .call = "<tool_call>\1\n\2</tool_call>",
     .between = "\n",
     .param = "<arg_key>\1</arg_key>\n<arg_value>\2</arg_value>\n",
     .end = ""},
    {.format = "glm-4.7",
     .begin = "",
     .call = "<tool_call>\1\2</tool_call>",
     .between = "",
     .param = "<arg_key>\1</arg_key><arg_value>\2</arg_value>",
     .end = ""},
    {.format = "minimax",
     .begin = "<minimax:tool_call>\n",
     .call = "<invoke name=\"\1\">\n\2</invoke>\n",
     .between = "",
     .param = "<parameter name=\"\1\">\2</parameter>\n",
     .end = "</minimax:tool_call>"},
    {.format = "deepseek-v3.2",
     .begin = "<｜DSML｜function_calls>\n",
     .call = "<｜DSML｜invoke name=\"\1\">\n\2</｜DSML｜invoke>\n",
     .between = "",
     .param = "<｜DSML｜parameter name=\"\1\" string=\"\4\">\2</｜DSML｜parameter>\n",
     .end = "</｜DSML｜function_calls>"},
    {.format = "deepseek-v3.1",
     .begin = "<｜tool▁calls▁begin｜>",
     .call = "<｜tool▁call▁begin｜>\1<｜tool▁sep｜>\2<｜tool▁call▁end｜>",
     .between = "",
     .end = "<｜tool▁calls▁end｜>"},
    {.format = "deepseek-r1",
     .begin = "<｜tool▁calls▁begin｜>",
     .call = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>\1\n```json\n\2\n```<｜tool▁call▁end｜>",
     .between = "\n",
     .end = "<｜tool▁calls▁end｜>"},
    {.format = "kimi-k2",
     .begin = "<|tool_calls_section_begin|>",
     .call = "<|tool_call_begin|>functions.\1:0<|tool_call_argument_begin|>\2<|tool_call_end|>",
     .between = "",
     .end = "<|tool_calls_section_end|>"},
    {.format = "mistral-nemo", .begin = "[TOOL_CALLS][", .call = JSON_CALL, .between = ", ", .end = "]"},
    {.format = "mistral-args", .begin = "", .call = "[TOOL_CALLS]\1[ARGS]\2", .between = "", .end = ""},
    {.format = "mistral-callid",
     .begin = "",
     .call = "[TOOL_CALLS]\1[CALL_ID]\3[ARGS]\2",
     .between = "",
     .end = ""},
    {.format = "phi-4-mini",
     .begin = "<|tool_call|>[",
     .call = JSON_CALL,
     .between = ", ",
     .end = "]<|/tool_call|>"},
    {.format = "granite", .begin = "<|tool_call|>[", .call = JSON_CALL, .between = ", ", .end = "]"},
    {.format = "command-r7b",
     .begin = "<|START_ACTION|>[",
     .call = "{\"tool_call_id\": \"0\", \"tool_name\": \"\1\", \"parameters\": \2}",
     .end = "]<|END_ACTION|>"},
    {.format = "llama3-json", .begin = "", .call = "{\"name\": \"\1\", \"parameters\": \2}", .end = ""},
    {.format = "harmony", /* <|call|>, which ends it, is an end token */
     .begin = "",
     .call = "<|channel|>commentary to=functions.\1 <|constrain|>json<|message|>\2",
     .end = ""},
};

const struct toolcall_writing *toolcall_writing_of(const struct toolcall_format *f)
{
    for (size_t i = 0; i < sizeof writings / sizeof *writings; i++)
        if (!strcmp(writings[i].format, f->name))
            return &writings[i];
    return NULL;
}

bool toolcall_value_end(const struct toolcall_format *f, size_t i, struct toolcall_end_mark *out)
{
    const struct tags none = {0}, *t = f->tags ? f->tags : &none;
    const struct toolcall_end_mark all[] = {
        {"", t->value_end, t->param},
        {"", t->value_end, t->close},
        {"", t->value_end, t->section_end},
        {"", t->value_end, t->open},
        {"", t->close, t->close},
        {"", t->close, t->section_end},
        {"", t->close, t->open},
        {"\n", t->strips_newline ? t->param : NULL, NULL},
    };
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        bool follows = k + 1 == sizeof all / sizeof *all || (all[k].then && *all[k].then);
        if (all[k].mark && follows && !i--) {
            *out = all[k];
            return true;
        }
    }
    return false;
}

struct toolcall_reasoning toolcall_reasoning_of(const struct toolcall_format *f)
{
    struct toolcall_reasoning r = {f->think, NULL};
    if (f->harmony)
        return (struct toolcall_reasoning){"<|channel|>analysis<|message|>", "<|end|><|start|>assistant"};
    for (const struct mark *m = f->marks; f->think && m->action; m++)
        if (m->action == MARK_THINK_END)
            r.close = m->s;
    return r;
}

const char *toolcall_mark_in_reasoning(const struct toolcall_format *f, size_t i)
{
    for (const struct mark *m = f->marks; m->action; m++)
        if ((m->action == MARK_THINK_END || m->in_reasoning) && !i--)
            return m->s;
    return NULL;
}

const char *toolcall_answer_header(const struct toolcall_format *f)
{
    return f->harmony ? "<|channel|>final<|message|>" : "";
}

bool toolcall_reasoning_is_open(const struct toolcall_format *f, const char *prompt, size_t n)
{
    size_t len = f->think ? strlen(f->think) : 0;
    while (n && toolcall_is_blank(prompt[n - 1]))
        n--;
    return len && n >= len && !memcmp(prompt + n - len, f->think, len);
}

const char *toolcall_call_mark(const struct toolcall_format *f, size_t i)
{
    if (f->harmony)
        return i ? NULL : TOOLCALL_RECIPIENT;
    for (const struct mark *m = f->marks; m->action; m++)
        if (m->action >= MARK_SECTION && m->action <= MARK_LIST && !i--)
            return m->s;
    return NULL;
}

bool toolcall_call_ends_reasoning(const struct toolcall_format *f)
{
    for (const struct mark *m = f->marks; m->action; m++)
        if (m->action >= MARK_SECTION && m->action <= MARK_LIST && m->in_reasoning)
            return true;
    return f->harmony;
}

bool toolcall_is_bare(const struct toolcall_format *f)
{
    return f->bare;
}
