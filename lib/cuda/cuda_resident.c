/* cuda_resident.c - the persistent decoder's launches: one launch lives until the host asks it to end, it has
 * been idle for long, or its time quantum is over. Its data stays in device memory. Declared in
 * cuda_decoder.h. */
#include "base/clock.h"
#include "cuda_decoder.h"

#include <errno.h>
#include <time.h>

#define LOOK_NS 500000u /* between two checks whether it has ended */

static uint32_t launch_number(const struct cuda_decoder *d)
{
    return (uint32_t)atomic_load_explicit(&d->launches, memory_order_relaxed);
}

bool cuda_resident_has_left(const struct cuda_decoder *d)
{
    return d->control.data && cuda_word(&cuda_control(d)->left) == launch_number(d);
}

int cuda_resident_launch(struct cuda_decoder *d, struct error *err)
{
    struct decoder_args *a = &d->args;
    void *parameters[] = {a};
    a->launch = launch_number(d) + 1;
    a->first_step = cuda_word(&cuda_control(d)->completed);
    cuda_word_set(&cuda_control(d)->stop, DECODER_RUN);
    int rc = CUDA_TRY(&d->driver, err, cuCtxSetCurrent, d->device.context);
    if (rc == 0)
        rc = CUDA_TRY(&d->driver, err, cuMemsetD8Async, d->cleared.address, 0, d->cleared.size, d->stream);
    if (rc == 0 && a->words_rows) /* no word is there: kernels/device/words.h */
        rc = CUDA_TRY(&d->driver, err, cuMemsetD8Async, a->buffers.rows, 0xff,
                      (size_t)a->words_rows * a->buffers.row_floats * sizeof(float), d->stream);
    if (rc == 0 && a->trace)
        rc = CUDA_TRY(&d->driver, err, cuMemsetD8Async, a->trace, 0, d->marks.size, d->stream);
    if (rc == 0)
        rc = CUDA_TRY(&d->driver, err, cuLaunchCooperativeKernel, d->resident, d->n_blocks, 1, 1,
                      d->n_threads, 1, 1, a->shared.total, d->stream, parameters);
    if (rc < 0)
        return rc;
    atomic_fetch_add_explicit(&d->launches, 1, memory_order_relaxed);
    return cuda_flush(&d->driver, d->stream, err);
}

int cuda_resident_wake(struct cuda_decoder *d, bool parked, struct error *err)
{
    if (!cuda_resident_has_left(d))
        return 0;
    if (parked)
        atomic_fetch_add_explicit(&d->parks, 1, memory_order_relaxed);
    return cuda_resident_launch(d, err);
}

bool cuda_wait_idle(const struct cuda_decoder *d, uint64_t limit_ns)
{
    struct timespec t = {.tv_nsec = LOOK_NS};
    for (uint64_t begin = clock_ns(); cuda_query(d) == CUDA_NOT_READY; nanosleep(&t, NULL))
        if (clock_ns() - begin > limit_ns)
            return false;
    return true;
}

bool cuda_resident_leave(struct cuda_decoder *d, enum decoder_stop how, uint64_t limit_ns)
{
    cuda_word_set(&cuda_control(d)->stop, how);
    return cuda_wait_idle(d, limit_ns);
}
