/* attention_any.c - the node SOFT_MAX for heads whose size is no multiple of 32: attention of every row's q
 * over its past in the paged cache, as attention.c, but with tiles in the order of linear_tile.h.
 *   q, out [n_rows][n_heads * head_dim] f32, q rotated; struct attention_args, node_args.h. head_dim even,
 * all cache types, windows, caps, sinks, temperatures. Any grid, NODE_ATTEND_THREADS threads: a warp per row
 * and query head, which reads its keys and values for itself; NODE_ANY_SHARED bytes of shared memory. Each
 * split's part of a result lies in attend.scratch, in the order of attend_layout.h, until the same warp
 * merges them. A row whose slot, position or page is out of range is skipped and reported. Floor: K and V of
 * every past once for each query head. Must match lib/cpu/attention.c: tests/simt/attend/attending.c. */
#include "abi/attend_any.h"
#include "linear_tile.h"
#include "node.h"

/* A warp's part of the shared memory: NODE_ANY_WARP bytes. */
struct any_room {
    float q[ATTEND_MAX_HEAD_DIM];   /* scaled; rounded to bf16 if the cache is */
    float out[ATTEND_MAX_HEAD_DIM]; /* of the split so far */
    float weights[KV_PAGE_TOKENS];
    int32_t codes[KV_PAGE_TOKENS]; /* q8_0: the weights for a block of dimensions */
    float scales[ATTEND_MAX_HEAD_DIM / ARITH_BLOCK];
    int8_t bytes[ATTEND_MAX_HEAD_DIM]; /* q8_0: the quantised query */
};
_Static_assert(sizeof(struct any_room) == NODE_ANY_WARP, "the host takes this much for a warp");

/* What one warp computes: query head `head` of a row. */
struct any {
    const struct attend_args *in;
    SIMT_SHARED struct any_room *room;
    uint32_t row, head, slot, pos;
    uint32_t split; /* tokens of a split */
};

/* A page against the query: the tokens that the row sees are [first, n). */
struct any_page {
    SIMT_GLOBAL char *keys, *values;
    uint32_t first, n;
};

/* --- the query --- */

static float any_factor(const struct any *a)
{
    float factor = a->in->scale * ARITH_LOG2E;
    factor = a->in->cap > 0 ? factor * (2.0f / a->in->cap) : factor;
    return a->in->temperatures ? factor * DECODER_AT(const float, a->in->temperatures)[a->pos] : factor;
}

static void any_put_query(const struct any *a)
{
    uint32_t n = a->in->layout.head_dim, type = a->in->layout.type, lane = simt_lane();
    const SIMT_GLOBAL float *x =
        DECODER_AT(const float, a->in->in) + (size_t)a->row * a->in->in_stride + a->in->q_col + a->head * n;
    float factor = any_factor(a);
#pragma clang loop unroll(disable)
    for (uint32_t b = 0; b < linear_blocks(n); b++) {
        uint32_t d = b * ARITH_BLOCK + lane;
        float v = d < n ? x[d] * factor : 0.0f;
        if (type == KV_Q8_0) {
            int8_t q;
            float scale = head_quantise(v, &q);
            a->room->bytes[d] = q;
            if (lane == 0)
                a->room->scales[b] = scale;
        } else {
            a->room->q[d] = type == KV_BF16 ? arith_from_bf16(arith_bf16(v)) : v;
        }
    }
    simt_syncwarp();
}

/* --- scores --- */

/* The dot product of the query and a token's key, by the warp; every lane gets it. */
static float any_dot_f16(const struct any *a, const struct any_page *p, uint32_t token)
{
    uint32_t n = a->in->layout.head_dim;
    const SIMT_GLOBAL uint16_t *k =
        (const SIMT_GLOBAL uint16_t *)linear_row_of(p->keys, &a->in->layout, token).values;
    float v = 0.0f;
#pragma clang loop unroll(disable)
    for (uint32_t d = simt_lane(); d < n; d += SIMT_LANES)
        v = __builtin_fmaf(a->room->q[d], f16_to_float(k[d]), v);
    return lanes_sum(v);
}

/* The same by one lane. */
static float any_dot_bf16(const struct any *a, const struct any_page *p, uint32_t token)
{
    uint32_t pairs = a->in->layout.head_dim / 2, half = (pairs + 1) / 2;
    const SIMT_GLOBAL uint16_t *k =
        (const SIMT_GLOBAL uint16_t *)linear_row_of(p->keys, &a->in->layout, token).values;
    float s[2] = {0.0f, 0.0f};
#pragma clang loop unroll(disable)
    for (uint32_t i = 0; i < half; i++)
        for (uint32_t j = 0; j < 2; j++) {
            uint32_t d = 2 * (i + j * half);
            if (i + j * half >= pairs)
                continue;
            s[j] = arith_fma_flushed(a->room->q[d + 1], arith_from_bf16(k[d + 1]), s[j]);
            s[j] = arith_fma_flushed(a->room->q[d], arith_from_bf16(k[d]), s[j]);
        }
    return s[0] + s[1];
}

