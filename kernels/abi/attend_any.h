/* attend_any.h - the dynamic shared memory of attention_any.c, which takes struct attention_args
 * (node_args.h): in all, and of a warp: two heads and one of bytes, a page's weights and codes, scales.
 * Thread: any; constants. */
#pragma once
#include "node_args.h"

#define NODE_ANY_WARP   (ATTEND_MAX_HEAD_DIM * 9 + ATTEND_MAX_HEAD_DIM / 32 * 4 + 64 * 8)
#define NODE_ANY_SHARED (NODE_ATTEND_THREADS / 32 * NODE_ANY_WARP)
