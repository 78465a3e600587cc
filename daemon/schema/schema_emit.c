/* schema_emit.c - from nodes to rules of the grammar: scalars and objects; schema_array.c has arrays. */
#include "base/hash.h"
#include "schema_private.h"

#include <errno.h>
#include <string.h>

#define OPEN     UINT32_MAX
#define MAX_TAIL 6 /* members without an order that may come in any: a state for each subset */

uint32_t emit_node(struct compiler *c, uint32_t node)
{
    if (c->b.failed)
        return 0;
    if (c->nodes[node].start != OPEN)
        return c->nodes[node].start;
    uint32_t start = builder_state(&c->b);
    c->nodes[node].start = start;
    if (c->n_queue == c->queue_room) {
        uint32_t more = c->queue_room ? 2 * c->queue_room : 64, *q = schema_take(c, more, sizeof *q);
        if (!q)
            return 0;
        if (c->n_queue)
            memcpy(q, c->queue, c->n_queue * sizeof *q);
        c->queue = q;
        c->queue_room = more;
    }
    c->queue[c->n_queue++] = node;
    return start;
}

/* ---- scalars ---- */

#define MIN_SHARED 8 /* states; below them a frame costs more than a second mask */

static bool same_text(const struct dfa *x, const struct dfa *y)
{
    return x->n_states == y->n_states && !memcmp(x->first, y->first, (x->n_states + 1) * sizeof *x->first) &&
           !memcmp(x->accept, y->accept, x->n_states * sizeof *x->accept) &&
           !memcmp(x->edges, y->edges, x->first[x->n_states] * sizeof *x->edges);
}

static uint64_t hash_of_text(const struct compiler *c, const struct dfa *text)
{
    uint64_t h = hash_bytes(c->seed, text->accept, text->n_states * sizeof *text->accept);
    h = hash_bytes(h, text->first, (text->n_states + 1) * sizeof *text->first);
    return hash_bytes(h, text->edges, text->first[text->n_states] * sizeof *text->edges);
}

static void put_string(struct builder *b, const struct dfa *text, uint32_t from, uint32_t to)
{
    uint32_t open = builder_state(b), close = builder_state(b);
    builder_bytes(b, from, '"', '"', open, false);
    builder_dfa(b, text, SPELL_JSON, open, close, true);
    builder_bytes(b, close, '"', '"', to, false);
}

/* The rule of a language's strings: members that allow the same share its states, and so their masks. */
static uint32_t rule_of_text(struct compiler *c, const struct dfa *text)
{
    struct builder *b = &c->b;
    uint64_t hash = hash_of_text(c, text);
    if (!c->text_slots) {
        if (!(c->text_slots = schema_take(c, TEXT_SLOTS, sizeof *c->text_slots)))
            return 0;
        memset(c->text_slots, 0, TEXT_SLOTS * sizeof *c->text_slots);
    }
    uint32_t *slot = &c->text_slots[hash % TEXT_SLOTS];
    for (uint32_t i = *slot; i && dfa_work(&b->shop, 1); i = c->texts[i - 1].next)
        if (c->texts[i - 1].hash == hash && same_text(c->texts[i - 1].text, text))
            return c->texts[i - 1].rule;
    if (c->n_texts == c->text_room) {
        uint32_t more = c->text_room ? 2 * c->text_room : 64;
        struct text_rule *grown = schema_take(c, more, sizeof *grown);
        if (!grown)
            return 0;
        if (c->n_texts)
            memcpy(grown, c->texts, c->n_texts * sizeof *grown);
        c->texts = grown;
        c->text_room = more;
    }
    uint32_t rule = builder_state(b), end = builder_state(b);
    builder_final(b, end);
    put_string(b, text, rule, end);
    c->texts[c->n_texts++] = (struct text_rule){hash, text, rule, *slot};
    *slot = c->n_texts;
    return rule;
}

static void emit_string(struct compiler *c, const struct shape *s, uint32_t from, uint32_t to, json_t *where)
{
    struct builder *b = &c->b;
    if (!s->text) {
        if (s->min == 0 && s->max == OPEN && c->strings == 0)
            c->strings = builder_string(b, 0, GRAMMAR_UNBOUNDED);
        bool open = s->min == 0 && s->max == OPEN;
        builder_call(b, from, open ? c->strings : builder_string(b, s->min, s->max), to, false);
        return;
    }
    const struct dfa *text = dfa_length(&b->shop, s->text, s->min, s->max);
    if (!text) {
        schema_refuse(c, -ENOTSUP, where, s->max != OPEN ? "maxLength" : "minLength",
                      "together with a pattern it needs too many states");
        return;
    }
    if (text->n_states < MIN_SHARED)
        put_string(b, text, from, to);
    else
        builder_call(b, from, rule_of_text(c, text), to, false);
}

