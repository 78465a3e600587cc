/* power.h - watts and clock of the device, from the command in GPU_POWER, which prints "watts, MHz". Thread:
 * one. */
#pragma once
#include <jansson.h>

/* Sets "watts" and "sm_mhz" of the row: means of a few samples; null without such a command. */
void power_put(json_t *row);
