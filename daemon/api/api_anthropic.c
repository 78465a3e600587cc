/* api_anthropic.c - Anthropic's dialect: POST /v1/messages and /v1/messages/count_tokens. The body is
 * translated into a chat; members that are not known are labels or features of their service and pass. */
#include "api.h"
#include "api_chat.h"
#include "model/model.h"

#include <string.h>

#define MAX_PATH 128 /* the place of a member in the body, as errors name it */

/* --- the body --- */

/* Claude Code's billing header: a nonce in it would spoil every prefix hit. */
static bool is_label(const char *text)
{
    static const char label[] = "x-anthropic-";
    return !strncmp(text, label, sizeof label - 1);
}

static bool is_type(const json_t *block, const char *type)
{
    const char *given = chat_json_word(block, "type");
    return given && !strcmp(given, type);
}

static void gather_word(struct chat_json *c, const json_t *object, const char *name)
{
    const char *word = chat_json_word(object, name);
    if (word)
        chat_json_gather(c, word);
}

/* Gathers a search result: its title, its source and its texts. */
static void gather_search_result(struct chat_json *c, const json_t *block, const char *path)
{
    const json_t *content = json_object_get(block, "content");
    const char *text;
    char place[MAX_PATH + sizeof ".content[12345678901234567890]"];
    gather_word(c, block, "title");
    gather_word(c, block, "source");
    (void)snprintf(place, sizeof place, "%s.content", path);
    if (!json_is_array(content))
        api_invalid(c->err, place, "%s must be an array (got %s)", place, field_got(content));
    for (size_t i = 0; i < json_array_size(content); i++) {
        (void)snprintf(place, sizeof place, "%s.content[%zu]", path, i);
        if ((text = chat_json_need(c, json_array_get(content, i), place, "text")))
            chat_json_gather(c, text);
    }
}

/* Gathers a block's text. Images and documents that are no plain text are refused by name; a block of another
 * type has no text that the model could read. */
static void gather_block(struct chat_json *c, const json_t *block, const char *path)
{
    const json_t *source = json_object_get(block, "source");
    const char *type = chat_json_need(c, block, path, "type"), *text;
    if (!type)
        return;
    if (!strcmp(type, "document") && is_type(source, "text")) {
        char place[MAX_PATH + sizeof ".source"];
        gather_word(c, block, "title");
        (void)snprintf(place, sizeof place, "%s.source", path);
        if ((text = chat_json_need(c, source, place, "data")))
            chat_json_gather(c, text);
    } else if (!strcmp(type, "search_result")) {
        gather_search_result(c, block, path);
    } else if (!strcmp(type, "image") || !strcmp(type, "document")) {
        api_invalid(c->err, path, "%s.type must be \"text\": the model reads text only (got \"%s\")", path,
                    type);
    } else if (!strcmp(type, "text") && (text = chat_json_need(c, block, path, "text")) && !is_label(text)) {
        chat_json_gather(c, text);
    }
}

/* Sets a message's content to the text of a string or of blocks, behind what is gathered. */
static void read_text(struct chat_json *c, json_t *message, const json_t *content, const char *path)
{
    char place[MAX_PATH];
    field_has_shape(content, path, SHAPE_STRING | SHAPE_ARRAY, c->err);
    if (json_is_string(content) && !is_label(json_string_value(content)))
        chat_json_gather(c, json_string_value(content));
    for (size_t i = 0; i < json_array_size(content); i++) {
        (void)snprintf(place, sizeof place, "%s[%zu]", path, i);
        gather_block(c, json_array_get(content, i), place);
    }
    chat_json_text(c, message, "content");
}

static void read_system(struct chat_json *c, const json_t *system)
{
    if (!json_is_string(system) && !json_array_size(system))
        return;
    json_t *message = chat_json_message(c, "system");
    read_text(c, message, system, "system");
    if (!json_object_get(message, "content"))
        json_array_clear(c->messages);
}

/* Results come first: each is a message of its own. */
static void read_user(struct chat_json *c, const json_t *content, const char *path)
{
    bool others = json_is_string(content);
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i);
        others |= !is_type(block, "tool_result");
        if (!is_type(block, "tool_result"))
            continue;
        json_t *message = chat_json_message(c, "tool"), *id = json_object_get(block, "tool_use_id");
        if (json_is_string(id))
            chat_json_put(c, message, "tool_call_id", json_incref(id));
        if (json_is_true(json_object_get(block, "is_error")))
            chat_json_gather(c, "Error:");
        char inner[MAX_PATH];
        (void)snprintf(inner, sizeof inner, "%s[%zu].content", path, i);
        read_text(c, message, json_object_get(block, "content"), inner);
    }
    if (!others)
        return;
    json_t *message = chat_json_message(c, "user");
    chat_json_put(c, message, "content", json_string(""));
    read_text(c, message, content, path);
}

