/* The cuda decoder as the cpu's twin: both are given the same random steps (prefill, decoding, draft rows,
 * new sequences with random settings, biases, histories, masks, targets, page operations), and every result
 * and every logit must be the same in every bit; with every executor, any number of blocks, both cache types,
 * either device generation. */
#include "support/decoder_run.h"
#include "support/models/made_model.h"
#include "support/node_compare.h"
#include "support/sanitized.h"

#include <math.h>

enum { N_SLOTS = 6, N_CTX = 320, N_PAGES = 64, PAGES_PER_SLOT = 5, MAX_ROWS = 40, N_MASKS = 5 };

static uint64_t random_state;

static uint32_t below(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % n;
}

static float fraction(void)
{
    return (float)below(1001) / 1000;
}

struct sequence {
    bool begun;
    uint32_t pos, n_mapped; /* next position; pages mapped */
    uint32_t pages[PAGES_PER_SLOT];
    bool sampled; /* the last row was sampled from */
};

struct twin {
    struct decoder_run cpu, cuda;
    struct step *step; /* the cpu's; copied for cuda */
    struct sequence seqs[N_SLOTS];
    uint32_t n_vocab, n_pages_used;
    uint32_t n_results, n_steps;
    uint32_t *masks; /* [N_MASKS] of both */
};

static void random_settings(struct twin *t, struct step_sampling *s)
{
    struct step *step = t->step;
    *s = (struct step_sampling){.seed = below(1000), STEP_SAMPLING_NEUTRAL};
    if (below(4))
        s->temperature = 0.2f + 2 * fraction();
    if (below(2))
        s->top_k = (int32_t)below(60);
    if (below(2))
        s->top_p = fraction();
    if (below(3) == 0)
        s->min_p = fraction() / 5;
    if (below(4) == 0)
        s->typical_p = fraction();
    if (below(2)) {
        s->repetition_penalty = 0.5f + fraction();
        s->presence_penalty = fraction();
        s->frequency_penalty = fraction();
        s->penalty_last_n = below(100);
    }
    if (below(3) == 0) {
        s->n_bias = below(20);
        s->bias_offset = step->n_biases;
        for (uint32_t i = 0; i < s->n_bias; i++)
            step->biases[step->n_biases++] =
                (struct step_bias){(int32_t)below(t->n_vocab), below(9) ? 4 * fraction() - 2 : -INFINITY};
    }
}

/* A new sequence takes the slot; perhaps it goes on after a prefix that is in the cache already. */
static void begin(struct twin *t, uint32_t slot)
{
    struct step *step = t->step;
    struct sequence *q = &t->seqs[slot];
    struct step_slot *s = &step->slots[step->n_slots++];
    uint32_t start = q->pos && below(2) ? below(q->pos) : 0;
    *s = (struct step_slot){.slot = slot, .start = start, .history_offset = step->n_history};
    s->n_history = start ? below(start + 1) : 0;
    for (uint32_t i = 0; i < s->n_history; i++)
        step->history[step->n_history++] = (int32_t)below(t->n_vocab);
    random_settings(t, &s->sampling);
    q->pos = start;
    q->begun = true;
    q->sampled = false;
}

static void map_pages(struct twin *t, uint32_t slot)
{
    struct sequence *q = &t->seqs[slot];
    for (; q->n_mapped <= q->pos / 64; q->n_mapped++) {
        q->pages[q->n_mapped] = (t->n_pages_used++ * 37 + 11) % N_PAGES;
        t->step->edits[t->step->n_edits++] =
            (struct step_table_edit){.slot = slot, .index = q->n_mapped, .page = q->pages[q->n_mapped]};
    }
}

static uint16_t ask(struct twin *t)
{
    struct step *step = t->step;
    struct step_logit *l = &step->logits[step->n_logits];
    *l = (struct step_logit){.row = (uint16_t)step->n_rows, .target = -1, .flags = STEP_EXPORT};
    if (below(5) == 0)
        l->target = (int32_t)below(t->n_vocab);
    if (below(2))
        l->flags |= STEP_LOGPROB;
    if (below(4) == 0)
        l->flags |= STEP_BAN_END;
    l->n_top = below(3) ? 0 : (uint16_t)below(STEP_MAX_TOP + 1);
    l->mask = below(3) ? 0 : 1 + below(N_MASKS);
    return (uint16_t)step->n_logits++;
}

