/* json_repair.h - the arguments that a model writes, made JSON as they come, byte by byte.
 * Valid JSON passes unchanged: numbers keep their digits, blanks and the order of keys stay.
 * Repaired are: single quotes, True, False, None, words without quotes, control characters in strings, bad
 * escapes, commas too many or missing, values and closing brackets that are missing. A run of blanks between
 * tokens is cut at 64. The output at any time is the beginning of the final output. At most a word, an escape
 * or a delimiter is held back.
 *
 * Thread: one at a time. Memory: fixed, but for the output's. */
#pragma once
#include "bytes.h"

#include <stdint.h>

#define JSON_REPAIR_DEPTH 512 /* containers; a deeper value ends there */

enum json_repair_form {
    JSON_REPAIR_JSON,
    JSON_REPAIR_GEMMA,    /* strings between <|"|>, keys without quotes */
    JSON_REPAIR_KEYWORDS, /* k="v", l=2) - a Python call from behind its opening bracket */
};
enum json_repair_result {
    JSON_REPAIR_MORE,
    JSON_REPAIR_DONE, /* the value ended with this byte */
    JSON_REPAIR_STOP, /* the value ended before this byte, which belongs to the caller */
};

struct json_repair {
    struct bytes *out; /* the caller may change it between two bytes */
    enum json_repair_form form;
    uint8_t state, phase, quote;
    uint16_t depth;
    uint8_t n_held, n_word, n_hex, n_delimiter;
    bool comma, is_key, ended;
    bool started;           /* something was put out */
    unsigned n_repairs;     /* places that were not JSON */
    unsigned n_loose_words; /* of these, words that became strings */
    char stack[JSON_REPAIR_DEPTH];
    char held[64]; /* blanks since the last token */
    char word[64];
    char hex[4];
};

void json_repair_open(struct json_repair *r, enum json_repair_form form, struct bytes *out);
enum json_repair_result json_repair_push(struct json_repair *r, char c);
/* True while the next byte belongs to a string. */
bool json_repair_in_string(const struct json_repair *r);
/* No more comes: closes what is open. */
void json_repair_end(struct json_repair *r);
