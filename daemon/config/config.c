#include "config.h"
#include "config_keys.h"
#include "base/log.h"
#include "base/suggest.h"

#include <ctype.h>
#include <errno.h>
#include <ini.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LINE (1 << 20)

static struct config_origin *origin_of(struct config *c, const struct config_key *key)
{
    return &c->origins[key - config_keys];
}

int config_defaults(struct config *out, struct error *err)
{
    *out = (struct config){0};
    for (size_t i = 0; i < config_n_keys; i++) {
        struct error inner = {0};
        if (config_parse(out, &config_keys[i], config_keys[i].initial, &inner) < 0)
            return error_set(err, inner.code, "default of %s: %s", config_keys[i].name, inner.text);
    }
    out->file = strdup("");
    return out->file ? 0 : error_set(err, -ENOMEM, "out of memory");
}

void config_free(struct config *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < config_n_keys; i++)
        config_release(c, &config_keys[i]);
    free(c->file);
    c->file = NULL;
}

/* ---- file ---- */

struct file_reader {
    FILE *f;
    const char *path;
    struct config *c;
    int line;      /* the one being read, from 1 */
    int bad_line;  /* of the first error in `err`, 0 when none */
    bool at_start; /* the next byte begins a line */
    bool in_line;  /* something other than white space has come in this line */
    struct error err;
};

static int file_error(struct file_reader *r, const char *words)
{
    if (r->bad_line == 0) {
        r->bad_line = r->line;
        error_set(&r->err, -EINVAL, "%s:%d: %s", r->path, r->line, words);
    }
    return 0;
}

/* libinih's fgets: counts lines, and sees what libinih would pass over (sections, NUL bytes). */
static char *read_piece(char *out, int room, void *context)
{
    struct file_reader *r = context;
    int n = 0, c = EOF;

    while (n < room - 1 && (c = getc(r->f)) != EOF) {
        if (r->at_start) {
            r->line++;
            r->at_start = r->in_line = false;
        }
        if (c == '\0') {
            file_error(r, "contains a NUL byte: not a text file");
            continue;
        }
        if (!r->in_line && !isspace(c)) {
            r->in_line = true;
            if (c == '[')
                file_error(r, "sections are not supported");
        }
        out[n++] = (char)c;
        if (c == '\n') {
            r->at_start = true;
            break;
        }
    }
    out[n] = '\0';
    return n > 0 ? out : NULL;
}

static int take_pair(void *context, const char *section, const char *name, const char *value)
{
    struct file_reader *r = context;
    struct error inner = {0};
    char words[64 + sizeof inner.text];

    (void)section; /* read_piece() has refused it already */
    if (r->bad_line)
        return 0; /* the first bad line is the one that is told */
    const struct config_key *key = config_find(name);
    if (!key) {
        const char *meant = config_nearest(name);
        snprintf(words, sizeof words, "unknown key %s%s%s%s", log_quote(name), meant ? "; did you mean " : "",
                 meant ? meant : "", meant ? "?" : "");
        return file_error(r, words);
    }
    struct config_origin *origin = origin_of(r->c, key);
    if (origin->kind == CONFIG_FROM_FILE) {
        snprintf(words, sizeof words, "%s is already set in line %d", name, origin->line);
        return file_error(r, words);
    }
    if (config_parse(r->c, key, value, &inner) < 0) {
        snprintf(words, sizeof words, "%s %s", name, inner.text);
        return file_error(r, words);
    }
    *origin = (struct config_origin){CONFIG_FROM_FILE, r->line};
    return 1;
}

static void set_knobs(void)
{
    ini_use_stack = false;
    ini_allow_realloc = true;
    ini_max_line = MAX_LINE;
    ini_allow_inline_comments = false;
    ini_allow_multiline = false;
}

int config_read_file(struct config *c, const char *path, struct error *err)
{
    struct file_reader r = {.path = path, .c = c, .at_start = true};

    r.f = fopen(path, "re");
    if (!r.f)
        return error_set(err, -errno, "%s: %s", path, strerror(errno));
    char *copy = strdup(path);
    if (!copy) {
        fclose(r.f);
        return error_set(err, -ENOMEM, "out of memory");
    }
    free(c->file);
    c->file = copy;
    set_knobs();
    int line = ini_parse_stream(read_piece, &r, take_pair, &r);
    int read_error = ferror(r.f) ? errno : 0;
    fclose(r.f);
    if (read_error)
        return error_set(err, -read_error, "%s: %s", path, strerror(read_error));
    if (line == -2)
        return error_set(err, -ENOMEM, "%s: out of memory", path);
    if (line > 0 && (r.bad_line == 0 || line < r.bad_line))
        return error_set(err, -EINVAL, "%s:%d: expected \"key = value\"", path, line);
    return r.bad_line ? error_set(err, r.err.code, "%s", r.err.text) : 0;
}