static void add_rows(struct twin *t, uint32_t slot, uint32_t n)
{
    struct step *step = t->step;
    struct sequence *q = &t->seqs[slot];
    for (uint32_t i = 0; i < n && step->n_rows < MAX_ROWS && q->pos < N_CTX; i++) {
        struct step_row row = {.slot = slot, .pos = q->pos, .logit_index = STEP_NO_LOGITS};
        bool last = i + 1 == n || step->n_rows + 1 == MAX_ROWS || q->pos + 1 == N_CTX;
        map_pages(t, slot);
        row.token = q->sampled && below(4) ? STEP_LAST_SAMPLED : (int32_t)below(t->n_vocab);
        q->sampled = false;
        if ((last || below(6) == 0) && step->n_logits < STEP_MAX_LOGITS) {
            row.logit_index = ask(t);
            q->sampled = last && step->logits[row.logit_index].target < 0;
        }
        step->rows[step->n_rows++] = row;
        q->pos++;
    }
}

/* A page copied and copied back, or through the host: nothing may change. Pages from N_PAGES on are free. */
static void add_page_ops(struct twin *t)
{
    struct step *step = t->step;
    const struct sequence *q = &t->seqs[below(N_SLOTS)];
    if (q->n_mapped == 0)
        return;
    uint32_t page = q->pages[below(q->n_mapped)], spare = N_PAGES + below(2);
    const struct step_page_op by_copy[] = {{STEP_PAGE_ZERO, spare, 0, 0},
                                           {STEP_PAGE_COPY, spare, page, 0},
                                           {STEP_PAGE_ZERO, page, 0, 0},
                                           {STEP_PAGE_COPY, page, spare, 0}};
    const struct step_page_op by_host[] = {
        {STEP_PAGE_EXPORT, page, 0, 0}, {STEP_PAGE_ZERO, page, 0, 0}, {STEP_PAGE_IMPORT, page, 0, 0}};
    bool host = below(2);
    step->n_page_ops = host ? 3 : 4;
    memcpy(step->page_ops, host ? by_host : by_copy, host ? sizeof by_host : sizeof by_copy);
}

static void build(struct twin *t)
{
    if (below(6) == 0)
        add_page_ops(t);
    bool prefill = below(3) == 0;
    for (uint32_t slot = 0; slot < N_SLOTS; slot++) {
        struct sequence *q = &t->seqs[slot];
        if (below(3) == 0)
            continue;
        if (!q->begun || q->pos == N_CTX || below(12) == 0)
            begin(t, slot);
        add_rows(t, slot, prefill && below(2) ? 1 + below(30) : 1 + (below(5) == 0) * below(4));
    }
}

static void run_copy(struct decoder_run *r, const struct step *step)
{
    uint64_t id = r->step->id;
    *r->step = *step;
    r->step->id = id;
    decoder_run_step(r);
}

static void expect_same_result(const struct step_result *a, const struct step_result *b, uint32_t step)
{
    cr_assert(a->slot == b->slot && a->pos == b->pos && a->logit_index == b->logit_index);
    cr_assert_eq(a->flags, b->flags, "step %u, slot %u: flags %u, cpu %u", step, a->slot, b->flags, a->flags);
    cr_assert_eq(a->token, b->token, "step %u, slot %u at %u: token %d, cpu %d", step, a->slot, a->pos,
                 b->token, a->token);
    cr_assert(memcmp(&a->logprob, &b->logprob, sizeof a->logprob) == 0, "step %u: log-probability %a, cpu %a",
              step, (double)b->logprob, (double)a->logprob);
    cr_assert_eq(a->n_top, b->n_top);
    cr_assert(memcmp(a->top, b->top, a->n_top * sizeof a->top[0]) == 0, "step %u: alternatives", step);
}

static bool differs(const struct twin *t, uint32_t n_logits)
{
    for (uint32_t i = 0; i < n_logits; i++)
        if (memcmp(executor_logits(t->cpu.x, i), executor_logits(t->cuda.x, i), t->n_vocab * sizeof(float)))
            return true;
    return false;
}

static void compare(struct twin *t, uint32_t n_logits)
{
    for (uint32_t i = 0; i < n_logits; i++) {
        const float *a = executor_logits(t->cpu.x, i), *b = executor_logits(t->cuda.x, i);
        cr_assert(a && b);
        for (uint32_t v = 0; v < t->n_vocab; v++)
            cr_assert(memcmp(&a[v], &b[v], sizeof *a) == 0, "step %u, logit row %u, token %u: %a, cpu %a",
                      t->n_steps, i, v, (double)b[v], (double)a[v]);
        expect_same_result(&t->cpu.results[i], &t->cuda.results[i], t->n_steps);
    }
    t->n_results += n_logits;
}

