/* clang-format off */
/* arith.h - the one arithmetic: every float operation of the decoder, in the order in which it happens.
 *
 * The promise: for integer-quantised models the same tokens, bit for bit, alone or in a batch, for any
 * chunking, thread count, instruction set, grid size, executor and backend. Integer sums are exact in any
 * order, so kernels may deal, tile and reorder them as they like. Float folds are not: their order and their
 * fusing are fixed here, once, in plain C that compiles for the host and for devices (-ffp-contract=off,
 * explicit fmaf, IEEE division and square root, no flush to zero except where a rule says so). A fast kernel
 * computes the same expressions on many lanes at once and must equal the functions below in every bit.
 *
 * MATRIX PRODUCT  y[row, col] = sum over k of W[row, k] * x[col, k]
 *   x is quantised in blocks of 32 values: int8 q, one f32 scale a (ARITH_BLOCK; per-256 scales were tried:
 *   too coarse). W is read in super-blocks of 256 columns (the last one may hold fewer blocks). For one
 *   super-block, blocks j ascending:
 *
 *     c = fmaf(a[j], s[j] * (float)I[j], c)     from c = 0
 *
 *   where I[j] is the exact integer dot product of block j, integer sub-scales included:
 *
 *     type             I[j]                    s[j]
 *     Q4_K Q5_K        sum q * x               the 6-bit scale (s * I < 2^24: exact)
 *     Q6_K Q3_K        sum sc * (q-zero) * x   1 (|I| < 2^24: exact)
 *     Q2_K             sum sc * q * x          1
 *     Q8_0 Q5_0 Q4_0   sum (q-zero) * x        the f16 scale as f32
 *     IQ4_NL MXFP4     sum code * x            the f16 scale as f32; 2^(e-128)
 *     IQ4_XS IQ1..IQ3  sum sc * code * x       1 (|I| < 2^24: exact)
 *     TQ1_0 TQ2_0      sum (q-1) * x           1
 *     Q4_1 Q5_1        sum q * x               the f16 scale as f32
 *
 *   code: the integer of the type's codebook (lib/gguf/quant_codes.h). NVFP4 has two scales s0, s1 in a block,
 *   of which s is the half of the E4M3 value, and sums I0, I1 of its halves:
 *
 *     c = fmaf(a[j], fmaf(s1, (float)I1, s0 * (float)I0), c)
 *
 *   For types with a minimum, over blocks j (Q2_K: half-blocks of 16) ascending, with
 *   b[j] = a[j] * (float)(sum of x's int8):
 *
 *     m = fmaf(b[j], (float)min[j], m)          from m = 0
 *
 *   The value of the super-block:
 *
 *     Q4_K Q5_K Q2_K   v = fmaf(d, c, -(dmin * m))
 *     Q6_K Q3_K TQ     v = d * c
 *     IQ4_XS IQ1..IQ3  v = (d * unit) * c      unit, a power of two, is the codebook's
 *     Q8_0 Q5_0 Q4_0   v = c, as for IQ4_NL MXFP4
 *     NVFP4            v = d * c               d, an f32: the factor that a file has for a matrix or an expert, or 1
 *     Q4_1 Q5_1        v = c + m
 *     F32 F16 BF16     v = c, x taken unquantised: c = fmaf(w[k], x[k], c), k ascending
 *
 *   Super-block values are added ascending from 0 in two halves, [0, h) and [h, n) with h = (n+1)/2, then
 *   half 0 + half 1, so a device may give the halves to two blocks. Around it: a norm's gain is multiplied
 *   into x before quantising and 1/rms multiplies the product after it (y * r), then bias (y + b), then a
 *   factor (y * s), then residual (x + y) or a cap (arith_cap), each rounded. A norm whose result is added to
 *   the residual stream is (y * r) * gain, added, and then a layer's factor: x * s.
 *
 * LANES  Sums of squares, of exponentials and attention scores run over 32 lanes: lane l folds elements l,
 *   l+32, l+64 ... ascending with fmaf from 0, then the xor tree: v[l] += v[l^16], ^8, ^4, ^2, ^1.
 *
 * ATTENTION  of a row at position p: scores in base 2, s[t] = dot(q * (scale*log2 e), k[t]) over lanes,
 *   t = 0..p. The past is cut into splits of arith_split() tokens, from position 0 on. Inside a split, page
 *   by page (64 tokens), from m = -inf, l = 0, o = 0:
 *
 *     m'   = max(m, max s[t])
 *     f    = exp2(m - m')
 *     w[t] = exp2(s[t] - m')
 *     l    = fmaf(l, f, sum over lanes of w)
 *     o[d] = o[d] * f, then o[d] = fmaf(w[t], v[t][d], o[d]), t ascending
 *
 *   Splits are merged ascending:
 *
 *     M    = max m[i]
 *     e    = exp2(m[i] - M)
 *     L    = fmaf(e, l[i], L)
 *     O[d] = fmaf(e, o[i][d], O[d])
 *     out[d] = O[d] * (1 / L)
 *
 *   K and V are read as the cache type stores them, the row's own included.
 *
 *   A kind of attention may have, where w is its window and p the row's position:
 *     factor   the query is multiplied by ((scale * log2 e) * (2 / cap)) * temperature[p]: without a cap or
 *              without temperatures the factor is left out
 *     cap      the score becomes arith_cap(s[t], cap * log2 e) before all else
 *     window   t = max(0, p - w + 1)..p: pages without such a t are not read, and splits without such a page
 *              do not exist; other tokens of a page that is read have the score -inf, so weight 0
 *     sink     one more score of the head, b = sink * log2 e, without a value: M = max(m[i], b), and L begins
 *              with exp2(b - M)
 *
 * ATTENTION OVER A BF16 CACHE  K, V, the scaled query and the weights w (once they have been summed) are
 *   rounded to bf16 (arith_bf16), and every multiplication and addition below is one FMA whose subnormal
 *   operands and result are the zero of their sign (arith_fma_flushed), as in x86's VDPBF16PS and a device's
 *   fma.rn.ftz. Dimensions go by pairs (2i, 2i+1), the odd one first, in two chains; head_dim is
 *   even. With P = head_dim / 2 and H = (P + 1) / 2:
 *
 *     a    = fma(q[2i+1], k[2i+1], a), then fma(q[2i], k[2i], a)      pairs 0..H-1 ascending from a = 0
 *     b    = the same over pairs H..P-1 from b = 0
 *     s[t] = a + b                                                    (an addition as any other)
 *
 *   Values go by pairs of tokens (2t, 2t+1) of the page, the odd one first; of a pair that begins with the
 *   last token the row sees, the second has weight 0 and value 0, whatever the cache holds there:
 *
 *     o[d] = o[d] * f, then fma(w[2t+1], v[2t+1][d], o[d]), fma(w[2t], v[2t][d], o[d]), t ascending
 *
 *   One case is left open: a result whose exact value lies less than 2^-150 below 2^-126 may be 2^-126 or zero,
 *   since an implementation may look for subnormal results before or after it rounds.
 *
 * ATTENTION OVER A Q8_0 CACHE  is integer: the scaled query is quantised by arith_quantise() in blocks b of 32
 *   dimensions (a short last one padded with zeros), scale sq[b]; a token's keys have scales sk[t][b], its
 *   values sv[t][b]. With the exact dot product I of a block's 32 products, b ascending from s = 0:
 *
 *     s[t] = fmaf((float)I[t][b], sq[b] * sk[t][b], s[t])
 *
 *   Once they have been summed, the page's weights are multiplied by the values' scales and quantised for each
 *   block of dimensions (arith_quantise_weights, 14 bits, over the tokens the row sees): whole numbers u[t][b]
 *   and a step[b]. With the exact sum J of the page's products u[t][b] * (value of token t, dimension d):
 *
 *     o[d] = fmaf((float)J[d], step[b], o[d] * f)
 *
 * QK-NORM of a head: (x * r) * gain, r = 1/rms over the head. A q8_0 cache holds arith_quantise() of every 32
 * values of a token's head (a short last block padded with zeros), the scale rounded to f16 afterwards; it is
 * read as (float)q * scale.
 *
 * EXPERTS  The router is a product in floats; route.h chooses n_used experts of a row: without groups and a bias
 *   by the logits, else by probability + bias; the lowest number of equals. With p[e] = exp2((z[e] - max z) *
 *   log2 e), or sigmoid(z[e]), a chosen expert's weight is
 *
 *     softmax             p[e] / sum of p over all experts, over lanes
 *     normalised          p[e] / sum of p over the chosen, e ascending (sigmoid: at least 2^-14)
 *
 *   times the model's scale, rounded. Each chosen expert's product is a product as any other; then, with the
 *   chosen experts' outputs y, bias included, e ascending from s = 0:
 *
 *     s = fmaf(weight, y, s)
 *
 *   An expert's row is silu(g) * u; gpt-oss clamps both and uses arith_swiglu_clamped() instead.
 *   The residual stream takes x + s; a shared expert's output is added after that, times sigmoid(its gate) if
 *   it has one: x + y * sigmoid(g).
 *
 * GATED DELTA NET  (delta.h) A channel's convolution over the rows m before and at t, those before position 0
 *   being 0: s = fmaf(w[j], m[t-n+1+j], s), j ascending from s = 0; then silu(s). A query or key x of d values
 *   is x * (r * f), r = 1/sqrt(sum of squares / d + eps / d), f = 1/d for a query, 1/sqrt(d) for a key. With
 *   beta = sigmoid(b), the decay g = exp2(a * log2(1 + exp2(x * log2 e))), x = alpha + dt (x * log2 e in place of
 *   the logarithm above 24), a head's state S is changed row by row; for column j:
 *
 *     d = beta * fmaf(-g, sum over i of S[i][j] * k[i], v[j])
 *     S[i][j] = fmaf(k[i], d, g * S[i][j])
 *     o[j] = sum over i of S[i][j] * q[i]
 *
 *   A sum over i runs in four chains, chain c over i = c, c+4, ... ascending with fmaf from 0; then
 *   (c0 + c2) + (c1 + c3). The output is (o * r) * gain over the head, times silu(z); gated attention's is
 *   o * sigmoid(gate).
 *
 * Changing a rule changes results: raise ARITH_VERSION (it is part of the system fingerprint).
 * Thread: any, host or device; pure functions. */
