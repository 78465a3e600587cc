/* chat_json.h - the one form of a chat that all dialects are read into: the members of OpenAI's chats, as
 * JSON. A dialect's reader builds it with these; chat_messages.c makes it what templates read. Running out of
 * memory is remembered (`failed`). Thread: any. Memory: `body` is the caller's reference; strings are shared;
 * chat_json_close() frees what was gathered. */
#pragma once
#include "base/api_error.h"
#include "base/buf.h"

#include <jansson.h>
#include <stdbool.h>

struct chat_json {
    json_t *body, *messages, *tools; /* the latter two belong to body */
    struct api_error *err;
    bool failed;
    struct arena arena; /* of `text` */
    struct buf text;    /* gathered for the next member */
    bool gathered;      /* be it an empty text */
};

/* The member's text, or NULL when it is no text. */
const char *chat_json_word(const json_t *object, const char *name);
/* The same of a member that must be there: NULL with an error that names it, as a member of `path`. */
const char *chat_json_need(struct chat_json *c, const json_t *object, const char *path, const char *name);
/* Returns 0, or -1 with *err when memory has run out. */
int chat_json_open(struct chat_json *c, struct api_error *err);
/* The finished body, or NULL with *err; closes c. */
json_t *chat_json_close(struct chat_json *c);

/* Sets a member: of the body, or of `object`. The value's reference is taken. */
void chat_json_set(struct chat_json *c, const char *name, json_t *value);
void chat_json_put(struct chat_json *c, json_t *object, const char *name, json_t *value);
/* Copies members of `from` that are there and not null: {name there, name here, ..., NULL}. */
void chat_json_copy(struct chat_json *c, const json_t *from, const char *const *names);

/* Adds a message; a borrowed reference, or NULL when it failed, which the others accept. */
json_t *chat_json_message(struct chat_json *c, const char *role);
/* Gathers a text, on lines of its own. It is copied; a member that has many takes them all at once. */
void chat_json_gather(struct chat_json *c, const char *text);
/* Sets a member to the texts gathered since the last call; without any it stays as it is. */
void chat_json_text(struct chat_json *c, json_t *message, const char *name);
/* Adds a call; arguments as an object or a text, id may be NULL. */
void chat_json_call(struct chat_json *c, json_t *message, const char *id, const char *name,
                    const json_t *arguments);
/* Adds a tool; all but its name may be NULL. */
void chat_json_tool(struct chat_json *c, const char *name, const json_t *description, const json_t *schema,
                    const json_t *strict);
