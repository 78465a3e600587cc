/* gpu_witness.c - checks that backend cuda computes what backend cpu does, before its speed is measured.
 *   gpu_witness first DIR TOKENS     one of the recorded models, persistent
 *   gpu_witness nodes DIR TOKENS     the same node by node, and the first node that differs
 *   gpu_witness golden DIR           logits of the recorded models (DIR/NAME.json)
 *   gpu_witness tokens MODEL PROMPTS TOKENS AT_ONCE [KV_TYPE]  texts of random prompts, greedy and sampled
 * golden and tokens use every executor of the device. Logits and log-probabilities must be equal in every
 * bit, and recorded ones within cpu's bounds. JSON on stdout; exit code 0 only if all checks pass.
 * HEARTH_LIBCUDA selects the driver. */
#include "gpu.h"
#include "support/golden.h"
#include "support/node_compare.h"
#include "base/clock.h"
#include "engine/engine.h"
#include "backend/executor.h"
#include "model/model.h"

#include <errno.h>
#include <semaphore.h>

#define WORST_ERROR 0.045 /* most at a position; int8 against float64 weights, golden.h */
#define MEAN_ERROR  0.030
#define CHUNK       24 /* prompt tokens of a step */

static const enum executor_kind kinds[] = {EXECUTOR_PERSISTENT, EXECUTOR_GRAPH, EXECUTOR_EAGER};
static const char *const kind_names[] = {
    [EXECUTOR_PERSISTENT] = "persistent", [EXECUTOR_EAGER] = "eager", [EXECUTOR_GRAPH] = "graph"};

static const char *const kv_names[KV_N_TYPES] = {[KV_F16] = "f16", [KV_Q8_0] = "q8_0", [KV_BF16] = "bf16"};

static int open_executor(struct executor **x, const struct backend_ops *ops, enum executor_kind kind,
                         enum kv_type kv_type, const struct model *m, uint32_t n_slots, uint32_t n_ctx,
                         struct error *err)
{
    struct backend_config cfg = {.isa = "auto",
                                 .libcuda = getenv("HEARTH_LIBCUDA"),
                                 .n_slots = n_slots,
                                 .n_ctx = n_ctx,
                                 .kv_type = kv_type,
                                 .steps_in_flight = 2,
                                 .park_after_ms = 30000};
    return executor_open(x, kind, ops, &cfg, m, err);
}

/* The places where a decoder hung, for the report. */
static void say_account(const struct executor *x)
{
    struct backend_info info = {0};
    if (x)
        executor_info(x, &info);
    if (info.account)
        (void)fputs(info.account, stderr);
}

static void put_device(json_t *out, const struct executor *x)
{
    struct backend_info info;
    executor_info(x, &info);
    gpu_put(out, "device", json_string(info.device));
    gpu_put(out, "emulated", json_boolean(strstr(info.device, "emulator") != NULL));
}

/* ---- golden ---- */

/* Makes a step of rows [first, last) of slot 0 with their logits. */
static void make_step(struct step *s, const int32_t *tokens, uint32_t first, uint32_t last)
{
    s->n_rows = s->n_logits = s->n_edits = 0;
    if (first == 0)
        s->edits[s->n_edits++] = (struct step_table_edit){0}; /* GOLDEN_MAX_TOKENS are one page */
    for (uint32_t i = first; i < last; i++) {
        s->rows[s->n_rows] =
            (struct step_row){.pos = i, .token = tokens[i], .logit_index = (uint16_t)s->n_logits};
        s->logits[s->n_logits++] =
            (struct step_logit){.row = (uint16_t)s->n_rows++, .target = -1, .flags = STEP_EXPORT};
    }
    s->id++;
}

