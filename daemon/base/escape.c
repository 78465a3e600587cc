#include "escape.h"
#include "base/utf8.h"

#include <stdint.h>
#include <string.h>

#define MAX_PIECE 13 /* bytes of one escaped character, with the NUL */

/* Writes a character as an escape, in JSON as a pair of surrogates where it needs one; returns its bytes. */
static size_t put_code(char piece[MAX_PIECE], uint32_t code, bool byte, bool json)
{
    uint32_t above = code - 0x10000;
    int n = byte             ? snprintf(piece, MAX_PIECE, "\\x%02x", (unsigned)code)
            : code < 0x10000 ? snprintf(piece, MAX_PIECE, "\\u%04x", (unsigned)code)
            : json ? snprintf(piece, MAX_PIECE, "\\u%04x\\u%04x", (unsigned)(0xd800 + (above >> 10)),
                              (unsigned)(0xdc00 + (above & 0x3ff)))
                   : snprintf(piece, MAX_PIECE, "\\U%08x", (unsigned)code);
    return (size_t)n;
}

/* The character at `s` as it is written, into `piece`; its bytes in the text. */
static size_t escape_one(char piece[MAX_PIECE], size_t *written, const char *s, size_t len,
                         enum escape_style style)
{
    size_t taken = utf8_char(s, len);
    uint32_t code = taken ? utf8_code(s, taken) : (unsigned char)*s;
    bool stays = style == ESCAPE_TEXT && (code == '\n' || code == '\t');
    if (!taken || (utf8_is_obeyed(code) && !stays)) {
        bool byte = style != ESCAPE_JSON && (!taken || code < 0x80);
        *written = put_code(piece, code, byte, style == ESCAPE_JSON);
        return taken ? taken : 1;
    }
    bool quoted = style == ESCAPE_QUOTED || style == ESCAPE_JSON;
    *written = 0;
    if (quoted && (code == '"' || code == '\\'))
        piece[(*written)++] = '\\';
    memcpy(piece + *written, s, taken);
    *written += taken;
    return taken;
}

bool escape_append(char *out, size_t room, size_t *n, const char *text, size_t len, enum escape_style style)
{
    char piece[MAX_PIECE];
    size_t written;
    for (size_t at = 0; at < len;) {
        at += escape_one(piece, &written, text + at, len - at, style);
        if (*n + written >= room)
            return false;
        memcpy(out + *n, piece, written);
        *n += written;
    }
    return true;
}

const char *escape_line(char *out, size_t room, const char *text)
{
    size_t n = 0;
    (void)escape_append(out, room, &n, text, strlen(text), ESCAPE_LINE);
    out[n] = '\0';
    return out;
}

void escape_print(FILE *f, const char *text, size_t len, enum escape_style style)
{
    char piece[MAX_PIECE];
    size_t written;
    for (size_t at = 0; at < len;) {
        at += escape_one(piece, &written, text + at, len - at, style);
        fwrite(piece, 1, written, f);
    }
}