/* clang-format on */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* Repeated for compilers that accept it: clang fuses by default; gcc obeys only -ffp-contract=off. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif
_Static_assert(__FLT_EVAL_METHOD__ == 0, "every operation rounds to the width of its type");

#define ARITH_VERSION     5
#define ARITH_BLOCK       32  /* activations per scale */
#define ARITH_SUPER       256 /* weights per super-block */
#define ARITH_LANES       32
#define ARITH_PAGE        64    /* tokens per KV page */
#define ARITH_WEIGHT_MAX  16383 /* of q8_0 weights: 14 bits, so that two halves of 7 are signed bytes */
#define ARITH_LSE_SEGMENT 4096  /* logits per segment of a log-sum-exp */
#define ARITH_LOG2E       1.44269504088896341f
#define ARITH_LN2         0.69314718055994531f

#define ARITH_INF __builtin_inff()

union arith_bits {
    float f;
    uint32_t u;
    int32_t i;
};

static inline float arith_from_bits(uint32_t u)
{
    return (union arith_bits){.u = u}.f;
}

static inline uint32_t arith_to_bits(float f)
{
    return (union arith_bits){.f = f}.u;
}

/* 2^x, relative error below 1e-7; 0 below -125 (so no result is subnormal), at most 2^126, NaN stays NaN.
 * Polynomial: degree 6 through the Chebyshev nodes of [-0.5, 0.5], coefficients rounded to f32. */