static int run_step(struct executor *x, const struct step *s, struct error *err)
{
    struct step_result results[STEP_MAX_LOGITS];
    uint64_t done = 0;
    int n = 0, rc = executor_submit(x, s, err);
    while (rc >= 0 && (done < s->id || n < (int)s->n_logits)) {
        rc = executor_advance(x, results, STEP_MAX_LOGITS, &done, err);
        n += rc > 0 ? rc : 0;
    }
    return rc < 0 ? rc : 0;
}

/* *out: the logits of all tokens [n_tokens][n_vocab]; the caller frees them. */
static int make_logits(const struct golden *g, const struct backend_ops *ops, enum executor_kind kind,
                       float **out, json_t *report, struct error *err)
{
    struct model *m = NULL;
    struct executor *x = NULL;
    struct step *s = calloc(1, sizeof *s);
    float *logits = malloc((size_t)g->n_tokens * g->n_vocab * sizeof *logits);
    int rc = s && logits ? model_open(&m, g->model, err) : error_set(err, -ENOMEM, "out of memory");
    if (rc == 0)
        rc = open_executor(&x, ops, kind, KV_F16, m, 8, 256, err);
    for (uint32_t first = 0; rc == 0 && first < g->n_tokens; first += CHUNK) {
        uint32_t last = first + CHUNK < g->n_tokens ? first + CHUNK : g->n_tokens;
        make_step(s, g->tokens, first, last);
        rc = run_step(x, s, err);
        for (uint32_t i = first; rc == 0 && i < last; i++)
            memcpy(logits + (size_t)i * g->n_vocab, executor_logits(x, i - first),
                   g->n_vocab * sizeof *logits);
    }
    if (rc == 0 && ops != &cpu_backend)
        put_device(report, x);
    say_account(x);
    executor_close(x);
    model_close(m);
    free(s);
    if (rc < 0)
        free(logits);
    else
        *out = logits;
    return rc;
}

static int judge(const struct golden *g, const char *kind, const float *cpu, const float *cuda, json_t *rows,
                 struct error *err)
{
    double worst = 0, mean = 0;
    uint32_t n_unlike = 0;
    for (uint32_t i = 0; i < g->n_tokens; i++) {
        double e = golden_error(g, i, cuda + (size_t)i * g->n_vocab);
        worst = e <= worst ? worst : e; /* NaN is the worst */
        mean += e / g->n_tokens;
    }
    for (size_t i = 0; i < (size_t)g->n_tokens * g->n_vocab; i++)
        n_unlike += memcmp(&cpu[i], &cuda[i], sizeof *cpu) != 0;
    gpu_add(rows, json_pack("{s:s, s:s, s:i, s:f, s:f}", "model", g->name, "executor", kind,
                            "logits_unlike_cpu", (int)n_unlike, "worst_error", worst, "mean_error", mean));
    if (n_unlike)
        return error_set(err, -EIO, "%s, %s: %u of %u logits differ from cpu's", g->name, kind, n_unlike,
                         g->n_tokens * g->n_vocab);
    if (!(worst <= WORST_ERROR) || !(mean <= MEAN_ERROR))
        return error_set(err, -EIO, "%s, %s: error %.4f at worst, %.4f on average", g->name, kind, worst,
                         mean);
    return 0;
}

/* ---- where a wrong number comes from ---- */

static json_t *bits_of(const struct node_operand *o)
{
    char *text = malloc((size_t)o->width * 9 + 1);
    if (!text || !o->row) {
        free(text);
        return json_null();
    }
    for (uint32_t i = 0; i < o->width; i++)
        (void)snprintf(text + (size_t)i * 9, 10, "%08x ", node_bits(o->row[i]));
    json_t *value = json_stringn(text, (size_t)o->width * 9 - 1);
    free(text);
    return value;
}

