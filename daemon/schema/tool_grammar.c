#include "tool_grammar.h"
#include "grammar/regex.h"
#include "schema_private.h"
#include "toolcall/toolcall_writing.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define MAX_NAME 256
/* Characters of a text without quotes up to which its length is held. */
#define MAX_LENGTH 256

struct writer {
    struct compiler c; /* its root has all schemas: {"$defs": {"0": .., "1": ..}} */
    const struct tool_grammar_options *o;
    const struct toolcall_writing *w;
    const struct dfa *in_tags[2]; /* made when needed: texts_in_tags() */
};

/* ---- texts ---- */

/* The length of the control token's mark that stands at s, or 0. */
static size_t control_at(const struct writer *x, const char *s, size_t n)
{
    const char *mark;
    size_t best = 0;
    for (size_t i = 0; (mark = toolcall_format_mark(x->o->format, i)); i++) {
        size_t len = strlen(mark);
        if (len > best && len <= n && !memcmp(s, mark, len) && x->o->is_control(x->o->context, mark))
            best = len;
    }
    return best;
}

static uint32_t put_text(struct writer *x, uint32_t from, const char *s, size_t n)
{
    struct builder *b = &x->c.b;
    for (size_t i = 0; i < n && !b->failed;) {
        size_t len = control_at(x, s + i, n - i);
        if (len)
            from = builder_text(b, from, TOOL_GRAMMAR_CONTROL, 1);
        len = len ? len : 1;
        from = builder_text(b, from, s + i, len);
        i += len;
    }
    return from;
}

/* Adds a text between two states of an nfa. */
static void put_nfa_text(struct nfa *a, struct builder *b, uint32_t from, const char *s, uint32_t to)
{
    const struct dfa *text = dfa_utf8(&b->shop, s, strlen(s));
    for (uint32_t i = 0; text && i + 1 < text->n_states; i++) {
        uint32_t next = i + 2 < text->n_states ? nfa_state(a) : to;
        nfa_edge(a, from, text->edges[i].lo, text->edges[i].hi, next);
        from = next;
    }
}

/* The texts that contain none of n marks. */
static const struct dfa *texts_without(struct builder *b, const char *const *marks, size_t n)
{
    struct nfa a;
    nfa_open(&a, &b->shop);
    nfa_edge(&a, NFA_START, 0, DFA_MAX_CODE, NFA_START);
    for (size_t i = 0; i < n; i++)
        put_nfa_text(&a, b, NFA_START, marks[i], NFA_ACCEPT);
    nfa_edge(&a, NFA_ACCEPT, 0, DFA_MAX_CODE, NFA_ACCEPT);
    const struct dfa *with = nfa_dfa(&a);
    return with ? dfa_not(&b->shop, with) : NULL;
}

/* Adds the texts that the scanner takes for the end of a text in tags; `early`: all that begin as one does.
 */
static void put_ends(struct writer *x, struct nfa *a, bool early)
{
    struct builder *b = &x->c.b;
    struct toolcall_end_mark end;
    for (size_t i = 0; toolcall_value_end(x->o->format, i, &end); i++) {
        bool follows = end.then && !early;
        uint32_t before = nfa_state(a), behind = follows ? nfa_state(a) : NFA_ACCEPT;
        if (*end.before)
            put_nfa_text(a, b, NFA_START, end.before, before);
        put_nfa_text(a, b, *end.before ? before : NFA_START, end.mark, behind);
        for (const char *blank = " \t\r\n"; follows && *blank; blank++)
            nfa_edge(a, behind, (uint32_t)*blank, (uint32_t)*blank, behind);
        if (follows)
            put_nfa_text(a, b, behind, end.then, NFA_ACCEPT);
    }
}

/* The texts in tags in which the scanner finds no end: it sees the bytes of a control token as those of any
 * text, and a closing tag ends a text only where the call goes on or ends behind it. A text of bounded length
 * has no closing tag at all: its states are multiplied by the length. */
