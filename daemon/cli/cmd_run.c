/* hearthd run: one prompt, its continuation on stdout as it comes, timings on stderr at the end. */
#include "commands.h"
#include "config/config.h"
#include "engine/engine.h"
#include "base/escape.h"
#include "base/log.h"
#include "model/model.h"
#include "local_engine.h"
#include "tokenizer/tokenizer.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define MAX_STDIN (64u << 20)

struct run_options {
    const char *prompt;
    bool from_stdin;     /* the prompt is "-" */
    uint32_t max_tokens; /* 0: min(256, context - prompt), as POST /generate has it */
    bool ignore_eos, no_special;
    bool seeded;
    struct step_sampling sampling;
};

/* ---- options ---- */

static const struct run_number {
    const char *flag;
    enum { RUN_FLOAT, RUN_INT, RUN_UINT } type;
    size_t offset; /* in struct run_options */
    double min, max;
    const char *help;
} numbers[] = {
#define IN(field) offsetof(struct run_options, field)
    {"--max-tokens", RUN_UINT, IN(max_tokens), 1, 1048576, "tokens to generate (256, or what fits)"},
    {"--temperature", RUN_FLOAT, IN(sampling.temperature), 0, 2, "0: always the likeliest token (0.8)"},
    {"--top-k", RUN_INT, IN(sampling.top_k), 0, 1048576, "0: off (40)"},
    {"--top-p", RUN_FLOAT, IN(sampling.top_p), 0, 1, "1: off (0.95)"},
    {"--min-p", RUN_FLOAT, IN(sampling.min_p), 0, 1, "0: off (0.05)"},
    {"--typical-p", RUN_FLOAT, IN(sampling.typical_p), 0, 1, "1: off (1)"},
    {"--repetition-penalty", RUN_FLOAT, IN(sampling.repetition_penalty), 0.01, 10, "1: off (1)"},
    {"--presence-penalty", RUN_FLOAT, IN(sampling.presence_penalty), -2, 2, "(0)"},
    {"--frequency-penalty", RUN_FLOAT, IN(sampling.frequency_penalty), -2, 2, "(0)"},
    {"--penalty-last-n", RUN_UINT, IN(sampling.penalty_last_n), 0, STEP_MAX_HISTORY, "(64)"},
#undef IN
};
#define N_NUMBERS (sizeof numbers / sizeof *numbers)

static int set_number(struct run_options *o, const struct run_number *number, const char *text,
                      struct error *err)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    bool whole = number->type == RUN_FLOAT || value == floor(value);

    if (end == text || *end || errno || !whole || !(value >= number->min && value <= number->max))
        return error_set(err, -EINVAL, "%s must be %s%.9g to %.9g (got %s)", number->flag,
                         number->type == RUN_FLOAT ? "" : "a whole number, ", number->min, number->max,
                         log_quote(text));
    void *field = (char *)o + number->offset;
    if (number->type == RUN_FLOAT)
        *(float *)field = (float)value;
    else if (number->type == RUN_INT)
        *(int32_t *)field = (int32_t)value;
    else
        *(uint32_t *)field = (uint32_t)value;
    return 0;
}

static int set_seed(struct run_options *o, const char *text, struct error *err)
{
    char *end;
    errno = 0;
    unsigned long long seed = strtoull(text, &end, 10);

    if (text[0] < '0' || text[0] > '9' || *end || errno || seed >= 1ull << 53)
        return error_set(err, -EINVAL, "--seed must be 0 to 2^53-1 (got %s)", log_quote(text));
    o->sampling.seed = seed;
    o->seeded = true;
    return 0;
}

/* "--flag value" or "--flag=value"; *value is NULL when it is missing. */
static bool is_flag(const char *flag, int argc, char **argv, const char **value, int *taken)
{
    size_t n = strlen(flag);

    if (strncmp(argv[0], flag, n) != 0 || (argv[0][n] && argv[0][n] != '='))
        return false;
    *taken = argv[0][n] ? 1 : 2;
    *value = argv[0][n] ? argv[0] + n + 1 : argc > 1 ? argv[1] : NULL;
    return true;
}