/* Writes the difference with the whole rows that the node read, so that the kernel can be run on them. */
static void put_difference(json_t *report, const struct node_difference *d, const struct graph *g,
                           struct error *err)
{
    char words[400];
    json_t *inputs = json_array();
    node_difference_say(d, g, words, sizeof words);
    for (uint32_t i = 0; i < d->n_inputs; i++)
        gpu_add(inputs, json_pack("{s:s, s:f, s:o}", "node", g->nodes[d->inputs[i].node].name, "factor",
                                  (double)d->inputs[i].factor, "bits", bits_of(&d->inputs[i])));
    gpu_put(report, "difference", json_pack("{s:s, s:o}", "says", words, "inputs", inputs));
    (void)error_set(err, -EIO, "%.300s", words);
}

/* Runs the tokens on cpu and cuda node by node, in steps as make_logits() does. *err names the first node
 * that differs; without one it stays as it is. */
static int locate(const struct golden *g, json_t *report, struct error *err)
{
    struct model *m = NULL;
    struct executor *cpu = NULL, *cuda = NULL;
    struct node_difference d = {0};
    struct step *s = calloc(1, sizeof *s);
    int rc = s ? model_open(&m, g->model, err) : error_set(err, -ENOMEM, "out of memory");
    if (rc == 0)
        rc = open_executor(&cpu, &cpu_backend, EXECUTOR_EAGER, KV_F16, m, 8, 256, err);
    if (rc == 0)
        rc = open_executor(&cuda, &cuda_backend, EXECUTOR_EAGER, KV_F16, m, 8, 256, err);
    for (uint32_t first = 0; rc == 0 && first < g->n_tokens && !d.found; first += CHUNK) {
        make_step(s, g->tokens, first, first + CHUNK < g->n_tokens ? first + CHUNK : g->n_tokens);
        rc = node_compare(cpu, cuda, s, &d, err);
    }
    if (d.found)
        put_difference(report, &d, executor_graph(cpu), err);
    node_difference_close(&d);
    executor_close(cuda);
    executor_close(cpu);
    model_close(m);
    free(s);
    return rc;
}

/* A device whose executor failed may be lost or still busy: nothing else runs on it in this process. */
static int no_more(const char *what, const char *kind, const struct error *failed, struct error *err)
{
    (void)fprintf(stderr, "%s, %s: %s. Nothing else was run on this device\n", what, kind, failed->text);
    return error_set(err, failed->code, "%s, %s: %.250s", what, kind, failed->text);
}

/* *lost: an executor of the device failed. */
static int check_golden(const char *directory, const char *name, bool *lost, json_t *out, json_t *rows,
                        struct error *err)
{
    struct golden g;
    float *cpu = NULL;
    int first_error = 0;
    if (!golden_open(&g, directory, name))
        return error_set(err, -ENOENT, "%s/%s.json cannot be read", directory, name);
    int rc = make_logits(&g, &cpu_backend, EXECUTOR_PERSISTENT, &cpu, out, err);
    for (size_t k = 0; rc == 0 && k < sizeof kinds / sizeof *kinds; k++) {
        float *cuda = NULL;
        struct error failed = {0};
        if (make_logits(&g, &cuda_backend, kinds[k], &cuda, out, &failed) < 0) {
            *lost = true;
            rc = no_more(g.name, kind_names[kinds[k]], &failed, err);
            break;
        }
        int one = judge(&g, kind_names[kinds[k]], cpu, cuda, rows, err);
        free(cuda);
        if (one < 0 && !json_object_get(out, "difference")) {
            struct error where = {0};
            locate(&g, out, &where);
            (void)fprintf(stderr, "%s\n", where.code ? where.text : "node by node nothing differs");
        }
        first_error = first_error ? first_error : one;
    }
    free(cpu);
    golden_close(&g);
    return rc < 0 ? rc : first_error;
}

static int witness_golden(char **argv, json_t *out, struct error *err)
{
    json_t *rows = json_array();
    int rc = 0;
    gpu_put(out, "rows", rows);
    bool lost = false;
    for (size_t i = 0; i < GOLDEN_N_DATA && !lost; i++) {
        if (golden_is_of_nodes(golden_data_names[i]))
            continue;
        int one = check_golden(argv[0], golden_data_names[i], &lost, out, rows, err);
        rc = rc ? rc : one;
    }
    return rc;
}

