/* cmd_parse.c - hearthd parse: a model's raw text on stdin, what a client would get of it on stdout. For
 * those who debug a chat template, and for the tests. */
#include "commands.h"
#include "read_all.h"

#include "base/buf.h"
#include "base/log.h"
#include "chat/tool_list.h"
#include "chat/chat_template.h"
#include "gguf/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct parse_options {
    const char *format, *model, *tools, *prompt;
    bool length, deltas, has_cut;
    size_t cut, by;
};

struct call {
    struct buf id, name, arguments;
};

/* The parts that were parsed so far. */
struct parsed {
    struct arena arena;
    struct buf content, reasoning, line;
    struct call *calls;
    size_t n_calls;
    bool deltas, failed;
};

/* --- options --- */

static int usage(void)
{
    fputs("usage: hearthd parse --format NAME | --model FILE [--tools FILE] [--generation-prompt TEXT]\n"
          "                     [--length] [--cut N | --by N] [--deltas] < TEXT\n",
          stderr);
    return EXIT_USAGE;
}

static bool read_count(const char *name, const char *text, size_t min, size_t *out)
{
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (*text >= '0' && *text <= '9' && !*end && !errno && n >= min) {
        *out = (size_t)n;
        return true;
    }
    log_error("--%s must be a count of bytes, %zu or more (got %s)", name, min, log_quote(text));
    return false;
}

static bool read_option(int c, struct parse_options *o)
{
    switch (c) {
    case 'f':
        o->format = optarg;
        return true;
    case 'm':
        o->model = optarg;
        return true;
    case 't':
        o->tools = optarg;
        return true;
    case 'p':
        o->prompt = optarg;
        return true;
    case 'l':
        return o->length = true;
    case 'd':
        return o->deltas = true;
    case 'c':
        return o->has_cut = read_count("cut", optarg, 0, &o->cut);
    case 'b':
        return read_count("by", optarg, 1, &o->by);
    default:
        return false;
    }
}

static bool read_options(int argc, char **argv, struct parse_options *o)
{
    static const struct option options[] = {{"format", required_argument, NULL, 'f'},
                                            {"model", required_argument, NULL, 'm'},
                                            {"tools", required_argument, NULL, 't'},
                                            {"generation-prompt", required_argument, NULL, 'p'},
                                            {"length", no_argument, NULL, 'l'},
                                            {"deltas", no_argument, NULL, 'd'},
                                            {"cut", required_argument, NULL, 'c'},
                                            {"by", required_argument, NULL, 'b'},
                                            {0}};
    *o = (struct parse_options){0};
    optind = 0; /* start over: another command line may have been read before */
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;)
        if (!read_option(c, o))
            return false;
    if (!o->format && !o->model)
        log_error("--format or --model is missing");
    if (o->has_cut && o->by)
        log_error("--cut and --by exclude each other");
    return (o->format || o->model) && !(o->has_cut && o->by) && optind == argc;
}

static int unknown_format(const char *name, struct error *err)
{
    char names[256] = "";
    for (size_t i = 0; i < toolcall_n_formats(); i++) {
        size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, i ? ", %s" : "%s", toolcall_format_name(toolcall_format_at(i)));
    }
    return error_set(err, -EINVAL, "--format must be one of %s (got %s)", names, log_quote(name));
}

/* The format that was named, else that of the model's template. */
static int find_format(const struct parse_options *o, const struct toolcall_format **out, struct error *err)
{
    struct gguf *g;
    struct gguf_str source = {0};
    if (o->format) {
        *out = toolcall_format_find(o->format);
        return *out ? 0 : unknown_format(o->format, err);
    }
    int rc = gguf_open(&g, o->model, err);
    if (rc < 0)
        return rc;
    gguf_get_str(g, "tokenizer.chat_template", &source, NULL); /* without one it is "none" */
    *out = toolcall_format_of_template(source.s ? source.s : "", source.len);
    gguf_close(g);
    return 0;
}

static int read_tools(struct arena *a, const char *path, struct toolcall_tools *out, struct error *err)
{
    json_error_t words;
    if (!path)
        return 0;
    if (access(path, R_OK) < 0)
        return error_set(err, -errno, "%s: %s", path, strerror(errno));
    json_t *tools = json_load_file(path, 0, &words);
    if (!tools)
        return error_set(err, -EINVAL, "%s: line %d: %s", path, words.line, words.text);
    int rc = json_is_array(tools) ? tool_list_read(a, tools, out)
                                  : error_set(err, -EINVAL, "%s: the tools must be an array", path);
    json_decref(tools);
    return rc < 0 ? error_set(err, rc, "%s: out of memory", path) : 0;
}

/* --- what is parsed --- */

static struct call *new_call(struct parsed *p)
{
    struct call *grown =
        arena_grow(&p->arena, p->calls, p->n_calls * sizeof *grown, (p->n_calls + 1) * sizeof *grown);
    if (!grown)
        return NULL;
    p->calls = grown;
    grown[p->n_calls] = (struct call){{.arena = &p->arena}, {.arena = &p->arena}, {.arena = &p->arena}};
    return &grown[p->n_calls++];
}

