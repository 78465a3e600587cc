/* stream.c - streams, each with a thread that runs its work in order; events; captures. */
#include "calls.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void work_free(struct work *first)
{
    while (first) {
        struct work *next = first->next;
        free(first);
        first = next;
    }
}

struct work *work_copy(const struct work *w)
{
    struct work *copy = malloc(sizeof *copy);
    if (copy) {
        *copy = *w;
        copy->next = NULL;
    }
    return copy;
}

/* Counts what begins (+1) or has ended (-1). */
static void count(const struct work *w, unsigned by)
{
    if (w->kind == WORK_GRID) {
        emulated.n_grids += by;
        emulated.n_cooperative += w->grid.cooperative ? by : 0;
    }
    if (w->kind == WORK_RECORD)
        w->event->n_pending += by;
}

int stream_add(struct stream *s, const struct work *w)
{
    struct work *copy = work_copy(w);
    if (!copy)
        return CUDA_OUT_OF_MEMORY;
    if (s->capture) {
        *s->capture->last = copy;
        s->capture->last = &copy->next;
        return CUDA_SUCCESS;
    }
    count(copy, 1);
    *s->last = copy;
    s->last = &copy->next;
    pthread_cond_broadcast(&emulated.changed);
    return CUDA_SUCCESS;
}

bool stream_idle(const struct stream *s)
{
    return !s->first;
}

bool streams_captured_here(void)
{
    bool any = false;
    for (struct object *o = emulated.objects; o; o = o->next) {
        struct stream *s = (struct stream *)o;
        if (o->kind == OBJECT_STREAM && s->capture && pthread_equal(s->capturer, pthread_self()))
            any = s->capture_failed = true;
    }
    return any;
}

static void do_work(struct stream *s, const struct work *w)
{
    switch (w->kind) {
    case WORK_GRID:
        grid_run(s, w);
        break;
    case WORK_COPY:
        memcpy(w->to, w->from, w->bytes);
        break;
    case WORK_FILL:
        memset(w->to, w->value, w->bytes);
        break;
    case WORK_RECORD:
        break;
    }
}

static void *run_stream(void *context)
{
    struct stream *s = context;
    pthread_setname_np(pthread_self(), "simt-stream");
    pthread_mutex_lock(&emulated.lock);
    for (;;) {
        while (!s->first && !s->ends)
            pthread_cond_wait(&emulated.changed, &emulated.lock);
        struct work *w = s->first;
        if (!w)
            break;
        bool well = !emulated.sticky;
        pthread_mutex_unlock(&emulated.lock);
        if (well)
            do_work(s, w);
        pthread_mutex_lock(&emulated.lock);
        if (w->kind == WORK_RECORD) {
            w->event->ns = now_ns();
            w->event->n_recorded++;
        }
        count(w, -1u);
        s->first = w->next;
        if (!s->first)
            s->last = &s->first;
        free(w);
        pthread_cond_broadcast(&emulated.changed);
    }
    simt_close(s->machine);
    s->machine = NULL;
    pthread_mutex_unlock(&emulated.lock);
    return NULL;
}

/* Its thread takes no signals: they are the program's. */
static int start_thread(struct stream *s)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&s->thread, NULL, run_stream, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

int cuStreamCreate(void **stream, unsigned flags)
{
    (void)flags;
    int result = call_begin_alone("cuStreamCreate");
    if (result)
        return result;
    struct stream *s = object_open(OBJECT_STREAM, sizeof *s);
    if (!s)
        return call_end(CUDA_OUT_OF_MEMORY);
    s->last = &s->first;
    if (start_thread(s) != 0) {
        object_close(&s->object);
        return call_end(CUDA_OUT_OF_MEMORY);
    }
    *stream = s;
    return call_end(CUDA_SUCCESS);
}

void stream_end(struct stream *s)
{
    s->ends = true;
    pthread_cond_broadcast(&emulated.changed);
    pthread_mutex_unlock(&emulated.lock);
    pthread_join(s->thread, NULL);
    pthread_mutex_lock(&emulated.lock);
}

/* The queued work is done first. */
int cuStreamDestroy_v2(void *stream)
{
    int result = call_begin_alone("cuStreamDestroy");
    if (result)
        return result;
    struct stream *s = object_check(stream, OBJECT_STREAM);
    if (!s || s->ends)
        return call_end(RESULT_INVALID_HANDLE);
    stream_end(s);
    object_close(&s->object);
    return call_end(CUDA_SUCCESS);
}

/* A stream that may be waited for; a capture does not survive the attempt. */
static int check_waiting(struct stream *s)
{
    if (!s)
        return RESULT_INVALID_HANDLE;
    if (!s->capture)
        return CUDA_SUCCESS;
    s->capture_failed = true;
    return RESULT_CAPTURE_UNSUPPORTED;
}

int cuStreamSynchronize(void *stream)
{
    int result = call_begin();
    if (result)
        return result;
    struct stream *s = object_check(stream, OBJECT_STREAM);
    result = check_waiting(s);
    while (!result && !stream_idle(s)) {
        pthread_cond_wait(&emulated.changed, &emulated.lock);
        result = emulated.sticky;
    }
    if (!result && !emulated.sticky)
        host_joins(s);
    return call_end(result ? result : emulated.sticky);
}

int cuStreamQuery(void *stream)
{
    int result = call_begin();
    if (result)
        return result;
    struct stream *s = object_check(stream, OBJECT_STREAM);
    result = check_waiting(s);
    if (result)
        return call_end(result);
    result = fault_due(FAULT_QUERY);
    if (result)
        emulated_poison(result);
    else if (!stream_idle(s))
        result = CUDA_NOT_READY;
    else
        host_joins(s);
    return call_end(result);
}