/* ---- first ---- */

static int try_kind(const struct golden *g, enum executor_kind kind, const float *cpu, json_t *out,
                    json_t *rows, struct error *err)
{
    float *cuda = NULL;
    double begin = (double)clock_ns();
    int rc = make_logits(g, &cuda_backend, kind, &cuda, out, err);
    if (rc == 0)
        rc = judge(g, kind_names[kind], cpu, cuda, rows, err);
    gpu_add(rows, json_pack("{s:s, s:f, s:s}", "executor", kind_names[kind], "seconds",
                            ((double)clock_ns() - begin) * 1e-9, "says", rc == 0 ? "right" : err->text));
    free(cuda);
    return rc;
}

/* Runs one executor on the first tokens of a small model. `nodes` also finds the node whose numbers are
 * wrong. It is for a process of its own, after one whose decoder failed: there the device may be lost or
 * still busy. */
static int witness_one(char **argv, enum executor_kind kind, json_t *out, struct error *err)
{
    struct golden g;
    float *cpu = NULL;
    uint32_t n = (uint32_t)atoi(argv[1]);
    json_t *rows = json_array();
    gpu_put(out, "rows", rows);
    if (!n || !golden_open(&g, argv[0], golden_data_names[0]))
        return error_set(err, -ENOENT, "%s/%s.json cannot be read", argv[0], golden_data_names[0]);
    g.n_tokens = n < g.n_tokens ? n : g.n_tokens;
    int rc = make_logits(&g, &cpu_backend, EXECUTOR_PERSISTENT, &cpu, out, err);
    if (rc == 0)
        rc = try_kind(&g, kind, cpu, out, rows, err);
    free(cpu);
    struct error said = *err, where = {0};
    if (rc < 0 && kind == EXECUTOR_PERSISTENT) {
        *err = (struct error){0};
        error_set(
            err, rc,
            "%.200s. If part nodes passes, look at the persistent loop (waits, ring, words in host memory; "
            "parts first and hop)",
            said.text);
    } else if (rc < 0) {
        locate(&g, out, &where);
        *err = (struct error){0};
        error_set(err, rc, "%.300s. Look at the driver (part device), or the numbers (part selftest)",
                  where.code ? where.text : said.text);
    }
    golden_close(&g);
    return rc;
}

/* ---- tokens ---- */

struct texts { /* the generated texts of one backend and executor */
    uint32_t n, n_tokens, n_ctx, at_once, n_vocab;
    enum kv_type kv_type;
    int32_t *prompts; /* [n][MAX_PROMPT] */
    struct engine_request *requests;
    struct engine_token *out; /* [n][n_tokens] */
};
#define MAX_PROMPT 150

static uint32_t next(uint32_t *random)
{
    *random = *random * 1664525u + 1013904223u;
    return *random >> 8;
}

static struct engine_request text_request(const struct texts *t, uint32_t i)
{
    struct engine_request r = {.prompt = t->prompts + (size_t)i * MAX_PROMPT,
                               .n_prompt = 1 + i * 37 % MAX_PROMPT,
                               .max_tokens = t->n_tokens,
                               .ignore_eos = true,
                               .want_logprobs = true,
                               .sampling = {.seed = i, STEP_SAMPLING_NEUTRAL},
                               .out = t->out + (size_t)i * t->n_tokens};
    if (i % 3 == 1)
        r.sampling.temperature = 0.8f;
    if (i % 3 == 2) {
        r.sampling.temperature = 1.1f;
        r.sampling.top_k = 40;
        r.sampling.top_p = 0.95f;
        r.sampling.min_p = 0.02f;
        r.sampling.repetition_penalty = 1.1f;
        r.sampling.penalty_last_n = 64;
    }
    return r;
}

