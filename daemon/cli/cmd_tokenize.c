/* cmd_tokenize.c - `hearthd tokenize`: text to token ids. */
#include "commands.h"
#include "read_all.h"

#include "gguf/gguf.h"
#include "base/log.h"
#include "tokenizer/tokenizer.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct tokenize_options {
    const char *model;
    bool no_special;
};

static int usage(void)
{
    fputs("usage: hearthd tokenize --model FILE [--no-special] [--ids] < TEXT\n", stderr);
    return EXIT_USAGE;
}

static bool read_options(int argc, char **argv, struct tokenize_options *o)
{
    static const struct option options[] = {{"model", required_argument, NULL, 'm'},
                                            {"no-special", no_argument, NULL, 's'},
                                            {"ids", no_argument, NULL, 'i'},
                                            {0}};
    *o = (struct tokenize_options){0};
    optind = 0; /* start over: another command line may have been read before */
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 'm')
            o->model = optarg;
        else if (c == 's')
            o->no_special = true;
        else if (c != 'i')
            return false;
    }
    if (!o->model)
        log_error("--model is missing");
    return o->model && optind == argc;
}

static int print_ids(const int32_t *ids, size_t n)
{
    putchar('[');
    for (size_t i = 0; i < n; i++)
        printf(i ? ", %d" : "%d", ids[i]);
    fputs("]\n", stdout);
    return command_flush();
}

static int open_tokenizer(struct tokenizer **out, const char *path, struct error *err)
{
    struct gguf *g;
    int rc = gguf_open(&g, path, err);
    if (rc < 0)
        return rc;
    rc = tokenizer_open(out, g, err);
    gguf_close(g);
    return rc;
}

int cmd_tokenize(int argc, char **argv)
{
    struct tokenize_options o;
    if (!read_options(argc, argv, &o))
        return usage();
    struct error err = {0};
    struct tokenizer *t = NULL;
    char *text = NULL;
    int32_t *ids = NULL;
    size_t len = 0, n = 0;
    int rc = open_tokenizer(&t, o.model, &err);
    if (rc >= 0)
        rc = read_all(STDIN_FILENO, "standard input", &text, &len, &err);
    struct tokenizer_flags flags = {.add_special = !o.no_special, .parse_special = !o.no_special};
    if (rc >= 0)
        rc = tokenizer_encode(t, text, len, flags, 0, &ids, &n, &err);
    int code = rc < 0 ? exit_fail(&err) : print_ids(ids, n);
    free(ids);
    free(text);
    tokenizer_close(t);
    return code;
}
