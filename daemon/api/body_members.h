/* body_members.h - members of another server's body, put under /generate's names. A null asks for nothing, as
 * everywhere. Thread: any. Memory: the values are shared. */
#pragma once
#include <jansson.h>
#include <stdbool.h>

/* What a negative number asks for. */
enum body_negative {
    NEGATIVE_AS_IT_IS, /* it is read, and refused, under its name */
    NEGATIVE_NOTHING,  /* the default */
    NEGATIVE_OFF,      /* 0 */
    NEGATIVE_ALL,      /* as many tokens as a penalty can look at */
};

struct body_member {
    const char *there, *here;
    enum body_negative negative;
};

/* Sets a member, unless the value is null or NULL. These return false when memory has run out. */
bool body_put(json_t *out, const char *name, json_t *value);
bool body_put_member(json_t *out, const struct body_member *m, json_t *value);
/* Puts the members of `from` that the list, up to a row of zeros, has. Of two with one name here the first in
 * the list counts. */
bool body_copy(json_t *out, const json_t *from, const struct body_member *list);