static void wake(void *news)
{
    sem_post(news);
}

static int generate(struct texts *t, struct engine *e, sem_t *news, struct error *err)
{
    uint32_t n_done = 0;
    int rc = 0;
    for (uint32_t i = 0; i < t->n && rc == 0; i++) {
        t->requests[i] = text_request(t, i);
        rc = engine_submit(e, &t->requests[i], err);
    }
    while (rc == 0 && n_done < t->n) {
        struct engine_request *r = engine_next(e);
        if (!r) {
            (void)sem_wait(news);
            continue;
        }
        if (atomic_load(&r->state) != ENGINE_DONE)
            continue;
        n_done++;
        if (r->finish != ENGINE_LENGTH)
            rc = engine_fault(e, err) ? err->code
                                      : error_set(err, -EIO, "a text ended with %d", (int)r->finish);
    }
    return rc;
}

static int write_texts(struct texts *t, const struct model *m, const struct backend_ops *ops,
                       enum executor_kind kind, json_t *report, struct error *err)
{
    struct executor *x = NULL;
    struct engine *e = NULL;
    sem_t news;
    struct engine_config cfg = {.n_slots = t->at_once,
                                .n_ctx = t->n_ctx,
                                .queue_limit = t->n,
                                .steps_in_flight = 2,
                                .wake = wake,
                                .context = &news};
    sem_init(&news, 0, 0);
    memset(t->out, 0xff, (size_t)t->n * t->n_tokens * sizeof *t->out);
    int rc = open_executor(&x, ops, kind, t->kv_type, m, t->at_once, t->n_ctx, err);
    if (rc == 0)
        rc = engine_open(&e, x, &cfg, err);
    if (rc == 0)
        rc = generate(t, e, &news, err);
    engine_close(e);
    if (rc == 0 && ops != &cpu_backend)
        put_device(report, x);
    say_account(x);
    executor_close(x);
    sem_destroy(&news);
    return rc;
}

/* Describes the first token that differs. */
static int compare(const struct texts *t, const struct engine_token *want, const char *kind,
                   struct error *err)
{
    for (uint32_t i = 0; i < t->n; i++)
        for (uint32_t k = 0; k < t->n_tokens; k++) {
            const struct engine_token *a = want + (size_t)i * t->n_tokens + k;
            const struct engine_token *b = t->out + (size_t)i * t->n_tokens + k;
            if (memcmp(a, b, sizeof *a) != 0)
                return error_set(err, -EIO, "%s: text %u, token %u is %d (%a), on cpu %d (%a)", kind, i, k,
                                 b->token, (double)b->logprob, a->token, (double)a->logprob);
        }
    return 0;
}

static int compare_executors(struct texts *t, const struct model *m, json_t *out, struct error *err)
{
    size_t size = (size_t)t->n * t->n_tokens * sizeof *t->out;
    struct engine_token *want = malloc(size);
    json_t *rows = json_array();
    gpu_put(out, "rows", rows);
    int rc = want ? write_texts(t, m, &cpu_backend, EXECUTOR_PERSISTENT, out, err) : -ENOMEM;
    if (rc == 0)
        memcpy(want, t->out, size);
    int first_error = rc;
    for (size_t k = 0; rc == 0 && k < sizeof kinds / sizeof *kinds; k++) {
        struct error failed = {0};
        if (write_texts(t, m, &cuda_backend, kinds[k], out, &failed) < 0)
            rc = no_more("texts", kind_names[kinds[k]], &failed, err);
        int one = rc < 0 ? rc : compare(t, want, kind_names[kinds[k]], err);
        gpu_add(rows, json_pack("{s:s, s:b}", "executor", kind_names[kinds[k]], "equal", one == 0));
        first_error = first_error ? first_error : one;
    }
    free(want);
    return first_error;
}