struct circumstances {
    const char *file; /* in tests/data; with `quant`, a shape that mkmodel writes */
    enum executor_kind kind;
    enum kv_type kv_type;
    const char *blocks, *sm;
    uint32_t n_steps;
    const char *quant;
};

/* One token, a few, about half, most and all of them. */
static void give_masks(struct twin *t)
{
    uint32_t n_words = (t->n_vocab + 31) / 32, seed = 1;
    t->masks = calloc((size_t)N_MASKS * n_words, sizeof *t->masks);
    cr_assert_not_null(t->masks);
    for (uint32_t i = 0; i < N_MASKS; i++)
        for (uint32_t token = 0; token < t->n_vocab; token++) {
            static const uint32_t of_64[N_MASKS] = {0, 3, 32, 61, 64};
            seed = seed * 1664525u + 1013904223u;
            if (seed >> 26 < of_64[i] || token == 77 % t->n_vocab)
                t->masks[(size_t)i * n_words + token / 32] |= 1u << token % 32;
        }
    cr_assert(executor_masks(t->cpu.x, t->masks, N_MASKS, n_words));
    cr_assert(executor_masks(t->cuda.x, t->masks, N_MASKS, n_words));
}

static void close_twin(struct twin *t)
{
    decoder_run_close(&t->cpu);
    decoder_run_close(&t->cuda);
    free(t->masks);
}

static void open_twin(struct twin *t, const struct circumstances *c, enum executor_kind cpu_kind,
                      enum executor_kind cuda_kind)
{
    static const int32_t ends[] = {0, 3, 100, 200};
    char path[512];
    if (c->quant)
        made_model(c->file, c->quant, path);
    else
        (void)snprintf(path, sizeof path, HEARTH_TEST_DATA "/%s.gguf", c->file);
    setenv("SIMT_MEMORY_MB", "80", 1);
    setenv("SIMT_BLOCKS", c->blocks, 1);
    setenv("SIMT_DEVICE_SM", c->sm, 1);
    struct decoder_run_config cfg = {.path = path,
                                     .kind = cpu_kind,
                                     .n_slots = N_SLOTS,
                                     .n_ctx = N_CTX,
                                     .kv_type = c->kv_type,
                                     .n_threads = 2,
                                     .kv_memory = 32 << 20, /* more than the pages that are used */
                                     .end_tokens = ends,
                                     .n_end_tokens = 4};
    decoder_run_open(&t->cpu, &cfg);
    cfg.ops = &cuda_backend;
    cfg.libcuda = LIBCUDA;
    cfg.kind = cuda_kind;
    decoder_run_open(&t->cuda, &cfg);
    if (c->quant)
        (void)unlink(path);
    cr_assert(t->cpu.n_pages >= N_PAGES + 2 && t->cuda.n_pages >= N_PAGES + 2, "%u, %u", t->cpu.n_pages,
              t->cuda.n_pages);
    t->n_vocab = t->cpu.n_vocab;
    give_masks(t);
}

/* The same steps once more, node by node on both: the first node that differs. */
static void explain(const struct circumstances *c, uint64_t seed)
{
    static struct step step;
    static struct twin t;
    struct node_difference d = {0};
    struct error err = {0};
    char words[400] = "node by node nothing differs";
    t = (struct twin){.step = &step};
    open_twin(&t, c, EXECUTOR_EAGER, EXECUTOR_EAGER);
    random_state = seed;
    for (; t.n_steps < c->n_steps && !d.found && err.code == 0; t.n_steps++) {
        memset(&step, 0, sizeof step);
        build(&t);
        step.id = t.n_steps + 1;
        node_compare(t.cpu.x, t.cuda.x, &step, &d, &err);
        (void)below(10); /* as live() */
    }
    if (d.found)
        node_difference_say(&d, executor_graph(t.cpu.x), words, sizeof words);
    (void)fprintf(stderr, "%s, sm_%s: %s\n", c->file, c->sm, err.code ? err.text : words);
    node_difference_close(&d);
    close_twin(&t);
}

static void live(const struct circumstances *c, uint64_t seed)
{
    static struct step step;
    struct twin t = {.step = &step};
    open_twin(&t, c, EXECUTOR_PERSISTENT, c->kind);
    random_state = seed;
    for (; t.n_steps < c->n_steps; t.n_steps++) {
        memset(&step, 0, sizeof step);
        build(&t);
        run_copy(&t.cpu, &step);
        run_copy(&t.cuda, &step);
        if (differs(&t, step.n_logits))
            explain(c, seed);
        compare(&t, step.n_logits);
        if (below(10) == 0)
            executor_park(t.cuda.x);
    }
    cr_assert_geq(t.n_results, c->n_steps);
    close_twin(&t);
}

