/* tuning_measure.c - times the variants of the products on packed weights.
 * A trial multiplies some groups of one matrix with all members of the team; successive trials go on through
 * the weights of one shape, so that none finds its weights in a cache that the model's own steps would not
 * find them in. Variants run in turn, round by round: a slow moment of the machine hits all of them. */
#include "base/clock.h"
#include "base/memory.h"
#include "base/team.h"
#include "cpu/matmul/matmul_pack.h"
#include "tuning.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define N_DISTANCES    4
#define MAX_CONTENDERS (2 + (MATMUL_N_HINTS - 2) * N_DISTANCES) /* see prefetches_of() */
#define MAX_ROUNDS     TUNING_DUELS
#define MAX_TRIALS     (MAX_CONTENDERS * MAX_ROUNDS)
#define PIECE_GROUPS   32           /* groups of one call of run(), as product_run() deals them */
#define ALONE_PART     8            /* a trial of one member alone has this part of the weights */
#define MEMBER_BYTES   (128u << 10) /* least weights of a member in a trial */
#define LEAST_BYTES    (1u << 20)   /* least weights of a trial that is shortened to fit its time */
#define SLOW           2            /* times the fastest of the same: something else ran */
#define MOST_SLOW      16           /* one slow timing of so many is no disturbance */

static const uint32_t class_columns[TUNING_CLASSES] = {1, 3, 8, 16, TUNING_COLUMNS};
/* Weights of a trial: about 0.03 to 0.1 ms of two cores. One column takes as many as a product of a model
 * has, since hardware prefetchers take a while to reach their speed. */
static const uint32_t class_bytes[TUNING_CLASSES] = {4u << 20, 1u << 20, 768u << 10, 384u << 10, 128u << 10};

struct contender {
    const struct matmul_kernels *kernels;
    struct matmul_variant variant;
    uint32_t input; /* index of bench.in */
};

struct place { /* in the weights: a matrix of the list and its group */
    uint32_t matrix, group;
};

struct trial {
    struct contender by;
    struct place at, next;
};

struct bench {
    struct tuning *t;
    const struct tuning_work *work;
    const struct matmul_matrix *all; /* [n_all]: of the model */
    uint32_t n_all;
    uint64_t bytes[MATMUL_N_KINDS], sum; /* of `all`, by kind and together */
    const struct matmul_kernels *const *others;
    const struct matmul_matrix **list; /* matrices of one kind and shape */
    uint32_t n_list, groups;           /* groups of a trial */
    uint32_t n_members;                /* that share a trial: the team, or member 0 alone */
    struct place cursor;
    struct matmul_input in[2]; /* quantised by the table of the class, and by another */
    struct trial trials[MAX_TRIALS + 1];
    uint64_t began[MAX_TRIALS + 2];
    uint32_t n_trials;
    uint64_t deadline;             /* no trials begin after it */
    bool (*wanted)(void *context); /* NULL, or: the team is wanted for something else, at once */
    void *context;
    atomic_uint stop_at;      /* the trial before which it was: none runs from there on */
    bool stopped;             /* it was: all times are meaningless, and the deadline has passed */
    uint32_t n_timed, n_slow; /* timings of a choice, and those that something else made slow */
};

/* --- trials --- */

static uint32_t part_of(const struct bench *b, uint32_t member)
{
    return (uint32_t)((uint64_t)(b->groups / 2) * member / b->n_members) * 2;
}

static const uint8_t *address(const struct bench *b, struct place p, uint32_t member)
{
    const struct matmul_matrix *m = b->list[p.matrix];
    return m->data + (p.group + part_of(b, member)) * m->group_size;
}

static void do_trial(const struct bench *b, const struct trial *trial, uint32_t member)
{
    const struct matmul_matrix *m = b->list[trial->at.matrix];
    uint32_t first = trial->at.group + part_of(b, member), last = trial->at.group + part_of(b, member + 1);
    struct matmul_input in = b->in[trial->by.input];
    in.variant = trial->by.variant;
    for (uint32_t end; first < last; first = end) {
        end = matmul_min(first + PIECE_GROUPS, last);
        in.next = end == last ? address(b, trial->next, member) : NULL;
        trial->by.kernels->run(m, &in, first, end, b->work->members[member].tile,
                               (size_t)(end - first) * MATMUL_ROWS, b->work->members[member].kernel);
    }
}

