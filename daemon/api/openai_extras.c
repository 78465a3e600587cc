/* openai_extras.c - fields that clients of other servers (vLLM, SGLang, llama-server, LM Studio, DeepSeek,
 * OpenRouter, Mistral) send to OpenAI's routes beside OpenAI's own. What does the same here works under its
 * name there; what only labels is ignored; of the rest the value that asks for nothing passes, and any other
 * is refused by name. */
#include "api_chat.h"
#include "api_openai_private.h"

#include <string.h>

#define NEUTRAL(n, v)                                                                                        \
    {                                                                                                        \
        .name = n, .kind = FIELD_CUSTOM, .min = v, .max = v, .read = read_neutral                            \
    }
#define TRUE_ONLY(n)                                                                                         \
    {                                                                                                        \
        .name = n, .kind = FIELD_CUSTOM, .read = read_true                                                   \
    }
#define CUSTOM(n, reader)                                                                                    \
    {                                                                                                        \
        .name = n, .kind = FIELD_CUSTOM, .read = reader                                                      \
    }

/* A number that has no effect at one value. */
static int read_neutral(struct field_reader *r, const struct field *f, const json_t *value)
{
    if (json_is_number(value) && json_number_value(value) == f->min)
        return 0;
    return api_invalid(r->err, f->name, "%s must be %g: it is not supported (got %s)", f->name, f->min,
                       field_got(value));
}

/* A switch that is always on here. */
static int read_true(struct field_reader *r, const struct field *f, const json_t *value)
{
    if (json_is_true(value))
        return 0;
    return api_invalid(r->err, f->name, "%s must be true: nothing else is supported (got %s)", f->name,
                       field_got(value));
}

/* -1: all that fits. */
static int read_length(struct field_reader *r, const struct field *f, const json_t *value)
{
    bool all = json_is_integer(value) && json_integer_value(value) == -1;
    return all ? 0 : read_max_tokens(r, f, value);
}

/* -1: off. */
static int read_top_k(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    int64_t n;
    if (field_integer(r, f->name, value, -1, 2147483647, &n) < 0)
        return -1;
    p->top_k = n < 0 ? 0 : (uint32_t)n;
    return 0;
}

/* -1: all that a penalty can look at. */
static int read_last_n(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    int64_t n;
    if (field_integer(r, f->name, value, -1, STEP_MAX_HISTORY, &n) < 0)
        return -1;
    p->penalty_last_n = n < 0 ? STEP_MAX_HISTORY : (uint32_t)n;
    return 0;
}

/* -1: a random one. */
static int read_seed(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    int64_t n;
    if (field_integer(r, f->name, value, -1, 9007199254740991.0, &n) < 0)
        return -1;
    p->has_seed = n >= 0;
    p->seed = n < 0 ? 0 : (uint64_t)n;
    return 0;
}

/* OpenRouter's {"include": true}; whole replies have it always. */
static int read_usage(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    const json_t *include = json_object_get(value, "include");
    if (!json_is_object(value) || (include && !json_is_boolean(include)))
        return api_invalid(r->err, f->name, "%s must be an object with include, true or false (got %s)",
                           f->name, field_got(value));
    p->include_usage |= json_is_true(include);
    return 0;
}

const struct field openai_extras[] = {
    CUSTOM("max_tokens", read_length),
    CUSTOM("max_completion_tokens", read_length),
    CUSTOM("n_predict", read_length),
    CUSTOM("top_k", read_top_k),
    CUSTOM("seed", read_seed),
    CUSTOM("random_seed", read_seed),
    CUSTOM("usage", read_usage),
    {.name = "repeat_penalty", .kind = FIELD_FLOAT, .offset = AT(repetition_penalty), .min = 0.01, .max = 10},
    CUSTOM("repeat_last_n", read_last_n),
    {.name = "typ_p", .kind = FIELD_FLOAT, .offset = AT(typical_p), .max = 1},
    {.name = "no_stop_trim", .kind = FIELD_BOOL, .offset = AT(include_stop_str_in_output)},
    IGNORED("backend_sampling"),
    IGNORED("cache_control"),
    IGNORED("id_slot"),
    IGNORED("keep_alive"),
    IGNORED("mm_processor_kwargs"),
    IGNORED("n_cache_reuse"),
    IGNORED("n_keep"),   /* no context is shifted */
    IGNORED("provider"), /* there is one */
    IGNORED("request_id"),
    IGNORED("return_progress"),
    IGNORED("spaces_between_special_tokens"),
    IGNORED("sse_ping_interval"),
    IGNORED("stream_reasoning"),
    IGNORED("timings_per_token"),
    IGNORED("ttl"),
    TRUE_ONLY("include_reasoning"),
    TRUE_ONLY("parse_tool_calls"),
    TRUE_ONLY("separate_reasoning"),
    TRUE_ONLY("skip_special_tokens"),
    NEUTRAL("length_penalty", 1),
    NEUTRAL("min_keep", 0),
    NEUTRAL("n_indent", 0),
    NEUTRAL("n_probs", 0),
    NEUTRAL("t_max_predict_ms", 0),
    NEUTRAL("tfs_z", 1),
    NEUTRAL("top_a", 0),
    INERT("add_special_tokens"),
    INERT("allowed_token_ids"),
    INERT("cache_salt"),
    INERT("chat_template"),
    INERT("early_stopping"),
    INERT("kv_transfer_params"),
    INERT("logits_processors"),
    INERT("lora"),
    INERT("lora_path"),
    INERT("post_sampling_probs"),
    INERT("plugins"),
    INERT("response_fields"),
    INERT("return_hidden_states"),
    INERT("return_token_ids"),
    INERT("return_tokens"),
    INERT("return_tokens_as_token_ids"),
    INERT("safe_prompt"),
    INERT("transforms"),
    INERT("use_beam_search"),
    INERT("vllm_xargs"),
    {0},
};