static void print_delta(struct parsed *p, const struct toolcall_event *e)
{
    static const char *const members[] = {[TOOLCALL_TEXT] = "content",
                                          [TOOLCALL_REASONING] = "reasoning",
                                          [TOOLCALL_BEGIN] = "name",
                                          [TOOLCALL_ARGUMENTS] = "arguments",
                                          [TOOLCALL_ID] = "id"};
    bool of_call = e->kind != TOOLCALL_TEXT && e->kind != TOOLCALL_REASONING;
    if (!p->deltas || e->kind == TOOLCALL_END)
        return;
    p->line.len = 0;
    if (of_call)
        buf_printf(&p->line, "{\"tool_calls\":[{\"index\":%zu,", p->n_calls - 1);
    buf_printf(&p->line, of_call ? "\"%s\":" : "{\"%s\":", members[e->kind]);
    json_put_string(&p->line, e->s, e->n);
    buf_puts(&p->line, of_call ? "}]}" : "}");
    if (!p->line.failed)
        printf("%.*s\n", (int)p->line.len, p->line.p);
}

static void take_event(void *user, const struct toolcall_event *e)
{
    struct parsed *p = user;
    struct call *last = e->kind == TOOLCALL_BEGIN ? new_call(p)
                        : p->n_calls              ? &p->calls[p->n_calls - 1]
                                                  : NULL;
    struct buf *to = e->kind == TOOLCALL_TEXT        ? &p->content
                     : e->kind == TOOLCALL_REASONING ? &p->reasoning
                     : !last                         ? NULL
                     : e->kind == TOOLCALL_BEGIN     ? &last->name
                     : e->kind == TOOLCALL_ID        ? &last->id
                                                     : &last->arguments;
    if (!to) {
        p->failed = true;
        return;
    }
    buf_put(to, e->s, e->n);
    print_delta(p, e);
}

static void put_or_null(struct buf *out, const struct buf *text)
{
    if (text->len)
        json_put_string(out, text->p, text->len);
    else
        buf_puts(out, "null");
}

static void write_result(struct parsed *p, bool length)
{
    struct buf *out = &p->line;
    out->len = 0;
    buf_puts(out, "{\"content\":");
    json_put_string(out, p->content.p, p->content.len);
    buf_puts(out, ",\"reasoning\":");
    put_or_null(out, &p->reasoning);
    buf_puts(out, ",\"tool_calls\":[");
    for (size_t i = 0; i < p->n_calls; i++) {
        const struct call *c = &p->calls[i];
        buf_puts(out, i ? ",{\"id\":" : "{\"id\":");
        put_or_null(out, &c->id);
        buf_puts(out, ",\"name\":");
        json_put_string(out, c->name.p, c->name.len);
        buf_puts(out, ",\"arguments\":");
        json_put_string(out, c->arguments.p, c->arguments.len);
        buf_puts(out, "}");
    }
    buf_printf(out, "],\"finish_reason\":\"%s\"}", length ? "length" : p->n_calls ? "tool_calls" : "stop");
}

static bool has_failed(const struct parsed *p)
{
    bool failed = p->failed || p->content.failed || p->reasoning.failed || p->line.failed;
    for (size_t i = 0; i < p->n_calls; i++)
        failed |= p->calls[i].id.failed || p->calls[i].name.failed || p->calls[i].arguments.failed;
    return failed;
}

/* --- the run --- */

static int feed(struct toolcall_scanner *s, const struct parse_options *o, const char *text, size_t n)
{
    size_t piece = o->by ? o->by : n, at = 0;
    if (o->has_cut && o->cut < n) {
        if (toolcall_feed(s, text, o->cut) < 0)
            return -ENOMEM;
        at = o->cut;
    }
    for (; at < n; at += piece)
        if (toolcall_feed(s, text + at, n - at < piece ? n - at : piece) < 0)
            return -ENOMEM;
    return toolcall_end(s, o->length);
}

static int parse(const struct parse_options *o, struct parsed *p, const char *text, size_t n,
                 struct error *err)
{
    struct toolcall_tools tools = {0};
    struct toolcall_options options = {.tools = &tools, .emit = take_event, .user = p};
    int rc = find_format(o, &options.format, err);
    if (rc == 0)
        rc = read_tools(&p->arena, o->tools, &tools, err);
    if (rc < 0)
        return rc;
    options.prompt = o->prompt ? o->prompt : "";
    options.prompt_len = strlen(options.prompt);
    struct toolcall_scanner *s = toolcall_open(&p->arena, &options);
    rc = s ? feed(s, o, text, n) : -ENOMEM;
    if (rc == 0)
        write_result(p, o->length);
    if (rc < 0 || has_failed(p))
        return error_set(err, -ENOMEM, "out of memory");
    printf("%.*s\n", (int)p->line.len, p->line.p);
    return 0;
}

int cmd_parse(int argc, char **argv)
{
    struct parse_options o;
    struct parsed p = {.content.arena = &p.arena, .reasoning.arena = &p.arena, .line.arena = &p.arena};
    struct error err = {0};
    char *text = NULL;
    size_t n = 0;
    if (!read_options(argc, argv, &o))
        return usage();
    p.deltas = o.deltas;
    int rc = read_all(STDIN_FILENO, "standard input", &text, &n, &err);
    if (rc == 0)
        rc = parse(&o, &p, text, n, &err);
    free(text);
    arena_close(&p.arena);
    return rc < 0 ? exit_fail(&err) : command_flush();
}