static inline float arith_exp2(float x)
{
    float c = x < 126.0f ? x : 126.0f;
    c = c > -125.0f ? c : -125.0f;
    float n = __builtin_rintf(c);
    float f = c - n;
    float p = 0x1.444p-13f;
    p = __builtin_fmaf(p, f, 0x1.5f48cp-10f);
    p = __builtin_fmaf(p, f, 0x1.3b2a1cp-7f);
    p = __builtin_fmaf(p, f, 0x1.c6aeccp-5f);
    p = __builtin_fmaf(p, f, 0x1.ebfbep-3f);
    p = __builtin_fmaf(p, f, 0x1.62e43p-1f);
    p = __builtin_fmaf(p, f, 1.0f);
    union arith_bits r = {.f = p};
    r.i += (int32_t)n * (1 << 23);
    r.f = x < -125.0f ? 0.0f : r.f;
    return x != x ? x : r.f;
}

/* log2 of a positive normal number, absolute error below 1e-7 near 1 and 1 ulp of the result elsewhere: x =
 * 2^e * m with m in [sqrt(1/2), sqrt(2)), then the series of atanh in (m-1)/(m+1). */
static inline float arith_log2(float x)
{
    union arith_bits b = {.f = x};
    int32_t e = (b.i - 0x3f3504f3) >> 23;
    b.i -= e * (1 << 23);
    float s = (b.f - 1.0f) / (b.f + 1.0f);
    float z = s * s;
    float p = 0.32059889f; /* 2/(9 ln 2), 2/(7 ln 2), ... */
    p = __builtin_fmaf(p, z, 0.41219858f);
    p = __builtin_fmaf(p, z, 0.57707802f);
    p = __builtin_fmaf(p, z, 0.96179669f);
    p = __builtin_fmaf(p, z, 2.88539008f);
    return __builtin_fmaf(p, s, (float)e);
}

