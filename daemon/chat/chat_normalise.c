#include "chat_normalise.h"
#include "base/hash.h"
#include "call_id.h"
#include "chat_template.h"

#include <errno.h>
#include <string.h>

static struct jinja_value *member(const struct jinja_value *v, const char *name)
{
    return v->kind == JINJA_DICT ? jinja_dict_find(v->dict, name, strlen(name)) : NULL;
}

static bool is_role(const struct jinja_value *message, const char *role)
{
    const struct jinja_value *v = member(message, "role");
    return v && v->kind == JINJA_TEXT && jinja_text_is(v->text, role);
}

/* --- messages where a template takes none --- */

/* A text and those of n messages behind it, each behind an empty line; `out` has room, or is NULL to count.
 */
static size_t put_texts(char *out, struct jinja_text first, const struct jinja_value *messages, size_t n)
{
    size_t len = first.len;
    if (out)
        memcpy(out, first.s, first.len);
    for (size_t i = 0; i < n; i++) {
        const struct jinja_value *content = member(&messages[i], "content");
        if (!content || content->kind != JINJA_TEXT || !content->text.len)
            continue;
        size_t gap = len ? 2 : 0;
        if (out) {
            memcpy(out + len, "\n\n", gap);
            memcpy(out + len + gap, content->text.s, content->text.len);
        }
        len += gap + content->text.len;
    }
    return len;
}

/* One copy for all of them: the arena frees none that a longer one replaces. */
static int join_texts(struct arena *a, struct jinja_text *to, const struct jinja_value *messages, size_t n)
{
    size_t len = put_texts(NULL, *to, messages, n);
    char *s = arena_alloc(a, len);
    if (!s)
        return -ENOMEM;
    put_texts(s, *to, messages, n);
    *to = jinja_string(s, len, true).text;
    return 0;
}

static int join_parts(struct arena *a, struct jinja_list *to, const struct jinja_value *messages, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct jinja_value *content = member(&messages[i], "content");
        for (size_t k = 0; content && content->kind == JINJA_LIST && k < content->list->n; k++)
            if (jinja_list_add(a, to, content->list->items[k]) < 0)
                return -ENOMEM;
    }
    return 0;
}

/* Adds the contents of n messages, texts or parts, to the content of the one before. */
static int join(struct arena *a, const struct jinja_value *message, const struct jinja_value *messages,
                size_t n)
{
    struct jinja_value *to = member(message, "content");
    if (n && to && to->kind == JINJA_TEXT)
        return join_texts(a, &to->text, messages, n);
    return n && to && to->kind == JINJA_LIST ? join_parts(a, to->list, messages, n) : 0;
}

/* Tells if a template refuses the message behind the last one. */
static bool is_refused(const struct chat_template *c, const struct jinja_value *last,
                       const struct jinja_value *message)
{
    if (!c || !last)
        return false;
    if (is_role(message, "system"))
        return !chat_template_takes_late_system(c);
    return is_role(message, "user") && !is_role(last, "assistant") && !is_role(last, "system") &&
           chat_template_folds_user(c);
}

/* Counts the messages, of n, that become part of the one before: all that would be refused behind it. */
static size_t run_length(const struct chat_template *c, const struct jinja_value *before,
                         const struct jinja_value *messages, size_t n)
{
    size_t run = 0;
    while (run < n && !is_role(before, "assistant") && is_refused(c, before, &messages[run]))
        run++;
    return run;
}

/* Adds the first of n messages, with those that become part of it, and says in *n how many they were. A
 * message that the template would refuse behind an answer becomes a user's. */
static int add_run(struct arena *a, const struct chat_template *c, struct jinja_list *out,
                   struct jinja_value *messages, size_t *n)
{
    const struct jinja_value *last = out->n ? &out->items[out->n - 1] : NULL;
    if (is_refused(c, last, messages))
        *member(messages, "role") = jinja_word("user");
    *n = 1 + run_length(c, messages, messages + 1, *n - 1);
    int rc = join(a, messages, messages + 1, *n - 1);
    return rc < 0 ? rc : jinja_list_add(a, out, *messages);
}

/* --- calls and their results --- */

static bool is_short_id(struct jinja_text t)
{
    size_t n = 0;
    while (n < t.len && ((t.s[n] >= '0' && t.s[n] <= '9') || (t.s[n] >= 'A' && t.s[n] <= 'Z') ||
                         (t.s[n] >= 'a' && t.s[n] <= 'z')))
        n++;
    return n == t.len && n == CALL_ID;
}

