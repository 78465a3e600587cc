#include "constraint.h"
#include "generation.h"
#include "grammar/matcher.h"
#include "json/json.h"
#include "sampler/banned.h"
#include "schema/schema.h"
#include "schema/tool_grammar.h"
#include "toolcall/toolcall_writing.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define SCHEMA_TEXT_VALUES 16384 /* members and items of a schema that came as a text */

struct cached {
    enum constraint_kind kind;
    uint64_t
        owner;  /* its API key; keys share nothing, so that the time of a reply tells no other key of it */
    char *text; /* its source; with kind and owner the key of the cache */
    struct grammar *grammar;
    size_t text_len;
    uint64_t used;
};
struct constraints {
    const struct tokenizer *tokenizer;
    struct vocabulary *vocabulary;
    struct arena marks;   /* texts of control tokens that mark calls and reasoning */
    const char **mark;    /* [n_vocab]: those, or NULL */
    pthread_mutex_t lock; /* of what follows */
    struct cached cache[CONSTRAINT_CACHE];
    size_t room; /* bytes, the limit of all entries */
    uint64_t clock;
};

/* ---- fields ---- */

static int ask(struct field_reader *r, const char *field, enum constraint_kind kind, const json_t *value)
{
    struct constraint *c = &((struct params *)r->out)->constraint;
    if (c->kind != CONSTRAINT_NONE)
        return api_invalid(r->err, field, "%s and %s: one constraint is allowed", c->field, field);
    *c = (struct constraint){kind, field, value};
    return 0;
}

/* A schema that came as a text, as some clients send it; NULL with *r->err. */
static const json_t *schema_of_text(struct field_reader *r, const struct field *f, const json_t *text)
{
    const struct json_limits limits = {.max_values = SCHEMA_TEXT_VALUES, .max_depth = JSON_MAX_DEPTH_IN_BODY};
    struct params *p = r->out;
    struct api_error e = {0};
    json_t *root = json_read(json_string_value(text), json_string_length(text), &limits, &e);
    json_decref(p->schema);
    p->schema = root;
    if (!root && e.status == 400)
        api_invalid(r->err, f->name, "%s must be a JSON schema, also where it is a text: %s", f->name,
                    e.message);
    else if (!root)
        api_out_of_memory(r->err);
    return root;
}

static int read_schema(struct field_reader *r, const struct field *f, const json_t *value)
{
    if (json_string_length(value))
        value = schema_of_text(r, f, value);
    if (!value)
        return -1;
    if (!json_is_object(value) && !json_is_boolean(value))
        return api_invalid(r->err, f->name, "%s must be a JSON schema (got %s)", f->name, field_got(value));
    return ask(r, f->name, CONSTRAINT_SCHEMA, value);
}

static int read_text(struct field_reader *r, const struct field *f, const json_t *value,
                     enum constraint_kind kind)
{
    if (!json_is_string(value))
        return api_invalid(r->err, f->name, "%s must be a string (got %s)", f->name, field_got(value));
    return json_string_length(value) ? ask(r, f->name, kind, value) : 0;
}

static int read_regex(struct field_reader *r, const struct field *f, const json_t *value)
{
    return read_text(r, f, value, CONSTRAINT_REGEX);
}

static int read_grammar(struct field_reader *r, const struct field *f, const json_t *value)
{
    return read_text(r, f, value, CONSTRAINT_GBNF);
}

static int read_choice(struct field_reader *r, const struct field *f, const json_t *value)
{
    bool ok = json_array_size(value) > 0;
    for (size_t i = 0; i < json_array_size(value); i++)
        ok = ok && json_is_string(json_array_get(value, i));
    if (!ok)
        return api_invalid(r->err, f->name, "%s must be a list of strings (got %s)", f->name,
                           field_got(value));
    return ask(r, f->name, CONSTRAINT_CHOICE, value);
}

