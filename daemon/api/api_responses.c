/* api_responses.c - OpenAI's newer dialect: POST /v1/responses, without a store. The body is translated into
 * a chat; members and tools that are not known are labels or features of their service and pass. An answer is
 * a list of items (reasoning, message, function_call) in the order in which the model wrote them; the stream
 * and the whole reply are made of the same list. */
#include "api.h"
#include "api_chat.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BETWEEN  "__" /* a namespace and its member's name */
#define MAX_NAME 256  /* bytes of namespace and name together, with the 0 */

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
    if (snprintf(room, MAX_NAME, "%s" BETWEEN "%s", namespace, name) < MAX_NAME)
        return room;
    api_invalid(r->c.err, "tools",
                "the name of a tool and its namespace may have %zu bytes together (got %zu)",
                MAX_NAME - 1 - strlen(BETWEEN), strlen(namespace) + strlen(name));
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

static const struct field_name names[] = {
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

static json_t *translate(const json_t *body, struct api_error *err)
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

static const struct field own_fields[] = {
    {.name = "echoed", .kind = FIELD_CUSTOM, .read = read_echoed},
    {.name = "namespaces", .kind = FIELD_CUSTOM, .read = read_namespaces},
    {0},
};

/* --- items --- */

struct item {
    enum toolcall_kind kind; /* TOOLCALL_TEXT, TOOLCALL_REASONING, TOOLCALL_BEGIN: a call */
    struct buf text;         /* the text or the reasoning */
    uint32_t call;           /* the number of the call */
    uint32_t from, to;       /* the tokens of a text */
};

/* Stored in answer.own. */
struct items {
    struct item *list;
    uint32_t n, n_events;
    bool open; /* the last one goes on */
};

/* NULL: out of memory, which the reply remembers. */
static struct items *items_of(struct choice *c)
{
    if (!c->answer->own)
        c->answer->own = arena_zalloc(c->g->arena, sizeof(struct items));
    c->g->request->out.failed |= !c->answer->own;
    return c->answer->own;
}

static struct item *add_item(struct choice *c, struct items *s, enum toolcall_kind kind)
{
    struct arena *a = c->g->arena;
    struct item *grown = arena_grow(a, s->list, s->n * sizeof *grown, (s->n + 1) * sizeof *grown);
    if (!grown) {
        c->g->request->out.failed = true;
        return NULL;
    }
    s->list = grown;
    s->open = true;
    grown[s->n] = (struct item){.kind = kind, .text.arena = a, .call = c->answer->n_calls - 1};
    return &grown[s->n++];
}

static const char *prefix_of(enum toolcall_kind kind)
{
    return kind == TOOLCALL_BEGIN ? "fc" : kind == TOOLCALL_TEXT ? "msg" : "rs";
}

static void put_item_id(struct buf *out, const struct choice *c, uint32_t i)
{
    const struct items *s = c->answer->own;
    buf_printf(out, "\"%s_%s_%u\"", prefix_of(s->list[i].kind), c->g->id, i);
}

/* "name":.., and "namespace":.. where the tool was of one. */
static void put_name(struct buf *out, const struct params *p, const struct buf *name)
{
    size_t skip = 0;
    for (uint32_t i = 0; i < p->n_namespaces && !skip; i++) {
        const struct namespaced *of = &p->namespaces[i];
        if (strlen(of->name) != name->len || memcmp(name->p, of->name, name->len) != 0)
            continue;
        buf_puts(out, "\"namespace\":");
        json_put_string(out, name->p, of->namespace_len);
        buf_puts(out, ",");
        skip = of->namespace_len + strlen(BETWEEN);
    }
    buf_puts(out, "\"name\":");
    json_put_string(out, name->p + skip, name->len - skip);
}

static void put_text(struct buf *out, const struct buf *text)
{
    json_put_string(out, text->p ? text->p : "", text->len);
}

/* The log-probabilities of tokens [from, to), if they are asked for. */
static void put_logprobs(struct buf *out, const struct choice *c, uint32_t from, uint32_t to)
{
    const struct piece tokens = {.from = from, .to = c->g->p.has_logprobs ? to : from};
    buf_puts(out, ",\"logprobs\":");
    chat_put_logprobs(out, c, &tokens);
}

/* In a stream the deltas have the log-probabilities, and the response at its end all of them once more. */
static void put_part(struct buf *out, const struct choice *c, const struct item *item, bool filled,
                     bool scored)
{
    static const struct buf none = {0};
    bool text = item->kind == TOOLCALL_TEXT;
    buf_printf(out, "{\"type\":\"%s\",\"text\":", text ? "output_text" : "reasoning_text");
    put_text(out, filled ? &item->text : &none);
    if (text) {
        buf_puts(out, ",\"annotations\":[]");
        put_logprobs(out, c, item->from, scored ? item->to : item->from);
    }
    buf_puts(out, "}");
}

static void put_call(struct buf *out, const struct choice *c, const struct item *item, bool filled)
{
    static const struct buf none = {0};
    const struct answer_call *call = &c->answer->calls[item->call];
    buf_printf(out, ",\"call_id\":\"call_%s\",", call->id);
    put_name(out, &c->g->p, &call->name);
    buf_puts(out, ",\"arguments\":");
    put_text(out, filled ? &call->arguments : &none);
    buf_puts(out, "}");
}

static void put_item(struct buf *out, const struct choice *c, uint32_t i, const char *status, bool scored)
{
    const struct items *s = c->answer->own;
    const struct item *item = &s->list[i];
    bool filled = strcmp(status, "in_progress") != 0;
    buf_puts(out, "{\"id\":");
    put_item_id(out, c, i);
    buf_printf(out, ",\"status\":\"%s\"", status);
    if (item->kind == TOOLCALL_BEGIN) {
        buf_puts(out, ",\"type\":\"function_call\"");
        put_call(out, c, item, filled);
        return;
    }
    buf_puts(out, item->kind == TOOLCALL_TEXT
                      ? ",\"type\":\"message\",\"role\":\"assistant\",\"content\":["
                      : ",\"type\":\"reasoning\",\"summary\":[],\"encrypted_content\":null,\"content\":[");
    if (filled)
        put_part(out, c, item, true, scored);
    buf_puts(out, "]}");
}

/* --- the response --- */

static bool was_cut(const struct choice *c)
{
    return c->finish && !strcmp(answer_finish(c), "length");
}

static const char *status_of(const struct choice *c)
{
    return was_cut(c) ? "incomplete" : "completed";
}

/* The last item is the one that was cut. */
static const char *item_status(const struct choice *c, const struct items *s, uint32_t i)
{
    return i + 1 == s->n ? status_of(c) : "completed";
}

static void put_output(struct buf *out, const struct choice *c, bool ended)
{
    const struct items *s = c->answer->own;
    buf_puts(out, ",\"output\":[");
    for (uint32_t i = 0; ended && s && i < s->n; i++) {
        buf_puts(out, i ? "," : "");
        put_item(out, c, i, item_status(c, s, i), true);
    }
    buf_puts(out, "]");
}

static void put_usage(struct buf *out, const struct generation *g, bool ended)
{
    const struct choice *c = g->choices;
    uint32_t n_prompt = c->e.n_prompt;
    if (!ended) {
        buf_puts(out, ",\"usage\":null");
        return;
    }
    buf_printf(out,
               ",\"usage\":{\"input_tokens\":%u,\"input_tokens_details\":{\"cached_tokens\":%u},"
               "\"output_tokens\":%u,\"output_tokens_details\":{\"reasoning_tokens\":%u},"
               "\"total_tokens\":%u}",
               n_prompt, generation_n_cached(g), c->n_tokens, answer_n_reasoning(g), n_prompt + c->n_tokens);
}

/* The settings in force, and what the request said. */
static void put_settings(struct buf *out, const struct params *p)
{
    size_t n = strlen(p->echoed);
    buf_printf(out, ",\"error\":null,\"parallel_tool_calls\":%s,\"max_output_tokens\":",
               p->one_call ? "false" : "true");
    if (p->has_max_tokens)
        json_put_uint(out, p->max_tokens);
    else
        buf_puts(out, "null");
    buf_puts(out, ",\"temperature\":");
    json_put_number(out, p->temperature, 6);
    buf_puts(out, ",\"top_p\":");
    json_put_number(out, p->top_p, 6);
    buf_puts(out, ",\"previous_response_id\":null,\"store\":false,\"background\":false,\"top_logprobs\":");
    json_put_uint(out, p->logprobs);
    buf_puts(out, ",\"service_tier\":\"default\",\"truncation\":\"disabled\",");
    buf_put(out, p->echoed + 1, n - 2); /* without its braces */
}

/* The first events are of one that has not ended, also where its text has when they are written. */
static void put_response(struct buf *out, const struct generation *g, const char *status)
{
    const struct choice *c = g->choices;
    bool ended = strcmp(status, "in_progress");
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"model\":",
               g->id, (long long)g->created, status);
    chat_put_model(out, g);
    buf_puts(out, ",\"completed_at\":");
    if (ended && !was_cut(c))
        json_put_uint(out, (uint64_t)time(NULL));
    else
        buf_puts(out, "null");
    buf_puts(out, ",\"incomplete_details\":");
    if (ended && was_cut(c))
        buf_printf(out, "{\"reason\":\"%s\"}", strcmp(c->finish, "length") ? c->finish : "max_output_tokens");
    else
        buf_puts(out, "null");
    put_settings(out, &g->p);
    put_output(out, c, ended);
    put_usage(out, g, ended);
    buf_puts(out, "}");
}

