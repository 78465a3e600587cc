#include "attend_reference.h"
#include "cpu/attention.h"
#include "attention/kv_tile.h"

#include <stdlib.h>
#include <string.h>

#define LAYERS 2 /* the second one is used */

struct reference {
    struct attend a;
    struct attend_scratch scratch;
    void *scratch_memory;
    struct slots slots;
    struct attend_shape shape;
    const float *q_gain, *k_gain;
    float eps, scale;
    const float *sinks;
    bool v_normed, cached;
    size_t in_stride, out_stride, k_col, v_col, q_col;
};

static void *room(size_t size)
{
    void *p = aligned_alloc(128, (size + 127) / 128 * 128 + 128);
    if (!p)
        abort(); /* a test tool: nothing sensible is left to do */
    memset(p, 0xff, size);
    return p;
}

struct reference *reference_open(const struct attend_case *c, const float *cosines, const float *sines,
                                 const uint32_t *tables, uint32_t pages_per_slot, uint32_t n_pages)
{
    struct reference *r = calloc(1, sizeof *r);
    const struct attend_args *in = &c->args.attend;
    if (!r || slots_open(&r->slots, ATTEND_CASE_SLOTS, c->shape.n_ctx, NULL) < 0)
        abort();
    for (uint32_t s = 0; s < ATTEND_CASE_SLOTS; s++)
        memcpy(r->slots.tables + (size_t)s * r->slots.pages_per_slot, tables + (size_t)s * pages_per_slot,
               pages_per_slot * sizeof *tables);
    r->shape = c->shape;
    r->a.ops = &ops_scalar;
    r->a.kv = in->layout;
    r->a.n_heads = in->n_heads;
    r->a.rope_dim = in->rope_dim;
    r->a.neox = in->neox;
    r->a.cosines = cosines;
    r->a.sines = sines;
    r->a.window = in->window;
    r->a.cap = in->cap;
    r->a.temperatures = (const float *)(uintptr_t)in->temperatures;
    r->sinks = (const float *)(uintptr_t)in->sinks;
    r->v_normed = in->v_normed;
    r->cached = in->cached;
    attend_open(&r->a, c->shape.n_ctx);
    r->a.pages = room(n_pages * kv_page_size(&r->a.kv));
    r->scratch_memory = room(attend_scratch_size(&r->a));
    attend_scratch_set(&r->a, &r->scratch, r->scratch_memory);
    r->q_gain = (const float *)(uintptr_t)in->q_gain;
    r->k_gain = (const float *)(uintptr_t)in->k_gain;
    r->eps = in->eps;
    r->scale = in->scale;
    r->in_stride = in->in_stride;
    r->out_stride = in->out_stride;
    r->q_col = in->q_col;
    r->k_col = in->k_col;
    r->v_col = in->v_col;
    return r;
}

void reference_close(struct reference *r)
{
    slots_close(&r->slots);
    free(r->a.pages);
    free(r->scratch_memory);
    free(r);
}

void reference_append(struct reference *r, uint32_t slot, uint32_t pos, uint32_t kv_head, const float *k,
                      const float *v)
{
    static struct step one;
    one.n_rows = 1;
    one.rows[0] = (struct step_row){.slot = slot, .pos = pos};
    attend_plan(&r->a, &one, &r->slots, 1);
    attend_append(&r->a, 1, 0, kv_head, k, v);
}

/* Does what prepare_heads() of lib/cpu/persistent.c does. */
static void prepare(struct reference *r, float *in, uint32_t row, uint32_t kv_head)
{
    struct attend *a = &r->a;
    uint32_t head_dim = a->kv.head_dim;
    float *q = in + r->q_col + (size_t)kv_head * a->ratio * head_dim;
    float *k = in + r->k_col + (size_t)kv_head * head_dim, *v = in + r->v_col + (size_t)kv_head * head_dim;
    for (uint32_t h = 0; r->q_gain && h < a->ratio; h++)
        a->ops->norm_head(q + (size_t)h * head_dim, r->q_gain, head_dim, r->eps);
    attend_rope(a, row, q, a->ratio);
    if (r->cached)
        return;
    if (r->q_gain)
        a->ops->norm_head(k, r->k_gain, head_dim, r->eps);
    if (r->v_normed)
        a->ops->norm_head(v, NULL, head_dim, r->eps);
    attend_rope(a, row, k, 1);
    attend_append(a, 1, row, kv_head, k, v);
}

void reference_step(struct reference *r, const struct attend_case *c, const struct step *step, float *in,
                    float *out)
{
    struct attend *a = &r->a;
    struct attend_layer layer = {1, r->scale, r->sinks};
    (void)c;
    attend_plan(a, step, &r->slots, 1);
    for (uint32_t row = 0; row < step->n_rows; row++)
        for (uint32_t h = 0; h < a->kv.n_kv_heads; h++)
            prepare(r, in + row * r->in_stride, row, h);
    for (uint32_t g = 0; g < a->n_groups; g++)
        for (uint32_t h = 0; h < a->kv.n_kv_heads; h++)
            attend_group(a, &r->scratch, &layer, g, h, (struct rows){in + r->q_col, r->in_stride},
                         (struct rows){out, r->out_stride});
}

