/* roofline.h - what this machine could do at best: the two ceilings that every speed figure is printed
 * beside. Decode is limited by reading the weights, prefill by int8 products. Threads are pinned, one per CPU
 * the process may use. Thread: any; each call takes up to about a second and, for reading, a gigabyte. */
#pragma once
#include <stdint.h>

/* 10^9 bytes per second that n_threads together read from memory, streaming; 0 when out of memory. */
double roofline_read_gbps(uint32_t n_threads);
/* 10^12 int8 operations per second (a multiply and an add are two) of n_threads, operands in registers. */
double roofline_int8_tops(uint32_t n_threads);
/* Pins the calling thread to the i-th CPU that the process could use when this was first called; 0, or a
 * negative errno. */
int roofline_pin(uint32_t i);