static const struct dfa *texts_in_tags(struct writer *x, bool bounded)
{
    struct nfa a;
    if (x->in_tags[bounded])
        return x->in_tags[bounded];
    nfa_open(&a, &x->c.b.shop);
    nfa_edge(&a, NFA_START, 0, DFA_MAX_CODE, NFA_START);
    put_ends(x, &a, bounded);
    nfa_edge(&a, NFA_ACCEPT, 0, DFA_MAX_CODE, NFA_ACCEPT);
    const struct dfa *with = nfa_dfa(&a);
    return x->in_tags[bounded] = with ? dfa_not(&x->c.b.shop, with) : NULL;
}

/* Any text up to the tag that ends it, and the tag; `schema` may limit its length. */
static uint32_t put_tagged(struct writer *x, uint32_t from, const char *mark, const json_t *schema)
{
    struct builder *b = &x->c.b;
    uint32_t to = builder_state(b);
    const json_t *min = json_object_get(schema, "minLength"), *max = json_object_get(schema, "maxLength");
    json_int_t least = json_integer_value(min), most = json_is_integer(max) ? json_integer_value(max) : -1;
    bool bounded = (most >= 0 || least > 0) && least >= 0 && least <= MAX_LENGTH && most <= MAX_LENGTH;
    const struct dfa *text = texts_in_tags(x, bounded);
    if (bounded && text)
        text = dfa_length(&b->shop, text, (uint32_t)least, most < 0 ? DFA_INFINITE : (uint32_t)most);
    builder_dfa(b, text, SPELL_RAW, from, to, true);
    return put_text(x, to, mark, strlen(mark));
}

static uint32_t put_regex(struct writer *x, uint32_t from, const char *regex)
{
    struct builder *b = &x->c.b;
    const struct dfa *a = NULL;
    uint32_t to = builder_state(b);
    regex_compile(&b->shop, regex, strlen(regex), REGEX_WHOLE, &a, NULL);
    builder_dfa(b, a, SPELL_RAW, from, to, false);
    return to;
}

/* ---- arguments ---- */

static json_t *parameters_of(const struct writer *x, size_t tool)
{
    char key[24];
    snprintf(key, sizeof key, "%zu", tool);
    return json_object_get(json_object_get(x->c.root, "$defs"), key);
}

static uint32_t put_value(struct writer *x, uint32_t from, json_t *schema)
{
    uint32_t to = builder_state(&x->c.b);
    if (x->c.b.failed) /* the compiler may not even have been opened */
        return from;
    builder_call(&x->c.b, from, emit_node(&x->c, node_of_schema(&x->c, schema)), to, false);
    return to;
}

/* Number i of the strings that a schema lists; NULL beyond the last. */
static const json_t *word_at(const json_t *schema, size_t i)
{
    const json_t *only = json_object_get(schema, "const"), *list = json_object_get(schema, "enum");
    return only ? (i ? NULL : only) : json_array_get(list, i);
}

static bool is_read_back(struct writer *x, const json_t *word)
{
    const struct dfa *texts = texts_in_tags(x, false);
    return json_is_string(word) && texts &&
           dfa_accepts(texts, json_string_value(word), json_string_length(word));
}

/* One of the strings that an enum lists, of those that can be written in tags, or any; `rest` ends it. */
static uint32_t put_string(struct writer *x, uint32_t from, const json_t *schema, const char *rest)
{
    uint32_t to = builder_state(&x->c.b);
    const json_t *word;
    bool any = true;
    for (size_t i = 0; (word = word_at(schema, i)); i++) {
        if (!is_read_back(x, word))
            continue;
        any = false;
        builder_empty(&x->c.b, builder_text(&x->c.b, from, json_string_value(word), json_string_length(word)),
                      to);
    }
    return any ? put_tagged(x, from, rest, schema) : put_text(x, to, rest, strlen(rest));
}

