/* server_model.c - the model that requests run on, and the one before it that some still end on. */
#include "abi/arith.h"
#include "base/hash.h"
#include "generation/generation.h"
#include "http/http.h"
#include "runtime.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* Equal model file, arithmetic and KV type: equal text for equal parameters and seed. */
static void make_fingerprint(struct server_model *m, const struct config *cfg)
{
    uint64_t hash = m->hash;
    const uint64_t parts[] = {ARITH_VERSION, (uint64_t)cfg->arithmetic,
                              (uint64_t)runtime_kv_type(cfg, m->model)};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        hash = hash_word(hash, parts[i]);
    snprintf(m->fingerprint, sizeof m->fingerprint, "fp_%016llx", (unsigned long long)hash);
}

/* The configuration's, else the template's. */
static const struct toolcall_format *format_of(const struct config *cfg, const struct server_model *m)
{
    const char *name = cfg->chat_format;
    return name && strcmp(name, "auto") ? toolcall_format_find(name) : chat_template_format(m->chat);
}

/* What goes on counting when an engine is gone. */
static void add_counts(struct engine_stats *sum, const struct engine_stats *e)
{
    sum->prompt_tokens += e->prompt_tokens;
    sum->cached_tokens += e->cached_tokens;
    sum->generated_tokens += e->generated_tokens;
    sum->drafted += e->drafted;
    sum->accepted += e->accepted;
    sum->draft_steps += e->draft_steps;
    sum->steps_saved += e->steps_saved;
    sum->draft_requests += e->draft_requests;
    sum->turned_off += e->turned_off;
}

static void forget_leaving(struct server *s)
{
    struct engine_stats e;
    assert(s->leaving && s->leaving->n_users == 0); /* its engine is closed next */
    engine_stats(s->leaving->engine, &e);
    add_counts(&s->past, &e);
    s->leaving = NULL;
}

void server_set_model(struct server *s, const struct server_model *m)
{
    assert(!s->leaving);
    s->leaving = s->model;
    s->model = NULL;
    if (m) {
        s->model = &s->models[s->leaving == s->models];
        *s->model = *m;
        s->model->n_ctx = engine_n_ctx(m->engine);
        s->model->n_users = s->model->n_expensive = 0;
        make_fingerprint(s->model, s->cfg);
        s->model->format = format_of(s->cfg, m);
    }
    if (s->leaving && !s->leaving->n_users)
        forget_leaving(s);
}

const char *server_chat_format(const struct server *s, bool *unread)
{
    const struct server_model *m = s->model;
    *unread = m->chat && chat_template_reads(m->chat, "tools") && !toolcall_format_calls(m->format);
    return toolcall_format_name(m->format);
}

bool server_is_leaving(const struct server *s)
{
    return s->leaving;
}

void server_on_left(struct server *s, void (*left)(void *context), void *context)
{
    s->left = left;
    s->left_context = context;
}

void server_set_admin(struct server *s, const struct server_admin *admin, void *context)
{
    s->admin = admin;
    s->admin_context = context;
}

struct server_model *server_take_model(struct server *s)
{
    assert(s->model); /* server_admits() has said so */
    s->model->n_users++;
    return s->model;
}

void server_give_model(struct server *s, struct server_model *m)
{
    assert(m->n_users > 0 && (m == s->model || m == s->leaving));
    if (!--m->n_users && m == s->leaving)
        server_wake(s); /* not here: its engine may be the one whose news are being taken */
}

void server_take_news(struct server *s)
{
    struct engine_request *e;
    while (s->leaving && (e = engine_next(s->leaving->engine)))
        generation_news(e->user);
    while (s->model && (e = engine_next(s->model->engine)))
        generation_news(e->user);
    if (!s->leaving || s->leaving->n_users)
        return;
    forget_leaving(s);
    if (s->left)
        s->left(s->left_context);
}

void server_engine_stats(const struct server *s, struct engine_stats *out)
{
    struct engine_stats before;
    *out = (struct engine_stats){0};
    if (s->model)
        engine_stats(s->model->engine, out);
    add_counts(out, &s->past);
    if (!s->leaving)
        return;
    engine_stats(s->leaving->engine, &before);
    add_counts(out, &before);
    out->running += before.running;
    out->waiting += before.waiting;
    out->prompt_tokens_per_s += before.prompt_tokens_per_s;
    out->tokens_per_s += before.tokens_per_s;
}

void server_refuse_leaving(struct server *s)
{
    assert(s->leaving); /* else it would take those that have no model yet */
    struct generation *next;
    for (struct generation *g = s->generations; g; g = next) {
        next = g->next;
        if (g->model == s->leaving)
            generation_refuse(g);
    }
}

void server_cancel_leaving(struct server *s)
{
    assert(s->leaving);
    struct generation *next;
    for (struct generation *g = s->generations; g; g = next) {
        next = g->next;
        if (g->model == s->leaving && g->state == GENERATION_REPLYING && g->request->connection)
            connection_give_up(g->request->connection);
        else if (g->model == s->leaving)
            generation_cancel(g);
    }
}
