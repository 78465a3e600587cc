/* matmul_tile_model.h - the table of matmul_tiles.h on the model of the tile instructions
 * (support/tile_model.h), for machines without AMX. matmul_tile_model.c is compiled for AVX-512, which the
 * fold is written in. Thread: any. Memory: static. */
#pragma once
#include "cpu/matmul/matmul.h"

extern const struct matmul_kernels matmul_tile_model;
/* True between a configuration of the calling thread's tiles and their release. */
bool matmul_tile_model_live(void);