/* A name stands in JSON strings and in tags alike. */
static int check_name(struct writer *x, const char *name)
{
    size_t n = strlen(name);
    bool blank_ends = n && (name[0] == ' ' || name[n - 1] == ' ');
    if (n && n <= MAX_NAME && !blank_ends && !strpbrk(name, "\"\\<>[]{}|\n\r\t\1\2\3\4"))
        return 0;
    return builder_fail(&x->c.b, -EINVAL, "the name %.40s cannot be written in the format %s", name,
                        toolcall_format_name(x->o->format));
}

/* The keywords that bind a text without quotes; a strict tool must not have others. */
static int check_text(struct writer *x, const char *name, const json_t *schema)
{
    static const char *const held[] = {"type",     "const",     "enum",      "minLength", "maxLength",
                                       "title",    "default",   "examples",  "$comment",  "description",
                                       "readOnly", "writeOnly", "deprecated"};
    const char *key;
    const json_t *word;
    json_t *value;
    for (size_t i = 0; (word = word_at(schema, i)); i++)
        if (json_is_string(word) && !is_read_back(x, word))
            return builder_fail(
                &x->c.b, -ENOTSUP,
                "a value of the parameter %.40s holds tags that would end it in the format %s", name,
                toolcall_format_name(x->o->format));
    json_object_foreach((json_t *)schema, key, value)
    {
        bool known = false;
        for (size_t i = 0; i < sizeof held / sizeof *held; i++)
            known |= !strcmp(key, held[i]);
        bool length = !strcmp(key, "minLength") || !strcmp(key, "maxLength");
        if (!known || (length && json_number_value(value) > MAX_LENGTH))
            return builder_fail(&x->c.b, -ENOTSUP,
                                "%.40s of the parameter %.40s cannot be enforced in the format %s", key, name,
                                toolcall_format_name(x->o->format));
    }
    return 0;
}

/* One argument as the format's `param` writes it. */
static uint32_t put_param(struct writer *x, uint32_t at, const struct toolcall_param *param, json_t *schema)
{
    const char *text = param->is_text ? "true" : "false";
    if (check_name(x, param->name) < 0)
        return at;
    for (const char *s = x->w->param; *s; s++) {
        if (*s == WRITING_NAME)
            at = builder_text(&x->c.b, at, param->name, strlen(param->name));
        else if (*s == WRITING_TEXT)
            at = builder_text(&x->c.b, at, text, strlen(text));
        else if (*s == WRITING_VALUE && param->is_text)
            return put_string(x, at, schema, s + 1);
        else if (*s == WRITING_VALUE)
            at = put_value(x, at, schema);
        else {
            size_t n = strcspn(s, "\1\2\3\4");
            at = put_text(x, at, s, n);
            s += n - 1;
        }
    }
    return at;
}

static bool is_required(const json_t *schema, const char *name)
{
    const json_t *list = json_object_get(schema, "required");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *one = json_string_value(json_array_get(list, i));
        if (one && !strcmp(one, name))
            return true;
    }
    return false;
}

/* In the order of the schema. */
static uint32_t put_params(struct writer *x, uint32_t at, size_t tool)
{
    const struct toolcall_tool *t = &x->o->tools->list[tool];
    json_t *schema = parameters_of(x, tool), *properties = json_object_get(schema, "properties");
    const json_t *function = json_object_get(json_array_get(x->o->list, tool), "function");
    bool strict = json_is_true(json_object_get(function, "strict"));
    for (size_t i = 0; i < t->n_params; i++) {
        const struct toolcall_param *p = &t->params[i];
        json_t *own = json_object_get(properties, p->name);
        uint32_t to = builder_state(&x->c.b);
        if (!own)
            continue;
        if (strict && p->is_text && check_text(x, p->name, own) < 0)
            return at;
        builder_empty(&x->c.b, put_param(x, at, p, own), to);
        if (!is_required(schema, p->name))
            builder_empty(&x->c.b, at, to);
        at = to;
    }
    return at;
}