/* --- the stream --- */

static void open_event(struct buf *out, struct items *s, const char *type)
{
    buf_printf(out, "event: response.%s\ndata: {\"type\":\"response.%s\",\"sequence_number\":%u", type, type,
               s->n_events++);
}

static void put_response_event(struct choice *c, struct buf *out, const char *type, const char *status)
{
    struct items *s = items_of(c);
    if (!s)
        return;
    open_event(out, s, type);
    buf_puts(out, ",\"response\":");
    put_response(out, c->g, status);
    buf_puts(out, "}\n\n");
}

static void put_item_event(struct choice *c, struct buf *out, const char *type, const char *status)
{
    struct items *s = c->answer->own;
    open_event(out, s, type);
    buf_printf(out, ",\"output_index\":%u,\"item\":", s->n - 1);
    put_item(out, c, s->n - 1, status, false);
    buf_puts(out, "}\n\n");
}

/* Opens an event inside of the last item: its part, or a call's arguments. */
static void open_inner(struct choice *c, struct buf *out, const char *type)
{
    struct items *s = c->answer->own;
    open_event(out, s, type);
    buf_puts(out, ",\"item_id\":");
    put_item_id(out, c, s->n - 1);
    buf_printf(out, ",\"output_index\":%u", s->n - 1);
    if (s->list[s->n - 1].kind != TOOLCALL_BEGIN)
        buf_puts(out, ",\"content_index\":0");
}

