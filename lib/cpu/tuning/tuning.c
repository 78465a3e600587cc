#include "tuning.h"
#include "gguf/quant.h"
#include "cpu/matmul/matmul_pack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(MATMUL_N_KINDS <= TUNING_KINDS, "a choice for every kind");

static const uint32_t class_last[TUNING_CLASSES] = {1, 4, 8, 32, UINT32_MAX};

uint32_t tuning_class(uint32_t n_columns)
{
    uint32_t class = 0;
    while (n_columns > class_last[class])
        class ++;
    return class;
}

uint32_t tuning_class_first(uint32_t class)
{
    return class ? class_last[class - 1] + 1 : 1;
}

uint32_t tuning_class_last(uint32_t class)
{
    return class_last[class];
}

void tuning_init(struct tuning *t, const struct matmul_kernels *kernels, uint32_t n_threads)
{
    *t = (struct tuning){.own = kernels, .isa = kernels->name, .n_threads = n_threads};
    for (uint32_t c = 0; c < TUNING_CLASSES; c++) {
        t->kernels[c] = kernels;
        t->kernels_gain[c] = 1;
        for (uint32_t kind = 0; kind < TUNING_KINDS; kind++)
            t->choice[kind][c].gain = 1;
    }
}

struct matmul_variant tuning_variant(const struct tuning *t, uint32_t kind, uint32_t n_columns)
{
    return t ? t->choice[kind][tuning_class(n_columns)].variant : (struct matmul_variant){0};
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static int by_time(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The gain at the median of the duels, 0 if too few were won: alternating timings see the same machine, also
 * while it becomes slower or faster. */
static float judge_duels(const uint64_t built[TUNING_DUELS], const uint64_t variant[TUNING_DUELS])
{
    float speed[TUNING_DUELS];
    uint32_t wins = 0;
    for (uint32_t i = 0; i < TUNING_DUELS; i++) {
        wins += variant[i] < built[i];
        speed[i] = variant[i] ? (float)((double)built[i] / (double)variant[i]) : 0;
    }
    qsort(speed, TUNING_DUELS, sizeof *speed, by_value);
    return wins >= TUNING_WINS ? speed[TUNING_DUELS / 2] : 0;
}

/* The gain in the middle of the fastest timings, 0 if these are not all the variant's: they are the ones that
 * other work left alone. */
static float judge_fastest(const uint64_t built[TUNING_DUELS], const uint64_t variant[TUNING_DUELS])
{
    uint64_t a[TUNING_DUELS], b[TUNING_DUELS];
    memcpy(a, built, sizeof a);
    memcpy(b, variant, sizeof b);
    qsort(a, TUNING_DUELS, sizeof *a, by_time);
    qsort(b, TUNING_DUELS, sizeof *b, by_time);
    const uint32_t middle = TUNING_FIRST / 2;
    return b[TUNING_FIRST - 1] < a[0] && b[middle] ? (float)((double)a[middle] / (double)b[middle]) : 0;
}

float tuning_judge(const uint64_t built[TUNING_DUELS], const uint64_t variant[TUNING_DUELS])
{
    float gain = judge_duels(built, variant);
    if (gain == 0)
        gain = judge_fastest(built, variant);
    return gain >= TUNING_GAIN ? gain : 0;
}

struct matmul_variant tuning_prefetches(struct matmul_variant v)
{
    v.shape = MATMUL_SHAPE_BUILT;
    return v;
}

/* True if the choice is the constants for want of a quiet moment. */
static bool is_open(const struct tuning_choice *c)
{
    return c->state == TUNING_BUILT || (c->unsettled && c->gain <= 1);
}

/* The choice whose prefetches suit a class where another has none: that of the largest kind, else the one of
 * the class that gained most, else the one of the largest kind in another class. */
static const struct tuning_choice *lender(const struct tuning *t, uint32_t class, uint32_t largest)
{
    const struct tuning_choice *best = &t->choice[largest][class];
    for (uint32_t kind = 0; is_open(best) && kind < MATMUL_N_KINDS; kind++)
        if (t->choice[kind][class].gain > best->gain)
            best = &t->choice[kind][class];
    if (best->gain <= 1 && is_open(best))
        for (uint32_t c = 0; c < TUNING_CLASSES; c++)
            if (t->choice[largest][c].gain > best->gain)
                best = &t->choice[largest][c];
    return best;
}

void tuning_lend(struct tuning *t, uint32_t largest)
{
    for (uint32_t class = 0; class < TUNING_CLASSES; class ++) {
        const struct matmul_variant lent = tuning_prefetches(lender(t, class, largest)->variant);
        for (uint32_t kind = 0; kind < MATMUL_N_KINDS; kind++)
            if (t->used[kind] && is_open(&t->choice[kind][class]))
                t->choice[kind][class].variant = lent;
    }
}

uint32_t tuning_n_unsettled(const struct tuning *t)
{
    uint32_t n = 0;
    for (uint32_t kind = 0; kind < TUNING_KINDS; kind++)
        for (uint32_t class = 0; class < TUNING_CLASSES; class ++)
            n += t->choice[kind][class].unsettled;
    return n;
}

static const char *const hints[MATMUL_N_HINTS] = {"built", "none", "t0", "t1", "t2", "nta"};
static const char *const shapes[MATMUL_N_SHAPES] = {"built", "direct", "panel", "spread"};

const char *tuning_hint_name(uint32_t hint)
{
    return hints[hint];
}

const char *tuning_shape_name(uint32_t shape)
{
    return shapes[shape];
}

static struct backend_choice shown(const struct tuning *t, uint32_t kind, uint32_t class)
{
    const struct tuning_choice *c = &t->choice[kind][class];
    return (struct backend_choice){
        .weights = quant_name(matmul_traits[kind].type),
        .first = tuning_class_first(class),
        .last = tuning_class_last(class),
        .kernels = t->kernels[class]->name,
        .hint = hints[c->variant.hint],
        .shape = shapes[c->variant.shape],
        .ahead = c->variant.ahead,
        .measured = c->state != TUNING_BUILT,
        .unsettled = c->unsettled,
        .gain = (double)(c->gain * t->kernels_gain[class]),
        .gbps = (double)c->gbps,
    };
}

void tuning_show(struct tuning *t, const char *source)
{
    t->info = (struct backend_tuning){.source = source,
                                      .note = *t->note ? t->note : NULL,
                                      .ms = (double)t->ns / 1e6,
                                      .n_unsettled = tuning_n_unsettled(t),
                                      .n_again = t->n_again,
                                      .choices = t->shown,
                                      .n_folds = t->n_folds,
                                      .folds = t->folds};
    for (uint32_t kind = 0; kind < MATMUL_N_KINDS; kind++)
        for (uint32_t class = 0; t->used[kind] && class < TUNING_CLASSES; class ++)
            t->shown[t->info.n_choices++] = shown(t, kind, class);
}