/* ---- calls ---- */

static uint32_t put_call(struct writer *x, uint32_t at, size_t tool)
{
    const char *name = x->o->tools->list[tool].name;
    if (check_name(x, name) < 0)
        return at;
    for (const char *s = x->w->call; *s; s++) {
        size_t n = strcspn(s, "\1\2\3\4");
        if (n) {
            at = put_text(x, at, s, n);
            s += n - 1;
        } else if (*s == WRITING_NAME) {
            at = builder_text(&x->c.b, at, name, strlen(name));
        } else if (*s == WRITING_ID) {
            at = put_regex(x, at, "[0-9A-Za-z]{9}");
        } else {
            at = x->w->param ? put_params(x, at, tool) : put_value(x, at, parameters_of(x, tool));
        }
    }
    return at;
}

static bool may_call(const struct writer *x, const char *name)
{
    const json_t *only = x->o->only;
    for (size_t i = 0; i < json_array_size(only); i++)
        if (!strcmp(json_string_value(json_array_get(only, i)), name))
            return true;
    return !only;
}

static uint32_t put_calls(struct writer *x, uint32_t from)
{
    struct builder *b = &x->c.b;
    uint32_t start = builder_state(b), end = builder_state(b);
    builder_empty(b, put_text(x, from, x->w->begin, strlen(x->w->begin)), start);
    for (size_t i = 0; i < x->o->tools->n && !b->failed; i++)
        if (may_call(x, x->o->tools->list[i].name))
            builder_empty(b, put_call(x, start, i), end);
    if (x->w->between && !x->o->one) {
        uint32_t again = put_text(x, end, x->w->between, strlen(x->w->between));
        builder_empty(b, again, start);
    }
    return put_text(x, end, x->w->end, strlen(x->w->end));
}

#define MAX_MARKS 16

/* Text without the marks that the scanner follows in a reasoning, up to the one that closes it. */
static uint32_t put_thinking(struct writer *x, uint32_t from, const char *close)
{
    struct builder *b = &x->c.b;
    const char *marks[MAX_MARKS];
    size_t n = 0;
    for (const char *mark; (mark = toolcall_mark_in_reasoning(x->o->format, n)); n++) {
        assert(n < MAX_MARKS);
        marks[n] = mark;
    }
    uint32_t to = builder_state(b);
    builder_dfa(b, texts_without(b, marks, n), SPELL_RAW, from, to, true);
    return put_text(x, to, close, strlen(close));
}

/* The reasoning, and up to two new lines. */
static uint32_t put_reasoning(struct writer *x, uint32_t from)
{
    struct toolcall_reasoning r = toolcall_reasoning_of(x->o->format);
    struct builder *b = &x->c.b;
    if (x->o->reasoning == REASONING_NONE || !r.open || !r.close)
        return from;
    uint32_t out = builder_state(b), at = from;
    if (x->o->reasoning == REASONING_POSSIBLE) {
        builder_empty(b, from, out);
        at = put_text(x, from, r.open, strlen(r.open));
    }
    at = put_thinking(x, at, r.close);
    uint32_t line = builder_text(b, at, "\n", 1), lines = builder_text(b, line, "\n", 1);
    builder_empty(b, at, out);
    builder_empty(b, line, out);
    builder_empty(b, lines, out);
    return out;
}

/* ---- calls that may come ---- */

#define MAX_OPENINGS 16
#define BLANKS       "[ \\t\\r\\n]*"

/* The marks that open a call. One that is a control token counts as text too: the scanner sees bytes. */
static size_t list_openings(const struct writer *x, const char *out[MAX_OPENINGS])
{
    const char *mark;
    size_t n = 0;
    for (size_t i = 0; (mark = toolcall_call_mark(x->o->format, i)); i++) {
        assert(n < MAX_OPENINGS);
        out[n++] = mark;
    }
    return n;
}

