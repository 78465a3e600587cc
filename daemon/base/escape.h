/* escape.h - foreign text made fit for one line of the log, of the service manager or of a terminal.
 * Escaped are bytes that are no UTF-8 and the characters that utf8_is_obeyed() names: a reader would act on
 * them instead of showing them. All text that leaves for those readers goes through here. Thread: any.
 * Memory: none is allocated. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum escape_style {
    ESCAPE_LINE,   /* a byte as \xNN, a character as \uNNNN or \UNNNNNNNN */
    ESCAPE_QUOTED, /* the same, and \" and \\: for use between quotes */
    ESCAPE_JSON,   /* between the quotes of JSON; a byte that is no UTF-8 is shown as if it were Latin-1 */
    ESCAPE_TEXT,   /* as ESCAPE_LINE, but newlines and tabs stay: several lines */
};

/* Appends `len` bytes of text to out[*n], of `room` bytes in all; no NUL. False when the text was cut, which
 * happens between whole characters. */
bool escape_append(char *out, size_t room, size_t *n, const char *text, size_t len, enum escape_style style);
/* One line into `out`, with its NUL, cut where `room` ends; returns `out`. */
const char *escape_line(char *out, size_t room, const char *text);
void escape_print(FILE *f, const char *text, size_t len, enum escape_style style);