/* Returns their number, or -1. */
static int read_strings(struct field_reader *r, const struct field *f, const json_t *value)
{
    size_t n = json_array_size(value);
    if (!json_is_array(value) || n > BANNED_MAX_STRINGS)
        return api_invalid(r->err, f->name, "%s must be an array of at most %d strings", f->name,
                           BANNED_MAX_STRINGS);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(value, i);
        size_t len = json_string_length(item);
        if (!len || len > BANNED_MAX_BYTES || strlen(json_string_value(item)) != len)
            return api_invalid(r->err, f->name, "%s may have strings of 1 to %d bytes without NUL (got %s)",
                               f->name, BANNED_MAX_BYTES, field_got(item));
    }
    return (int)n;
}

static int read_banned(struct field_reader *r, const struct field *f, const json_t *value)
{
    int n = read_strings(r, f, value);
    if (n > 0)
        ((struct params *)r->out)->banned = (struct banned_field){f->name, value};
    return n < 0 ? -1 : 0;
}

static int read_bad_words(struct field_reader *r, const struct field *f, const json_t *value)
{
    int n = read_strings(r, f, value);
    return n > 0 ? ask(r, f->name, CONSTRAINT_WITHOUT, value) : n;
}

static int read_object(struct field_reader *r, const struct field *f, const json_t *value)
{
    if (!json_is_boolean(value))
        return api_invalid(r->err, f->name, "%s must be true or false (got %s)", f->name, field_got(value));
    return json_is_true(value) ? ask(r, f->name, CONSTRAINT_OBJECT, value) : 0;
}

static int read_structured(struct field_reader *r, const struct field *f, const json_t *value)
{
    static const struct field rows[] = {
        {.name = "json", .kind = FIELD_CUSTOM, .read = read_schema},
        {.name = "regex", .kind = FIELD_CUSTOM, .read = read_regex},
        {.name = "choice", .kind = FIELD_CUSTOM, .read = read_choice},
        {.name = "grammar", .kind = FIELD_CUSTOM, .read = read_grammar},
        {.name = "json_object", .kind = FIELD_CUSTOM, .read = read_object},
        {.name = "disable_any_whitespace", .kind = FIELD_IGNORED},
        {0},
    };
    const struct field *tables[] = {rows};
    struct field_reader inner = *r;
    if (!json_is_object(value))
        return api_invalid(r->err, f->name, "%s must be an object (got %s)", f->name, field_got(value));
    inner.within = f->name;
    return fields_read(&inner, value, tables, 1);
}

