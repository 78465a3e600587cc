/* matmul.h - the cpu's integer matrix product: packed weights, quantised activations, one kernel table per
 * instruction set. All tables give the same bits (kernels/abi/arith.h). A weight matrix [n, k] is packed
 * once, at load, in groups of 16 rows (interleaved, 64-byte aligned, no larger than in the file but for
 * padding to whole groups and cache lines); decode and prefill read the same bytes. Thread: pack and run are
 * pure; a matrix is immutable once packed, so any number of threads may run disjoint groups. */
#pragma once
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MATMUL_ROWS  16 /* rows per group: the unit in which work is dealt */
#define MATMUL_PANEL 8  /* columns of activations that are quantised together */

struct matmul_matrix { /* a packed weight; what `kind` means is in matmul_pack.c */
    uint32_t kind;
    uint32_t type; /* enum quant_type it came from */
    uint32_t n, k;
    uint32_t n_groups;   /* ceil(n / 16) */
    size_t group_size;   /* bytes of one group */
    const uint8_t *data; /* n_groups * group_size bytes, 64-byte aligned */
};

/* Whether a weight of this type can be multiplied, and the bytes its pack takes; 0 with *err set when not (k
 * not a multiple of 32, unknown type). */
size_t matmul_pack_size(uint32_t type, uint32_t n, uint32_t k, struct error *err);
/* Packs groups [first, last) of a weight, whose `rows` of the file these are, into out (the start of the
 * whole pack); several threads may share one matrix. */
void matmul_pack(uint32_t type, uint32_t n, uint32_t k, const void *rows, void *out, uint32_t first,
                 uint32_t last);
void matmul_matrix_set(struct matmul_matrix *m, uint32_t type, uint32_t n, uint32_t k, const void *packed);
/* Row `row` of a packed matrix as floats, the same bits as quant_dequantise() of the original: tied
 * embeddings are gathered so. */
void matmul_row(const struct matmul_matrix *m, uint32_t row, float *out);
/* Whether this matrix multiplies floats (F32, F16, BF16 weights), so that activations need no quantising. */
bool matmul_is_float(const struct matmul_matrix *m);

/* Activations of up to `columns` rows of a step, in the layout the kernels want. One of these serves every
 * matrix of the same k. */
struct matmul_input {
    uint32_t k, n_columns;
    void *data; /* matmul_input_size(k, n_columns) bytes, 64-byte aligned */
    /* Weights that the calling thread reads after those of a run, so that it fetches them ahead; NULL: those
     * that lie behind them. */
    const uint8_t *next;
};
size_t matmul_input_size(uint32_t k, uint32_t n_columns);
/* Super-blocks (of 256 values) and panels that quantising is cut into. */
uint32_t matmul_input_supers(const struct matmul_input *in);
uint32_t matmul_input_panels(const struct matmul_input *in);

struct matmul_kernels {
    const char *name; /* "avx512vnni", "avxvnni", "avx2", "scalar" */
    bool (*supported)(void);
    /* Columns [8 panel, ...) of `in`, at most 8, in super-blocks [first, last): column c from x[c][k] *
     * gain[k] (gain NULL: x[c] alone), quantised; floats are kept too when `floats`. */
    void (*quantise)(struct matmul_input *in, uint32_t panel, uint32_t first, uint32_t last,
                     const float *const *x, const float *gain, bool floats);
    /* out[c * stride + i] = product of row 16 * first + i and column c, for the rows of groups [first, last)
     * and all columns of `in`. Rows beyond n are not written. With more than four columns groups are walked
     * in pairs: deal ranges of an even number of them, or the odd one costs as much as two. */
    void (*run)(const struct matmul_matrix *m, const struct matmul_input *in, uint32_t first, uint32_t last,
                float *out, size_t stride, void *scratch);
    size_t scratch_size; /* bytes of 64-byte aligned scratch per thread that run() needs */
};
extern const struct matmul_kernels matmul_avx512, matmul_avxvnni, matmul_avx2, matmul_scalar;
/* The best table this CPU supports ("auto"), or the named one; NULL with *err when unknown or not supported
 * here. */
const struct matmul_kernels *matmul_find(const char *isa, struct error *err);
