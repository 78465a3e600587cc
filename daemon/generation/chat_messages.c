#include "chat_messages.h"
#include "base/buf.h"
#include "chat/chat_normalise.h"
#include "chat/tool_list.h"
#include "chat/chat_template.h"
#include "generation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IGNORED(n)                                                                                           \
    {                                                                                                        \
        .name = n, .kind = FIELD_IGNORED                                                                     \
    }
#define CUSTOM(n, f)                                                                                         \
    {                                                                                                        \
        .name = n, .kind = FIELD_CUSTOM, .read = f                                                           \
    }

/* --- JSON as values --- */

static bool to_value(struct arena *a, const json_t *j, struct jinja_value *out);

static struct jinja_value string_value(const json_t *j)
{
    return jinja_string(json_string_value(j), json_string_length(j), true);
}

static bool copy_string(struct arena *a, const char *s, size_t n, struct jinja_value *out)
{
    const char *copy = arena_copy(a, s, n);
    *out = jinja_string(copy, n, true);
    return copy != NULL;
}

static bool to_list(struct arena *a, const json_t *j, struct jinja_value *out)
{
    struct jinja_list *list = jinja_list_open(a);
    struct jinja_value item;
    for (size_t i = 0; list && i < json_array_size(j); i++)
        if (!to_value(a, json_array_get(j, i), &item) || jinja_list_add(a, list, item) < 0)
            return false;
    *out = jinja_list_value(list);
    return list != NULL;
}

static bool to_dict(struct arena *a, const json_t *j, struct jinja_value *out)
{
    struct jinja_dict *dict = jinja_dict_open(a);
    struct jinja_value key, value;
    const char *name;
    json_t *member;
    if (!dict)
        return false;
    json_object_foreach((json_t *)j, name, member)
    {
        if (!copy_string(a, name, strlen(name), &key) || !to_value(a, member, &value) ||
            jinja_dict_add(a, dict, key, value) < 0)
            return false;
    }
    *out = jinja_dict_value(dict);
    return true;
}

/* Copies a value as deep as a body may nest; nothing points into the tree. */
static bool to_value(struct arena *a, const json_t *j, struct jinja_value *out)
{
    switch (json_typeof(j)) {
    case JSON_OBJECT:
        return to_dict(a, j, out);
    case JSON_ARRAY:
        return to_list(a, j, out);
    case JSON_STRING:
        return copy_string(a, json_string_value(j), json_string_length(j), out);
    case JSON_INTEGER:
        *out = jinja_int(json_integer_value(j));
        return true;
    case JSON_REAL:
        *out = jinja_float(json_real_value(j));
        return true;
    case JSON_NULL:
        *out = jinja_none();
        return true;
    default:
        *out = jinja_bool(json_is_true(j));
        return true;
    }
}

/* The template that will read it; NULL when there is none. */
static const struct chat_template *template_of(const struct field_reader *r)
{
    const struct server_model *m = r->context;
    return m->chat;
}

/* --- what a message says --- */

struct message {
    const char *role;
    struct jinja_value content, name, tool_call_id, reasoning, tool_calls;
    const json_t *refusal; /* a text, the content where there is no other */
    bool prefix, partial;  /* DeepSeek's and Mistral's name, Moonshot's and Qwen's: it is a begun answer */
};

static bool is_word(const json_t *value, const char *word)
{
    return json_is_string(value) && !strcmp(json_string_value(value), word);
}

/* Parts that show or say what no text can; those of types that are not known have no text to read. */
static const char *const other_parts[] = {"image_url", "image",      "input_image", "input_audio",
                                          "audio_url", "audio",      "video_url",   "video",
                                          "file",      "input_file", "document",    "document_url"};

/* Returns 1 if the part is a text (the last two names are those of /v1/responses), 0 if it is skipped, -1
 * with an error. */
