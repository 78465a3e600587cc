/* tuning.h - which variant of the matrix product (matmul.h) each weight type takes, by the number of columns.
 * The right prefetch and shape depend on the machine; the bits of a product never do. So the backend times
 * its variants at load, on the packed weights themselves and on all threads, and keeps what is faster than
 * the constants that the kernels were built with.
 *
 * A variant is taken only if it beats those constants in at least TUNING_WINS of TUNING_DUELS alternating
 * timings, or has the TUNING_FIRST fastest of all timings (other work on the machine only ever makes one
 * longer), and by TUNING_GAIN: timings that are noisier leave the constants in place, after TUNING_TRIES
 * searches that found none if there is time for them. Weights below TUNING_MIN_BYTES, and floats, which
 * prefetch nothing, are not measured.
 *
 * A choice whose timings other work disturbed, or for which it left no time, is what one thread finds without
 * the others, and unsettled: tuning_again() measures it once more, in short parts, when the decoder is idle.
 *
 * A choice can be kept in a file of text, one line a choice; it counts for the CPU, instruction set and
 * number of threads it was made with.
 *
 * Thread: the loader's fills it; constant afterwards, then any: tuning_again() is given a copy. Memory: the
 * caller's. */
#pragma once
#include "backend/backend.h"
#include "base/error.h"
#include "cpu/matmul/matmul.h"
#include "model/model.h"

#include <stdbool.h>
#include <stdint.h>

struct kv_layout;
struct ops;
struct team;

#define TUNING_CLASSES   5 /* ranges of columns: 1, 2 to 4, 5 to 8, 9 to 32, more */
#define TUNING_KINDS     32
#define TUNING_DUELS     9
#define TUNING_WINS      8     /* by chance 1 of 50 */
#define TUNING_FIRST     5     /* by chance 1 of 68 */
#define TUNING_TRIES     3     /* most searches for a choice */
#define TUNING_GAIN      1.02f /* a smaller one is not worth a guess */
#define TUNING_MIN_BYTES ((uint64_t)64 << 20)
#define TUNING_MAX_NS    300000000u
/* The longest time that measuring takes: a quarter of a nanosecond for each byte of weights (400 MB: 100 ms).
 */
#define TUNING_NS_OF(bytes) ((bytes) / 4 < TUNING_MAX_NS ? (bytes) / 4 : TUNING_MAX_NS)

/* The longest time more that a choice takes for which the team found nothing because it was disturbed, or
 * which is of one column: on one thread, which other work disturbs less. */
#define TUNING_ALONE_NS 24000000u
/* The longest time that measuring a choice again takes, but for a timing that other work makes longer: a
 * request that comes waits for one timing, about 0.1 ms. */
#define TUNING_AGAIN_NS 20000000u

enum tuning_state {
    /* Unmeasured: off, too few weights of this type, or too little time. The constants, with the prefetches
     * that tuning_lend() gives them. */
    TUNING_BUILT,
    TUNING_MEASURED, /* measured at this start; the variant may be the constants */
    TUNING_KEPT,     /* from a file */
};

struct tuning_choice {
    struct matmul_variant variant;
    uint8_t state;  /* enum tuning_state */
    bool unsettled; /* other work disturbed its timings or left no time for them */
    float gain;     /* speed beside the constants, 1 where they were kept */
    float gbps;     /* weights read with the choice; 0: unknown */
};

struct tuning {
    bool used[TUNING_KINDS];                                   /* the model has weights of this kind */
    struct tuning_choice choice[TUNING_KINDS][TUNING_CLASSES]; /* [enum matmul_kind][class] */
    const struct matmul_kernels *kernels[TUNING_CLASSES];      /* of a step with so many rows */
    float kernels_gain[TUNING_CLASSES];
    bool kept[TUNING_CLASSES];         /* kernels[] comes from a file */
    bool tables_tried[TUNING_CLASSES]; /* by tuning_again() */
    const struct matmul_kernels *own;  /* the table given to tuning_init() */
    const char *isa;                   /* its name */
    uint32_t n_threads;
    uint64_t ns;      /* time that measuring took */
    uint32_t n_again; /* choices that were measured again */
    char note[192];
    struct backend_fold folds[MODEL_MAX_KINDS]; /* measured at this start; the file has none of them */
    uint32_t n_folds;
    struct backend_choice shown[TUNING_KINDS * TUNING_CLASSES]; /* for info() */
    struct backend_tuning info;
};

