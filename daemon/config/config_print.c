/* The table of keys for people: --print-config, --help, and the commented sample. */
#include "config.h"
#include "config_keys.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static void print_origin(const struct config *c, const struct config_key *key, FILE *f)
{
    const struct config_origin *origin = &c->origins[key - config_keys];

    if (origin->kind == CONFIG_FROM_FILE) {
        fprintf(f, "# %s:%d\n", c->file, origin->line);
    } else if (origin->kind == CONFIG_FROM_ENV) {
        fputs("# HEARTH_", f);
        for (const char *s = key->name; *s; s++)
            fputc(toupper((unsigned char)*s), f);
        fputc('\n', f);
    } else if (origin->kind == CONFIG_FROM_FLAG) {
        fputs("# --", f);
        for (const char *s = key->name; *s; s++)
            fputc(*s == '_' ? '-' : *s, f);
        fputc('\n', f);
    }
}

void config_print(const struct config *c, FILE *f)
{
    fputs("# The values in force. A comment names the source of a value; values without a comment are "
          "defaults.\n",
          f);
    for (size_t i = 0; i < config_n_keys; i++) {
        const struct config_key *key = &config_keys[i];
        char *value = config_format(c, key);
        print_origin(c, key, f);
        if (key->secret && value && value[0]) /* a comment: read back, "(set)" would be the key */
            fprintf(f, "# %s = (set)\n", key->name);
        else
            fprintf(f, "%s =%s%s\n", key->name, value && value[0] ? " " : "", value ? value : "");
        free(value);
    }
}

static bool differs(const struct config *a, const struct config *b, const struct config_key *key)
{
    char *before = config_format(a, key), *now = config_format(b, key);
    bool yes = before && now && strcmp(before, now) != 0;

    free(before);
    free(now);
    return yes;
}

void config_changes(const struct config *a, const struct config *b, char *out, size_t room)
{
    size_t n = 0;

    *out = '\0';
    for (size_t i = 0; i < config_n_keys; i++) {
        const char *name = config_keys[i].name;
        if (!differs(a, b, &config_keys[i]) || n + strlen(name) + 2 >= room)
            continue;
        n += (size_t)snprintf(out + n, room - n, "%s%s", n ? ", " : "", name);
    }
}

/* `text` at column `indent`, broken at spaces before column `width`; the first line is begun already. */
static void print_wrapped(FILE *f, const char *text, int indent, int width, const char *margin)
{
    int column = indent;

    while (*text) {
        size_t n = strcspn(text, " ");
        if (column > indent && column + 1 + (int)n > width) {
            fprintf(f, "\n%s%*s", margin, indent - (int)strlen(margin), "");
            column = indent;
        } else if (column > indent) {
            fputc(' ', f);
            column++;
        }
        fwrite(text, 1, n, f);
        column += (int)n;
        text += n;
        text += strspn(text, " ");
    }
    fputc('\n', f);
}

#define DESCRIPTION (CONFIG_ALLOWED + 480) /* bytes of the longest help with its values */

/* Help, allowed values and default as one sentence. */
static void describe(const struct config_key *key, char *out, size_t room, bool with_default)
{
    char allowed[CONFIG_ALLOWED];

    config_allowed(key, allowed, sizeof allowed);
    bool plain = key->type == CONFIG_STRING && !key->choices;
    size_t n = (size_t)snprintf(out, room, "%s", key->help);
    if (!plain)
        n += (size_t)snprintf(out + n, room - n, " (%s%s%s)", allowed,
                              with_default && key->initial[0] ? "; default " : "",
                              with_default ? key->initial : "");
    else if (with_default && key->initial[0])
        snprintf(out + n, room - n, " (default %s)", key->initial);
}

void config_help(FILE *f)
{
    for (size_t i = 0; i < config_n_keys; i++) {
        const struct config_key *key = &config_keys[i];
        char text[DESCRIPTION], flag[64];
        if (key->group)
            fprintf(f, "\n%s\n", key->group);
        snprintf(flag, sizeof flag, "--%s", key->name);
        for (char *s = flag; *s; s++)
            *s = *s == '_' ? '-' : *s;
        describe(key, text, sizeof text, true);
        fprintf(f, "  %-21s ", flag);
        print_wrapped(f, text, 24, 100, "");
    }
}

void config_sample(FILE *f)
{
    fputs("# hearthd.conf - every key of hearthd with its default.\n"
          "#\n"
          "# Lines are `key = value`; # and ; begin a comment line; there are no sections. Sizes take K, M "
          "or G,\n"
          "# commas separate the items of a list, times are milliseconds. An environment variable "
          "HEARTH_<KEY>\n"
          "# overrides this file, and a flag --key-with-dashes overrides both. `hearthd check-config` "
          "checks\n"
          "# this file, `hearthd --print-config` shows the values in force and their sources.\n",
          f);
    for (size_t i = 0; i < config_n_keys; i++) {
        const struct config_key *key = &config_keys[i];
        char text[DESCRIPTION];
        if (key->group)
            fprintf(f, "\n# ---- %s ----\n", key->group);
        describe(key, text, sizeof text, false);
        fputs("\n# ", f);
        print_wrapped(f, text, 2, 100, "# ");
        fprintf(f, "#%s =%s%s\n", key->name, key->initial[0] ? " " : "", key->initial);
    }
}

/* Text for troff: a backslash or a hyphen is written as one, a line does not begin with a dot. */
static void print_troff(const char *text, FILE *f)
{
    if (*text == '.' || *text == '\'')
        fputs("\\&", f);
    for (; *text; text++)
        if (*text == '\\')
            fputs("\\e", f);
        else if (*text == '-')
            fputs("\\-", f);
        else
            fputc(*text, f);
}

void config_man(FILE *f)
{
    fputs(".\\\" Made by: hearthd check-config --man\n"
          ".TH HEARTHD.CONF 5 \"\" \"Hearth " HEARTH_VERSION "\" \"Hearth\"\n"
          ".SH NAME\nhearthd.conf \\- configuration of the Hearth inference daemon\n"
          ".SH DESCRIPTION\n"
          "Lines are\n.IR key \" = \" value .\n"
          "A line that begins with # or ; is a comment; elsewhere these are part of the value. There are no "
          "sections. Sizes take K, M or G, commas separate the items of a list, times are milliseconds.\n"
          "An unknown key is an error that names file and line.\n"
          ".PP\nThe file is\n.IR " CONFIG_FILE ",\nor the one of\n.BR \\-\\-config .\n"
          "An environment variable HEARTH_\\fIKEY\\fR overrides it, and a flag \\-\\-key\\-with\\-dashes "
          "overrides "
          "both.\n"
          ".B hearthd check\\-config\nchecks it,\n.B hearthd \\-\\-print\\-config\n"
          "shows the values in force and their sources.\n",
          f);
    for (size_t i = 0; i < config_n_keys; i++) {
        const struct config_key *key = &config_keys[i];
        char text[DESCRIPTION];
        if (key->group) {
            fputs(".SH ", f);
            for (const char *s = key->group; *s; s++)
                fputc(toupper((unsigned char)*s), f);
            fputc('\n', f);
        }
        describe(key, text, sizeof text, true);
        fprintf(f, ".TP\n.B %s\n", key->name);
        print_troff(text, f);
        fputc('\n', f);
    }
    fputs(".SH SEE ALSO\n.BR hearthd (8)\n", f);
}
