/* roofline.h - what this machine could do at best: the two ceilings that every speed figure is printed
 * beside. Decode is limited by reading the weights, prefill by int8 products. Threads are pinned, one per CPU
 * the process may use, and sleep between two measurements. Machines that others share have ceilings that move
 * within a second: what is compared with them is best measured between two short looks. Thread: one. */
#pragma once
#include <stdint.h>

#define ROOFLINE_MAX_THREADS 256
#define ROOFLINE_MAX_ROUNDS  25

struct roofline;

/* Takes n_threads (1 to ROOFLINE_MAX_THREADS) threads and a gigabyte that they read. NULL: out of memory or
 * threads. */
struct roofline *roofline_open(uint32_t n_threads);
/* NULL is allowed. */
void roofline_close(struct roofline *r);
/* 10^9 bytes per second that all threads together read from memory, streaming: the best of 1 to
 * ROOFLINE_MAX_ROUNDS rounds over the gigabyte, since other work on the machine only takes away. */
double roofline_read_gbps(struct roofline *r, uint32_t n_rounds);
/* 10^12 int8 operations per second (a multiply and an add are two), operands in registers; of rounds of about
 * ten milliseconds the best. */
double roofline_int8_tops(struct roofline *r, uint32_t n_rounds);
/* Pins the calling thread to the i-th CPU that the process could use when this was first called; 0, or a
 * negative errno. */
int roofline_pin(uint32_t i);
