/* cmd_inspect.c - `hearthd inspect`: what is in a model's file, and the memory that it will take. */
#include "commands.h"
#include "backend/backend.h"
#include "engine/engine.h"
#include "base/escape.h"
#include "base/memory.h"
#include "inspect.h"

#include "model/graph.h"
#include "model/kv_plan.h"
#include "abi/kv_layout.h"
#include "model/model.h"
#include "model/program.h"
#include "gguf/quant.h"
#include "service/models/runtime.h"
#include "abi/step.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN_ITEMS 6   /* of an array of metadata */
#define SHOWN_BYTES 100 /* of a text */
#define MAX_N_CTX   (1u << 24)
#define MOST_STEPS  2 /* in flight */

static int usage(void)
{
    fputs("usage: hearthd inspect MODEL [--graph] [--program] [--json]\n"
          "       hearthd inspect --supported\n",
          stderr);
    return EXIT_USAGE;
}

/* The KV cache on cpu of one slot of n_ctx tokens. */
static struct kv_plan slot_plan(const struct model_config *c, uint32_t kv_type, uint64_t n_ctx)
{
    struct kv_plan_config cfg = {.kv_type = kv_type,
                                 .n_slots = 1,
                                 .n_ctx = (uint32_t)n_ctx,
                                 .rows_in_flight = MOST_STEPS * STEP_MAX_ROWS,
                                 .limit = UINT64_MAX};
    return kv_plan_of(c, &cfg);
}

/* Sets how large a context of one slot can be: each token takes its keys and values, and a row of the tables
 * of rotations. */
static void set_fits(struct inspection_memory *m, const struct model_config *c)
{
    uint64_t fixed = m->weights + m->scratch + m->states + m->sampling, per_token = 0, low = 0;
    for (uint32_t i = 0; i < c->n_kinds; i++)
        per_token += c->kinds[i].rope.dim * sizeof(float);
    m->available = memory_available();
    for (uint64_t high = MAX_N_CTX / KV_PAGE_TOKENS; m->available > fixed && low < high;) {
        uint64_t n = (low + high + 1) / 2;
        struct kv_plan plan = slot_plan(c, (uint32_t)m->kv_type, n * KV_PAGE_TOKENS);
        if (kv_plan_size(&plan) + n * KV_PAGE_TOKENS * per_token <= m->available - fixed)
            low = n;
        else
            high = n - 1;
    }
    m->n_ctx_fits = low * KV_PAGE_TOKENS;
}

/* The weights on cpu; of a file that cpu cannot pack, its own bytes. */
static uint64_t weights_of(const struct inspection *in)
{
    size_t size = 0;
    return cpu_backend.weights_size(in->graph, &size, NULL) == 0 ? size : gguf_file_size(in->gguf);
}

struct inspection_memory inspection_memory(const struct inspection *in)
{
    const struct model_config *c = model_config(in->model);
    const struct config defaults = {.kv_type = CONFIG_KV_AUTO};
    const struct kv_layout kv = model_kv_layout(c, 0, runtime_kv_type(&defaults, in->model));
    struct inspection_memory m = {.kv_type = (int)kv.type, .kv_per_page = kv_page_size(&kv)};
    m.n_ctx = runtime_default_n_ctx(c);
    m.kv_per_token = m.kv_per_page / KV_PAGE_TOKENS;
    struct kv_plan plan = slot_plan(c, kv.type, m.n_ctx);
    m.kv_per_slot = kv_plan_size(&plan);
    m.windows = plan.n_windows * plan.window_bytes;
    m.states = model_state_size(c);
    m.scratch = (uint64_t)in->program->row_floats * sizeof(float) * STEP_MAX_ROWS +
                (uint64_t)c->n_vocab * sizeof(float) * STEP_MAX_LOGITS;
    m.sampling = engine_draw_size(1, 1, c->n_vocab, m.n_ctx);
    m.weights = weights_of(in);
    set_fits(&m, c);
    return m;
}

