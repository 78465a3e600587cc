/* reference_delta.h - the recurrent layers of arithmetic `exact` (reference.h): states and sums in double.
 * A state has the parts of kernels/abi/delta.h in an order of its own: mix [n_taps - 1][channels], oldest row
 * first, then heads [n_value_heads][key_dim][value_dim]; all zero before position 0.
 * Thread: engine only. Memory: the caller's. Errors: none. */
#pragma once
#include "abi/delta.h"

static inline size_t reference_delta_doubles(const struct delta_shape *s)
{
    return delta_state_floats(s);
}

/* The convolution of a row x[channels]; taps [channels][n_taps]. Moves the state on. */
void reference_convolve(const struct delta_shape *s, double *state, const float *taps, const float *x,
                        float *out);
/* Heads of queries and keys at length 1, queries over sqrt(key_dim); values as they are. */
void reference_l2_norm(const struct delta_shape *s, float eps, const float *x, float *out);
/* out [2][n_value_heads]: sigmoid(b) and e^(a softplus(alpha + dt)). `together`: b has both, by key head. */
void reference_delta_gate(const struct delta_shape *s, const float *a, const float *dt, const float *b,
                          const float *alpha, bool together, float *out);
/* One row through every value head. Moves the state on. */
void reference_delta_net(const struct delta_shape *s, double *state, const float *x, const float *gates,
                         float *out);
