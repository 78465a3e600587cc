/* schema_node.c - nodes: conjunctions of schemas, each known once. Node 0 allows everything, node 1 nothing.
 */
#include "base/hash.h"
#include "schema_private.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

static uint32_t hash_atoms(const struct compiler *c, const struct atom *a, uint32_t n)
{
    uint64_t h = c->seed;
    for (uint32_t i = 0; i < n; i++)
        h = hash_word(hash_word(h, (uintptr_t)a[i].schema), a[i].negated);
    return (uint32_t)h;
}

static bool same_atoms(const struct node *n, const struct atom *a, uint32_t n_atoms)
{
    bool same = n->n_atoms == n_atoms;
    for (uint32_t i = 0; same && i < n_atoms; i++)
        same = n->atoms[i].schema == a[i].schema && n->atoms[i].negated == a[i].negated;
    return same;
}

static bool grow_slots(struct compiler *c)
{
    uint32_t size = c->node_mask ? 2 * (c->node_mask + 1) : 256;
    uint32_t *slots = schema_take(c, size, sizeof *slots);
    if (!slots)
        return false;
    for (uint32_t k = 0; k < c->n_nodes; k++) {
        uint32_t h = hash_atoms(c, c->nodes[k].atoms, c->nodes[k].n_atoms);
        while (slots[h & (size - 1)])
            h++;
        slots[h & (size - 1)] = k + 1;
    }
    c->node_slots = slots;
    c->node_mask = size - 1;
    return true;
}

static bool room_for_node(struct compiler *c)
{
    if (c->n_nodes < c->node_room)
        return true;
    uint32_t more = c->node_room ? 2 * c->node_room : 64;
    struct node *n = schema_take(c, more, sizeof *n);
    if (!n)
        return false;
    if (c->n_nodes)
        memcpy(n, c->nodes, c->n_nodes * sizeof *n);
    c->nodes = n;
    c->node_room = more;
    return true;
}

static int by_schema(const void *x, const void *y)
{
    const struct atom *a = x, *b = y;
    if (a->schema != b->schema)
        return (uintptr_t)a->schema < (uintptr_t)b->schema ? -1 : 1;
    return a->negated - b->negated;
}

uint32_t node_of(struct compiler *c, const struct atom *atoms, uint32_t n)
{
    struct atom *a = schema_take(c, n, sizeof *a);
    if (!a || (2 * (c->n_nodes + 1) > c->node_mask && !grow_slots(c)))
        return SCHEMA_FALSE;
    uint32_t kept = 0;
    if (n) {
        memcpy(a, atoms, n * sizeof *a);
        qsort(a, n, sizeof *a, by_schema);
    }
    for (uint32_t i = 0; i < n; i++)
        if (kept == 0 || by_schema(&a[i], &a[kept - 1]) != 0)
            a[kept++] = a[i];
    uint32_t h = hash_atoms(c, a, kept);
    for (; c->node_slots[h & c->node_mask]; h++)
        if (same_atoms(&c->nodes[c->node_slots[h & c->node_mask] - 1], a, kept))
            return c->node_slots[h & c->node_mask] - 1;
    if (c->n_nodes >= SCHEMA_MAX_NODES || !room_for_node(c)) {
        c->b.shop.work = 0;
        schema_exhausted(c, n ? a[0].schema : NULL, "");
        return SCHEMA_FALSE;
    }
    c->nodes[c->n_nodes] = (struct node){.atoms = a, .n_atoms = kept, .start = NONE, .negation = NONE};
    c->node_slots[h & c->node_mask] = c->n_nodes + 1;
    return c->n_nodes++;
}

/* A schema of one value: true, false and {} need no node of their own. */
uint32_t node_of_schema(struct compiler *c, json_t *schema)
{
    if (json_is_true(schema) || (json_is_object(schema) && json_object_size(schema) == 0))
        return SCHEMA_TRUE;
    if (json_is_false(schema))
        return SCHEMA_FALSE;
    return node_of(c, &(struct atom){schema, false}, 1);
}

uint32_t node_and(struct compiler *c, uint32_t a, uint32_t b)
{
    if (a == b || b == SCHEMA_TRUE || a == SCHEMA_FALSE)
        return a;
    if (a == SCHEMA_TRUE || b == SCHEMA_FALSE)
        return b;
    assert(a < c->n_nodes && b < c->n_nodes);
    uint32_t n = c->nodes[a].n_atoms, m = c->nodes[b].n_atoms;
    struct atom *both = schema_take(c, n + m, sizeof *both);
    if (!both)
        return SCHEMA_FALSE;
    memcpy(both, c->nodes[a].atoms, n * sizeof *both);
    memcpy(both + n, c->nodes[b].atoms, m * sizeof *both);
    return node_of(c, both, n + m);
}

/* A schema that is what a node of several atoms allows. */
static json_t *write_schema(struct compiler *c, const struct node *n)
{
    json_t *all = json_array(), *schema = json_pack("{s:O}", "allOf", all);
    bool ok = schema != NULL;
    for (uint32_t i = 0; ok && i < n->n_atoms; i++) {
        json_t *one = n->atoms[i].negated ? json_pack("{s:O}", "not", n->atoms[i].schema)
                                          : json_incref(n->atoms[i].schema);
        ok = json_array_append_new(all, one) == 0;
    }
    json_decref(all);
    ok = ok && json_array_append(c->made, schema) == 0;
    json_decref(schema); /* it is among those made */
    return ok ? schema : NULL;
}

uint32_t node_not(struct compiler *c, uint32_t a)
{
    if (a <= SCHEMA_FALSE)
        return a == SCHEMA_TRUE ? SCHEMA_FALSE : SCHEMA_TRUE;
    struct node *n = &c->nodes[a];
    if (n->negation != NONE)
        return n->negation;
    struct atom not = {n->n_atoms == 1 ? n->atoms[0].schema : write_schema(c, n), true};
    if (n->n_atoms == 1)
        not .negated = !n->atoms[0].negated;
    if (!not .schema) {
        c->b.shop.no_memory = true;
        schema_exhausted(c, NULL, "");
        return SCHEMA_FALSE;
    }
    uint32_t b = node_of(c, &not, 1);
    c->nodes[a].negation = b;
    return b;
}

struct set node_set(struct compiler *c, uint32_t node)
{
    if (node == SCHEMA_FALSE)
        return set_none();
    if (c->nodes[node].known)
        return c->nodes[node].set;
    struct set all = set_any(c);
    for (uint32_t i = 0; i < c->nodes[node].n_atoms; i++) {
        struct atom a = c->nodes[node].atoms[i];
        struct set one = schema_set(c, a.schema, a.negated);
        all = i == 0 ? one : set_and(c, all, one);
    }
    c->nodes[node].set = all;
    c->nodes[node].known = true;
    return all;
}
