/* matmul.h - the cpu's integer matrix product: packed weights, quantised activations, one kernel table per
 * instruction set.
 * All tables give the same bits (kernels/abi/arith.h). A weight matrix [n, k] is packed once, at load, in
 * groups of 16 rows (interleaved, 64-byte aligned, no larger than in the file except for padding to whole
 * groups and cache lines); decode and prefill read the same bytes.
 * Thread: any; pack and run are pure, and a matrix is immutable once packed, so threads may run disjoint
 * groups. Memory: the caller's, sized by the functions below. Errors: only matmul_pack_size() and
 * matmul_find() fail. */
#pragma once
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MATMUL_ROWS  16 /* rows per group, the unit of work */
#define MATMUL_PANEL 8  /* columns of activations quantised together */

struct matmul_matrix { /* a packed weight */
    uint32_t kind;     /* enum matmul_kind */
    uint32_t type;     /* enum quant_type of its source */
    uint32_t n, k;
    uint32_t n_groups;   /* ceil(n / 16) */
    size_t group_size;   /* bytes of one group */
    const uint8_t *data; /* n_groups * group_size bytes, 64-byte aligned */
};

/* 0 if such a weight can be packed; -ENOTSUP: the type is not supported, or k is not a multiple of its block.
 */
int matmul_check_weight(uint32_t type, uint32_t n, uint32_t k, struct error *err);
/* The bytes of the packed weight, which matmul_check_weight() accepts. */
size_t matmul_pack_size(uint32_t type, uint32_t n, uint32_t k);
/* Packs groups [first, last) of a weight, whose `rows` of the file these are, into out (the start of the
 * whole pack); several threads may share one matrix. */
void matmul_pack(uint32_t type, uint32_t n, uint32_t k, const void *rows, void *out, uint32_t first,
                 uint32_t last);
/* Describes a packed weight; `packed` must outlive the matrix. */
void matmul_matrix_set(struct matmul_matrix *m, uint32_t type, uint32_t n, uint32_t k, const void *packed);
/* Writes row `row` of a packed matrix as floats, the same bits as quant_dequantise() of the original: for
 * tied embeddings. */
void matmul_row(const struct matmul_matrix *m, uint32_t row, float *out);
/* True if this matrix multiplies floats (F32, F16, BF16 weights), which needs no quantised activations. */
bool matmul_is_float(const struct matmul_matrix *m);

/* Variants of a product: all give the same bits, and the machine decides which is fastest (tuning.h). The
 * zero of each field stands for the constants that the kernels were built with. */
enum matmul_hint { /* the x86 instruction prefetch* for weights, or none: only after a jump */
                   MATMUL_HINT_BUILT,
                   MATMUL_HINT_NONE,
                   MATMUL_HINT_T0,
                   MATMUL_HINT_T1,
                   MATMUL_HINT_T2,
                   MATMUL_HINT_NTA,
                   MATMUL_N_HINTS
};
enum matmul_shape { /* a table without the named one takes MATMUL_SHAPE_BUILT */
                    MATMUL_SHAPE_BUILT,
                    MATMUL_SHAPE_DIRECT, /* unpacks a block in registers for all columns; up to 4 to 8 columns
                                          */
                    MATMUL_SHAPE_PANEL,  /* unpacks weights again for every panel of columns */
                    MATMUL_SHAPE_SPREAD, /* the first panel stores the unpacked weights for the others */
                    MATMUL_N_SHAPES
};
struct matmul_variant {
    uint8_t hint, shape; /* enum matmul_hint, enum matmul_shape */
    uint32_t ahead;      /* bytes by which weights are prefetched; 0: as built */
};

/* Activations of n_columns rows of a step, in the layout of the kernels. One input serves every matrix of the
 * same k. */
struct matmul_input {
    uint32_t k, n_columns;
    void *data; /* matmul_input_size(k, n_columns) bytes, 64-byte aligned */
    /* The weights that the calling thread reads after those of a run, for prefetching; NULL: the weights that
     * follow in memory. */
    const uint8_t *next;
    struct matmul_variant variant;
};
size_t matmul_input_size(uint32_t k, uint32_t n_columns);
/* The number of super-blocks (of 256 values) and of panels that quantising is split into. */
uint32_t matmul_input_supers(const struct matmul_input *in);
uint32_t matmul_input_panels(const struct matmul_input *in);

struct matmul_kernels {
    const char *name; /* "avx512vnni", "avxvnni", "avx2", "amx", "scalar" */
    bool (*supported)(void);
    /* Quantises, for run() of the same table, columns [8 panel, ...) of `in`, at most 8, in super-blocks
     * [first, last): column c from x[c][k] * gain[k] (gain NULL: x[c] alone). With `floats` it also keeps the
     * floats. */
    void (*quantise)(struct matmul_input *in, uint32_t panel, uint32_t first, uint32_t last,
                     const float *const *x, const float *gain, bool floats);
    /* Computes out[c * stride + i] = the product of row 16 * first + i and column c, for the rows of groups
     * [first, last) and all columns of `in`. Rows beyond n are not written. With more than four columns
     * groups are computed in pairs: deal ranges of an even number of groups, or the odd one costs as much as
     * two. */
    void (*run)(const struct matmul_matrix *m, const struct matmul_input *in, uint32_t first, uint32_t last,
                float *out, size_t stride, void *scratch);
    size_t scratch_size; /* bytes of 64-byte aligned scratch that run() needs per thread */
    uint32_t columns;    /* columns that run() computes together: a remainder costs as much as all of them */
};
extern const struct matmul_kernels matmul_avx512, matmul_avxvnni, matmul_avx2, matmul_amx, matmul_scalar;
/* The scratch_size that is enough for every table. */
size_t matmul_scratch_size(void);
/* Returns the table that is best on most CPUs that support it ("auto" or NULL), or the named one; NULL if it
 * is unknown or not supported. */
const struct matmul_kernels *matmul_find(const char *isa);
/* 0 if matmul_find() finds a table; -EINVAL: the name is unknown; -ENOTSUP: this CPU does not support it. */
int matmul_check_isa(const char *isa, struct error *err);
