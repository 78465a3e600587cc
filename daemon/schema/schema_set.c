/* schema_set.c - the algebra of value sets: and, or, not. */
#include "base/hash.h"
#include "schema_private.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#define OPEN UINT32_MAX

struct set set_none(void)
{
    return (struct set){0};
}

struct set set_failed(void)
{
    return (struct set){.failed = true};
}

struct shape *shape_new(struct compiler *c, enum kind kind)
{
    struct shape *s = schema_take(c, 1, sizeof *s);
    if (!s)
        return NULL;
    *s = (struct shape){.kind = kind, .max = OPEN, .rest.node = SCHEMA_TRUE};
    if (kind == KIND_OBJECT) {
        s->classes = schema_take(c, 1, sizeof *s->classes);
        if (!s->classes)
            return NULL;
        s->classes[0] = (struct key_class){c->all, SCHEMA_TRUE, false};
        s->n_classes = 1;
    }
    return s;
}

struct shape *shape_copy(struct compiler *c, const struct shape *s)
{
    struct shape *t = schema_take(c, 1, sizeof *t);
    struct member *m = schema_take(c, s->n_members, sizeof *m);
    struct key_class *k = schema_take(c, s->n_classes, sizeof *k);
    struct item *p = schema_take(c, s->n_prefix, sizeof *p);
    if (!t || !m || !k || !p)
        return NULL;
    *t = *s;
    t->members = m;
    t->member_room = t->n_members;
    t->by_key = (struct member_index){0};
    t->classes = k;
    t->prefix = p;
    if (s->n_members)
        memcpy(m, s->members, s->n_members * sizeof *m);
    if (s->n_classes)
        memcpy(k, s->classes, s->n_classes * sizeof *k);
    if (s->n_prefix)
        memcpy(p, s->prefix, s->n_prefix * sizeof *p);
    return t;
}

struct set set_one(struct compiler *c, struct shape *s)
{
    struct set a = {.s = schema_take(c, 1, sizeof *a.s), .n = 1};
    if (!a.s || !s)
        return set_failed();
    a.s[0] = s;
    return a;
}

struct set set_of(struct compiler *c, enum kind kind)
{
    return set_one(c, shape_new(c, kind));
}

struct set set_any(struct compiler *c)
{
    struct set a = {.s = schema_take(c, N_KINDS, sizeof *a.s)};
    for (int k = 0; a.s && k < N_KINDS; k++)
        if (!(a.s[a.n++] = shape_new(c, (enum kind)k)))
            return set_failed();
    return a.s ? a : set_failed();
}

/* ---- members ---- */

#define FEW_MEMBERS 16 /* are searched one by one */

static uint32_t *slot_of(const struct compiler *c, struct shape *s, const char *key)
{
    const struct member_index *x = &s->by_key;
    uint64_t h = hash_bytes(c->seed, key, strlen(key));
    while (x->slots[h & x->mask] && strcmp(s->members[x->slots[h & x->mask] - 1].key, key) != 0)
        h++;
    return &x->slots[h & x->mask];
}

/* Brings the members that came since into the index. */
static bool index_members(struct compiler *c, struct shape *s)
{
    struct member_index *x = &s->by_key;
    if (x->n == s->n_members)
        return true;
    if (!x->slots || 2 * s->n_members > x->mask) {
        uint32_t size = 64;
        while (size <= 3 * s->n_members)
            size *= 2;
        *x = (struct member_index){.slots = schema_take(c, size, sizeof *x->slots), .mask = size - 1};
    }
    if (!x->slots || !dfa_work(&c->b.shop, s->n_members - x->n))
        return false;
    for (; x->n < s->n_members; x->n++)
        *slot_of(c, s, s->members[x->n].key) = x->n + 1;
    return true;
}

int64_t shape_find(struct compiler *c, struct shape *s, const char *key)
{
    if (s->n_members > FEW_MEMBERS && index_members(c, s))
        return (int64_t)*slot_of(c, s, key) - 1;
    for (uint32_t i = 0; i < s->n_members; i++)
        if (!strcmp(s->members[i].key, key))
            return i;
    return -1;
}

static const struct key_class *class_of(const struct shape *s, const char *key)
{
    for (uint32_t i = 0; i < s->n_classes; i++)
        if (dfa_accepts(s->classes[i].keys, key, strlen(key)))
            return &s->classes[i];
    return NULL;
}

