/* hearthd stats: GET /stats of a running daemon, as a table. */
#include "ask.h"
#include "commands.h"
#include "serve_text.h"

#include <stdio.h>

static const char *count(const json_t *stats, const char *path)
{
    static char buffers[16][32];
    static unsigned next;
    double value = ask_number(stats, path);

    return serve_grouped(value > 0 ? (uint64_t)value : 0, buffers[next++ % 16]);
}

/* "1 launch", "2 launches". */
static const char *counted(const json_t *stats, const char *path, const char *one, const char *many)
{
    static char buffers[4][64];
    static unsigned next;
    char *text = buffers[next++ % 4];

    snprintf(text, sizeof buffers[0], "%s %s", count(stats, path), ask_number(stats, path) == 1 ? one : many);
    return text;
}

static void print_latency(const json_t *stats, const char *label, const char *name)
{
    char path[64];
    static const char *const quantiles[] = {"p50", "p95", "p99"};

    printf("  %-14s", label);
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "latency_ms.%s.%s", name, quantiles[i]);
        printf("%11.2f", ask_number(stats, path));
    }
    putchar('\n');
}

static void print_stats(const json_t *s)
{
    double up = ask_number(s, "uptime_s");

    printf("hearthd %s · %s · up %.0f h %02.0f min\n", ask_text(s, "version"), ask_text(s, "state"),
           (double)(long)(up / 3600), (double)((long)up % 3600 / 60));
    printf("model      %s · %s %s · %.2f M parameters · context %s\n", ask_text(s, "model.name"),
           ask_text(s, "model.arch"), ask_text(s, "model.quantization"),
           ask_number(s, "model.parameters") / 1e6, count(s, "model.n_ctx"));
    printf("device     %s · %s · %s, %s · %.1f MiB\n", ask_text(s, "device.backend"),
           ask_text(s, "device.name"), ask_text(s, "device.isa"),
           counted(s, "device.threads", "thread", "threads"),
           ask_number(s, "device.memory_used") / (1 << 20));
    printf("decoder    %s %s · %s · %s · %s of %s ops\n", ask_text(s, "decoder.executor"),
           ask_text(s, "decoder.arithmetic"), ask_text(s, "decoder.state"),
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
           ask_number(s, "throughput.prompt_tokens_per_s"), ask_number(s, "throughput.tokens_per_s"));
    printf("KV cache   %s of %s pages of %s tokens · %s\n\n", count(s, "kv.pages_used"),
           count(s, "kv.pages_total"), count(s, "kv.page_tokens"), ask_text(s, "kv.type"));
    printf("  %-14s%11s%11s%11s\n", "milliseconds", "p50", "p95", "p99");
    print_latency(s, "queue", "queue");
    print_latency(s, "first token", "ttft");
    print_latency(s, "between tokens", "inter_token");
    print_latency(s, "whole request", "total");
}

static void usage(void)
{
    puts("hearthd stats [URL]\n"
         "\n"
         "The figures of a running daemon as a table. URL is http://host:port or unix:/path; by itself the\n"
         "place where this machine's configuration lets it listen. A key comes from HEARTHD_KEY or the "
         "configured key files.");
}

static int stats(struct config *cfg, void *options, struct error *err)
{
    json_t *answer = NULL;
    int rc = ask_daemon(cfg, *(const char **)options, "/stats", &answer, err);

    if (rc < 0)
        return rc;
    print_stats(answer);
    json_decref(answer);
    return 0;
}

int cmd_stats(int argc, char **argv)
{
    static const struct command_configured command = {usage, ask_take_url, stats};
    const char *url = NULL;

    return command_run_configured(&command, &url, argc, argv);
}