/* A member that is null is not given. */
static const json_t *given_member(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

/* {type: json_schema, json_schema: {name, schema, strict}}; llama.cpp's {type: json_object, schema: {}}. */
static int read_response_format(struct field_reader *r, const struct field *f, const json_t *value)
{
    const char *type = json_string_value(json_object_get(value, "type"));
    const json_t *named = json_object_get(value, "json_schema"), *schema = given_member(value, "schema");
    static const struct field rows[] = {{.name = "response_format.json_schema.schema"},
                                        {.name = "response_format.schema"}};
    const struct field *row = &rows[schema != NULL];
    if (!json_is_object(value))
        return api_invalid(r->err, f->name, "response_format must be an object (got %s)", field_got(value));
    if (type && !strcmp(type, "text"))
        return 0;
    if (type && !strcmp(type, "json_schema")) {
        if (field_has_shape(named, "response_format.json_schema", SHAPE_OBJECT, r->err) < 0)
            return -1;
        schema = schema ? schema : given_member(named, "schema");
        if (!named && !schema)
            return api_invalid(r->err, "response_format.json_schema",
                               "response_format.json_schema is missing");
        return schema ? read_schema(r, row, schema) : ask(r, row->name, CONSTRAINT_SCHEMA, json_true());
    }
    if (type && !strcmp(type, "json_object"))
        return schema ? read_schema(r, row, schema) : ask(r, f->name, CONSTRAINT_OBJECT, value);
    return api_invalid(r->err, "response_format.type",
                       "response_format.type must be \"text\", \"json_object\" or \"json_schema\" (got %s)",
                       field_got_word(json_object_get(value, "type")));
}

const struct field constraint_fields[] = {
    {.name = "response_format", .kind = FIELD_CUSTOM, .read = read_response_format},
    {.name = "json_schema", .kind = FIELD_CUSTOM, .read = read_schema},
    {.name = "grammar", .kind = FIELD_CUSTOM, .read = read_grammar},
    {.name = "regex", .kind = FIELD_CUSTOM, .read = read_regex},
    {.name = "guided_json", .kind = FIELD_CUSTOM, .read = read_schema},
    {.name = "guided_regex", .kind = FIELD_CUSTOM, .read = read_regex},
    {.name = "guided_choice", .kind = FIELD_CUSTOM, .read = read_choice},
    {.name = "guided_grammar", .kind = FIELD_CUSTOM, .read = read_grammar},
    {.name = "ebnf", .kind = FIELD_CUSTOM, .read = read_grammar}, /* SGLang's name */
    {.name = "banned_strings", .kind = FIELD_CUSTOM, .read = read_banned},
    {.name = "bad_words", .kind = FIELD_CUSTOM, .read = read_bad_words},
    {.name = "guided_decoding_backend", .kind = FIELD_IGNORED},
    {.name = "structured_outputs", .kind = FIELD_CUSTOM, .read = read_structured},
    {0},
};

/* ---- the vocabulary ---- */

static int add_mark(struct constraints *c, const char *mark)
{
    int32_t id = tokenizer_find(c->tokenizer, mark, strlen(mark));
    if (id < 0 || c->mark[id] || !(tokenizer_attr(c->tokenizer, id) & TOKEN_CONTROL))
        return 0;
    size_t n = strlen(mark) + sizeof TOOL_GRAMMAR_CONTROL;
    char *s = arena_alloc(&c->marks, n);
    if (!s)
        return -ENOMEM;
    snprintf(s, n, TOOL_GRAMMAR_CONTROL "%s", mark);
    c->mark[id] = s;
    return 0;
}

/* For all formats: a request may name another than the model's. */
static int find_marks(struct constraints *c)
{
    const char *mark;
    c->mark = arena_zalloc(&c->marks, tokenizer_n_vocab(c->tokenizer) * sizeof *c->mark);
    if (!c->mark)
        return -ENOMEM;
    for (size_t f = 0; f < toolcall_n_formats(); f++)
        for (size_t i = 0; (mark = toolcall_format_mark(toolcall_format_at(f), i)); i++)
            if (add_mark(c, mark) < 0)
                return -ENOMEM;
    return 0;
}

static bool is_control(const void *context, const char *mark)
{
    const struct constraints *c = context;
    int32_t id = tokenizer_find(c->tokenizer, mark, strlen(mark));
    return id >= 0 && c->mark[id];
}

static const char *piece(const void *context, int32_t token, uint32_t *len)
{
    const struct constraints *c = context;
    const struct tokenizer *t = c->tokenizer;
    struct tokenizer_piece p = tokenizer_piece(t, token, false);
    if (c->mark[token] && !tokenizer_is_end(t, token)) {
        *len = (uint32_t)strlen(c->mark[token]);
        return c->mark[token];
    }
    if (tokenizer_attr(t, token) & (TOKEN_UNKNOWN | TOKEN_CONTROL | TOKEN_UNUSED) ||
        tokenizer_is_end(t, token))
        return NULL;
    *len = p.len;
    return p.s;
}

int constraints_open(struct constraints **out, const struct tokenizer *t, uint32_t n_rows, size_t room,
                     struct error *err)
{
    const int32_t *ends;
    uint32_t n_tokens = tokenizer_n_vocab(t) < n_rows ? tokenizer_n_vocab(t) : n_rows;
    struct constraints *c = calloc(1, sizeof *c);
    if (!c)
        return error_set(err, -ENOMEM, "vocabulary: out of memory");
    uint32_t n_ends = (uint32_t)tokenizer_ends(t, &ends);
    c->tokenizer = t;
    int rc = find_marks(c);
    if (rc < 0)
        error_set(err, rc, "vocabulary: out of memory");
    if (rc == 0)
        rc = vocabulary_open(&c->vocabulary, n_tokens, piece, c, ends, n_ends, err);
    if (rc == 0 && (rc = vocabulary_warm(c->vocabulary)) < 0)
        error_set(err, rc, "vocabulary: out of memory");
    if (rc < 0) {
        vocabulary_close(c->vocabulary);
        arena_close(&c->marks);
        free(c);
        return rc;
    }
    c->room = room;
    pthread_mutex_init(&c->lock, NULL);
    *out = c;
    return 0;
}

void constraints_close(struct constraints *c)
{
    if (!c)
        return;
    for (int i = 0; i < CONSTRAINT_CACHE; i++) {
        free(c->cache[i].text);
        grammar_unref(c->cache[i].grammar);
    }
    pthread_mutex_destroy(&c->lock);
    vocabulary_close(c->vocabulary);
    arena_close(&c->marks);
    free(c);
}

/* ---- the cache ---- */

static struct grammar *cache_find(struct constraints *c, enum constraint_kind kind, uint64_t owner,
                                  const char *text)
{
    struct grammar *found = NULL;
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < CONSTRAINT_CACHE && !found; i++) {
        struct cached *e = &c->cache[i];
        if (!e->grammar || e->kind != kind || e->owner != owner || strcmp(e->text, text) != 0)
            continue;
        e->used = ++c->clock;
        found = grammar_ref(e->grammar);
    }
    pthread_mutex_unlock(&c->lock);
    return found;
}

