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
    *t = (struct tuning){.isa = kernels->name, .n_threads = n_threads};
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

float tuning_judge(const uint64_t built[TUNING_DUELS], const uint64_t variant[TUNING_DUELS])
{
    float speed[TUNING_DUELS];
    uint32_t wins = 0;
    for (uint32_t i = 0; i < TUNING_DUELS; i++) {
        wins += variant[i] < built[i];
        speed[i] = variant[i] ? (float)((double)built[i] / (double)variant[i]) : 0;
    }
    qsort(speed, TUNING_DUELS, sizeof *speed, by_value);
    float median = speed[TUNING_DUELS / 2];
    return wins >= TUNING_WINS && median >= TUNING_GAIN ? median : 0;
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
        .gain = (double)(c->gain * t->kernels_gain[class]),
        .gbps = (double)c->gbps,
    };
}

void tuning_show(struct tuning *t, const char *source)
{
    t->info = (struct backend_tuning){.source = source,
                                      .note = *t->note ? t->note : NULL,
                                      .ms = (double)t->ns / 1e6,
                                      .choices = t->shown,
                                      .n_folds = t->n_folds,
                                      .folds = t->folds};
    for (uint32_t kind = 0; kind < MATMUL_N_KINDS; kind++)
        for (uint32_t class = 0; t->used[kind] && class < TUNING_CLASSES; class ++)
            t->shown[t->info.n_choices++] = shown(t, kind, class);
}
