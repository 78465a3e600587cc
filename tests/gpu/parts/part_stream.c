/* part_stream.c - E1: read bandwidth of the weight ring without computation, by depth and size of its stages;
 * and the cost of grid barriers, with producers that continue and with producers that wait too. */
#include "gpu/gpu.h"
#include "gpu/kernels/gpu_kernels.h"

#include <errno.h>
#include <stdlib.h>

#define ROUNDS 3

struct stream {
    struct gpu *g;
    size_t bytes; /* bytes of the buffer */
    uint32_t *words, *sums;
    uint64_t data, sums_at, counters;
    uint32_t n_crew;
    void *function;
    double best_gbps;
};

struct setting {
    uint32_t n_stages, chunk_bytes;
    enum stream_mode mode;
    size_t burst_bytes; /* bytes of all blocks between two barriers */
};

static const char *const mode_names[STREAM_N_MODES] = {"continuous", "barriers", "stopped"};

/* Returns the expected sum of a block's thread `thread`. */
static uint32_t stream_expected(const struct stream *s, const struct stream_args *a, uint32_t n_blocks,
                                uint32_t block, uint32_t thread)
{
    uint32_t sum = 0, mine = thread % (a->chunk_bytes / 16);
    for (uint32_t i = block; i < a->n_chunks; i += n_blocks) {
        const uint32_t *v = s->words + (size_t)i * a->chunk_bytes / 4 + mine * 4;
        sum += v[0] ^ v[1] ^ v[2] ^ v[3];
    }
    return sum * a->n_rounds;
}

static int check(struct stream *s, const struct stream_args *a, struct error *err)
{
    uint32_t n_blocks = s->g->device.n_sms, n = n_blocks * s->n_crew;
    int rc = gpu_read(s->g, s->sums, s->sums_at, n * sizeof *s->sums, err);
    for (uint32_t i = 0; rc == 0 && i < n; i += s->g->emulated ? 1 : 37)
        if (s->sums[i] != stream_expected(s, a, n_blocks, i / s->n_crew, i % s->n_crew))
            rc = error_set(err, -EIO, "%u stages of %u bytes, %s: thread %u of block %u read wrong bytes",
                           a->n_stages, a->chunk_bytes, mode_names[a->mode], i % s->n_crew, i / s->n_crew);
    return rc;
}

/* Divides the buffer for a setting: whole bursts for every block. */
static struct stream_args cut(const struct stream *s, const struct setting *set)
{
    uint32_t n = s->g->device.n_sms;
    uint32_t burst = (uint32_t)(set->burst_bytes / ((size_t)n * set->chunk_bytes));
    burst = burst ? burst : 1;
    uint32_t n_bursts = (uint32_t)(s->bytes / ((size_t)n * burst * set->chunk_bytes));
    return (struct stream_args){.data = s->data,
                                .sums = s->sums_at,
                                .counters = s->counters,
                                .n_chunks = n_bursts * burst * n,
                                .chunk_bytes = set->chunk_bytes,
                                .n_stages = set->n_stages,
                                .n_crew = s->n_crew,
                                .burst = burst,
                                .mode = set->mode,
                                .n_rounds = s->g->emulated ? 2 : 8};
}

static int measure(struct stream *s, const struct setting *set, json_t *rows, struct error *err)
{
    struct stream_args a = cut(s, set);
    struct gpu_launch launch = {.function = s->function,
                                .n_blocks = s->g->device.n_sms,
                                .n_threads = s->n_crew + 32,
                                .shared_bytes = set->n_stages * (set->chunk_bytes + 16),
                                .whole = true,
                                .args = &a};
    double best = 1e9;
    if (launch.shared_bytes > s->g->device.shared_per_block || !a.n_chunks)
        return 0; /* it does not fit this device */
    for (int i = 0; i < (s->g->emulated ? 1 : ROUNDS); i++) {
        double seconds;
        int rc = gpu_clear(s->g, s->counters, (size_t)2 * GPU_LINE * 4, err);
        if (rc == 0)
            rc = gpu_time(s->g, &launch, &seconds, err);
        if (rc < 0)
            return rc;
        best = seconds < best ? seconds : best;
    }
    double gbps = (double)a.n_chunks * a.chunk_bytes * a.n_rounds * 1e-9 / best;
    s->best_gbps = gbps > s->best_gbps ? gbps : s->best_gbps;
    gpu_add(
        rows,
        json_pack("{s:s, s:i, s:i, s:i, s:o}", "mode", mode_names[set->mode], "stages", (int)set->n_stages,
                  "stage_bytes", (int)set->chunk_bytes, "burst_bytes",
                  set->mode == STREAM_CONTINUOUS ? 0 : (int)(a.burst * a.chunk_bytes * s->g->device.n_sms),
                  "gbps", gpu_figure(s->g, gbps)));
    return check(s, &a, err);
}

static int measure_all(struct stream *s, json_t *rows, struct error *err)
{
    bool small = s->g->emulated;
    const uint32_t sizes[] = {small ? 512 : 16384, small ? 1152 : 36864};
    const size_t bursts[] = {small ? 8192 : 9400000, small ? 16384 : 36500000}; /* a layer of 0.6B, of 1B */
    int rc = 0;
    for (uint32_t size = 0; size < 2; size++)
        for (uint32_t n = 3; rc == 0 && n <= 6; n += small ? 3 : 1)
            rc = measure(s, &(struct setting){n, sizes[size], STREAM_CONTINUOUS, 0}, rows, err);
    for (uint32_t burst = 0; burst < 2; burst++)
        for (uint32_t mode = STREAM_BARRIERS; rc == 0 && mode < STREAM_N_MODES; mode++)
            rc = measure(s, &(struct setting){5, sizes[1], (enum stream_mode)mode, bursts[burst]}, rows, err);
    return rc;
}

static int set_up(struct stream *s, struct error *err)
{
    struct gpu *g = s->g;
    size_t n_sums = (size_t)g->device.n_sms * s->n_crew;
    s->words = malloc(s->bytes);
    s->sums = malloc(n_sums * 4);
    if (!s->words || !s->sums)
        return error_set(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < s->bytes / 4; i++)
        s->words[i] = (uint32_t)i * 2654435761u ^ (uint32_t)(i >> 9);
    int rc = gpu_function(g, gpu_ptx_images, "stream", "gpu_stream", g->device.shared_per_block, &s->function,
                          err);
    if (rc == 0)
        rc = gpu_memory(g, &s->data, s->bytes, err);
    if (rc == 0)
        rc = gpu_memory(g, &s->sums_at, n_sums * 4, err);
    if (rc == 0)
        rc = gpu_memory(g, &s->counters, (size_t)2 * GPU_LINE * 4, err);
    return rc < 0 ? rc : gpu_write(g, s->data, s->words, s->bytes, err);
}

int part_stream(struct gpu *g, json_t *out, struct error *err)
{
    struct stream s = {.g = g,
                       .bytes = g->emulated ? 128 << 10 : (size_t)1 << 30,
                       .n_crew = g->emulated ? 64 : DECODER_MAX_CREW};
    json_t *rows = json_array();
    gpu_put(out, "rows", rows);
    int rc = set_up(&s, err);
    if (rc == 0)
        rc = gpu_warm(g, err);
    if (rc == 0)
        rc = measure_all(&s, rows, err);
    if (rc == 0)
        gpu_put(out, "best_gbps", gpu_figure(g, s.best_gbps));
    free(s.words);
    free(s.sums);
    return rc;
}