static bool opens_call(const struct writer *x, const char *mark)
{
    const char *opening;
    for (size_t i = 0; (opening = toolcall_call_mark(x->o->format, i)); i++)
        if (!strcmp(opening, mark))
            return true;
    return false;
}

/* From `from` the control tokens that open no call, or with `calls` all, lead to `to`. */
static void put_marks(struct writer *x, uint32_t from, uint32_t to, bool calls)
{
    const char *mark;
    for (size_t i = 0; x->o->format && (mark = toolcall_format_mark(x->o->format, i)); i++)
        if (control_at(x, mark, strlen(mark)) && (calls || !opens_call(x, mark)))
            builder_empty(&x->c.b, put_text(x, from, mark, strlen(mark)), to);
}

/* From `from` any text without these to `to`, from where the control tokens lead back. */
static void put_free(struct writer *x, uint32_t from, uint32_t to, const char *const *without, size_t n,
                     bool calls)
{
    struct builder *b = &x->c.b;
    builder_dfa(b, n ? texts_without(b, without, n) : dfa_all(&b->shop), SPELL_RAW, from, to, true);
    put_marks(x, to, from, calls);
}

/* Returns the texts that do not begin as the regular expression says. */
static const struct dfa *not_begun(struct builder *b, const struct dfa *texts, const char *beginning)
{
    char regex[512];
    const struct dfa *begun = NULL;
    snprintf(regex, sizeof regex, "(%s)[\\s\\S]*", beginning);
    regex_compile(&b->shop, regex, strlen(regex), REGEX_WHOLE, &begun, NULL);
    return texts && begun ? dfa_combine(&b->shop, DFA_MINUS, texts, begun) : NULL;
}

/* A bare call is the whole text. Other texts are no object and no list of objects whose first key the scanner
 * knows from calls; a key with an escape may be one. The mark that ends a call says nothing in front. */
static uint32_t put_bare(struct writer *x, uint32_t from)
{
    static const char beginning[] = "([ \\t\\r\\n]|</function>)*(\\[" BLANKS ")?\\{[ \\t\\r\\n,]*[\"']"
                                    "([^\"']*\\\\|(name|type|id|function|parameters|arguments)[\"'])";
    struct builder *b = &x->c.b;
    const char *openings[MAX_OPENINGS];
    uint32_t text = builder_state(b), end;
    const struct dfa *free = texts_without(b, openings, list_openings(x, openings));
    builder_dfa(b, not_begun(b, free, beginning), SPELL_RAW, from, text, true);
    put_marks(x, text, from, false);
    end = put_calls(x, from);
    builder_last(b, end);
    return text;
}

/* The texts without a recipient in a header, which is what follows <|start|>, <|channel|> or a text's
 * beginning up to <|message|>. */
static const struct dfa *texts_without_recipient(struct builder *b)
{
    static const char *const message[] = {"<|message|>"};
    const struct dfa *header = texts_without(b, message, 1);
    struct nfa a;
    nfa_open(&a, &b->shop);
    uint32_t any = nfa_state(&a), first = 0;
    for (uint32_t i = 0; header && i < header->n_states; i++) {
        uint32_t state = nfa_state(&a); /* they follow each other */
        first = i ? first : state;
    }
    for (uint32_t i = 0; header && i < header->n_states; i++)
        put_nfa_text(&a, b, first + i, "to=", NFA_ACCEPT);
    for (uint32_t i = 0; header && i < header->n_states; i++)
        for (uint32_t k = header->first[i]; k < header->first[i + 1]; k++)
            nfa_edge(&a, first + i, header->edges[k].lo, header->edges[k].hi, first + header->edges[k].to);
    nfa_empty(&a, NFA_START, any);
    for (const char *blank = " \t\r\n"; *blank; blank++)
        nfa_edge(&a, NFA_START, (uint32_t)*blank, (uint32_t)*blank, NFA_START);
    put_nfa_text(&a, b, NFA_START, "to=", NFA_ACCEPT);
    put_nfa_text(&a, b, NFA_START, "<|", first);
    nfa_edge(&a, any, 0, DFA_MAX_CODE, any);
    put_nfa_text(&a, b, any, "<|start|>", first);
    put_nfa_text(&a, b, any, "<|channel|>", first);
    nfa_edge(&a, NFA_ACCEPT, 0, DFA_MAX_CODE, NFA_ACCEPT);
    const struct dfa *with = header ? nfa_dfa(&a) : NULL;
    return with ? dfa_not(&b->shop, with) : NULL;
}