/* The same. */
static float any_dot_q8(const struct any *a, const struct any_page *p, uint32_t token)
{
    uint32_t n = a->in->layout.head_dim;
    struct linear_row k = linear_row_of(p->keys, &a->in->layout, token);
    float s = 0.0f;
#pragma clang loop unroll(disable)
    for (uint32_t b = 0; b < linear_blocks(n); b++) {
        uint32_t end = (b + 1) * ARITH_BLOCK;
        int32_t dot = 0;
#pragma clang loop unroll(disable)
        for (uint32_t d = b * ARITH_BLOCK; d < end && d < n; d++)
            dot += a->room->bytes[d] * ((const SIMT_GLOBAL int8_t *)k.values)[d];
        s = __builtin_fmaf((float)dot, a->room->scales[b] * f16_to_float(k.scales[b]), s);
    }
    return s;
}

/* The lane's token's score; -inf if the row does not see it. All lanes call. */
static float any_score(const struct any *a, const struct any_page *p, uint32_t token)
{
    bool seen = token >= p->first && token < p->n;
    float s = 0.0f;
    if (a->in->layout.type == KV_F16) {
        uint32_t begin = token - simt_lane();
#pragma clang loop unroll(disable)
        for (uint32_t t = begin; t < begin + SIMT_LANES && t < p->n; t++) {
            float dot = any_dot_f16(a, p, t);
            s = t == token ? dot : s;
        }
    } else if (seen) {
        s = a->in->layout.type == KV_BF16 ? any_dot_bf16(a, p, token) : any_dot_q8(a, p, token);
    }
    s = seen && a->in->cap > 0 ? arith_cap(s, a->in->cap * ARITH_LOG2E) : s;
    return seen ? s : -ARITH_INF;
}

/* --- values --- */

static void any_values_f16(const struct any *a, const struct any_page *p, float factor)
{
    uint32_t n = a->in->layout.head_dim;
#pragma clang loop unroll(disable)
    for (uint32_t d = simt_lane(); d < n; d += SIMT_LANES) {
        float o = a->room->out[d] * factor;
#pragma clang loop unroll(disable)
        for (uint32_t t = 0; t < p->n; t++) {
            struct linear_row v = linear_row_of(p->values, &a->in->layout, t);
            o = __builtin_fmaf(a->room->weights[t], f16_to_float(((const SIMT_GLOBAL uint16_t *)v.values)[d]),
                               o);
        }
        a->room->out[d] = o;
    }
}

/* A pair's second token counts as zeros where the row does not see it. */
static void any_values_bf16(const struct any *a, const struct any_page *p, float factor)
{
    uint32_t n = a->in->layout.head_dim;
#pragma clang loop unroll(disable)
    for (uint32_t d = simt_lane(); d < n; d += SIMT_LANES) {
        float o = a->room->out[d] * factor;
#pragma clang loop unroll(disable)
        for (uint32_t t = 0; t < p->n; t += 2) {
            struct linear_row v = linear_row_of(p->values, &a->in->layout, t);
            struct linear_row next = linear_row_of(p->values, &a->in->layout, t + 1);
            bool both = t + 1 < p->n;
            float second = both ? arith_from_bf16(((const SIMT_GLOBAL uint16_t *)next.values)[d]) : 0.0f;
            o = arith_fma_flushed(both ? a->room->weights[t + 1] : 0.0f, second, o);
            o = arith_fma_flushed(a->room->weights[t],
                                  arith_from_bf16(((const SIMT_GLOBAL uint16_t *)v.values)[d]), o);
        }
        a->room->out[d] = o;
    }
}

/* The product of a token's weight and its values' scale for block b; 0 behind the tokens that the row sees.
 */
static float any_weighed(const struct any *a, const struct any_page *p, uint32_t token, uint32_t b, float w)
{
    if (token >= p->n)
        return 0.0f;
    return arith_weight_product(w, f16_to_float(linear_row_of(p->values, &a->in->layout, token).scales[b]));
}

/* Quantises the weights of lane and lane + 32 for block b into codes; returns the step. */
static float any_codes(const struct any *a, const struct any_page *p, uint32_t b, float low, float high)
{
    uint32_t lane = simt_lane();
    float x0 = any_weighed(a, p, lane, b, low), x1 = any_weighed(a, p, lane + SIMT_LANES, b, high);
    uint32_t p0 = arith_to_bits(x0) & 0x7fffffffu, p1 = arith_to_bits(x1) & 0x7fffffffu;
    uint32_t top = p0 > p1 ? p0 : p1;
    for (uint32_t x = SIMT_LANES / 2; x; x /= 2) {
        uint32_t other = simt_shfl_xor_u32(top, x);
        top = other > top ? other : top;
    }
    struct arith_weights by = arith_weights_of(top);
    simt_syncwarp(); /* all lanes have read the block before */
    a->room->codes[lane] = (int32_t)arith_quantise_weight(x0, by);
    a->room->codes[lane + SIMT_LANES] = (int32_t)arith_quantise_weight(x1, by);
    simt_syncwarp();
    return by.step;
}

