#include "chat_normalise.h"
#include "chat_template.h"

#include <errno.h>
#include <string.h>

#define SHORT_ID 9 /* letters and digits: all that Mistral's templates take */

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

static int join_text(struct arena *a, struct jinja_text *to, struct jinja_text from)
{
    size_t gap = to->len && from.len ? 2 : 0, n = to->len + gap + from.len;
    char *s = arena_alloc(a, n + 1);
    if (!s)
        return -ENOMEM;
    memcpy(s, to->s, to->len);
    memcpy(s + to->len, "\n\n", gap);
    memcpy(s + to->len + gap, from.s, from.len);
    *to = jinja_string(s, n, true).text;
    return 0;
}

/* Adds a message's content, text or parts, to another's. */
static int join_content(struct arena *a, struct jinja_value *to, const struct jinja_value *from)
{
    if (to->kind == JINJA_TEXT && from->kind == JINJA_TEXT)
        return join_text(a, &to->text, from->text);
    if (to->kind != JINJA_LIST || from->kind != JINJA_LIST)
        return 0;
    for (size_t i = 0; i < from->list->n; i++)
        if (jinja_list_add(a, to->list, from->list->items[i]) < 0)
            return -ENOMEM;
    return 0;
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

/* What would be refused becomes part of the message before; behind an answer, a user's. */
static int fold(struct arena *a, const struct chat_template *c, struct jinja_list *out,
                struct jinja_value *message)
{
    struct jinja_value *last = out->n ? &out->items[out->n - 1] : NULL;
    if (!is_refused(c, last, message))
        return jinja_list_add(a, out, *message);
    if (is_role(last, "assistant")) {
        *member(message, "role") = jinja_word("user");
        return jinja_list_add(a, out, *message);
    }
    struct jinja_value *to = member(last, "content");
    const struct jinja_value *from = member(message, "content");
    return to && from ? join_content(a, to, from) : 0;
}

/* --- calls and their results --- */

static bool is_short_id(struct jinja_text t)
{
    size_t n = 0;
    while (n < t.len && ((t.s[n] >= '0' && t.s[n] <= '9') || (t.s[n] >= 'A' && t.s[n] <= 'Z') ||
                         (t.s[n] >= 'a' && t.s[n] <= 'z')))
        n++;
    return n == t.len && n == SHORT_ID;
}

/* The same short id for the same long one. */
static int shorten(struct arena *a, struct jinja_value *id)
{
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    uint64_t hash = 14695981039346656037ull;
    if (!id || id->kind != JINJA_TEXT || is_short_id(id->text))
        return 0;
    for (size_t i = 0; i < id->text.len; i++)
        hash = (hash ^ (unsigned char)id->text.s[i]) * 1099511628211ull;
    char *s = arena_alloc(a, SHORT_ID);
    if (!s)
        return -ENOMEM;
    for (int i = 0; i < SHORT_ID; i++, hash /= 62)
        s[i] = digits[hash % 62];
    *id = jinja_string(s, SHORT_ID, true);
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

/* The name of the function that the call with this id, of the messages before, called. */
static const struct jinja_value *called_name(const struct jinja_list *before, struct jinja_text id)
{
    for (size_t m = before->n; m--;) {
        const struct jinja_value *calls = member(&before->items[m], "tool_calls");
        for (size_t i = 0; calls && calls->kind == JINJA_LIST && i < calls->list->n; i++) {
            const struct jinja_value *call = &calls->list->items[i], *other = member(call, "id");
            const struct jinja_value *function = member(call, "function");
            if (other && other->kind == JINJA_TEXT && jinja_text_equal(other->text, id))
                return function ? member(function, "name") : NULL;
        }
    }
    return NULL;
}

static int name_result(struct arena *a, const struct jinja_list *before, struct jinja_value *message)
{
    const struct jinja_value *id = member(message, "tool_call_id");
    if (!is_role(message, "tool") || !id || id->kind != JINJA_TEXT || member(message, "name"))
        return 0;
    const struct jinja_value *name = called_name(before, id->text);
    return name ? jinja_dict_add(a, message->dict, jinja_word("name"), *name) : 0;
}

int chat_normalise(struct arena *a, const struct chat_template *c, struct jinja_list **messages)
{
    struct jinja_list *out = jinja_list_open(a);
    int rc = out ? 0 : -ENOMEM;
    for (size_t i = 0; rc == 0 && i < (*messages)->n; i++) {
        struct jinja_value *message = &(*messages)->items[i];
        if (c && chat_template_wants_short_ids(c))
            rc = shorten_ids(a, message);
        if (rc == 0)
            rc = name_result(a, out, message);
        if (rc == 0)
            rc = fold(a, c, out, message);
    }
    if (rc == 0)
        *messages = out;
    return rc;
}