/* Member 0 asks before the barrier of a trial; the others read the answer behind it. */
static void run_trials(void *context, uint32_t member)
{
    struct bench *b = context;
    for (uint32_t i = 0; i <= b->n_trials; i++) {
        if (member == 0 && b->wanted && b->wanted(b->context))
            atomic_store_explicit(&b->stop_at, i, memory_order_relaxed);
        team_barrier(b->work->team, member);
        if (i >= atomic_load_explicit(&b->stop_at, memory_order_relaxed))
            break;
        if (member == 0)
            b->began[i] = clock_ns();
        if (i < b->n_trials)
            do_trial(b, &b->trials[i], member);
    }
}

/* Trials of the calling thread alone, which meets no other: where members share their CPUs with other work,
 * barriers take longer than trials. */
static void run_alone(struct bench *b)
{
    for (uint32_t i = 0; i <= b->n_trials; i++) {
        if (b->wanted && b->wanted(b->context)) {
            atomic_store_explicit(&b->stop_at, i, memory_order_relaxed);
            return;
        }
        b->began[i] = clock_ns();
        if (i < b->n_trials)
            do_trial(b, &b->trials[i], 0);
    }
}

static struct place next_place(const struct bench *b, struct place p)
{
    p.group += b->groups;
    if (p.group + b->groups <= b->list[0]->n_groups)
        return p;
    return (struct place){.matrix = (p.matrix + 1) % b->n_list};
}

static void add_trial(struct bench *b, const struct contender *by)
{
    struct place next = next_place(b, b->cursor);
    b->trials[b->n_trials++] = (struct trial){.by = *by, .at = b->cursor, .next = next};
    b->cursor = next;
}

static uint64_t least_of(const uint64_t *ns, uint32_t n)
{
    uint64_t least = ns[0];
    for (uint32_t i = 1; i < n; i++)
        least = ns[i] < least ? ns[i] : least;
    return least;
}

/* Counts the timings of a contender that took SLOW times as long as its fastest: the weights, which some
 * cache may hold, explain less. */
static void count_slow(struct bench *b, const uint64_t *ns, uint32_t n_rounds)
{
    uint64_t least = least_of(ns, n_rounds);
    for (uint32_t i = 0; i < n_rounds && n_rounds > 1; i++) {
        b->n_timed++;
        b->n_slow += ns[i] > SLOW * least;
    }
}

/* Times that say nothing, for all that wait for some. */
static void stop(struct bench *b, uint64_t ns[MAX_CONTENDERS][MAX_ROUNDS])
{
    for (uint32_t i = 0; i < MAX_CONTENDERS * MAX_ROUNDS; i++)
        ns[i / MAX_ROUNDS][i % MAX_ROUNDS] = 1;
    b->stopped = true;
    b->deadline = 0;
}

