#include "local_engine.h"
#include "backend/executor.h"
#include "service/models/model_file.h"

#include <errno.h>
#include <string.h>

static void on_news(void *context)
{
    offline_interrupt(context);
}

void offline_interrupt(struct offline *o)
{
    sem_post(&o->news);
}

static int start_engine(struct offline *o, const struct config *cfg, struct error *err)
{
    struct engine_config ec;

    runtime_engine_config(&o->runtime, cfg, &ec);
    ec.wake = on_news;
    ec.context = o;
    return engine_open(&o->engine, o->runtime.executor, &ec, err);
}

int offline_open_with(struct offline *o, const struct config *cfg,
                      int (*prepare)(struct executor *x, struct error *err), struct error *err)
{
    char path[PATH_MAX];

    *o = (struct offline){0};
    int rc = model_file_find(path, cfg->model, err);
    if (rc == 0)
        rc = runtime_open(&o->runtime, cfg, path, NULL, err);
    if (rc < 0)
        return rc;
    sem_init(&o->news, 0, 0);
    if (prepare)
        rc = prepare(o->runtime.executor, err);
    if (rc == 0)
        rc = start_engine(o, cfg, err);
    if (rc < 0)
        offline_close(o);
    return rc;
}

int offline_open(struct offline *o, const struct config *cfg, struct error *err)
{
    return offline_open_with(o, cfg, NULL, err);
}

int offline_pause(struct offline *o, const struct config *cfg,
                  int (*look)(void *context, struct executor *x, struct error *err), void *context,
                  struct error *err)
{
    engine_close(o->engine);
    o->engine = NULL;
    int rc = look(context, o->runtime.executor, err);
    return rc < 0 ? rc : start_engine(o, cfg, err);
}

/* Logs the places where a decoder hung; the command reports the error. */
static void print_account(const struct offline *o)
{
    struct backend_info info = {0};

    if (o->runtime.executor)
        executor_info(o->runtime.executor, &info);
    if (info.account)
        fprintf(stderr, "%s", info.account);
}

void offline_close(struct offline *o)
{
    engine_close(o->engine);
    o->engine = NULL;
    print_account(o);
    runtime_close(&o->runtime);
}

struct engine_request *offline_wait(struct offline *o)
{
    struct engine_request *r = engine_next(o->engine);

    if (r || sem_wait(&o->news) < 0)
        return r;
    return engine_next(o->engine);
}
