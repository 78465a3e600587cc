/* responses_reader.c - the body of POST /v1/responses, translated into a chat. Members and tools that are not
 * known are labels or features of their service and pass. */
#include "api_chat.h"
#include "responses_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NAME 256 /* bytes of namespace and name together, with the 0 */

/* --- the body: items --- */

/* The state in which the items of one answer are gathered into one message. */
struct reader {
    struct chat_json c;
    json_t *answer; /* the assistant's message that the next item may join; borrowed, or NULL */
    json_t
        *namespaces; /* [[joined name, length of the namespace]] of tools in namespaces, part of the body */
};

static bool is(const json_t *item, const char *member, const char *word)
{
    const char *given = chat_json_word(item, member);
    return given && !strcmp(given, word);
}

/* A part of a type that is not known has no text that the model could read. */
static void gather_part(struct chat_json *c, const json_t *part, const char *path)
{
    static const char *const texts[] = {"input_text", "output_text", "text", "summary_text",
                                        "reasoning_text"};
    const char *type = chat_json_need(c, part, path, "type"), *text = chat_json_word(part, "text");
    if (!type)
        return;
    if (!strcmp(type, "input_image") || !strcmp(type, "input_file"))
        api_invalid(c->err, path, "%s.type must be a type of text: the model reads text only (got \"%s\")",
                    path, type);
    for (size_t i = 0; i < sizeof texts / sizeof *texts && !text; i++)
        if (!strcmp(type, texts[i]))
            chat_json_need(c, part, path, "text");
    if (!text)
        text = chat_json_word(part, "refusal");
    if (text)
        chat_json_gather(c, text);
}

/* Gathers a text or the texts of parts. */
static void gather(struct chat_json *c, const json_t *content, const char *path)
{
    char place[96];
    field_has_shape(content, path, SHAPE_STRING | SHAPE_ARRAY, c->err);
    if (json_is_string(content))
        chat_json_gather(c, json_string_value(content));
    for (size_t i = 0; i < json_array_size(content) && !c->err->status; i++) {
        (void)snprintf(place, sizeof place, "%s[%zu]", path, i);
        gather_part(c, json_array_get(content, i), place);
    }
}

/* The message that reasoning, text and calls of one answer share. */
static json_t *answer_message(struct reader *r)
{
    if (!r->answer)
        r->answer = chat_json_message(&r->c, "assistant");
    return r->answer;
}

static void read_message(struct reader *r, const json_t *item, const char *path)
{
    const char *role = chat_json_word(item, "role");
    bool answers = role && !strcmp(role, "assistant");
    char place[64];
    if (!role) {
        snprintf(place, sizeof place, "%s.role", path);
        api_invalid(r->c.err, place, "%s must be user, assistant, system or developer (got %s)", place,
                    field_got_word(json_object_get(item, "role")));
        return;
    }
    if (r->answer && json_object_get(r->answer, "content"))
        r->answer = NULL;
    json_t *message = answers ? answer_message(r) : chat_json_message(&r->c, role);
    if (!answers)
        r->answer = NULL;
    snprintf(place, sizeof place, "%s.content", path);
    if (!answers && !json_object_get(item, "content"))
        api_invalid(r->c.err, place, "%s must be a string or an array (got nothing)", place);
    gather(&r->c, json_object_get(item, "content"), place);
    r->c.gathered = true;
    chat_json_text(&r->c, message, "content");
}

/* Its content is the whole; its summary says less. */
static void read_reasoning(struct reader *r, const json_t *item, const char *path)
{
    const json_t *content = json_object_get(item, "content");
    r->answer = NULL;
    gather(&r->c, json_array_size(content) ? content : json_object_get(item, "summary"), path);
    if (r->c.gathered)
        chat_json_text(&r->c, answer_message(r), "reasoning_content");
}

/* "ns__name", as the tool is shown to the model; in room[MAX_NAME]. NULL with an error: it is too long. */
static const char *joined_name(struct reader *r, const char *namespace, const char *name, char *room)
{
    if (!namespace || !*namespace)
        return name;
    if (snprintf(room, MAX_NAME, "%s" RESPONSES_BETWEEN "%s", namespace, name) < MAX_NAME)
        return room;
    api_invalid(r->c.err, "tools",
                "the name of a tool and its namespace may have %zu bytes together (got %zu)",
                MAX_NAME - 1 - strlen(RESPONSES_BETWEEN), strlen(namespace) + strlen(name));
    return NULL;
}

