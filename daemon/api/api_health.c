/* api_health.c - GET /health, /health/live, /health/ready, /health/proxy. None of them asks the engine. */
#include "api.h"
#include "http/http.h"

static void reply_status(struct request *r, int status)
{
    struct server *s = r->server;
    buf_printf(&r->out, "{\"status\":\"%s\"", server_state_name(s->state));
    if (s->state == SERVER_LOADING)
        buf_printf(&r->out, ",\"progress\":%.4f", atomic_load(&s->progress_ppm) / 1e6);
    buf_puts(&r->out, "}\n");
    if (status == 503)
        r->retry_after_s = s->state == SERVER_LOADING ? 5 : 1;
    request_reply(r, status);
}

void api_health(struct request *r)
{
    reply_status(r, r->server->state == SERVER_READY ? 200 : 503);
}

void api_health_live(struct request *r)
{
    buf_puts(&r->out, "{\"status\":\"live\"}\n");
    request_reply(r, 200);
}

/* A proxy that sees 404 finishes what it has and sends nothing new. */
void api_health_proxy(struct request *r)
{
    enum server_state state = r->server->state;
    reply_status(r, state == SERVER_READY ? 200 : state == SERVER_DRAINING ? 404 : 503);
}