/* The texts of a set of numbers that may be written. A model that has begun to write zeros must come to an
 * end. For JSON Schema 1.0 is an integer, but the integer types of many clients refuse it: where only
 * integers are valid, they have no fraction. */
static const struct dfa *written_number(struct compiler *c, const struct dfa *set)
{
    struct dfa_workshop *shop = &c->b.shop;
    if (!set)
        return c->written;
    const struct dfa *others = dfa_combine(shop, DFA_MINUS, set, c->integers);
    if (!others)
        return NULL;
    return dfa_combine(shop, DFA_AND, set, dfa_is_none(others) ? c->digits : c->written);
}

/* Numbers and integers without bounds are a rule each that all of them call. */
static void emit_number(struct compiler *c, const struct dfa *set, uint32_t from, uint32_t to)
{
    struct builder *b = &c->b;
    uint32_t *rule = !set ? &c->any_number : set == c->integers ? &c->any_integer : NULL;
    const struct dfa *text = rule && *rule ? NULL : written_number(c, set);
    if (rule && *rule) {
        builder_call(b, from, *rule, to, false);
    } else if (!text) {
        builder_exhausted(b);
    } else if (!rule) {
        builder_dfa(b, text, SPELL_RAW, from, to, false);
    } else {
        uint32_t end = builder_state(b);
        *rule = builder_state(b);
        builder_final(b, end);
        builder_dfa(b, text, SPELL_RAW, *rule, end, false);
        builder_call(b, from, *rule, to, false);
    }
}

static void emit_text(struct compiler *c, uint32_t from, const char *text, uint32_t to)
{
    builder_empty(&c->b, builder_text(&c->b, from, text, strlen(text)), to);
}

/* ---- objects ---- */

struct object {
    const struct shape *s;
    const uint32_t *chain; /* members in their order */
    uint32_t n_chain;
    uint32_t tail[MAX_TAIL]; /* members in any order; from n_members on: existences */
    uint32_t n_tail;
    uint32_t required_tail;  /* bits */
    const struct dfa **keys; /* [n_classes]: without the named ones */
    bool open;               /* a class has values */
    uint32_t close;
    uint32_t *choose, *behind; /* [n_chain + 1]: before and after a member */
    uint32_t tail_choose[1 << MAX_TAIL], tail_behind[1 << MAX_TAIL];
};

static uint32_t required_from(const struct object *o, uint32_t i)
{
    uint32_t n = (uint32_t)__builtin_popcount(o->required_tail);
    for (; i < o->n_chain; i++)
        n += o->s->members[o->chain[i]].required;
    return n;
}

static uint32_t possible_from(const struct object *o, uint32_t i)
{
    uint32_t n = o->n_tail;
    for (; i < o->n_chain; i++)
        n += o->s->members[o->chain[i]].node != SCHEMA_FALSE;
    return o->open ? OPEN : n;
}

/* Bounds for the count of members when one was begun, `needed` are required and `possible` may still come. */
static void bound_members(struct compiler *c, const struct object *o, uint32_t state, uint32_t needed,
                          uint32_t possible)
{
    uint32_t max = o->s->max == OPEN ? OPEN : o->s->max > needed ? o->s->max - needed : 0;
    uint32_t min = possible >= o->s->min ? 0 : o->s->min - possible;
    builder_bounds(&c->b, state, min, max);
}

/* Reads : and a value, and goes to `behind`. */
static void emit_value(struct compiler *c, uint32_t from, uint32_t node, uint32_t behind)
{
    uint32_t colon = builder_state(&c->b), value = builder_state(&c->b);
    builder_bytes(&c->b, from, ':', ':', colon, false);
    builder_bytes(&c->b, colon, ' ', ' ', value, false);
    builder_empty(&c->b, colon, value);
    builder_call(&c->b, value, emit_node(c, node), behind, false);
}

/* Reads a name and its closing quote behind the opening one. */
static uint32_t emit_name(struct compiler *c, uint32_t from, const char *key)
{
    struct builder *b = &c->b;
    uint32_t done = builder_state(b);
    bool plain = true;
    for (const char *k = key; *k; k++)
        plain &= *k >= 0x20 && *k < 0x7f && *k != '"' && *k != '\\' && *k != '/';
    uint32_t end = builder_state(b);
    if (plain)
        emit_text(c, from, key, end);
    else
        builder_dfa(b, dfa_utf8(&b->shop, key, strlen(key)), SPELL_JSON, from, end, false);
    builder_bytes(b, end, '"', '"', done, false);
    return done;
}

