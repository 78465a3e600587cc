/* cuda_watch.c - device health. Three signs of trouble: the kernel's failure word, an error that the driver
 * holds (asked for every 200 ms, since a query costs microseconds), and a heartbeat that does not move.
 * Declared in cuda_decoder.h. */
#include "abi/failure.h"
#include "base/clock.h"
#include "cuda_decoder.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#define QUERY_NS 200000000u

int cuda_fail(struct cuda_decoder *d, int rc, const char *fmt, ...)
{
    char words[sizeof d->fault.text];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(words, sizeof words, fmt, args);
    va_end(args);
    error_set(&d->fault, rc, "%s", words); /* keeps the first one */
    atomic_store_explicit(&d->in_flight, 0, memory_order_relaxed);
    if (d->resident && d->control.data)
        cuda_word_set(&cuda_control(d)->stop, DECODER_ABORT);
    return rc;
}

void cuda_watch_begin(struct cuda_decoder *d)
{
    d->beat_ns = d->looked_ns = d->queried_ns = clock_ns();
    d->silent_ns = 0;
    d->beat = cuda_word(&cuda_control(d)->heartbeat);
    atomic_store_explicit(&d->heartbeat_ns, d->beat_ns, memory_order_relaxed);
}

uint64_t cuda_last_beat(struct cuda_decoder *d)
{
    uint32_t beat = cuda_word(&cuda_control(d)->heartbeat);
    if (atomic_exchange_explicit(&d->heartbeat_seen, beat, memory_order_relaxed) != beat)
        atomic_store_explicit(&d->heartbeat_ns, clock_ns(), memory_order_relaxed);
    return atomic_load_explicit(&d->heartbeat_ns, memory_order_relaxed);
}

void cuda_name_op(const struct cuda_decoder *d, uint32_t op, char *out, size_t room)
{
    const struct program *p = d->program;
    if (op < p->n_ops && p->ops[op].node < d->graph->n_nodes)
        (void)snprintf(out, room, "op %u (%s, %s)", op, program_opcode_name(p->ops[op].opcode),
                       d->graph->nodes[p->ops[op].node].name);
    else
        (void)snprintf(out, room, "an unknown op");
}

void cuda_name_wait(const uint32_t record[3], char *out, size_t room)
{
    uint32_t what = record[0];
    if (what & FLOW_STAGE)
        (void)snprintf(out, room, "stage %u of the weight ring was not passed on", what - FLOW_STAGE);
    else if (what & FLOW_HEAD)
        (void)snprintf(out, room, "a split's part of head %u is missing", what - FLOW_HEAD);
    else if (what & FLOW_VALUES)
        (void)snprintf(out, room, "values of the op before are missing");
    else if (what & FLOW_GATE)
        (void)snprintf(out, room, "a gate to the producer was not opened");
    else
        (void)snprintf(out, room, "word %u is %u, expected %u", what, record[1], record[2]);
}

static const char *range_name(uint32_t what)
{
    static const char *const names[] = {
        [DECODER_RANGE_COUNT] = "a count",     [DECODER_RANGE_PAGE_OP] = "a page operation",
        [DECODER_RANGE_EDIT] = "a table edit", [DECODER_RANGE_SLOT] = "a slot's settings",
        [DECODER_RANGE_TOKEN] = "a token",     [DECODER_RANGE_LOGIT] = "a logit row",
        [DECODER_RANGE_ROW] = "a row",
    };
    return what < sizeof names / sizeof *names && names[what] ? names[what] : "a value";
}

