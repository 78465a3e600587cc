#include "json_repair.h"

#include <assert.h>
#include <string.h>

enum state { BETWEEN, STRING, ESCAPE, HEX, WORD, LONG_NUMBER, LONG_WORD, DELIMITER, FINISHED };
enum phase { KEY, COLON, VALUE, COMMA };

static const char gemma_quote[] = "<|\"|>";
#define GEMMA_QUOTE_LEN (sizeof gemma_quote - 1)
#define GEMMA           '<' /* as `quote`: the string ends with gemma_quote */

void json_repair_open(struct json_repair *r, enum json_repair_form form, struct bytes *out)
{
    *r = (struct json_repair){.out = out, .form = form, .state = BETWEEN, .phase = VALUE};
    if (form != JSON_REPAIR_KEYWORDS)
        return;
    bytes_put_char(out, '{');
    r->stack[r->depth++] = ')';
    r->phase = KEY;
    r->started = true;
}

/* --- output --- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* Before a token: the comma and the blanks that were held back. */
static void put_held(struct json_repair *r, bool closes)
{
    if (r->comma && !closes)
        bytes_put_char(r->out, ',');
    r->n_repairs += r->comma && closes;
    r->comma = false;
    bytes_put(r->out, r->held, r->n_held);
    r->n_held = 0;
    r->started = true;
}

static char top(const struct json_repair *r)
{
    return r->depth ? r->stack[r->depth - 1] : 0;
}

static void after_value(struct json_repair *r)
{
    r->state = r->depth ? BETWEEN : FINISHED;
    r->phase = COMMA;
}

/* A string or word is complete. */
static void after_token(struct json_repair *r)
{
    if (!r->is_key) {
        after_value(r);
        return;
    }
    r->state = BETWEEN;
    r->phase = COLON;
}

static void open_container(struct json_repair *r, char opener)
{
    put_held(r, false);
    bytes_put_char(r->out, opener);
    assert(r->depth < sizeof r->stack);
    r->stack[r->depth++] = opener == '{' ? '}' : ']';
    r->state = BETWEEN;
    r->phase = opener == '{' ? KEY : VALUE;
}

static void close_container(struct json_repair *r)
{
    assert(r->depth > 0);
    char closer = r->stack[--r->depth];
    bool in_object = closer != ']';
    if (in_object && r->phase == COLON)
        bytes_puts(r->out, ": null");
    if (in_object && r->phase == VALUE)
        bytes_puts(r->out, "null");
    r->n_repairs += in_object && (r->phase == COLON || r->phase == VALUE);
    put_held(r, true);
    bytes_put_char(r->out, in_object ? '}' : ']');
    after_value(r);
}

/* --- strings --- */

static void open_string(struct json_repair *r, char quote)
{
    put_held(r, false);
    r->is_key = r->phase == KEY;
    bytes_put_char(r->out, '"');
    r->quote = (uint8_t)quote;
    r->state = STRING;
    r->n_repairs += quote != '"';
}

static void close_string(struct json_repair *r)
{
    bytes_put_char(r->out, '"');
    after_token(r);
}

static void put_char(struct json_repair *r, char c)
{
    bytes_put_json_chars(r->out, &c, 1);
}

/* One byte of a string that ends with <|"|>; that has no escapes. */
static void gemma_byte(struct json_repair *r, char c)
{
    if (c == gemma_quote[r->n_delimiter]) {
        if (++r->n_delimiter == GEMMA_QUOTE_LEN) {
            r->n_delimiter = 0;
            close_string(r);
        }
        return;
    }
    bytes_put_json_chars(r->out, gemma_quote, r->n_delimiter);
    r->n_delimiter = c == gemma_quote[0]; /* it occurs nowhere else in it */
    if (!r->n_delimiter)
        put_char(r, c);
}

static void string_byte(struct json_repair *r, char c)
{
    if (r->quote == GEMMA) {
        gemma_byte(r, c);
    } else if (c == '\\') {
        r->state = ESCAPE;
    } else if (c == (char)r->quote) {
        close_string(r);
    } else {
        r->n_repairs += (unsigned char)c < 0x20;
        put_char(r, c);
    }
}

static void escape_byte(struct json_repair *r, char c)
{
    r->state = STRING;
    if (c == 'u') {
        r->state = HEX;
        r->n_hex = 0;
    } else if (c && strchr("\"\\/bfnrt", c)) {
        char escape[2] = {'\\', c};
        bytes_put(r->out, escape, 2);
    } else {
        r->n_repairs++;
        if (c != '\'')
            bytes_puts(r->out, "\\\\");
        put_char(r, c);
    }
}

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static void put_bad_hex(struct json_repair *r)
{
    bytes_puts(r->out, "\\\\u");
    bytes_put(r->out, r->hex, r->n_hex);
    r->n_repairs++;
    r->state = STRING;
}

