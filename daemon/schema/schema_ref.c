/* schema_ref.c - the targets of $ref: pointers, anchors and the ids of schemas in the same document. */
#include "base/hash.h"
#include "schema_private.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_URI 512

/* The length of a URI's scheme with its colon, 0 without one. */
static size_t scheme_length(const char *uri)
{
    size_t n = strspn(uri, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-");
    return n > 0 && uri[n] == ':' ? n + 1 : 0;
}

/* Resolves a reference without its fragment against a base, as far as files in folders go. */
static void resolve(const char *base, const char *ref, size_t n, char out[MAX_URI])
{
    const char *path = strstr(base, "://");
    path = path ? strchr(path + 3, '/') : NULL;
    size_t keep = 0;
    if (n == 0)
        keep = strlen(base);
    else if (scheme_length(ref))
        keep = 0;
    else if (ref[0] == '/')
        keep = path ? (size_t)(path - base) : strstr(base, "://") ? strlen(base) : 0;
    else {
        const char *last = strrchr(base, '/');
        keep = last ? (size_t)(last + 1 - base) : 0;
    }
    if (n > 1 && ref[0] == '.' && ref[1] == '/') {
        ref += 2;
        n -= 2;
    }
    snprintf(out, MAX_URI, "%.*s%.*s", (int)keep, base, (int)n, ref);
}

static struct owner *owner_slot(struct compiler *c, const json_t *object)
{
    for (uint64_t h = hash_word(c->seed, (uintptr_t)object);; h++) {
        struct owner *o = &c->owners[h & c->owner_mask];
        if (!o->object || o->object == object)
            return o;
    }
}

static size_t count_objects(const json_t *v)
{
    size_t n = json_is_object(v), i;
    const char *key;
    json_t *w;
    if (json_is_object(v))
        json_object_foreach((json_t *)v, key, w) n += count_objects(w);
    else
        json_array_foreach(v, i, w) n += count_objects(w);
    return n;
}

static uint32_t add_resource(struct compiler *c, json_t *root, const char *uri)
{
    char *copy = arena_copy(&c->b.arena, uri, strlen(uri));
    if (c->n_resources == c->resource_room) {
        uint32_t more = c->resource_room ? 2 * c->resource_room : 4;
        struct resource *r = schema_take(c, more, sizeof *r);
        if (!r)
            return 0;
        if (c->n_resources)
            memcpy(r, c->resources, c->n_resources * sizeof *r);
        c->resources = r;
        c->resource_room = more;
    }
    c->b.shop.no_memory |= !copy;
    if (!copy) {
        builder_exhausted(&c->b);
        return 0;
    }
    c->resources[c->n_resources] = (struct resource){root, copy};
    return c->n_resources++;
}

static uint32_t resource_of(struct compiler *c, json_t *v, uint32_t inside)
{
    json_t *id = json_object_get(v, "$id");
    char uri[MAX_URI];
    id = id ? id : json_object_get(v, "id"); /* draft 4 */
    if (!json_is_string(id) || (c->old_refs && v != c->root && json_object_get(v, "$ref")))
        return inside;
    const char *s = json_string_value(id);
    size_t n = strcspn(s, "#");
    if (n == 0)
        return inside;
    resolve(c->resources[inside].uri, s, n, uri);
    return add_resource(c, v, uri);
}

static void walk(struct compiler *c, json_t *v, uint32_t inside, bool is_schema)
{
    const char *key;
    json_t *w;
    size_t i;
    if (c->b.failed || !dfa_work(&c->b.shop, 1))
        return;
    if (json_is_object(v)) {
        inside = is_schema ? resource_of(c, v, inside) : inside;
        *owner_slot(c, v) = (struct owner){v, inside};
        json_object_foreach(v, key, w) if (!is_schema ||
                                           (strcmp(key, "const") != 0 && strcmp(key, "enum") != 0 &&
                                            strcmp(key, "default") != 0 && strcmp(key, "examples") != 0))
            walk(c, w, inside,
                 !is_schema || (strcmp(key, "properties") != 0 && strcmp(key, "$defs") != 0 &&
                                strcmp(key, "definitions") != 0 && strcmp(key, "patternProperties") != 0));
    } else
        json_array_foreach(v, i, w) walk(c, w, inside, true);
}

int refs_open(struct compiler *c)
{
    size_t n = count_objects(c->root), size = 64;
    while (size < 2 * n + 2)
        size *= 2;
    c->owners = schema_take(c, size, sizeof *c->owners);
    c->owner_mask = (uint32_t)size - 1;
    if (!c->owners)
        return -ENOMEM;
    add_resource(c, c->root, "");
    if (c->n_resources)
        walk(c, c->root, 0, true);
    return c->b.failed ? -E2BIG : 0;
}

/* One token of a pointer: percent and tilde escapes undone. */
static size_t unescape(const char *s, size_t n, char *out)
{
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        char hex[3] = {0};
        if (s[i] == '%' && i + 2 < n + 0 && isxdigit((unsigned char)s[i + 1]) &&
            isxdigit((unsigned char)s[i + 2])) {
            hex[0] = s[i + 1];
            hex[1] = s[i + 2];
            out[len++] = (char)strtol(hex, NULL, 16);
            i += 2;
        } else
            out[len++] = s[i];
    }
    size_t kept = 0;
    for (size_t i = 0; i < len; i++) {
        bool tilde = out[i] == '~' && i + 1 < len && (out[i + 1] == '0' || out[i + 1] == '1');
        out[kept++] = !tilde ? out[i] : out[i + 1] == '0' ? '~' : '/';
        i += tilde;
    }
    out[kept] = 0;
    return kept;
}

