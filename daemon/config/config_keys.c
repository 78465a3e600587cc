#include "config_keys.h"
#include "base/log.h"
#include "base/suggest.h"

#include <ctype.h>
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define K    1024ull
#define M    (1024 * K)
#define G    (1024 * M)
#define HOUR 3600000

static const char *const backends[] = {"auto", "cpu", "cuda", NULL};
static const char *const executors[] = {"persistent", "eager", "graph", "auto",
                                        NULL}; /* enum executor_kind, CONFIG_EXECUTOR_AUTO */
static const char *const arithmetics[] = {"int8", "exact", NULL}; /* enum backend_arithmetic */
static const char *const kv_types[] = {"f16", "q8_0", "bf16", "auto",
                                       NULL}; /* enum kv_type, CONFIG_KV_AUTO */
static const char *const isas[] = {"auto", "avx512", "avxvnni", "avx2", "amx", "scalar", NULL};
static const char *const tunings[] = {"auto", "off", NULL};
/* Its place here is 1 + the device's number. */
static const char *const devices[] = {"auto", "0", "1",  "2",  "3",  "4",  "5",  "6",  "7",
                                      "8",    "9", "10", "11", "12", "13", "14", "15", NULL};
static const char *const unknowns[] = {"reject", "ignore", NULL};
static const char *const speculations[] = {"auto", "off", NULL}; /* enum engine_speculation */
/* The names of toolcall_formats.c. */
static const char *const chat_formats[] = {
    "auto",         "hermes",         "qwen3-coder", "qwen3.5",     "llama3-json",   "mistral-nemo",
    "mistral-args", "mistral-callid", "harmony",     "deepseek-r1", "deepseek-v3.1", "deepseek-v3.2",
    "glm-4.6",      "glm-4.7",        "gemma4",      "phi-4-mini",  "granite",       "command-r7b",
    "kimi-k2",      "lfm2",           "minimax",     "think",       "none",          NULL};
static const char *const yes_no[] = {"no", "yes", NULL};
static const char *const levels[] = {"error", "warn", "info", "debug", NULL}; /* enum log_level */
static const char *const formats[] = {"text", "json", NULL};                  /* enum log_format */

#define FIELD(f)            .name = #f, .offset = offsetof(struct config, f), .since = "0.1"
#define STRING(f, default_) FIELD(f), .type = CONFIG_STRING, .initial = default_
#define COUNT(f, default_, low, high)                                                                        \
    FIELD(f), .type = CONFIG_COUNT, .initial = default_, .min = low, .max = high
#define SIZE(f, default_, low, high)                                                                         \
    FIELD(f), .type = CONFIG_SIZE, .initial = default_, .min = low, .max = high
#define LIST(f)                    FIELD(f), .type = CONFIG_LIST, .initial = ""
#define CHOICE(f, default_, names) FIELD(f), .type = CONFIG_CHOICE, .initial = default_, .choices = names

