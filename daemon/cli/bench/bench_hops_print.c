/* bench_hops_print.c - the figures of hops as a table and as one JSON object. */
#include "bench_hops.h"

#include <jansson.h>

static const struct {
    const char *key, *part, *words;
} hops[BENCH_HOPS] = {
    [HOP_ENGINE] = {"engine", "engine", "between two steps"},
    [HOP_LENT] = {"lent", "engine", "waking the loop, and lending it the CPU"},
    [HOP_BORDER] = {"border", "border", "the step, without its ops"},
    [HOP_PCIE] = {"pcie", "PCIe", "the step's words and results, the host's look"},
    [HOP_KERNEL] = {"kernel", "kernel", "the ops"},
    [HOP_PUBLISH] = {"publish", "engine", "from the result to the published token"},
    [HOP_WAKE] = {"wake", "HTTP", "until the loop's turn begins"},
    [HOP_HTTP] = {"http", "HTTP", "text, event, libmicrohttpd"},
    [HOP_SOCKET] = {"socket", "HTTP", "send, loopback, the client's thread"},
};

static void print_figure(const char *part, const char *words, const struct bench_figure *v, double way,
                         FILE *f)
{
    fprintf(f, "%-8s%-42s %10.1f %10.1f %10.1f %10.1f", part, words, v->median, v->p90, v->p99, v->mean);
    if (way > 0)
        fprintf(f, " %6.1f %%", 100 * v->mean / way);
    fputc('\n', f);
}

static const char *hop_words(const struct bench_hops *h, enum bench_hop i)
{
    return h->by_device && i == HOP_BORDER ? "publishing the step, seeing its end" : hops[i].words;
}

/* A cpu has no bus to cross. */
static bool has_hop(const struct bench_hops *h, enum bench_hop i)
{
    return h->by_device || i != HOP_PCIE;
}

static void print_times(const struct bench_hops *h, FILE *f)
{
    const char *first = has_hop(h, HOP_PCIE) ? "five" : "four";
    fprintf(f, "%-50s %10s %10s %10s %10s   share\n", "hop", "median us", "p90", "p99", "mean");
    for (uint32_t i = 0; i < BENCH_HOPS; i++)
        if (has_hop(h, i))
            print_figure(hops[i].part, hop_words(h, i), &h->hops[i], h->way.mean, f);
    print_figure("", "a token's way: all of these", &h->way, h->way.mean, f);
    print_figure("", "  beyond the kernel", &h->beyond, h->way.mean, f);
    print_figure("", "the gap between two tokens at the client", &h->gap, 0, f);
    print_figure("", "  beyond the kernel", &h->beyond_gap, 0, f);
    fprintf(f,
            "\nThe way begins where the step before was seen to end. Its first %s hops follow one another "
            "from\ntoken to token; the others run beside the next step. From the first to the last event of "
            "each stream\nthe client counted %.3f ms: %.3f ms of the first %s hops, and %+.3f ms of the "
            "last token's others\nbeyond the first token's.\n",
            first, (double)h->client_ns * 1e-6, (double)h->cycles_ns * 1e-6, first,
            (double)h->shift_ns * 1e-6);
    if (h->by_device)
        fprintf(f,
                "The times of kernel and border are medians of traced steps, by the device's clock. A step "
                "without rows\ntakes %.1f us there and back: border and PCIe, with no other step beside "
                "them.\n",
                h->empty_us);
}

void bench_hops_print_table(const struct bench_hops *h, FILE *f)
{
    fprintf(f, "%s\n", h->machine);
    if (h->emulated)
        fprintf(f, "SIMT emulator, not a GPU: no times are shown\n");
    fprintf(f, "\n%s over HTTP, executor %s: %u tokens in %u stream%s", h->test,
            config_executor_name(h->executor), h->n_tokens, h->n_streams, h->n_streams == 1 ? "" : "s");
    if (h->n_held)
        fprintf(f, "; left out: %u whose text came with a later token's", h->n_held);
    if (h->n_late)
        fprintf(f, "; %u were taken together with a later one", h->n_late);
    fprintf(f, "\n");
    if (!h->emulated)
        print_times(h, f);
}

/* NULL where the times say nothing. */
static json_t *us(const struct bench_hops *h, double value)
{
    return h->emulated ? json_null() : json_real(value);
}

static json_t *figure_json(const struct bench_hops *h, const struct bench_figure *v)
{
    return json_pack("{s:o, s:o, s:o, s:o}", "median", us(h, v->median), "p90", us(h, v->p90), "p99",
                     us(h, v->p99), "mean", us(h, v->mean));
}

static json_t *hops_json(const struct bench_hops *h)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < BENCH_HOPS; i++)
        if (has_hop(h, i))
            json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:o, s:o}", "hop", hops[i].key, "part",
                                                  hops[i].part, "what", hop_words(h, i), "us",
                                                  figure_json(h, &h->hops[i]), "share",
                                                  us(h, h->hops[i].mean / h->way.mean)));
    return list;
}

void bench_hops_print_json(const struct bench_hops *h, FILE *f)
{
    json_t *sums =
        json_pack("{s:o, s:o, s:o}", "client_ms", us(h, (double)h->client_ns * 1e-6), "cycles_ms",
                  us(h, (double)h->cycles_ns * 1e-6), "shift_ms", us(h, (double)h->shift_ns * 1e-6));
    json_t *all = json_pack(
        "{s:b, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "emulated",
        h->emulated, "machine", h->machine, "test", h->test, "executor", config_executor_name(h->executor),
        "streams", (int)h->n_streams, "tokens", (int)h->n_tokens, "held", (int)h->n_held, "late",
        (int)h->n_late, "kernel_by", h->by_device ? "traced steps" : "every step", "empty_step_us",
        h->by_device ? us(h, h->empty_us) : json_null(), "hops", hops_json(h), "way_us",
        figure_json(h, &h->way), "gap_us", figure_json(h, &h->gap), "way_beyond_kernel_us",
        figure_json(h, &h->beyond), "gap_beyond_kernel_us", figure_json(h, &h->beyond_gap), "sums", sums);

    json_dumpf(all, f, JSON_REAL_PRECISION(9));
    fputc('\n', f);
    json_decref(all);
}