static int set_prompt(struct run_options *o, const char *text, struct error *err)
{
    if (o->prompt)
        return error_set(err, -EINVAL, "only one prompt is allowed: quote it (the second one is %s)",
                         log_quote(text));
    o->prompt = text;
    return 0;
}

/* Takes the argument after "--" as the prompt, even if it begins with a hyphen. */
static int take_literal(struct run_options *o, int argc, char **argv, struct error *err)
{
    int rc = 0;

    for (int i = 1; i < argc && rc == 0; i++)
        rc = set_prompt(o, argv[i], err);
    return rc < 0 ? rc : argc;
}

static int take_option(void *context, int argc, char **argv, struct error *err)
{
    struct run_options *o = context;
    const char *value = NULL;
    int taken = 1, rc = 0;

    if (strcmp(argv[0], "--ignore-eos") == 0)
        return o->ignore_eos = true;
    if (strcmp(argv[0], "--no-special") == 0)
        return o->no_special = true;
    if (strcmp(argv[0], "--") == 0)
        return take_literal(o, argc, argv, err);
    if (argv[0][0] != '-' || argv[0][1] == '\0') {
        rc = set_prompt(o, argv[0], err);
        o->from_stdin |= argv[0][0] == '-';
        return rc < 0 ? rc : 1;
    }
    const struct run_number *number = NULL;
    for (size_t i = 0; i < N_NUMBERS && !number; i++)
        if (is_flag(numbers[i].flag, argc, argv, &value, &taken))
            number = &numbers[i];
    bool seed = !number && is_flag("--seed", argc, argv, &value, &taken);
    if (!number && !seed && is_flag("-n", argc, argv, &value, &taken))
        number = &numbers[0];
    if (!number && !seed)
        return 0;
    if (!value)
        return error_set(err, -EINVAL, "%s needs a value", argv[0]);
    rc = seed ? set_seed(o, value, err) : set_number(o, number, value, err);
    return rc < 0 ? rc : taken;
}

static void usage(void)
{
    puts("hearthd run --model FILE \"prompt\" [flags]\n"
         "\n"
         "Continues the prompt and prints the text as it is generated; timings go to stderr. Ctrl-C stops.\n"
         "Without a prompt, or with -, the prompt is read from stdin. After -- a prompt may begin with -.\n");
    for (size_t i = 0; i < N_NUMBERS; i++)
        printf("  %-21s %s\n", numbers[i].flag, numbers[i].help);
    puts("  --seed                0 to 2^53-1 (random; printed at the end)\n"
         "  -n                    --max-tokens\n"
         "  -h                    --help\n"
         "  --ignore-eos          go on after an end token\n"
         "  --no-special          add no BOS; names of special tokens stay text\n"
         "\n"
         "Flags of `hearthd serve` that work here: --model --threads --isa --backend --executor --arithmetic "
         "--n-ctx "
         "--kv-type");
}

/* ---- prompt ---- */

static int read_stdin(char **out, size_t *n, struct error *err)
{
    size_t room = 1 << 16, length = 0, got = 1;
    char *text = malloc(room);

    while (text && got > 0) {
        if (length == room) {
            char *larger = room < MAX_STDIN ? realloc(text, room * 2) : NULL;
            if (!larger)
                break;
            text = larger;
            room *= 2;
        }
        got = fread(text + length, 1, room - length, stdin);
        length += got;
    }
    if (!text || got > 0) {
        free(text);
        return error_set(err, -ENOMEM, "the prompt on stdin is longer than %u bytes, or than memory allows",
                         MAX_STDIN);
    }
    *out = text;
    *n = length;
    return 0;
}