static void cache_drop(struct cached *e)
{
    free(e->text);
    grammar_unref(e->grammar);
    *e = (struct cached){0};
}

/* Drops the least recently used entries until `bytes` more have room. An entry grows by the masks that its
 * grammar remembers. */
static void cache_make_room(struct constraints *c, size_t bytes)
{
    for (;;) {
        size_t taken = bytes;
        struct cached *oldest = NULL;
        for (int i = 0; i < CONSTRAINT_CACHE; i++) {
            struct cached *e = &c->cache[i];
            if (!e->grammar)
                continue;
            taken += grammar_bytes(e->grammar) + e->text_len;
            oldest = !oldest || e->used < oldest->used ? e : oldest;
        }
        if (!oldest || taken <= c->room)
            return;
        cache_drop(oldest);
    }
}

/* An empty entry; without one the least recently used is dropped. */
static struct cached *cache_entry(struct constraints *c)
{
    struct cached *found = &c->cache[0];
    for (int i = 1; i < CONSTRAINT_CACHE && found->grammar; i++)
        if (!c->cache[i].grammar || c->cache[i].used < found->used)
            found = &c->cache[i];
    if (found->grammar)
        cache_drop(found);
    return found;
}

/* A text has ended: drops what its masks have made too large. */
static void cache_trim(struct constraints *c)
{
    pthread_mutex_lock(&c->lock);
    cache_make_room(c, 0);
    pthread_mutex_unlock(&c->lock);
}

static void cache_add(struct constraints *c, enum constraint_kind kind, uint64_t owner, const char *text,
                      struct grammar *g)
{
    size_t text_len = strlen(text) + 1, bytes = grammar_bytes(g) + text_len;
    char *copy = bytes <= c->room / CONSTRAINT_SHARE ? strdup(text) : NULL;
    if (!copy)
        return;
    pthread_mutex_lock(&c->lock);
    cache_make_room(c, bytes);
    struct cached *e = cache_entry(c);
    *e = (struct cached){kind, owner, copy, grammar_ref(g), text_len, ++c->clock};
    pthread_mutex_unlock(&c->lock);
}

