/* toy_decoder.h - a decoder whose arithmetic is a few integer hashes: the resident loop, its border, its
 * rings and its flow run as they do under the real one, and a host can say what must come out. Everything
 * that a step can carry enters the numbers: tokens, positions, page tables, pages, histories, settings,
 * biases.
 *
 * Its program is a program of kernels/abi/program_ops.h in shape; a super-block tile has 256 bytes, 16 per
 * row. program_op.reserved[0] != 0: the last block never gets past this op (until it is told to leave). */
#pragma once
#include "abi/device_abi.h"

#define TOY_SUPER_BYTES 256
#define TOY_WIDTH       32 /* of every buffer but the logits */
#define TOY_VOCAB       48

static inline uint32_t toy_mix(uint32_t a, uint32_t b)
{
    uint32_t h = (a ^ (b * 0x9E3779B1u)) * 0x85EBCA77u;
    return h ^ h >> 13;
}