static bool room_for_member(struct compiler *c, struct shape *s)
{
    if (s->n_members < s->member_room)
        return true;
    uint32_t more = s->member_room ? 2 * s->member_room : 4;
    struct member *m = schema_take(c, more, sizeof *m);
    if (!m)
        return false;
    if (s->n_members)
        memcpy(m, s->members, s->n_members * sizeof *m);
    s->members = m;
    s->member_room = more;
    return true;
}

int64_t shape_member(struct compiler *c, struct shape *s, const char *key)
{
    int64_t known = shape_find(c, s, key);
    if (known >= 0)
        return known;
    if (!room_for_member(c, s) || !dfa_work(&c->b.shop, 1 + strlen(key) * (s->n_classes + 1)))
        return -1;
    const struct key_class *k = class_of(s, key);
    s->members[s->n_members] = (struct member){key, k ? k->node : SCHEMA_FALSE, false, k && k->evaluated};
    return s->n_members++;
}

bool shape_split_class(struct compiler *c, struct shape *s, const struct dfa *keys, uint32_t node)
{
    struct key_class *k = schema_take(c, 2 * (size_t)s->n_classes, sizeof *k);
    uint32_t n = 0;
    for (uint32_t i = 0; k && i < s->n_classes; i++) {
        struct key_class old = s->classes[i];
        const struct dfa *in = dfa_combine(&c->b.shop, DFA_AND, old.keys, keys);
        const struct dfa *out = in ? dfa_combine(&c->b.shop, DFA_MINUS, old.keys, keys) : NULL;
        if (!out)
            return false;
        if (!dfa_is_none(in))
            k[n++] = (struct key_class){in, node_and(c, old.node, node), true};
        if (!dfa_is_none(out))
            k[n++] = (struct key_class){out, old.node, old.evaluated};
    }
    s->classes = k;
    s->n_classes = n;
    return k != NULL;
}

/* ---- and ---- */

/* True for a schema that only lists or bounds values: its set can be computed at once, without a circle. */
static bool is_plain(const json_t *schema)
{
    static const char *const deep[] = {"$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf",
                                       "not",  "if",          "properties",    "items"};
    if (!json_is_object(schema) || (!json_object_get(schema, "const") && !json_object_get(schema, "enum") &&
                                    !json_object_get(schema, "type")))
        return false;
    for (size_t i = 0; i < sizeof deep / sizeof *deep; i++)
        if (json_object_get(schema, deep[i]))
            return false;
    return true;
}

/* The node, or SCHEMA_FALSE when plain schemas contradict each other: members that tell alternatives apart.
 */
static uint32_t discriminate(struct compiler *c, uint32_t node)
{
    const struct node *n = &c->nodes[node];
    for (uint32_t i = 0; i < n->n_atoms; i++)
        if (n->n_atoms < 2 || !is_plain(n->atoms[i].schema))
            return node;
    struct set set = node_set(c, node);
    return node > SCHEMA_FALSE && !set.failed && set.n == 0 ? SCHEMA_FALSE : node;
}

static bool and_members(struct compiler *c, struct shape *to, const struct shape *a, const struct shape *b)
{
    struct shape left = *a, right = *b; /* copies: each adds members of its own */
    left.member_room = left.n_members;
    right.member_room = right.n_members;
    left.by_key = right.by_key = (struct member_index){0};
    for (uint32_t i = 0; i < b->n_members; i++)
        if (shape_member(c, &left, b->members[i].key) < 0)
            return false;
    for (uint32_t i = 0; i < left.n_members; i++)
        if (shape_member(c, &right, left.members[i].key) < 0)
            return false;
    struct member *m = schema_take(c, left.n_members, sizeof *m);
    for (uint32_t i = 0; m && i < left.n_members; i++) {
        const struct member *x = &left.members[i];
        int64_t other = shape_find(c, &right, x->key);
        assert(other >= 0); /* it was added above */
        const struct member *y = &right.members[other];
        m[i] = (struct member){x->key, discriminate(c, node_and(c, x->node, y->node)),
                               x->required || y->required, x->evaluated || y->evaluated};
    }
    to->members = m;
    to->n_members = to->member_room = left.n_members;
    return m != NULL;
}