/* ---- compiling ---- */

static int compile_choice(struct grammar **out, const json_t *list, struct error *err)
{
    size_t n = json_array_size(list);
    const char **texts = calloc(n, sizeof *texts);
    size_t *lens = calloc(n, sizeof *lens);
    int rc = -ENOMEM;
    for (size_t i = 0; texts && lens && i < n; i++) {
        texts[i] = json_string_value(json_array_get(list, i));
        lens[i] = json_string_length(json_array_get(list, i));
    }
    if (texts && lens)
        rc = grammar_from_choice(out, texts, lens, n, err);
    free(texts);
    free(lens);
    return rc;
}

/* The names that may be called, as a new array; NULL: all may. */
static json_t *names_of(const struct tool_choice *choice)
{
    json_t *names = choice->one || choice->of ? json_array() : NULL;
    if (choice->one)
        json_array_append_new(names, json_string(choice->one));
    for (size_t i = 0; i < json_array_size(choice->of); i++) {
        const json_t *tool = json_array_get(choice->of, i), *f = json_object_get(tool, "function");
        json_t *name = json_object_get(f ? f : tool, "name");
        if (json_is_string(name))
            json_array_append(names, name);
    }
    return names;
}

/* The state of reasoning after its prompt: open, closed (none comes), or nothing: then it may come. Texts
 * that are no chat's have none. */
static enum tool_grammar_reasoning reasoning_of(const struct generation *g)
{
    const struct params *p = &g->p;
    if (!p->format)
        return REASONING_NONE;
    struct toolcall_reasoning r = toolcall_reasoning_of(p->format);
    if (toolcall_reasoning_is_open(p->format, p->prompt_end, p->prompt_end_len))
        return REASONING_OPEN;
    bool closed = r.close && memmem(p->prompt_end, p->prompt_end_len, r.close, strlen(r.close));
    bool off = p->reasoning_effort && !strcmp(p->reasoning_effort, "none");
    bool shows = p->format == g->model->format && chat_template_shows_reasoning(g->model->chat);
    return r.close && shows && !closed && !off ? REASONING_POSSIBLE : REASONING_NONE;
}

/* The same for calls. One that may come knows by itself a reasoning that the model opens. */
static enum tool_grammar_reasoning reasoning_before_calls(const struct generation *g)
{
    enum tool_grammar_reasoning reasoning = reasoning_of(g);
    return g->p.choice.forced || reasoning == REASONING_OPEN ? reasoning : REASONING_NONE;
}

/* The compiler's references are its own: jansson counts without a lock. */
static int compile_calls(struct grammar **out, const struct generation *g, struct error *err)
{
    const struct params *p = &g->p;
    json_t *names = names_of(&p->choice), *list = json_deep_copy(p->tool_list);
    struct tool_grammar_options o = {.format = p->format,
                                     .list = list,
                                     .tools = &p->tools,
                                     .only = names,
                                     .one = p->one_call,
                                     .lazy = !p->choice.forced,
                                     .reasoning = reasoning_before_calls(g),
                                     .is_control = is_control,
                                     .context = g->model->constraints};
    int rc = list ? tool_grammar_compile(out, &o, err) : -ENOMEM;
    json_decref(names);
    json_decref(list);
    return rc;
}

/* Returns true if the format has nothing in front of an answer: its schema is then the whole text's. */
static bool is_whole_text(const struct generation *g)
{
    return reasoning_of(g) == REASONING_NONE && !(g->p.format && *toolcall_answer_header(g->p.format));
}

