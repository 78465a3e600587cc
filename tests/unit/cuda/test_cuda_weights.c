/* What the device's weights become, before any device is asked for memory. */
#include "abi/tile.h"
#include "cuda/cuda_weights.h"
#include "model/graph.h"
#include "model/program.h"
#include "support/models/variant_model.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#define BASE "tiny-qwen3moe-s32-q4_k_m"
enum { COLS = 256, EXPERTS = 6 };

struct opened {
    struct model *m;
    struct graph *g;
    struct cuda_weights w;
    char note[256];
};

/* The model with this router in its first layer. */
static void open_with(struct opened *o, const float *router)
{
    const struct variant_edit edit = {VARIANT_TENSOR,  "blk.0.ffn_gate_inp.weight",
                                      QUANT_F32,       .cols = COLS,
                                      .rows = EXPERTS, .bytes = router};
    struct error err = {0};
    *o = (struct opened){.m = edited(BASE, &edit, 1)};
    cr_assert_eq(graph_open(&o->g, o->m, &err), 0, "%s", err.text);
    cr_assert_eq(cuda_weights_open(&o->w, o->g, &err), 0, "%s", err.text);
    cuda_weights_note(&o->w, o->g, o->note, sizeof o->note);
}

static void close_opened(struct opened *o)
{
    cuda_weights_close(&o->w, NULL);
    graph_close(o->g);
    model_close(o->m);
}

static uint32_t type_of(const struct opened *o, const char *name)
{
    for (uint32_t i = 0; i < o->w.n; i++)
        if (strcmp(model_weight(o->m, i)->name, name) == 0)
            return o->w.matrices[i].type;
    cr_assert(false, "no %s", name);
    return TILE_NONE;
}

static void fill(float *router)
{
    for (uint32_t i = 0; i < COLS * EXPERTS; i++)
        router[i] = (float)((int)(i * 37 % 255) - 127) * 0x1p-9f; /* eight bits */
}

Test(cuda_weights, a_router_of_floats_that_bf16_holds_is_packed_as_bf16)
{
    static float router[COLS * EXPERTS];
    struct opened half, whole;
    fill(router);
    open_with(&half, router);
    cr_expect_eq(type_of(&half, "blk.0.ffn_gate_inp.weight"), TILE_BF16);
    cr_expect_eq(type_of(&half, "blk.1.ffn_gate_inp.weight"), TILE_F32, "random ones are not");
    cr_expect_not_null(strstr(half.note, "F32 as BF16"), "%s", half.note);
    router[COLS * EXPERTS - 1] = 0x1.0001p-2f; /* the last value */
    open_with(&whole, router);
    cr_expect_eq(type_of(&whole, "blk.0.ffn_gate_inp.weight"), TILE_F32);
    cr_expect_null(strstr(whole.note, "F32"), "%s", whole.note);
    cr_expect_eq(whole.w.size - half.w.size, (size_t)TILE_ROWS * COLS * 2);
    close_opened(&half);
    close_opened(&whole);
}

Test(cuda_weights, a_router_that_cannot_be_read_is_an_error)
{
    static const struct variant_edit edit = {VARIANT_BOOL, "general.edited", 1};
    struct error err = {0};
    struct cuda_weights w;
    struct graph *g;
    struct model *m;
    char path[64];
    variant_write(path, BASE, &edit, 1);
    cr_assert_eq(model_open(&m, path, &err), 0, "%s", err.text);
    cr_assert_eq(graph_open(&g, m, &err), 0, "%s", err.text);
    cr_assert_eq(truncate(path, (off_t)gguf_tensor_at(model_gguf(m), 0)->offset), 0);
    cr_expect_eq(cuda_weights_open(&w, g, &err), -EIO);
    cr_expect(strstr(err.text, path) && strstr(err.text, "cut short"), "%s", err.text);
    cuda_weights_close(&w, NULL);
    graph_close(g);
    model_close(m);
    unlink(path);
}
