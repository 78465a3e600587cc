/* bench_masks VOCABULARY.gguf [GRAMMAR.gbnf TEXT] - how long the masks of a constrained text take on one
 * core. Without a grammar it walks a JSON text of nested objects, strings and numbers through llama.cpp's
 * JSON grammar's language. Prints tokens, p50, p99 and the largest in µs. */
#include "base/clock.h"
#include "gguf/gguf.h"
#include "grammar/matcher.h"
#include "tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Masks of every position of the text, token by token; the times in ns. */
static size_t measure(struct grammar *g, struct vocabulary *v, const int32_t *ids, size_t n, uint64_t *ns)
{
    uint32_t *mask = calloc(vocabulary_mask_words(v), sizeof *mask);
    struct matcher *m;
    size_t i = 0;
    if (!mask || matcher_open(&m, g) < 0)
        return 0;
    for (; i < n; i++) {
        uint64_t from = clock_ns();
        matcher_mask(m, v, mask);
        ns[i] = clock_ns() - from;
        if (!matcher_token(m, v, ids[i]))
            break;
    }
    matcher_close(m);
    free(mask);
    return i;
}

static void report(const char *name, uint64_t *ns, size_t n)
{
    qsort(ns, n, sizeof *ns, ascending);
    if (n)
        printf("%-12s %5zu masks  p50 %7.1f  p99 %7.1f  max %7.1f us\n", name, n, (double)ns[n / 2] / 1e3,
               (double)ns[n * 99 / 100] / 1e3, (double)ns[n - 1] / 1e3);
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
        return fputs("usage: bench_masks VOCABULARY.gguf [GRAMMAR.gbnf TEXT]\n", stderr), 2;
    const char *grammar = argc == 4 ? read_file(argv[2], &n_grammar) : json_grammar;
    const char *text = argc == 4 ? read_file(argv[3], &n_text) : json_text;
    if (gguf_open(&f, argv[1], &err) < 0 || tokenizer_open(&t, f, &err) < 0)
        return fprintf(stderr, "%s\n", err.text), 1;
    uint32_t n_ends = (uint32_t)tokenizer_ends(t, &ends);
    uint64_t from = clock_ns();
    if (vocabulary_open(&v, tokenizer_n_vocab(t), piece, t, ends, n_ends, &err) < 0 || vocabulary_warm(v) < 0)
        return fprintf(stderr, "%s\n", err.text), 1;
    printf("%u tokens, %u nodes, opened in %.1f ms\n", v->n_tokens, v->n_nodes,
           (double)(clock_ns() - from) / 1e6);
    from = clock_ns();
    if (grammar_from_gbnf(&g, grammar, n_grammar, &err) < 0 ||
        tokenizer_encode(t, text, n_text, (struct tokenizer_flags){0}, 0, &ids, &n, &err) < 0)
        return fprintf(stderr, "%s\n", err.text), 1;
    printf("%u states, compiled in %.1f ms\n", g->n_states, (double)(clock_ns() - from) / 1e6);
    uint64_t *ns = calloc(n + 1, sizeof *ns);
    if (!ns)
        return 1;
    report("first", ns, measure(g, v, ids, n, ns));
    report("again", ns, measure(g, v, ids, n, ns));
    free(ns);
    free(ids);
    grammar_unref(g);
    vocabulary_close(v);
    tokenizer_close(t);
    gguf_close(f);
    return 0;
}