/* A model that reasons does so before the JSON, which it would else have to write without a thought. */
static int compile_schema(struct grammar **out, const struct generation *g, json_t *schema, struct error *err)
{
    struct tool_grammar_options o = {.format = g->p.format,
                                     .reasoning = reasoning_of(g),
                                     .is_control = is_control,
                                     .context = g->model->constraints};
    if (!schema)
        return -ENOMEM;
    int rc =
        is_whole_text(g) ? schema_compile(out, schema, err) : tool_grammar_of_schema(out, &o, schema, err);
    json_decref(schema);
    return rc;
}

/* In a chat the marks of its format stay possible. */
static int compile_without(struct grammar **out, const struct generation *g, struct error *err)
{
    const json_t *list = g->p.constraint.value;
    const char *texts[BANNED_MAX_STRINGS];
    size_t n = json_array_size(list);
    struct tool_grammar_options o = {
        .format = g->p.format, .is_control = is_control, .context = g->model->constraints};
    for (size_t i = 0; i < n; i++)
        texts[i] = json_string_value(json_array_get(list, i));
    return tool_grammar_without(out, &o, texts, n, err);
}

static char *key_of_banned(const struct generation *g)
{
    char *text = json_dumps(g->p.constraint.value, JSON_COMPACT), *key = NULL;
    if (text && asprintf(&key, "%s %s", g->p.format ? toolcall_format_name(g->p.format) : "", text) < 0)
        key = NULL;
    free(text);
    return key;
}

static char *key_of_schema(const struct generation *g)
{
    const struct constraint *c = &g->p.constraint;
    char *text =
        c->kind == CONSTRAINT_OBJECT ? strdup("{}") : json_dumps(c->value, JSON_COMPACT | JSON_ENCODE_ANY);
    char *key = NULL;
    int n = -1;
    if (!text || is_whole_text(g))
        return text;
    n = asprintf(&key, "%s %d %s", toolcall_format_name(g->p.format), (int)reasoning_of(g), text);
    free(text);
    return n < 0 ? NULL : key;
}

/* The key of the grammar in the cache; the caller frees it. NULL: out of memory. */
static char *key_of(const struct generation *g)
{
    const struct params *p = &g->p;
    const struct constraint *c = &p->constraint;
    if (c->kind == CONSTRAINT_OBJECT || c->kind == CONSTRAINT_SCHEMA)
        return key_of_schema(g);
    if (c->kind == CONSTRAINT_WITHOUT)
        return key_of_banned(g);
    if (c->kind != CONSTRAINT_CALLS)
        return json_dumps(c->value, JSON_COMPACT | JSON_ENCODE_ANY);
    json_t *names = names_of(&p->choice);
    json_t *all = json_pack("[s, b, b, i, O?, O]", toolcall_format_name(p->format), p->one_call,
                            p->choice.forced, (int)reasoning_before_calls(g), names, p->tool_list);
    char *key = all ? json_dumps(all, JSON_COMPACT) : NULL;
    json_decref(names);
    json_decref(all);
    return key;
}

static int compile(struct grammar **out, const struct generation *g, struct error *err)
{
    const struct constraint *c = &g->p.constraint;
    const char *s = json_string_value(c->value);
    switch (c->kind) {
    case CONSTRAINT_CALLS:
        return compile_calls(out, g, err);
    case CONSTRAINT_WITHOUT:
        return compile_without(out, g, err);
    case CONSTRAINT_REGEX:
        return grammar_from_regex(out, s, json_string_length(c->value), err);
    case CONSTRAINT_GBNF:
        return grammar_from_text(out, s, json_string_length(c->value), err);
    case CONSTRAINT_CHOICE:
        return compile_choice(out, c->value, err);
    case CONSTRAINT_OBJECT:
        return compile_schema(out, g, json_pack("{s:s}", "type", "object"), err);
    default: /* a copy: jansson counts references without a lock, and the compiler's are its own */
        return compile_schema(out, g, json_deep_copy(c->value), err);
    }
}

static int refuse(const struct constraint *c, int rc, const struct error *words, struct api_error *err)
{
    if (rc == -ENOMEM)
        return api_out_of_memory(err);
    return api_invalid(err, c->field, "%s: %s", c->field, words->text);
}