/* Text from the file for a terminal, long text cut. */
static void print_text(const char *s, size_t len)
{
    size_t shown = len < SHOWN_BYTES ? len : SHOWN_BYTES;
    while (shown < len && shown > 0 && ((unsigned char)s[shown] & 0xc0) == 0x80)
        shown--; /* not inside a character */
    escape_print(stdout, s, shown, ESCAPE_LINE);
    if (shown < len)
        printf(" … (%zu bytes)", len);
}

/* Bytes of one number of each gguf_type. */
static const uint8_t number_sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

struct inspection_number inspection_number(uint32_t type, const uint8_t *data)
{
    struct inspection_number v = {0};
    float f32;
    double f64;
    if (type >= sizeof number_sizes)
        return v;
    memcpy(&v.u, data, number_sizes[type]); /* little-endian, as the file is */
    unsigned unused_bits = 64 - 8 * number_sizes[type];
    bool is_signed = type == GGUF_I8 || type == GGUF_I16 || type == GGUF_I32 || type == GGUF_I64;
    v.kind = is_signed ? INSPECTION_SIGNED : INSPECTION_UNSIGNED;
    v.i = is_signed ? (int64_t)(v.u << unused_bits) >> unused_bits : (int64_t)v.u;
    if (type == GGUF_F32) {
        memcpy(&f32, data, sizeof f32);
        v.f = (double)f32;
    } else if (type == GGUF_F64) {
        memcpy(&f64, data, sizeof f64);
        v.f = f64;
    }
    if (type == GGUF_F32 || type == GGUF_F64)
        v.kind = INSPECTION_REAL;
    if (type == GGUF_BOOL)
        v.kind = INSPECTION_BOOL;
    return v;
}

static void print_number(uint32_t type, const uint8_t *data)
{
    struct inspection_number v = inspection_number(type, data);
    if (v.kind == INSPECTION_BOOL)
        fputs(v.i ? "true" : "false", stdout);
    else if (v.kind == INSPECTION_REAL)
        printf("%.*g", type == GGUF_F32 ? 7 : 15, v.f);
    else if (v.kind == INSPECTION_SIGNED)
        printf("%" PRId64, v.i);
    else
        printf("%" PRIu64, v.u);
}

static void print_array(const struct gguf_value *v)
{
    struct gguf_str s;
    size_t cursor = 0;
    printf("%" PRIu64 " items: ", v->n);
    for (uint64_t i = 0; i < v->n && i < SHOWN_ITEMS; i++) {
        fputs(i ? ", " : "", stdout);
        if (v->item_type == GGUF_STR && gguf_next_str(v, &cursor, &s))
            print_text(s.s, s.len);
        else if (v->item_type != GGUF_STR)
            print_number(v->item_type, v->data + i * (v->size / v->n));
    }
    fputs(v->n > SHOWN_ITEMS ? ", …" : "", stdout);
}

static void print_metadata(const struct gguf *g)
{
    printf("\nmetadata (%zu)\n", gguf_n_values(g));
    for (size_t i = 0; i < gguf_n_values(g); i++) {
        const struct gguf_value *v = gguf_value_at(g, i);
        fputs("  ", stdout);
        print_text(v->key.s, v->key.len);
        fputs(" = ", stdout);
        if (v->type == GGUF_ARR)
            print_array(v);
        else if (v->type == GGUF_STR)
            print_text((const char *)v->data + 8, v->size - 8);
        else
            print_number(v->type, v->data);
        putchar('\n');
    }
}

static void print_tensors(const struct gguf *g)
{
    printf("\ntensors (%zu)\n", gguf_n_tensors(g));
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        printf("  %-7s [%" PRIu64, quant_name(t->type), t->ne[0]);
        for (uint32_t d = 1; d < t->n_dims; d++)
            printf(", %" PRIu64, t->ne[d]);
        printf("] %zu bytes  ", t->size);
        print_text(t->name, strlen(t->name));
        putchar('\n');
    }
}