static bool and_classes(struct compiler *c, struct shape *to, const struct shape *a, const struct shape *b)
{
    struct key_class *k = schema_take(c, (size_t)a->n_classes * b->n_classes, sizeof *k);
    uint32_t n = 0;
    for (uint32_t i = 0; k && i < a->n_classes; i++)
        for (uint32_t j = 0; j < b->n_classes; j++) {
            const struct key_class *x = &a->classes[i], *y = &b->classes[j];
            const struct dfa *keys = x->keys == c->all   ? y->keys
                                     : y->keys == c->all ? x->keys
                                     : x->keys == y->keys
                                         ? x->keys
                                         : dfa_combine(&c->b.shop, DFA_AND, x->keys, y->keys);
            if (!keys)
                return false;
            if (!dfa_is_none(keys))
                k[n++] =
                    (struct key_class){keys, node_and(c, x->node, y->node), x->evaluated || y->evaluated};
        }
    to->classes = k;
    to->n_classes = n;
    return k != NULL;
}

static bool and_exist(struct compiler *c, struct shape *to, const struct shape *a, const struct shape *b)
{
    struct existence *e = schema_take(c, a->n_exist + b->n_exist, sizeof *e);
    if (!e)
        return false;
    for (uint32_t i = 0; i < a->n_exist; i++)
        e[i] = a->exist[i];
    for (uint32_t i = 0; i < b->n_exist; i++)
        e[a->n_exist + i] = b->exist[i];
    to->exist = e;
    to->n_exist = a->n_exist + b->n_exist;
    return true;
}

static struct item item_at(const struct shape *s, uint32_t i)
{
    return i < s->n_prefix ? s->prefix[i] : s->rest;
}

static struct item and_item(struct compiler *c, struct item x, struct item y)
{
    return (struct item){node_and(c, x.node, y.node), x.evaluated || y.evaluated};
}

static bool and_array(struct compiler *c, struct shape *to, const struct shape *a, const struct shape *b)
{
    uint32_t n = a->n_prefix > b->n_prefix ? a->n_prefix : b->n_prefix, m = a->n_contains + b->n_contains;
    struct item *p = schema_take(c, n, sizeof *p);
    struct contains *k = schema_take(c, m, sizeof *k);
    if (!p || !k)
        return false;
    for (uint32_t i = 0; i < n; i++)
        p[i] = and_item(c, item_at(a, i), item_at(b, i));
    for (uint32_t i = 0; i < m; i++)
        k[i] = i < a->n_contains ? a->contains[i] : b->contains[i - a->n_contains];
    to->prefix = p;
    to->n_prefix = n;
    to->contains = k;
    to->n_contains = m;
    to->rest = and_item(c, a->rest, b->rest);
    to->unique = a->unique || b->unique;
    return true;
}

/* True when the shape is plainly empty; recursion that never ends is found when the grammar is finished. */
static bool shape_is_none(const struct compiler *c, struct shape *s)
{
    uint32_t required = 0, possible = 0;
    if (s->min > s->max || (s->text && dfa_is_none(s->text)))
        return true;
    if (s->kind == KIND_ARRAY) {
        for (uint32_t i = 0; i < s->n_prefix; i++)
            if (s->prefix[i].node == SCHEMA_FALSE && s->max > i)
                s->max = i;
        if (s->rest.node == SCHEMA_FALSE && s->max > s->n_prefix)
            s->max = s->n_prefix;
        return s->min > s->max;
    }
    if (s->kind != KIND_OBJECT)
        return false;
    for (uint32_t i = 0; i < s->n_members; i++) {
        bool none = s->members[i].node == SCHEMA_FALSE;
        if (none && s->members[i].required)
            return true;
        required += s->members[i].required;
        possible += !none;
    }
    for (uint32_t i = 0; i < s->n_classes; i++)
        if (s->classes[i].node != SCHEMA_FALSE)
            possible = OPEN;
    return c && (required > s->max || possible < s->min);
}

/* NULL: nothing is in both, or a failure, which the builder knows. */
static struct shape *shape_and(struct compiler *c, const struct shape *a, const struct shape *b)
{
    struct shape *s = shape_new(c, a->kind);
    if (!s)
        return NULL;
    s->min = a->min > b->min ? a->min : b->min;
    s->max = a->max < b->max ? a->max : b->max;
    s->text = a->text ? a->text : b->text;
    if (a->text && b->text && a->text != b->text)
        s->text = dfa_combine(&c->b.shop, DFA_AND, a->text, b->text);
    bool ok = !(a->text && b->text && !s->text);
    if (a->kind == KIND_OBJECT)
        ok = and_members(c, s, a, b) && and_classes(c, s, a, b) && and_exist(c, s, a, b);
    if (a->kind == KIND_ARRAY)
        ok = and_array(c, s, a, b);
    if (!ok && !c->b.failed)
        builder_exhausted(&c->b);
    return ok && !c->b.failed && !shape_is_none(c, s) ? s : NULL;
}

