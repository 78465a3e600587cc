/* cpu_tune.c - the choice among the variants of the products (tuning.h): in load(), and again while the
 * decoder is idle. */
#include "cpu/cpu_decoder.h"
#include "cpu/turn.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_OTHERS 3

/* Idleness before a choice is measured again: short behind one that was settled; after each one that other
 * work disturbed twice as long, so that a busy machine is left alone. */
#define SOON_NS  UINT64_C(100000000)
#define FIRST_NS UINT64_C(500000000)
#define MOST_NS  UINT64_C(64000000000)

/* Choices in force after load(). Other threads may still read the ones before: all live until close(), and
 * they are few: one is adopted at most once unsettled, once settled, and again where its class takes another
 * table. */
struct retuned {
    struct tuning tuning;
    struct retuned *older;
};

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

/* Lends the members' scratch, which no step uses meanwhile, and lists the other tables. The caller frees
 * work->members. */
static int open_work(const struct decoder *d, struct tuning_work *work,
                     const struct matmul_kernels *others[N_OTHERS + 1], struct error *err)
{
    list_tables(d, others);
    *work = (struct tuning_work){.team = d->team, .input = d->product.input, .tile_floats = PRODUCT_TILE};
    work->members = calloc(team_size(d->team), sizeof *work->members);
    if (!work->members)
        return error_set(err, -ENOMEM, "cpu_tuning: out of memory");
    for (uint32_t i = 0; i < team_size(d->team); i++) {
        work->members[i].tile = d->members[i].product.tile;
        work->members[i].kernel = d->members[i].product.kernel;
    }
    return 0;
}

static int measure(struct decoder *d, struct error *err)
{
    struct tuning_work work;
    const struct matmul_kernels *others[N_OTHERS + 1];
    int rc = open_work(d, &work, others, err);
    if (rc < 0)
        return rc;
    rc = tuning_measure(&d->tuning, d->weights.matrices, d->weights.n, others, &work,
                        TUNING_NS_OF((uint64_t)d->weights.block.size), err);
    free(work.members);
    return rc;
}

static bool any(const struct tuning *t, enum tuning_state state, bool settled)
{
    for (uint32_t kind = 0; kind < TUNING_KINDS; kind++)
        for (uint32_t class = 0; class < TUNING_CLASSES; class ++) {
            const struct tuning_choice *c = &t->choice[kind][class];
            if (c->state == state && !(settled && c->unsettled))
                return true;
        }
    return false;
}

/* Keeps what was measured. A file that cannot be written stops nothing: the next start measures again. */
static void keep(struct tuning *t, const char *path)
{
    struct error err = {0};
    if (any(t, TUNING_MEASURED, true) && tuning_write(t, path, &err) < 0)
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

static const char *how_of(const struct decoder *d)
{
    return d->cfg.cpu_tuning ? d->cfg.cpu_tuning : "auto";
}

/* The file that keeps the choices, or NULL. */
static const char *path_of(const struct decoder *d)
{
    const char *how = how_of(d);
    return strcmp(how, "auto") && strcmp(how, "off") ? how : NULL;
}

/* Puts choices in force: between two steps, on the engine's thread, or in load(). */
static void adopt(struct decoder *d, struct tuning *t)
{
    d->product.tuning = t;
    atomic_store_explicit(&d->tuned, t, memory_order_release);
}

int decoder_tune(struct decoder *d, struct error *err)
{
    struct tuning *t = &d->tuning;
    const char *how = how_of(d), *path = path_of(d);
    d->again_wait_ns = FIRST_NS;
    tuning_init(t, d->kernels, team_size(d->team));
    adopt(d, t);
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
    tuning_show(t, any(t, TUNING_MEASURED, false) ? "measured"
                   : any(t, TUNING_KEPT, false)   ? "file"
                                                  : "constants");
    return rc;
}

/* --- again --- */

struct idleness {
    bool (*wanted)(void *context);
    void *context;
};

/* Also for the decoder of another model, which waits for its turn. */
static bool is_wanted(void *context)
{
    const struct idleness *i = context;
    return i->wanted(i->context) || turn_is_asked();
}

/* Measures a choice of *t again, in the turn of this decoder. -EBUSY: another one has it. */
static int measure_again(struct decoder *d, struct tuning *t, struct idleness *idle)
{
    struct tuning_work work;
    const struct matmul_kernels *others[N_OTHERS + 1];
    int rc = open_work(d, &work, others, NULL);
    if (rc < 0)
        return rc;
    if (!turn_try()) {
        free(work.members);
        return -EBUSY;
    }
    rc = tuning_again(t, d->weights.matrices, d->weights.n, others, &work, &d->again_at, is_wanted, idle,
                      NULL);
    turn_give();
    decoder_beat(d);
    free(work.members);
    return rc;
}

uint64_t decoder_tune_again(struct decoder *d, bool (*wanted)(void *context), void *context)
{
    const struct tuning *now = atomic_load_explicit(&d->tuned, memory_order_relaxed);
    if (!now || !tuning_n_unsettled(now))
        return UINT64_MAX;
    struct retuned *next = malloc(sizeof *next);
    if (!next)
        return MOST_NS;
    struct idleness idle = {wanted, context};
    *next = (struct retuned){.tuning = *now, .older = d->retuned};
    int rc = measure_again(d, &next->tuning, &idle);
    if (rc > 0) {
        tuning_show(&next->tuning, "measured");
        d->retuned = next;
        adopt(d, &next->tuning);
        d->again_wait_ns = FIRST_NS;
        return tuning_n_unsettled(&next->tuning) ? SOON_NS : UINT64_MAX;
    }
    free(next);
    if (rc != -EBUSY && !wanted(context)) /* else nothing disturbed it but a request */
        d->again_wait_ns = d->again_wait_ns < MOST_NS / 2 ? 2 * d->again_wait_ns : MOST_NS;
    return d->again_wait_ns;
}

void decoder_tune_close(struct decoder *d)
{
    if (d->retuned && path_of(d))
        keep(&d->retuned->tuning, path_of(d));
    while (d->retuned) {
        struct retuned *older = d->retuned->older;
        free(d->retuned);
        d->retuned = older;
    }
}