static void put_part_event(struct choice *c, struct buf *out, const char *type, bool filled)
{
    struct items *s = c->answer->own;
    open_inner(c, out, type);
    buf_puts(out, ",\"part\":");
    put_part(out, c, &s->list[s->n - 1], filled, false);
    buf_puts(out, "}\n\n");
}

static void start_item(struct choice *c, struct buf *out)
{
    const struct items *s = c->answer->own;
    put_item_event(c, out, "output_item.added", "in_progress");
    if (s->list[s->n - 1].kind != TOOLCALL_BEGIN)
        put_part_event(c, out, "content_part.added", false);
}

static void put_done(struct choice *c, struct buf *out)
{
    const struct items *s = c->answer->own;
    const struct item *item = &s->list[s->n - 1];
    if (item->kind == TOOLCALL_BEGIN) {
        const struct answer_call *call = &c->answer->calls[item->call];
        open_inner(c, out, "function_call_arguments.done");
        buf_puts(out, ",");
        put_name(out, &c->g->p, &call->name);
        buf_puts(out, ",\"arguments\":");
        put_text(out, &call->arguments);
    } else {
        bool text = item->kind == TOOLCALL_TEXT;
        open_inner(c, out, text ? "output_text.done" : "reasoning_text.done");
        buf_puts(out, text ? ",\"logprobs\":[],\"text\":" : ",\"text\":");
        put_text(out, &item->text);
    }
    buf_puts(out, "}\n\n");
}

