#include "serve_text.h"
#include "backend/backend.h"
#include "model/model.h"
#include "service/models/runtime.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BAR_WIDTH  40
#define MIB(bytes) ((double)(bytes) / (1 << 20))

static bool bar_shown;

const char *serve_grouped(uint64_t number, char out[32])
{
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%" PRIu64, number);
    char *o = out;

    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0)
            *o++ = ',';
        *o++ = digits[i];
    }
    *o = '\0';
    return out;
}

void serve_start_line(const struct serve_facts *facts, char *out, size_t room)
{
    char device[128], n_ctx[32];

    runtime_describe(facts->runtime, device, sizeof device);
    snprintf(out, room, "listening on %s · %s · %s · %u slot%s × %s", facts->where,
             model_config(facts->runtime->model)->name, device, facts->slots, facts->slots == 1 ? "" : "s",
             serve_grouped(facts->n_ctx, n_ctx));
}

/* A cache of windows keeps more tokens: those of its pages are counted. */
void serve_memory_line(const struct backend_info *info, uint64_t draw_bytes, char *out, size_t room)
{
    uint64_t windows = info->n_windows * info->window_bytes;
    uint64_t page = kv_page_size(&info->kv) - info->window_bytes;
    char tokens[32], states[64] = "";

    if (info->state_bytes)
        snprintf(states, sizeof states, ", recurrent states %.1f MiB", MIB(info->state_bytes));
    snprintf(out, room,
             "memory: weights %.1f MiB, KV cache %.1f MiB for %s tokens%s, activations %.1f MiB, sampling "
             "%.1f MiB",
             MIB(info->weights_bytes), MIB(info->n_pages * page + windows),
             serve_grouped((uint64_t)info->n_pages * KV_PAGE_TOKENS, tokens), states,
             MIB(info->scratch_bytes), MIB(draw_bytes));
}

/* "http://0.0.0.0:8080" listens everywhere, but is nothing to connect to. */
static void reachable(const char *url, size_t n, char *out, size_t room)
{
    static const struct {
        const char *any, *one;
    } names[] = {{"http://0.0.0.0:", "http://127.0.0.1:"}, {"http://[::]:", "http://[::1]:"}};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t length = strlen(names[i].any);
        if (n > length && strncmp(url, names[i].any, length) == 0) {
            snprintf(out, room, "%s%.*s", names[i].one, (int)(n - length), url + length);
            return;
        }
    }
    snprintf(out, room, "%.*s", (int)n, url);
}

void serve_curl_line(const char *where, bool keyed, char *out, size_t room)
{
    const char *key = keyed ? "-H 'Authorization: Bearer KEY' " : "";
    char url[256];
    size_t n = strcspn(where, ",");

    if (strncmp(where, "unix:", 5) == 0) {
        snprintf(out, room,
                 "curl --unix-socket %.*s %s-d '{\"prompt\":\"Once upon a time\"}' http://localhost/generate",
                 (int)(n - 5), where + 5, key);
        return;
    }
    reachable(where, n, url, sizeof url);
    snprintf(out, room, "curl %s-d '{\"prompt\":\"Once upon a time\"}' %s/generate", key, url);
}

void serve_show_progress(double fraction)
{
    char bar[BAR_WIDTH + 1];
    int filled = (int)(fraction * BAR_WIDTH);

    if (!isatty(STDERR_FILENO))
        return;
    memset(bar, ' ', BAR_WIDTH);
    memset(bar, '=', (size_t)(filled < 0 ? 0 : filled > BAR_WIDTH ? BAR_WIDTH : filled));
    bar[BAR_WIDTH] = '\0';
    fprintf(stderr, "\rloading [%s] %3.0f %%", bar, fraction * 100);
    bar_shown = true;
}

void serve_hide_progress(void)
{
    if (bar_shown)
        fputs("\r\033[K", stderr);
    bar_shown = false;
}
