/* power.h - watts and clock of the device, as a command tells them: GPU_POWER, which prints "watts, MHz". */
#pragma once
#include <jansson.h>

/* Sets "watts" and "sm_mhz" of the row: means of a few samples, or null where there is no such command. */
void power_put(json_t *row);