static void read_call(struct reader *r, const json_t *item, const char *path)
{
    const char *name = chat_json_need(&r->c, item, path, "name");
    const json_t *arguments = json_object_get(item, "arguments");
    char room[MAX_NAME];
    if (!name || !(name = joined_name(r, chat_json_word(item, "namespace"), name, room)))
        return;
    chat_json_call(&r->c, answer_message(r), chat_json_word(item, "call_id"), name,
                   arguments ? arguments : json_object_get(item, "input"));
}

static void read_output(struct reader *r, const json_t *item, const char *path)
{
    json_t *message = chat_json_message(&r->c, "tool"), *id = json_object_get(item, "call_id");
    char place[64];
    r->answer = NULL;
    if (json_is_string(id))
        chat_json_put(&r->c, message, "tool_call_id", json_incref(id));
    snprintf(place, sizeof place, "%s.output", path);
    gather(&r->c, json_object_get(item, "output"), place);
    r->c.gathered = true;
    chat_json_text(&r->c, message, "content");
}

/* An item of a type that is not known is what only their service can make use of. */
static void read_item(struct reader *r, size_t i, const json_t *item)
{
    char path[48];
    snprintf(path, sizeof path, "input[%zu]", i);
    if (!json_is_object(item))
        api_invalid(r->c.err, path, "%s must be an object (got %s)", path, field_got(item));
    else if (!json_object_get(item, "type") || is(item, "type", "message"))
        read_message(r, item, path);
    else if (is(item, "type", "reasoning"))
        read_reasoning(r, item, path);
    else if (is(item, "type", "function_call") || is(item, "type", "custom_tool_call"))
        read_call(r, item, path);
    else if (is(item, "type", "function_call_output") || is(item, "type", "custom_tool_call_output"))
        read_output(r, item, path);
    else if (is(item, "type", "item_reference"))
        api_invalid(r->c.err, path, "%s.type must not be item_reference: responses are not stored", path);
}

static void read_input(struct reader *r, const json_t *input)
{
    if (json_is_string(input)) {
        chat_json_put(&r->c, chat_json_message(&r->c, "user"), "content", json_incref((json_t *)input));
        return;
    }
    if (!json_array_size(input))
        api_invalid(r->c.err, "input", "input must be a string or an array of at least one item (got %s)",
                    field_got(input));
    for (size_t i = 0; i < json_array_size(input) && !r->c.err->status; i++)
        read_item(r, i, json_array_get(input, i));
}

/* --- the body: tools and settings --- */

/* Tools of other types than functions are skipped. */
static void read_tool(struct reader *r, const json_t *tool, const char *path, const char *namespace)
{
    char room[MAX_NAME];
    const char *name, *type = chat_json_need(&r->c, tool, path, "type");
    if (!type || strcmp(type, "function") || !(name = chat_json_need(&r->c, tool, path, "name")) ||
        !(name = joined_name(r, namespace, name, room)))
        return;
    if (name == room &&
        json_array_append_new(r->namespaces, json_pack("[s, i]", name, (int)strlen(namespace))) < 0)
        r->c.failed = true;
    chat_json_tool(&r->c, name, json_object_get(tool, "description"), json_object_get(tool, "parameters"),
                   json_object_get(tool, "strict"));
}

/* The members of a namespace are shown to the model as functions; the reply takes their names apart again. */
static void read_namespace(struct reader *r, const json_t *tool, const char *path)
{
    const json_t *members = json_object_get(tool, "tools");
    const char *name = chat_json_need(&r->c, tool, path, "name");
    char place[64];
    for (size_t i = 0; i < json_array_size(members) && name && !r->c.err->status; i++) {
        snprintf(place, sizeof place, "%s.tools[%zu]", path, i);
        read_tool(r, json_array_get(members, i), place, name);
    }
}

static void read_tools_of(struct reader *r, const json_t *tools)
{
    char path[32];
    for (size_t i = 0; i < json_array_size(tools) && !r->c.err->status; i++) {
        const json_t *tool = json_array_get(tools, i);
        snprintf(path, sizeof path, "tools[%zu]", i);
        if (is(tool, "type", "namespace"))
            read_namespace(r, tool, path);
        else
            read_tool(r, tool, path, NULL);
    }
}