/* Runs n contenders in turn; each round another one begins. */
static void race(struct bench *b, const struct contender *c, uint32_t n, uint32_t n_rounds,
                 uint64_t ns[MAX_CONTENDERS][MAX_ROUNDS])
{
    b->n_trials = 0;
    if (b->cursor.group + b->groups > b->list[0]->n_groups) /* its trials were shorter */
        b->cursor = (struct place){.matrix = (b->cursor.matrix + 1) % b->n_list};
    add_trial(b, &c[0]); /* wakes the team and warms its caches; not counted */
    for (uint32_t round = 0; round < n_rounds; round++)
        for (uint32_t i = 0; i < n; i++)
            add_trial(b, &c[(i + round) % n]);
    atomic_store_explicit(&b->stop_at, UINT32_MAX, memory_order_relaxed);
    if (!b->stopped && b->n_members == 1)
        run_alone(b);
    else if (!b->stopped)
        team_run(b->work->team, run_trials, b);
    if (b->stopped || atomic_load_explicit(&b->stop_at, memory_order_relaxed) != UINT32_MAX) {
        stop(b, ns);
        return;
    }
    for (uint32_t round = 0; round < n_rounds; round++)
        for (uint32_t i = 0; i < n; i++) {
            uint32_t at = 1 + round * n + i;
            ns[(i + round) % n][round] = b->began[at + 1] - b->began[at];
        }
    for (uint32_t i = 0; i < n; i++)
        count_slow(b, ns[i], n_rounds);
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The time below which a quarter of the timings are: other work on the machine only ever makes one longer. */
static uint64_t quartile(const uint64_t *ns, uint32_t n)
{
    uint64_t sorted[MAX_ROUNDS];
    memcpy(sorted, ns, n * sizeof *ns);
    qsort(sorted, n, sizeof *sorted, by_value);
    return sorted[n / 4];
}

/* The contender with the least time; the first one where it is as good. */
static uint32_t fastest(struct bench *b, const struct contender *c, uint32_t n, uint32_t n_rounds)
{
    uint64_t ns[MAX_CONTENDERS][MAX_ROUNDS], least = UINT64_MAX;
    uint32_t best = 0;
    race(b, c, n, n_rounds, ns);
    for (uint32_t i = 0; i < n; i++)
        if (quartile(ns[i], n_rounds) < least) {
            least = quartile(ns[i], n_rounds);
            best = i;
        }
    return best;
}

/* The judgement on two contenders (tuning_judge()); *winner_ns: the time of the one to take. */
static float duel(struct bench *b, const struct contender *built, const struct contender *other,
                  uint64_t *winner_ns)
{
    const struct contender two[2] = {*built, *other};
    uint64_t ns[MAX_CONTENDERS][MAX_ROUNDS];
    race(b, two, 2, TUNING_DUELS, ns);
    float gain = tuning_judge(ns[0], ns[1]);
    *winner_ns = quartile(ns[gain > 0], TUNING_DUELS);
    return gain;
}

/* --- a kind and a class --- */

static uint32_t shapes_of(uint32_t class, struct contender c[MAX_CONTENDERS])
{
    static const uint8_t shapes[TUNING_CLASSES][2] = {
        {0}, /* one column is never worth a panel */
        {MATMUL_SHAPE_DIRECT, MATMUL_SHAPE_PANEL},
        {MATMUL_SHAPE_DIRECT, MATMUL_SHAPE_PANEL},
        {MATMUL_SHAPE_PANEL, MATMUL_SHAPE_SPREAD},
        {MATMUL_SHAPE_PANEL, MATMUL_SHAPE_SPREAD},
    };
    uint32_t n = 1;
    for (uint32_t i = 0; i < 2 && shapes[class][i]; i++, n++) {
        c[n] = c[0];
        c[n].variant.shape = shapes[class][i];
    }
    return n;
}

/* Each hint at each distance: what is best of one alone depends on the other. A distance matters little
 * without prefetches. */
static uint32_t prefetches_of(struct contender c[MAX_CONTENDERS])
{
    /* The least one stays in the page of the product, whose stream the hardware prefetches beside it. */
    static const uint32_t distances[N_DISTANCES] = {3072, 4352, 8704, 17408};
    uint32_t n = 2;
    c[1] = c[0];
    c[1].variant.hint = MATMUL_HINT_NONE;
    for (uint32_t hint = MATMUL_HINT_NONE + 1; hint < MATMUL_N_HINTS; hint++)
        for (uint32_t i = 0; i < N_DISTANCES; i++, n++) {
            c[n] = c[0];
            c[n].variant.hint = (uint8_t)hint;
            c[n].variant.ahead = distances[i];
        }
    return n;
}

/* True if n trials of `one` ns each end before the deadline. */
static bool in_time(const struct bench *b, uint64_t one, uint32_t n)
{
    return clock_ns() + one * n < b->deadline;
}

#define N_SHAPES     3 /* at most: shapes_of() */
#define N_KEPT       6 /* contenders that the first rounds of a search leave */
#define N_WARM_UPS   3 /* trials in front of the races of a search */
#define N_DUEL       (2 * TUNING_DUELS + 1)
#define LEAST_ROUNDS 3

/* The rounds in which all prefetches are timed, before those that N_KEPT of them are timed in. */
static uint32_t first_rounds(uint32_t n_rounds)
{
    return n_rounds > 3 ? 2 : 1;
}

/* Moves the N_KEPT contenders with the least timings to the front, in the order in which they stood. */
static uint32_t keep_fastest(struct bench *b, struct contender c[MAX_CONTENDERS], uint32_t n,
                             uint32_t n_rounds)
{
    uint64_t ns[MAX_CONTENDERS][MAX_ROUNDS];
    uint32_t n_kept = 0;
    race(b, c, n, n_rounds, ns);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t n_before = 0;
        for (uint32_t k = 0; k < n; k++)
            n_before += least_of(ns[k], n_rounds) < least_of(ns[i], n_rounds) ||
                        (k < i && least_of(ns[k], n_rounds) == least_of(ns[i], n_rounds));
        if (n_before < N_KEPT)
            c[n_kept++] = c[i];
    }
    return n_kept;
}