static int find_or_compile(struct generation *g, struct api_error *err)
{
    struct constraint *c = &g->p.constraint;
    struct constraints *all = g->model->constraints;
    char *text = key_of(g);
    uint64_t owner = g->request->owner;
    struct error words = {0};
    int rc = 0;
    if (!text)
        return api_out_of_memory(err);
    g->grammar = cache_find(all, c->kind, owner, text);
    if (!g->grammar && g->effort != EFFORT_LONG) {
        free(text);
        g->effort = EFFORT_POOL; /* even if the prompt is cheap: it counts as long work */
        return generation_exceeded(g);
    }
    if (!g->grammar && (rc = compile(&g->grammar, g, &words)) == 0)
        cache_add(all, c->kind, owner, text, g->grammar);
    free(text);
    return rc < 0 ? refuse(c, rc, &words, err) : 0;
}

static bool has_tool(const struct toolcall_tools *tools, const char *name)
{
    for (size_t i = 0; i < tools->n; i++)
        if (!strcmp(tools->list[i].name, name))
            return true;
    return false;
}

static bool has_strict_tool(const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_is_true(json_object_get(json_object_get(json_array_get(list, i), "function"), "strict")))
            return true;
    return false;
}

/* Calls that may come are bound from their opening on where a tool is strict. A text that has another
 * constraint can hold no call, but for one without some strings. */
static int bind_calls(struct generation *g, struct api_error *err)
{
    struct params *p = &g->p;
    bool held = g->model->constraints && p->format && toolcall_writing_of(p->format);
    if (!held || !p->tools.n || !has_strict_tool(p->tool_list))
        return 0;
    if (p->constraint.kind == CONSTRAINT_WITHOUT)
        return api_invalid(err, p->constraint.field, "%s cannot be combined with a strict tool",
                           p->constraint.field);
    if (p->constraint.kind == CONSTRAINT_NONE)
        p->constraint = (struct constraint){.kind = CONSTRAINT_CALLS, .field = "tools"};
    return 0;
}

/* A call that must come is a constraint like the others, and comes before them. */
static int force_calls(struct generation *g, struct api_error *err)
{
    struct params *p = &g->p;
    if (!p->choice.forced)
        return bind_calls(g, err);
    if (p->constraint.kind == CONSTRAINT_WITHOUT)
        return api_invalid(err, p->constraint.field,
                           "%s cannot be combined with a tool_choice that forces a call",
                           p->constraint.field);
    if (!p->tools.n)
        return api_invalid(err, "tool_choice", "tool_choice needs tools: none of them is a function");
    if (p->choice.one && !has_tool(&p->tools, p->choice.one))
        return api_invalid(err, "tool_choice", "tool_choice names %.100s, which is not among the tools",
                           p->choice.one);
    p->constraint = (struct constraint){.kind = CONSTRAINT_CALLS, .field = "tool_choice"};
    return 0;
}

int constraint_prepare(struct generation *g, struct api_error *err)
{
    const struct constraint *c = &g->p.constraint;
    if (force_calls(g, err) < 0)
        return -1;
    const char *field = c->kind != CONSTRAINT_NONE ? c->field : g->p.banned.field;
    if (!field)
        return 0;
    if (!g->model->constraints)
        return api_invalid(err, field, "%s: the backend cannot constrain texts", field);
    if (c->kind != CONSTRAINT_NONE && !g->grammar &&
        find_or_compile(g, err) < 0) /* a second preparation reads the fields, not the grammar */
        return -1;
    if (g->effort == EFFORT_LOOP) /* a matcher begins with a search, even in a short grammar; the vocabulary
                                     is searched for banned strings */
        return generation_exceeded(g);
    if (g->grammar && c->kind != CONSTRAINT_WITHOUT) { /* a text whose grammar has ended ends */
        g->p.ignore_eos = false;
        g->p.min_tokens = 0;
    }
    return 0;
}

