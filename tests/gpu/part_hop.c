/* part_hop.c - E2: the cost of one wait, block to block and all to all. */
#include "gpu.h"
#include "gpu/kernels/gpu_kernels.h"

#include <errno.h>
#include <stdlib.h>

struct hop {
    struct gpu *g;
    struct hop_args args;
    struct gpu_launch launch;
    size_t counter_bytes;
    uint32_t *seen;
};

static int check(struct hop *h, struct error *err)
{
    uint32_t n = h->launch.n_blocks;
    int rc = gpu_read(h->g, h->seen, h->args.out, n * sizeof *h->seen, err);
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        if (h->seen[i] != h->args.n_rounds)
            rc = error_set(err, -EIO, "block %u saw %u rounds of %u", i, h->seen[i], h->args.n_rounds);
    return rc;
}

static int measure(struct hop *h, enum hop_mode mode, uint32_t n_crew, json_t *rows, struct error *err)
{
    bool chain = mode == HOP_CHAIN;
    double best = 1e9;
    int rc = 0;
    h->args.mode = mode;
    h->args.n_crew = h->launch.n_threads = n_crew;
    h->args.n_rounds = h->g->emulated ? 5 : chain ? 200 : 20000;
    for (int i = 0; rc == 0 && i < (h->g->emulated ? 1 : 3); i++) {
        double seconds;
        rc = gpu_clear(h->g, h->args.counters, h->counter_bytes, err);
        if (rc == 0)
            rc = gpu_time(h->g, &h->launch, &seconds, err);
        if (rc == 0)
            rc = check(h, err);
        best = rc == 0 && seconds < best ? seconds : best;
    }
    if (rc < 0)
        return rc;
    double n = (double)h->args.n_rounds * (chain ? h->launch.n_blocks : 1);
    json_array_append_new(rows, json_pack("{s:s, s:i, s:i, s:o}", "what", chain ? "hop" : "grid barrier",
                                          "crew", (int)n_crew, "blocks", (int)h->launch.n_blocks, "ns",
                                          gpu_figure(h->g, best * 1e9 / n)));
    return 0;
}

int part_hop(struct gpu *g, json_t *out, struct error *err)
{
    uint32_t n = g->device.n_sms;
    struct hop h = {
        .g = g, .counter_bytes = (n + 1) * (size_t)GPU_LINE * 4, .seen = calloc(n, sizeof *h.seen)};
    json_t *rows = json_array();
    json_object_set_new(out, "rows", rows);
    h.launch = (struct gpu_launch){.n_blocks = n, .whole = true, .args = &h.args};
    int rc = h.seen ? 0 : error_set(err, -ENOMEM, "out of memory");
    if (rc == 0)
        rc = gpu_function(g, gpu_ptx_images, "hop", "gpu_hop", 0, &h.launch.function, err);
    if (rc == 0)
        rc = gpu_memory(g, &h.args.counters, h.counter_bytes, err);
    if (rc == 0)
        rc = gpu_memory(g, &h.args.out, n * sizeof *h.seen, err);
    if (rc == 0)
        rc = gpu_warm(g, err);
    for (int mode = HOP_CHAIN; mode <= HOP_BARRIER; mode++)
        for (int whole = 0; rc == 0 && whole < 2; whole++)
            rc = measure(&h, (enum hop_mode)mode,
                         !whole        ? 32
                         : g->emulated ? 64
                                       : DECODER_MAX_CREW,
                         rows, err);
    free(h.seen);
    return rc;
}
