/* bench_matmul - the matrix product beside its two ceilings, measured in the same run: streaming reads and
 * int8 products. One line per weight type and number of columns: GB/s of weights read, TOP/s done, from the
 * best of the repeats, as the ceilings are (other work on the machine only ever slows down); the median
 * beside it; the time to quantise one column. -v: a line for every variant (matmul.h) as well.
 * bench_matmul [-t threads] [-r repeats] [-n rows] [-k values] [-c columns] [-i isa] [-v] [TYPE...] */
#include "cpu/matmul/matmul.h"
#include "roofline/roofline.h"
#include "gguf/quant.h"
#include "support/models/random_blocks.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MAX_THREADS 64
#define MAX_REPEATS 101
#define MAX_COLUMNS 512

static const uint32_t types[] = {
    QUANT_Q4_K,   QUANT_Q6_K,   QUANT_Q8_0,    QUANT_Q5_K,  QUANT_Q3_K,    QUANT_Q2_K,   QUANT_Q5_0,
    QUANT_Q4_0,   QUANT_Q4_1,   QUANT_Q5_1,    QUANT_F16,   QUANT_BF16,    QUANT_F32,    QUANT_MXFP4,
    QUANT_IQ4_NL, QUANT_IQ4_XS, QUANT_IQ3_XXS, QUANT_IQ3_S, QUANT_IQ2_XXS, QUANT_IQ2_XS, QUANT_IQ2_S,
    QUANT_IQ1_S,  QUANT_IQ1_M,  QUANT_TQ1_0,   QUANT_TQ2_0, QUANT_NVFP4};
static uint32_t columns[] = {1, 2, 4, 8, 16, 32, 96};
static bool all_variants; /* -v */
static size_t n_counts = sizeof columns / sizeof *columns;

struct bench {
    const struct matmul_kernels *kernels;
    struct matmul_matrix m;
    struct matmul_input in;
    const uint8_t *weights;
    uint8_t *packed;
    const float *x;
    float *out;
    void *scratch[MAX_THREADS];
    uint32_t n_threads;
    pthread_barrier_t barrier;
    void (*job)(struct bench *b, uint32_t thread); /* NULL: end */
};

static struct bench bench;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *memory(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        fprintf(stderr, "bench_matmul: no memory for %zu bytes\n", size);
        exit(1);
    }
    madvise(p, size, MADV_HUGEPAGE);
    memset(p, 0, size);
    return p;
}

static void share(const struct bench *b, uint32_t thread, uint32_t *first, uint32_t *last)
{
    *first = b->m.n_groups / 2 * thread / b->n_threads * 2;
    *last = thread + 1 == b->n_threads ? b->m.n_groups : b->m.n_groups / 2 * (thread + 1) / b->n_threads * 2;
}

static void job_pack(struct bench *b, uint32_t thread)
{
    uint32_t first, last;
    share(b, thread, &first, &last);
    matmul_pack(b->m.type, b->m.n, b->m.k,
                (uint8_t *)b->weights + first * MATMUL_ROWS * quant_size(b->m.type, b->m.k), b->packed, first,
                last);
}

static void job_quantise(struct bench *b, uint32_t thread)
{
    uint32_t n_super = matmul_input_supers(&b->in), n = n_super * matmul_input_panels(&b->in);
    for (uint32_t i = n * thread / b->n_threads; i < n * (thread + 1) / b->n_threads; i++) {
        uint32_t panel = i / n_super, super = i % n_super;
        const float *x[MATMUL_PANEL];
        for (uint32_t c = 0, column = panel * MATMUL_PANEL; c < MATMUL_PANEL && column < b->in.n_columns; c++)
            x[c] = b->x + (size_t)column++ * b->in.k;
        b->kernels->quantise(&b->in, panel, super, super + 1, x, NULL, matmul_is_float(&b->m));
    }
}

static void job_run(struct bench *b, uint32_t thread)
{
    uint32_t first, last;
    share(b, thread, &first, &last);
    b->kernels->run(&b->m, &b->in, first, last, b->out + first * MATMUL_ROWS, b->m.n, b->scratch[thread]);
}