static void hex_byte(struct json_repair *r, char c)
{
    if (!is_hex(c)) {
        put_bad_hex(r);
        string_byte(r, c);
        return;
    }
    r->hex[r->n_hex++] = c;
    if (r->n_hex < 4)
        return;
    bytes_puts(r->out, "\\u");
    bytes_put(r->out, r->hex, 4);
    r->state = STRING;
}

bool json_repair_in_string(const struct json_repair *r)
{
    return r->state == STRING || r->state == ESCAPE || r->state == HEX;
}

/* --- words: numbers, true, and what should have been a string --- */

static size_t digits(const char *s, size_t n, size_t i)
{
    while (i < n && s[i] >= '0' && s[i] <= '9')
        i++;
    return i;
}

static bool is_number(const char *s, size_t n)
{
    size_t i = n && s[0] == '-', from = i;
    i = i < n && s[i] == '0' ? i + 1 : digits(s, n, i);
    if (i == from)
        return false;
    if (i < n && s[i] == '.') {
        from = ++i;
        i = digits(s, n, i);
        if (i == from)
            return false;
    }
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        i++;
        if (i < n && (s[i] == '+' || s[i] == '-'))
            i++;
        from = i;
        i = digits(s, n, i);
        if (i == from)
            return false;
    }
    return i == n;
}

static const char *literal(const struct json_repair *r)
{
    static const char *const words[][2] = {{"true", "true"}, {"false", "false"}, {"null", "null"},
                                           {"True", "true"}, {"False", "false"}, {"None", "null"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (r->n_word == strlen(words[i][0]) && !memcmp(words[i][0], r->word, r->n_word))
            return words[i][1];
    return NULL;
}

static bool word_is_whole(const struct json_repair *r)
{
    return !r->is_key && (literal(r) || is_number(r->word, r->n_word));
}

static void put_word(struct json_repair *r)
{
    const char *value = r->is_key ? NULL : literal(r);
    while (r->n_word && is_blank(r->word[r->n_word - 1]))
        r->n_word--;
    r->n_repairs += !value || memcmp(value, r->word, r->n_word);
    if (value) {
        bytes_puts(r->out, value);
    } else if (!r->is_key && is_number(r->word, r->n_word)) {
        r->n_repairs--;
        bytes_put(r->out, r->word, r->n_word);
    } else {
        r->n_loose_words += !r->is_key;
        bytes_put_char(r->out, '"');
        bytes_put_json_chars(r->out, r->word, r->n_word);
        bytes_put_char(r->out, '"');
    }
    after_token(r);
}

static bool begins_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c & 0x80) ||
           (c && strchr("-+._$/#@*~", c));
}

static void open_word(struct json_repair *r, char c)
{
    put_held(r, false);
    r->is_key = r->phase == KEY;
    r->n_word = 0;
    r->word[r->n_word++] = c;
    r->state = WORD;
}

static bool ends_word(const struct json_repair *r, char c)
{
    if (r->is_key)
        return c == ':' || c == '}' || c == ',' ||
               (r->form == JSON_REPAIR_KEYWORDS && (c == '=' || c == ')'));
    return c == ',' || c == '}' || c == ']' || c == '\n' || c == '<' ||
           (r->form == JSON_REPAIR_KEYWORDS && c == ')') || (is_blank(c) && word_is_whole(r));
}

/* A word is not held back for ever: a long one goes on as what it seems to be. */
static void lengthen_word(struct json_repair *r, char c)
{
    bool number = !r->is_key && is_number(r->word, r->n_word);
    if (number) {
        bytes_put(r->out, r->word, r->n_word);
    } else {
        r->n_repairs++;
        r->n_loose_words += !r->is_key;
        bytes_put_char(r->out, '"');
        bytes_put_json_chars(r->out, r->word, r->n_word);
    }
    r->state = number ? LONG_NUMBER : LONG_WORD;
    if (!number)
        put_char(r, c);
    else if (c >= '0' && c <= '9')
        bytes_put_char(r->out, c);
}

/* False: the byte ended the word and is still to be read. */
static bool word_byte(struct json_repair *r, char c)
{
    if (ends_word(r, c)) {
        put_word(r);
        return false;
    }
    if (r->n_word < sizeof r->word)
        r->word[r->n_word++] = c;
    else
        lengthen_word(r, c);
    return true;
}

static bool long_byte(struct json_repair *r, char c)
{
    bool number = r->state == LONG_NUMBER;
    if (number && ((c >= '0' && c <= '9') || begins_word(c))) {
        if (c >= '0' && c <= '9') /* digits alone keep it a number */
            bytes_put_char(r->out, c);
        return true;
    }
    if (!number && !ends_word(r, c)) {
        put_char(r, c);
        return true;
    }
    if (!number)
        bytes_put_char(r->out, '"');
    after_token(r);
    return false;
}

/* --- between tokens --- */

