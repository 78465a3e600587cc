/* roofline.h - measures the limits of this machine that speed figures are printed beside: reading memory,
 * which limits decode; int8 products, which limit prefill; and the units of attention. Its threads are
 * pinned, one per CPU that the process may use, and sleep between measurements. The limits of shared machines
 * change within a second: measure shortly before and after the figure that is compared with them. Thread: one
 * at a time; roofline_pin() from any. Memory: roofline_open() allocates a gigabyte. */
#pragma once
#include "base/error.h"

#include <stdint.h>

#define ROOFLINE_MAX_THREADS 256
#define ROOFLINE_MAX_ROUNDS  25

struct roofline;

/* Starts n_threads (1 to ROOFLINE_MAX_THREADS) threads and maps a gigabyte that they read. -ENOMEM; -EAGAIN:
 * the system starts no more threads. */
int roofline_open(struct roofline **out, uint32_t n_threads, struct error *err);
/* NULL is fine. */
void roofline_close(struct roofline *r);
/* Returns the 10^9 bytes per second that all threads together stream from memory: the best of 1 to
 * ROOFLINE_MAX_ROUNDS rounds over the gigabyte, because other work on the machine only lowers it. */
double roofline_read_gbps(struct roofline *r, uint32_t n_rounds);
/* Returns the 10^12 int8 operations per second (a multiply and an add are two) with operands in registers:
 * the best of n_rounds rounds of about ten milliseconds. */
double roofline_int8_tops(struct roofline *r, uint32_t n_rounds);
/* The same of f32 fused multiply-adds, of dot products of bf16 (0: this CPU has none), and of int8 products
 * of AMX tiles (0: CPU or kernel has none), which the tables on vectors do not use. */
double roofline_f32_tflops(struct roofline *r, uint32_t n_rounds);
double roofline_bf16_tflops(struct roofline *r, uint32_t n_rounds);
double roofline_amx_tops(struct roofline *r, uint32_t n_rounds);
/* The unit whose products roofline_int8_tops() counts: "AVX-512 VNNI". */
const char *roofline_unit(void);
/* Pins the calling thread to the i-th CPU that the process could use at the first call. Returns 0 or a
 * negative errno. */
int roofline_pin(uint32_t i);