static void read_assistant(struct chat_json *c, const json_t *content, const char *path)
{
    json_t *message = chat_json_message(c, "assistant");
    char place[MAX_PATH];
    read_text(c, message, content, path);
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i);
        const char *thinking = chat_json_word(block, "thinking"), *name;
        (void)snprintf(place, sizeof place, "%s[%zu]", path, i);
        if (is_type(block, "thinking") && thinking)
            chat_json_gather(c, thinking);
        if (is_type(block, "tool_use") && (name = chat_json_need(c, block, place, "name")))
            chat_json_call(c, message, chat_json_word(block, "id"), name, json_object_get(block, "input"));
    }
    chat_json_text(c, message, "reasoning_content");
}

static void read_message(struct chat_json *c, size_t i, const json_t *given)
{
    const char *role = chat_json_word(given, "role");
    const json_t *content = json_object_get(given, "content");
    char path[48];
    snprintf(path, sizeof path, "messages[%zu].content", i);
    if (!json_is_string(content) && !json_is_array(content)) {
        api_invalid(c->err, path, "%s must be a string or an array of blocks (got %s)", path,
                    field_got(content));
    } else if (role && !strcmp(role, "user")) {
        read_user(c, content, path);
    } else if (role && !strcmp(role, "assistant")) {
        read_assistant(c, content, path);
    } else if (role && !strcmp(role, "system")) {
        read_text(c, chat_json_message(c, "system"), content, path);
    } else {
        snprintf(path, sizeof path, "messages[%zu].role", i);
        api_invalid(c->err, path, "%s must be user, assistant or system (got %s)", path,
                    field_got_word(json_object_get(given, "role")));
    }
}

/* Tools that only Anthropic's servers run have a type and no schema. */
static void read_tool(struct chat_json *c, const json_t *tool, const char *path)
{
    const json_t *schema = json_object_get(tool, "input_schema"), *type = json_object_get(tool, "type");
    const char *name;
    char place[MAX_PATH];
    if (!schema && json_is_string(type) && !is_type(tool, "custom"))
        return;
    (void)snprintf(place, sizeof place, "%s.input_schema", path);
    if (!(name = chat_json_need(c, tool, path, "name")))
        return;
    if (!json_is_object(schema))
        api_invalid(c->err, place, "%s must be an object (got %s)", place, field_got(schema));
    else
        chat_json_tool(c, name, json_object_get(tool, "description"), schema,
                       json_object_get(tool, "strict"));
}

static void read_tools_of(struct chat_json *c, const json_t *tools)
{
    char path[32];
    for (size_t i = 0; i < json_array_size(tools) && !c->err->status; i++) {
        (void)snprintf(path, sizeof path, "tools[%zu]", i);
        read_tool(c, json_array_get(tools, i), path);
    }
}

static void read_choice(struct chat_json *c, const json_t *choice)
{
    if (!choice || json_is_null(choice))
        return;
    if (json_is_true(json_object_get(choice, "disable_parallel_tool_use")))
        chat_json_set(c, "parallel_tool_calls", json_false());
    const char *type = chat_json_need(c, choice, "tool_choice", "type");
    if (!type)
        return;
    const char *name = chat_json_word(choice, "name");
    if (!strcmp(type, "tool") && name)
        chat_json_set(c, "tool_choice",
                      json_pack("{s:s, s:{s:s}}", "type", "function", "function", "name", name));
    else if (strcmp(type, "auto") && strcmp(type, "none") && strcmp(type, "any"))
        api_invalid(c->err, "tool_choice.type",
                    "tool_choice.type must be auto, any, none, or tool with a name (got %s)",
                    field_got_word(json_object_get(choice, "type")));
    else
        chat_json_set(c, "tool_choice", json_string(type));
}

