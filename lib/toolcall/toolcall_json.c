/* toolcall_json.c - calls written as JSON: {"name": N, "arguments": {...}, "id": I}, alone or in a list.
 * Keys may come in any order and under the names that families use. A call begins when its name and the first
 * byte of its arguments are known; before that it can still turn out to be text. */
#include "toolcall_private.h"

enum state {
    START,  /* [ or { */
    KEY,    /* a key or } */
    STRING, /* of a key, name or id */
    COLON,
    VALUE,
    SKIP, /* a value of a key that says nothing */
    ARGUMENTS,
    ARGUMENT_TEXT, /* arguments written as a string that holds JSON */
    COMMA,
    NEXT, /* behind an object */
};
enum target { IS_KEY, IS_NAME, IS_ID };
enum verdict { TAKEN, AGAIN, FAILED, OVER };

static const char *const first_keys[] = {"name", "type", "id", "function", "parameters", "arguments", NULL};

static bool is_one_of(const struct envelope *e, const char *const *words)
{
    for (; *words; words++)
        if (strlen(*words) == e->n_key && !memcmp(*words, e->key, e->n_key))
            return true;
    return false;
}

/* --- the call --- */

static void begin(struct toolcall_scanner *s)
{
    struct envelope *e = &s->envelope;
    e->begun = true;
    toolcall_begin_call(s);
    toolcall_put_id(s);
}

/* Returns the buffer of the arguments, kept until the name is known. */
static struct bytes *arguments(struct toolcall_scanner *s)
{
    return s->envelope.begun ? toolcall_arguments(s) : &s->envelope.args;
}

/* The object is complete. */
static bool finish(struct toolcall_scanner *s)
{
    struct envelope *e = &s->envelope;
    if (!e->has_name)
        return false;
    if (!e->begun) {
        begin(s);
        bytes_put(toolcall_arguments(s), e->args.p, e->args.n);
    }
    if (!e->has_args)
        bytes_puts(toolcall_arguments(s), "{}");
    toolcall_put_id(s);
    toolcall_end_call(s);
    e->begun = e->has_name = e->has_args = false;
    e->args.n = 0;
    return true;
}

/* --- strings --- */

static struct bytes *target(struct toolcall_scanner *s)
{
    return s->envelope.target == IS_NAME ? &s->name : &s->id;
}

static bool put_char(struct toolcall_scanner *s, const char *p, size_t n)
{
    struct envelope *e = &s->envelope;
    if (e->target != IS_KEY) {
        bytes_put(target(s), p, n);
        return target(s)->n <= TOOLCALL_MAX_NAME;
    }
    if (e->n_key + n > sizeof e->key) /* long, and so none that is looked for */
        n = 0;
    memcpy(e->key + e->n_key, p, n);
    e->n_key += (unsigned)n;
    return true;
}