static void print_types(const struct gguf *g)
{
    puts("\ntypes");
    for (uint32_t type = 0; type < 64; type++) {
        size_t n = 0, bytes = 0;
        for (size_t i = 0; i < gguf_n_tensors(g); i++) {
            const struct gguf_tensor *t = gguf_tensor_at(g, i);
            n += t->type == type;
            bytes += t->type == type ? t->size : 0;
        }
        if (n)
            printf("  %-7s %5zu tensors %12zu bytes%s\n", quant_name(type), n, bytes,
                   quant_traits(type) ? "" : "  (not supported)");
    }
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

static void print_model(const struct inspection *in)
{
    const struct model_config *c = model_config(in->model);
    print_text(c->name, strlen(c->name));
    printf("\n  architecture  %s, %s, %.1f million parameters\n", c->arch, c->quantization,
           (double)c->n_params / 1e6);
    printf("  layers        %u of width %u, feed-forward %u\n", c->n_layers, c->n_embd, c->n_ff);
    if (c->experts.n_experts)
        printf("  experts       %u of %u of width %u, shared %u, dense layers %u\n", c->experts.n_used,
               c->experts.n_experts, c->experts.n_ff, c->experts.n_ff_shared, c->experts.n_dense);
    if (c->n_recurrent)
        printf("  recurrent     %u layers (delta nets), %u heads of %u on %u key heads of %u, convolution of "
               "%u\n",
               c->n_recurrent, c->delta.n_value_heads, c->delta.value_dim, c->delta.n_key_heads,
               c->delta.key_dim, c->delta.n_taps);
    printf("  attention     %u heads of %u on %u key/value heads\n", c->n_heads, c->head_dim, c->n_kv_heads);
    printf("  positions     %u, RoPE %s over %u, base %g, scale %g%s%s\n", c->n_ctx_train,
           c->rope == MODEL_ROPE_NEOX ? "neox" : "norm", c->kinds[0].rope.dim, c->kinds[0].rope.base,
           c->kinds[0].rope.scale, c->kinds[0].rope.yarn ? " (yarn)" : "",
           c->kinds[0].rope.factors ? ", with factors" : "");
    if (c->sliding_window)
        printf("  window        %u tokens: a larger context is refused\n", c->sliding_window);
    printf("  vocabulary    %u tokens, output weight %s\n", c->n_vocab,
           c->tied ? "tied to the embedding" : "separate");
    printf("  program       %u ops for %u graph nodes\n", in->program->n_ops, graph_n_launches(in->graph));
}

/* Matrices that take more memory than the file's, since it has a factor for each of them: all but NVFP4. */
static uint32_t n_multiplied(const struct model *m)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < model_n_weights(m); i++)
        n += model_weight(m, i)->multiplied && model_weight(m, i)->type != QUANT_NVFP4_SCALED;
    return n;
}

static void print_memory(const struct inspection *in)
{
    struct inspection_memory m = inspection_memory(in);
    uint32_t n = n_multiplied(in->model);
    puts("\nmemory");
    printf("  weights       %10.1f MiB\n", mib(m.weights));
    if (n)
        printf("  factors       %10u matrices are kept as F16 or F32, times their factors (X.scale)\n", n);
    printf("  KV cache      %10.3f MiB per page of %u tokens (%s), %.1f MiB for a slot of %u tokens\n",
           mib(m.kv_per_page), KV_PAGE_TOKENS, config_kv_type_name(m.kv_type), mib(m.kv_per_slot), m.n_ctx);
    if (m.windows)
        printf("  windows       %10.1f MiB of them, for layers that see the last %u tokens\n", mib(m.windows),
               slot_plan(model_config(in->model), (uint32_t)m.kv_type, m.n_ctx).window);
    if (m.states)
        printf("  states        %10.1f MiB for a slot, of %u recurrent layers\n", mib(m.states),
               model_config(in->model)->n_recurrent);
    printf("  activations   %10.1f MiB for a step of %u rows\n", mib(m.scratch), STEP_MAX_ROWS);
    printf("  sampling      %10.1f MiB for a slot\n", mib(m.sampling));
    if (m.n_ctx_fits)
        printf("  fits          %10llu tokens of one slot, of %.0f MiB that are available\n",
               (unsigned long long)m.n_ctx_fits, mib(m.available));
    else
        printf("  fits          no: it takes %.0f MiB, and %.0f MiB are available\n",
               mib(m.weights + m.scratch + m.states + m.sampling + m.kv_per_page), mib(m.available));
}