static void emit_class(struct compiler *c, const struct dfa *keys, uint32_t node, uint32_t open,
                       uint32_t behind)
{
    struct builder *b = &c->b;
    uint32_t close = builder_state(b), done = builder_state(b);
    if (node == SCHEMA_FALSE)
        return;
    builder_dfa(b, keys, SPELL_JSON, open, close, true);
    builder_bytes(b, close, '"', '"', done, false);
    emit_value(c, done, node, behind);
}

/* A state behind the quote that opens a name; entering it counts a member. */
static uint32_t open_name(struct compiler *c, const struct object *o, uint32_t from, uint32_t needed,
                          uint32_t possible)
{
    uint32_t open = builder_state(&c->b);
    builder_bytes(&c->b, from, '"', '"', open, true);
    bound_members(c, o, open, needed, possible);
    return open;
}

static void emit_chain(struct compiler *c, const struct object *o)
{
    for (uint32_t i = 0; i < o->n_chain; i++) {
        const struct member *m = &o->s->members[o->chain[i]];
        if (m->node != SCHEMA_FALSE) {
            uint32_t open = open_name(c, o, o->choose[i], required_from(o, i + 1), possible_from(o, i + 1));
            emit_value(c, emit_name(c, open, m->key), m->node, o->behind[i + 1]);
        }
        if (!m->required)
            builder_empty(&c->b, o->choose[i], o->choose[i + 1]);
    }
    builder_empty(&c->b, o->choose[o->n_chain], o->tail_choose[0]);
}

static void emit_existence(struct compiler *c, const struct object *o, const struct existence *e,
                           uint32_t open, uint32_t behind)
{
    for (uint32_t k = 0; k < o->s->n_classes; k++) {
        const struct dfa *keys = dfa_combine(&c->b.shop, DFA_AND, o->keys[k], e->keys);
        if (!keys)
            builder_exhausted(&c->b);
        else if (!dfa_is_none(keys))
            emit_class(c, keys, node_and(c, o->s->classes[k].node, e->node), open, behind);
    }
}

static void emit_tail(struct compiler *c, const struct object *o)
{
    uint32_t n = o->s->n_members;
    for (uint32_t set = 0; set < 1u << o->n_tail && !c->b.failed; set++) {
        uint32_t missing = (uint32_t)__builtin_popcount(o->required_tail & ~set);
        uint32_t left = o->n_tail - (uint32_t)__builtin_popcount(set);
        for (uint32_t i = 0; i < o->n_tail; i++) {
            uint32_t bit = 1u << i, need = missing - ((o->required_tail & ~set & bit) != 0);
            if (set & bit)
                continue;
            uint32_t open = open_name(c, o, o->tail_choose[set], need, o->open ? OPEN : left - 1);
            if (o->tail[i] < n) {
                const struct member *m = &o->s->members[o->tail[i]];
                emit_value(c, emit_name(c, open, m->key), m->node, o->tail_behind[set | bit]);
            } else
                emit_existence(c, o, &o->s->exist[o->tail[i] - n], open, o->tail_behind[set | bit]);
        }
        if (!o->open)
            continue;
        uint32_t open = open_name(c, o, o->tail_choose[set], missing, OPEN);
        for (uint32_t k = 0; k < o->s->n_classes; k++)
            if (!dfa_is_none(o->keys[k]))
                emit_class(c, o->keys[k], o->s->classes[k].node, open, o->tail_behind[set]);
    }
}

/* Behind a member: a comma and what may come then, or the end. */
static void emit_behind(struct compiler *c, const struct object *o, uint32_t behind, uint32_t choose,
                        bool may_close)
{
    struct builder *b = &c->b;
    uint32_t comma = builder_state(b);
    builder_bytes(b, behind, ',', ',', comma, false);
    if (o->s->max != OPEN)
        builder_bounds(b, comma, 0, o->s->max ? o->s->max - 1 : 0);
    builder_call(b, comma, c->space, choose, false);
    if (may_close)
        builder_empty(b, behind, o->close);
}

