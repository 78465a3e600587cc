/* toy_decoder.h - a decoder whose arithmetic is a few integer hashes: the persistent loop, its I/O warp,
 * rings and dependency counters run as under the real one, and the host can compute the expected results.
 * Everything that a step can carry enters the numbers: tokens, positions, page tables, pages, histories,
 * settings, biases.
 *
 * Its program has the format of kernels/abi/program_ops.h; a super-block tile has 256 bytes, 16 per row.
 * program_op.reserved[0] != 0: the last block does not get past this op before the abort word is set.
 * Thread: device code. */
#pragma once
#include "abi/device_abi.h"

#define TOY_SUPER_BYTES  256
#define TOY_WIDTH        32 /* width of every buffer except the logits */
#define TOY_VOCAB        48
#define TOY_WINDOW_LAYER 1 /* its keys lie in window pages */

static inline uint32_t toy_mix(uint32_t a, uint32_t b)
{
    uint32_t h = (a ^ (b * 0x9E3779B1u)) * 0x85EBCA77u;
    return h ^ h >> 13;
}
