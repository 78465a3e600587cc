/* field_names.h - the client's names of fields that a dialect's `translate` gives other names, so that an
 * error says what the client has sent. Thread: any. Memory: none. */
#pragma once
#include "base/api_error.h"

#include <jansson.h>

struct field_name {
    const char *here, *there; /* `there` may be a path: options.num_predict */
    bool no_index;            /* the items are others there: messages[3].role is input.role */
};

/* Renames the error's field, in its words too, where a row of names[], which ends with zeros, has it: the
 * first row whose `there` is in the body, else the first row, unless the body has a member `here`. */
void field_names_apply(const struct field_name *names, const json_t *sent, struct api_error *e);