/* ---- environment ---- */

#define PREFIX "HEARTH_"

/* "QUEUE_LIMIT" -> "queue_limit"; false when it is no key's spelling. */
static bool env_key(const char *name, size_t n, char *out, size_t room)
{
    if (n >= room)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (islower((unsigned char)name[i]))
            return false;
        out[i] = (char)tolower((unsigned char)name[i]);
    }
    out[n] = '\0';
    return true;
}

static void warn_unknown(const char *variable, const char *key)
{
    const char *meant = config_nearest(key);
    char upper[64];
    size_t n = 0;

    for (; meant && meant[n] && n + 1 < sizeof upper; n++)
        upper[n] = (char)toupper((unsigned char)meant[n]);
    upper[n] = '\0';
    log_warn("unknown environment variable %.*s is ignored%s%s%s", (int)strcspn(variable, "="), variable,
             meant ? "; did you mean " PREFIX : "", upper, meant ? "?" : "");
}

/* True if it is spelt like a key of ours: writes that key, and where its value begins. */
static bool is_ours(const char *variable, char name[64], const char **equals)
{
    const char *start = variable + strlen(PREFIX);

    *equals = strchr(variable, '=');
    return strncmp(variable, PREFIX, strlen(PREFIX)) == 0 && *equals &&
           env_key(start, (size_t)(*equals - start), name, 64);
}

void config_warn(const struct config_arguments *args)
{
    const char *equals;
    char name[64];

    for (char **variable = args->environ; !args->help && variable && *variable; variable++)
        if (is_ours(*variable, name, &equals) && !config_find(name))
            warn_unknown(*variable, name);
}

/* Files of a driver's code, and one that load() writes: not for the user who starts a setuid process to name.
 */
static bool names_file(const struct config_key *key)
{
    return strcmp(key->name, "libcuda") == 0 || strcmp(key->name, "cuda_cache") == 0 ||
           strcmp(key->name, "cpu_tuning") == 0;
}

static int read_variable(struct config *c, const char *variable, bool secure, struct error *err)
{
    const char *equals;
    char name[64];

    const struct config_key *key = is_ours(variable, name, &equals) ? config_find(name) : NULL;
    if (!key || (secure && names_file(key)))
        return 0;
    struct error inner = {0};
    if (config_parse(c, key, equals + 1, &inner) < 0)
        return error_set(err, inner.code, "environment variable %.*s %s", (int)(equals - variable), variable,
                         inner.text);
    origin_of(c, key)->kind = CONFIG_FROM_ENV;
    return 0;
}

/* ---- flags ---- */

struct flag { /* --name, --name=value */
    char name[64];
    const char *value; /* after '=', or NULL */
};

static bool split_flag(const char *argument, struct flag *out)
{
    if (strncmp(argument, "--", 2) != 0 || argument[2] == '\0')
        return false;
    size_t n = strcspn(argument + 2, "=");
    if (n >= sizeof out->name)
        return false;
    for (size_t i = 0; i < n; i++)
        out->name[i] = argument[2 + i] == '-' ? '_' : argument[2 + i];
    out->name[n] = '\0';
    out->value = argument[2 + n] == '=' ? argument + 3 + n : NULL;
    return true;
}

/* The use of one argument of the command line; `taken` arguments, 0 when it is not one of ours. */
struct flag_use {
    const struct config_key *key; /* or NULL */
    bool config, help, print_config;
    const char *argument, *value;
    int taken;
};

static int read_flag(int argc, char **argv, struct flag_use *out, struct error *err)
{
    struct flag flag;

    *out = (struct flag_use){.argument = argv[0], .taken = 1};
    out->help = strcmp(argv[0], "-h") == 0 || strcmp(argv[0], "--help") == 0;
    out->print_config = strcmp(argv[0], "--print-config") == 0;
    if (out->help || out->print_config)
        return 0;
    bool is_flag = split_flag(argv[0], &flag);
    out->config = is_flag && strcmp(flag.name, "config") == 0;
    out->key = is_flag ? config_find(flag.name) : NULL;
    if (!out->config && !out->key) {
        out->taken = 0;
        return 0;
    }
    if (!flag.value && argc < 2)
        return error_set(err, -EINVAL, "%s needs a value", argv[0]);
    out->value = flag.value ? flag.value : argv[1];
    out->taken = flag.value ? 1 : 2;
    return 0;
}

