/* cpu_tune.c - the part of load() that chooses the variants of the products (tuning.h). */
#include "cpu/cpu_decoder.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_OTHERS 3

/* Lists the tables that this CPU supports beside the one it would take, if none is named; ends with NULL. */
static void list_tables(const struct decoder *d, const struct matmul_kernels *others[])
{
    static const char *const names[N_OTHERS] = {"amx", "avxvnni", "avx2"};
    const char *isa = d->cfg.isa ? d->cfg.isa : "auto";
    uint32_t n = 0;
    for (uint32_t i = 0; !strcmp(isa, "auto") && i < N_OTHERS; i++)
        if (matmul_find(names[i]) && matmul_find(names[i]) != d->kernels)
            others[n++] = matmul_find(names[i]);
    others[n] = NULL;
}

/* Lends the members' scratch, which no step uses yet. */
static int measure(struct decoder *d, struct error *err)
{
    struct tuning_work work = {.team = d->team, .input = d->product.input, .tile_floats = PRODUCT_TILE};
    const struct matmul_kernels *others[N_OTHERS + 1];
    list_tables(d, others);
    work.members = calloc(team_size(d->team), sizeof *work.members);
    if (!work.members)
        return error_set(err, -ENOMEM, "cpu_tuning: out of memory");
    for (uint32_t i = 0; i < team_size(d->team); i++) {
        work.members[i].tile = d->members[i].product.tile;
        work.members[i].kernel = d->members[i].product.kernel;
    }
    int rc = tuning_measure(&d->tuning, d->weights.matrices, d->weights.n, others, &work,
                            TUNING_NS_OF((uint64_t)d->weights.block.size), err);
    free(work.members);
    return rc;
}

static bool any(const struct tuning *t, enum tuning_state state)
{
    for (uint32_t kind = 0; kind < TUNING_KINDS; kind++)
        for (uint32_t class = 0; class < TUNING_CLASSES; class ++)
            if (t->choice[kind][class].state == state)
                return true;
    return false;
}

/* Keeps what was measured. A file that cannot be written stops nothing: the next start measures again. */
static void keep(struct tuning *t, const char *path)
{
    struct error err = {0};
    if (any(t, TUNING_MEASURED) && tuning_write(t, path, &err) < 0)
        snprintf(t->note, sizeof t->note, "%.180s", err.text);
}

/* Chooses how pages are folded, for each kind of attention. */
static void tune_folds(struct decoder *d)
{
    for (uint32_t i = 0; i < model_config(d->graph->model)->n_kinds; i++) {
        struct attend *a = &d->attend[i];
        if (a->kv.type != KV_BF16)
            continue;
        a->by_floats = tuning_fold_by_floats(d->ops, &a->kv);
        d->tuning.folds[d->tuning.n_folds++] =
            (struct backend_fold){.head_dim = a->kv.head_dim, .by_floats = a->by_floats};
    }
}

int decoder_tune(struct decoder *d, struct error *err)
{
    struct tuning *t = &d->tuning;
    const char *how = d->cfg.cpu_tuning ? d->cfg.cpu_tuning : "auto";
    const char *path = strcmp(how, "auto") && strcmp(how, "off") ? how : NULL;
    tuning_init(t, d->kernels, team_size(d->team));
    d->product.tuning = t;
    int rc = path ? tuning_read(t, path, err) : 0;
    if (rc < 0)
        return rc;
    if (!strcmp(how, "off")) {
        tuning_show(t, "off");
        return 0;
    }
    tune_folds(d);
    if (d->weights.block.size < TUNING_MIN_BYTES && rc == 0) {
        snprintf(t->note, sizeof t->note, "weights below %u MiB are not measured",
                 (unsigned)(TUNING_MIN_BYTES >> 20));
        tuning_show(t, "constants");
        return 0;
    }
    rc = measure(d, err);
    if (rc == 0 && path)
        keep(t, path);
    tuning_show(t, any(t, TUNING_MEASURED) ? "measured" : any(t, TUNING_KEPT) ? "file" : "constants");
    return rc;
}