/* Turns the kernel's failure record into a fault. */
static int kernel_failed(struct cuda_decoder *d, uint32_t failure)
{
    const uint32_t *e = cuda_control(d)->error;
    char op[96], wait[64];
    cuda_name_op(d, e[3], op, sizeof op);
    cuda_name_wait(e, wait, sizeof wait);
    switch (failure) {
    case DECODER_DEADLINE:
        cuda_fail(d, -EIO, "%s: a wait in %s, block %u, took longer than %llu ms: %s", d->device.name, op,
                  e[4], (unsigned long long)(d->args.deadline_ns / 1000000), wait);
        cuda_account(d);
        return -EIO;
    case DECODER_RANGE:
        return cuda_fail(d, -EIO, "%s: the decoder refused a step: %s is %u, the limit is %u", d->device.name,
                         range_name(e[0]), e[1], e[2]);
    case DECODER_ABORTED:
        return cuda_fail(d, -EIO, "%s: the decoder was aborted", d->device.name);
    default:
        return cuda_fail(d, -EIO, "%s: the decoder failed, code %u (%u, %u, %u, %u, %u)", d->device.name,
                         failure, e[0], e[1], e[2], e[3], e[4]);
    }
}

int cuda_query(const struct cuda_decoder *d)
{
    d->driver.cuCtxSetCurrent(d->device.context); /* the engine thread is not the thread that loaded */
    return d->driver.cuStreamQuery(d->stream);
}

/* Queries the driver for an error; an error of the device stays until the process ends. */
static int ask_driver(struct cuda_decoder *d)
{
    struct error why = {0};
    int result = cuda_query(d);
    if (result == CUDA_NOT_READY)
        return 0;
    if (result != CUDA_SUCCESS) {
        cuda_check(&d->driver, &why, "cuStreamQuery", result);
        return cuda_fail(d, -EIO, "%s: %s", d->device.name, why.text);
    }
    /* All work has ended, so its writes are visible here. */
    struct decoder_control *c = cuda_control(d);
    if (cuda_word(&c->failed))
        return kernel_failed(d, cuda_word(&c->failed));
    if (d->resident ? !cuda_resident_has_left(d) : cuda_word(&c->completed) != d->submitted)
        return cuda_fail(d, -EIO, "%s: the kernel ended before its work was done", d->device.name);
    return 0;
}

int cuda_watch_idle(struct cuda_decoder *d, uint64_t now_ns)
{
    if (now_ns - d->queried_ns < QUERY_NS)
        return 0;
    d->queried_ns = now_ns;
    return ask_driver(d);
}

static int relaunch(struct cuda_decoder *d)
{
    struct error why = {0};
    uint32_t failed = cuda_word(&cuda_control(d)->failed);
    if (failed)
        return kernel_failed(d, failed);
    int rc = cuda_resident_wake(d, d->args.quantum_ms == 0, &why);
    return rc < 0 ? cuda_fail(d, rc, "%s: %s", d->device.name, why.text) : 0;
}

/* Checks the heartbeat. Between two looks at most a quarter of the limit counts: after the process or its
 * machine was stopped, the device still gets time to respond. */
static int check_beat(struct cuda_decoder *d, uint64_t now_ns)
{
    uint32_t beat = cuda_word(&cuda_control(d)->heartbeat);
    uint64_t gap = now_ns > d->looked_ns ? now_ns - d->looked_ns : 0, most = d->stall_ns / 4;
    d->silent_ns = beat != d->beat ? 0 : d->silent_ns + (gap < most ? gap : most);
    d->looked_ns = now_ns;
    if (beat != d->beat)
        d->beat_ns = now_ns;
    d->beat = beat;
    if (d->silent_ns < d->stall_ns)
        return 0;
    cuda_fail(d, -EIO, "%s is not responding: no heartbeat for %llu ms", d->device.name,
              (unsigned long long)((now_ns - d->beat_ns) / 1000000));
    cuda_account(d);
    return -EIO;
}

int cuda_watch(struct cuda_decoder *d, uint64_t now_ns)
{
    struct decoder_control *c = cuda_control(d);
    uint32_t failed = cuda_word(&c->failed);
    if (failed)
        return kernel_failed(d, failed);
    int rc = cuda_watch_idle(d, now_ns);
    if (rc == 0 && d->resident && cuda_resident_has_left(d) && cuda_word(&c->completed) != d->submitted)
        rc = relaunch(d);
    return rc < 0 ? rc : check_beat(d, now_ns);
}