static int is_text_part(struct field_reader *r, const json_t *type)
{
    static const char *const texts[] = {"text", "refusal", "input_text", "output_text"};
    const char *name = field_path(r, "type");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (is_word(type, texts[i]))
            return 1;
    bool known = !json_is_string(type);
    for (size_t i = 0; i < sizeof other_parts / sizeof *other_parts && !known; i++)
        known = is_word(type, other_parts[i]);
    return known ? api_invalid(r->err, name, "%s must be \"text\": no other type is supported (got %s)", name,
                               field_got_word(type))
                 : 0;
}

static int read_part_text(struct field_reader *r, const struct field *f, const json_t *value)
{
    const char *name = field_path(r, f->name);
    if (!json_is_string(value))
        return api_invalid(r->err, name, "%s must be a string (got %s)", name, field_got(value));
    buf_put(r->out, json_string_value(value), json_string_length(value));
    return 0;
}

/* {"type":"text","text":...}, or the same of a refusal: its text is added to *text. The type comes first, for
 * it says what else a part may hold. OpenAI's Agents SDK copies the other members of the message into it. */
static int read_part(const struct field_reader *r, size_t i, const json_t *part, struct buf *text)
{
    static const struct field rows[] = {IGNORED("type"),
                                        CUSTOM("text", read_part_text),
                                        CUSTOM("refusal", read_part_text),
                                        IGNORED("cache_control"),
                                        IGNORED("prompt_cache_breakpoint"),
                                        IGNORED("role"),
                                        IGNORED("annotations"),
                                        IGNORED("logprobs"),
                                        IGNORED("reasoning_content"),
                                        IGNORED("reasoning"),
                                        IGNORED("tool_calls"),
                                        {0}};
    const struct field *tables[] = {rows};
    struct field_reader inner = *r;
    char within[64];
    snprintf(within, sizeof within, "%s.content[%zu]", r->within, i);
    inner.within = within;
    inner.out = text;
    if (!json_is_object(part))
        return api_invalid(r->err, within, "%s must be an object (got %s)", within, field_got(part));
    int text_part = is_text_part(&inner, json_object_get(part, "type"));
    if (text_part <= 0)
        return text_part;
    const char *member = is_word(json_object_get(part, "type"), "refusal") ? "refusal" : "text";
    if (!json_is_string(json_object_get(part, member)))
        return api_invalid(r->err, within, "%s.%s must be a string", within, member);
    return fields_read(&inner, part, tables, 1);
}

/* As the template wants it: all text in one, or [{"type": "text", "text": ...}]. */
static int put_content(struct field_reader *r, struct message *m, const char *text, size_t len)
{
    const struct chat_template *c = template_of(r);
    struct jinja_value whole = jinja_string(text, len, true), list = {0};
    m->content = whole;
    if (!c || !chat_template_wants_parts(c))
        return 0;
    struct jinja_dict *part = jinja_dict_open(r->arena);
    list = jinja_list_value(jinja_list_open(r->arena));
    if (!part || !list.list || jinja_dict_add(r->arena, part, jinja_word("type"), jinja_word("text")) < 0 ||
        jinja_dict_add(r->arena, part, jinja_word("text"), whole) < 0 ||
        jinja_list_add(r->arena, list.list, jinja_dict_value(part)) < 0)
        return api_out_of_memory(r->err);
    m->content = list;
    return 0;
}

/* A string, or an array of text parts. */
static int read_content(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct buf text = {.arena = r->arena};
    const char *name = field_path(r, f->name);
    if (json_is_string(value))
        return put_content(r, r->out, json_string_value(value), json_string_length(value));
    if (!json_is_array(value))
        return api_invalid(r->err, name, "%s must be a string or an array of text parts (got %s)", name,
                           field_got(value));
    for (size_t i = 0; i < json_array_size(value); i++)
        if (read_part(r, i, json_array_get(value, i), &text) < 0)
            return -1;
    if (text.failed)
        return api_out_of_memory(r->err);
    return put_content(r, r->out, text.p ? text.p : "", text.len);
}

