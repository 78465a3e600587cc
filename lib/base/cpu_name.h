/* cpu_name.h - the name of this machine's CPU as it calls itself. Thread: any. Memory: none. */
#pragma once
#include <stddef.h>

/* Writes the name without spaces around it, cut to `size` with its end; "CPU" where there is none. */
void cpu_name(char *name, size_t size);
