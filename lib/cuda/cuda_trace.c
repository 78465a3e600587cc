/* cuda_trace.c - the times of a step that the persistent kernel noted (struct decoder_mark): device memory
 * for them, and their conversion to ns of one clock. Declared in cuda_decoder.h.
 *
 * Every SM counts from an origin of its own; all count at one rate. For a block, ns = offset + rate * ticks:
 * the rate comes from the first and the last op of the step, over all blocks, since the global timer moves in
 * jumps (up to 1 us) and two readings of one block may be a jump wrong. So it is never ahead of the true
 * time: of all ops, the one whose reading lies latest on the line is the closest. */
#include "cuda_decoder.h"

#include <errno.h>
#include <stdlib.h>

#define LEAVE_NS 5000000000u

static int leave(struct cuda_decoder *d, struct error *err)
{
    if (d->fault.code)
        return error_set(err, d->fault.code, "%s", d->fault.text);
    if (!cuda_resident_leave(d, DECODER_DRAIN, LEAVE_NS))
        return cuda_fail(d, -EIO, "the decoder on %s does not end", d->device.name);
    return 0;
}

/* The marks of the blocks; those of the border lie behind them. */
static size_t blocks_size(uint32_t n_blocks, uint32_t n_ops)
{
    return (size_t)n_blocks * n_ops * sizeof(struct decoder_mark);
}

static size_t marks_size(const struct cuda_decoder *d)
{
    return blocks_size(d->n_blocks, d->program->n_ops) + DECODER_RING * sizeof(struct decoder_border_mark);
}

int cuda_trace(struct cuda_decoder *d, bool on, struct error *err)
{
    int rc = leave(d, err);
    if (rc == 0 && on && !d->marks.address)
        rc = cuda_block_take(&d->marks, &d->driver, marks_size(d), "the trace", err);
    if (rc == 0)
        d->args.trace = on ? d->marks.address : 0; /* from the next launch on */
    return rc;
}

/* The line from ticks to ns of a block, since its first op. */
struct timeline {
    uint64_t origin; /* ticks */
    double ns, rate; /* ns at the origin; ns per tick */
};

static bool is_of(const struct decoder_mark *m, uint64_t step)
{
    return m->step == step && m->end;
}

/* Adds the ns and ticks between a block's first and last op of the step. */
static void add_span(const struct decoder_mark *marks, uint32_t n_ops, uint64_t step, double *ns,
                     double *ticks)
{
    const struct decoder_mark *first = NULL, *last = NULL;
    for (uint32_t i = 0; i < n_ops; i++)
        if (is_of(&marks[i], step)) {
            first = first ? first : &marks[i];
            last = &marks[i];
        }
    if (!first || last->begin <= first->begin)
        return;
    *ns += (double)(last->begin_ns - first->begin_ns);
    *ticks += (double)(last->begin - first->begin);
}

static struct timeline line_of(const struct decoder_mark *marks, uint32_t n_ops, uint64_t step, double rate)
{
    struct timeline line = {.rate = rate};
    bool any = false;
    for (uint32_t i = 0; i < n_ops; i++) {
        if (!is_of(&marks[i], step))
            continue;
        line.origin = any ? line.origin : marks[i].begin;
        double late = (double)marks[i].begin_ns - rate * (double)(marks[i].begin - line.origin);
        line.ns = any && line.ns > late ? line.ns : late;
        any = true;
    }
    return line;
}

static uint64_t ns_at(const struct timeline *line, uint64_t ticks)
{
    return (uint64_t)(line->ns + line->rate * (double)(int64_t)(ticks - line->origin));
}

/* A wait that the op skipped has the times of an earlier step, or of none. */
static void convert(struct trace_mark *out, const struct decoder_mark *m, const struct timeline *line)
{
    out->begin_ns = ns_at(line, m->begin);
    out->end_ns = ns_at(line, m->end);
    for (uint32_t i = 0; i < DECODER_PHASES; i++)
        if (m->wait[i][0] >= m->begin && m->wait[i][1] <= m->end && m->wait[i][1] >= m->wait[i][0])
            trace_wait(out, ns_at(line, m->wait[i][0]), ns_at(line, m->wait[i][1]));
}

/* The I/O warp is block 0's. */
static void convert_border(struct trace *out, const struct decoder_border_mark *border,
                           const struct timeline *block_0)
{
    for (uint32_t i = 0; i < DECODER_RING; i++)
        if (border[i].step == out->step && border[i].ended) {
            out->ready_ns = ns_at(block_0, border[i].ready);
            out->ended_ns = ns_at(block_0, border[i].ended);
        }
}

void cuda_trace_convert(struct trace *out, const struct decoder_mark *marks)
{
    const void *border = (const char *)marks + blocks_size(out->n_members, out->n_ops);
    for (size_t i = 0; i < (size_t)out->n_members * out->n_ops; i++)
        out->step = marks[i].step > out->step ? marks[i].step : out->step;
    double ns = 0, ticks = 0;
    for (uint32_t b = 0; b < out->n_members; b++)
        add_span(marks + (size_t)b * out->n_ops, out->n_ops, out->step, &ns, &ticks);
    for (uint32_t b = 0; b < out->n_members; b++) {
        const struct decoder_mark *own = marks + (size_t)b * out->n_ops;
        struct timeline line = line_of(own, out->n_ops, out->step, ticks > 0 ? ns / ticks : 0);
        for (uint32_t i = 0; i < out->n_ops; i++)
            if (is_of(&own[i], out->step))
                convert(trace_mark(out, b, i), &own[i], &line);
        if (b == 0)
            convert_border(out, border, &line);
    }
}

int cuda_traced(struct cuda_decoder *d, struct trace *out, struct error *err)
{
    struct decoder_mark *marks = malloc(marks_size(d));
    int rc = marks ? leave(d, err) : error_set(err, -ENOMEM, "the trace: out of memory");
    if (rc == 0)
        rc = CUDA_TRY(&d->driver, err, cuMemcpyDtoH, marks, d->marks.address, marks_size(d));
    if (rc == 0)
        rc = trace_open(out, d->n_blocks, d->program->n_ops, err);
    if (rc == 0)
        cuda_trace_convert(out, marks);
    free(marks);
    return rc;
}