static int read_role(struct field_reader *r, const struct field *f, const json_t *value)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "function"};
    struct message *m = r->out;
    const char *role = json_string_value(value), *name = field_path(r, f->name);
    size_t i = 0;
    while (role && i < 6 && strcmp(role, roles[i]))
        i++;
    if (!role || i == 6)
        return api_invalid(r->err, name, "%s must be system, developer, user, assistant or tool (got %s)",
                           name, field_got_word(value));
    m->role = i == 1 ? "system" : i == 5 ? "tool" : roles[i];
    return 0;
}

/* A string that is handed on; `offset` is that of a jinja_value. */
static int read_string(struct field_reader *r, const struct field *f, const json_t *value)
{
    const char *name = field_path(r, f->name);
    if (!json_is_string(value))
        return api_invalid(r->err, name, "%s must be a string (got %s)", name, field_got(value));
    *(struct jinja_value *)((char *)r->out + f->offset) = string_value(value);
    return 0;
}

/* Known, but only what says nothing is accepted. */
static int read_nothing(struct field_reader *r, const struct field *f, const json_t *value)
{
    const char *name = field_path(r, f->name);
    if (json_is_false(value) || (json_is_string(value) && !json_string_length(value)) ||
        (json_is_array(value) && !json_array_size(value)) ||
        (json_is_object(value) && !json_object_size(value)))
        return 0;
    return api_invalid(r->err, name, "%s is not supported (got %s)", name, field_got(value));
}

static int read_refusal(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct message *m = r->out;
    if (!json_is_string(value))
        return read_nothing(r, f, value);
    m->refusal = json_string_length(value) ? value : NULL;
    return 0;
}

/* --- calls of tools --- */

/* The arguments of a call are an object, written as JSON in a string; most templates want the object. */
static int parse_arguments(struct field_reader *r, const json_t *text, struct jinja_value *out)
{
    const struct chat_template *c = template_of(r);
    size_t len = json_string_length(text);
    struct json_limits limits = {.max_values = 4096, .max_depth = JSON_MAX_DEPTH_IN_BODY};
    struct api_error words = {0};
    *out = string_value(text);
    if (c && chat_template_wants_argument_text(c))
        return 0;
    json_t *object = json_read(json_string_value(text), len, &limits, &words);
    if (!object && words.status != 400)
        return api_out_of_memory(r->err);
    if (!object) /* a call that was cut short comes back in each later request: it is the template's to show
                  */
        return 0;
    bool ok = to_value(r->arena, object, out);
    json_decref(object);
    return ok ? 0 : api_out_of_memory(r->err);
}

/* For a template that wants them as text. */
static int write_arguments(struct field_reader *r, const json_t *object, struct jinja_value *out)
{
    const struct chat_template *c = template_of(r);
    if (!c || !chat_template_wants_argument_text(c))
        return 0;
    char *text = json_dumps(object, 0);
    bool ok = text && copy_string(r->arena, text, strlen(text), out);
    free(text);
    return ok ? 0 : api_out_of_memory(r->err);
}

/* Returns the arguments of a function that takes none. */
static struct jinja_value no_arguments(const struct field_reader *r)
{
    const struct chat_template *c = template_of(r);
    struct jinja_dict *none = jinja_dict_open(r->arena);
    return !none || (c && chat_template_wants_argument_text(c)) ? jinja_word("{}") : jinja_dict_value(none);
}

