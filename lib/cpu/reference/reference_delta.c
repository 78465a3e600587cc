#include "reference_delta.h"

#include <math.h>
#include <string.h>

void reference_convolve(const struct delta_shape *s, double *state, const float *taps, const float *x,
                        float *out)
{
    uint32_t channels = delta_channels(s), n_old = s->n_taps - 1;
    for (uint32_t c = 0; c < channels; c++) {
        double sum = (double)taps[(size_t)c * s->n_taps + n_old] * (double)x[c];
        for (uint32_t j = 0; j < n_old; j++)
            sum += (double)taps[(size_t)c * s->n_taps + j] * state[(size_t)j * channels + c];
        out[c] = (float)sum;
    }
    memmove(state, state + channels, (size_t)(n_old - 1) * channels * sizeof *state);
    for (uint32_t c = 0; c < channels; c++)
        state[(size_t)(n_old - 1) * channels + c] = (double)x[c];
}

void reference_l2_norm(const struct delta_shape *s, float eps, const float *x, float *out)
{
    memcpy(out, x, delta_channels(s) * sizeof *out);
    for (uint32_t h = 0; h < 2 * s->n_key_heads; h++, out += s->key_dim) {
        double sum = 0;
        for (uint32_t i = 0; i < s->key_dim; i++)
            sum += (double)out[i] * (double)out[i];
        double by = sqrt(sum + (double)eps) * (h < s->n_key_heads ? sqrt(s->key_dim) : 1.0);
        for (uint32_t i = 0; i < s->key_dim; i++)
            out[i] = (float)((double)out[i] / by);
    }
}

void reference_delta_gate(const struct delta_shape *s, const float *a, const float *dt, const float *b,
                          const float *alpha, bool together, float *out)
{
    uint32_t n = s->n_value_heads, share = n / s->n_key_heads;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = together ? i / share * 2 * share + i % share : i;
        double x = (double)alpha[together ? at + share : i] + (double)dt[i];
        out[i] = (float)(1 / (1 + exp(-(double)b[at])));
        out[n + i] = (float)exp((double)a[i] * (x > 30 ? x : log1p(exp(x))));
    }
}

static void head(const struct delta_shape *s, double *state, const float *q, const float *k, const float *v,
                 double beta, double decay, float *out)
{
    for (uint32_t j = 0; j < s->value_dim; j++) {
        double known = 0, o = 0;
        for (uint32_t i = 0; i < s->key_dim; i++)
            known += (state[(size_t)i * s->value_dim + j] *= decay) * (double)k[i];
        double d = beta * ((double)v[j] - known);
        for (uint32_t i = 0; i < s->key_dim; i++)
            o += (state[(size_t)i * s->value_dim + j] += (double)k[i] * d) * (double)q[i];
        out[j] = (float)o;
    }
}

void reference_delta_net(const struct delta_shape *s, double *state, const float *x, const float *gates,
                         float *out)
{
    double *heads = state + delta_mix_floats(s);
    const float *k = x + delta_key_width(s), *v = x + 2 * (size_t)delta_key_width(s);
    for (uint32_t i = 0; i < s->n_value_heads; i++) {
        size_t key = (size_t)delta_key_head(s, i) * s->key_dim;
        head(s, heads + i * delta_head_floats(s), x + key, k + key, v + (size_t)i * s->value_dim,
             (double)gates[i], (double)gates[s->n_value_heads + i], out + (size_t)i * s->value_dim);
    }
}
