/* fuzz_config - any bytes as a configuration file, as variables and as a command line. An accepted input is
 * printed by --print-config as a file that reads back to the same; a refusal has words that say where. The
 * first byte chooses: bit 0 variables and flags (one a line) instead of a file. */
#include "config/config.h"
#include "config/config_keys.h"
#include "base/error.h"
#include "fuzz_file.h"

#include <errno.h>

#define MAX_WORDS 64

static char *print(const struct config *c, size_t *n)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, n);
    CHECK(f);
    config_print(c, f);
    CHECK(fclose(f) == 0);
    return text;
}

/* Keys are masked, and comments say where a value came from: neither comes back. */
static void check_values(const struct config *a, const struct config *b)
{
    for (size_t i = 0; i < config_n_keys; i++) {
        char *one = config_format(a, &config_keys[i]), *other = config_format(b, &config_keys[i]);
        CHECK(one && other);
        CHECK(config_keys[i].secret || !strcmp(one, other));
        free(one);
        free(other);
    }
}

static void check_reads_back(const struct config *c)
{
    size_t n;
    struct config again;
    struct error err = {0};
    char *text = print(c, &n);
    struct fuzz_file f = fuzz_file_open(text, n);
    CHECK(config_defaults(&again, NULL) == 0);
    if (config_read_file(&again, f.path, &err) < 0)
        fprintf(stderr, "%s\n%s", err.text, text);
    CHECK(!err.code);
    check_values(c, &again);
    config_free(&again);
    fuzz_file_close(&f);
    free(text);
}

static void read_file(const char *bytes, size_t n)
{
    struct config c;
    struct error err = {0};
    struct fuzz_file f = fuzz_file_open(bytes, n);
    CHECK(config_defaults(&c, NULL) == 0);
    int rc = config_read_file(&c, f.path, &err);
    if (rc < 0) /* file and line */
        CHECK(rc == -EINVAL && err.code == rc && !strncmp(err.text, f.path, strlen(f.path)));
    else
        check_reads_back(&c);
    config_free(&c);
    fuzz_file_close(&f);
}

/* A command's own argument: one word, and one that takes a value. */
static int take_option(void *context, int argc, char **argv, struct error *err)
{
    (void)context;
    if (!strcmp(argv[0], "word"))
        return 1;
    if (strcmp(argv[0], "--own"))
        return 0;
    return argc < 2 ? error_set(err, -EINVAL, "--own needs a value") : 2;
}

/* Lines with an upper-case letter first are variables, the others arguments. */
static void read_words(char *text)
{
    char *argv[MAX_WORDS + 1] = {0}, *variables[MAX_WORDS + 1] = {0}, *rest = text, *line;
    int n_arguments = 0, n_variables = 0;
    while ((line = strsep(&rest, "\n")))
        if (line[0] >= 'A' && line[0] <= 'Z' && n_variables < MAX_WORDS)
            variables[n_variables++] = line;
        else if (*line && n_arguments < MAX_WORDS)
            argv[n_arguments++] = line;
    struct config c;
    struct error err = {0};
    struct config_arguments args = {.argc = n_arguments,
                                    .argv = argv,
                                    .environ = variables,
                                    .secure = true, /* --config opens no files */
                                    .option = take_option};
    int rc = config_load(&c, &args, &err);
    if (rc < 0)
        CHECK(rc == -EINVAL && err.code == rc && err.text[0]);
    else if (!args.help)
        check_reads_back(&c);
    config_free(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    if (!(data[0] & 1)) {
        read_file((const char *)data + 1, size - 1);
        return 0;
    }
    char *text = strndup((const char *)data + 1, size - 1);
    read_words(text);
    free(text);
    return 0;
}
