/* jinja_lex.c - the lexer: text between tags, strings, numbers, operators. */
#include "jinja_lex.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int jinja_lexer_open(struct jinja_lexer *l, struct arena *a, const char *source, size_t len,
                     struct error *err)
{
    if (len > JINJA_MAX_SOURCE)
        return error_set(err, -ENOTSUP, "the template has %zu bytes, more than %u", len, JINJA_MAX_SOURCE);
    char *copy = arena_alloc(a, len + 1);
    if (!copy)
        return error_set(err, -ENOMEM, "out of memory");
    *l = (struct jinja_lexer){
        .arena = a, .s = copy, .line = 1, .within = TOKEN_DATA, .line_starting = true, .err = err};
    for (size_t i = 0; i < len; i++) {
        bool pair = source[i] == '\r' && i + 1 < len && source[i + 1] == '\n';
        if (!pair)
            copy[l->len++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (l->len && copy[l->len - 1] == '\n') /* like Jinja: drop the line end at the end of the file */
        l->len--;
    copy[l->len] = '\0';
    return 0;
}

#define broken(l, ...) error_set((l)->err, -EBADMSG, "line %u: " __VA_ARGS__)

/* --- text between tags --- */

static bool has(const struct jinja_lexer *l, size_t at, const char *word)
{
    size_t n = strlen(word);
    return at <= l->len && l->len - at >= n && !memcmp(l->s + at, word, n);
}

static void advance(struct jinja_lexer *l, size_t to)
{
    for (; l->at < to; l->at++)
        l->line += l->s[l->at] == '\n';
}

static size_t skip_space(const struct jinja_lexer *l, size_t at)
{
    size_t n;
    while (at < l->len && (n = jinja_space(l->s + at, l->len - at)))
        at += n;
    return at;
}

static size_t find(const struct jinja_lexer *l, size_t at, const char *word)
{
    const char *found = at < l->len ? memmem(l->s + at, l->len - at, word, strlen(word)) : NULL;
    return found ? (size_t)(found - l->s) : l->len;
}

/* Returns the position of the next tag or comment, or the source's end. */
static size_t find_tag(const struct jinja_lexer *l, size_t at)
{
    while (at < l->len && !(l->s[at] == '{' && at + 1 < l->len && jinja_among(l->s[at + 1], "{%#")))
        at++;
    return at;
}

/* Returns the end of the text [from, to) before a tag, without the white space that the tag removes. `sign`
 * is the character behind the tag's two. */
static size_t strip_before(const struct jinja_lexer *l, size_t from, size_t to, char sign, bool prints)
{
    struct jinja_text text = jinja_text_of(l->s + from, to - from);
    if (sign == '-')
        return from + jinja_strip(text, false, true).len;
    if (sign == '+' || prints)
        return to;
    size_t start = to;
    while (start > from && l->s[start - 1] != '\n')
        start--;
    if (start == from && !l->line_starting)
        return to;
    return skip_space(l, start) >= to ? start : to;
}

/* Moves behind the tag that ends at `at` with the two characters `end`. -EAGAIN when no tag ends here. */
static int close_tag(struct jinja_lexer *l, size_t at, const char *end, bool trims)
{
    char sign = at < l->len && (l->s[at] == '-' || (trims && l->s[at] == '+')) ? l->s[at] : 0;
    size_t after = at + (sign != 0);
    if (!has(l, after, end))
        return -EAGAIN;
    after += 2;
    if (sign == '-')
        after = skip_space(l, after);
    else if (!sign && trims && has(l, after, "\n"))
        after++;
    l->line_starting = after > 0 && l->s[after - 1] == '\n';
    advance(l, after);
    return 0;
}

static int skip_comment(struct jinja_lexer *l, size_t tag)
{
    size_t end = find(l, tag + 2, "#}");
    if (end == l->len)
        return broken(l, "a comment is not closed", l->line);
    bool sign = end > tag + 2 && (l->s[end - 1] == '-' || l->s[end - 1] == '+');
    return close_tag(l, end - sign, "#}", true);
}

static char sign_at(const struct jinja_lexer *l, size_t at)
{
    return at < l->len && (l->s[at] == '-' || l->s[at] == '+') ? l->s[at] : 0;
}

/* Returns the position behind "{% word" when the tag at `tag` is this one, else 0. */
static size_t tag_word(const struct jinja_lexer *l, size_t tag, const char *word)
{
    size_t at = skip_space(l, tag + 2 + (sign_at(l, tag + 2) != 0));
    if (!has(l, at, word))
        return 0;
    at = skip_space(l, at + strlen(word));
    return has(l, at, "%}") || (sign_at(l, at) && has(l, at + 1, "%}")) ? at : 0;
}

/* Reads the text between {% raw %} and {% endraw %} as it is. */
static int read_raw(struct jinja_lexer *l, size_t after, struct jinja_token *out)
{
    uint32_t line = l->line;
    if (close_tag(l, after, "%}", false) < 0)
        return broken(l, "the tag raw is not closed", line);
    size_t from = l->at, end = find(l, from, "{%"), at = 0;
    while (end < l->len && !(at = tag_word(l, end, "endraw")))
        end = find(l, end + 2, "{%");
    if (end >= l->len)
        return broken(l, "raw without endraw", line);
    size_t to = strip_before(l, from, end, sign_at(l, end + 2), false);
    out->kind = TOKEN_DATA;
    out->text = jinja_text_of(l->s + from, to - from);
    advance(l, at);
    return close_tag(l, at, "%}", true);
}

/* Reads the text up to the next tag; skips comments. An empty text is no token. */
static int read_data(struct jinja_lexer *l, struct jinja_token *out)
{
    for (;;) {
        size_t from = l->at, tag = find_tag(l, from);
        char kind = tag < l->len ? l->s[tag + 1] : 0, sign = sign_at(l, tag + 2);
        size_t to = kind ? strip_before(l, from, tag, sign, kind == '{') : tag;
        out->line = l->line;
        if (to > from) {
            out->kind = TOKEN_DATA;
            out->text = jinja_text_of(l->s + from, to - from);
            l->line_starting = false; /* the tag is next, and its line has text before it */
            advance(l, tag);
            return 0;
        }
        advance(l, tag);
        out->line = l->line;
        if (!kind) {
            out->kind = TOKEN_END;
            return 0;
        }
        if (kind == '#') {
            int rc = skip_comment(l, tag);
            if (rc < 0)
                return rc;
            continue;
        }
        size_t after = kind == '%' ? tag_word(l, tag, "raw") : 0;
        if (after)
            return read_raw(l, after, out);
        advance(l, tag + 2 + (sign != 0));
        l->within = out->kind = kind == '%' ? TOKEN_BLOCK_BEGIN : TOKEN_PRINT_BEGIN;
        return 0;
    }
}

/* --- strings and numbers --- */

static size_t put_code(char *out, uint32_t c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)((0xf00 >> n) | c);
    return n;
}

/* Reads the digits of \x41, \u0041 or \U00000041. Returns their number, or 0 when there are too few. */
static size_t read_hex(const char *s, size_t n, size_t digits, uint32_t *code)
{
    if (n < digits)
        return 0;
    *code = 0;
    for (size_t i = 0; i < digits; i++) {
        if (!isxdigit((unsigned char)s[i]))
            return 0;
        *code = *code << 4 | (uint32_t)(isdigit((unsigned char)s[i]) ? s[i] - '0' : (s[i] | 32) - 'a' + 10);
    }
    return digits;
}

/* Replaces the escape behind a backslash: writes its character at *o. Returns the bytes read; 0: unknown
 * escape. */
static size_t unescape(const char *s, size_t n, char **o)
{
    static const char letters[] = "ntrabfv\\'\"", means[] = "\n\t\r\a\b\f\v\\'\"";
    const char *letter = n && *s ? strchr(letters, *s) : NULL;
    uint32_t code = 0;
    size_t read = 0;
    if (!n)
        return 0;
    if (letter) {
        *(*o)++ = means[letter - letters];
        return 1;
    }
    if (*s == '\n')
        return 1;
    if (*s >= '0' && *s <= '7') {
        while (read < 3 && read < n && s[read] >= '0' && s[read] <= '7')
            code = code * 8 + (uint32_t)(s[read++] - '0');
    } else if (*s == 'x' || *s == 'u' || *s == 'U') {
        read = read_hex(s + 1, n - 1, *s == 'x' ? 2 : *s == 'u' ? 4 : 8, &code);
        if (!read || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
            return 0;
        read++;
    } else if (*s == 'N') {
        return 0;
    } else { /* like Python: the backslash stays */
        *(*o)++ = '\\';
        *(*o)++ = *s;
        return 1;
    }
    *o += put_code(*o, code);
    return read;
}

static int read_string(struct jinja_lexer *l, struct jinja_token *out)
{
    char quote = l->s[l->at];
    size_t from = l->at + 1, end = from;
    while (end < l->len && l->s[end] != quote)
        end += l->s[end] == '\\' ? 2 : 1;
    if (end >= l->len)
        return broken(l, "a string is not closed", l->line);
    char *text = arena_alloc(l->arena, end - from + 1), *o = text; /* no escape becomes longer */
    if (!text)
        return error_set(l->err, -ENOMEM, "out of memory");
    for (size_t i = from; i < end;) {
        if (l->s[i] != '\\') {
            *o++ = l->s[i++];
            continue;
        }
        size_t n = unescape(l->s + i + 1, end - i - 1, &o);
        if (!n)
            return error_set(l->err, -ENOTSUP, "line %u: escape \\%.1s in a string is not supported", l->line,
                             l->s + i + 1);
        i += 1 + n;
    }
    out->kind = TOKEN_STRING;
    out->text = jinja_text_of(text, (size_t)(o - text));
    advance(l, end + 1);
    return 0;
}

static size_t count_digits(const struct jinja_lexer *l, size_t at)
{
    size_t n = 0;
    while (at + n < l->len && (isdigit((unsigned char)l->s[at + n]) || (n && l->s[at + n] == '_')))
        n++;
    return n;
}

/* Copies "1_000" without its underscores, NUL-terminated. Returns NULL when the number is too long. */
static const char *digits_of(const struct jinja_lexer *l, size_t from, size_t to, char room[64])
{
    size_t n = 0;
    for (size_t i = from; i < to; i++) {
        if (l->s[i] == '_')
            continue;
        if (n == 63)
            return NULL;
        room[n++] = l->s[i];
    }
    room[n] = '\0';
    return room;
}

static int read_number(struct jinja_lexer *l, struct jinja_token *out)
{
    size_t from = l->at, at = from + count_digits(l, from), part;
    bool real = false;
    int base = 10;
    char room[64];
    if (l->s[from] == '0' && at == from + 1 && at + 1 < l->len && jinja_among(l->s[at], "xXoObB")) {
        base = (l->s[at] | 32) == 'x' ? 16 : (l->s[at] | 32) == 'o' ? 8 : 2;
        from = ++at;
        while (at < l->len && (isxdigit((unsigned char)l->s[at]) || l->s[at] == '_'))
            at++;
    } else {
        if (has(l, at, ".") && (part = count_digits(l, at + 1)))
            at += 1 + part, real = true;
        if (at < l->len && (l->s[at] | 32) == 'e') {
            size_t sign = at + 1 < l->len && (l->s[at + 1] == '-' || l->s[at + 1] == '+');
            if ((part = count_digits(l, at + 1 + sign)))
                at += 1 + sign + part, real = true;
        }
    }
    const char *digits = digits_of(l, from, at, room);
    char *end = NULL;
    errno = 0;
    if (digits && real)
        out->real = strtod(digits, &end);
    else if (digits)
        out->integer = strtoll(digits, &end, base);
    if (!digits || *end || end == digits || (errno && !real))
        return broken(l, "a number is malformed or too large", l->line);
    out->kind = real ? TOKEN_FLOAT : TOKEN_INT;
    advance(l, at);
    return 0;
}

/* --- inside of tags --- */

static int read_operator(struct jinja_lexer *l, struct jinja_token *out)
{
    static const char *const pairs[] = {"==", "!=", "<=", ">=", "//", "**"};
    char c = l->s[l->at];
    out->kind = TOKEN_OP;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (has(l, l->at, pairs[i])) {
            out->op = JINJA_OP2(c, pairs[i][1]);
            l->at += 2;
            return 0;
        }
    if (!jinja_among(c, "+-*/%~[](){}<>=.:|,;"))
        return broken(l, "unexpected character \"%.1s\"", l->line, l->s + l->at);
    if (jinja_among(c, "([{")) {
        if (l->n_closers == JINJA_MAX_NESTING)
            return error_set(l->err, -ENOTSUP, "line %u: more than %d nested brackets", l->line,
                             JINJA_MAX_NESTING);
        assert(l->n_closers < JINJA_MAX_NESTING);
        l->closers[l->n_closers++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (jinja_among(c, ")]}")) {
        if (!l->n_closers || l->closers[l->n_closers - 1] != c)
            return broken(l, "unexpected \"%c\"", l->line, c);
        l->n_closers--;
    }
    out->op = c;
    l->at++;
    return 0;
}

static int read_in_tag(struct jinja_lexer *l, struct jinja_token *out)
{
    bool block = l->within == TOKEN_BLOCK_BEGIN;
    advance(l, skip_space(l, l->at));
    out->line = l->line;
    if (l->at >= l->len)
        return broken(l, "a tag is not closed", l->line);
    if (!l->n_closers && close_tag(l, l->at, block ? "%}" : "}}", block) == 0) {
        out->kind = block ? TOKEN_BLOCK_END : TOKEN_PRINT_END;
        l->within = TOKEN_DATA;
        return 0;
    }
    unsigned char c = (unsigned char)l->s[l->at];
    if (c == '"' || c == '\'')
        return read_string(l, out);
    if (isdigit(c))
        return read_number(l, out);
    size_t end = l->at;
    while (end < l->len &&
           (isalnum((unsigned char)l->s[end]) || l->s[end] == '_' || (unsigned char)l->s[end] >= 0x80))
        end++;
    if (end == l->at)
        return read_operator(l, out);
    out->kind = TOKEN_NAME;
    out->text = jinja_text_of(l->s + l->at, end - l->at);
    advance(l, end);
    return 0;
}

int jinja_lexer_next(struct jinja_lexer *l, struct jinja_token *out)
{
    *out = (struct jinja_token){.line = l->line};
    return l->within == TOKEN_DATA ? read_data(l, out) : read_in_tag(l, out);
}
