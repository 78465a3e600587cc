/* server_model.c - the model that requests run on, as its owner sets it. */
#include "abi/arith.h"
#include "base/hash.h"
#include "engine/engine.h"
#include "chat/chat_template.h"
#include "generation/generation.h"
#include "model/model.h"
#include "service/models/runtime.h"
#include "server_private.h"
#include "toolcall/toolcall.h"

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

/* The file's rule for vectors; of a model that is no embedding model, the last token's, which has seen all.
 */
static enum engine_pooling pooling_of(const struct model *m)
{
    static const enum engine_pooling poolings[MODEL_N_POOLS] = {
        [MODEL_POOL_NONE] = ENGINE_POOL_LAST, [MODEL_POOL_MEAN] = ENGINE_POOL_MEAN,
        [MODEL_POOL_CLS] = ENGINE_POOL_FIRST, [MODEL_POOL_LAST] = ENGINE_POOL_LAST,
        [MODEL_POOL_RANK] = ENGINE_POOL_NONE,
    };
    return m ? poolings[model_config(m)->pooling] : ENGINE_POOL_LAST;
}

static void complete(const struct server *s, struct server_model *m)
{
    if (!m->name)
        m->name = model_config(m->model)->name;
    m->n_ctx = engine_n_ctx(m->engine);
    make_fingerprint(m, s->http.cfg);
    m->pooling = pooling_of(m->model);
    m->format = format_of(s->http.cfg, m);
}

void server_set_model(struct server *s, const struct server_model *m)
{
    struct server_model set;
    if (!m) {
        generator_set_model(&s->generator, NULL);
        return;
    }
    set = *m;
    complete(s, &set);
    generator_set_model(&s->generator, &set);
}

void server_set_source(struct server *s, const struct model_source *source, void *context)
{
    s->generator.source = source;
    s->generator.source_context = context;
}

void server_add_model(struct server *s, struct server_model *m, bool first)
{
    complete(s, m);
    generator_add_model(&s->generator, m, first);
}

void server_remove_model(struct server *s, struct server_model *m)
{
    generator_remove_model(&s->generator, m);
}

void server_look(struct server *s)
{
    generator_look(&s->generator);
}

int server_wanted_model(const struct server *s)
{
    const struct generation *g = TAILQ_FIRST(&s->generator.waiting);
    return g ? g->awaited : -1;
}

int server_wanted_beside(const struct server *s, bool (*may)(void *context, int number), void *context)
{
    const struct generation *g;
    TAILQ_FOREACH(g, &s->generator.waiting, waiting)
        if (may(context, g->awaited))
            return g->awaited;
    return -1;
}

uint64_t server_next_late_ns(const struct server *s)
{
    const struct generation *g;
    uint64_t next = 0;
    TAILQ_FOREACH(g, &s->generator.waiting, waiting)
        if (g->model_late_ns && (!next || g->model_late_ns < next))
            next = g->model_late_ns;
    return next;
}

const char *server_chat_format(const struct server *s, bool *unread)
{
    const struct server_model *m = s->generator.model;
    *unread = m->chat && chat_template_reads(m->chat, "tools") && !toolcall_format_calls(m->format);
    return toolcall_format_name(m->format);
}

bool server_is_leaving(const struct server *s)
{
    return s->generator.leaving;
}

void server_on_left(struct server *s, void (*left)(void *context), void *context)
{
    s->generator.left = left;
    s->generator.left_context = context;
}

void server_refuse_leaving(struct server *s)
{
    generator_refuse_leaving(&s->generator);
}

void server_cancel_leaving(struct server *s)
{
    generator_cancel_leaving(&s->generator);
}

void server_set_admin(struct server *s, const struct server_admin *admin, void *context)
{
    s->api.admin = admin;
    s->api.admin_context = context;
}