/* A mark of the request's format has no text: it stays possible in a chat. */
static const char *reply_piece(const void *context, int32_t token, uint32_t *len)
{
    const struct generation *g = context;
    const struct tokenizer *t = g->model->tokenizer;
    struct tokenizer_piece p = tokenizer_piece(t, token, false);
    const char *mark;
    bool is_user = p.len && (tokenizer_attr(t, token) & TOKEN_USER);
    for (size_t i = 0; is_user && g->p.format && (mark = toolcall_format_mark(g->p.format, i)); i++)
        if (strlen(mark) == p.len && !memcmp(mark, p.s, p.len))
            return NULL;
    *len = p.len;
    return p.s;
}

/* The choices of a request share the strings. */
static int begin_banned(struct generation *g, struct engine_request *e, struct api_error *err)
{
    const json_t *list = g->p.banned.value;
    const char *texts[BANNED_MAX_STRINGS];
    uint32_t n = (uint32_t)json_array_size(list);
    for (uint32_t i = 0; i < n; i++)
        texts[i] = json_string_value(json_array_get(list, i));
    if (e == &g->choices->e)
        g->banned =
            banned_strings_open(g->arena, texts, n, tokenizer_n_vocab(g->model->tokenizer), reply_piece, g);
    if (g->banned)
        e->banned = banned_open(g->arena, g->banned, e->chain != NULL);
    return e->banned ? 0 : api_out_of_memory(err);
}

int constraint_begin(struct generation *g, struct engine_request *e, struct api_error *err)
{
    if (g->p.banned.field && begin_banned(g, e, err) < 0)
        return -1;
    if (!g->grammar)
        return 0;
    e->vocabulary = g->model->constraints->vocabulary;
    int rc = matcher_open(&e->constraint, g->grammar);
    if (rc == -E2BIG)
        return api_invalid(err, g->p.constraint.field, "%s: too ambiguous, more than %d alternatives at once",
                           g->p.constraint.field, MATCHER_MAX_THREADS);
    return rc < 0 ? api_out_of_memory(err) : 0;
}

size_t constraint_uncounted(const struct generation *g)
{
    size_t n = g->grammar ? grammar_bytes(g->grammar) : 0, counted = n ? g->grammar->share.n_counted : 0;
    return n > counted ? n - counted : 0; /* a matcher on the pool may have gone since they were counted */
}

/* The memory of a grammar counts once for all requests that share it. */
static void count(struct generation *g, size_t n)
{
    struct grammar_share *share = &g->grammar->share;
    assert(g->server->reply_bytes >= share->n_counted);
    g->server->reply_bytes += n;
    g->server->reply_bytes -= share->n_counted;
    share->n_counted = n;
}

size_t constraint_part(const struct generation *g)
{
    return g->shares_grammar ? g->grammar->share.n_counted / g->grammar->share.n_users : 0;
}

bool constraint_count(struct generation *g)
{
    if (!g->grammar)
        return false;
    size_t before = g->grammar->share.n_counted;
    g->grammar->share.n_users += !g->shares_grammar;
    g->shares_grammar = true;
    count(g, grammar_bytes(g->grammar));
    return g->grammar->share.n_counted > before;
}

static void stop_counting(struct generation *g)
{
    if (!g->shares_grammar)
        return;
    g->shares_grammar = false;
    count(g, --g->grammar->share.n_users ? grammar_bytes(g->grammar) : 0);
}

void constraint_leave(struct generation *g)
{
    for (uint32_t i = 0; g->grammar && g->choices && i < g->p.n * g->n_prompts; i++) {
        matcher_close(g->choices[i].e.constraint);
        g->choices[i].e.constraint = NULL;
    }
    stop_counting(g);
    if (g->grammar)
        cache_trim(g->model->constraints);
    grammar_unref(g->grammar);
    g->grammar = NULL;
}