static void *thread_main(void *argument)
{
    uint32_t i = (uint32_t)(uintptr_t)argument;
    roofline_pin(i);
    for (;;) {
        pthread_barrier_wait(&bench.barrier);
        if (!bench.job)
            return NULL;
        bench.job(&bench, i);
        pthread_barrier_wait(&bench.barrier);
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct seconds {
    double best, median;
};

/* Seconds of a job on all threads; thread 0 is this one. */
static struct seconds timed(void (*job)(struct bench *, uint32_t), uint32_t repeats)
{
    double seconds[MAX_REPEATS];
    bench.job = job;
    for (uint32_t i = 0; i < repeats; i++) {
        double start = now();
        pthread_barrier_wait(&bench.barrier);
        job(&bench, 0);
        pthread_barrier_wait(&bench.barrier);
        seconds[i] = now() - start;
    }
    qsort(seconds, repeats, sizeof *seconds, by_value);
    return (struct seconds){seconds[0], seconds[repeats / 2]};
}

static void print_speed(uint32_t type, uint32_t n_columns, struct seconds t, double gbps, double tops)
{
    double values = 2.0 * bench.m.n * bench.m.k * n_columns, done = values / t.best * 1e-12;
    double read = (double)bench.m.n_groups * (double)bench.m.group_size / t.best * 1e-9;
    printf("%-5s %3u columns  %8.3f ms (median %8.3f)  %6.2f GB/s (%.2f)  %6.3f TOP/s (%.2f)",
           quant_name(type), n_columns, t.best * 1e3, t.median * 1e3, read, read / gbps, done, done / tops);
}

/* Times every hint, distance and shape. */
static void bench_variants(uint32_t type, uint32_t n_columns, uint32_t repeats, double gbps, double tops)
{
    static const char *const hints[] = {"built", "none", "t0", "t1", "t2", "nta"};
    static const char *const shapes[] = {"built", "direct", "panel", "spread"};
    static const uint32_t distances[] = {2176, 4352, 8704, 13056, 26112};
    for (uint32_t shape = 0; shape < MATMUL_N_SHAPES; shape++)
        for (uint32_t hint = 0; hint < MATMUL_N_HINTS; hint++)
            for (uint32_t d = 0; d < (hint > MATMUL_HINT_NONE ? 5 : 1); d++) {
                bench.in.variant = (struct matmul_variant){
                    .hint = (uint8_t)hint,
                    .shape = (uint8_t)shape,
                    .ahead = hint > MATMUL_HINT_NONE ? distances[d] : 0,
                };
                print_speed(type, n_columns, timed(job_run, repeats), gbps, tops);
                printf("  %s, hint %s, %u ahead\n", shapes[shape], hints[hint], bench.in.variant.ahead);
            }
}

static void bench_type(uint32_t type, uint32_t n, uint32_t k, uint32_t repeats, double gbps, double tops)
{
    size_t size = quant_size(type, (size_t)n * k), pack_size = matmul_pack_size(type, n, k);
    uint8_t *weights = memory(size);
    struct random_blocks blocks; /* numbers that a model could hold: subnormal ones cost many CPUs more */
    random_blocks_init(&blocks, type, 1 / sqrtf((float)k), 1);
    random_blocks_fill(&blocks, weights, (size_t)n * k);
    bench.weights = weights;
    bench.packed = memory(pack_size);
    matmul_matrix_set(&bench.m, type, n, k, bench.packed);
    printf("%-5s %u x %u, %.0f MB; packed at %.2f GB/s\n", quant_name(type), n, k, (double)pack_size * 1e-6,
           (double)size / timed(job_pack, 1).best * 1e-9);
    munmap(weights, size);
    for (size_t i = 0; i < n_counts; i++) {
        bench.in = (struct matmul_input){
            .k = k, .n_columns = columns[i], .data = memory(matmul_input_size(k, columns[i]))};
        bench.out = memory(sizeof(float) * n * columns[i]);
        double quantise = timed(job_quantise, repeats).best;
        timed(job_run, 1);
        struct seconds t = timed(job_run, repeats);
        print_speed(type, columns[i], t, gbps, tops);
        printf("  quantise %.0f ns\n", quantise / columns[i] * 1e9);
        if (all_variants)
            bench_variants(type, columns[i], repeats, gbps, tops);
        munmap(bench.out, sizeof(float) * n * columns[i]);
        munmap(bench.in.data, matmul_input_size(k, columns[i]));
    }
    munmap(bench.packed, pack_size);
}

static void print_cpu(void)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "model name", 10)) {
            printf("cpu: %s", strchr(line, ':') ? strchr(line, ':') + 2 : line);
            break;
        }
    if (f)
        fclose(f);
}