/* Finds the best shape, then its best prefetches. Returns false if time is short. */
static bool search(struct bench *b, uint32_t class, uint64_t one, uint32_t n_rounds,
                   struct contender c[MAX_CONTENDERS])
{
    uint32_t n = shapes_of(class, c);
    if (!in_time(b, one, n * n_rounds + 1))
        return false;
    c[0] = c[n > 1 ? fastest(b, c, n, n_rounds) : 0];
    n = prefetches_of(c);
    if (!in_time(b, one, n * first_rounds(n_rounds) + 1))
        return false;
    n = keep_fastest(b, c, n, first_rounds(n_rounds));
    if (!in_time(b, one, n * n_rounds + 1))
        return false;
    c[0] = c[fastest(b, c, n, n_rounds)];
    return true;
}

/* At least MEMBER_BYTES for each member. */
static uint64_t bytes_for_all(const struct bench *b, uint64_t bytes)
{
    uint64_t all = (uint64_t)team_size(b->work->team) * MEMBER_BYTES;
    return bytes > all ? bytes : all;
}

/* The trials of a search and its duel. */
static uint32_t count_trials(uint32_t n_rounds)
{
    return (N_SHAPES + N_KEPT) * n_rounds + MAX_CONTENDERS * first_rounds(n_rounds) + N_WARM_UPS + N_DUEL;
}

/* Times the constants, and halves the groups of a trial, though not below LEAST_BYTES, until a search ends
 * before `end`: a kind with few of the weights gets little time. Returns the nanoseconds of one. */
static uint64_t fit_trial(struct bench *b, const struct contender *built, uint64_t end)
{
    uint64_t ns[MAX_CONTENDERS][MAX_ROUNDS], least = bytes_for_all(b, LEAST_BYTES);
    race(b, built, 1, 3, ns);
    uint64_t one = least_of(ns[0], 3); /* a busy moment must not let it look too long to be repeated */
    uint64_t now = clock_ns(), left = end > now ? end - now : 0;
    while (one * count_trials(LEAST_ROUNDS) > left && b->groups >= 4 &&
           b->groups * b->list[0]->group_size >= 2 * least) {
        b->groups = b->groups / 4 * 2;
        one /= 2;
    }
    return one;
}

/* The most rounds of a search, with its duel, of trials of `one` ns that end before `end`; 0: none. */
static uint32_t rounds_until(uint64_t one, uint64_t end)
{
    static const uint32_t rounds[] = {MAX_ROUNDS, 5, LEAST_ROUNDS};
    uint64_t now = clock_ns(), left = end > now ? end - now : 0;
    for (uint32_t i = 0; i < sizeof rounds / sizeof *rounds; i++)
        if (one * count_trials(rounds[i]) <= left)
            return rounds[i];
    return 0;
}

/* Searches, and duels what it found with the constants: *gain 0: they stay. False: time was short. */
static bool try_variants(struct bench *b, uint32_t class, const struct contender *built, uint64_t end,
                         uint64_t *one, struct contender *found, float *gain)
{
    struct contender c[MAX_CONTENDERS] = {*built};
    uint32_t n_rounds = rounds_until(*one, end);
    *gain = 0;
    if (!n_rounds || !search(b, class, *one, n_rounds, c))
        return false;
    *found = c[0];
    if (memcmp(&c[0].variant, &built->variant, sizeof built->variant) == 0)
        return true;
    if (!in_time(b, *one, N_DUEL))
        return false;
    *gain = duel(b, built, found, one);
    return true;
}

