/* chat_messages.h - a conversation as clients write it in JSON, made the values that chat templates read.
 * Everything but roles is marked as a user's. Thread: any. Memory: values lie in the reader's arena and point
 * into the JSON tree. */
#pragma once
#include "json/json_fields.h"

/* Rows of a chat's fields; the struct that is filled has these at `offset`. Their reader's context is the
 * server, whose model's template says how it wants contents and arguments. */
int read_messages(struct field_reader *r, const struct field *f, const json_t *value);  /* struct chat */
int read_tools(struct field_reader *r, const struct field *f, const json_t *value);     /* the same */
int read_documents(struct field_reader *r, const struct field *f, const json_t *value); /* the same */
int read_template_variables(struct field_reader *r, const struct field *f, const json_t *value);
