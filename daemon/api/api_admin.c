/* api_admin.c - /admin/model, /admin/suspend, /admin/resume: which model is served. Each answers at once, or
 * when the file was found; what was asked for goes on, and GET /admin/model says how far it is. */
#include "admin.h"
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
    struct http_server *s = r->server;
    struct buf *out = &r->out;
    struct swap_view v;
    s->api->admin->view(s->api->admin_context, &v);
    buf_puts(out, "{\"model\":");
    json_put_str(out, v.serves);
    buf_printf(out, ",\"status\":\"%s\",\"state\":\"%s\",\"next\":", server_state_name(s->generator->state),
               v.state);
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

struct swap_work { /* the request's context */
    char *word;
    struct swap_found found;
};

static void find_model(struct request *r)
{
    const struct api *api = r->server->api;
    struct swap_work *w = r->context;
    api->admin->find(api->admin_context, w->word, &w->found);
}

static void swap_to_found(struct request *r)
{
    const struct api *api = r->server->api;
    const struct swap_work *w = r->context;
    struct error err = {0};
    if (!r->connection || r->gone)
        return;
    answer(r, api->admin->swap(api->admin_context, &w->found, &err), &err);
    request_resume(r);
}

/* The file system may be one that does not answer: neither the loop nor other jobs wait for it. */
static void swap_to(struct request *r, const char *model)
{
    struct swap_work *w = arena_zalloc(&r->arena, sizeof *w);
    if (w)
        w->word = arena_alloc(&r->arena, strlen(model) + 1);
    if (!w || !w->word) {
        refuse(r, -ENOMEM, NULL);
        return;
    }
    strcpy(w->word, model);
    r->context = w;
    request_wait_for(r, POOL_FILES, find_model, swap_to_found);
}

static void swap_model(struct request *r)
{
    struct json_limits limits = {.max_values = 16, .max_depth = 2};
    struct swap_params p = {0};
    struct field_reader reader = {.out = &p, .arena = &r->arena, .err = &r->error};
    const struct field *tables[] = {swap_fields};
    json_t *body = json_read(r->body, r->body_len, &limits, &r->error);
    if (body && fields_read(&reader, body, tables, 1) == 0 && !p.model)
        api_invalid(&r->error, "model", "model is missing");
    if (r->error.status)
        request_fail(r, &r->error);
    else
        swap_to(r, p.model);
    json_decref(body);
}

/* False, with a 404: this server does not manage its own model, so it has none of these routes. */
static bool is_there(struct request *r)
{
    if (r->server->api->admin)
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
    const struct http_server *s = r->server;
    struct error err = {0};
    if (is_there(r))
        answer(r, s->api->admin->suspend(s->api->admin_context, &err), &err);
}

void api_admin_resume(struct request *r)
{
    const struct http_server *s = r->server;
    struct error err = {0};
    if (is_there(r))
        answer(r, s->api->admin->resume(s->api->admin_context, &err), &err);
}
