#include "roofline.h"
#include "matmul.h"
#include "roofline_loops.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define READ_TOTAL  ((size_t)1 << 30)
#define ROUNDS      25 /* short, and the best counts: others may be using the machine */
#define INT8_ROUNDS 1000000u

static uint64_t read_plain(const void *p, size_t size)
{
    uint64_t sum[4] = {0};
    for (const char *at = p, *end = at + size; at < end; at += 32) {
        uint64_t v[4];
        memcpy(v, at, sizeof v);
        for (int i = 0; i < 4; i++)
            sum[i] += v[i];
    }
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
}

static double int8_plain(uint64_t n)
{
    volatile int8_t source = 3;
    int8_t x = source, w = source;
    int32_t sum[8] = {0};
    for (uint64_t i = 0; i < n / 16; i++)
        for (int l = 0; l < 8; l++) {
            sum[l] += (int32_t)x * w;
            __asm__ volatile("" : "+r"(sum[l]));
        }
    return (double)(n / 16) * 8 * 2;
}

static const struct roofline_loops plain = {read_plain, int8_plain};

/* The loops of the instruction set that matmul_find("auto") multiplies with. */
static const struct roofline_loops *loops(void)
{
#if defined(__x86_64__)
    const struct matmul_kernels *table = matmul_find("auto", NULL);
    if (table == &matmul_avx512)
        return &roofline_avx512;
    if (table == &matmul_avxvnni)
        return &roofline_avxvnni;
    if (table == &matmul_avx2)
        return &roofline_avx2;
#endif
    return &plain;
}

/* What the process may use, read before the first thread (which hands its own set on) is pinned. */
static cpu_set_t allowed;

static void read_allowed(void)
{
    if (sched_getaffinity(0, sizeof allowed, &allowed))
        CPU_ZERO(&allowed);
}

int roofline_pin(uint32_t i)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    cpu_set_t one;
    pthread_once(&once, read_allowed);
    uint32_t n = (uint32_t)CPU_COUNT(&allowed), seen = 0;
    if (!n)
        return -ENOSYS;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed) && seen++ == i % n)
            CPU_SET(cpu, &one);
    return -pthread_setaffinity_np(pthread_self(), sizeof one, &one);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct worker {
    const struct roofline_loops *loops;
    pthread_barrier_t *barrier;
    uint32_t i;
    size_t size; /* bytes to read, or 0: int8 */
    double work; /* of one round */
    double began[ROUNDS], ended[ROUNDS];
    volatile uint64_t sink;
};

static void *work(void *argument)
{
    struct worker *w = argument;
    uint8_t *memory = MAP_FAILED;
    roofline_pin(w->i);
    if (w->size) {
        memory = mmap(NULL, w->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory != MAP_FAILED) {
            madvise(memory, w->size, MADV_HUGEPAGE);
            memset(memory, 1, w->size);
        }
    }
    w->work = w->size && memory != MAP_FAILED ? (double)w->size : 0;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(w->barrier);
        w->began[round] = now();
        if (!w->size)
            w->work = w->loops->int8(INT8_ROUNDS);
        else if (memory != MAP_FAILED)
            w->sink = w->loops->read(memory, w->size);
        w->ended[round] = now();
        pthread_barrier_wait(w->barrier);
    }
    if (memory != MAP_FAILED)
        munmap(memory, w->size);
    return NULL;
}

/* From the first thread's beginning to the last one's end: with more threads than CPUs none sees both. */
static double round_seconds(const struct worker *w, uint32_t n_threads, int round)
{
    double began = w[0].began[round], ended = w[0].ended[round];
    for (uint32_t i = 1; i < n_threads; i++) {
        began = w[i].began[round] < began ? w[i].began[round] : began;
        ended = w[i].ended[round] > ended ? w[i].ended[round] : ended;
    }
    return ended - began;
}

/* Work per second of all threads together, in the best round. */
static double measure(uint32_t n_threads, size_t size)
{
    struct worker w[256];
    pthread_t threads[256];
    pthread_barrier_t barrier;
    assert(n_threads >= 1 && n_threads <= 256);
    pthread_barrier_init(&barrier, NULL, n_threads);
    for (uint32_t i = 0; i < n_threads; i++) {
        w[i] = (struct worker){.loops = loops(), .barrier = &barrier, .i = i, .size = size};
        if (pthread_create(&threads[i], NULL, work, &w[i]))
            abort();
    }
    double best = 0, total = 0;
    for (uint32_t i = 0; i < n_threads; i++) {
        pthread_join(threads[i], NULL);
        total += w[i].work;
    }
    for (int round = 0; round < ROUNDS; round++) {
        double rate = total / round_seconds(w, n_threads, round);
        best = rate > best ? rate : best;
    }
    pthread_barrier_destroy(&barrier);
    return best;
}

double roofline_read_gbps(uint32_t n_threads)
{
    return measure(n_threads, READ_TOTAL / n_threads / 1024 * 1024) * 1e-9;
}

double roofline_int8_tops(uint32_t n_threads)
{
    return measure(n_threads, 0) * 1e-12;
}
