/* calls.c - every function that lib/cuda looks up, doing nothing; calls_that_answer.c takes the place of
 * some. */
#include "cuda/driver.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC visibility push(default)
#define CALL(call, symbol, parameters)                                                                       \
    int symbol parameters;                                                                                   \
    __attribute__((weak)) int symbol parameters                                                              \
    {                                                                                                        \
        return CUDA_SUCCESS;                                                                                 \
    }
CUDA_CALLS(CALL)