/* Of `adaptive` and `between_tools` the model decides how much it thinks. */
static bool is_thinking(const char *type)
{
    static const char *const types[] = {"enabled", "disabled", "adaptive", "between_tools"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (type && !strcmp(type, types[i]))
            return true;
    return false;
}

static void read_thinking(struct chat_json *c, const json_t *body)
{
    const json_t *thinking = json_object_get(body, "thinking");
    if (thinking && !json_is_null(thinking) && !is_thinking(chat_json_word(thinking, "type")))
        api_invalid(c->err, "thinking.type",
                    "thinking.type must be enabled, disabled, adaptive or between_tools (got %s)",
                    field_got_word(json_object_get(thinking, "type")));
    json_t *effort = json_object_get(json_object_get(body, "output_config"), "effort");
    field_has_shape(effort, "output_config.effort", SHAPE_STRING, c->err);
    if (is_type(thinking, "disabled"))
        chat_json_set(c, "reasoning_effort", json_string("none"));
    else if (json_is_string(effort))
        chat_json_set(c, "reasoning_effort", json_incref(effort));
    else if (is_type(thinking, "enabled"))
        chat_json_set(c, "reasoning_effort", json_string("high"));
    json_t *budget = json_object_get(thinking, "budget_tokens");
    if (is_type(thinking, "enabled") && budget && !json_is_null(budget))
        chat_json_set(c, "thinking_budget", json_incref(budget));
}

/* An answer that the client has begun is gone on with. */
static void read_prefill(struct chat_json *c, const json_t *messages)
{
    size_t n = json_array_size(messages);
    const char *role = n ? chat_json_word(json_array_get(messages, n - 1), "role") : NULL;
    if (role && !strcmp(role, "assistant"))
        chat_json_set(c, "continue_final_message", json_true());
}

/* Refuses the conversations of the tool runner of Anthropic's SDK, of which later requests have the new
 * messages alone. The details of the error (api_anthropic_put_error) make it send all of them. */
static void refuse_thread(struct chat_json *c, const json_t *body)
{
    const json_t *thread = json_object_get(body, "thread");
    if (thread && !json_is_null(thread))
        api_invalid(c->err, "thread",
                    "thread is not supported: no conversation is stored, send all messages");
}

static void read_format(struct chat_json *c, const json_t *body)
{
    const char *path = "output_config.format";
    const json_t *format = json_object_get(json_object_get(body, "output_config"), "format");
    if (!format || json_is_null(format)) {
        path = "output_format"; /* its name while it was a beta */
        format = json_object_get(body, path);
    }
    if (!format || json_is_null(format))
        return;
    char place[sizeof "output_config.format.schema"];
    json_t *schema = json_object_get(format, "schema");
    const char *type = chat_json_need(c, format, path, "type");
    bool is_schema = type && !strcmp(type, "json_schema");
    (void)snprintf(place, sizeof place, "%s.%s", path, is_schema ? "schema" : "type");
    if (type && !is_schema)
        api_invalid(c->err, place, "%s must be json_schema (got %s)", place,
                    field_got_word(json_object_get(format, "type")));
    else if (!json_is_object(schema))
        api_invalid(c->err, place, "%s must be an object (got %s)", place, field_got(schema));
    else
        chat_json_set(c, "response_format",
                      json_pack("{s:s, s:{s:O}}", "type", "json_schema", "json_schema", "schema", schema));
}

static const struct field_name names[] = {
    {"stop", "stop_sequences"},
    {"thinking_budget", "thinking.budget_tokens"},
    {"reasoning_effort", "output_config.effort"},
    {"response_format.json_schema.schema", "output_config.format.schema"},
    {0},
};

static json_t *translate(const json_t *body, struct api_error *err)
{
    static const char *const same[] = {"max_tokens",     "max_tokens", "temperature", "temperature", "top_p",
                                       "top_p",          "top_k",      "top_k",       "stream",      "stream",
                                       "stop_sequences", "stop",       NULL};
    const json_t *messages = json_object_get(body, "messages");
    static const struct field_shape shapes[] = {
        {"model", SHAPE_STRING},
        {"system", SHAPE_STRING | SHAPE_ARRAY},
        {"tools", SHAPE_ARRAY},
        {"tool_choice", SHAPE_OBJECT},
        {"thinking", SHAPE_OBJECT},
        {"output_config", SHAPE_OBJECT},
        {0},
    };
    struct chat_json c;
    if (fields_have_shapes(body, shapes, err) < 0 || chat_json_open(&c, err) < 0)
        return NULL;
    refuse_thread(&c, body);
    read_system(&c, json_object_get(body, "system"));
    if (!json_array_size(messages))
        api_invalid(err, "messages", "messages must be an array of at least one message (got %s)",
                    field_got(messages));
    for (size_t i = 0; i < json_array_size(messages) && !err->status; i++)
        read_message(&c, i, json_array_get(messages, i));
    read_tools_of(&c, json_object_get(body, "tools"));
    read_choice(&c, json_object_get(body, "tool_choice"));
    read_thinking(&c, body);
    read_prefill(&c, messages);
    read_format(&c, body);
    chat_json_copy(&c, body, same);
    return chat_json_close(&c);
}

/* --- replies --- */

static const char *stop_reason(const struct choice *c)
{
    const char *finish = answer_finish(c);
    if (!strcmp(finish, "length"))
        return "max_tokens";
    return c->answer->n_calls ? "tool_use" : c->text.matched ? "stop_sequence" : "end_turn";
}

/* Members that their types have and that say nothing here. */
#define NOTHING_MORE        ",\"stop_details\":null,\"container\":null"
#define CALLED_BY_THE_MODEL ",\"caller\":{\"type\":\"direct\"}"

static void put_stop(struct buf *out, const struct choice *c)
{
    buf_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", stop_reason(c));
    if (c->text.matched)
        json_put_string(out, c->text.matched->s, c->text.matched->len);
    else
        buf_puts(out, "null");
    buf_puts(out, NOTHING_MORE);
}

/* Tokens read from the cache do not count as input; a stream that a keep-alive began does not know it
 * yet, and its end says it. */
static void put_usage(struct buf *out, const struct generation *g, uint32_t n_output)
{
    uint32_t n_prompt = g->choices->e.n_prompt, n_cached = generation_n_cached(g);
    buf_printf(
        out,
        "\"usage\":{\"input_tokens\":%u,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%u,"
        "\"output_tokens\":%u,\"output_tokens_details\":{\"thinking_tokens\":%u},"
        "\"cache_creation\":null,\"server_tool_use\":null,\"service_tier\":null}",
        n_prompt - n_cached, n_cached, n_output, answer_n_reasoning(g));
}

static void put_head(struct buf *out, const struct generation *g)
{
    buf_printf(out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", g->id);
    chat_put_model(out, g);
    buf_puts(out, ",\"content\":[");
}

/* A text has no `citations`: Anthropic's service leaves them out too, and the AI SDK refuses null there. */
static void put_text_block(struct buf *out, const char *type, const char *name, const struct buf *text)
{
    if (!text->len)
        return;
    buf_printf(out, "%s{\"type\":\"%s\",\"%s\":", out->p[out->len - 1] == '[' ? "" : ",", type, name);
    json_put_string(out, text->p, text->len);
    buf_puts(out, !strcmp(type, "text") ? "}" : ",\"signature\":\"\"}");
}

static void put_content(struct buf *out, const struct answer *a)
{
    put_text_block(out, "thinking", "thinking", &a->reasoning);
    put_text_block(out, "text", "text", &a->content);
    for (uint32_t i = 0; i < a->n_calls; i++) {
        const struct answer_call *call = &a->calls[i];
        buf_printf(out, "%s{\"type\":\"tool_use\",\"id\":\"toolu_%s\",\"name\":",
                   out->p[out->len - 1] == '[' ? "" : ",", call->id);
        json_put_string(out, call->name.p, call->name.len);
        buf_puts(out, ",\"input\":");
        chat_put_input(out, call);
        buf_puts(out, CALLED_BY_THE_MODEL "}");
    }
}

static void reply(struct generation *g, struct buf *out)
{
    struct choice *c = g->choices;
    answer_take_whole(c);
    put_head(out, g);
    if (!out->failed)
        put_content(out, c->answer);
    buf_puts(out, "],");
    put_stop(out, c);
    buf_puts(out, ",");
    put_usage(out, g, c->n_tokens);
    buf_puts(out, "}\n");
}

static void count(struct generation *g, struct buf *out)
{
    buf_printf(out, "{\"input_tokens\":%u}\n", g->choices->e.n_prompt);
}

/* --- the stream --- */

/* Blocks follow each other: 0 none is open, else the kind of the open one plus 1. */
static void stop_block(struct answer *a, struct buf *out)
{
    if (!a->block)
        return;
    buf_printf(out, "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":%u}\n\n",
               a->n_blocks - 1);
    a->block = 0;
}

static void start_block(struct answer *a, struct buf *out, enum toolcall_kind kind)
{
    stop_block(a, out);
    a->block = (int)kind + 1;
    buf_printf(
        out,
        "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":%u,\"content_block\":",
        a->n_blocks++);
    if (kind == TOOLCALL_TEXT) {
        buf_puts(out, "{\"type\":\"text\",\"text\":\"\"}");
    } else if (kind == TOOLCALL_REASONING) {
        buf_puts(out, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}");
    } else {
        const struct answer_call *call = &a->calls[a->n_calls - 1];
        buf_printf(out, "{\"type\":\"tool_use\",\"id\":\"toolu_%s\",\"name\":", call->id);
        json_put_string(out, call->name.p, call->name.len);
        buf_puts(out, ",\"input\":{}" CALLED_BY_THE_MODEL "}");
    }
    buf_puts(out, "}\n\n");
}

static void put_delta(struct answer *a, struct buf *out, const struct toolcall_event *e)
{
    static const char *const deltas[] = {
        [TOOLCALL_TEXT] = "{\"type\":\"text_delta\",\"text\":",
        [TOOLCALL_REASONING] = "{\"type\":\"thinking_delta\",\"thinking\":",
        [TOOLCALL_ARGUMENTS] = "{\"type\":\"input_json_delta\",\"partial_json\":",
    };
    buf_printf(
        out, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":%u,\"delta\":%s",
        a->n_blocks - 1, deltas[e->kind]);
    json_put_string(out, e->s, e->n);
    buf_puts(out, "}}\n\n");
}

static void event(struct choice *c, struct buf *out, const struct toolcall_event *e)
{
    struct answer *a = c->answer;
    bool text = e->kind == TOOLCALL_TEXT || e->kind == TOOLCALL_REASONING;
    if (e->kind == TOOLCALL_BEGIN || (text && a->block != (int)e->kind + 1))
        start_block(a, out, e->kind);
    if (e->kind == TOOLCALL_END)
        stop_block(a, out);
    else if (e->kind != TOOLCALL_BEGIN)
        put_delta(a, out, e);
}

static void begin(struct generation *g, struct buf *out)
{
    buf_puts(out, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":");
    put_head(out, g);
    buf_puts(out, "],\"stop_reason\":null,\"stop_sequence\":null" NOTHING_MORE ",");
    put_usage(out, g, 0);
    buf_puts(out, "}}\n\n");
}

static void delta(struct choice *c, struct buf *out, const struct piece *piece)
{
    (void)out;
    answer_take(c, piece, false);
}

static void end(struct choice *c, struct buf *out, const struct piece *piece)
{
    answer_take(c, piece, true);
    stop_block(c->answer, out);
    buf_puts(out, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{");
    put_stop(out, c);
    buf_puts(out, "},");
    put_usage(out, c->g, c->n_tokens);
    buf_puts(out, "}\n\n");
}

static void last(struct generation *g, struct buf *out)
{
    (void)g;
    buf_puts(out, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
}

/* --- errors --- */

void api_anthropic_put_error(struct buf *out, const struct api_error *e)
{
    static const struct {
        int status;
        const char *type;
    } types[] = {{400, "invalid_request_error"}, {401, "authentication_error"}, {403, "permission_error"},
                 {404, "not_found_error"},       {413, "request_too_large"},    {429, "rate_limit_error"},
                 {503, "overloaded_error"},      {504, "timeout_error"}};
    const char *type = e->status < 500 ? "invalid_request_error" : "api_error";
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].status == e->status)
            type = types[i].type;
    buf_printf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type);
    if (e->has_context) /* as their service words it: agents look for it and compact the conversation */
        buf_printf(out, "\"prompt is too long: %llu tokens > %u maximum\"",
                   (unsigned long long)e->n_prompt_tokens, e->n_ctx);
    else
        json_put_str(out, e->message);
    if (!strcmp(e->param, "thread"))
        buf_puts(out,
                 ",\"details\":{\"error_code\":\"thread_unsupported_request\",\"unsupported\":[\"thread\"]}");
    buf_puts(out, "}}\n");
}

#define COMMON                                                                                               \
    .id_prefix = "msg_", .fields = chat_fields, .defaults = chat_defaults, .translate = translate,           \
    .names = names, .prepare = chat_dialect_prepare, .event = event, .mends = true, .clamps = true

const struct dialect dialect_messages = {COMMON,         .reply = reply, .begin = begin,
                                         .delta = delta, .end = end,     .last = last};
const struct dialect dialect_count = {COMMON, .reply = count, .counts = true,
                                      .counted = GENERATE_MAX_COUNTED};