/* Harmony's headers without a recipient, where marks are control tokens: behind one that opens a header no
 * recipient comes before <|message|>. A header's mark written as text would open one too. */
static uint32_t put_messages(struct writer *x, uint32_t from)
{
    static const char *const out[] = {"<|start|>", "<|channel|>", "to="};
    struct builder *b = &x->c.b;
    uint32_t header = builder_state(b), body = builder_state(b), text = builder_state(b);
    uint32_t in_header = builder_state(b), in_body = builder_state(b), begun = builder_state(b);
    const struct dfa *free = texts_without(b, out, 2);
    const char *mark;
    builder_dfa(b, not_begun(b, free, BLANKS "(to=|<\\|)"), SPELL_RAW, from, begun, true);
    builder_dfa(b, texts_without(b, out, 3), SPELL_RAW, header, in_header, true);
    builder_dfa(b, free, SPELL_RAW, body, in_body, true);
    for (size_t i = 0; (mark = toolcall_format_mark(x->o->format, i)); i++) {
        bool message = !strcmp(mark, "<|message|>"), opens = !strcmp(mark, out[0]) || !strcmp(mark, out[1]);
        if (!control_at(x, mark, strlen(mark)))
            continue;
        builder_empty(b, put_text(x, begun, mark, strlen(mark)), message ? body : header);
        builder_empty(b, put_text(x, in_header, mark, strlen(mark)), message ? body : header);
        builder_empty(b, put_text(x, in_body, mark, strlen(mark)), opens ? header : body);
    }
    builder_empty(b, begun, text);
    builder_empty(b, in_header, text);
    builder_empty(b, in_body, text);
    return text;
}

static uint32_t put_harmony(struct writer *x, uint32_t from)
{
    struct builder *b = &x->c.b;
    const char *mark;
    uint32_t text;
    for (size_t i = 0; (mark = toolcall_format_mark(x->o->format, i)); i++)
        if (control_at(x, mark, strlen(mark)))
            return put_messages(x, from);
    text = builder_state(b);
    builder_dfa(b, texts_without_recipient(b), SPELL_RAW, from, text, true);
    return text;
}

/* A reasoning in which marks of calls are words, from its opening on; the text may end in it. */
static void put_thought(struct writer *x, uint32_t from, uint32_t to)
{
    struct toolcall_reasoning r = toolcall_reasoning_of(x->o->format);
    struct builder *b = &x->c.b;
    uint32_t text = builder_state(b);
    const char *mark;
    builder_dfa(b, texts_without(b, &r.close, 1), SPELL_RAW, from, text, true);
    for (size_t i = 0; (mark = toolcall_format_mark(x->o->format, i)); i++)
        if (strcmp(mark, r.close) != 0 && control_at(x, mark, strlen(mark)))
            builder_empty(b, put_text(x, text, mark, strlen(mark)), from);
    builder_empty(b, put_text(x, text, r.close, strlen(r.close)), to);
    builder_last(b, text);
}

/* Puts the text's reasoning, if calls cannot begin in it. Returns the state in which the rest begins. */
static uint32_t put_thoughts(struct writer *x, uint32_t from)
{
    struct toolcall_reasoning r = toolcall_reasoning_of(x->o->format);
    uint32_t rest = builder_state(&x->c.b);
    bool thinks = r.open && r.close && !toolcall_call_ends_reasoning(x->o->format);
    if (thinks && x->o->reasoning == REASONING_OPEN) {
        put_thought(x, from, rest);
        return rest;
    }
    if (thinks)
        put_thought(x, put_text(x, from, r.open, strlen(r.open)), rest);
    builder_empty(&x->c.b, from, rest);
    return rest;
}

