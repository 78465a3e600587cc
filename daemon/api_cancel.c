/* api_cancel.c - DELETE /requests/{id}: ends a request by the id of its reply or by its X-Request-Id, in
 * whatever phase it is. Those of other keys are as unknown as those that never were. */
#include "generate.h"

#include <string.h>

static struct generation *find(struct request *r, const char *id)
{
    for (struct generation *g = r->server->generations; g; g = g->next) {
        bool named = !strcmp(g->id, id) || !strcmp(g->request->id, id);
        if (named && (r->admin || g->request->owner == r->owner))
            return g;
    }
    return NULL;
}

void api_cancel(struct request *r)
{
    const char *id = route_id(r->route, r->path);
    struct generation *g = find(r, id);
    if (!g) {
        api_fail(&r->error, 404, "not_found", NULL, "no request %.80s is waiting or running", id);
        request_fail(r, &r->error);
        return;
    }
    buf_puts(&r->out, "{\"id\":");
    json_put_str(&r->out, g->id);
    buf_puts(&r->out, ",\"state\":\"cancelled\"}\n");
    generation_cancel(g);
    request_reply(r, 202);
}
