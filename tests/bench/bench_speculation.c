/* bench_speculation - tokens per second with speculation and without, on texts that are given.
 *
 *   bench_speculation MODEL TEXT [ROUNDS [TOKENS [REQUESTS [THREADS]]]]
 *
 * TEXT is one of these, or a file:
 *   - quote: a prompt of 600 tokens; the answer says a few words of its own (5 to 15), then quotes 20 to 60
 *   - edit: the prompt again, with one or two tokens exchanged, left out or put in after 10 to 60
 *   - loop: a text that has come to repeat 20 tokens for ever
 *   - fresh: words as often as in a language (Zipf), none of it said before on purpose
 *   - a file: a text of the model's language; its first third is the prompt, the rest the answer
 *
 * This program decides what a model says: every step is computed and sampled as usual, then the token is
 * replaced by the text's own. So any model will do, acceptance is that of the text, and both sides say the
 * same. Sampling is the daemon's default. Per round one run without and one with, in turns, each with an
 * engine of its own, so that costs are learnt anew every time. REQUESTS say the same text at once. Prints
 * medians. */
#include "base/clock.h"
#include "engine/engine.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { N_PROMPT = 600, MAX_TOKENS = 4096, MAX_REQUESTS = 32, MAX_ROUNDS = 64 };

static struct {
    uint32_t n_prompt, n; /* n: with the prompt */
    int32_t tokens[MAX_TOKENS + 1];
} text;

/* ---- the backend that says the text ---- */

static int submit(struct backend *be, const struct step *step, struct error *err)
{
    static struct step said;
    said = *step;
    for (uint32_t i = 0; i < said.n_rows; i++)
        if (said.rows[i].token == STEP_LAST_SAMPLED)
            said.rows[i].token = text.tokens[said.rows[i].pos];
    return cpu_backend.submit(be, &said, err);
}

static int advance_text(struct backend *be, struct step_result *out, int max, uint64_t *done,
                        struct error *err)
{
    int n = cpu_backend.advance(be, out, max, done, err);
    for (int i = 0; i < n; i++)
        out[i].token = text.tokens[out[i].pos + 1];
    return n;
}

/* ---- texts ---- */

static uint64_t random_state = 1;

static uint32_t below(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % n;
}

/* The word of rank r as often as 1/r, of 1,000 or of what the vocabulary has. */
static int32_t word(uint32_t n_vocab)
{
    uint32_t n = n_vocab / 2 < 1000 ? n_vocab / 2 : 1000;
    double sum = 0, at = below(1000000) * 1e-6;
    for (uint32_t r = 1; r <= n; r++)
        sum += 1.0 / r;
    for (uint32_t r = 1; r <= n; r++)
        if ((at -= 1.0 / r / sum) < 0)
            return (int32_t)(n_vocab / 2 + r - 1);
    return (int32_t)(n_vocab / 2);
}

static void say(int32_t token)
{
    if (text.n <= MAX_TOKENS)
        text.tokens[text.n++] = token;
}

static void write_quotes(uint32_t n, uint32_t n_vocab)
{
    while (text.n < n) {
        for (uint32_t i = 5 + below(11); i > 0; i--)
            say(word(n_vocab));
        uint32_t length = 20 + below(41), at = below(text.n_prompt - length);
        for (uint32_t i = 0; i < length; i++)
            say(text.tokens[at + i]);
    }
}

static void write_edits(uint32_t n, uint32_t n_vocab)
{
    for (uint32_t at = 0; text.n < n; at %= text.n_prompt) {
        for (uint32_t i = 10 + below(51); i > 0 && at < text.n_prompt; i--)
            say(text.tokens[at++]);
        uint32_t put_in = below(3), left_out = below(3);
        for (uint32_t i = 0; i < put_in; i++)
            say(word(n_vocab));
        at += left_out;
    }
}

static void read_file(const char *path, const struct model *m, uint32_t n)
{
    static char bytes[65536];
    struct tokenizer *t = NULL;
    struct error err = {0};
    int32_t *ids = NULL;
    size_t n_ids = 0, size = 0;
    FILE *f = fopen(path, "re");
    if (f) {
        size = fread(bytes, 1, sizeof bytes, f);
        fclose(f);
    }
    if (!f || tokenizer_open(&t, model_gguf(m), &err) < 0 ||
        tokenizer_encode(t, bytes, size, (struct tokenizer_flags){0}, 0, &ids, &n_ids, &err) < 0) {
        fprintf(stderr, "%s: %s\n", path, f ? err.text : "cannot be read");
        exit(1);
    }
    for (uint32_t i = 0; i < n_ids && i < n * 3 / 2; i++)
        say(ids[i]);
    text.n_prompt = text.n / 3;
    free(ids);
    tokenizer_close(t);
}

/* The prompt of all but files. */
static void write_prompt(uint32_t n_vocab)
{
    text.n_prompt = N_PROMPT;
    while (text.n < N_PROMPT)
        say(word(n_vocab));
}

static void write_text(const char *kind, const struct model *m, uint32_t n)
{
    uint32_t n_vocab = model_config(m)->n_vocab;
    if (strcmp(kind, "quote") && strcmp(kind, "edit") && strcmp(kind, "loop") && strcmp(kind, "fresh")) {
        read_file(kind, m, n);
        return;
    }
    write_prompt(n_vocab);
    if (!strcmp(kind, "quote"))
        write_quotes(N_PROMPT + n, n_vocab);
    else if (!strcmp(kind, "edit"))
        write_edits(N_PROMPT + n, n_vocab);
    while (text.n < N_PROMPT + n)
        say(!strcmp(kind, "loop") && text.n >= N_PROMPT + 20 ? text.tokens[text.n - 20] : word(n_vocab));
    text.n = N_PROMPT + n;
}

