#include "model_list.h"
#include "base/api_error.h"
#include "http/http.h"

#include <string.h>

static void end_part(struct request *r, struct model_list *l)
{
    if (l->part->end)
        l->part->end(r, l);
    *l = (struct model_list){.part = l->part + 1};
    if (l->part->put && l->part->begin)
        l->part->begin(r, l->part);
}

/* Half of it may be sent already: then there is no way to tell that memory ran out but to end there. */
static void write_window(struct request *r)
{
    struct model_list *l = r->context;
    struct model_view v;
    size_t from = r->out.len;
    while (l->part->put && !r->out.failed && r->out.len - from < REPLY_WINDOW) {
        if (generator_next_model(r->server->generator, &l->i, &v)) {
            l->part->put(r, l, &v);
            l->n++;
        } else {
            end_part(r, l);
        }
    }
    if (!l->part->put)
        r->more = NULL;
    r->gone |= r->out.failed && r->phase == REQUEST_QUEUED;
}

void model_list_reply(struct request *r, const struct model_list_part *parts)
{
    struct model_list *l = arena_alloc(&r->arena, sizeof *l);
    if (!l || !buf_room(&r->out, 2 * REPLY_WINDOW)) { /* room for most of what is to come */
        r->out.failed = true;
        request_reply(r, 200);
        return;
    }
    *l = (struct model_list){.part = parts};
    r->context = l;
    generator_read_names(r->server->generator);
    if (parts->begin)
        parts->begin(r, parts);
    r->more = write_window;
    write_window(r);
    request_reply(r, 200);
}

static bool is_named(const char *model, const char *name)
{
    size_t n = strlen(model);
    return !strncmp(name, model, n) && (!name[n] || !strcmp(name + n, ":latest"));
}

bool model_list_find(struct request *r, const char *name, struct model_view *out)
{
    const struct generator *g = r->server->generator;
    int i = 0;
    generator_read_names(g); /* a file may have gone */
    if (g->source) {
        int number = g->source->find(g->source_context, name, &r->error);
        return number >= 0 && g->source->view(g->source_context, number, out);
    }
    if (generator_next_model(g, &i, out) && is_named(out->name, name))
        return true;
    api_fail(&r->error, 404, "not_found", "model", "no model %.100s (the loaded one is %.100s)", name,
             out->name ? out->name : "none");
    return false;
}