/* Searches and duels on this thread alone, for at most TUNING_ALONE_NS. Returns the gain. */
static float try_alone(struct bench *b, uint32_t class, const struct contender *built,
                       struct contender *found)
{
    uint64_t deadline = b->deadline, end = clock_ns() + TUNING_ALONE_NS, one;
    uint32_t groups = b->groups, n_members = b->n_members;
    uint64_t few = class_bytes[class] / ALONE_PART / b->list[0]->group_size;
    float gain = 0;
    if (b->wanted && deadline < end) /* measuring again has one time for all */
        end = deadline;
    b->n_members = 1;
    b->groups = few < 2 ? 2 : few < groups ? (uint32_t)few / 2 * 2 : groups;
    b->deadline = end;
    one = fit_trial(b, built, end);
    if (!b->stopped && !try_variants(b, class, built, end, &one, found, &gain))
        gain = 0;
    b->n_members = n_members;
    b->groups = groups;
    if (!b->stopped)
        b->deadline = deadline;
    return gain;
}

/* Chooses the variant that a search finds if it stands against the constants. A moment in which the machine
 * does other things can hide a gain, so the constants stay only after TUNING_TRIES searches, or where time is
 * short; then one member tries without the others if the team was disturbed, and for one column, which reads
 * memory, so that a missed prefetch costs most. */
static void measure_cell(struct bench *b, uint32_t kind, uint32_t class, uint64_t share_ns)
{
    struct tuning_choice *choice = &b->t->choice[kind][class];
    struct contender built = {.kernels = b->t->kernels[class], .variant = choice->variant}, found = built;
    uint64_t end = clock_ns() + share_ns, one = fit_trial(b, &built, end);
    float gain = 0;
    choice->unsettled = true;
    b->n_timed = b->n_slow = 0;
    bool timed = try_variants(b, class, &built, end, &one, &found, &gain);
    for (uint32_t i = 1; timed && i < TUNING_TRIES && gain == 0; i++)
        if (!try_variants(b, class, &built, end, &one, &found, &gain))
            break;
    bool quiet = timed && b->n_slow * MOST_SLOW <= b->n_timed, alone = gain == 0 && (!quiet || class == 0);
    if (alone)
        gain = try_alone(b, class, &built, &found);
    /* What one member finds the team should have found; when it has missed that again, in quiet, it stays. */
    choice->unsettled = !quiet || (alone && gain > 0 && !b->wanted);
    if (b->stopped || (!timed && gain == 0))
        return;
    choice->state = TUNING_MEASURED;
    choice->variant = gain > 0 ? found.variant : built.variant;
    choice->gain = gain > 0 ? gain : 1;
    choice->gbps =
        alone && gain > 0
            ? 0
            : (float)((double)b->groups * (double)b->list[0]->group_size / (double)(one ? one : 1));
}

/* --- inputs --- */

/* Quantises columns of numbers as a model has them; all columns are the same. */
static void quantise(const struct bench *b, const struct matmul_kernels *kernels, struct matmul_input *in)
{
    float *x = b->work->members[0].tile;
    uint32_t seed = 1;
    for (uint32_t i = 0; i < in->k; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 16) / 32768.0f - 1.0f;
    }
    const float *columns[MATMUL_PANEL];
    for (uint32_t c = 0; c < MATMUL_PANEL; c++)
        columns[c] = x;
    for (uint32_t panel = 0; panel < matmul_input_panels(in); panel++)
        kernels->quantise(in, panel, 0, matmul_input_supers(in), columns, NULL, false);
}

/* Sets the number of columns of a class: inputs and the groups of a trial. */
static void set_class(struct bench *b, uint32_t class)
{
    uint32_t columns = class_columns[class];
    const struct matmul_matrix *m = b->list[0];
    for (uint32_t i = 0; i < 2; i++)
        b->in[i] = (struct matmul_input){.k = m->k,
                                         .n_columns = columns,
                                         .data = (uint8_t *)b->work->input +
                                                 i * round64(matmul_input_size(m->k, TUNING_COLUMNS))};
    quantise(b, b->t->kernels[class], &b->in[0]);
    uint64_t groups = bytes_for_all(b, class_bytes[class]) / m->group_size + 1;
    b->groups = groups < m->n_groups ? (uint32_t)groups : m->n_groups;
    b->groups -= b->groups % 2;
}