/* Ends the open item, if there is one. */
static void stop_item(struct choice *c, struct buf *out, const char *status)
{
    struct items *s = c->answer->own;
    if (!s || !s->open)
        return;
    s->open = false;
    if (!c->g->p.stream)
        return;
    put_done(c, out);
    if (s->list[s->n - 1].kind != TOOLCALL_BEGIN)
        put_part_event(c, out, "content_part.done", true);
    put_item_event(c, out, "output_item.done", status);
}

/* A text's delta has the log-probabilities of its tokens from `from` on. */
static void put_delta(struct choice *c, struct buf *out, const struct toolcall_event *e, uint32_t from)
{
    static const char *const types[] = {[TOOLCALL_TEXT] = "output_text.delta",
                                        [TOOLCALL_REASONING] = "reasoning_text.delta",
                                        [TOOLCALL_ARGUMENTS] = "function_call_arguments.delta"};
    const struct items *s = c->answer->own;
    open_inner(c, out, types[e->kind]);
    if (e->kind == TOOLCALL_TEXT)
        put_logprobs(out, c, from, s->list[s->n - 1].to);
    buf_puts(out, ",\"delta\":");
    json_put_string(out, e->s, e->n);
    buf_puts(out, "}\n\n");
}

/* Also called for a whole reply, when nothing is written yet. */
static void event(struct choice *c, struct buf *out, const struct toolcall_event *e)
{
    struct items *s = items_of(c);
    bool text = e->kind == TOOLCALL_TEXT || e->kind == TOOLCALL_REASONING, stream = c->g->p.stream;
    if (!s || out->failed)
        return;
    bool goes_on = s->open && (text ? s->list[s->n - 1].kind == e->kind : e->kind != TOOLCALL_BEGIN);
    if (e->kind == TOOLCALL_END || !goes_on)
        stop_item(c, out, "completed");
    if (e->kind == TOOLCALL_END || (!goes_on && !text && e->kind != TOOLCALL_BEGIN))
        return;
    const struct piece *tokens = c->answer->piece;
    if (!goes_on) {
        struct item *item = add_item(c, s, e->kind);
        if (!item)
            return;
        item->from = item->to = tokens->from;
        if (stream)
            start_item(c, out);
    }
    uint32_t from = s->list[s->n - 1].to;
    s->list[s->n - 1].to = tokens->to;
    if (text)
        buf_put(&s->list[s->n - 1].text, e->s, e->n);
    if (stream && e->kind != TOOLCALL_BEGIN)
        put_delta(c, out, e, from);
}

static void begin(struct generation *g, struct buf *out)
{
    put_response_event(g->choices, out, "created", "in_progress");
    put_response_event(g->choices, out, "in_progress", "in_progress");
}

static void delta(struct choice *c, struct buf *out, const struct piece *piece)
{
    (void)out;
    answer_take(c, piece, false);
}

static void end(struct choice *c, struct buf *out, const struct piece *piece)
{
    answer_take(c, piece, true);
    stop_item(c, out, status_of(c));
    put_response_event(c, out, status_of(c), status_of(c));
}

static void last(struct generation *g, struct buf *out)
{
    (void)g;
    (void)out;
}

static void reply(struct generation *g, struct buf *out)
{
    answer_take_whole(g->choices);
    put_response(out, g, status_of(g->choices));
    buf_puts(out, "\n");
}

const struct dialect dialect_responses = {
    .id_prefix = "resp_",
    .fields = chat_fields,
    .own_fields = own_fields,
    .defaults = chat_defaults,
    .translate = translate,
    .names = names,
    .prepare = chat_dialect_prepare,
    .reply = reply,
    .begin = begin,
    .delta = delta,
    .end = end,
    .last = last,
    .event = event,
    .whole_calls = true,
    .whole_events = true,
    .mends = true,
    .clamps = true,
};
