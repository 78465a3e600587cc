#include "constraint.h"
#include "generation.h"
#include "grammar/matcher.h"
#include "schema/schema.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct cached {
    enum constraint_kind kind;
    char *text; /* what it was compiled from */
    struct grammar *grammar;
    size_t bytes; /* of text and grammar */
    uint64_t used;
};
struct constraints {
    struct vocabulary *vocabulary;
    pthread_mutex_t lock; /* of what follows */
    struct cached cache[CONSTRAINT_CACHE];
    size_t bytes, room; /* of all entries; what they may take */
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

static int read_schema(struct field_reader *r, const struct field *f, const json_t *value)
{
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

/* {type: json_schema, json_schema: {name, schema, strict}}; llama.cpp's {type: json_object, schema: {}}. */
static int read_response_format(struct field_reader *r, const struct field *f, const json_t *value)
{
    const char *type = json_string_value(json_object_get(value, "type"));
    const json_t *named = json_object_get(value, "json_schema"), *schema = json_object_get(value, "schema");
    static const struct field rows[] = {{.name = "response_format.json_schema.schema"},
                                        {.name = "response_format.schema"}};
    const struct field *row = &rows[schema != NULL];
    if (!json_is_object(value))
        return api_invalid(r->err, f->name, "response_format must be an object (got %s)", field_got(value));
    if (type && !strcmp(type, "text"))
        return 0;
    if (type && !strcmp(type, "json_schema")) {
        schema = schema ? schema : json_object_get(named, "schema");
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
    {.name = "guided_decoding_backend", .kind = FIELD_IGNORED},
    {.name = "structured_outputs", .kind = FIELD_CUSTOM, .read = read_structured},
    {0},
};

/* ---- the vocabulary ---- */

static const char *piece(const void *context, int32_t token, uint32_t *len)
{
    const struct tokenizer *t = context;
    struct tokenizer_piece p = tokenizer_piece(t, token, false);
    if (tokenizer_attr(t, token) & (TOKEN_UNKNOWN | TOKEN_CONTROL | TOKEN_UNUSED) ||
        tokenizer_is_end(t, token))
        return NULL;
    *len = p.len;
    return p.s;
}

int constraints_open(struct constraints **out, const struct tokenizer *t, size_t room, struct error *err)
{
    const int32_t *ends;
    struct constraints *c = calloc(1, sizeof *c);
    if (!c)
        return error_set(err, -ENOMEM, "vocabulary: out of memory");
    uint32_t n_ends = (uint32_t)tokenizer_ends(t, &ends);
    int rc = vocabulary_open(&c->vocabulary, tokenizer_n_vocab(t), piece, t, ends, n_ends, err);
    if (rc == 0 && (rc = vocabulary_warm(c->vocabulary)) < 0)
        error_set(err, rc, "vocabulary: out of memory");
    if (rc < 0) {
        vocabulary_close(c->vocabulary);
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
    free(c);
}

/* ---- the cache ---- */

static struct grammar *cache_find(struct constraints *c, enum constraint_kind kind, const char *text)
{
    struct grammar *found = NULL;
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < CONSTRAINT_CACHE && !found; i++) {
        struct cached *e = &c->cache[i];
        if (!e->grammar || e->kind != kind || strcmp(e->text, text) != 0)
            continue;
        e->used = ++c->clock;
        found = grammar_ref(e->grammar);
    }
    pthread_mutex_unlock(&c->lock);
    return found;
}

static void cache_drop(struct constraints *c, struct cached *e)
{
    c->bytes -= e->bytes;
    free(e->text);
    grammar_unref(e->grammar);
    *e = (struct cached){0};
}

/* A free entry, after the least recently used ones have made room for `bytes`. */
static struct cached *cache_make_room(struct constraints *c, size_t bytes)
{
    for (;;) {
        struct cached *empty = NULL, *oldest = NULL;
        for (int i = 0; i < CONSTRAINT_CACHE; i++) {
            struct cached *e = &c->cache[i];
            if (!e->grammar)
                empty = e;
            else if (!oldest || e->used < oldest->used)
                oldest = e;
        }
        if (empty && c->bytes + bytes <= c->room)
            return empty;
        cache_drop(c, oldest);
    }
}

static void cache_add(struct constraints *c, enum constraint_kind kind, const char *text, struct grammar *g)
{
    size_t bytes = g->arena.total + strlen(text) + 1;
    char *copy = bytes <= c->room / CONSTRAINT_SHARE ? strdup(text) : NULL;
    if (!copy)
        return;
    pthread_mutex_lock(&c->lock);
    struct cached *e = cache_make_room(c, bytes);
    *e = (struct cached){kind, copy, grammar_ref(g), bytes, ++c->clock};
    c->bytes += bytes;
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

static int compile(struct grammar **out, const struct constraint *c, struct error *err)
{
    const char *s = json_string_value(c->value);
    json_t *object;
    int rc;
    switch (c->kind) {
    case CONSTRAINT_REGEX:
        return grammar_from_regex(out, s, json_string_length(c->value), err);
    case CONSTRAINT_GBNF:
        return grammar_from_gbnf(out, s, json_string_length(c->value), err);
    case CONSTRAINT_CHOICE:
        return compile_choice(out, c->value, err);
    case CONSTRAINT_OBJECT:
        object = json_pack("{s:s}", "type", "object");
        rc = object ? schema_compile(out, object, err) : -ENOMEM;
        json_decref(object);
        return rc;
    default: /* a copy: jansson counts references without a lock, and the compiler's are its own */
        object = json_deep_copy(c->value);
        rc = object ? schema_compile(out, object, err) : -ENOMEM;
        json_decref(object);
        return rc;
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
    char *text =
        c->kind == CONSTRAINT_OBJECT ? strdup("{}") : json_dumps(c->value, JSON_COMPACT | JSON_ENCODE_ANY);
    struct error words = {0};
    int rc = 0;
    if (!text)
        return api_out_of_memory(err);
    g->grammar = cache_find(all, c->kind, text);
    if (!g->grammar && g->effort != EFFORT_LONG) {
        free(text);
        g->effort = EFFORT_POOL; /* whatever the prompt costs: it goes where long work goes */
        return generation_exceeded(g);
    }
    if (!g->grammar && (rc = compile(&g->grammar, c, &words)) == 0)
        cache_add(all, c->kind, text, g->grammar);
    free(text);
    return rc < 0 ? refuse(c, rc, &words, err) : 0;
}

int constraint_prepare(struct generation *g, struct api_error *err)
{
    const struct constraint *c = &g->p.constraint;
    if (c->kind == CONSTRAINT_NONE)
        return 0;
    if (!g->model->constraints)
        return api_invalid(err, c->field, "%s: backend cuda cannot constrain texts yet", c->field);
    if (!g->grammar &&
        find_or_compile(g, err) < 0) /* a second preparation reads the fields, not the grammar */
        return -1;
    g->p.ignore_eos = false; /* a text whose grammar has ended ends */
    g->p.min_tokens = 0;
    return 0;
}

int constraint_begin(struct generation *g, struct engine_request *e, struct api_error *err)
{
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

/* What a grammar holds counts once for all requests that share it. */
static void count(struct generation *g, size_t n)
{
    struct grammar_share *share = &g->grammar->share;
    g->server->reply_bytes += n;
    g->server->reply_bytes -= share->n_counted;
    share->n_counted = n;
}

void constraint_count(struct generation *g)
{
    if (!g->grammar)
        return;
    g->grammar->share.n_users += !g->shares_grammar;
    g->shares_grammar = true;
    count(g, grammar_bytes(g->grammar));
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
    for (uint32_t i = 0; g->grammar && g->choices && i < g->p.n; i++) {
        matcher_close(g->choices[i].e.constraint);
        g->choices[i].e.constraint = NULL;
    }
    stop_counting(g);
    grammar_unref(g->grammar);
    g->grammar = NULL;
}