/* clang-format off */
const struct config_key config_keys[] = {
    {STRING(host, "127.0.0.1"), .group = "Listening",
     .help = "Address or name to listen on. 0.0.0.0 means all IPv4 addresses, :: all IPv6 addresses, * both. "
             "Any address but loopback is open to all clients that can reach this machine."},
    {COUNT(port, "8080", 0, 65535), .zero = "any", .help = "TCP port. any: a free port, printed at start."},
    {STRING(unix_socket, ""), .help = "Path of an additional Unix socket. Its mode is 0666: restrict access by its directory."},
    {COUNT(tls_port, "none", 0, 65535), .zero = "none", .help = "TCP port for HTTPS, in addition to port."},
    {STRING(tls_certificate, ""), .help = "PEM file with the certificate and its chain. Read again on SIGHUP."},
    {STRING(tls_key, ""), .help = "PEM file with the certificate's private key. Read again on SIGHUP."},

    {LIST(api_keys), .group = "Access control", .secret = true,
     .help = "API keys; every request must send one of them. Visible in the process list: for tests only."},
    {STRING(api_keys_file, ""), .help = "File with one API key per line. Read again on SIGHUP."},
    {STRING(admin_key_file, ""), .help = "File with the key for the /admin routes. Read again on SIGHUP."},
    {LIST(cors_origins), .help = "Origins whose pages may send requests, like https://chat.example.org. *: any."},
    {LIST(allowed_hosts), .help = "Names that clients may use in the Host header, in addition to localhost and IP addresses. *: any."},
    {LIST(trusted_proxies), .help = "Addresses or networks of proxies whose X-Forwarded-For header is trusted."},
    {COUNT(client_limit, "none", 0, 65536), .zero = "none",
     .help = "Requests that one client (key, IPv4 address or IPv6 /64) may have in progress; one more is refused with 429."},

    {STRING(model, ""), .group = "Model and device",
     .help = "GGUF file to serve. Empty: the first by name in the installed models directory."},
    {STRING(model_dir, ""),
     .help = "Directory that POST /admin/model may load other models from. Empty: the directory of the model."},
    {STRING(models, ""),
     .help = "Directory of GGUF files that requests may name as their model; each is loaded when it is asked for. Empty: all requests run on the one model."},
    {COUNT(model_ttl_s, "600", 0, 8760 * 3600), .zero = "never",
     .help = "Idle time after which a model of models is unloaded. The first one stays until another needs its memory."},
    {STRING(chat_template, ""),
     .help = "File with the Jinja chat template, or chatml. Empty: the model's own template, else chatml."},
    {STRING(chat_format, "auto"), .choices = chat_formats,
     .help = "How the model marks tool calls and reasoning in its text. auto: as its chat template shows; none: all is content."},
    {CHOICE(backend, "auto", backends), .help = "Device that runs the model. auto: cuda if a GPU can run it, else cpu; the log says why."},
    {CHOICE(executor, "auto", executors),
     .help = "How steps run. persistent: one resident decoder; eager: node by node; graph: a captured CUDA graph (cuda only). "
             "auto: persistent, but graph for a model that cuda's decoder lacks an operation of; the log says which."},
    {CHOICE(arithmetic, "int8", arithmetics),
     .help = "int8 is for serving; exact is the slow float reference (cpu with executor eager only)."},
    {STRING(isa, "auto"), .choices = isas, .help = "Instruction set of the cpu backend."},
    {STRING(cpu_tuning, "auto"), .choices = tunings, .or_path = true, .allowed = "auto, off, or a path with a /",
     .help = "auto times variants of the cpu's products at load, for at most 0.3 s, and takes the fastest. off: built-in constants. "
             "A file keeps the choice for the CPU it was made on, and is written if there is none."},
    {STRING(libcuda, ""), .help = "CUDA driver library. Empty: libcuda.so.1. No effect on cpu."},
    {CHOICE(cuda_device, "auto", devices), .allowed = "auto or 0 to 15",
     .help = "Number of the GPU among those that CUDA_VISIBLE_DEVICES leaves visible. auto: the suitable GPU with the most memory."},
    {STRING(cuda_cache, ""),
     .help = "Directory where the driver caches compiled kernels. Empty: CUDA_CACHE_PATH, else the driver's default."},
    {CHOICE(cuda_words, "yes", yes_no),
     .help = "yes: in steps of few rows the persistent decoder hands values from one operation to the next without a wait of all blocks, where it can. "
             "no: all blocks wait after every operation; for comparison. The tokens are the same."},
    {COUNT(threads, "auto", 0, 256), .zero = "auto",
     .help = "Decoder threads on cpu. auto: as many as CPU affinity and cgroup quota allow."},
    {COUNT(n_ctx, "auto", 2, 1048576), .zero = "auto",
     .help = "Tokens that a request may have, prompt included. auto: the model's context length, at most 8192."},
    {COUNT(slots, "32", 1, 256), .help = "Requests that run at once."},
    {SIZE(kv_memory, "auto", 0, 1024 * G), .zero = "auto",
     .help = "Memory for the KV cache. auto: on cpu slots x n_ctx, at most a quarter of free memory; on cuda all that is left, or as on cpu if the GPU shares the machine's memory."},
    {CHOICE(kv_type, "auto", kv_types),
     .help = "Number format of the KV cache. auto: f16 for a model of f16 or f32 weights, else bf16; q8_0 takes little more than half as much memory."},
    {STRING(prefix_cache_dir, ""),
     .help = "Directory that keeps the prefix cache over restarts. Created with mode 0700; not used if other users may enter it. Empty: prefix in systemd's state directory, else none."},
    {SIZE(prefix_cache_disk, "1G", 0, 64 * 1024 * G), .zero = "off",
     .help = "Size of the prefix cache on disk, for all models together; the least recently used pages are removed first."},
    {COUNT(step_ms, "auto", 0, 10000), .zero = "auto",
     .help = "Time budget of one step; long prompts are split to fit it. auto: 50 on cpu, 10 on cuda."},
    {COUNT(steps_in_flight, "2", 1, 2), .help = "Steps in flight: submitted to the decoder, with the result not read yet."},
    {CHOICE(speculation, "auto", speculations),
     .help = "auto: drafts tokens from repetitions in prompt and text while that saves time; answers stay the same, bit for bit."},
    {COUNT(park_after_ms, "30000", 0, 24 * HOUR), .zero = "never",
     .help = "Idle time after which the decoder's kernel leaves the GPU. No effect on cpu, where an idle decoder sleeps."},

    {COUNT(queue_limit, "256", 1, 65536), .group = "Requests",
     .help = "Requests that may wait; one more is refused with 503 and Retry-After."},
    {SIZE(queue_tokens, "1M", 1, 1024 * M), .help = "Prompt tokens that all waiting requests together may have."},
    {SIZE(max_body, "4M", 1 * K, 1 * G), .help = "Largest request body."},
    /* Its least is what every body takes at first: http.c. */
    {SIZE(body_memory, "64M", 4 * K, 64 * G), .help = "Memory for all request bodies together (half of it for those of /tokenize and /detokenize), and as much again for unread replies, log-probabilities to come, compiled grammars in use and large requests that wait or run."},
    {COUNT(max_connections, "1000", 1, 100000), .help = "Connections with a POST in progress; one more gets 503. Up to 64 more may be open; near that limit a new one closes the one idle for longest, of the address that has most."},
    {COUNT(header_timeout_ms, "10000", 100, HOUR), .help = "Time that a client has to send its headers."},
    {COUNT(body_timeout_ms, "60000", 100, HOUR), .help = "Time that a client has to send its body, and to read each max_body bytes of a large reply."},
    {COUNT(keepalive_ms, "5000", 100, HOUR), .help = "Interval of keep-alive comments in a silent stream."},
    {COUNT(timeout_ms, "none", 0, 24 * HOUR), .zero = "none", .help = "Time limit of a whole request that sets no timeout_ms."},
    {COUNT(queue_timeout_ms, "60000", 0, 24 * HOUR), .zero = "none", .help = "Longest wait of a request that sets no queue_timeout_ms."},
    {COUNT(max_timeout_ms, "none", 0, 24 * HOUR), .zero = "none",
     .help = "Upper time limit of every request; a timeout_ms above it is refused without the admin key."},
    {COUNT(max_priority, "100", 0, 100), .help = "Highest priority that a request without the admin key may have."},
    {CHOICE(unknown_fields, "reject", unknowns), .help = "How to treat unknown fields of a request."},

    {COUNT(drain_timeout_ms, "30000", 0, HOUR), .group = "Process",
     .help = "Time that running requests have to finish after SIGTERM."},
    {COUNT(drain_min_ms, "0", 0, HOUR),
     .help = "Shortest time to drain, even with nothing left to do, so that a proxy notices it."},
    {COUNT(watchdog_ms, "10000", 0, HOUR), .zero = "off",
     .help = "The process ends (exit code 9) when the decoder has not responded for this long: never sooner, at most two checks later (a check "
             "every second, or every fifth of this time if shorter). On cuda it also ends when a block waits for others for half this time."},
    {CHOICE(core_dumps, "no", yes_no),
     .help = "no: a crash leaves no core, also where the kernel pipes cores to a program, and other processes of the daemon's user cannot read its memory or attach to it: it holds keys and prompts. yes: to debug it."},
    {CHOICE(metrics_aliases, "yes", yes_no), .help = "yes: /metrics also has core metrics under the names of vLLM (vllm:) and llama-server (llamacpp:)."},
    {CHOICE(log_level, "info", levels), .help = "Least severe level that is logged. Read again on SIGHUP."},
    {CHOICE(log_format, "text", formats), .help = "Format of log lines: text, or JSON objects."},
};
/* clang-format on */
const size_t config_n_keys = sizeof config_keys / sizeof config_keys[0];
static_assert(sizeof config_keys / sizeof config_keys[0] <= CONFIG_MAX_KEYS,
              "struct config has room for all");