/* --- kinds --- */

static uint64_t bytes_of(const struct matmul_matrix *m)
{
    return (uint64_t)m->n_groups * m->group_size;
}

static bool same_shape(const struct matmul_matrix *a, const struct matmul_matrix *b)
{
    return a->kind == b->kind && a->n == b->n && a->k == b->k;
}

/* Lists the matrices of the shape that most bytes of this kind have. Returns the bytes of the kind. */
static uint64_t list_kind(struct bench *b, uint32_t kind)
{
    const struct matmul_matrix *all = b->all;
    uint64_t total = 0, most = 0;
    uint32_t n = b->n_all;
    const struct matmul_matrix *shape = NULL;
    for (uint32_t i = 0; i < n; i++) {
        if (!all[i].n_groups || all[i].kind != kind)
            continue;
        uint64_t sum = 0;
        total += bytes_of(&all[i]);
        for (uint32_t j = 0; j < n; j++)
            sum += all[j].n_groups && same_shape(&all[i], &all[j]) ? bytes_of(&all[j]) : 0;
        if (sum > most) {
            most = sum;
            shape = &all[i];
        }
    }
    b->n_list = 0;
    for (uint32_t i = 0; i < n; i++)
        if (shape && all[i].n_groups && same_shape(shape, &all[i]))
            b->list[b->n_list++] = &all[i];
    b->cursor = (struct place){0};
    return total;
}

/* True if the listed kind has products that variants differ in, and its shape fits the work's memory. */
static bool measurable(const struct bench *b, uint32_t kind)
{
    const struct matmul_matrix *m = b->n_list ? b->list[0] : NULL;
    size_t tile = b->work->tile_floats;
    return m && !matmul_is_float(m) && m->n_groups >= 2 && m->k <= tile &&
           PIECE_GROUPS * MATMUL_ROWS * TUNING_COLUMNS <= tile && b->bytes[kind] >= b->sum / 50;
}

/* --- tables --- */

/* Adds the time that two tables take for all weights of a kind. */
static void add_times(struct bench *b, uint32_t kind, uint32_t class, const struct contender two[2],
                      double total[2])
{
    uint64_t ns[MAX_CONTENDERS][MAX_ROUNDS];
    list_kind(b, kind);
    if (!measurable(b, kind))
        return;
    set_class(b, class);
    quantise(b, two[1].kernels, &b->in[1]);
    race(b, two, 2, 3, ns);
    double trials = (double)b->bytes[kind] / ((double)b->groups * (double)b->list[0]->group_size);
    for (uint32_t i = 0; i < 2; i++)
        total[i] += trials * (double)quartile(ns[i], 3);
}

/* True if another table is faster for all kinds together, not for the one alone that it was tried with. */
static bool faster_for_all(struct bench *b, uint32_t class, const struct contender *other)
{
    const struct contender two[2] = {{.kernels = b->t->kernels[class], .variant = other->variant}, *other};
    double total[2] = {0};
    for (uint32_t kind = 0; kind < MATMUL_N_KINDS; kind++)
        if (b->bytes[kind])
            add_times(b, kind, class, two, total);
    return total[0] >= (double)TUNING_GAIN * total[1];
}

/* Takes another table for a class where it is faster, with the prefetches of the best variant of the present
 * one, than that. */
static bool try_table(struct bench *b, uint32_t kind, uint32_t class, const struct matmul_kernels *other)
{
    struct tuning_choice *choice = &b->t->choice[kind][class];
    const struct contender c[2] = {
        {.kernels = b->t->kernels[class], .variant = choice->variant},
        {.kernels = other, .variant = tuning_prefetches(choice->variant), .input = 1}};
    uint64_t ns;
    quantise(b, other, &b->in[1]);
    float gain = fastest(b, c, 2, 3) == 1 ? duel(b, &c[0], &c[1], &ns) : 0;
    bool taken = gain > 0 && faster_for_all(b, class, &c[1]);
    if (taken) {
        b->t->kernels[class] = other;
        b->t->kernels_gain[class] *= choice->gain * gain;
        *choice = (struct tuning_choice){.variant = c[1].variant, .gain = 1}; /* to be measured from there */
    }
    if (gain > 0) { /* faster_for_all() went through the kinds */
        list_kind(b, kind);
        set_class(b, class);
    }
    return taken;
}