int cuEventCreate(void **event, unsigned flags)
{
    (void)flags;
    int result = call_begin_alone("cuEventCreate");
    if (result)
        return result;
    result = fault_due(FAULT_EVENT);
    *event = result ? NULL : object_open(OBJECT_EVENT, sizeof(struct event));
    return call_end(*event ? CUDA_SUCCESS : CUDA_OUT_OF_MEMORY);
}

int cuEventDestroy_v2(void *event)
{
    int result = call_begin();
    if (result)
        return result;
    struct event *e = object_check(event, OBJECT_EVENT);
    if (!e)
        return call_end(RESULT_INVALID_HANDLE);
    while (e->n_pending && !emulated.sticky)
        pthread_cond_wait(&emulated.changed, &emulated.lock);
    if (emulated.sticky) /* freed with the context */
        return call_end(emulated.sticky);
    object_close(&e->object);
    return call_end(CUDA_SUCCESS);
}

int cuEventRecord(void *event, void *stream)
{
    int result = call_begin();
    if (result)
        return result;
    struct event *e = object_check(event, OBJECT_EVENT);
    struct stream *s = object_check(stream, OBJECT_STREAM);
    if (!e || !s)
        return call_end(RESULT_INVALID_HANDLE);
    result = fault_due(FAULT_RECORD);
    if (result)
        emulated_poison(result);
    return call_end(result ? result : stream_add(s, &(struct work){.kind = WORK_RECORD, .event = e}));
}

int cuEventElapsedTime(float *ms, void *start, void *end)
{
    int result = call_begin();
    if (result)
        return result;
    const struct event *a = object_check(start, OBJECT_EVENT), *b = object_check(end, OBJECT_EVENT);
    if (!a || !b)
        return call_end(RESULT_INVALID_HANDLE);
    if (a->n_pending || b->n_pending)
        return call_end(CUDA_NOT_READY);
    if (!a->n_recorded || !b->n_recorded)
        return call_end(RESULT_INVALID_HANDLE);
    *ms = (float)((double)(int64_t)(b->ns - a->ns) / 1e6);
    return call_end(CUDA_SUCCESS);
}

int cuStreamBeginCapture_v2(void *stream, int mode)
{
    int result = call_begin();
    if (result)
        return result;
    struct stream *s = object_check(stream, OBJECT_STREAM);
    if (!s || mode != CUDA_CAPTURE_THREAD_LOCAL)
        return call_end(s ? RESULT_INVALID_VALUE : RESULT_INVALID_HANDLE);
    if (s->capture)
        return call_end(RESULT_ILLEGAL_STATE);
    struct graph *g = object_open(OBJECT_GRAPH, sizeof *g);
    if (!g)
        return call_end(CUDA_OUT_OF_MEMORY);
    g->last = &g->first;
    s->capture = g;
    s->capturer = pthread_self();
    s->capture_failed = false;
    return call_end(CUDA_SUCCESS);
}

int cuStreamEndCapture(void *stream, void **graph)
{
    int result = call_begin();
    if (result)
        return result;
    struct stream *s = object_check(stream, OBJECT_STREAM);
    *graph = NULL;
    if (!s || !s->capture)
        return call_end(s ? RESULT_ILLEGAL_STATE : RESULT_INVALID_HANDLE);
    if (s->capture_failed)
        object_close(&s->capture->object);
    else
        *graph = s->capture;
    s->capture = NULL;
    return call_end(s->capture_failed ? RESULT_CAPTURE_INVALIDATED : CUDA_SUCCESS);
}

int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags)
{
    int result = call_begin_alone("cuGraphInstantiate");
    if (result)
        return result;
    const struct graph *g = object_check(graph, OBJECT_GRAPH);
    if (!g || flags)
        return call_end(g ? RESULT_INVALID_VALUE : RESULT_INVALID_HANDLE);
    struct graph *e = object_open(OBJECT_EXEC, sizeof *e);
    if (!e)
        return call_end(CUDA_OUT_OF_MEMORY);
    e->last = &e->first;
    for (const struct work *w = g->first; w; w = w->next) {
        *e->last = work_copy(w);
        if (!*e->last) {
            object_close(&e->object);
            return call_end(CUDA_OUT_OF_MEMORY);
        }
        e->last = &(*e->last)->next;
    }
    *exec = e;
    return call_end(CUDA_SUCCESS);
}

int cuGraphLaunch(void *exec, void *stream)
{
    int result = call_begin();
    if (result)
        return result;
    const struct graph *e = object_check(exec, OBJECT_EXEC);
    struct stream *s = object_check(stream, OBJECT_STREAM);
    if (!e || !s)
        return call_end(RESULT_INVALID_HANDLE);
    if (s->capture)
        return call_end(RESULT_CAPTURE_UNSUPPORTED);
    result = fault_due(FAULT_LAUNCH);
    if (result)
        emulated_poison(result);
    for (const struct work *w = e->first; w && !result; w = w->next)
        result = stream_add(s, w);
    return call_end(result);
}

static int close_graph(void *handle, enum object_kind kind)
{
    int result = call_begin();
    if (result)
        return result;
    struct graph *g = object_check(handle, kind);
    if (g)
        object_close(&g->object);
    return call_end(g ? CUDA_SUCCESS : RESULT_INVALID_HANDLE);
}

int cuGraphExecDestroy(void *exec)
{
    return close_graph(exec, OBJECT_EXEC);
}

int cuGraphDestroy(void *graph)
{
    return close_graph(graph, OBJECT_GRAPH);
}
