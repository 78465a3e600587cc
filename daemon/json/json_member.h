/* json_member.h - a member of a JSON object, found without parsing the rest: in one pass over the text, with
 * no memory taken but for names with escapes. Thread: any. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* Finds the member `name`, of ASCII, of the object that `s` holds; its value, as it stands
 * there, is *value, *n bytes. False: there is none, or the text ends first. A text that is no JSON may give
 * either: the parser refuses it later. */
bool json_member_find(const char *s, size_t len, const char *name, const char **value, size_t *n);
/* The same of a string, whose text is stored without escapes. False: no such member, or it is no string; a
 * text that does not fit in `room` becomes "?", which is the name of nothing. */
bool json_member_text(const char *s, size_t len, const char *name, char *out, size_t room);
/* The same of a number; `missing` where there is none. */
double json_member_number(const char *s, size_t len, const char *name, double missing);