static bool try_tables(struct bench *b, uint32_t kind, uint32_t class)
{
    bool taken = false;
    for (uint32_t i = 0; b->others[i]; i++)
        if (b->others[i] != b->t->kernels[class] && clock_ns() < b->deadline)
            taken = try_table(b, kind, class, b->others[i]) || taken;
    return taken;
}

/* Measures a class of the listed kind, and with `tables` whether another table is faster. */
static void measure_class(struct bench *b, uint32_t kind, uint32_t class, bool tables, uint64_t share,
                          uint64_t end)
{
    set_class(b, class);
    measure_cell(b, kind, class, share);
    const struct tuning_choice *choice = &b->t->choice[kind][class];
    if (choice->state == TUNING_MEASURED && !choice->unsettled && tables && !b->t->kept[class] &&
        try_tables(b, kind, class))
        measure_cell(b, kind, class, end > clock_ns() ? end - clock_ns() : 0);
}

/* The classes, those of the most common steps first. */
static const uint8_t class_order[TUNING_CLASSES] = {0, 4, 3, 2, 1};

/* Measures the classes of the listed kind in its share of the time; what one leaves is for the next. One
 * whose part was too short, as in a busy moment, gets what all leave. */
static void measure_kind(struct bench *b, uint32_t kind, bool tables, uint64_t ns)
{
    uint64_t end = clock_ns() + ns;
    for (uint32_t i = 0; i < 2 * TUNING_CLASSES; i++) {
        uint32_t class = class_order[i % TUNING_CLASSES];
        uint32_t n_after = i < TUNING_CLASSES ? TUNING_CLASSES - 1 - i : 0;
        uint64_t now = clock_ns(), share = now < end ? (end - now) / (n_after + 1) : 0;
        if (b->t->choice[kind][class].state != TUNING_BUILT)
            continue;
        b->t->choice[kind][class].unsettled = true; /* until it is measured in quiet */
        if (share || (ns && i >= TUNING_CLASSES))   /* alone, if the team takes too long */
            measure_class(b, kind, class, tables, share, end);
    }
}

/* Counts the bytes of each kind. Returns the kind that has most. */
static uint32_t count_kinds(struct bench *b)
{
    uint32_t largest = 0;
    for (uint32_t kind = 0; kind < MATMUL_N_KINDS; kind++) {
        b->bytes[kind] = list_kind(b, kind);
        b->t->used[kind] = b->bytes[kind] > 0;
        b->sum += b->bytes[kind];
        largest = b->bytes[kind] > b->bytes[largest] ? kind : largest;
    }
    return largest;
}

/* The kinds, the largest first: it chooses the tables. */
static uint32_t kind_at(uint32_t i, uint32_t largest)
{
    return i == 0 ? largest : i <= largest ? i - 1 : i;
}

static void measure_all(struct bench *b, uint64_t budget_ns)
{
    uint32_t largest = count_kinds(b);
    for (uint32_t i = 0; i < MATMUL_N_KINDS; i++) {
        uint32_t kind = kind_at(i, largest);
        list_kind(b, kind);
        if (measurable(b, kind))
            measure_kind(b, kind, i == 0,
                         (uint64_t)((double)budget_ns * (double)b->bytes[kind] / (double)b->sum));
    }
    tuning_lend(b->t, largest);
}

/* --- again --- */

/* The next unsettled cell at or behind *at, which counts the cells of kind_at() and class_order. False: all
 * are settled. */
static bool next_unsettled(const struct tuning *t, uint32_t largest, uint32_t *at)
{
    const uint32_t n = MATMUL_N_KINDS * TUNING_CLASSES;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t cell = (*at + i) % n;
        if (t->choice[kind_at(cell / TUNING_CLASSES, largest)][class_order[cell % TUNING_CLASSES]]
                .unsettled) {
            *at = cell;
            return true;
        }
    }
    return false;
}

/* What was measured of a class with another table holds no longer. */
static void unsettle_class(struct tuning *t, uint32_t class)
{
    for (uint32_t kind = 0; kind < MATMUL_N_KINDS; kind++)
        if (t->choice[kind][class].state == TUNING_MEASURED)
            t->choice[kind][class].unsettled = true;
}

