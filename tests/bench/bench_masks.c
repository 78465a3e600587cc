/* bench_masks VOCABULARY.gguf [GRAMMAR.gbnf TEXT | --schemas DIR] - how long the masks of a constrained text
 * take on one core, in its CPU time, each as it is made for the first text of a grammar and again. Without a
 * grammar it walks a JSON text of nested objects, strings and numbers through llama.cpp's JSON grammar's
 * language; with a directory the valid instances of the schemas in its files, {"schema", "valid":
 * [{"instance"}]}. Prints tokens, p50, p99 and the largest in µs. */
#include "base/clock.h"
#include "gguf/gguf.h"
#include "grammar/matcher.h"
#include "json/json.h"
#include "schema/schema.h"
#include "tokenizer/tokenizer.h"

#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char json_grammar[] =
    "root ::= object\nvalue ::= object | array | string | number | \"true\" | \"false\" | \"null\"\n"
    "object ::= \"{\" ws (string \":\" ws value (\",\" ws string \":\" ws value)*)? ws \"}\"\n"
    "array ::= \"[\" ws (value (\",\" ws value)*)? ws \"]\"\n"
    "string ::= \"\\\"\" ([^\"\\\\\\x00-\\x1f] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" [0-9a-fA-F]{4}))* "
    "\"\\\"\"\n"
    "number ::= \"-\"? (\"0\" | [1-9] [0-9]*) (\".\" [0-9]+)? ([eE] [-+]? [0-9]+)?\nws ::= | \" \" | \"\\n\" "
    "[ \\t]{0,20}\n";
static const char json_text[] =
    "{\"name\": \"A little house by the sea\", \"rooms\": [{\"kind\": \"kitchen\", \"area\": 12.5, "
    "\"windows\": 2}, "
    "{\"kind\": \"bedroom\", \"area\": 18, \"notes\": \"It wasn't far from the harbour, and yet quiet at "
    "night.\"}],\n"
    "  \"owner\": {\"first\": \"Marguerite\", \"last\": \"Oluwaseun\", \"email\": \"m.o@example.com\", "
    "\"age\": 47},\n"
    "  \"tags\": [\"sea\", \"small\", \"old\"], \"sold\": false, \"price\": null}";

static const char *piece(const void *t, int32_t token, uint32_t *len)
{
    struct tokenizer_piece p = tokenizer_piece(t, token, false);
    *len = p.len;
    return p.s;
}

static int ascending(const void *x, const void *y)
{
    const uint64_t *a = x, *b = y;
    return *a < *b ? -1 : *a > *b;
}

static char *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *s = calloc(1, (size_t)16 << 20);
    *n = f && s ? fread(s, 1, (size_t)16 << 20, f) : 0;
    if (f)
        fclose(f);
    return s;
}

static uint64_t cpu_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Masks of every position of the text, token by token; the times in ns. */
static size_t measure(struct grammar *g, struct vocabulary *v, const int32_t *ids, size_t n, uint64_t *ns)
{
    uint32_t *mask = calloc(vocabulary_mask_words(v), sizeof *mask);
    struct matcher *m;
    size_t i = 0;
    if (!mask || matcher_open(&m, g) < 0)
        return 0;
    for (; i < n; i++) {
        uint64_t from = cpu_ns();
        matcher_mask(m, v, mask);
        ns[i] = cpu_ns() - from;
        if (!matcher_token(m, v, ids[i]))
            break;
    }
    matcher_close(m);
    free(mask);
    return i;
}

static void report(const char *name, uint64_t *ns, size_t n)
{
    double sum = 0;
    qsort(ns, n, sizeof *ns, ascending);
    for (size_t i = 0; i < n; i++)
        sum += (double)ns[i];
    if (n)
        printf("%-12s %6zu masks  mean %7.1f  p50 %7.1f  p90 %7.1f  p99 %7.1f  p99.9 %7.1f  max %7.1f us\n",
               name, n, sum / (double)n / 1e3, (double)ns[n / 2] / 1e3, (double)ns[n * 9 / 10] / 1e3,
               (double)ns[n * 99 / 100] / 1e3, (double)ns[n * 999 / 1000] / 1e3, (double)ns[n - 1] / 1e3);
}

enum { MOST = 1 << 20 }; /* masks in all */

struct sums {
    uint64_t *first, *again;
    size_t n_first, n_again, n_schemas, n_refused, n_unread;
};

static void add_instance(struct sums *s, struct grammar *g, struct vocabulary *v, const struct tokenizer *t,
                         const json_t *instance)
{
    struct error err = {0};
    int32_t *ids;
    size_t n, flags = JSON_COMPACT | JSON_ENCODE_ANY;
    char *text = json_dumps(instance, flags);
    if (!text || tokenizer_encode(t, text, strlen(text), (struct tokenizer_flags){0}, 0, &ids, &n, &err) < 0)
        return;
    if (s->n_first + n < MOST) {
        uint64_t *ns = s->first + s->n_first;
        size_t done = measure(g, v, ids, n, ns);
        s->n_first += done;
        for (size_t i = 0; getenv("SLOW") && i < done; i++)
            if (ns[i] > 300000)
                printf("  %.0f us after %zu tokens of %.60s\n", (double)ns[i] / 1e3, i, text);
        s->n_again += measure(g, v, ids, n, s->again + s->n_again);
    }
    free(ids);
    free(text);
}