/* The class of a number of columns, and its least and largest number (UINT32_MAX: no limit). */
uint32_t tuning_class(uint32_t n_columns);
uint32_t tuning_class_first(uint32_t class);
uint32_t tuning_class_last(uint32_t class);

/* Fills *t with the constants of `kernels`. */
void tuning_init(struct tuning *t, const struct matmul_kernels *kernels, uint32_t n_threads);
/* The variant for a product of a matrix with n_columns. t NULL: the constants. */
struct matmul_variant tuning_variant(const struct tuning *t, uint32_t kind, uint32_t n_columns);

/* The judgement on TUNING_DUELS pairs of times, of the constants and of a variant. Returns the variant's
 * speed beside the constants at the median, or 0 if they stay. Pure. */
float tuning_judge(const uint64_t built[TUNING_DUELS], const uint64_t variant[TUNING_DUELS]);

/* The prefetches of a variant, which suit the machine whatever the table and the type, without its shape,
 * which may not. Pure. */
struct matmul_variant tuning_prefetches(struct matmul_variant v);
/* Kinds that were not measured in a class, or without success in a busy moment, prefetch as the kind with
 * most weights does there, else as another choice that was measured: where the constants are wrong for the
 * machine, they are so for all. */
void tuning_lend(struct tuning *t, uint32_t largest);

struct tuning_work { /* the memory that measuring overwrites */
    struct team *team;
    void *input; /* matmul_input_size(largest k, TUNING_COLUMNS) bytes */
    struct {
        float *tile;  /* tile_floats */
        void *kernel; /* the largest scratch_size of tables */
    } * members;      /* [team_size] */
    size_t tile_floats;
};
#define TUNING_COLUMNS 64 /* the largest number of columns that is measured */

/* Measures what is TUNING_BUILT, for at most budget_ns, and TUNING_ALONE_NS more for a choice that
 * one thread tries alone. The tables of `others`, a list that ends with NULL, are tried too: one is taken for
 * a class where it is faster for most weights, and for all weights together: a step quantises its rows for
 * one table. Errors: -ENOMEM. */
int tuning_measure(struct tuning *t, const struct matmul_matrix *matrices, uint32_t n_matrices,
                   const struct matmul_kernels *const *others, struct tuning_work *work, uint64_t budget_ns,
                   struct error *err);

/* Measures one unsettled choice again, for at most TUNING_AGAIN_NS: the first one at or behind *at, which
 * begins with 0 and is moved on. wanted(), asked before every timing, says that the team is needed; then it
 * ends at once. Returns 1 if *t has another choice now, or the same that is settled; 0 if not: *t is then not
 * to be used. Errors: -ENOMEM, *t is as it was. */
int tuning_again(struct tuning *t, const struct matmul_matrix *matrices, uint32_t n_matrices,
                 const struct matmul_kernels *const *others, const struct tuning_work *work, uint32_t *at,
                 bool (*wanted)(void *context), void *context, struct error *err);
/* The number of unsettled choices. */
uint32_t tuning_n_unsettled(const struct tuning *t);

/* Returns whether ops->fold_by_floats folds many queries of a page of a bf16 cache faster, at the smallest of
 * a few alternating timings on the calling thread (0.2 ms). False for other caches, and without memory. */
bool tuning_fold_by_floats(const struct ops *ops, const struct kv_layout *kv);

/* Reads the choices of a file. Returns 1 if it was taken; 0 if there is none or it was made on another CPU,
 * with another instruction set or number of threads (t->note says which); -EINVAL, with file and line, if it
 * is broken or may not be read; -EIO if the disk fails. After an error *t is as tuning_init() left it. */
int tuning_read(struct tuning *t, const char *path, struct error *err);
/* Writes all choices that are settled and not TUNING_BUILT, by way of a file beside it that is renamed: what
 * a busy moment found is not kept for other starts. */
int tuning_write(const struct tuning *t, const char *path, struct error *err);

/* Sets t->info for /stats. source: "off", "measured", "file", or "constants" with t->note as the reason. */
void tuning_show(struct tuning *t, const char *source);

const char *tuning_hint_name(uint32_t hint);   /* "built", "none", "t0", ... */
const char *tuning_shape_name(uint32_t shape); /* "built", "direct", "panel", "spread" */
