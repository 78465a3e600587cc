/* part_hop.c - E2: the cost of one wait, block to block and all to all, alone and while memory is streamed.
 */
#include "gpu/gpu.h"
#include "gpu/kernels/gpu_kernels.h"

#include <errno.h>
#include <stdlib.h>

struct hop {
    struct gpu *g;
    struct hop_args args;
    struct gpu_launch launch;
    size_t counter_bytes;
    uint32_t *seen; /* [2][n_blocks] */
};

static const char *const mode_names[] = {
    [HOP_CHAIN] = "hop", [HOP_BARRIER] = "grid barrier", [HOP_PACKET] = "hop of a 64-bit packet"};

static int check(struct hop *h, struct error *err)
{
    uint32_t n = h->launch.n_blocks;
    int rc = gpu_read(h->g, h->seen, h->args.out, 2 * n * sizeof *h->seen, err);
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        if (h->seen[i] != h->args.n_rounds)
            rc = error_set(err, -EIO, "block %u saw %u rounds of %u", i, h->seen[i], h->args.n_rounds);
    return rc;
}

/* Bytes per second that were read beside the hops of the last launch. */
static double streamed(const struct hop *h, double seconds)
{
    uint64_t turns = 0;
    for (uint32_t i = 0; i < h->launch.n_blocks; i++)
        turns += h->seen[h->launch.n_blocks + i];
    return (double)turns * HOP_TURN * 16 / seconds;
}

static int measure(struct hop *h, enum hop_mode mode, uint32_t n_crew, bool streams, json_t *rows,
                   struct error *err)
{
    bool chain = mode != HOP_BARRIER;
    double best = 1e9, beside = 0;
    int rc = 0;
    h->args.mode = mode;
    h->args.n_crew = n_crew;
    h->launch.n_threads = n_crew + (streams ? HOP_STREAMERS : 0);
    h->args.n_rounds = h->g->emulated ? 5 : chain ? 200 : 20000;
    for (int i = 0; rc == 0 && i < (h->g->emulated ? 1 : 3); i++) {
        double seconds;
        rc = gpu_clear(h->g, h->args.counters, h->counter_bytes, err);
        if (rc == 0)
            rc = gpu_time(h->g, &h->launch, &seconds, err);
        if (rc == 0)
            rc = check(h, err);
        if (rc == 0 && seconds < best) {
            best = seconds;
            beside = streams ? streamed(h, seconds) : 0;
        }
    }
    if (rc < 0)
        return rc;
    double n = (double)h->args.n_rounds * (chain ? h->launch.n_blocks : 1);
    gpu_add(rows,
            json_pack("{s:s, s:i, s:i, s:b, s:o, s:o}", "what", mode_names[mode], "crew", (int)n_crew,
                      "blocks", (int)h->launch.n_blocks, "streams", streams, "ns",
                      gpu_figure(h->g, best * 1e9 / n), "beside_gbps", gpu_figure(h->g, beside * 1e-9)));
    return 0;
}

static int measure_all(struct hop *h, json_t *rows, struct error *err)
{
    uint32_t whole = h->g->emulated ? 64 : DECODER_MAX_CREW;
    int rc = 0;
    for (int mode = HOP_CHAIN; mode <= HOP_PACKET; mode++)
        for (int i = 0; rc == 0 && i < 4; i++)
            rc = measure(h, (enum hop_mode)mode, i & 1 ? whole : 32, i & 2, rows, err);
    return rc;
}

int part_hop(struct gpu *g, json_t *out, struct error *err)
{
    uint32_t n = g->device.n_sms;
    uint64_t turn = (uint64_t)n * HOP_TURN,
             words = g->emulated ? 2 * turn : ((uint64_t)1 << 26) / turn * turn;
    struct hop h = {.g = g,
                    .counter_bytes = (3 * n + 1) * (size_t)GPU_LINE * 4,
                    .seen = calloc(2 * (size_t)n, sizeof *h.seen)};
    json_t *rows = json_array();
    gpu_put(out, "rows", rows);
    h.launch = (struct gpu_launch){.n_blocks = n, .whole = true, .args = &h.args};
    h.args.n_words = words;
    int rc = h.seen ? 0 : error_set(err, -ENOMEM, "out of memory");
    if (rc == 0)
        rc = gpu_function(g, gpu_ptx_images, "hop", "gpu_hop", 0, &h.launch.function, err);
    if (rc == 0)
        rc = gpu_memory(g, &h.args.counters, h.counter_bytes, err);
    if (rc == 0)
        rc = gpu_memory(g, &h.args.out, 2 * n * sizeof *h.seen, err);
    if (rc == 0)
        rc = gpu_memory(g, &h.args.traffic, words * 16, err);
    if (rc == 0)
        rc = gpu_warm(g, err);
    if (rc == 0)
        rc = measure_all(&h, rows, err);
    free(h.seen);
    return rc;
}