static void add_file(struct sums *s, struct vocabulary *v, const struct tokenizer *t, const char *path)
{
    size_t n;
    json_error_t where;
    char *text = read_file(path, &n);
    json_t *root = text ? json_load_wide(text, n, JSON_ALLOW_NUL, &where) : NULL;
    json_t *valid = json_object_get(root, "valid");
    struct grammar *g;
    struct error err = {0};
    free(text);
    if (!root) {
        s->n_unread++;
        return;
    }
    if (schema_compile(&g, json_object_get(root, "schema"), &err) < 0) {
        s->n_refused++;
        if (getenv("SLOW"))
            printf("%s: %s\n", path, err.text);
        json_decref(root);
        return;
    }
    if (getenv("SLOW"))
        printf("%s\n", path);
    s->n_schemas++;
    for (size_t i = 0; i < json_array_size(valid); i++)
        add_instance(s, g, v, t, json_object_get(json_array_get(valid, i), "instance"));
    grammar_unref(g);
    json_decref(root);
}

static int measure_schemas(const char *dir, struct vocabulary *v, const struct tokenizer *t)
{
    struct sums s = {.first = calloc(MOST, sizeof *s.first), .again = calloc(MOST, sizeof *s.again)};
    DIR *d = opendir(dir);
    if (!d || !s.first || !s.again)
        return fprintf(stderr, "%s cannot be read\n", dir), 1;
    for (const struct dirent *e; (e = readdir(d));) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (strstr(e->d_name, ".json"))
            add_file(&s, v, t, path);
    }
    closedir(d);
    printf("%zu schemas, %zu refused, %zu unread\n", s.n_schemas, s.n_refused, s.n_unread);
    report("first", s.first, s.n_first);
    report("again", s.again, s.n_again);
    free(s.first);
    free(s.again);
    return 0;
}

int main(int argc, char **argv)
{
    struct error err = {0};
    struct gguf *f;
    struct tokenizer *t;
    struct vocabulary *v;
    struct grammar *g;
    const int32_t *ends;
    int32_t *ids;
    size_t n_grammar = sizeof json_grammar - 1, n_text = sizeof json_text - 1, n;
    if (argc != 2 && argc != 4)
        return fputs("usage: bench_masks VOCABULARY.gguf [GRAMMAR.gbnf TEXT | --schemas DIR]\n", stderr), 2;
    bool schemas = argc == 4 && !strcmp(argv[2], "--schemas");
    const char *grammar = argc == 4 && !schemas ? read_file(argv[2], &n_grammar) : json_grammar;
    const char *text = argc == 4 && !schemas ? read_file(argv[3], &n_text) : json_text;
    if (gguf_open(&f, argv[1], &err) < 0 || tokenizer_open(&t, f, &err) < 0)
        return fprintf(stderr, "%s\n", err.text), 1;
    uint32_t n_ends = (uint32_t)tokenizer_ends(t, &ends);
    uint64_t from = clock_ns();
    if (vocabulary_open(&v, tokenizer_n_vocab(t), piece, t, ends, n_ends, &err) < 0 || vocabulary_warm(v) < 0)
        return fprintf(stderr, "%s\n", err.text), 1;
    printf("%u tokens, %u nodes, opened in %.1f ms\n", v->n_tokens, v->n_nodes,
           (double)(clock_ns() - from) / 1e6);
    if (schemas)
        return measure_schemas(argv[3], v, t);
    from = clock_ns();
    if (grammar_from_gbnf(&g, grammar, n_grammar, &err) < 0 ||
        tokenizer_encode(t, text, n_text, (struct tokenizer_flags){0}, 0, &ids, &n, &err) < 0)
        return fprintf(stderr, "%s\n", err.text), 1;
    printf("%u states, compiled in %.1f ms\n", g->n_states, (double)(clock_ns() - from) / 1e6);
    uint64_t *ns = calloc(n + 1, sizeof *ns);
    if (!ns)
        return 1;
    size_t done = measure(g, v, ids, n, ns);
    for (size_t i = 0; getenv("SLOW") && i < done; i++) {
        struct tokenizer_piece p = tokenizer_piece(t, ids[i], false);
        printf("  %8.1f us before %.*s\n", (double)ns[i] / 1e3, (int)p.len, p.s);
    }
    if (done < n)
        printf("the text leaves the grammar at token %zu of %zu\n", done + 1, n);
    report("first", ns, done);
    report("again", ns, measure(g, v, ids, n, ns));
    free(ns);
    free(ids);
    grammar_unref(g);
    vocabulary_close(v);
    tokenizer_close(t);
    gguf_close(f);
    return 0;
}