const struct config_key *config_find(const char *name)
{
    for (size_t i = 0; i < config_n_keys; i++)
        if (strcmp(config_keys[i].name, name) == 0)
            return &config_keys[i];
    return NULL;
}

const char *config_nearest(const char *name)
{
    const char *names[CONFIG_MAX_KEYS];

    for (size_t i = 0; i < config_n_keys; i++)
        names[i] = config_keys[i].name;
    return nearest(name, names, config_n_keys);
}

static void *field_of(const struct config *c, const struct config_key *key)
{
    return (char *)c + key->offset;
}

static void size_text(uint64_t value, char *out, size_t room)
{
    const char *unit = "";

    if (value && value % G == 0)
        value /= G, unit = "G";
    else if (value && value % M == 0)
        value /= M, unit = "M";
    else if (value && value % K == 0)
        value /= K, unit = "K";
    snprintf(out, room, "%" PRIu64 "%s", value, unit);
}

static void choices_text(const char *const *choices, char *out, size_t room)
{
    size_t n = 0;

    for (size_t i = 0; choices[i] && n < room; i++)
        n += (size_t)snprintf(out + n, room - n, "%s%s",
                              i == 0           ? ""
                              : choices[i + 1] ? ", "
                                               : " or ",
                              choices[i]);
}