/* Reads the allowed tools that are functions, by the names that the model sees. */
static void read_allowed(struct reader *r, const json_t *choice)
{
    const json_t *tools = json_object_get(choice, "tools");
    json_t *names = json_array(), *mode = json_object_get(choice, "mode");
    char room[MAX_NAME];
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        const char *name = chat_json_word(tool, "name");
        if (!name || !is(tool, "type", "function"))
            continue;
        name = joined_name(r, chat_json_word(tool, "namespace"), name, room);
        if (json_array_append_new(names, json_pack("{s:s, s:s*}", "type", "function", "name", name)) < 0)
            r->c.failed = true;
    }
    chat_json_set(&r->c, "tool_choice",
                  json_pack("{s:s, s:{s:O?, s:o}}", "type", "allowed_tools", "allowed_tools", "mode", mode,
                            "tools", names));
}

/* A function is chosen flat here and nested in chats; tools of other types cannot be chosen. */
static void read_choice(struct reader *r, json_t *choice)
{
    struct chat_json *c = &r->c;
    char room[MAX_NAME];
    const char *name = chat_json_word(choice, "name");
    if (json_is_string(choice)) {
        chat_json_set(c, "tool_choice", json_incref(choice));
    } else if (is(choice, "type", "function")) {
        name = chat_json_need(c, choice, "tool_choice", "name");
        if (!name || !(name = joined_name(r, chat_json_word(choice, "namespace"), name, room)))
            return;
        chat_json_set(c, "tool_choice",
                      json_pack("{s:s, s:{s:s}}", "type", "function", "function", "name", name));
    } else if (is(choice, "type", "allowed_tools")) {
        read_allowed(r, choice);
    }
}

static void read_format(struct chat_json *c, const json_t *text)
{
    json_t *format = json_object_get(text, "format"), *schema = json_object_get(format, "schema");
    if (is(format, "type", "json_schema"))
        chat_json_set(c, "response_format",
                      json_pack("{s:s, s:{s:O?}}", "type", "json_schema", "json_schema", "schema", schema));
    else if (format && !json_is_null(format))
        chat_json_set(c, "response_format", json_incref(format));
}

const struct field_name responses_names[] = {
    {"max_tokens", "max_output_tokens"},
    {"reasoning_effort", "reasoning.effort"},
    {"response_format.json_schema.schema", "text.format.schema"},
    {"response_format", "text.format"},
    {"messages", "input", .no_index = true},
    {0},
};

/* Refuses the fields that need a store, or work in the background. */
static void refuse_state(struct chat_json *c, const json_t *body)
{
    static const char *const stateful[] = {"previous_response_id", "conversation", "prompt"};
    for (size_t i = 0; i < sizeof stateful / sizeof *stateful; i++) {
        const json_t *value = json_object_get(body, stateful[i]);
        if (value && !json_is_null(value))
            api_invalid(c->err, stateful[i],
                        "%s is not supported: responses are not stored, send the whole input", stateful[i]);
    }
    if (json_is_true(json_object_get(body, "background")))
        api_invalid(c->err, "background", "background must be false: responses are not stored (got true)");
}

/* `include` names them, or `top_logprobs` asks for some. */
static void read_logprobs(struct chat_json *c, const json_t *body)
{
    static const struct field_shape shapes[] = {{"include", SHAPE_ARRAY}, {0}};
    const json_t *include = json_object_get(body, "include");
    json_t *top = json_object_get(body, "top_logprobs");
    bool wanted = json_is_number(top) && json_number_value(top) > 0;
    fields_have_shapes(body, shapes, c->err);
    for (size_t i = 0; i < json_array_size(include); i++) {
        const char *word = json_string_value(json_array_get(include, i));
        wanted |= word && !strcmp(word, "message.output_text.logprobs");
    }
    if (wanted)
        chat_json_set(c, "logprobs", json_true());
    if (top)
        chat_json_set(c, "top_logprobs", json_incref(top));
}

