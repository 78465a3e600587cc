#include "chat_json.h"

#include "json/json_fields.h"

#include <stdio.h>
#include <string.h>

const char *chat_json_word(const json_t *object, const char *name)
{
    return json_string_value(json_object_get(object, name));
}

const char *chat_json_need(struct chat_json *c, const json_t *object, const char *path, const char *name)
{
    const char *word = chat_json_word(object, name);
    char place[128];
    if (word)
        return word;
    (void)snprintf(place, sizeof place, "%s.%s", path, name);
    if (!json_is_object(object))
        api_invalid(c->err, path, "%s must be an object (got %s)", path, field_got(object));
    else
        api_invalid(c->err, place, "%s must be a string (got %s)", place,
                    field_got(json_object_get(object, name)));
    return NULL;
}

int chat_json_open(struct chat_json *c, struct api_error *err)
{
    *c = (struct chat_json){.err = err, .body = json_object()};
    c->messages = json_array();
    c->tools = json_array();
    chat_json_set(c, "messages", c->messages);
    chat_json_set(c, "tools", c->tools);
    if (!c->failed)
        return 0;
    json_decref(c->body);
    return api_out_of_memory(err);
}

json_t *chat_json_close(struct chat_json *c)
{
    arena_close(&c->arena);
    if (c->failed)
        api_out_of_memory(c->err);
    if (!c->err->status)
        return c->body;
    json_decref(c->body);
    return NULL;
}

void chat_json_put(struct chat_json *c, json_t *object, const char *name, json_t *value)
{
    if (!object)
        json_decref(value);
    if (!object || json_object_set_new(object, name, value) < 0)
        c->failed = true;
}

void chat_json_set(struct chat_json *c, const char *name, json_t *value)
{
    chat_json_put(c, c->body, name, value);
}

void chat_json_copy(struct chat_json *c, const json_t *from, const char *const *names)
{
    for (; *names; names += 2) {
        json_t *value = json_object_get(from, names[0]);
        if (value && !json_is_null(value))
            chat_json_set(c, names[1], json_incref(value));
    }
}

json_t *chat_json_message(struct chat_json *c, const char *role)
{
    json_t *message = json_object();
    chat_json_put(c, message, "role", json_string(role));
    if (!message || json_array_append_new(c->messages, message) < 0) {
        c->failed = true;
        return NULL;
    }
    return message;
}

void chat_json_gather(struct chat_json *c, const char *text)
{
    c->text.arena = &c->arena;
    if (c->text.len)
        buf_puts(&c->text, "\n");
    buf_puts(&c->text, text);
    c->gathered = true;
}

void chat_json_text(struct chat_json *c, json_t *message, const char *name)
{
    if (!c->gathered)
        return;
    c->failed |= c->text.failed;
    chat_json_put(c, message, name, json_stringn(c->text.p ? c->text.p : "", c->text.len));
    c->text.len = 0;
    c->gathered = false;
}

void chat_json_call(struct chat_json *c, json_t *message, const char *id, const char *name,
                    const json_t *arguments)
{
    json_t *calls = json_object_get(message, "tool_calls"), *call = json_object(), *function = json_object();
    if (!calls) {
        calls = json_array();
        chat_json_put(c, message, "tool_calls", calls);
    }
    if (id)
        chat_json_put(c, call, "id", json_string(id));
    chat_json_put(c, call, "type", json_string("function"));
    chat_json_put(c, function, "name", json_string(name));
    if (arguments)
        chat_json_put(c, function, "arguments", json_incref((json_t *)arguments));
    chat_json_put(c, call, "function", function);
    if (!calls || json_array_append_new(calls, call) < 0)
        c->failed = true;
}

void chat_json_tool(struct chat_json *c, const char *name, const json_t *description, const json_t *schema,
                    const json_t *strict)
{
    json_t *tool = json_object(), *function = json_object();
    chat_json_put(c, tool, "type", json_string("function"));
    chat_json_put(c, function, "name", json_string(name));
    if (json_is_string(description))
        chat_json_put(c, function, "description", json_incref((json_t *)description));
    chat_json_put(c, function, "parameters",
                  json_is_object(schema) ? json_incref((json_t *)schema) : json_object());
    if (json_is_boolean(strict))
        chat_json_put(c, function, "strict", json_incref((json_t *)strict));
    chat_json_put(c, tool, "function", function);
    if (json_array_append_new(c->tools, tool) < 0)
        c->failed = true;
}
