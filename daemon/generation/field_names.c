#include "field_names.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static bool is_sent(const json_t *sent, const char *path)
{
    char copy[64], *rest = copy, *name;
    snprintf(copy, sizeof copy, "%s", path);
    while (sent && (name = strsep(&rest, ".")))
        sent = json_object_get(sent, name);
    return sent != NULL;
}

/* True if the text begins with the name, and not only with a longer one. */
static bool begins_with(const char *text, const char *name)
{
    size_t n = strlen(name);
    return !strncmp(text, name, n) && !isalnum((unsigned char)text[n]) && text[n] != '_';
}

static const struct field_name *find(const struct field_name *names, const json_t *sent, const char *param)
{
    const struct field_name *first = NULL;
    for (const struct field_name *f = names; f->here; f++) {
        if (!begins_with(param, f->here))
            continue;
        if (is_sent(sent, f->there))
            return f;
        first = first ? first : f;
    }
    return first && !is_sent(sent, first->here) ? first : NULL;
}

static size_t index_length(const struct field_name *f, const char *text)
{
    return f->no_index && *text == '[' ? strcspn(text, "]") + 1 : 0;
}

/* Replaces the name where it begins the text; and elsewhere too if it is no English word. */
static void replace(char *text, size_t size, const struct field_name *f)
{
    char out[sizeof((struct api_error *)0)->message] = "";
    size_t n = 0, n_here = strlen(f->here);
    bool everywhere = strchr(f->here, '_');
    for (const char *s = text; *s && n + 1 < sizeof out;) {
        bool inside = s > text && (isalnum((unsigned char)s[-1]) || s[-1] == '_' || s[-1] == '.');
        if (!inside && (s == text || everywhere) && begins_with(s, f->here)) {
            n += (size_t)snprintf(out + n, sizeof out - n, "%s", f->there);
            s += n_here + index_length(f, s + n_here);
        } else {
            out[n++] = *s++;
            out[n] = 0;
        }
    }
    snprintf(text, size, "%s", out);
}

void field_names_apply(const struct field_name *names, const json_t *sent, struct api_error *e)
{
    const struct field_name *f = names && e->param[0] ? find(names, sent, e->param) : NULL;
    if (!f)
        return;
    replace(e->param, sizeof e->param, f);
    replace(e->message, sizeof e->message, f);
}