/* {"id", "type": "function", "function": {"name", "arguments"}}, with the arguments parsed. */
static int read_function(struct field_reader *r, const char *within, const json_t *call,
                         struct jinja_value *out)
{
    const json_t *function = json_object_get(call, "function");
    const json_t *arguments = json_object_get(function, "arguments");
    if (!json_is_string(json_object_get(function, "name")))
        return api_invalid(r->err, within, "%s must be an object with function.name and function.arguments",
                           within);
    if (!to_value(r->arena, call, out))
        return api_out_of_memory(r->err);
    struct jinja_value *made = jinja_dict_find(out->dict, "function", 8);
    if (!arguments)
        return jinja_dict_add(r->arena, made->dict, jinja_word("arguments"), no_arguments(r)) < 0
                   ? api_out_of_memory(r->err)
                   : 0;
    if (json_is_object(arguments))
        return write_arguments(r, arguments, jinja_dict_find(made->dict, "arguments", 9));
    if (!json_is_string(arguments))
        return 0;
    return parse_arguments(r, arguments, jinja_dict_find(made->dict, "arguments", 9));
}

/* A call of a custom tool is that of a function, whose arguments are the input's text. */
static int read_call(struct field_reader *r, const char *within, const json_t *call, struct jinja_value *out)
{
    const json_t *custom = json_object_get(call, "custom");
    if (!json_is_object(custom) || json_object_get(call, "function"))
        return read_function(r, within, call, out);
    json_t *made = json_pack("{s:O?, s:s, s:{s:O?, s:O?}}", "id", json_object_get(call, "id"), "type",
                             "function", "function", "name", json_object_get(custom, "name"), "arguments",
                             json_object_get(custom, "input"));
    int rc = made ? read_function(r, within, made, out) : api_out_of_memory(r->err);
    json_decref(made);
    return rc;
}

static int read_calls(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct message *m = r->out;
    struct jinja_value call;
    const char *name = field_path(r, f->name);
    char within[64];
    if (!json_is_array(value))
        return api_invalid(r->err, name, "%s must be an array (got %s)", name, field_got(value));
    struct jinja_list *list = json_array_size(value) ? jinja_list_open(r->arena) : NULL;
    for (size_t i = 0; i < json_array_size(value); i++) {
        snprintf(within, sizeof within, "%s.tool_calls[%zu]", r->within, i);
        if (read_call(r, within, json_array_get(value, i), &call) < 0)
            return -1;
        if (!list || jinja_list_add(r->arena, list, call) < 0)
            return api_out_of_memory(r->err);
    }
    if (list)
        m->tool_calls = jinja_list_value(list);
    return 0;
}

/* The only call of a message, as it was written before there were several. */
static int read_function_call(struct field_reader *r, const struct field *f, const json_t *value)
{
    if (!json_object_size(value))
        return read_nothing(r, f, value);
    json_t *calls = json_pack("[{s:s, s:O}]", "type", "function", "function", value);
    int rc = calls ? read_calls(r, f, calls) : api_out_of_memory(r->err);
    json_decref(calls);
    return rc;
}

/* --- messages --- */

#define TEXT(n, f)                                                                                           \
    {                                                                                                        \
        .name = n, .kind = FIELD_CUSTOM, .offset = offsetof(struct message, f), .read = read_string          \
    }

#define SWITCH(n)                                                                                            \
    {                                                                                                        \
        .name = #n, .kind = FIELD_BOOL, .offset = offsetof(struct message, n)                                \
    }

static const struct field message_fields[] = {
    CUSTOM("role", read_role),
    CUSTOM("content", read_content),
    TEXT("name", name),
    TEXT("tool_call_id", tool_call_id),
    TEXT("reasoning_content", reasoning),
    TEXT("reasoning", reasoning),
    CUSTOM("tool_calls", read_calls),
    SWITCH(prefix),
    SWITCH(partial),
    IGNORED("annotations"),
    IGNORED("reasoning_details"),
    IGNORED("cache_control"),
    IGNORED("prompt_cache_breakpoint"),
    /* Labels with which clients give messages back: LiteLLM's, the AI SDK's, LangChain's, OpenAI's parse().
     */
    IGNORED("id"),
    IGNORED("metadata"),
    IGNORED("created"),
    IGNORED("timestamp"),
    IGNORED("parsed"),
    IGNORED("phase"),
    IGNORED("weight"),
    IGNORED("extra_content"),
    IGNORED("provider_specific_fields"),
    IGNORED("thinking_blocks"),
    IGNORED("is_error"),
    IGNORED("status"),
    IGNORED("artifact"),
    CUSTOM("images", read_nothing),
    CUSTOM("refusal", read_refusal),
    CUSTOM("audio", read_nothing),
    CUSTOM("function_call", read_function_call),
    {0},
};