static size_t put_code(char *p, unsigned code)
{
    if (code < 0x80) {
        p[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        p[0] = (char)(0xC0 | code >> 6);
        p[1] = (char)(0x80 | (code & 63));
        return 2;
    }
    size_t n = code < 0x10000 ? 3 : 4;
    p[0] = (char)(n == 3 ? 0xE0 | code >> 12 : 0xF0 | code >> 18);
    for (size_t i = 1; i < n; i++)
        p[i] = (char)(0x80 | (code >> (6 * (n - 1 - i)) & 63));
    return n;
}

/* One digit of \uXXXX. Bytes of the character, once it is whole. */
static size_t hex_digit(struct envelope *e, char c, char *p)
{
    unsigned digit = c >= '0' && c <= '9' ? (unsigned)(c - '0') : (unsigned)((c | 32) - 'a' + 10);
    e->code = e->code << 4 | (digit & 15);
    if (--e->n_hex)
        return 0;
    if (e->code >= 0xD800 && e->code < 0xDC00) {
        e->high = e->code;
        return 0;
    }
    bool pair = e->high && e->code >= 0xDC00 && e->code < 0xE000;
    unsigned code = pair ? 0x10000 + ((e->high - 0xD800) << 10) + (e->code - 0xDC00) : e->code;
    e->high = 0;
    return put_code(p, code >= 0xD800 && code < 0xE000 ? 0xFFFD : code);
}

/* Decodes one byte of a string. Bytes at p (4 at most), or -1 at its end. */
static int decode(struct envelope *e, char c, char *p)
{
    static const char from[] = "nrtbf", to[] = "\n\r\t\b\f";
    if (e->n_hex)
        return (int)hex_digit(e, c, p);
    if (e->escaped) {
        e->escaped = false;
        e->n_hex = c == 'u' ? 4 : 0;
        e->code = 0;
        const char *at = c ? strchr(from, c) : NULL;
        *p = at ? to[at - from] : c;
        return c != 'u';
    }
    if (c == '\\') {
        e->escaped = true;
        return 0;
    }
    *p = c;
    return c == (char)e->quote ? -1 : 1;
}

static void open_string(struct envelope *e, enum target t, char quote)
{
    e->state = STRING;
    e->target = t;
    e->quote = (unsigned char)quote;
    e->escaped = false;
    e->n_hex = e->high = 0;
    if (t == IS_KEY)
        e->n_key = 0;
}

static enum verdict string_byte(struct toolcall_scanner *s, char c)
{
    struct envelope *e = &s->envelope;
    char p[4];
    int n = decode(e, c, p);
    if (n >= 0)
        return put_char(s, p, (size_t)n) ? TAKEN : FAILED;
    e->state = e->target == IS_KEY ? COLON : COMMA;
    if (e->target != IS_NAME)
        return TAKEN;
    bool declared = toolcall_find_tool(s, s->name.p, s->name.n);
    e->has_name = s->name.n && (declared || !e->bare);
    return e->has_name ? TAKEN : FAILED;
}

/* --- keys and values --- */

static enum verdict start_byte(struct toolcall_scanner *s, char c)
{
    struct envelope *e = &s->envelope;
    if (toolcall_is_blank(c))
        return TAKEN;
    if (c == '[' && !e->in_list) {
        e->in_list = true;
        return TAKEN;
    }
    if (c != '{')
        return s->held.n ? FAILED : OVER;
    e->state = KEY;
    return TAKEN;
}

static enum verdict key_byte(struct toolcall_scanner *s, char c)
{
    struct envelope *e = &s->envelope;
    if (toolcall_is_blank(c) || c == ',')
        return TAKEN;
    if (c == '}') {
        e->state = NEXT;
        return finish(s) ? TAKEN : FAILED;
    }
    if (c != '"' && c != '\'')
        return e->begun ? OVER : FAILED;
    open_string(e, IS_KEY, c);
    return TAKEN;
}

static enum verdict colon_byte(struct envelope *e, char c)
{
    if (toolcall_is_blank(c))
        return TAKEN;
    if (c != ':' || (e->bare && !e->has_name && !is_one_of(e, first_keys)))
        return FAILED;
    e->state = VALUE;
    return TAKEN;
}

static void open_arguments(struct toolcall_scanner *s, char c)
{
    struct envelope *e = &s->envelope;
    if (e->has_name && !e->begun)
        begin(s);
    e->has_args = true;
    e->text_arguments = c == '"' || c == '\'';
    json_repair_open(&s->repair, JSON_REPAIR_JSON, arguments(s));
    open_string(e, IS_KEY, c); /* for decode() */
    e->state = e->text_arguments ? ARGUMENT_TEXT : ARGUMENTS;
}

static enum verdict value_byte(struct toolcall_scanner *s, char c)
{
    static const char *const names[] = {"name", "tool_name", "function", NULL};
    static const char *const ids[] = {"id", "call_id", NULL};
    static const char *const args[] = {"arguments", "parameters", NULL};
    struct envelope *e = &s->envelope;
    bool quoted = c == '"' || c == '\'';
    if (toolcall_is_blank(c))
        return TAKEN;
    if (is_one_of(e, names) && quoted && !e->has_name) {
        open_string(e, IS_NAME, c);
        return TAKEN;
    }
    if (is_one_of(e, names) && c == '{' && !e->has_name) { /* "function": {"name": ... */
        e->state = KEY;
        return TAKEN;
    }
    if (is_one_of(e, ids) && quoted) {
        s->id.n = 0;
        open_string(e, IS_ID, c);
        return TAKEN;
    }
    if (is_one_of(e, args) && !e->has_args && c != 'n' && !(e->bare && !e->has_name)) {
        open_arguments(s, c);
        return e->text_arguments ? TAKEN : AGAIN;
    }
    if (e->bare && !e->has_name && is_one_of(e, args))
        return FAILED;
    s->value.n = 0;
    json_repair_open(&s->repair, JSON_REPAIR_JSON, &s->value);
    e->state = SKIP;
    return AGAIN;
}

static void close_arguments(struct toolcall_scanner *s)
{
    json_repair_end(&s->repair);
    if (!s->repair.started)
        bytes_puts(s->repair.out, "{}");
    s->envelope.state = COMMA;
}

static enum verdict arguments_byte(struct toolcall_scanner *s, char c)
{
    s->repair.out = s->envelope.state == SKIP ? &s->value : arguments(s);
    enum json_repair_result result = json_repair_push(&s->repair, c);
    s->value.n = 0;
    if (result == JSON_REPAIR_MORE)
        return TAKEN;
    if (s->envelope.state == ARGUMENTS)
        close_arguments(s);
    s->envelope.state = COMMA;
    return result == JSON_REPAIR_DONE ? TAKEN : AGAIN;
}

static enum verdict argument_text_byte(struct toolcall_scanner *s, char c)
{
    char p[4];
    int n = decode(&s->envelope, c, p);
    s->repair.out = arguments(s);
    for (int i = 0; i < n; i++)
        json_repair_push(&s->repair, p[i]);
    if (n < 0)
        close_arguments(s);
    return TAKEN;
}

/* Behind a value: a comma, or the end of the object, whose bracket may be missing. */
static enum verdict comma_byte(struct toolcall_scanner *s, char c)
{
    struct envelope *e = &s->envelope;
    if (toolcall_is_blank(c))
        return TAKEN;
    if (c == ',') {
        e->state = KEY;
        return TAKEN;
    }
    e->state = NEXT;
    if (!finish(s))
        return FAILED;
    return c == '}' ? TAKEN : AGAIN;
}

/* Behind an object: another one, or closing brackets, of which there may be too many. */
static enum verdict next_byte(struct toolcall_scanner *s, char c)
{
    struct envelope *e = &s->envelope;
    if (toolcall_is_blank(c) || c == '}' || c == ']' || (c == ',' && e->in_list))
        return TAKEN;
    if (c != '{' || e->bare > e->in_list)
        return OVER;
    e->state = START;
    s->held.n = 0;
    return AGAIN;
}

static enum verdict byte(struct toolcall_scanner *s, char c)
{
    switch (s->envelope.state) {
    case START:
        return start_byte(s, c);
    case KEY:
        return key_byte(s, c);
    case STRING:
        return string_byte(s, c);
    case COLON:
        return colon_byte(&s->envelope, c);
    case VALUE:
        return value_byte(s, c);
    case ARGUMENT_TEXT:
        return argument_text_byte(s, c);
    case COMMA:
        return comma_byte(s, c);
    case NEXT:
        return next_byte(s, c);
    default:
        return arguments_byte(s, c);
    }
}

/* --- the state --- */

/* No more bytes come. */
static bool ended(struct toolcall_scanner *s)
{
    struct envelope *e = &s->envelope;
    bool complete = e->has_name && e->has_args && !s->cut;
    if (e->state == NEXT)
        return toolcall_to_text(s);
    if (complete && (e->state == ARGUMENTS || e->state == ARGUMENT_TEXT)) {
        s->repair.out = arguments(s);
        close_arguments(s);
    }
    if (complete && finish(s))
        return toolcall_to_text(s);
    return e->begun ? toolcall_to_text(s) : toolcall_give_up(s);
}

/* It was no call after all: what is held, and this byte, is text. */
static bool fail(struct toolcall_scanner *s)
{
    if (s->envelope.begun) {
        finish(s);
        return toolcall_to_text(s);
    }
    return toolcall_give_up(s);
}

static bool run(struct toolcall_scanner *s)
{
    while (s->pending.n) {
        enum verdict v = byte(s, *s->pending.p);
        if (v == AGAIN)
            continue;
        if (v == FAILED)
            return fail(s);
        if (v == OVER) {
            if (s->envelope.begun)
                finish(s);
            return toolcall_to_text(s);
        }
        if (s->envelope.begun || s->envelope.state == NEXT)
            toolcall_take(s, 1);
        else
            toolcall_hold(s, 1);
    }
    return s->ended && ended(s);
}

bool toolcall_open_json(struct toolcall_scanner *s, bool bare)
{
    struct bytes args = s->envelope.args;
    args.n = 0;
    s->envelope = (struct envelope){.state = START, .bare = bare, .args = args};
    s->state = run;
    s->name.n = s->id.n = 0;
    return true;
}