/* Begins a cell anew, from the constants. Returns whether other tables are to be tried: for the largest kind,
 * unless they were, or one was taken. */
static bool begin_again(struct tuning *t, uint32_t kind, uint32_t class, uint32_t largest)
{
    t->choice[kind][class] = (struct tuning_choice){.gain = 1};
    return kind == largest && !t->kept[class] && !t->tables_tried[class] && t->kernels[class] == t->own;
}

/* Measures a cell as load() does. Returns whether it is to be taken: it was measured in quiet, or it has a
 * variant where there was none. Where another table is taken, the cell is measured with it the next time. */
static bool measure_again(struct bench *b, uint32_t kind, uint32_t class, uint32_t largest)
{
    struct tuning *t = b->t;
    struct tuning_choice *choice = &t->choice[kind][class];
    const struct tuning_choice before = *choice;
    const struct matmul_kernels *kernels = t->kernels[class];
    bool tables = begin_again(t, kind, class, largest);
    uint64_t third = TUNING_AGAIN_NS / 3; /* a member alone, or other tables, have the rest of the time */
    list_kind(b, kind);
    set_class(b, class);
    measure_cell(b, kind, class, before.gain > 1 ? 2 * third : third);
    if (choice->state != TUNING_MEASURED)
        return false;
    if (choice->unsettled && (before.gain > 1 || choice->gain <= 1))
        return false;
    bool settled = !choice->unsettled;
    if (settled && tables) {
        t->tables_tried[class] = clock_ns() < b->deadline;
        settled = !try_tables(b, kind, class) && t->tables_tried[class];
    }
    if (b->stopped)
        return false;
    if (t->kernels[class] != kernels)
        unsettle_class(t, class);
    choice->unsettled = !settled;
    tuning_lend(t, largest);
    t->n_again++;
    return true;
}

/* Opens a bench over the matrices; close it with bench_close(). */
static int bench_open(struct bench **out, struct tuning *t, const struct matmul_matrix *matrices,
                      uint32_t n_matrices, const struct matmul_kernels *const *others,
                      const struct tuning_work *work, struct error *err)
{
    struct bench *b = calloc(1, sizeof *b);
    const struct matmul_matrix **list = calloc(n_matrices ? n_matrices : 1, sizeof *list);
    if (!b || !list) {
        free(list);
        free(b);
        return error_set(err, -ENOMEM, "cpu_tuning: out of memory");
    }
    b->t = t;
    b->work = work;
    b->n_members = team_size(work->team);
    b->all = matrices;
    b->n_all = n_matrices;
    b->others = others;
    b->list = list;
    *out = b;
    return 0;
}

static void bench_close(struct bench *b)
{
    free(b->list);
    free(b);
}

int tuning_measure(struct tuning *t, const struct matmul_matrix *matrices, uint32_t n_matrices,
                   const struct matmul_kernels *const *others, struct tuning_work *work, uint64_t budget_ns,
                   struct error *err)
{
    struct bench *b = NULL;
    uint64_t began = clock_ns();
    int rc = bench_open(&b, t, matrices, n_matrices, others, work, err);
    if (rc < 0)
        return rc;
    b->deadline = began + budget_ns;
    measure_all(b, budget_ns);
    bench_close(b);
    t->ns = clock_ns() - began;
    return 0;
}

int tuning_again(struct tuning *t, const struct matmul_matrix *matrices, uint32_t n_matrices,
                 const struct matmul_kernels *const *others, const struct tuning_work *work, uint32_t *at,
                 bool (*wanted)(void *context), void *context, struct error *err)
{
    struct bench *b = NULL;
    int rc = bench_open(&b, t, matrices, n_matrices, others, work, err);
    if (rc < 0)
        return rc;
    uint32_t largest = count_kinds(b);
    b->deadline = clock_ns() + TUNING_AGAIN_NS;
    b->wanted = wanted;
    b->context = context;
    if (next_unsettled(t, largest, at)) {
        rc = measure_again(b, kind_at(*at / TUNING_CLASSES, largest), class_order[*at % TUNING_CLASSES],
                           largest);
        *at += !b->stopped; /* the next time another: one that never settles holds up no other */
    }
    bench_close(b);
    return rc;
}