/* x * sigmoid(x). */
static inline float arith_silu(float x)
{
    return x / (1.0f + arith_exp2(-x * ARITH_LOG2E));
}

/* 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), as x * sigmoid(2 sqrt(2/pi) (...)). */
#define ARITH_GELU_1 2.30220819813f /* 2 sqrt(2/pi) log2 e */
#define ARITH_GELU_3 0.10294323958f /* times 0.044715 */
static inline float arith_gelu(float x)
{
    return x / (1.0f + arith_exp2(x * __builtin_fmaf(x * x, -ARITH_GELU_3, -ARITH_GELU_1)));
}

/* c * tanh(x / c), where u = x * (2 / c) * log2 e. */
static inline float arith_cap(float u, float c)
{
    return c - (2.0f * c) / (1.0f + arith_exp2(u));
}

static inline float arith_sigmoid(float x)
{
    return 1.0f / (1.0f + arith_exp2(-x * ARITH_LOG2E));
}

/* gpt-oss's gate: a clamped g times sigmoid(1.702 g), times a clamped u plus 1. */
static inline float arith_swiglu_clamped(float g, float u)
{
    g = g > 7.0f ? 7.0f : g;
    u = u > 7.0f ? 7.0f : u < -7.0f ? -7.0f : u;
    return g / (1.0f + arith_exp2(g * (-1.702f * ARITH_LOG2E))) * (u + 1.0f);
}

/* Sums 32 values by the xor tree. Returns lane 0's value; all lanes hold the same one. Overwrites v. */
static inline float arith_tree(float v[ARITH_LANES])
{
    for (int w = ARITH_LANES / 2; w; w /= 2)
        for (int l = 0; l < w; l++)
            v[l] = v[l] + v[l + w];
    return v[0];
}

/* Sums x[i]^2, i < n, over lanes. */
static inline float arith_sum_squares(const float *x, uint32_t n)
{
    float v[ARITH_LANES] = {0};
    for (uint32_t i = 0; i < n; i += ARITH_LANES)
        for (uint32_t l = 0; l < ARITH_LANES && i + l < n; l++)
            v[l] = __builtin_fmaf(x[i + l], x[i + l], v[l]);
    return arith_tree(v);
}

/* Returns 1/rms of a row of n values. */
static inline float arith_rms_inverse(const float *x, uint32_t n, float eps)
{
    return 1.0f / __builtin_sqrtf(arith_sum_squares(x, n) / (float)n + eps);
}

/* Returns x / 127, rounded as a division is, for finite x of 2^-100 and above (tests/unit/cpu/test_arith.c).
 * For a division a GPU takes 15 instructions, for this three. */
static inline float arith_over_127(float x)
{
    const float inverse = 1.0f / 127.0f;
    float y = x * inverse;
    return __builtin_fmaf(__builtin_fmaf(-127.0f, y, x), inverse, y);
}

/* Quantises one block: q[i] = rint(x[i] * 127/amax). Returns the scale, amax/127. A block whose values are
 * all below 2^-100 becomes zero; a block with an infinity or a NaN gets scale NaN, so that it reaches the
 * logits and fails only its own row. */