static bool set_add(struct compiler *c, struct set *a, struct shape *s, uint32_t room)
{
    if (a->n >= room || a->n >= SCHEMA_MAX_SHAPES) {
        c->b.shop.work = 0;
        return false;
    }
    a->s[a->n++] = s;
    return true;
}

/* Texts of one kind without bounds of length are one shape. */
static bool merge_text(struct compiler *c, struct set *a, const struct shape *s)
{
    if ((s->kind != KIND_STRING && s->kind != KIND_NUMBER) || s->min > 0 || s->max != OPEN)
        return s->kind <= KIND_TRUE && a->n > 0 && a->s[a->n - 1]->kind == s->kind;
    for (uint32_t i = 0; i < a->n; i++) {
        struct shape *t = a->s[i];
        if (t->kind != s->kind || t->min > 0 || t->max != OPEN)
            continue;
        struct shape *u = shape_new(c, s->kind);
        if (!u)
            return false;
        u->text = !t->text || !s->text ? NULL : dfa_combine(&c->b.shop, DFA_OR, t->text, s->text);
        if (t->text && s->text && !u->text)
            builder_exhausted(&c->b);
        a->s[i] = u;
        return true;
    }
    return false;
}

struct set set_or(struct compiler *c, struct set a, struct set b)
{
    if (a.failed || b.failed)
        return set_failed();
    struct set out = {.s = schema_take(c, a.n + b.n, sizeof *out.s)};
    if (!out.s)
        return set_failed();
    for (uint32_t i = 0; i < a.n + b.n; i++) {
        struct shape *s = i < a.n ? a.s[i] : b.s[i - a.n];
        if (!merge_text(c, &out, s) && !set_add(c, &out, s, a.n + b.n))
            return set_failed();
    }
    return c->b.failed ? set_failed() : out;
}

struct set set_and(struct compiler *c, struct set a, struct set b)
{
    if (a.failed || b.failed)
        return set_failed();
    size_t room = (size_t)a.n * b.n;
    room = room < SCHEMA_MAX_SHAPES ? room : SCHEMA_MAX_SHAPES;
    struct set out = {.s = schema_take(c, room, sizeof *out.s)};
    for (uint32_t i = 0; out.s && i < a.n; i++)
        for (uint32_t j = 0; j < b.n; j++) {
            if (a.s[i]->kind != b.s[j]->kind)
                continue;
            struct shape *s = shape_and(c, a.s[i], b.s[j]);
            if (c->b.failed || (s && !merge_text(c, &out, s) && !set_add(c, &out, s, (uint32_t)room)))
                return set_failed();
        }
    return out.s && !c->b.failed ? out : set_failed();
}

/* ---- not ---- */

static struct set not_length(struct compiler *c, const struct shape *s, struct set out)
{
    if (s->min > 0) {
        struct shape *t = shape_new(c, s->kind);
        if (t)
            t->max = s->min - 1;
        out = set_or(c, out, set_one(c, t));
    }
    if (s->max != OPEN) {
        struct shape *t = shape_new(c, s->kind);
        if (t)
            t->min = s->max + 1;
        out = set_or(c, out, set_one(c, t));
    }
    return out;
}

static struct set not_text(struct compiler *c, const struct shape *s)
{
    struct set out = not_length(c, s, set_none());
    if (!s->text)
        return out;
    struct shape *t = shape_new(c, s->kind);
    if (t)
        t->text = dfa_combine(&c->b.shop, DFA_MINUS, s->kind == KIND_NUMBER ? c->decimals : c->all, s->text);
    if (!t || !t->text)
        return set_failed();
    return dfa_is_none(t->text) ? out : set_or(c, out, set_one(c, t));
}

/* All keys of a class that no member names. */
static const struct dfa *unnamed(struct compiler *c, const struct shape *s, const struct dfa *keys)
{
    for (uint32_t i = 0; i < s->n_members && keys; i++) {
        const char *key = s->members[i].key;
        if (dfa_accepts(keys, key, strlen(key)))
            keys = dfa_combine(&c->b.shop, DFA_MINUS, keys, dfa_utf8(&c->b.shop, key, strlen(key)));
    }
    return keys;
}

static struct set with_existence(struct compiler *c, const struct dfa *keys, uint32_t node)
{
    struct shape *t = shape_new(c, KIND_OBJECT);
    struct existence *e = schema_take(c, 1, sizeof *e);
    if (!t || !e || !keys)
        return set_failed();
    e[0] = (struct existence){keys, node};
    t->exist = e;
    t->n_exist = 1;
    return set_one(c, t);
}