static int encode_prompt(const struct run_options *o, const struct tokenizer *t, uint32_t n_ctx,
                         int32_t **ids, size_t *n_ids, struct error *err)
{
    struct tokenizer_flags flags = {.add_special = !o->no_special, .parse_special = !o->no_special};
    char *text = NULL;
    size_t n = 0;
    int rc = 0;

    if (o->prompt && !o->from_stdin)
        n = strlen(o->prompt);
    else
        rc = read_stdin(&text, &n, err);
    if (rc == 0)
        rc = tokenizer_encode(t, text ? text : o->prompt, n, flags, 0, ids, n_ids, err);
    free(text);
    if (rc == 0 && *n_ids >= n_ctx)
        return error_set(err, -EINVAL, "the prompt has %zu tokens, the context has %u; see --n-ctx", *n_ids,
                         n_ctx);
    if (rc == 0 && *n_ids == 0)
        return error_set(err, -EINVAL, "the prompt is empty: give one as an argument or on stdin");
    return rc;
}

/* ---- generating ---- */

static struct offline *interruptible;
static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
    offline_interrupt(interruptible);
}

static int output_error; /* errno of the first write that failed */

static void flush_text(void)
{
    if (fflush(stdout) && !output_error)
        output_error = errno;
}

/* A model's text may hold commands to a terminal; a file or a pipe gets it as it is. */
static void print_text(const char *text, size_t n)
{
    if (isatty(STDOUT_FILENO))
        escape_print(stdout, text, n, ESCAPE_TEXT);
    else
        fwrite(text, 1, n, stdout);
}

static void print_tokens(const struct runtime *r, const struct engine_request *request, uint32_t from,
                         uint32_t to, struct tokenizer_decoder *decoder)
{
    for (uint32_t i = from; i < to; i++) {
        struct tokenizer_piece piece = tokenizer_piece(r->tokenizer, request->out[i].token, false);
        char *text = malloc(TOKENIZER_DECODE_ROOM(piece.len));
        if (text)
            print_text(text, tokenizer_decode(decoder, piece.s, piece.len, text));
        free(text);
    }
    flush_text();
}

static void print_rest(struct tokenizer_decoder *decoder)
{
    char rest[TOKENIZER_DECODE_ROOM(0)];

    print_text(rest, tokenizer_decode_flush(decoder, rest));
    putchar('\n');
    flush_text();
}

static void generate(struct offline *o, struct engine_request *request)
{
    struct tokenizer_decoder decoder = {0};
    uint32_t printed = 0;
    bool done = false, told = false;

    while (!done) {
        offline_wait(o);
        if ((interrupted || output_error) && !told) {
            engine_cancel(o->engine, request);
            told = true;
        }
        done = atomic_load(&request->state) == ENGINE_DONE;
        uint32_t n = atomic_load(&request->n_out);
        print_tokens(&o->runtime, request, printed, n, &decoder);
        printed = n;
    }
    print_rest(&decoder);
}

static double per_second(uint32_t n, uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? n * 1e9 / (double)(to_ns - from_ns) : 0;
}

static const char *end_name(enum engine_finish finish)
{
    switch (finish) {
    case ENGINE_EOS:
        return "eos";
    case ENGINE_LENGTH:
        return "length";
    case ENGINE_CANCELLED:
        return "cancelled";
    default: /* no deadlines are set, and verdict() has told the rest */
        return "early";
    }
}

static const char *tokens(uint32_t n) /* as wide for one */
{
    return n == 1 ? "token " : "tokens";
}