/* As a template reads it. A role is one of the words above, so it may be part of a control token. */
static int put_message(struct field_reader *r, const struct message *m, struct jinja_list *list)
{
    const struct {
        const char *name;
        const struct jinja_value *value;
    } rest[] = {{"name", &m->name},
                {"tool_call_id", &m->tool_call_id},
                {"reasoning_content", &m->reasoning},
                {"tool_calls", &m->tool_calls}};
    struct jinja_dict *d = jinja_dict_open(r->arena);
    if (!d || jinja_dict_add(r->arena, d, jinja_word("role"), jinja_word(m->role)) < 0 ||
        jinja_dict_add(r->arena, d, jinja_word("content"), m->content) < 0)
        return api_out_of_memory(r->err);
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        if (rest[i].value->kind != JINJA_UNDEFINED &&
            jinja_dict_add(r->arena, d, jinja_word(rest[i].name), *rest[i].value) < 0)
            return api_out_of_memory(r->err);
    return jinja_list_add(r->arena, list, jinja_dict_value(d)) < 0 ? api_out_of_memory(r->err) : 0;
}

/* Without a content: beside calls of tools none is what most templates ask for, an empty text what some need,
 * and what stands in a message without calls. */
static int put_no_content(struct field_reader *r, struct message *m)
{
    const struct chat_template *c = template_of(r);
    m->content = jinja_none();
    if (m->tool_calls.kind != JINJA_UNDEFINED && !(c && chat_template_needs_content(c)))
        return 0;
    return put_content(r, m, "", 0);
}

static int read_message(struct field_reader *r, size_t i, const json_t *value, struct jinja_list *list)
{
    const struct field *tables[] = {message_fields};
    struct field_reader inner = *r;
    struct message m = {0};
    char within[32];
    snprintf(within, sizeof within, "messages[%zu]", i);
    inner.within = within;
    inner.out = &m;
    if (!json_is_object(value))
        return api_invalid(r->err, within, "%s must be an object (got %s)", within, field_got(value));
    if (fields_read(&inner, value, tables, 1) < 0)
        return -1;
    if (!m.role)
        return api_invalid(r->err, field_path(&inner, "role"), "%s.role is missing", within);
    if (m.content.kind == JINJA_UNDEFINED && m.refusal &&
        put_content(&inner, &m, json_string_value(m.refusal), json_string_length(m.refusal)) < 0)
        return -1;
    bool may_be_empty = !strcmp(m.role, "assistant") || !strcmp(m.role, "tool");
    if (m.content.kind == JINJA_UNDEFINED && !may_be_empty)
        return api_invalid(r->err, field_path(&inner, "content"),
                           "%s.content must be a string or an array of text parts (got null)", within);
    if (m.content.kind == JINJA_UNDEFINED && put_no_content(&inner, &m) < 0)
        return -1;
    struct params *p = r->out;
    p->last_is_begun = m.prefix || m.partial; /* the last message's stays */
    return put_message(r, &m, list);
}

/* A reader of the request: what it makes is needed until the prompt is there, not as long as the request. */
static struct field_reader reader_of(const struct field_reader *r, struct chat **chat)
{
    struct field_reader inner = *r;
    *chat = &((struct params *)r->out)->chat;
    inner.arena = (*chat)->arena;
    return inner;
}