/* The calls themselves begin with the opening, so that they stand beside the text that is free of it. */
static uint32_t put_lazily(struct writer *x, uint32_t start)
{
    struct builder *b = &x->c.b;
    const char *openings[MAX_OPENINGS];
    size_t n = list_openings(x, openings);
    if (toolcall_is_bare(x->o->format))
        return put_bare(x, start);
    bool harmony = n && !strcmp(openings[0], TOOLCALL_RECIPIENT);
    uint32_t from = harmony ? start : put_thoughts(x, start), text;
    if (harmony) {
        text = put_harmony(x, from);
    } else {
        text = builder_state(b);
        put_free(x, from, text, openings, n, false);
    }
    uint32_t end = put_calls(x, text);
    if (x->o->one) {
        builder_last(b, end);
    } else if (!strcmp(x->w->end, "]")) { /* no mark ends the list: another object would be a call of it */
        const struct dfa *free = texts_without(b, openings, n);
        builder_dfa(b, not_begun(b, free, "[ \\t\\r\\n,}\\]]*\\{"), SPELL_RAW, end, text, true);
    } else {
        builder_empty(b, end, from);
    }
    return text;
}

/* ---- schemas ---- */

/* Tells if a schema can be held exactly, within what is left of the work that all of them may take. */
static int try_schema(json_t *schema, uint64_t *work, struct error *err)
{
    struct compiler c = {.root = schema};
    struct grammar *g = NULL;
    uint32_t start = 0;
    builder_open(&c.b);
    c.b.shop.work = *work;
    if (schema_begin(&c)) {
        start = emit_node(&c, node_of_schema(&c, schema));
        emit_all(&c);
    }
    int rc = builder_finish(&c.b, start, &g, err);
    *work = c.b.shop.work;
    grammar_unref(rc == 0 ? g : NULL);
    json_decref(c.made);
    builder_close(&c.b);
    return rc;
}

/* Tells if a schema says by itself, and by nothing but `properties`, which members there are. */
static bool names_members(const json_t *schema)
{
    static const char *const others[] = {"additionalProperties",
                                         "unevaluatedProperties",
                                         "patternProperties",
                                         "propertyNames",
                                         "minProperties",
                                         "dependentSchemas",
                                         "dependencies",
                                         "$ref",
                                         "$dynamicRef",
                                         "$recursiveRef",
                                         "allOf",
                                         "anyOf",
                                         "oneOf",
                                         "not",
                                         "if"};
    const json_t *properties = json_object_get(schema, "properties"),
                 *required = json_object_get(schema, "required");
    bool all = json_is_object(properties);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        all = all && !json_object_get(schema, others[i]);
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *name = json_string_value(json_array_get(required, i));
        all = all && name && json_object_get(properties, name);
    }
    return all;
}

/* By itself a schema allows members that it does not name; to the author of a tool these are no parameters,
 * as formats that write each in tags have it. */
static void close_schema(json_t *schema)
{
    if (names_members(schema))
        json_object_set_new(schema, "additionalProperties", json_false());
}

/* A copy that is a resource of its own, so that its references stay inside; any object where it cannot be
 * held and need not. */