static void any_values_q8(const struct any *a, const struct any_page *p, float factor, float low, float high)
{
    uint32_t n = a->in->layout.head_dim;
#pragma clang loop unroll(disable)
    for (uint32_t b = 0; b < linear_blocks(n); b++) {
        float step = any_codes(a, p, b, low, high);
        uint32_t d = b * ARITH_BLOCK + simt_lane();
        int32_t sum = 0;
#pragma clang loop unroll(disable)
        for (uint32_t t = 0; d < n && t < p->n; t++) {
            struct linear_row v = linear_row_of(p->values, &a->in->layout, t);
            sum += a->room->codes[t] * ((const SIMT_GLOBAL int8_t *)v.values)[d];
        }
        if (d < n)
            a->room->out[d] = __builtin_fmaf((float)sum, step, a->room->out[d] * factor);
    }
}

/* --- pages and splits --- */

/* Folds a page into the split: its maximum, sum and out. */
static void any_fold(const struct any *a, const struct any_page *p, float *max, float *sum)
{
    uint32_t lane = simt_lane(), type = a->in->layout.type;
    float low = any_score(a, p, lane), high = any_score(a, p, lane + SIMT_LANES);
    float top = low > high ? low : high, before = *max;
    for (uint32_t x = SIMT_LANES / 2; x; x /= 2) {
        float other = simt_shfl_xor_f32(top, x);
        top = top > other ? top : other;
    }
    *max = before > top ? before : top;
    float factor = arith_exp2(before - *max);
    low = arith_exp2(low - *max);
    high = arith_exp2(high - *max);
    *sum = __builtin_fmaf(*sum, factor, lanes_sum(low + high));
    simt_syncwarp(); /* all lanes have read the weights before */
    a->room->weights[lane] = type == KV_BF16 ? arith_from_bf16(arith_bf16(low)) : low;
    a->room->weights[lane + SIMT_LANES] = type == KV_BF16 ? arith_from_bf16(arith_bf16(high)) : high;
    simt_syncwarp();
    if (type == KV_F16)
        any_values_f16(a, p, factor);
    else if (type == KV_BF16)
        any_values_bf16(a, p, factor);
    else
        any_values_q8(a, p, factor, low, high);
}

/* Finds page `index` of the sequence. False: its number is out of range, and reported. */
static bool any_find_page(const struct any *a, const struct node_step *step, uint32_t index,
                          struct any_page *out)
{
    const struct decoder_slots *s = &a->in->slots;
    uint32_t id = DECODER_AT(const uint32_t, s->tables)[a->slot * s->pages_per_slot + index];
    uint32_t kv_head = a->head / (a->in->n_heads / a->in->layout.n_kv_heads), start = index * KV_PAGE_TOKENS;
    uint32_t first = attend_first_seen(a->in->window, a->pos), left = a->pos - start;
    if (id >= s->n_pages) {
        if (simt_lane() == 0)
            node_fail(step, DECODER_RANGE_EDIT, id, s->n_pages);
        return false;
    }
    SIMT_GLOBAL char *kv = DECODER_AT(char, a->in->kv);
    *out = (struct any_page){
        .keys = kv + kv_offset(&a->in->layout, id, a->in->layer, kv_head, KV_KEYS),
        .values = kv + kv_offset(&a->in->layout, id, a->in->layer, kv_head, KV_VALUES),
        .first = first > start ? first - start : 0,
        .n = left < KV_PAGE_TOKENS ? left + 1 : KV_PAGE_TOKENS,
    };
    return true;
}

/* The place of the first split of the row's head in the scratch; the other splits follow. */
static SIMT_GLOBAL float *any_folds(const struct any *a)
{
    uint32_t splits = attend_max_splits(a->in->slots.n_ctx, a->in->window);
    size_t first = ((size_t)a->row * a->in->n_heads + a->head) * splits;
    return DECODER_AT(float, a->in->scratch + attend_folds_at(a->in->max_rows, a->in->n_heads)) + first * 2;
}

static SIMT_GLOBAL float *any_outs(const struct any *a)
{
    uint32_t splits = attend_max_splits(a->in->slots.n_ctx, a->in->window);
    size_t first = ((size_t)a->row * a->in->n_heads + a->head) * splits;
    uint64_t at = attend_outs_at(a->in->max_rows, a->in->n_heads, splits);
    return DECODER_AT(float, a->in->scratch + at) + first * a->in->layout.head_dim;
}

