/* cmd_constrain.c - tells whether a text is in the language of a schema, a regular expression or a grammar.
 */
#include "base/escape.h"
#include "base/log.h"
#include "commands.h"
#include "grammar/matcher.h"
#include "read_all.h"
#include "schema/schema.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ACCEPTED = 0, REFUSED = 1, NOT_HELD = 3 }; /* exit codes of this command, as of grep */

struct constrain_options {
    const char *schema, *regex, *grammar;
    bool lines;
};

#define USAGE "hearthd constrain --schema FILE | --regex REGEX | --grammar FILE [--lines] < TEXT\n"

static int usage(void)
{
    fputs("usage: " USAGE, stderr);
    return EXIT_USAGE;
}

static int help(void)
{
    puts(USAGE "\n"
               "Prints `accepted` (exit code 0), or the first byte that does not match (1). Of a schema that "
               "cannot\n"
               "be enforced exactly it prints the keyword and its path (3).\n"
               "\n"
               "  --lines   each line is a text, and gets a line; the exit code is the largest of them");
    return EXIT_CLEAN;
}

/* 0; -1 for a wrong line; 1 for --help. */
static int read_options(int argc, char **argv, struct constrain_options *o)
{
    static const struct option options[] = {
        {"schema", required_argument, NULL, 's'},  {"regex", required_argument, NULL, 'r'},
        {"grammar", required_argument, NULL, 'g'}, {"lines", no_argument, NULL, 'l'},
        {"help", no_argument, NULL, 'h'},          {0}};
    *o = (struct constrain_options){0};
    optind = 0;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 'h')
            return 1;
        if (c == 's')
            o->schema = optarg;
        else if (c == 'r')
            o->regex = optarg;
        else if (c == 'g')
            o->grammar = optarg;
        else if (c == 'l')
            o->lines = true;
        else
            return -1;
    }
    if (optind != argc || (o->schema != NULL) + (o->regex != NULL) + (o->grammar != NULL) != 1) {
        log_error("one of --schema, --regex and --grammar is needed");
        return -1;
    }
    return 0;
}

static int compile(struct grammar **out, const struct constrain_options *o, struct error *err)
{
    char *text;
    size_t n;
    if (o->regex)
        return grammar_from_regex(out, o->regex, strlen(o->regex), err);
    const char *path = o->schema ? o->schema : o->grammar;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return error_set(err, -EINVAL, "%s: %s", path, strerror(errno));
    int rc = read_all(fd, path, &text, &n, err);
    close(fd);
    if (rc < 0) /* the file cannot be read: exit code 3 is for schemas that cannot be held */
        return err->code = rc == -ENOMEM ? rc : -EINVAL;
    rc = o->schema ? schema_compile_text(out, text, n, err) : grammar_from_text(out, text, n, err);
    free(text);
    return rc;
}

/* Prints the first byte of a text that does not match; returns the exit code. */
static int judge(struct grammar *g, const char *text, size_t n)
{
    struct matcher *m;
    int rc = matcher_open(&m, g);
    if (rc == -E2BIG)
        puts("refused: the grammar is too ambiguous");
    else if (rc < 0)
        log_error("out of memory");
    if (rc < 0)
        return rc == -E2BIG ? NOT_HELD : EXIT_MEMORY;
    size_t taken = matcher_bytes(m, text, n);
    bool end = matcher_can_end(m), failed = matcher_has_failed(m);
    matcher_close(m);
    if (failed)
        puts("refused: the grammar is too ambiguous");
    else if (taken < n)
        printf("refused at byte %zu\n", taken);
    else if (!end)
        printf("refused at byte %zu: the text ends too early\n", taken);
    else
        puts("accepted");
    return failed ? NOT_HELD : taken == n && end ? ACCEPTED : REFUSED;
}

/* A JSON text may end with one newline, as files do. */
static int judge_all(struct grammar *g, const char *text, size_t n, const struct constrain_options *o)
{
    int worst = ACCEPTED;
    if (!o->lines)
        worst = judge(g, text, n - (o->schema && n > 0 && text[n - 1] == '\n'));
    for (size_t at = 0; o->lines && at < n;) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t len = end ? (size_t)(end - text) - at : n - at;
        int code = judge(g, text + at, len);
        worst = code > worst ? code : worst;
        at += len + 1;
    }
    int code = command_flush();
    return code != EXIT_CLEAN ? code : worst;
}

/* The words hold parts of the schema, which may come from anywhere. */
static void put_reason(const char *before, const struct error *err)
{
    fputs(before, stdout);
    escape_print(stdout, err->text, strlen(err->text), ESCAPE_LINE);
    putchar('\n');
}

static int cannot_compile(const struct error *err)
{
    if (err->code == -ENOTSUP || err->code == -E2BIG) {
        put_reason("", err);
        int code = command_flush();
        return code != EXIT_CLEAN ? code : NOT_HELD;
    }
    if (err->code == -EDOM) { /* a language without texts refuses this one too */
        put_reason("refused at byte 0: ", err);
        int code = command_flush();
        return code != EXIT_CLEAN ? code : REFUSED;
    }
    return exit_fail(err);
}

int cmd_constrain(int argc, char **argv)
{
    struct constrain_options o;
    struct error err = {0};
    struct grammar *g = NULL;
    char *text = NULL;
    size_t n = 0;
    int rc = read_options(argc, argv, &o);
    if (rc != 0)
        return rc > 0 ? help() : usage();
    rc = compile(&g, &o, &err);
    if (rc < 0)
        return cannot_compile(&err);
    rc = read_all(STDIN_FILENO, "standard input", &text, &n, &err);
    int code = rc < 0 ? exit_fail(&err) : judge_all(g, text, n, &o);
    free(text);
    grammar_unref(g);
    return code;
}