static inline float arith_quantise(const float x[ARITH_BLOCK], int8_t q[ARITH_BLOCK])
{
    uint32_t top = 0;
    for (int i = 0; i < ARITH_BLOCK; i++) {
        uint32_t bits = arith_to_bits(x[i]) & 0x7fffffffu;
        top = bits > top ? bits : top;
    }
    bool finite = top < 0x7f800000u, tiny = top < 0x0d800000u; /* infinity, 2^-100 */
    float amax = arith_from_bits(top);
    float inverse = finite && !tiny ? 127.0f / amax : 0.0f;
    for (int i = 0; i < ARITH_BLOCK; i++)
        q[i] = finite ? (int8_t)(int32_t)__builtin_rintf(x[i] * inverse) : 0;
    return !finite ? arith_from_bits(0x7fc00000u) : tiny ? 0.0f : amax / 127.0f;
}

/* Rotates one RoPE pair by the angle whose cosine and sine come from the host's table
 * (lib/model/rope_table.c, the same bits on every machine). */
static inline void arith_rope(float *x0, float *x1, float cosine, float sine)
{
    float a = *x0, b = *x1;
    *x0 = __builtin_fmaf(a, cosine, -(b * sine));
    *x1 = __builtin_fmaf(a, sine, b * cosine);
}

/* --- bf16 caches --- */

/* Converts to bf16: nearest, ties to even. A subnormal number becomes the zero of its sign; NaN stays a quiet
 * NaN. */
static inline uint16_t arith_bf16(float x)
{
    uint32_t u = arith_to_bits(x), magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40);
    if (magnitude < 0x00800000u)
        return (uint16_t)(u >> 16 & 0x8000);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float arith_from_bf16(uint32_t bits)
{
    return arith_from_bits(bits << 16);
}

/* Replaces a subnormal number by the zero of its sign. */
static inline float arith_flush(float x)
{
    uint32_t u = arith_to_bits(x);
    return u & 0x7f800000u ? x : arith_from_bits(u & 0x80000000u);
}

static inline float arith_fma_flushed(float a, float b, float c)
{
#ifdef __NVPTX__
    return __nvvm_fma_rn_ftz_f(a, b, c);
#else
    return arith_flush(__builtin_fmaf(arith_flush(a), arith_flush(b), arith_flush(c)));
#endif
}

/* Returns the score of a key. */
static inline float arith_score_bf16(const uint16_t *q, const uint16_t *k, uint32_t head_dim)
{
    uint32_t n_pairs = head_dim / 2, half = (n_pairs + 1) / 2;
    float s[2] = {0.0f, 0.0f};
    for (uint32_t i = 0; i < n_pairs; i++) {
        float *to = &s[i >= half];
        *to = arith_fma_flushed(arith_from_bf16(q[2 * i + 1]), arith_from_bf16(k[2 * i + 1]), *to);
        *to = arith_fma_flushed(arith_from_bf16(q[2 * i]), arith_from_bf16(k[2 * i]), *to);
    }
    return s[0] + s[1];
}

/* Adds the first n tokens of a page to one dimension's sum. o is the previous sum times f; token t's value is
 * at v[t * stride]. */
static inline float arith_values_bf16(float o, const uint16_t *w, const uint16_t *v, uint32_t stride,
                                      uint32_t n)
{
    for (uint32_t t = 0; t < n; t += 2) {
        bool both = t + 1 < n;
        o = arith_fma_flushed(both ? arith_from_bf16(w[t + 1]) : 0.0f,
                              both ? arith_from_bf16(v[(t + 1) * stride]) : 0.0f, o);
        o = arith_fma_flushed(arith_from_bf16(w[t]), arith_from_bf16(v[t * stride]), o);
    }
    return o;
}

/* --- q8_0 caches --- */

/* Returns the score of a key. A short last block of q and k is padded with zeros. */
static inline float arith_score_q8(const int8_t *q, const float *q_scales, const int8_t *k,
                                   const float *k_scales, uint32_t n_blocks)
{
    float s = 0.0f;
    for (uint32_t b = 0; b < n_blocks; b++) {
        int32_t dot = 0;
        for (uint32_t i = b * ARITH_BLOCK; i < (b + 1) * ARITH_BLOCK; i++)
            dot += q[i] * k[i];
        s = __builtin_fmaf((float)dot, q_scales[b] * k_scales[b], s);
    }
    return s;
}

