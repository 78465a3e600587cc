#include "query_print.h"
#include "query.h"
#include "base/escape.h"
#include "service/serve_text.h"

#include <stdbool.h>
#include <stdint.h>

#define LONGEST 200 /* bytes of a text in a table */

/* A member's text, escaped for a terminal. One of sixteen buffers. */
static const char *shown(const json_t *answer, const char *path)
{
    static char buffers[16][LONGEST];
    static unsigned next;

    return escape_line(buffers[next++ % 16], LONGEST, ask_text(answer, path));
}

/* A count within range, even of a wrong answer. */
static uint64_t whole(double value)
{
    return value > 0 ? value < 1e18 ? (uint64_t)value : (uint64_t)1e18 : 0;
}

static const char *count(const json_t *stats, const char *path)
{
    static char buffers[16][32];
    static unsigned next;
    double value = ask_number(stats, path);

    return serve_grouped(whole(value), buffers[next++ % 16]);
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

static void print_latency(FILE *f, const json_t *stats, const char *label, const char *name)
{
    char path[64];
    static const char *const quantiles[] = {"p50", "p95", "p99"};

    fprintf(f, "  %-14s", label);
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "latency_ms.%s.%s", name, quantiles[i]);
        fprintf(f, "%11.2f", ask_number(stats, path));
    }
    fputc('\n', f);
}

static void print_tuning(const json_t *tuning, FILE *f)
{
    const json_t *choices = ask_member(tuning, "choices");
    size_t n = json_array_size(choices), n_faster = 0;

    for (size_t i = 0; i < n; i++)
        n_faster += ask_number(json_array_get(choices, i), "gain") > 1;
    fprintf(f, "tuning     %s", shown(tuning, "source"));
    if (ask_number(tuning, "ms") > 0)
        fprintf(f, " in %.1f ms", ask_number(tuning, "ms"));
    if (n > 0)
        fprintf(f, " · %zu of %zu choices faster than the constants", n_faster, n);
    if (ask_number(tuning, "unsettled") > 0)
        fprintf(f, " · %.0f to be measured again", ask_number(tuning, "unsettled"));
    const json_t *folds = ask_member(tuning, "folds");
    for (size_t i = 0; i < json_array_size(folds); i++)
        fprintf(f, "%s%s", i ? ", " : " · pages folded by ", shown(json_array_get(folds, i), "by"));
    if (json_is_string(ask_member(tuning, "note")))
        fprintf(f, " · %s", shown(tuning, "note"));
    fputc('\n', f);
}

static void print_model(const json_t *s, FILE *f)
{
    fprintf(f, "model      %s · %s %s · %.2f M parameters · context %s\n", shown(s, "model.name"),
            shown(s, "model.arch"), shown(s, "model.quantization"), ask_number(s, "model.parameters") / 1e6,
            count(s, "model.n_ctx"));
    fprintf(f, "device     %s · %s · %s, %s · %.1f MiB (%.1f scratch)\n", shown(s, "device.backend"),
            shown(s, "device.name"), shown(s, "device.isa"),
            counted(s, "device.threads", "thread", "threads"),
            ask_number(s, "device.memory_used") / (1 << 20), ask_number(s, "device.scratch") / (1 << 20));
    fprintf(f, "decoder    %s %s · %s · %s · %s of %s ops\n", shown(s, "decoder.executor"),
            shown(s, "decoder.arithmetic"), shown(s, "decoder.state"),
            counted(s, "decoder.launches", "launch", "launches"),
            counted(s, "decoder.steps", "step", "steps"), count(s, "decoder.ops_per_step"));
    if (json_is_object(ask_member(s, "device.tuning")))
        print_tuning(ask_member(s, "device.tuning"), f);
}

static void print_drafts(const json_t *s, FILE *f)
{
    if (!json_is_true(ask_member(s, "speculation.enabled"))) {
        fprintf(f, "drafts     off\n");
        return;
    }
    fprintf(f, "drafts     %s, %s accepted · %s saved · %s of %s turned off\n",
            counted(s, "speculation.drafted", "token", "tokens"), count(s, "speculation.accepted"),
            counted(s, "speculation.steps_saved", "step", "steps"), count(s, "speculation.turned_off"),
            counted(s, "speculation.requests", "request", "requests"));
}

void query_print_stats(const json_t *s, FILE *f)
{
    unsigned long long up = whole(ask_number(s, "uptime_s"));

    fprintf(f, "hearthd %s · %s · up %llu h %02llu min\n", shown(s, "version"), shown(s, "state"), up / 3600,
            up % 3600 / 60);
    if (json_is_object(ask_member(s, "model")))
        print_model(s, f);
    fprintf(
        f,
        "requests   %s running · %s of %s waiting · %s completed · %s failed · %s rejected · %s cancelled · "
        "%s timed out\n",
        count(s, "requests.running"), count(s, "requests.waiting"), count(s, "requests.queue_limit"),
        count(s, "requests.completed"), count(s, "requests.failed"), count(s, "requests.rejected"),
        count(s, "requests.cancelled"), count(s, "requests.timed_out"));
    fprintf(f, "tokens     %s of prompts (%s cached) · %s generated · now %.1f and %.1f per second\n",
            count(s, "tokens.prompt"), count(s, "tokens.prompt_cached"), count(s, "tokens.generated"),
            ask_number(s, "throughput.prompt_tokens_per_s"), ask_number(s, "throughput.tokens_per_s"));
    if (json_is_object(ask_member(s, "kv")))
        fprintf(f, "KV cache   %s of %s pages of %s tokens · %s\n", count(s, "kv.pages_used"),
                count(s, "kv.pages_total"), count(s, "kv.page_tokens"), shown(s, "kv.type"));
    if (json_is_object(ask_member(s, "speculation")))
        print_drafts(s, f);
    fputc('\n', f);
    fprintf(f, "  %-14s%11s%11s%11s\n", "milliseconds", "p50", "p95", "p99");
    print_latency(f, s, "queue", "queue");
    print_latency(f, s, "first token", "ttft");
    print_latency(f, s, "between tokens", "inter_token");
    print_latency(f, s, "whole request", "total");
}

static void print_request(FILE *f, const json_t *r)
{
    fprintf(f, "%-27s %-22s %-10s %8.1f %8.0f %8.0f %8.0f/%-8.0f %4.0f\n", shown(r, "id"), shown(r, "route"),
            shown(r, "state"), ask_number(r, "age_ms") / 1e3, ask_number(r, "prompt_tokens"),
            ask_number(r, "computed"), ask_number(r, "tokens"), ask_number(r, "max_tokens"),
            ask_number(r, "priority"));
}

void query_print_requests(const json_t *answer, FILE *f)
{
    const json_t *requests = ask_member(answer, "requests");

    fprintf(f, "%-27s %-22s %-10s %8s %8s %8s %17s %4s\n", "ID", "ROUTE", "STATE", "SECONDS", "PROMPT",
            "DONE", "TOKENS/MAX", "PRIO");
    for (size_t i = 0; i < json_array_size(requests); i++)
        print_request(f, json_array_get(requests, i));
}