/* kv: name of the cache type, or NULL: f16. */
static int witness_tokens(char **argv, const char *kv, json_t *out, struct error *err)
{
    struct texts t = {.n = (uint32_t)atoi(argv[1]),
                      .n_tokens = (uint32_t)atoi(argv[2]),
                      .at_once = (uint32_t)atoi(argv[3])};
    struct model *m = NULL;
    uint32_t random = 12345;
    while (kv && t.kv_type < KV_N_TYPES && strcmp(kv, kv_names[t.kv_type]) != 0)
        t.kv_type++;
    if (t.kv_type == KV_N_TYPES)
        return error_set(err, -EINVAL, "KV_TYPE is f16, q8_0 or bf16 (got \"%s\")", kv);
    if (!t.n || !t.n_tokens || !t.at_once)
        return error_set(err, -EINVAL, "PROMPTS, TOKENS and AT_ONCE are numbers from 1");
    int rc = model_open(&m, argv[0], err);
    if (rc < 0)
        return rc;
    t.n_vocab = model_config(m)->n_vocab;
    t.n_ctx = (MAX_PROMPT + t.n_tokens + 63) / 64 * 64;
    t.prompts = calloc((size_t)t.n * MAX_PROMPT, sizeof *t.prompts);
    t.requests = calloc(t.n, sizeof *t.requests);
    t.out = calloc((size_t)t.n * t.n_tokens, sizeof *t.out);
    if (!t.prompts || !t.requests || !t.out)
        rc = error_set(err, -ENOMEM, "out of memory");
    for (size_t i = 0; rc == 0 && i < (size_t)t.n * MAX_PROMPT; i++)
        t.prompts[i] = (int32_t)(next(&random) % t.n_vocab);
    gpu_put(out, "tokens", json_integer((json_int_t)t.n * t.n_tokens));
    if (rc == 0)
        rc = compare_executors(&t, m, out, err);
    free(t.prompts);
    free(t.requests);
    free(t.out);
    model_close(m);
    return rc;
}

/* Opens a device for the clock before and behind what is done. Without one the witness says what is missing.
 */
static int clock_begin(struct gpu *g, double *mhz)
{
    struct error err = {0};
    int rc = gpu_open(g, &err);
    if (rc == 0 && gpu_clock_mhz(g, mhz, &err) < 0) {
        gpu_close(g);
        rc = -EIO;
    }
    return rc;
}

int main(int argc, char **argv)
{
    struct error err = {0};
    json_t *out = json_object();
    struct gpu g;
    double before = 0, after = 0;
    gpu_report_open(out);
    int rc = -EINVAL, clock = clock_begin(&g, &before);
    if (argc == 4 && strcmp(argv[1], "first") == 0)
        rc = witness_one(argv + 2, EXECUTOR_PERSISTENT, out, &err);
    else if (argc == 4 && strcmp(argv[1], "nodes") == 0)
        rc = witness_one(argv + 2, EXECUTOR_EAGER, out, &err);
    else if (argc == 3 && strcmp(argv[1], "golden") == 0)
        rc = witness_golden(argv + 2, out, &err);
    else if ((argc == 6 || argc == 7) && strcmp(argv[1], "tokens") == 0)
        rc = witness_tokens(argv + 2, argc == 7 ? argv[6] : NULL, out, &err);
    else
        (void)error_set(
            &err, rc,
            "usage: gpu_witness first|nodes DIR TOKENS | golden DIR | tokens MODEL PROMPTS TOKENS "
            "AT_ONCE [KV_TYPE]");
    if (clock == 0 && rc == 0 && gpu_clock_mhz(&g, &after, &err) == 0)
        gpu_note_clock(&g, out, before, after);
    if (clock == 0 && rc == 0) /* after a failure the device may hang */
        gpu_close(&g);
    gpu_report_print(out, "gpu_witness", rc, &err);
    return rc < 0;
}