/* The place of element d of token t in the cpu's tile (ops.h), in elements. */
static size_t cpu_element(const struct reference *r, enum kv_which which, uint32_t t, uint32_t d)
{
    uint32_t n = r->a.kv.head_dim, i = 0, type = r->a.kv.type;
    uint32_t together = type == KV_Q8_0 ? 4 : type == KV_BF16 ? 2 : 1; /* dimensions, or tokens */
    if (which == KV_VALUES)
        return (size_t)(t / together) * n * together + (size_t)d * together + t % together;
    if (together > 1)
        return (size_t)(t / 16) * n * 16 + (size_t)(d / together) * together * 16 + t % 16 * together +
               d % together;
    while (r->a.order.dims[i] != d)
        i++;
    return (size_t)(t / 16) * n * 16 + (size_t)i * 16 + t % 16;
}

/* One element or scale: where in the cpu's tile, where in the device's, its size, and the bits in which they
 * differ. */
struct pair {
    size_t cpu, device, size;
    char flip;
};

static struct pair element_pair(const struct reference *r, enum kv_which which, uint32_t t, uint32_t d)
{
    struct kv_tile k = kv_tile_of(r->a.kv.head_dim, r->a.kv.type);
    size_t size = r->a.kv.type == KV_Q8_0 ? 1 : 2;
    size_t device = (size_t)t * k.row_bytes + kv_tile_place(&k, t, d);
    if (r->a.kv.head_dim % 32) /* linear_tile.h */
        device = t * (kv_tile_elements(&r->a.kv) / KV_PAGE_TOKENS) + d * size;
    char flip = r->a.kv.type == KV_Q8_0 && which == KV_KEYS ? (char)0x80 : 0;
    return (struct pair){cpu_element(r, which, t, d) * size, device, size, flip};
}

static struct pair scale_pair(const struct reference *r, uint32_t t, uint32_t b)
{
    size_t elements = kv_tile_elements(&r->a.kv), blocks = (r->a.kv.head_dim + 31) / 32;
    return (struct pair){elements + (b * KV_PAGE_TOKENS + t) * 2, elements + (t * blocks + b) * 2, 2, 0};
}

/* Calls for every part of every token; stops when told. */
static bool each(const struct reference *r, const uint32_t *lengths,
                 bool (*visit)(void *context, size_t tile, struct pair p, uint32_t slot, uint32_t pos),
                 void *context)
{
    const struct kv_layout *l = &r->a.kv;
    uint32_t n_scales = l->type == KV_Q8_0 ? (l->head_dim + 31) / 32 : 0;
    for (uint32_t slot = 0; slot < ATTEND_CASE_SLOTS; slot++)
        for (uint32_t pos = 0; pos < lengths[slot]; pos++) {
            uint32_t page = slots_table(&r->slots, slot)[pos / KV_PAGE_TOKENS], t = pos % KV_PAGE_TOKENS;
            for (uint32_t h = 0; h < l->n_kv_heads; h++)
                for (int which = KV_KEYS; which <= KV_VALUES; which++) {
                    size_t tile = kv_offset(l, page, 1, h, (enum kv_which)which);
                    for (uint32_t d = 0; d < l->head_dim; d++)
                        if (!visit(context, tile, element_pair(r, (enum kv_which)which, t, d), slot, pos))
                            return false;
                    for (uint32_t b = 0; b < n_scales; b++)
                        if (!visit(context, tile, scale_pair(r, t, b), slot, pos))
                            return false;
                }
        }
    return true;
}

struct visitor {
    const struct reference *r;
    char *to;
    const char *from;
    char *where;
    size_t size;
};

static bool put(void *context, size_t tile, struct pair p, uint32_t slot, uint32_t pos)
{
    struct visitor *v = context;
    (void)slot;
    (void)pos;
    for (size_t i = 0; i < p.size; i++)
        v->to[tile + p.device + i] = (char)((char)v->r->a.pages[tile + p.cpu + i] ^ p.flip);
    return true;
}

void reference_to_device(const struct reference *r, const uint32_t *lengths, char *kv)
{
    struct visitor v = {.r = r, .to = kv};
    each(r, lengths, put, &v);
}

static bool same(void *context, size_t tile, struct pair p, uint32_t slot, uint32_t pos)
{
    struct visitor *v = context;
    size_t i = 0;
    while (i < p.size &&
           v->from[tile + p.device + i] == (char)((char)v->r->a.pages[tile + p.cpu + i] ^ p.flip))
        i++;
    if (i == p.size)
        return true;
    snprintf(v->where, v->size, "cache of slot %u, position %u, byte %zu of the tile at %zu", slot, pos,
             p.device, tile);
    return false;
}

bool reference_equals(const struct reference *r, const uint32_t *lengths, const char *kv, char *where,
                      size_t size)
{
    struct visitor v = {.r = r, .from = kv, .where = where, .size = size};
    return each(r, lengths, same, &v);
}