/* --- those of chats alone --- */

/* Reasoning on or off; an effort that is given beside it holds. */
static void set_thinking(struct params *p, bool on)
{
    if (!p->reasoning_effort)
        p->reasoning_effort = on ? "high" : "none";
}

static int read_enable_thinking(struct field_reader *r, const struct field *f, const json_t *value)
{
    if (!json_is_boolean(value))
        return api_invalid(r->err, f->name, "%s must be true or false (got %s)", f->name, field_got(value));
    set_thinking(r->out, json_is_true(value));
    return 0;
}

/* Ollama's: true, false or an effort. */
static int read_think(struct field_reader *r, const struct field *f, const json_t *value)
{
    return json_is_string(value) ? openai_read_effort(r, f, value) : read_enable_thinking(r, f, value);
}

/* {"type": "enabled", "disabled" or "auto"} */
static int read_thinking(struct field_reader *r, const struct field *f, const json_t *value)
{
    const char *type = json_string_value(json_object_get(value, "type"));
    bool off = type && !strcmp(type, "disabled");
    if (!type || (!off && strcmp(type, "enabled") && strcmp(type, "auto") && strcmp(type, "adaptive")))
        return api_invalid(r->err, f->name, "%s.type must be enabled, disabled, adaptive or auto (got %s)",
                           f->name, field_got_word(json_object_get(value, "type")));
    if (off || !strcmp(type, "enabled"))
        set_thinking(r->out, !off);
    return 0;
}

/* {"effort", "enabled"}; other members pass. */
static int read_reasoning(struct field_reader *r, const struct field *f, const json_t *value)
{
    const json_t *effort = json_object_get(value, "effort"), *enabled = json_object_get(value, "enabled");
    if (!json_is_object(value))
        return api_invalid(r->err, f->name, "%s must be an object (got %s)", f->name, field_got(value));
    if (effort && !json_is_null(effort))
        return openai_read_effort(r, &(const struct field){.name = "reasoning.effort"}, effort);
    if (json_is_boolean(enabled))
        set_thinking(r->out, json_is_true(enabled));
    return 0;
}

/* Mistral's: "reasoning". */
static int read_prompt_mode(struct field_reader *r, const struct field *f, const json_t *value)
{
    const char *given = json_string_value(value);
    if (!given || strcmp(given, "reasoning"))
        return api_invalid(r->err, f->name, "%s must be reasoning (got %s)", f->name, field_got_word(value));
    set_thinking(r->out, true);
    return 0;
}

/* The reasoning always is a member of its own. */
static int read_reasoning_format(struct field_reader *r, const struct field *f, const json_t *value)
{
    const char *given = json_string_value(value);
    if (given && (!strcmp(given, "auto") || !strcmp(given, "deepseek")))
        return 0;
    return api_invalid(r->err, f->name, "%s must be auto or deepseek: nothing else is supported (got %s)",
                       f->name, field_got_word(value));
}

const struct field chat_extras[] = {
    CUSTOM("enable_thinking", read_enable_thinking),
    CUSTOM("think", read_think),
    CUSTOM("thinking", read_thinking),
    CUSTOM("reasoning", read_reasoning),
    CUSTOM("reasoning_format", read_reasoning_format),
    CUSTOM("prompt_mode", read_prompt_mode),
    NEUTRAL("best_of", 1),
    INERT("echo"),
    {0},
};
