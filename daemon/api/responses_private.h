/* responses_private.h - between the reader and the writer of /v1/responses. Thread: loop or pool. */
#pragma once
#include "generation/generation.h"

#define RESPONSES_BETWEEN "__" /* a namespace and its member's name */

json_t *responses_translate(const json_t *body, struct api_error *err);
/* Members of the translated body that no other dialect has, and the names that errors are worded with. */
extern const struct field responses_fields[];
extern const struct field_name responses_names[];
