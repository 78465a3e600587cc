/* pack.h - packs weights from the blocks of a GGUF file into the tiles that the kernels multiply
 * (kernels/abi/tile.h). Every quant type has a tile type that holds it without loss; Q3_K and Q4_1 become
 * wider ones, and F32 may become BF16 where that holds its values. The last rows and columns are padded with
 * zeros. Thread: any; all functions are pure. Several threads may pack one matrix. */
#pragma once
#include "base/error.h"
#include "abi/tile.h"

#include <stdbool.h>
#include <stddef.h>

struct decoder_matrix;

/* Fills in *out for a weight [n, k] of this quant type, except `tiles`. Errors: -ENOTSUP: the type cannot be
 * multiplied, or k is not a multiple of its block (floats: of 8). */
int cuda_pack_layout(uint32_t type, uint32_t n, uint32_t k, struct decoder_matrix *out, struct error *err);
/* True if BF16 holds each of n_values floats (F32) without loss: converters write what was trained in BF16,
 * such as a router, as F32. */
bool cuda_pack_is_bf16(const void *rows, size_t n_values);
/* Makes the layout of an F32 weight that of BF16. */
void cuda_pack_as_bf16(struct decoder_matrix *m);
/* Bytes of the packed matrix. */
size_t cuda_pack_size(const struct decoder_matrix *m);
/* Packs tiles [first, last) of a weight of this quant type and layout; `rows` are theirs as they lie in the
 * file, `out` has room for these tiles. */
void cuda_pack(uint32_t type, const struct decoder_matrix *m, const void *rows, void *out, uint32_t first,
               uint32_t last);