static void print_timings(const struct runtime *r, const struct engine_request *q)
{
    uint32_t n = atomic_load(&q->n_out);
    char device[128];

    runtime_describe(r, device, sizeof device);
    fprintf(stderr, "\n%s · %s\n", model_config(r->model)->name, device);
    if (q->first_ns)
        fprintf(stderr, "prompt   %6u %s  %9.1f ms  %9.1f tokens/s\n", q->n_prompt, tokens(q->n_prompt),
                (double)(q->first_ns - q->started_ns) / 1e6,
                per_second(q->n_prompt, q->started_ns, q->first_ns));
    else
        fprintf(stderr, "prompt   %6u token%s, %u of them computed, no text\n", q->n_prompt,
                q->n_prompt == 1 ? "" : "s", atomic_load(&q->n_prompt_done));
    if (n > 1)
        fprintf(stderr, "text     %6u tokens  %9.1f ms  %9.1f tokens/s\n", n,
                (double)(q->done_ns - q->first_ns) / 1e6, per_second(n - 1, q->first_ns, q->done_ns));
    fprintf(stderr, "end %s · seed %llu\n", end_name(q->finish), (unsigned long long)q->sampling.seed);
}

static int verdict(struct offline *o, const struct engine_request *q, struct error *err)
{
    if (q->finish == ENGINE_FAULT)
        return engine_fault(o->engine, err) ? err->code : error_set(err, -EIO, "the decoder failed");
    if (q->finish == ENGINE_NOT_FINITE)
        return error_set(err, -EBADMSG, "the logits are not finite numbers");
    return 0;
}

static int run_prompt(struct offline *o, const struct run_options *opt, const int32_t *ids, size_t n_ids,
                      struct error *err)
{
    uint32_t n_ctx = engine_n_ctx(o->engine), room = n_ctx - (uint32_t)n_ids;
    uint32_t wanted = opt->max_tokens ? opt->max_tokens : room < 256 ? room : 256;
    struct engine_token *out = calloc(wanted, sizeof *out);
    struct engine_request q = {.prompt = ids,
                               .n_prompt = (uint32_t)n_ids,
                               .max_tokens = wanted,
                               .ignore_eos = opt->ignore_eos,
                               .sampling = opt->sampling,
                               .out = out};
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESETHAND};

    if (!out)
        return error_set(err, -ENOMEM, "out of memory");
    int rc = wanted > room
                 ? error_set(err, -EINVAL, "%zu prompt token%s and --max-tokens %u exceed the context of %u",
                             n_ids, n_ids == 1 ? "" : "s", wanted, n_ctx)
                 : engine_submit(o->engine, &q, err);
    if (rc == 0) {
        interruptible = o;
        sigaction(SIGINT, &action, NULL);
        sigaction(SIGTERM, &action, NULL);
        generate(o, &q);
        rc = verdict(o, &q, err);
        if (rc == 0 && output_error)
            rc = error_set(err, -ECANCELED, "stdout: %s", strerror(output_error));
        if (rc == 0)
            print_timings(&o->runtime, &q);
    }
    free(out);
    return rc;
}

static int run(struct config *cfg, void *options, struct error *err)
{
    struct run_options *opt = options;
    struct offline o = {0};
    int32_t *ids = NULL;
    size_t n_ids = 0;

    cfg->slots = 1;
    if (!opt->seeded && getrandom(&opt->sampling.seed, sizeof opt->sampling.seed, 0) > 0)
        opt->sampling.seed >>= 11; /* 53 bits, so that it can be given again everywhere */
    int rc = offline_open(&o, cfg, err);
    if (rc == 0)
        rc = encode_prompt(opt, o.runtime.tokenizer, engine_n_ctx(o.engine), &ids, &n_ids, err);
    if (rc == 0)
        rc = run_prompt(&o, opt, ids, n_ids, err);
    free(ids);
    offline_close(&o);
    return rc;
}

int cmd_run(int argc, char **argv)
{
    static const struct command_configured command = {usage, take_option, run};
    struct run_options options = {.sampling = {STEP_SAMPLING_NEUTRAL, .temperature = 0.8f, .top_k = 40,
                                               .min_p = 0.05f, .penalty_last_n = 64}};
    options.sampling.top_p = 0.95f;

    return command_run_configured(&command, &options, argc, argv);
}