static json_t *own_schema(const json_t *function, size_t tool, uint64_t *work, struct error *err)
{
    json_t *given = json_object_get(function, "parameters"), *schema;
    bool strict = json_is_true(json_object_get(function, "strict"));
    char id[32];
    schema = json_is_object(given) ? json_deep_copy(given) : json_object();
    close_schema(schema);
    if (schema && !json_object_get(schema, "type"))
        json_object_set_new(schema, "type", json_string("object"));
    int rc = schema ? try_schema(schema, work, strict ? err : NULL) : -ENOMEM;
    if (rc < 0 && (strict || rc == -ENOMEM)) {
        json_decref(schema);
        return NULL;
    }
    if (rc < 0) {
        json_decref(schema);
        schema = json_pack("{s:s}", "type", "object");
    }
    snprintf(id, sizeof id, "tool:%zu", tool);
    if (schema && !json_object_get(schema, "$id"))
        json_object_set_new(schema, "$id", json_string(id));
    return schema;
}

static json_t *all_schemas(const struct tool_grammar_options *o, struct error *err)
{
    json_t *root = json_object(), *defs = json_object();
    uint64_t work = GRAMMAR_WORK;
    bool ok = root && defs && json_object_set_new(root, "$defs", defs) == 0;
    for (size_t i = 0; ok && i < o->tools->n; i++) {
        char key[24];
        const json_t *tool = json_array_get(o->list, i);
        snprintf(key, sizeof key, "%zu", i);
        json_t *schema = own_schema(json_object_get(tool, "function"), i, &work, err);
        ok = schema && json_object_set_new(defs, key, schema) == 0;
    }
    if (ok)
        return root;
    if (!root)
        json_decref(defs);
    json_decref(root);
    error_set(err, -ENOMEM, "out of memory");
    return NULL;
}

/* Opens the builder on the root's schemas, and puts the reasoning. Returns the state behind it. */
static uint32_t open_writer(struct writer *x, uint32_t *start)
{
    builder_open(&x->c.b);
    *start = builder_state(&x->c.b);
    return schema_begin(&x->c) && !x->o->lazy ? put_reasoning(x, *start) : *start;
}

static int close_writer(struct writer *x, uint32_t start, uint32_t end, struct grammar **out,
                        struct error *err)
{
    builder_last(&x->c.b, end);
    emit_all(&x->c);
    int rc = builder_finish(&x->c.b, start, out, err);
    json_decref(x->c.made);
    builder_close(&x->c.b);
    return rc;
}

int tool_grammar_compile(struct grammar **out, const struct tool_grammar_options *o, struct error *err)
{
    struct error words = {0};
    struct writer x = {.o = o, .w = toolcall_writing_of(o->format)};
    uint32_t start;
    if (!x.w)
        return error_set(err, -ENOTSUP, "calls in the format %s cannot be forced",
                         toolcall_format_name(o->format));
    x.c.root = all_schemas(o, &words);
    if (!x.c.root)
        return error_set(err, words.code, "%s", words.text);
    uint32_t behind = open_writer(&x, &start);
    uint32_t end = o->lazy ? put_lazily(&x, behind) : put_calls(&x, behind);
    int rc = close_writer(&x, start, end, out, err);
    json_decref(x.c.root);
    return rc;
}

int tool_grammar_of_schema(struct grammar **out, const struct tool_grammar_options *o, json_t *schema,
                           struct error *err)
{
    struct writer x = {.o = o, .c.root = schema};
    const char *header = toolcall_answer_header(o->format);
    uint32_t start, behind = open_writer(&x, &start);
    behind = put_text(&x, behind, header, strlen(header));
    return close_writer(&x, start, put_value(&x, behind, schema), out, err);
}

int tool_grammar_without(struct grammar **out, const struct tool_grammar_options *o, const char *const *texts,
                         size_t n, struct error *err)
{
    struct writer x = {.o = o, .c.root = json_object()};
    uint32_t start, from, to;
    if (!x.c.root)
        return error_set(err, -ENOMEM, "out of memory");
    builder_open(&x.c.b);
    start = from = builder_state(&x.c.b);
    to = builder_state(&x.c.b);
    put_free(&x, from, to, texts, n, true);
    builder_last(&x.c.b, to);
    int rc = builder_finish(&x.c.b, start, out, err);
    builder_close(&x.c.b);
    json_decref(x.c.root);
    return rc;
}