static bool wanted(uint32_t type, int n, char **names)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(names[i], quant_name(type)))
            return true;
    return n == 0;
}

static bool start_threads(pthread_t threads[MAX_THREADS])
{
    roofline_pin(0);
    pthread_barrier_init(&bench.barrier, NULL, bench.n_threads);
    for (uint32_t i = 0; i < bench.n_threads; i++) {
        bench.scratch[i] = memory(bench.kernels->scratch_size + 64);
        if (i && pthread_create(&threads[i], NULL, thread_main, (void *)(uintptr_t)i))
            return false;
    }
    return true;
}

static void stop_threads(pthread_t threads[MAX_THREADS])
{
    bench.job = NULL;
    pthread_barrier_wait(&bench.barrier);
    for (uint32_t i = 1; i < bench.n_threads; i++)
        pthread_join(threads[i], NULL);
}

int main(int argc, char **argv)
{
    uint32_t repeats = 9, n = 65536, k = 4096;
    const char *isa = "auto";
    struct error err = {0};
    pthread_t threads[MAX_THREADS];
    bench.n_threads = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    for (int o; (o = getopt(argc, argv, "t:r:n:k:c:i:v")) != -1;) {
        uint32_t *to = o == 't'   ? &bench.n_threads
                       : o == 'r' ? &repeats
                       : o == 'n' ? &n
                       : o == 'k' ? &k
                                  : &columns[0];
        if (o == '?')
            return 2;
        if (o == 'c')
            n_counts = 1;
        if (o == 'v')
            all_variants = true;
        else if (o == 'i')
            isa = optarg;
        else
            *to = (uint32_t)strtoul(optarg, NULL, 10);
    }
    bench.kernels = matmul_check_isa(isa, &err) < 0 ? NULL : matmul_find(isa);
    if (!bench.kernels || !bench.n_threads || bench.n_threads > MAX_THREADS || !repeats ||
        repeats > MAX_REPEATS) {
        fprintf(stderr, "bench_matmul: %s\n",
                err.code ? err.text : "threads are 1..64, repeats 1..101, columns 1..512");
        return 2;
    }
    print_cpu();
    struct roofline *roofline;
    if (roofline_open(&roofline, bench.n_threads, &err) < 0) {
        fprintf(stderr, "bench_matmul: %s\n", err.text);
        return 1;
    }
    double gbps = roofline_read_gbps(roofline, ROOFLINE_MAX_ROUNDS),
           tops = roofline_int8_tops(roofline, ROOFLINE_MAX_ROUNDS);
    roofline_close(roofline);
    printf("isa: %s, %u threads; ceilings: read %.1f GB/s, int8 %.3f TOP/s\n", bench.kernels->name,
           bench.n_threads, gbps, tops);
    if (!start_threads(threads))
        return 1;
    float *x = memory(sizeof(float) * k * MAX_COLUMNS);
    for (uint32_t i = 0; i < k * MAX_COLUMNS; i++)
        x[i] = (float)(i * 2654435761u % 2001) / 1000.0f - 1.0f;
    bench.x = x;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (wanted(types[i], argc - optind, argv + optind) && k % quant_traits(types[i])->block == 0)
            bench_type(types[i], quant_traits(types[i])->block == 1 ? n / 4 : n, k, repeats, gbps, tops);
    stop_threads(threads);
    return 0;
}