static bool open_object(struct compiler *c, struct object *o)
{
    struct builder *b = &c->b;
    const struct shape *s = o->s;
    o->choose = schema_take(c, o->n_chain + 1, sizeof *o->choose);
    o->behind = schema_take(c, o->n_chain + 1, sizeof *o->behind);
    o->keys = schema_take(c, s->n_classes, sizeof *o->keys);
    if (!o->choose || !o->behind || !o->keys)
        return false;
    struct nfa names;
    nfa_open(&names, &b->shop);
    for (uint32_t i = 0; i < s->n_members; i++)
        nfa_text(&names, s->members[i].key, strlen(s->members[i].key));
    const struct dfa *named = s->n_members ? nfa_dfa(&names) : NULL;
    for (uint32_t k = 0; k < s->n_classes; k++) {
        bool none = s->classes[k].node == SCHEMA_FALSE;
        o->keys[k] = none || !s->n_members ? s->classes[k].keys
                                           : dfa_combine(&b->shop, DFA_MINUS, s->classes[k].keys, named);
        if (!o->keys[k])
            return builder_exhausted(b) == 0;
        o->open |= !none && !dfa_is_none(o->keys[k]);
    }
    for (uint32_t i = 0; i <= o->n_chain; i++) {
        o->choose[i] = builder_state(b);
        o->behind[i] = builder_state(b);
    }
    for (uint32_t i = 0; i < 1u << o->n_tail; i++) {
        o->tail_choose[i] = builder_state(b);
        o->tail_behind[i] = builder_state(b);
    }
    return !b->failed;
}

static void emit_members(struct compiler *c, struct object *o, uint32_t from, uint32_t to)
{
    struct builder *b = &c->b;
    uint32_t brace = builder_state(b), before = builder_state(b), all = o->required_tail;
    o->close = builder_state(b);
    if (!open_object(c, o))
        return;
    builder_bytes(b, from, '{', '{', brace, false);
    builder_call(b, brace, c->space, o->choose[0], false);
    if (required_from(o, 0) == 0 && o->s->min == 0)
        builder_bytes(b, brace, '}', '}', to, false);
    builder_bounds(b, o->close, o->s->min, o->s->max);
    builder_call(b, o->close, c->space, before, false);
    builder_bytes(b, before, '}', '}', to, false);
    emit_chain(c, o);
    emit_tail(c, o);
    for (uint32_t i = 1; i <= o->n_chain; i++)
        emit_behind(c, o, o->behind[i], o->choose[i], required_from(o, i) == 0);
    for (uint32_t set = 0; set < 1u << o->n_tail; set++)
        emit_behind(c, o, o->tail_behind[set], o->tail_choose[set], (all & ~set) == 0);
}

/* ---- the order of members ---- */

struct order {
    struct shape keys; /* its members: the keys in their order */
    const json_t *seen[64];
    uint32_t n_seen;
};

/* Own properties first, then those of the schemas in place. */
static void collect(struct compiler *c, struct order *o, json_t *schema)
{
    static const char *const lists[] = {"allOf", "anyOf", "oneOf"};
    static const char *const ones[] = {"if", "then", "else", "not"};
    static const char *const maps[] = {"dependentSchemas", "dependencies"};
    const char *key;
    json_t *v;
    size_t i;
    for (uint32_t k = 0; k < o->n_seen; k++)
        if (o->seen[k] == schema)
            return;
    if (!json_is_object(schema) || o->n_seen == 64 || c->b.failed)
        return;
    json_t *list = json_object_get(schema, "enum");
    if (!dfa_work(&c->b.shop, 1 + json_array_size(list)))
        return;
    o->seen[o->n_seen++] = schema;
    json_object_foreach(json_object_get(schema, "properties"), key, v) shape_member(c, &o->keys, key);
    json_object_foreach(json_object_get(schema, "const"), key, v) shape_member(c, &o->keys, key);
    json_array_foreach(list, i, v)
    {
        json_t *w;
        json_object_foreach(v, key, w) shape_member(c, &o->keys, key);
    }
    for (size_t k = 0; k < 3; k++)
        json_array_foreach(json_object_get(schema, lists[k]), i, v) collect(c, o, v);
    json_t *ref = json_object_get(schema, "$ref");
    if (json_is_string(ref))
        collect(c, o, refs_find(c, schema, json_string_value(ref)));
    for (size_t k = 0; k < 4; k++)
        collect(c, o, json_object_get(schema, ones[k]));
    for (size_t k = 0; k < 2; k++)
        json_object_foreach(json_object_get(schema, maps[k]), key, v) collect(c, o, v);
}