#define QWEN3  "tiny-qwen3-s11-q4_k_m"
#define QWEN2  "tiny-qwen2-odd-s13-q5_0"
#define LLAMA  "tiny-llama3-s15-q4_k_m"
#define Q8     "tiny-qwen3-s11-q8_0"
#define GEMMA2 "tiny-gemma2-s78-q4_k_m" /* windows, capped scores and logits */
#define GEMMA3 "tiny-gemma3-s38-q4_0"   /* heads of 256 */
#define GEMMA4 "tiny-gemma4-d-s55-q4_0" /* of 256 and 512, V normalised */
#define MOE3   "tiny-qwen3moe-s32-q4_k_m"
#define MOE2   "tiny-qwen2moe-s82-q4_k_m" /* a shared expert with a gate */
#define GLM4   "tiny-glm4moe-s72-q4_k_m"  /* chosen by sigmoids and biases */
#define OSS    "tiny-gptoss-s34-mxfp4"    /* biases, and clamped gates */

/* With the race detector (cuda.twin_checked) a step takes twenty times as long, under a sanitizer a few
 * times. */
#ifndef SHORTER
#define SHORTER SANITIZED_STRIDE(3)
#endif

static void live_all(const struct circumstances *all, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        struct circumstances c = all[i];
        c.n_steps = c.n_steps < SHORTER ? 1 : c.n_steps / SHORTER;
        live(&c, seed + i);
    }
}

Test(cuda_twin, persistent, .timeout = 1200)
{
    static const struct circumstances all[] = {{QWEN3, EXECUTOR_PERSISTENT, KV_F16, "3", "90", 60},
                                               {QWEN2, EXECUTOR_PERSISTENT, KV_Q8_0, "2", "90", 40},
                                               {LLAMA, EXECUTOR_PERSISTENT, KV_F16, "4", "80", 40},
                                               {Q8, EXECUTOR_PERSISTENT, KV_Q8_0, "1", "80", 30},
                                               {QWEN3, EXECUTOR_PERSISTENT, KV_BF16, "3", "90", 20},
                                               {QWEN2, EXECUTOR_PERSISTENT, KV_BF16, "2", "80", 15}};
    live_all(all, sizeof all / sizeof *all, 1);
}

/* Attention that is not plain (kernels/attention/attend.h), norms behind products, factors. */
Test(cuda_twin, families, .timeout = 1200)
{
    static const struct circumstances all[] = {{GEMMA2, EXECUTOR_PERSISTENT, KV_F16, "3", "90", 30},
                                               {GEMMA3, EXECUTOR_PERSISTENT, KV_Q8_0, "2", "80", 10},
                                               {GEMMA4, EXECUTOR_PERSISTENT, KV_BF16, "3", "90", 10},
                                               {GEMMA2, EXECUTOR_EAGER, KV_Q8_0, "2", "80", 10},
                                               {GEMMA4, EXECUTOR_GRAPH, KV_F16, "3", "90", 10}};
    live_all(all, sizeof all / sizeof *all, 51);
}

/* Mixtures of experts, with fewer blocks than an expert has groups of tiles, and with more; steps of up to
 * three rows take them one by one, others gather them. */
Test(cuda_twin, mixtures, .timeout = 1200)
{
    static const struct circumstances all[] = {
        {MOE3, EXECUTOR_PERSISTENT, KV_F16, "3", "90", 30},
        {MOE3, EXECUTOR_PERSISTENT, KV_Q8_0, "13", "80", 10},
        {MOE2, EXECUTOR_PERSISTENT, KV_BF16, "2", "80", 10},
        {GLM4, EXECUTOR_PERSISTENT, KV_F16, "5", "90", 10},
        {OSS, EXECUTOR_PERSISTENT, KV_F16, "2", "90", 10},
        {"tiny-qwen3moe-many", EXECUTOR_PERSISTENT, KV_F16, "3", "90", 10, "q8_0"},
        {MOE3, EXECUTOR_EAGER, KV_F16, "2", "80", 10},
        {OSS, EXECUTOR_GRAPH, KV_Q8_0, "3", "90", 10}};
    live_all(all, sizeof all / sizeof *all, 61);
}

/* A compressed cache: matrices of heads with fewer blocks than they have groups of tiles, and with more, rows
 * one by one, up to eight together and more; and heads of 576 values. */