void config_allowed(const struct config_key *key, char *out, size_t room)
{
    char low[24], high[24], zero[32] = "";
    uint64_t min = key->zero && key->min == 0 ? 1 : key->min;

    if (key->zero)
        snprintf(zero, sizeof zero, "%s or ", key->zero);
    if (key->allowed) {
        snprintf(out, room, "%s", key->allowed);
    } else if (key->choices) {
        choices_text(key->choices, out, room);
    } else if (key->type == CONFIG_COUNT) {
        snprintf(out, room, "%s%" PRIu64 " to %" PRIu64, zero, min, key->max);
    } else if (key->type == CONFIG_SIZE) {
        size_text(min, low, sizeof low);
        size_text(key->max, high, sizeof high);
        snprintf(out, room, "%s%s to %s", zero, low, high);
    } else {
        snprintf(out, room, "%s", key->type == CONFIG_LIST ? "words separated by commas" : "text");
    }
}

/* Digits, and for sizes one letter K, M or G. */
static bool parse_number(const char *value, bool is_size, uint64_t *out)
{
    char *end;

    if (!isdigit((unsigned char)value[0]))
        return false;
    errno = 0;
    unsigned long long number = strtoull(value, &end, 10);
    if (errno)
        return false;
    uint64_t unit = 1;
    if (is_size && *end) {
        char letter = (char)toupper((unsigned char)*end++);
        unit = letter == 'K' ? K : letter == 'M' ? M : letter == 'G' ? G : 0;
    }
    if (*end || unit == 0 || number > UINT64_MAX / unit)
        return false;
    *out = number * unit;
    return true;
}

static int refuse(const struct config_key *key, const char *value, struct error *err)
{
    char allowed[CONFIG_ALLOWED];

    config_allowed(key, allowed, sizeof allowed);
    return error_set(err, -EINVAL, "must be %s (got %s)", allowed, log_quote(value));
}

static int index_of(const char *const *choices, const char *value)
{
    for (int i = 0; choices[i]; i++)
        if (strcmp(choices[i], value) == 0)
            return i;
    return -1;
}

static void free_list(struct config_list *list)
{
    for (uint32_t i = 0; i < list->n; i++)
        free(list->items[i]);
    free(list->items);
    *list = (struct config_list){0};
}

/* A value is what a line of the file can say: --print-config writes that line, and it reads back so. (Not of
 * keys, which it keeps to itself.) */
static int check_text(const char *text, size_t n, struct error *err)
{
    for (size_t i = 0; i < n; i++)
        if (iscntrl((unsigned char)text[i]) && text[i] != '\t')
            return error_set(err, -EINVAL, "must not contain control characters");
    if (n && (isspace((unsigned char)text[0]) || isspace((unsigned char)text[n - 1])))
        return error_set(err, -EINVAL, "must not begin or end with white space");
    return 0;
}

static int add_item(struct config_list *list, const char *item, size_t n, struct error *err)
{
    int rc = check_text(item, n, err);

    if (rc < 0)
        return rc;
    list->items[list->n] = strndup(item, n);
    if (!list->items[list->n])
        return error_set(err, -ENOMEM, "out of memory");
    list->n++;
    return 0;
}