/* ---- measuring ---- */

static struct engine_request *prepare(uint32_t n_requests)
{
    static struct engine_request requests[MAX_REQUESTS];
    static struct engine_token out[MAX_REQUESTS][MAX_TOKENS];
    for (uint32_t i = 0; i < n_requests; i++)
        requests[i] = (struct engine_request){.prompt = text.tokens,
                                              .n_prompt = text.n_prompt,
                                              .max_tokens = text.n - text.n_prompt,
                                              .ignore_eos = true,
                                              .cache_prompt = true,
                                              .sampling = {.seed = i,
                                                           .temperature = 0.8f,
                                                           .top_k = 40,
                                                           .top_p = 0.95f,
                                                           .min_p = 0.05f,
                                                           .typical_p = 1,
                                                           .repetition_penalty = 1},
                                              .out = out[i]};
    return requests;
}

/* Tokens per second of all requests, from when each has its first to when one has all. */
static double run(struct executor *x, enum engine_speculation speculation, uint32_t n_requests,
                  struct engine_stats *stats)
{
    struct engine_config cfg = {.n_slots = n_requests,
                                .n_ctx = text.n,
                                .queue_limit = MAX_REQUESTS,
                                .steps_in_flight = 2,
                                .prefix_cache = true,
                                .speculation = speculation};
    struct engine *e = NULL;
    struct error err = {0};
    struct engine_request *r = prepare(n_requests);
    if (engine_open(&e, x, &cfg, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    for (uint32_t i = 0; i < n_requests; i++)
        engine_submit(e, &r[i], NULL);
    uint64_t from = 0, to = 0, n_from = 0, n_to = 0;
    while (!to) {
        uint32_t n_began = 0;
        uint64_t n = 0;
        bool done = false;
        while (engine_next(e))
            ;
        for (uint32_t i = 0; i < n_requests; i++) {
            n_began += atomic_load(&r[i].n_out) > 0;
            n += atomic_load(&r[i].n_out);
            done = done || atomic_load(&r[i].state) == ENGINE_DONE;
        }
        if (!from && n_began == n_requests)
            from = clock_ns(), n_from = n;
        if (done)
            to = clock_ns(), n_to = n;
        else
            nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
    engine_stats(e, stats);
    engine_close(e);
    return (double)(n_to - n_from) * 1e9 / (double)(to - from);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t n)
{
    qsort(values, n, sizeof *values, compare);
    return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

static void measure(struct executor *x, const char *kind, uint32_t n_rounds, uint32_t n_requests)
{
    double off[MAX_ROUNDS], on[MAX_ROUNDS], ratio[MAX_ROUNDS];
    struct engine_stats stats = {0}, unused;
    for (uint32_t i = 0; i <= n_rounds; i++) {
        uint32_t at = i ? i - 1 : 0; /* the first round warms caches and clocks */
        off[at] = run(x, ENGINE_SPECULATE_OFF, n_requests, &unused);
        on[at] = run(x, ENGINE_SPECULATE_AUTO, n_requests, &stats);
        ratio[at] = on[at] / off[at];
    }
    double worst = ratio[0], best = ratio[0];
    for (uint32_t i = 0; i < n_rounds; i++) {
        worst = ratio[i] < worst ? ratio[i] : worst;
        best = ratio[i] > best ? ratio[i] : best;
    }
    printf("%-10s %2u x %4u tokens: off %8.2f, on %8.2f tokens/s, ratio %.3f (%.3f to %.3f); drafted %llu, "
           "accepted "
           "%llu, steps %llu, turned off %llu\n",
           kind, n_requests, text.n - text.n_prompt, median(off, n_rounds), median(on, n_rounds),
           median(ratio, n_rounds), worst, best, (unsigned long long)stats.drafted,
           (unsigned long long)stats.accepted, (unsigned long long)stats.draft_steps,
           (unsigned long long)stats.turned_off);
}

static uint32_t argument(int argc, char **argv, int i, uint32_t otherwise, uint32_t max)
{
    uint32_t n = argc > i ? (uint32_t)atoi(argv[i]) : otherwise;
    return n < max ? n : max;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: bench_speculation MODEL TEXT [ROUNDS [TOKENS [REQUESTS [THREADS]]]]\n");
        return 2;
    }
    uint32_t n_rounds = argument(argc, argv, 3, 5, MAX_ROUNDS), n = argument(argc, argv, 4, 256, 2048),
             n_requests = argument(argc, argv, 5, 1, MAX_REQUESTS);
    struct error err = {0};
    struct model *m = NULL;
    struct executor *x = NULL;
    if (model_open(&m, argv[1], &err) == 0)
        write_text(argv[2], m, n);
    struct backend_ops ops = cpu_backend;
    struct backend_config cfg = {.n_threads = argument(argc, argv, 6, 0, 256),
                                 .isa = "auto",
                                 .n_slots = n_requests,
                                 .n_ctx = text.n,
                                 .steps_in_flight = 2};
    ops.submit = submit;
    ops.advance = advance_text;
    if (!m || executor_open(&x, EXECUTOR_PERSISTENT, &ops, &cfg, m, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    measure(x, argv[2], n_rounds, n_requests);
    executor_close(x);
    model_close(m);
    return 0;
}