/* Prints a malloc'ed text of lib/. */
static int print_and_free(char *text)
{
    if (!text)
        return -ENOMEM;
    fputs(text, stdout);
    free(text);
    return 0;
}

static int print_inspection(const struct inspection *in)
{
    int rc = 0;
    if (in->show_graph)
        rc = print_and_free(graph_print(in->graph));
    if (rc == 0 && in->show_program)
        rc = print_and_free(program_print(in->program, in->graph));
    if (in->show_graph || in->show_program)
        return rc;
    escape_print(stdout, in->path, strlen(in->path), ESCAPE_LINE);
    printf(": GGUF version %u, %zu bytes\n", gguf_version(in->gguf), gguf_file_size(in->gguf));
    if (in->model) {
        print_model(in);
        print_memory(in);
    }
    print_types(in->gguf);
    print_metadata(in->gguf);
    print_tensors(in->gguf);
    return 0;
}

struct inspect_options {
    const char *path;
    bool graph, program, json, supported;
};

static bool read_options(int argc, char **argv, struct inspect_options *o)
{
    static const struct option options[] = {{"graph", no_argument, NULL, 'g'},
                                            {"program", no_argument, NULL, 'p'},
                                            {"json", no_argument, NULL, 'j'},
                                            {"supported", no_argument, NULL, 's'},
                                            {0}};
    *o = (struct inspect_options){0};
    optind = 0; /* start over: another command line may have been read before */
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        o->graph |= c == 'g';
        o->program |= c == 'p';
        o->json |= c == 'j';
        o->supported |= c == 's';
        if (c == '?')
            return false;
    }
    o->path = optind == argc - 1 ? argv[optind] : NULL;
    return o->supported ? argc == 2 : o->path != NULL;
}

/* The list that README.md is written from (tests/checks/readme.sh). */
static int print_supported(void)
{
    puts("architectures");
    for (size_t i = 0; arch_at(i); i++) {
        const char *models = arch_at(i)->models;
        printf("  %-*s%s\n", models ? 13 : 0, arch_at(i)->name, models ? models : "");
    }
    printf("\nweight types\n ");
    for (uint32_t type = 0; type < 64; type++)
        if (quant_traits(type))
            printf(" %s", quant_name(type));
    puts("");
    return command_flush();
}

/* Prints what there is to print: of a file that is no model for Hearth, metadata and tensors. `why` says what
 * is wrong with it as a model. */
static int show(const struct inspect_options *o, struct inspection *in, struct error *why)
{
    struct error err = {0};
    in->error = why->code ? why->text : NULL;
    if (why->code && !o->json && (o->graph || o->program))
        return exit_fail(why);
    int rc = o->json ? inspection_print_json(in) : print_inspection(in);
    if (rc < 0 && !ferror(stdout)) {
        error_set(&err, rc, "%s: out of memory", o->path);
        (void)exit_fail(&err);
        return EXIT_INTERNAL;
    }
    if (command_flush() != EXIT_CLEAN)
        return EXIT_INTERNAL;
    return why->code ? exit_fail(why) : EXIT_CLEAN;
}

int cmd_inspect(int argc, char **argv)
{
    struct inspect_options o;
    if (!read_options(argc, argv, &o))
        return usage();
    if (o.supported)
        return print_supported();
    struct error err = {0};
    struct gguf *g = NULL;
    struct model *m = NULL;
    struct graph *graph = NULL;
    struct program *program = NULL;
    if (gguf_open(&g, o.path, &err) < 0)
        return exit_fail(&err);
    struct inspection in = {.path = o.path, .gguf = g, .show_graph = o.graph, .show_program = o.program};
    int rc = model_open(&m, o.path, &err);
    if (rc == 0)
        rc = graph_open(&graph, m, &err);
    if (rc == 0)
        rc = program_open(&program, graph, &err);
    if (rc == 0) {
        in.model = m;
        in.graph = graph;
        in.program = program;
    }
    int code = show(&o, &in, &err);
    program_close(program);
    graph_close(graph);
    model_close(m);
    gguf_close(g);
    return code;
}