static void read_settings(struct reader *r, const json_t *body)
{
    static const char *const same[] = {"max_output_tokens",
                                       "max_tokens",
                                       "temperature",
                                       "temperature",
                                       "top_p",
                                       "top_p",
                                       "stream",
                                       "stream",
                                       "parallel_tool_calls",
                                       "parallel_tool_calls",
                                       NULL};
    static const char *const effort[] = {"effort", "reasoning_effort", NULL};
    refuse_state(&r->c, body);
    read_logprobs(&r->c, body);
    read_tools_of(r, json_object_get(body, "tools"));
    read_choice(r, json_object_get(body, "tool_choice"));
    read_format(&r->c, json_object_get(body, "text"));
    chat_json_copy(&r->c, json_object_get(body, "reasoning"), effort);
    chat_json_copy(&r->c, body, same);
}

/* Members that the reply gives back, and what it says where they are not given. */
static const struct echoed {
    const char *name;
    unsigned kinds;
    const char *none;
} echoed[] = {
    {"instructions", SHAPE_STRING, "null"},
    {"metadata", SHAPE_OBJECT, "{}"},
    {"tools", SHAPE_ARRAY, "[]"},
    {"tool_choice", SHAPE_STRING | SHAPE_OBJECT, "\"auto\""},
    {"reasoning", SHAPE_OBJECT, "{\"effort\":null,\"summary\":null}"},
    {"text", SHAPE_OBJECT, "{\"format\":{\"type\":\"text\"}}"},
    {"max_tool_calls", SHAPE_INTEGER, "null"},
    {"prompt_cache_key", SHAPE_STRING, "null"},
    {"safety_identifier", SHAPE_STRING, "null"},
    {"user", SHAPE_STRING, "null"},
};

/* The value of one of them: members of an object stand over those that are always there. */
static json_t *echo_of(struct reader *r, const struct echoed *e, json_t *given)
{
    json_t *value = json_loads(e->none, JSON_DECODE_ANY, NULL), *member;
    const char *key;
    if (!given || json_is_null(given))
        return value;
    field_has_shape(given, e->name, e->kinds, r->c.err);
    if (!json_is_object(given) || !json_is_object(value)) {
        json_decref(value);
        return json_incref(given);
    }
    json_object_foreach(given, key, member) if (!json_is_null(member) &&
                                                json_object_set(value, key, member) < 0) r->c.failed = true;
    return value;
}

static void keep_echo(struct reader *r, const json_t *body)
{
    field_has_shape(json_object_get(body, "model"), "model", SHAPE_STRING, r->c.err);
    json_t *echo = json_object();
    for (size_t i = 0; i < sizeof echoed / sizeof *echoed; i++) {
        const struct echoed *e = &echoed[i];
        if (json_object_set_new(echo, e->name, echo_of(r, e, json_object_get(body, e->name))) < 0)
            r->c.failed = true;
    }
    char *text = json_dumps(echo, JSON_COMPACT);
    json_decref(echo);
    chat_json_set(&r->c, "echoed", text ? json_string(text) : NULL);
    free(text);
}

json_t *responses_translate(const json_t *body, struct api_error *err)
{
    struct reader r = {0};
    json_t *instructions = json_object_get(body, "instructions");
    if (chat_json_open(&r.c, err) < 0)
        return NULL;
    r.namespaces = json_array();
    chat_json_set(&r.c, "namespaces", r.namespaces);
    if (json_string_length(instructions))
        chat_json_put(&r.c, chat_json_message(&r.c, "system"), "content", json_incref(instructions));
    read_input(&r, json_object_get(body, "input"));
    read_settings(&r, body);
    keep_echo(&r, body);
    return chat_json_close(&r.c);
}

static int read_namespaces(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    struct namespaced *list = arena_array(r->arena, json_array_size(value), sizeof *list);
    (void)f;
    if (!list)
        return api_out_of_memory(r->err);
    p->namespaces = list;
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *of = json_array_get(value, i), *name = json_array_get(of, 0);
        list[i].namespace_len = (size_t)json_integer_value(json_array_get(of, 1));
        list[i].name = arena_copy(r->arena, json_string_value(name), json_string_length(name));
        if (!list[i].name)
            return api_out_of_memory(r->err);
        p->n_namespaces++;
    }
    return 0;
}

static int read_echoed(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    (void)f;
    p->echoed = arena_copy(r->arena, json_string_value(value), json_string_length(value));
    return p->echoed ? 0 : api_out_of_memory(r->err);
}

const struct field responses_fields[] = {
    {.name = "echoed", .kind = FIELD_CUSTOM, .read = read_echoed},
    {.name = "namespaces", .kind = FIELD_CUSTOM, .read = read_namespaces},
    {0},
};