static void emit_object(struct compiler *c, const struct shape *shape, struct order *order, uint32_t from,
                        uint32_t to)
{
    struct object o = {0};
    struct shape *s = shape_copy(c, shape);
    uint32_t *chain =
        s ? schema_take(c, order->keys.n_members + s->n_members + s->n_exist, sizeof *chain) : NULL;
    if (!chain)
        return;
    for (uint32_t i = 0; i < order->keys.n_members; i++) {
        int64_t m = shape_member(c, s, order->keys.members[i].key);
        if (m < 0)
            return;
        chain[o.n_chain++] = (uint32_t)m;
    }
    uint32_t loose = s->n_exist;
    for (uint32_t i = 0; i < s->n_members; i++)
        loose += shape_find(c, &order->keys, s->members[i].key) < 0 && s->members[i].node != SCHEMA_FALSE;
    for (uint32_t i = 0; i < s->n_members; i++) {
        if (shape_find(c, &order->keys, s->members[i].key) >= 0 || s->members[i].node == SCHEMA_FALSE)
            continue;
        if (loose > MAX_TAIL) /* too many subsets: these come in the schema's order */
            chain[o.n_chain++] = i;
        else {
            o.required_tail |= (uint32_t)s->members[i].required << o.n_tail;
            o.tail[o.n_tail++] = i;
        }
    }
    if (o.n_tail + s->n_exist > MAX_TAIL) {
        schema_refuse(c, -E2BIG, NULL, "not", "too many negated members at once");
        return;
    }
    for (uint32_t i = 0; i < s->n_exist; i++) {
        o.required_tail |= 1u << o.n_tail;
        o.tail[o.n_tail++] = s->n_members + i;
    }
    o.s = s;
    o.chain = chain;
    emit_members(c, &o, from, to);
}

/* An existence may be met by a named member: one alternative for each, and one for unknown names. */
static void emit_existing(struct compiler *c, const struct shape *s, struct order *order, uint32_t from,
                          uint32_t to, uint32_t at)
{
    if (at == s->n_exist || c->b.failed) {
        emit_object(c, s, order, from, to);
        return;
    }
    struct existence e = s->exist[at];
    for (uint32_t i = 0; i < s->n_members; i++) {
        struct shape *t = NULL;
        if (dfa_accepts(e.keys, s->members[i].key, strlen(s->members[i].key)))
            t = shape_copy(c, s);
        if (!t)
            continue;
        t->members[i].node = node_and(c, t->members[i].node, e.node);
        t->members[i].required = true;
        t->exist = schema_take(c, s->n_exist, sizeof e);
        if (!t->exist)
            return;
        for (uint32_t k = 0, n = 0; k < s->n_exist; k++)
            if (k != at)
                t->exist[n++] = s->exist[k];
        t->n_exist--;
        if (t->members[i].node != SCHEMA_FALSE)
            emit_existing(c, t, order, from, to, at);
    }
    emit_existing(c, s, order, from, to, at + 1);
}

/* ---- nodes ---- */

static json_t *where_of(const struct compiler *c, uint32_t node)
{
    return c->nodes[node].n_atoms ? c->nodes[node].atoms[0].schema : NULL;
}

static void emit_shape(struct compiler *c, const struct shape *s, struct order *order, uint32_t from,
                       uint32_t to, json_t *where)
{
    switch (s->kind) {
    case KIND_NULL:
        emit_text(c, from, "null", to);
        break;
    case KIND_FALSE:
        emit_text(c, from, "false", to);
        break;
    case KIND_TRUE:
        emit_text(c, from, "true", to);
        break;
    case KIND_NUMBER:
        emit_number(c, s->text, from, to);
        break;
    case KIND_STRING:
        emit_string(c, s, from, to, where);
        break;
    case KIND_ARRAY:
        emit_array(c, s, from, to, where);
        break;
    default: {
        struct shape *t = shape_copy(c, s);
        for (uint32_t i = 0; t && i < order->keys.n_members; i++)
            shape_member(c, t, order->keys.members[i].key);
        if (t)
            emit_existing(c, t, order, from, to, 0);
    }
    }
}

static void emit_body(struct compiler *c, uint32_t node)
{
    uint32_t start = c->nodes[node].start, end = builder_state(&c->b);
    struct set set = node == SCHEMA_TRUE ? set_any(c) : node_set(c, node);
    struct order order = {0};
    c->where = where_of(c, node);
    builder_final(&c->b, end);
    if (set.failed && !c->b.failed)
        schema_exhausted(c, where_of(c, node), "");
    for (uint32_t i = 0; i < c->nodes[node].n_atoms; i++)
        collect(c, &order, c->nodes[node].atoms[i].schema);
    for (uint32_t i = 0; i < set.n && !c->b.failed; i++)
        emit_shape(c, set.s[i], &order, start, end, where_of(c, node));
}

int emit_all(struct compiler *c)
{
    for (uint32_t i = 0; i < c->n_queue && !c->b.failed; i++)
        emit_body(c, c->queue[i]);
    return c->b.failed ? c->b.err.code : 0;
}
