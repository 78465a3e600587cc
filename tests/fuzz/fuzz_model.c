/* fuzz_model - any bytes as a model's file, all the way: opened, drawn as a graph, made a program, packed by
 * the cpu backend and run for a few tokens. It is refused with words or gives numbers. */
#include "backend/executor.h"
#include "fuzz_file.h"
#include "model/graph.h"
#include "cli/inspect.h"
#include "model/model.h"
#include "model/program.h"

#include <errno.h>
#include <math.h>

enum { N_ROWS = 3, N_CTX = 64 };

static void check_config(const struct model_config *c)
{
    CHECK(c->n_layers >= 1 && c->n_layers <= MODEL_MAX_LAYERS && c->n_vocab >= 2);
    CHECK(c->n_kv_heads && c->n_heads % c->n_kv_heads == 0);
    CHECK(c->head_dim % 2 == 0 && c->head_dim <= MODEL_MAX_HEAD_DIM);
    CHECK(c->kinds[0].rope.dim % 2 == 0 && c->kinds[0].rope.dim <= c->head_dim);
    CHECK(isfinite(c->norm_eps) && c->norm_eps > 0 && isfinite(c->kinds[0].rope.base) &&
          c->kinds[0].rope.base > 0);
}

/* `hearthd inspect --graph --program`. */
static void describe(const struct model *m)
{
    struct graph *g;
    struct program *p = NULL;
    struct error err = {0};
    CHECK(graph_open(&g, m, &err) == 0); /* model_open() has drawn it once */
    int rc = program_open(&p, g, &err);
    CHECK(rc == 0 || (err.code == rc && err.text[0]));
    struct inspection in = {.gguf = model_gguf(m), .model = m, .graph = g, .program = p};
    if (p)
        CHECK(inspection_memory(&in).n_ctx >= 1);
    char *text = graph_print(g), *ops = p ? program_print(p, g) : NULL;
    CHECK(text && (ops || !p));
    free(text);
    free(ops);
    program_close(p);
    graph_close(g);
}

static void step(struct executor *x, const struct model_config *c)
{
    static struct step s;
    struct step_result out[STEP_MAX_LOGITS];
    struct error err = {0};
    s = (struct step){.id = 1, .n_rows = N_ROWS, .n_logits = 1, .n_edits = 1, .n_slots = 1};
    s.edits[0] = (struct step_table_edit){0};
    s.slots[0].sampling = (struct step_sampling){STEP_SAMPLING_NEUTRAL};
    for (uint32_t i = 0; i < N_ROWS; i++)
        s.rows[i] = (struct step_row){
            .pos = i, .token = (int32_t)(i % c->n_vocab), .logit_index = i + 1 < N_ROWS ? STEP_NO_LOGITS : 0};
    s.logits[0] = (struct step_logit){.row = N_ROWS - 1, .target = -1};
    CHECK(executor_submit(x, &s, &err) == 0);
    int n = 0;
    while (n == 0)
        n = executor_advance(x, out, STEP_MAX_LOGITS, NULL, &err);
    CHECK(n == 1 && out[0].pos == N_ROWS - 1);
    CHECK((out[0].flags & STEP_RESULT_NOT_FINITE) ||
          (out[0].token >= 0 && (uint32_t)out[0].token < c->n_vocab));
}

static void run(const struct model *m, enum executor_kind kind)
{
    const struct model_config *c = model_config(m);
    struct backend_config cfg = {.n_threads = 1,
                                 .isa = "scalar",
                                 .n_slots = 1,
                                 .n_ctx = N_CTX,
                                 .kv_memory = 1 << 22,
                                 .steps_in_flight = 1};
    struct executor *x;
    struct error err = {0};
    int rc = executor_open(&x, kind, &cpu_backend, &cfg, m, &err);
    if (rc < 0) {
        CHECK(err.code == rc && err.text[0]);
        return;
    }
    step(x, c);
    executor_close(x);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct model *m;
    struct error err = {0};
    if (!size)
        return 0;
    struct fuzz_file f = fuzz_file_open(data, size);
    int rc = model_open(&m, f.path, &err);
    fuzz_file_close(&f);
    if (rc < 0) {
        CHECK(err.code == rc && err.text[0]);
        return 0;
    }
    check_config(model_config(m));
    CHECK(model_hash(m, 1) == model_hash(m, 1) && model_hash(m, 1) != model_hash(m, 2));
    describe(m);
    run(m, model_config(m)->n_layers % 2 ? EXECUTOR_PERSISTENT : EXECUTOR_EAGER);
    model_close(m);
    return 0;
}