/* Weights w are quantised to u = 0..ARITH_WEIGHT_MAX after multiplication by their values' scales: u =
 * rint(product * inverse), product = u * step. `top` is the largest of the products, as bits without the
 * sign: an infinity or a NaN compares larger than any number. Below 2^-100 all become zero; step is NaN if a
 * product is not finite. */
struct arith_weights {
    float inverse, step;
};
static inline struct arith_weights arith_weights_of(uint32_t top)
{
    bool finite = top < 0x7f800000u, tiny = top < 0x0d800000u;
    float most = arith_from_bits(top);
    return (struct arith_weights){
        .inverse = finite && !tiny ? (float)ARITH_WEIGHT_MAX / most : 0.0f,
        .step = !finite ? arith_from_bits(0x7fc00000u)
                : tiny  ? 0.0f
                        : most / (float)ARITH_WEIGHT_MAX,
    };
}

/* Returns the product that is quantised. A token of weight 0 counts as nothing, at any scale. */
static inline float arith_weight_product(float w, float scale)
{
    return w == 0.0f ? 0.0f : w * scale;
}

static inline uint32_t arith_quantise_weight(float product, struct arith_weights by)
{
    return by.inverse > 0.0f ? (uint32_t)__builtin_rintf(product * by.inverse) : 0;
}

/* Sets u[t] for t < n and returns the step. */
static inline float arith_quantise_weights(const float *w, const float *scales, uint32_t n, uint16_t *u)
{
    uint32_t top = 0;
    for (uint32_t t = 0; t < n; t++) {
        uint32_t bits = arith_to_bits(arith_weight_product(w[t], scales[t])) & 0x7fffffffu;
        top = bits > top ? bits : top;
    }
    struct arith_weights by = arith_weights_of(top);
    for (uint32_t t = 0; t < n; t++)
        u[t] = (uint16_t)arith_quantise_weight(arith_weight_product(w[t], scales[t]), by);
    return by.step;
}

/* Tokens per attention split for a row at position p that sees `window` tokens (0: all): 64 below 1,024;
 * twice as many at every fourfold position from there on. Behind its window a row keeps the splits of the
 * last position that saw everything, since it reads no more: few long splits would leave a device idle. */
static inline uint32_t arith_split(uint32_t p, uint32_t window)
{
    uint32_t split = ARITH_PAGE, last = window && p >= window ? window - 1 : p;
    for (uint32_t limit = 1024; last >= limit && limit < (1u << 30); limit *= 4)
        split *= 2;
    return split;
}

/* Philox4x32-10 (Salmon et al., SC 2011): four random words for a key (the seed) and a counter. */
static inline void arith_philox(uint64_t seed, uint32_t c0, uint32_t c1, uint32_t out[4])
{
    uint32_t x[4] = {c0, c1, 0, 0}, k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * x[0], p1 = (uint64_t)0xCD9E8D57u * x[2];
        uint32_t y[4] = {(uint32_t)(p1 >> 32) ^ x[1] ^ k0, (uint32_t)p1, (uint32_t)(p0 >> 32) ^ x[3] ^ k1,
                         (uint32_t)p0};
        for (int i = 0; i < 4; i++)
            x[i] = y[i];
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < 4; i++)
        out[i] = x[i];
}

/* Gumbel noise, -ln(-ln u), from a random word. u is uniform in (0, 1) and has 23 bits, so that u < 1 in
 * f32. */
static inline float arith_gumbel_of(uint32_t bits)
{
    float u = ((float)(int32_t)(bits >> 9) + 0.5f) * 0x1p-23f;
    float e = -(arith_log2(u) * ARITH_LN2);
    return -(arith_log2(e) * ARITH_LN2);
}

/* The random word of one vocabulary entry at one position. */
static inline uint32_t arith_gumbel_bits(uint64_t seed, uint32_t position, uint32_t token)
{
    uint32_t r[4];
    arith_philox(seed, position, token / 4, r);
    uint32_t low = token & 1 ? r[1] : r[0], high = token & 1 ? r[3] : r[2]; /* r[token % 4], in lanes */
    return token & 2 ? high : low;
}

/* Its noise. Adding it to logit/T and taking the largest samples the softmax exactly, for any subset of
 * tokens and any order. */
static inline float arith_gumbel(uint64_t seed, uint32_t position, uint32_t token)
{
    return arith_gumbel_of(arith_gumbel_bits(seed, position, token));
}