/* The same short id for the same long one. */
static int shorten(struct arena *a, struct jinja_value *id)
{
    if (!id || id->kind != JINJA_TEXT || is_short_id(id->text))
        return 0;
    char *s = arena_alloc(a, CALL_ID);
    if (!s)
        return -ENOMEM;
    call_id_write(s, hash_bytes(0, id->text.s, id->text.len));
    *id = jinja_string(s, CALL_ID, true);
    return 0;
}

static int shorten_ids(struct arena *a, const struct jinja_value *message)
{
    const struct jinja_value *calls = member(message, "tool_calls");
    int rc = shorten(a, member(message, "tool_call_id"));
    for (size_t i = 0; rc == 0 && calls && calls->kind == JINJA_LIST && i < calls->list->n; i++)
        rc = shorten(a, member(&calls->list->items[i], "id"));
    return rc;
}

/* The newest call of each id: by its name a result is named. Open addressing; a chat may have as many calls
 * and results as its body has values. */
struct known_call {
    struct jinja_text id;
    const struct jinja_value *name; /* the name of its function; NULL: it has none */
    size_t message;                 /* its number, from 1; 0: an empty slot */
};
struct known_calls {
    struct arena *arena;
    struct known_call *slots;
    size_t n, mask; /* slots NULL: none yet */
    uint64_t seed;
};

static struct known_call *slot_of(const struct known_calls *k, struct jinja_text id)
{
    size_t i = hash_bytes(k->seed, id.s, id.len) & k->mask;
    while (k->slots[i].message && !jinja_text_equal(k->slots[i].id, id))
        i = (i + 1) & k->mask;
    return &k->slots[i];
}

static int make_room(struct known_calls *k)
{
    struct known_calls grown = {.arena = k->arena, .n = k->n, .mask = k->slots ? 2 * k->mask + 1 : 15};
    if (k->slots && k->n <= k->mask / 2)
        return 0;
    grown.seed = k->slots ? k->seed : hash_seed();
    grown.slots = arena_array(k->arena, grown.mask + 1, sizeof *grown.slots);
    if (!grown.slots)
        return -ENOMEM;
    for (size_t i = 0; k->slots && i <= k->mask; i++)
        if (k->slots[i].message)
            *slot_of(&grown, k->slots[i].id) = k->slots[i];
    *k = grown;
    return 0;
}

/* If two calls of a message have one id, the first counts. */
static int note_call(struct known_calls *k, const struct jinja_value *call, size_t number)
{
    const struct jinja_value *id = member(call, "id"), *function = member(call, "function");
    if (!id || id->kind != JINJA_TEXT)
        return 0;
    if (make_room(k) < 0)
        return -ENOMEM;
    struct known_call *slot = slot_of(k, id->text);
    if (slot->message == number)
        return 0;
    k->n += !slot->message;
    *slot = (struct known_call){id->text, function ? member(function, "name") : NULL, number};
    return 0;
}

static int note_calls(struct known_calls *k, const struct jinja_value *message, size_t number)
{
    const struct jinja_value *calls = member(message, "tool_calls");
    int rc = 0;
    for (size_t i = 0; rc == 0 && calls && calls->kind == JINJA_LIST && i < calls->list->n; i++)
        rc = note_call(k, &calls->list->items[i], number);
    return rc;
}

static int name_result(struct known_calls *k, struct jinja_value *message)
{
    const struct jinja_value *id = member(message, "tool_call_id");
    if (!k->slots || !is_role(message, "tool") || !id || id->kind != JINJA_TEXT || member(message, "name"))
        return 0;
    const struct known_call *call = slot_of(k, id->text);
    return call->message && call->name
               ? jinja_dict_add(k->arena, message->dict, jinja_word("name"), *call->name)
               : 0;
}

int chat_normalise(struct arena *a, const struct chat_template *c, struct jinja_list **messages)
{
    struct jinja_list *out = jinja_list_open(a);
    struct known_calls calls = {.arena = a};
    int rc = out ? 0 : -ENOMEM;
    for (size_t i = 0, n; rc == 0 && i < (*messages)->n; i += n) {
        struct jinja_value *message = &(*messages)->items[i];
        n = (*messages)->n - i;
        if (c && chat_template_wants_short_ids(c))
            rc = shorten_ids(a, message);
        if (rc == 0)
            rc = name_result(&calls, message);
        if (rc == 0)
            rc = add_run(a, c, out, message, &n);
        if (rc == 0)
            rc = note_calls(&calls, message, i + 1);
    }
    if (rc == 0)
        *messages = out;
    return rc;
}
