/* machines.c - checks that a seed determines a run: the same steps and the same report each time, with or
 * without a fault, also while another machine runs another grid on another thread. */
#include "simt/toys/toy_cases.h"
#include "device/simt.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define SEEDS 20

struct series {
    const struct toy_kind *kind;
    uint32_t sm;
    int mute;
    struct simt_report reports[SEEDS];
};

static void *run_series(void *context)
{
    struct series *s = context;
    struct toy_case c;
    toy_open(&c, s->kind);
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        toy_run(&c, s->sm, seed, s->mute, &s->reports[seed]);
    toy_close(&c);
    return NULL;
}

/* Seeds whose runs differ. Texts are compared up to the first address. */
static int differences(const struct series *a, const struct series *b, const char *when)
{
    int n = 0;
    for (int i = 0; i < SEEDS; i++) {
        const struct simt_report *x = &a->reports[i], *y = &b->reports[i];
        size_t same = strcspn(x->text, "0");
        if (x->steps == y->steps && strcmp(x->kind, y->kind) == 0 && strncmp(x->text, y->text, same) == 0)
            continue;
        printf("FAILED  %s sm_%u seed %d %s: %llu steps %s, then %llu steps %s\n", a->kind->kernel, a->sm, i,
               when, (unsigned long long)x->steps, x->kind, (unsigned long long)y->steps, y->kind);
        n++;
    }
    return n;
}

int main(void)
{
    int n_series = 2 * (int)n_toy_kinds, failures = 0;
    struct series *first = calloc((size_t)n_series, sizeof *first),
                  *again = calloc((size_t)n_series, sizeof *again);
    pthread_t *threads = calloc((size_t)n_series, sizeof *threads);
    if (!first || !again || !threads)
        return 2;
    for (int i = 0; i < n_series; i++) {
        first[i] = (struct series){.kind = &toy_kinds[i / 2], .sm = i % 2 ? 90 : 80, .mute = -1};
        again[i] = first[i];
        run_series(&first[i]);
        run_series(&again[i]);
        failures += differences(&first[i], &again[i], "again");
    }
    for (int i = 0; i < n_series; i++) {
        again[i] = (struct series){.kind = first[i].kind, .sm = first[i].sm, .mute = -1};
        if (pthread_create(&threads[i], NULL, run_series, &again[i]) != 0)
            return 2;
    }
    for (int i = 0; i < n_series; i++) {
        pthread_join(threads[i], NULL);
        failures += differences(&first[i], &again[i], "beside others");
    }
    for (int mute = 0; mute < simt_n_mutations(); mute += 7) {
        struct series a = {.kind = first[0].kind, .sm = 80, .mute = mute}, b = a;
        enum simt_aspect aspect = SIMT_WHOLE;
        const char *file = simt_mutation(mute, &aspect)->kernel_file;
        for (uint32_t i = 0; i < n_toy_kinds; i++)
            if (strstr(file, toy_kinds[i].kernel))
                a.kind = b.kind = &toy_kinds[i];
        a.sm = b.sm = simt_mutation(mute, &aspect)->sm;
        run_series(&a);
        run_series(&b);
        failures += differences(&a, &b, "with a fault");
    }
    printf("%d series of %d seeds, %d differences\n", n_series, SEEDS, failures);
    free(first);
    free(again);
    free(threads);
    return failures ? 1 : 0;
}