Test(cuda_twin, compressed, .timeout = 1200)
{
    static const struct circumstances all[] = {
        {"tiny-deepseek", EXECUTOR_PERSISTENT, KV_F16, "3", "90", 30, "q4_k_m"},
        {"tiny-deepseek", EXECUTOR_PERSISTENT, KV_Q8_0, "13", "80", 10, "f16"},
        {"tiny-deepseek", EXECUTOR_PERSISTENT, KV_BF16, "1", "90", 10, "q8_0"},
        {"tiny-deepseek-flash", EXECUTOR_PERSISTENT, KV_F16, "5", "80", 6, "q8_0"},
        {"tiny-deepseek-flash", EXECUTOR_PERSISTENT, KV_Q8_0, "3", "90", 6, "q4_k_m"},
        {"tiny-deepseek-flash", EXECUTOR_PERSISTENT, KV_BF16, "2", "90", 6, "q8_0"},
        {"tiny-deepseek", EXECUTOR_EAGER, KV_F16, "2", "80", 10, "q4_k_m"},
        {"tiny-deepseek", EXECUTOR_GRAPH, KV_Q8_0, "3", "90", 10, "q8_0"}};
    live_all(all, sizeof all / sizeof *all, 71);
}

/* As on a real device: blocks of 512 threads, fourteen warps of them the crew, and all the shared memory that
 * there is, so that the ring has the depth, and products the panels, that they have there. */
Test(cuda_twin, blocks_of_the_real_size, .timeout = 1200)
{
    static const struct circumstances
        sm_90 = {QWEN3, EXECUTOR_PERSISTENT, KV_F16, "3", "90", 12},
        bf16 = {LLAMA, EXECUTOR_PERSISTENT, KV_BF16, "2", "90", 6},
        moe = {MOE3, EXECUTOR_PERSISTENT, KV_F16, "2", "90", 6},
        latent = {"tiny-deepseek-flash", EXECUTOR_PERSISTENT, KV_F16, "2", "90", 6, "q4_k_m"},
        sm_80 = {LLAMA, EXECUTOR_PERSISTENT, KV_Q8_0, "2", "80", 12};
    setenv("SIMT_THREADS", "1024", 1);
    setenv("SIMT_SHARED_KB", "227", 1);
    live_all(&sm_90, 1, 41);
    live_all(&bf16, 1, 43);
    live_all(&moe, 1, 44);
    live_all(&latent, 1, 45);
    setenv("SIMT_SHARED_KB", "163", 1);
    live_all(&sm_80, 1, 42);
}

/* Of three warps, two quantise shared columns while the third signals the end of the layer before. */
Test(cuda_twin, blocks_of_three_warps, .timeout = 1200)
{
    static const struct circumstances sm_90 = {QWEN3, EXECUTOR_PERSISTENT, KV_F16, "3", "90", 30},
                                      sm_80 = {Q8, EXECUTOR_PERSISTENT, KV_Q8_0, "5", "80", 15};
    setenv("SIMT_THREADS", "160", 1);
    live_all(&sm_90, 1, 81);
    live_all(&sm_80, 1, 82);
}

Test(cuda_twin, eager, .timeout = 1200)
{
    static const struct circumstances all[] = {{QWEN3, EXECUTOR_EAGER, KV_Q8_0, "2", "90", 40},
                                               {QWEN2, EXECUTOR_EAGER, KV_F16, "3", "80", 30},
                                               {LLAMA, EXECUTOR_EAGER, KV_BF16, "3", "90", 12}};
    live_all(all, sizeof all / sizeof *all, 11);
}

Test(cuda_twin, graph, .timeout = 1200)
{
    static const struct circumstances all[] = {{LLAMA, EXECUTOR_GRAPH, KV_Q8_0, "2", "90", 40},
                                               {Q8, EXECUTOR_GRAPH, KV_F16, "3", "90", 30},
                                               {QWEN2, EXECUTOR_GRAPH, KV_BF16, "2", "80", 12}};
    live_all(all, sizeof all / sizeof *all, 21);
}

Test(cuda_twin, persistent_in_launches_of_a_second, .timeout = 1200)
{
    /* A display hangs on the device: its kernels are ended after seconds, so ours leaves by itself. */
    static const struct circumstances c[] = {{QWEN3, EXECUTOR_PERSISTENT, KV_F16, "2", "90", 60}};
    setenv("SIMT_TIME_LIMIT", "1", 1);
    live_all(c, 1, 31);
}
