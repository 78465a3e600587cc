/* calls.h - the functions of lib/cuda/driver.h under the names that the driver exports. Thread: any. */
#pragma once
#include "emulated.h"

#ifdef SIMT_FAST
#define EMULATED_SCHEDULE SIMT_IN_ORDER
#else
#define EMULATED_SCHEDULE SIMT_N_SCHEDULES /* the seed selects one */
#endif

#pragma GCC visibility push(default)
#define CALL_DECLARE(call, symbol, parameters) int symbol parameters;
CUDA_CALLS(CALL_DECLARE)
#undef CALL_DECLARE
#pragma GCC visibility pop