/* Computes split `split` of the past, and leaves it in the scratch as the row's number `number`. */
static bool any_split(const struct any *a, const struct node_step *step, uint32_t split, uint32_t number)
{
    uint32_t n = a->in->layout.head_dim, pages = a->split / KV_PAGE_TOKENS, end = (split + 1) * pages;
    uint32_t seen = attend_first_seen(a->in->window, a->pos) / KV_PAGE_TOKENS, last = a->pos / KV_PAGE_TOKENS;
    float max = -ARITH_INF, sum = 0.0f;
    for (uint32_t d = simt_lane(); d < n; d += SIMT_LANES)
        a->room->out[d] = 0.0f;
#pragma clang loop unroll(disable)
    for (uint32_t i = split * pages > seen ? split * pages : seen; i < end && i <= last; i++) {
        struct any_page p;
        if (!any_find_page(a, step, i, &p))
            return false;
        any_fold(a, &p, &max, &sum);
    }
    SIMT_GLOBAL float *outs = any_outs(a) + (size_t)number * n;
    for (uint32_t d = simt_lane(); d < n; d += SIMT_LANES)
        outs[d] = a->room->out[d];
    if (simt_lane() == 0) {
        any_folds(a)[2 * number] = max;
        any_folds(a)[2 * number + 1] = sum;
    }
    return true;
}

/* Merges the row's n splits. */
static void any_merge(const struct any *a, uint32_t n)
{
    uint32_t head_dim = a->in->layout.head_dim;
    const SIMT_GLOBAL float *folds = any_folds(a), *outs = any_outs(a);
    float max = folds[0], sum = 0.0f;
#pragma clang loop unroll(disable)
    for (uint32_t i = 1; i < n; i++)
        max = folds[2 * i] > max ? folds[2 * i] : max;
    if (a->in->sinks) {
        float sink = DECODER_AT(const float, a->in->sinks)[a->head] * ARITH_LOG2E;
        max = sink > max ? sink : max;
        sum = arith_exp2(sink - max);
    }
#pragma clang loop unroll(disable)
    for (uint32_t i = 0; i < n; i++)
        sum = __builtin_fmaf(arith_exp2(folds[2 * i] - max), folds[2 * i + 1], sum);
    float inverse = 1.0f / sum;
    SIMT_GLOBAL float *out =
        DECODER_AT(float, a->in->out) + (size_t)a->row * a->in->out_stride + a->head * head_dim;
#pragma clang loop unroll(disable)
    for (uint32_t d = simt_lane(); d < head_dim; d += SIMT_LANES) {
        float o = 0.0f;
#pragma clang loop unroll(disable)
        for (uint32_t i = 0; i < n; i++)
            o = __builtin_fmaf(arith_exp2(folds[2 * i] - max), outs[(size_t)i * head_dim + d], o);
        out[d] = o * inverse;
    }
}

/* --- the node --- */

/* False: the row's slot or position is out of range, and reported. */
static bool any_find_row(const struct attention_args *args, struct any *a)
{
    const SIMT_GLOBAL struct step_row *row = &node_step_of(&args->step)->rows[a->row];
    const struct decoder_slots *s = &args->attend.slots;
    a->slot = row->slot;
    a->pos = row->pos;
    if (a->slot < s->n_slots && a->pos < s->n_ctx)
        return true;
    if (simt_lane() == 0)
        node_fail(&args->step, DECODER_RANGE_ROW, a->slot < s->n_slots ? a->pos : a->slot,
                  a->slot < s->n_slots ? s->n_ctx : s->n_slots);
    return false;
}

SIMT_KERNEL(attention_any, struct attention_args, NODE_ATTEND_THREADS, 1)
{
    SIMT_SHARED struct any_room *rooms = simt_carve(0, NODE_ANY_SHARED);
    struct node_deal d = node_deal_warps(node_n_rows(&args.step), args.attend.n_heads);
    for (; node_more(&d); node_next_warp(&d)) {
        struct any a = {.in = &args.attend, .room = rooms + simt_warp(), .row = d.row, .head = d.at};
        if (!any_find_row(&args, &a))
            continue;
        a.split = arith_split(a.pos, args.attend.window);
        any_put_query(&a);
        uint32_t first = attend_first_split(args.attend.window, a.pos);
        uint32_t n = attend_end_split(args.attend.window, a.pos) - first;
        bool good = true;
#pragma clang loop unroll(disable)
        for (uint32_t i = 0; good && i < n; i++)
            good = any_split(&a, &args.step, first + i, i);
        simt_syncwarp(); /* lane 0 has written the folds; all lanes have read the query */
        if (good)
            any_merge(&a, n);
    }
}