static int parse_list(struct config_list *out, const char *value, struct error *err)
{
    struct config_list list = {0};
    size_t room = 1;

    for (const char *s = value; *s; s++)
        room += *s == ',';
    list.items = calloc(room, sizeof *list.items);
    if (!list.items)
        return error_set(err, -ENOMEM, "out of memory");
    while (*value) {
        size_t n = strcspn(value, ",");
        const char *end = value + n, *next = *end ? end + 1 : end;
        while (value < end && isspace((unsigned char)*value))
            value++;
        while (end > value && isspace((unsigned char)end[-1]))
            end--;
        int rc = end > value ? add_item(&list, value, (size_t)(end - value), err) : 0;
        if (rc < 0) {
            free_list(&list);
            return rc;
        }
        value = next;
    }
    free_list(out);
    *out = list;
    return 0;
}

static int parse_string(char **out, const char *value, struct error *err)
{
    int rc = check_text(value, strlen(value), err);

    if (rc < 0)
        return rc;
    char *copy = strdup(value);
    if (!copy)
        return error_set(err, -ENOMEM, "out of memory");
    free(*out);
    *out = copy;
    return 0;
}

static int parse_count_or_size(void *field, const struct config_key *key, const char *value,
                               struct error *err)
{
    uint64_t number;

    if (key->zero && strcmp(value, key->zero) == 0)
        number = 0;
    else if (!parse_number(value, key->type == CONFIG_SIZE, &number) || number > key->max ||
             (number < key->min && !(number == 0 && key->zero)))
        return refuse(key, value, err);
    if (key->type == CONFIG_SIZE)
        *(uint64_t *)field = number;
    else
        *(uint32_t *)field = (uint32_t)number;
    return 0;
}

int config_parse(struct config *c, const struct config_key *key, const char *value, struct error *err)
{
    void *field = field_of(c, key);
    int index = key->choices ? index_of(key->choices, value) : 0;

    if (index < 0 && !(key->or_path && strchr(value, '/')))
        return refuse(key, value, err);
    switch (key->type) {
    case CONFIG_STRING:
        return parse_string(field, value, err);
    case CONFIG_COUNT:
    case CONFIG_SIZE:
        return parse_count_or_size(field, key, value, err);
    case CONFIG_CHOICE:
        *(int *)field = index;
        return 0;
    case CONFIG_LIST:
        return parse_list(field, value, err);
    }
    return error_set(err, -EINVAL, "type %d of key %s", (int)key->type, key->name);
}

static char *format_list(const struct config_list *list)
{
    size_t room = 1, n = 0;

    for (uint32_t i = 0; i < list->n; i++)
        room += strlen(list->items[i]) + 2;
    char *text = calloc(1, room);
    for (uint32_t i = 0; text && i < list->n; i++)
        n += (size_t)snprintf(text + n, room - n, "%s%s", i ? ", " : "", list->items[i]);
    return text;
}

char *config_format(const struct config *c, const struct config_key *key)
{
    const void *field = field_of(c, key);
    char text[32];
    uint64_t number;

    switch (key->type) {
    case CONFIG_STRING:
        return strdup(*(char *const *)field);
    case CONFIG_CHOICE:
        return strdup(key->choices[*(const int *)field]);
    case CONFIG_LIST:
        return format_list(field);
    default:
        number = key->type == CONFIG_SIZE ? *(const uint64_t *)field : *(const uint32_t *)field;
        if (number == 0 && key->zero)
            return strdup(key->zero);
        if (key->type == CONFIG_SIZE)
            size_text(number, text, sizeof text);
        else
            snprintf(text, sizeof text, "%" PRIu64, number);
        return strdup(text);
    }
}

void config_release(struct config *c, const struct config_key *key)
{
    void *field = field_of(c, key);

    if (key->type == CONFIG_STRING) {
        free(*(char **)field);
        *(char **)field = NULL;
    } else if (key->type == CONFIG_LIST) {
        free_list(field);
    }
}

const char *config_executor_name(int executor)
{
    return executors[executor];
}

const char *config_arithmetic_name(int arithmetic)
{
    return arithmetics[arithmetic];
}

const char *config_kv_type_name(int kv_type)
{
    return kv_types[kv_type];
}

const char *config_log_level_name(int log_level)
{
    return levels[log_level];
}
