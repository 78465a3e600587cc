/* cuda_account.c - where every block stood when a wait of the persistent kernel did not end: its line of
 * `places`, and the counters that some blocks have not signalled. Declared in cuda_decoder.h. */
#include "base/clock.h"
#include "cuda_decoder.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define LEAVE_NS 500000000u /* time for the blocks to end; a block that hangs never does */
#define COPY_NS  500000000u
#define LOOK_NS  500000u

static bool wait_for_copy(const struct cuda_decoder *d)
{
    struct timespec t = {.tv_nsec = LOOK_NS};
    int result;
    for (uint64_t begin = clock_ns(); (result = d->driver.cuStreamQuery(d->copies)) == CUDA_NOT_READY;
         nanosleep(&t, NULL))
        if (clock_ns() - begin > COPY_NS)
            return false;
    return result == CUDA_SUCCESS;
}

/* Copies the words on a stream of its own: the kernel may run on for ever. */
static bool copy_words(struct cuda_decoder *d)
{
    d->driver.cuCtxSetCurrent(d->device.context);
    return d->driver.cuMemcpyDtoHAsync(d->standing.data, d->cleared.address, d->cleared.size, d->copies) ==
               CUDA_SUCCESS &&
           wait_for_copy(d);
}

static const uint32_t *word_at(const struct cuda_decoder *d, uint64_t address)
{
    return (const uint32_t *)(const void *)((const char *)d->standing.data + (address - d->cleared.address));
}

static const uint32_t *place_of(const struct cuda_decoder *d, uint32_t block)
{
    return word_at(d, d->args.places) + (size_t)block * DECODER_LINE;
}

static bool same_place(const struct cuda_decoder *d, uint32_t a, uint32_t b)
{
    const uint32_t *x = place_of(d, a), *y = place_of(d, b);
    return x[0] == y[0] && x[1] == y[1];
}

/* "0-16, 18": the blocks from `first` on that stand where it does. */
static void put_blocks(const struct cuda_decoder *d, uint32_t first, FILE *f)
{
    for (uint32_t b = first; b < d->n_blocks; b++) {
        uint32_t end = b;
        if (!same_place(d, first, b))
            continue;
        while (end + 1 < d->n_blocks && same_place(d, first, end + 1))
            end++;
        (void)fprintf(f, b == first ? "%u" : ", %u", b);
        if (end > b)
            (void)fprintf(f, "-%u", end);
        b = end;
    }
}

static void put_place(const struct cuda_decoder *d, uint32_t block, FILE *f)
{
    const uint32_t *place = place_of(d, block);
    char op[96] = "not begun";
    if (place[0] == DECODER_PLACE_STEP)
        (void)snprintf(op, sizeof op, "between two steps");
    else if (place[0] != DECODER_PLACE_NONE)
        cuda_name_op(d, place[0] - 1, op, sizeof op);
    (void)fprintf(f, "%s: block ", op);
    put_blocks(d, block, f);
    (void)fputs(place[1] ? "\n" : ", still there\n", f);
}

/* Counters are cumulative: what is left over is the arrivals of a use that is not complete. */
static void put_counters(const struct cuda_decoder *d, FILE *f)
{
    const uint32_t *counters = word_at(d, d->args.counters);
    for (uint32_t i = 0; i < d->program->n_ops * DECODER_PHASES; i++) {
        uint32_t value = counters[(size_t)i * DECODER_LINE], over = value % d->n_blocks;
        char op[96];
        if (!over)
            continue;
        cuda_name_op(d, i / DECODER_PHASES, op, sizeof op);
        if (i % DECODER_PHASES)
            (void)fprintf(f, "%s, phase %u", op, i % DECODER_PHASES);
        else
            (void)fprintf(f, "%s, its end", op);
        (void)fprintf(f, ": %u of %u blocks have signalled (counter %u)\n", over, d->n_blocks, value);
    }
}

static char *write_account(const struct cuda_decoder *d)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (!f)
        return NULL;
    for (uint32_t b = 0; b < d->n_blocks; b++) {
        uint32_t before = 0;
        while (before < b && !same_place(d, before, b))
            before++;
        if (before == b)
            put_place(d, b, f);
    }
    put_counters(d, f);
    if (fclose(f) == 0)
        return text;
    free(text);
    return NULL;
}

void cuda_account(struct cuda_decoder *d)
{
    if (!d->resident || atomic_load_explicit(&d->account, memory_order_relaxed))
        return;
    cuda_wait_idle(d, LEAVE_NS);
    if (copy_words(d))
        atomic_store_explicit(&d->account, write_account(d), memory_order_release);
}