bool config_is_model(const char *argument)
{
    size_t n = strlen(argument), ending = strlen(".gguf");

    return argument[0] != '-' && n > ending && !strcmp(argument + n - ending, ".gguf");
}

static int unknown_argument(const char *argument, struct error *err)
{
    struct flag flag;
    const char *meant = split_flag(argument, &flag) ? config_nearest(flag.name) : NULL;

    if (config_is_model(argument))
        return error_set(err, -EINVAL, "unknown argument %s; a model is named by --model",
                         log_quote(argument));
    if (!meant)
        return error_set(err, -EINVAL, "unknown %s %s; see --help", argument[0] == '-' ? "flag" : "argument",
                         log_quote(argument));
    char dashed[64];
    snprintf(dashed, sizeof dashed, "%s", meant);
    for (char *s = dashed; *s; s++)
        *s = *s == '_' ? '-' : *s;
    return error_set(err, -EINVAL, "unknown flag %s; did you mean --%s?", log_quote(argument), dashed);
}

/* Reads the command line into uses[argc]; returns how many are in use. */
static int read_flags(struct config_arguments *args, struct flag_use *uses, struct error *err)
{
    int n = 0;

    for (int i = 0, taken; i < args->argc; i += taken) {
        struct flag_use *use = &uses[n];
        int rc = read_flag(args->argc - i, args->argv + i, use, err);
        if (rc < 0)
            return rc;
        taken = use->taken;
        n += taken > 0;
        if (taken == 0 && args->option)
            taken = args->option(args->context, args->argc - i, args->argv + i, err);
        if (taken < 0)
            return taken;
        if (taken == 0)
            return unknown_argument(args->argv[i], err);
        args->help |= use->help;
        args->print_config |= use->print_config;
    }
    return n;
}

static int apply_flags(struct config *c, const struct flag_use *uses, int n, bool secure, struct error *err)
{
    for (int i = 0; i < n; i++) {
        const struct flag_use *use = &uses[i];
        struct error inner = {0};
        if (!use->key || (secure && names_file(use->key)))
            continue;
        if (config_parse(c, use->key, use->value, &inner) < 0)
            return error_set(err, inner.code, "%.*s %s", (int)strcspn(use->argument, "="), use->argument,
                             inner.text);
        origin_of(c, use->key)->kind = CONFIG_FROM_FLAG;
    }
    return 0;
}

static int read_files(struct config *c, const struct config_arguments *args, const struct flag_use *uses,
                      int n, struct error *err)
{
    const char *file = NULL;

    for (int i = 0; i < n; i++)
        if (uses[i].config && !args->secure)
            file = uses[i].value;
    if (file)
        return config_read_file(c, file, err);
    if (!args->default_file)
        return 0;
    struct error inner = {0};
    int rc = config_read_file(c, args->default_file, &inner);
    return rc == 0 || rc == -ENOENT ? 0 : error_set(err, rc, "%s", inner.text);
}

int config_load(struct config *out, struct config_arguments *args, struct error *err)
{
    int rc = config_defaults(out, err);
    struct flag_use *uses = calloc((size_t)args->argc + 1, sizeof *uses);

    if (rc == 0 && !uses)
        rc = error_set(err, -ENOMEM, "out of memory");
    int n = rc == 0 ? read_flags(args, uses, err) : rc;
    if (n < 0 || args->help) {
        free(uses);
        return n < 0 ? n : 0;
    }
    rc = read_files(out, args, uses, n, err);
    for (char **variable = args->environ; rc == 0 && variable && *variable; variable++)
        rc = read_variable(out, *variable, args->secure, err);
    if (rc == 0)
        rc = apply_flags(out, uses, n, args->secure, err);
    free(uses);
    return rc;
}

int config_set(struct config *c, const char *key, const char *value, struct error *err)
{
    const struct config_key *found = config_find(key);
    struct error inner = {0};

    if (!found)
        return error_set(err, -EINVAL, "unknown key %s", log_quote(key));
    if (config_parse(c, found, value, &inner) < 0)
        return error_set(err, inner.code, "%s %s", key, inner.text);
    origin_of(c, found)->kind = CONFIG_FROM_FLAG;
    return 0;
}

bool config_is_set(const struct config *c, const char *key)
{
    const struct config_key *found = config_find(key);

    return found && c->origins[found - config_keys].kind != CONFIG_FROM_DEFAULT;
}