static struct set with_member(struct compiler *c, const char *key, uint32_t node, bool required)
{
    struct shape *t = shape_new(c, KIND_OBJECT);
    int64_t i = t ? shape_member(c, t, key) : -1;
    if (i < 0)
        return set_failed();
    t->members[i].node = node;
    t->members[i].required = required;
    return set_one(c, t);
}

static struct set not_existence(struct compiler *c, const struct existence *e)
{
    struct shape *t = shape_new(c, KIND_OBJECT);
    if (!t || !shape_split_class(c, t, e->keys, node_not(c, e->node)))
        return set_failed();
    for (uint32_t i = 0; i < t->n_classes; i++)
        t->classes[i].evaluated = false;
    return set_one(c, t);
}

static struct set not_object(struct compiler *c, const struct shape *s)
{
    struct set out = not_length(c, s, set_none());
    for (uint32_t i = 0; i < s->n_members; i++) {
        const struct member *m = &s->members[i];
        if (m->required)
            out = set_or(c, out, with_member(c, m->key, SCHEMA_FALSE, false));
        if (m->node != SCHEMA_TRUE)
            out = set_or(c, out, with_member(c, m->key, node_not(c, m->node), true));
    }
    for (uint32_t i = 0; i < s->n_classes; i++) {
        if (s->classes[i].node == SCHEMA_TRUE)
            continue;
        const struct dfa *keys = unnamed(c, s, s->classes[i].keys);
        if (!keys || !dfa_is_none(keys))
            out = set_or(c, out, with_existence(c, keys, node_not(c, s->classes[i].node)));
    }
    for (uint32_t i = 0; i < s->n_exist; i++)
        out = set_or(c, out, not_existence(c, &s->exist[i]));
    return out;
}

static struct set with_contains(struct compiler *c, struct contains k)
{
    struct shape *t = shape_new(c, KIND_ARRAY);
    struct contains *one = schema_take(c, 1, sizeof *one);
    if (!t || !one)
        return set_failed();
    one[0] = k;
    t->contains = one;
    t->n_contains = 1;
    return set_one(c, t);
}

/* An item at i exists and is not of the node. */
static struct set with_item(struct compiler *c, uint32_t i, uint32_t node)
{
    struct shape *t = shape_new(c, KIND_ARRAY);
    struct item *p = schema_take(c, i + 1, sizeof *p);
    if (!t || !p)
        return set_failed();
    for (uint32_t k = 0; k <= i; k++)
        p[k] = (struct item){k == i ? node : SCHEMA_TRUE, false};
    t->prefix = p;
    t->n_prefix = t->min = i + 1;
    return set_one(c, t);
}

static struct set not_array(struct compiler *c, const struct shape *s)
{
    struct set out = not_length(c, s, set_none());
    for (uint32_t i = 0; i < s->n_prefix; i++)
        if (s->prefix[i].node != SCHEMA_TRUE)
            out = set_or(c, out, with_item(c, i, node_not(c, s->prefix[i].node)));
    if (s->rest.node != SCHEMA_TRUE)
        out = set_or(c, out,
                     with_contains(c, (struct contains){node_not(c, s->rest.node), s->n_prefix, 1, OPEN}));
    for (uint32_t i = 0; i < s->n_contains; i++) {
        struct contains k = s->contains[i];
        if (k.min > 0)
            out = set_or(c, out, with_contains(c, (struct contains){k.node, k.from, 0, k.min - 1}));
        if (k.max != OPEN)
            out = set_or(c, out, with_contains(c, (struct contains){k.node, k.from, k.max + 1, OPEN}));
    }
    if (s->unique) {
        schema_refuse(c, -ENOTSUP, NULL, "uniqueItems", "it cannot be negated");
        return set_failed();
    }
    return out;
}

/* The values of its own kind that a shape excludes. */
static struct set not_shape(struct compiler *c, const struct shape *s)
{
    if (s->kind == KIND_OBJECT)
        return not_object(c, s);
    if (s->kind == KIND_ARRAY)
        return not_array(c, s);
    return not_text(c, s);
}

struct set set_not(struct compiler *c, struct set a)
{
    struct set out = set_none();
    if (a.failed)
        return a;
    for (int k = 0; k < N_KINDS; k++) {
        struct set left = set_of(c, (enum kind)k);
        for (uint32_t i = 0; i < a.n; i++)
            if (a.s[i]->kind == (enum kind)k)
                left = set_and(c, left, not_shape(c, a.s[i]));
        out = set_or(c, out, left);
    }
    return out;
}
