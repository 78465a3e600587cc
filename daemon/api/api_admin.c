/* api_admin.c - /admin/model, /admin/suspend, /admin/resume: which model is served. Each answers at once;
 * what was asked for goes on, and GET /admin/model says how far it is. */
#include "api.h"
#include "json/json_fields.h"
#include "generation/generation.h"

#include <errno.h>
#include <string.h>

struct swap_params {
    const char *model;
};

static int read_model(struct field_reader *r, const struct field *f, const json_t *value)
{
    struct swap_params *p = r->out;
    if (!json_is_string(value) || !json_string_length(value))
        return api_invalid(r->err, f->name, "model must be a path below model_dir (got %s)",
                           field_got_word(value));
    p->model = json_string_value(value);
    return 0;
}

static const struct field swap_fields[] = {
    {.name = "model", .kind = FIELD_CUSTOM, .read = read_model},
    {0},
};

static void put_last(struct buf *out, const struct swap_view *v)
{
    if (!v->last_model) {
        buf_puts(out, "null");
        return;
    }
    buf_printf(out, "{\"model\":");
    json_put_str(out, v->last_model);
    buf_printf(out, ",\"ok\":%s,\"error\":", v->last_error ? "false" : "true");
    json_put_str(out, v->last_error);
    buf_puts(out, ",\"ago_s\":");
    json_put_number(out, (double)(clock_ns() - v->last_ns) / 1e9, 3);
    buf_puts(out, "}");
}

static void put_view(struct request *r)
{
    struct server *s = r->server;
    struct buf *out = &r->out;
    struct swap_view v;
    s->admin->view(s->admin_context, &v);
    buf_puts(out, "{\"model\":");
    json_put_str(out, v.serves);
    buf_printf(out, ",\"status\":\"%s\",\"state\":\"%s\",\"next\":", server_state_name(s->state), v.state);
    json_put_str(out, v.model);
    buf_puts(out, ",\"progress\":");
    json_put_number(out, v.progress, 4);
    buf_puts(out, ",\"last\":");
    put_last(out, &v);
    buf_puts(out, "}\n");
}

static void refuse(struct request *r, int rc, const struct error *err)
{
    struct api_error *e = &r->error;
    switch (rc) {
    case -ENOENT:
        api_fail(e, 404, "not_found", "model", "%s", err->text);
        break;
    case -EACCES:
        api_fail(e, 403, "forbidden", "model", "%s", err->text);
        break;
    case -EBUSY:
        api_fail(e, 409, "conflict", NULL, "%s", err->text);
        break;
    case -ESHUTDOWN:
        e->retry_after_s = 1;
        e->close = true;
        api_fail(e, 503, "draining", NULL, "%s", err->text);
        break;
    case -ENOMEM:
        api_out_of_memory(e);
        break;
    default:
        api_fail(e, 500, "internal", NULL, "%s", err->text);
    }
    request_fail(r, e);
}

/* rc: 0 begun, 1 it is so already, or why not. */
static void answer(struct request *r, int rc, const struct error *err)
{
    if (rc < 0) {
        refuse(r, rc, err);
        return;
    }
    put_view(r);
    request_reply(r, rc ? 200 : 202);
}

static void swap_model(struct request *r)
{
    const struct server *s = r->server;
    struct json_limits limits = {.max_values = 16, .max_depth = 2};
    struct swap_params p = {0};
    struct field_reader reader = {.out = &p, .arena = &r->arena, .err = &r->error};
    const struct field *tables[] = {swap_fields};
    struct error err = {0};
    json_t *body = json_read(r->body, r->body_len, &limits, &r->error);
    if (body && fields_read(&reader, body, tables, 1) == 0 && !p.model)
        api_invalid(&r->error, "model", "model is missing");
    if (r->error.status)
        request_fail(r, &r->error);
    else
        answer(r, s->admin->swap(s->admin_context, p.model, &err), &err);
    json_decref(body);
}

/* A server whose model is another's matter knows none of these. */
static bool is_there(struct request *r)
{
    if (r->server->admin)
        return true;
    api_fail(&r->error, 404, "not_found", NULL, "this server cannot swap models");
    request_fail(r, &r->error);
    return false;
}

void api_admin_model(struct request *r)
{
    if (!is_there(r))
        return;
    if (!strcmp(r->method, "POST")) {
        swap_model(r);
        return;
    }
    put_view(r);
    request_reply(r, 200);
}

void api_admin_suspend(struct request *r)
{
    const struct server *s = r->server;
    struct error err = {0};
    if (is_there(r))
        answer(r, s->admin->suspend(s->admin_context, &err), &err);
}

void api_admin_resume(struct request *r)
{
    const struct server *s = r->server;
    struct error err = {0};
    if (is_there(r))
        answer(r, s->admin->resume(s->admin_context, &err), &err);
}