/* A byte that may close a container. -1: it does not. */
static int closing_byte(struct json_repair *r, char c)
{
    char closer = r->form == JSON_REPAIR_KEYWORDS && c == ')' ? ')' : c;
    const void *open = r->depth ? memrchr(r->stack, closer, r->depth) : NULL;
    if ((c != '}' && c != ']' && c != ')') || !open)
        return -1;
    while (top(r) != closer) {
        close_container(r);
        r->n_repairs++;
    }
    close_container(r);
    return r->state == FINISHED ? JSON_REPAIR_DONE : JSON_REPAIR_MORE;
}

static int comma_byte(struct json_repair *r)
{
    if (!r->depth)
        return -1;
    bool lacks_value = top(r) != ']' && (r->phase == VALUE || r->phase == COLON);
    if (lacks_value)
        bytes_puts(r->out, r->phase == COLON ? ": null" : "null");
    r->n_repairs += r->phase != COMMA;
    if (r->phase == COMMA || lacks_value) {
        r->comma = true;
        r->n_held = 0;
    }
    r->phase = top(r) == ']' ? VALUE : KEY;
    return JSON_REPAIR_MORE;
}

static int colon_byte(struct json_repair *r, char c)
{
    if (c != ':' && !(c == '=' && r->form == JSON_REPAIR_KEYWORDS))
        return -1;
    put_held(r, false);
    bytes_put_char(r->out, ':');
    if (c == '=')
        bytes_put_char(r->out, ' ');
    r->phase = VALUE;
    return JSON_REPAIR_MORE;
}

/* The first byte of a string, word or container. */
static int token_byte(struct json_repair *r, char c)
{
    bool string = c == '"' || c == '\'', container = c == '{' || c == '[';
    bool gemma = r->form == JSON_REPAIR_GEMMA && c == '<';
    if (r->phase == COMMA && r->depth && (string || gemma)) { /* a comma is missing */
        r->comma = true;
        r->n_repairs++;
        r->phase = top(r) == ']' ? VALUE : KEY;
    }
    if (r->phase != KEY && r->phase != VALUE)
        return -1;
    if (string)
        open_string(r, c);
    else if (gemma)
        r->state = DELIMITER;
    else if (container && r->phase == VALUE && r->depth < JSON_REPAIR_DEPTH)
        open_container(r, c);
    else if (begins_word(c))
        open_word(r, c);
    else
        return -1;
    r->n_delimiter = gemma;
    return JSON_REPAIR_MORE;
}

static int between_byte(struct json_repair *r, char c)
{
    if (is_blank(c)) {
        if (r->n_held < sizeof r->held && r->started)
            r->held[r->n_held++] = c;
        return JSON_REPAIR_MORE;
    }
    int rc = closing_byte(r, c);
    if (rc < 0 && c == ',')
        rc = comma_byte(r);
    if (rc < 0 && r->phase == COLON)
        rc = colon_byte(r, c);
    if (rc < 0)
        rc = token_byte(r, c);
    return rc < 0 ? JSON_REPAIR_STOP : rc;
}

/* An opening <|"|>. Text that begins like it and is none ends the value, for closers do. */
static enum json_repair_result delimiter_byte(struct json_repair *r, char c)
{
    if (c != gemma_quote[r->n_delimiter])
        return JSON_REPAIR_STOP;
    if (++r->n_delimiter == GEMMA_QUOTE_LEN) {
        r->n_delimiter = 0;
        open_string(r, GEMMA);
        r->n_repairs--;
    }
    return JSON_REPAIR_MORE;
}

enum json_repair_result json_repair_push(struct json_repair *r, char c)
{
    bool taken = true;
    if (r->state == FINISHED)
        return JSON_REPAIR_STOP;
    if (r->state == DELIMITER)
        return delimiter_byte(r, c);
    if (r->state == WORD)
        taken = word_byte(r, c);
    else if (r->state == LONG_NUMBER || r->state == LONG_WORD)
        taken = long_byte(r, c);
    else if (r->state == STRING)
        string_byte(r, c);
    else if (r->state == ESCAPE)
        escape_byte(r, c);
    else if (r->state == HEX)
        hex_byte(r, c);
    else
        return (enum json_repair_result)between_byte(r, c);
    if (!taken)
        return r->state == FINISHED ? JSON_REPAIR_STOP : (enum json_repair_result)between_byte(r, c);
    return r->state == FINISHED ? JSON_REPAIR_DONE : JSON_REPAIR_MORE;
}

void json_repair_end(struct json_repair *r)
{
    if (r->state == ESCAPE)
        bytes_puts(r->out, "\\\\");
    if (r->state == HEX)
        put_bad_hex(r);
    if (r->state == STRING || r->state == ESCAPE) {
        bytes_put_json_chars(r->out, gemma_quote, r->n_delimiter);
        close_string(r);
        r->n_repairs++;
    } else if (r->state == WORD) {
        put_word(r);
    } else if (r->state == LONG_WORD) {
        bytes_put_char(r->out, '"');
        after_token(r);
    } else if (r->state == LONG_NUMBER) {
        after_token(r);
    }
    r->n_held = 0;
    r->n_repairs += r->depth;
    while (r->depth)
        close_container(r);
    r->state = FINISHED;
}