int read_messages(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct chat *chat;
    struct field_reader inner = reader_of(r, &chat);
    size_t n = json_array_size(value);
    if (!json_is_array(value))
        return api_invalid(r->err, f->name, "messages must be an array of at least one message (got %s)",
                           field_got(value));
    if (!n)
        return api_invalid(r->err, f->name, "messages must not be empty: at least one message is needed");
    chat->messages = jinja_list_open(inner.arena);
    if (!chat->messages)
        return api_out_of_memory(r->err);
    for (size_t i = 0; i < n; i++)
        if (read_message(&inner, i, json_array_get(value, i), chat->messages) < 0)
            return -1;
    return chat_normalise(chat->arena, template_of(r), &chat->messages) < 0 ? api_out_of_memory(r->err) : 0;
}

/* --- what else a template reads --- */

/* An array of objects; an empty one is as good as none. */
static int read_objects(struct field_reader *r, const struct field *f, const json_t *value, struct arena *a,
                        struct jinja_value *out)
{
    if (!json_is_array(value))
        return api_invalid(r->err, f->name, "%s must be an array (got %s)", f->name, field_got(value));
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!json_is_object(json_array_get(value, i)))
            return api_invalid(r->err, f->name, "%s[%zu] must be an object (got %s)", f->name, i,
                               field_got(json_array_get(value, i)));
    if (!json_array_size(value))
        return 0;
    return to_value(a, value, out) ? 0 : api_out_of_memory(r->err);
}

/* Adds the tools that are functions to `out`. Those of another type, which only their service can run, are
 * passed over: they must not cost the request. */
static int keep_functions(struct field_reader *r, const struct field *f, const json_t *value, json_t *out)
{
    if (!json_is_array(value))
        return api_invalid(r->err, f->name, "%s must be an array (got %s)", f->name, field_got(value));
    const struct chat_template *c = template_of(r);
    for (size_t i = 0; i < json_array_size(value); i++) {
        json_t *tool = json_array_get(value, i);
        const char *type = json_string_value(json_object_get(tool, "type"));
        json_t *function = json_object_get(tool, "function");
        char path[64];
        if (!json_is_object(tool))
            return api_invalid(r->err, f->name, "%s[%zu] must be an object (got %s)", f->name, i,
                               field_got(tool));
        if (type && strcmp(type, "function"))
            continue;
        if (!json_is_string(json_object_get(function, "name")))
            return api_invalid(r->err, f->name, "tools[%zu] must be an object with function.name", i);
        snprintf(path, sizeof path, "%s[%zu].function.parameters", f->name, i);
        if (field_has_shape(json_object_get(function, "parameters"), path, SHAPE_OBJECT, r->err) < 0)
            return -1;
        bool lacks = c && chat_template_needs_descriptions(c) && !json_object_get(function, "description");
        if ((lacks && json_object_set_new(function, "description", json_string("")) < 0) ||
            json_array_append(out, tool) < 0)
            return api_out_of_memory(r->err);
    }
    return 0;
}

int read_tools(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct params *p = r->out;
    json_t *functions = json_array();
    p->tool_list = functions;
    int rc = functions ? keep_functions(r, f, value, functions) : api_out_of_memory(r->err);
    if (rc == 0)
        rc = read_objects(r, f, functions, p->chat.arena, &p->chat.tools);
    if (rc == 0 && tool_list_read(r->arena, functions, &p->tools) < 0)
        rc = api_out_of_memory(r->err);
    return rc;
}

int read_documents(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct chat *chat = &((struct params *)r->out)->chat;
    return read_objects(r, f, value, chat->arena, &chat->documents);
}

int read_template_variables(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct chat *chat = &((struct params *)r->out)->chat;
    struct jinja_value all;
    const char *name;
    json_t *member;
    if (!json_is_object(value))
        return api_invalid(r->err, f->name, "%s must be an object (got %s)", f->name, field_got(value));
    json_object_foreach((json_t *)value, name, member)
    {
        if (chat_template_reserves(name))
            return api_invalid(r->err, f->name, "%s must not set %s", f->name, name);
    }
    if (!to_value(chat->arena, value, &all))
        return api_out_of_memory(r->err);
    chat->variables = all.dict;
    return 0;
}
