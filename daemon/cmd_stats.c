/* hearthd stats: GET /stats of a running daemon, as a table. */
#include "commands.h"
#include "config.h"
#include "http_get.h"
#include "serve_text.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Members by "object.member"; what is missing is 0 or "". */
static const json_t *member(const json_t *stats, const char *path)
{
    char name[64];

    for (const char *dot; stats && (dot = strchr(path, '.')); path = dot + 1) {
        snprintf(name, sizeof name, "%.*s", (int)(dot - path), path);
        stats = json_object_get(stats, name);
    }
    return json_object_get(stats, path);
}

static double number(const json_t *stats, const char *path)
{
    return json_number_value(member(stats, path));
}

static const char *text(const json_t *stats, const char *path)
{
    const char *value = json_string_value(member(stats, path));

    return value ? value : "";
}

static const char *count(const json_t *stats, const char *path)
{
    static char buffers[16][32];
    static unsigned next;
    double value = number(stats, path);

    return serve_grouped(value > 0 ? (uint64_t)value : 0, buffers[next++ % 16]);
}

/* "1 launch", "2 launches". */
static const char *counted(const json_t *stats, const char *path, const char *one, const char *many)
{
    static char buffers[4][64];
    static unsigned next;
    char *text = buffers[next++ % 4];

    snprintf(text, sizeof buffers[0], "%s %s", count(stats, path), number(stats, path) == 1 ? one : many);
    return text;
}

static void print_latency(const json_t *stats, const char *label, const char *name)
{
    char path[64];
    static const char *const quantiles[] = {"p50", "p95", "p99"};

    printf("  %-14s", label);
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "latency_ms.%s.%s", name, quantiles[i]);
        printf("%11.2f", number(stats, path));
    }
    putchar('\n');
}

static void print_stats(const json_t *s)
{
    double up = number(s, "uptime_s");

    printf("hearthd %s · %s · up %.0f h %02.0f min\n", text(s, "version"), text(s, "state"),
           (double)(long)(up / 3600), (double)((long)up % 3600 / 60));
    printf("model      %s · %s %s · %.2f M parameters · context %s\n", text(s, "model.name"),
           text(s, "model.arch"), text(s, "model.quantization"), number(s, "model.parameters") / 1e6,
           count(s, "model.n_ctx"));
    printf("device     %s · %s · %s, %s · %.1f MiB\n", text(s, "device.backend"), text(s, "device.name"),
           text(s, "device.isa"), counted(s, "device.threads", "thread", "threads"),
           number(s, "device.memory_used") / (1 << 20));
    printf("decoder    %s %s · %s · %s · %s of %s ops\n", text(s, "decoder.executor"),
           text(s, "decoder.arithmetic"), text(s, "decoder.state"),
           counted(s, "decoder.launches", "launch", "launches"), counted(s, "decoder.steps", "step", "steps"),
           count(s, "decoder.ops_per_step"));
    printf(
        "requests   %s running · %s of %s waiting · %s completed · %s failed · %s rejected · %s cancelled · "
        "%s timed out\n",
        count(s, "requests.running"), count(s, "requests.waiting"), count(s, "requests.queue_limit"),
        count(s, "requests.completed"), count(s, "requests.failed"), count(s, "requests.rejected"),
        count(s, "requests.cancelled"), count(s, "requests.timed_out"));
    printf("tokens     %s of prompts (%s cached) · %s generated · now %.1f and %.1f per second\n",
           count(s, "tokens.prompt"), count(s, "tokens.prompt_cached"), count(s, "tokens.generated"),
           number(s, "throughput.prompt_tokens_per_s"), number(s, "throughput.tokens_per_s"));
    printf("KV cache   %s of %s pages of %s tokens · %s\n\n", count(s, "kv.pages_used"),
           count(s, "kv.pages_total"), count(s, "kv.page_tokens"), text(s, "kv.type"));
    printf("  %-14s%11s%11s%11s\n", "milliseconds", "p50", "p95", "p99");
    print_latency(s, "queue", "queue");
    print_latency(s, "first token", "ttft");
    print_latency(s, "between tokens", "inter_token");
    print_latency(s, "whole request", "total");
}

static int show(const char *url, struct error *err)
{
    char *body = NULL;
    json_error_t where;
    int status = http_get(url, "/stats", &body, err);

    if (status < 0)
        return status;
    json_t *stats = status == 200 ? json_loads(body, 0, &where) : NULL;
    free(body);
    if (status != 200)
        return error_set(err, -EPROTO, "%s/stats: status %d", url, status);
    if (!stats)
        return error_set(err, -EPROTO, "%s/stats: no JSON: %s", url, where.text);
    print_stats(stats);
    json_decref(stats);
    return 0;
}

static int take_url(void *context, int argc, char **argv, struct error *err)
{
    const char **url = context;

    (void)argc;
    if (argv[0][0] == '-')
        return 0;
    if (*url)
        return error_set(err, -EINVAL, "one URL only");
    *url = argv[0];
    return 1;
}

/* Where the configured daemon listens; the socket first, since its path needs no guess. */
static void configured_url(const struct config *c, char *out, size_t room)
{
    const char *host = strcmp(c->host, "0.0.0.0") == 0 ? "127.0.0.1"
                       : strcmp(c->host, "::") == 0    ? "::1"
                                                       : c->host;
    bool v6 = strchr(host, ':') != NULL;

    if (c->unix_socket[0])
        snprintf(out, room, "unix:%s", c->unix_socket);
    else
        snprintf(out, room, "http://%s%s%s:%u", v6 ? "[" : "", host, v6 ? "]" : "", c->port);
}

static void usage(void)
{
    puts("hearthd stats [URL]\n"
         "\n"
         "The figures of a running daemon as a table. URL is http://host:port or unix:/path; by itself the\n"
         "place where this machine's configuration lets it listen.");
}

static int stats(struct config *cfg, void *options, struct error *err)
{
    const char *url = *(const char **)options;
    char configured[512];

    configured_url(cfg, configured, sizeof configured);
    return show(url ? url : configured, err);
}

int cmd_stats(int argc, char **argv)
{
    static const struct command_configured command = {usage, take_url, stats};
    const char *url = NULL;

    return command_run_configured(&command, &url, argc, argv);
}