static json_t *find_pointer(json_t *v, const char *pointer)
{
    char token[MAX_URI];
    while (v && *pointer == '/') {
        size_t n = strcspn(++pointer, "/");
        if (n >= sizeof token)
            return NULL;
        unescape(pointer, n, token);
        v = json_is_array(v) ? json_array_get(v, (size_t)atol(token)) : json_object_get(v, token);
        pointer += n;
    }
    return *pointer ? NULL : v;
}

/* ---- anchors ---- */

static struct anchor *anchor_slot(const struct compiler *c, uint32_t resource, const char *name)
{
    uint64_t h = hash_bytes(c->seed ^ resource, name, strlen(name));
    for (;; h++) {
        struct anchor *a = &c->anchors[h & c->anchor_mask];
        if (!a->name || (a->resource == resource && !strcmp(a->name, name)))
            return a;
    }
}

static void add_anchor(struct compiler *c, uint32_t resource, const char *name, const json_t *object)
{
    struct anchor *a = name ? anchor_slot(c, resource, name) : NULL;
    if (!a)
        return;
    a->n++;
    if (!a->name)
        *a = (struct anchor){name, resource, (json_t *)object, 1};
}

/* An id that is only a fragment: an anchor up to draft 7. */
static const char *fragment_id(const struct compiler *c, const json_t *object)
{
    const char *id = c->old_refs ? json_string_value(json_object_get(object, "$id")) : NULL;
    id = id ? id : json_string_value(json_object_get(object, "id"));
    return id && id[0] == '#' ? id + 1 : NULL;
}

static void add_anchors(struct compiler *c, const struct owner *o)
{
    const char *dynamic = json_string_value(json_object_get(o->object, "$dynamicAnchor"));
    add_anchor(c, o->resource, json_string_value(json_object_get(o->object, "$anchor")), o->object);
    add_anchor(c, o->resource, dynamic, o->object);
    add_anchor(c, ANY_RESOURCE, dynamic, o->object);
    add_anchor(c, o->resource, fragment_id(c, o->object), o->object);
}

static bool open_anchors(struct compiler *c)
{
    if (c->anchors)
        return true;
    size_t size =
        4 * ((size_t)c->owner_mask + 1); /* of the owners' slots at most half hold one, with 4 names */
    c->anchors = schema_take(c, size, sizeof *c->anchors);
    c->anchor_mask = (uint32_t)size - 1;
    if (!c->anchors || !dfa_work(&c->b.shop, 16 * size / 4))
        return false;
    for (uint32_t i = 0; i <= c->owner_mask; i++)
        if (c->owners[i].object)
            add_anchors(c, &c->owners[i]);
    return true;
}

/* The object of a resource with this anchor. */
static json_t *find_anchor(struct compiler *c, uint32_t resource, const char *name)
{
    return open_anchors(c) ? anchor_slot(c, resource, name)->object : NULL;
}

json_t *refs_find(struct compiler *c, json_t *from, const char *ref)
{
    const struct owner *o = owner_slot(c, from);
    uint32_t base = o->object ? o->resource : 0, found = UINT32_MAX;
    char uri[MAX_URI];
    size_t n = strcspn(ref, "#");
    resolve(c->resources[base].uri, ref, n, uri);
    if (n == 0)
        found = base;
    for (uint32_t i = 0; found == UINT32_MAX && i < c->n_resources && dfa_work(&c->b.shop, 1); i++)
        if (!strcmp(c->resources[i].uri, uri))
            found = i;
    if (found == UINT32_MAX)
        return NULL;
    const char *fragment = ref[n] == '#' ? ref + n + 1 : "";
    if (*fragment == 0 || *fragment == '/')
        return find_pointer(c->resources[found].root, fragment);
    return find_anchor(c, found, fragment);
}

bool refs_is_static(struct compiler *c, const json_t *target, const char *ref)
{
    const char *name = json_string_value(json_object_get(target, "$dynamicAnchor"));
    size_t at = strcspn(ref, "#");
    if (json_is_true(json_object_get(target, "$recursiveAnchor")) && !(ref[at] && ref[at + 1]))
        return c->n_resources == 1;
    if (!name || !ref[at] || strcmp(ref + at + 1, name) != 0)
        return true;
    return open_anchors(c) && anchor_slot(c, ANY_RESOURCE, name)->n == 1;
}
