#include "roofline.h"
#include "base/isa.h"
#include "roofline_loops.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define READ_TOTAL     ((size_t)1 << 30)
#define COMPUTE_ROUNDS 1000000u

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

static double f32_plain(uint64_t n)
{
    float sum[8] = {0};
    for (uint64_t i = 0; i < n / 16; i++)
        for (int l = 0; l < 8; l++) {
            sum[l] = sum[l] * 0.5f + 0.5f;
            __asm__ volatile("" : "+m"(sum[l]));
        }
    return (double)(n / 16) * 8 * 2;
}

static const struct roofline_loops plain = {read_plain, int8_plain, f32_plain};

/* The loops of the best instruction set, as matmul_find("auto") selects it. */
static const struct roofline_loops *loops(void)
{
#if defined(__x86_64__)
    if (isa_has(ISA_AVX512))
        return &roofline_avx512;
    if (isa_has(ISA_AVXVNNI))
        return &roofline_avxvnni;
    if (isa_has(ISA_AVX2))
        return &roofline_avx2;
#endif
    return &plain;
}

/* The CPUs that the process may use, read before the first thread is pinned (threads inherit the set). */
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

enum task { READ, INT8, F32, BF16, AMX, END };

struct worker {
    struct roofline *shared;
    pthread_t thread;
    uint32_t i;
    uint8_t *memory;
    double work; /* bytes or operations of one round */
    double began[ROOFLINE_MAX_ROUNDS], ended[ROOFLINE_MAX_ROUNDS];
    volatile uint64_t sink;
};

struct roofline {
    const struct roofline_loops *loops;
    pthread_mutex_t opening;         /* held until all threads have started or one has failed */
    bool incomplete;                 /* not all threads started: those that did end at once */
    pthread_barrier_t task_barrier;  /* of workers and caller */
    pthread_barrier_t round_barrier; /* of workers */
    uint32_t n_threads, n_rounds;
    uint8_t *memory;
    size_t size; /* bytes of each worker's share */
    enum task task;
    double (*compute)(uint64_t n); /* the loop of a task other than READ */
    struct worker workers[];
};

static void work_round(struct worker *w, uint32_t round)
{
    struct roofline *r = w->shared;
    pthread_barrier_wait(&r->round_barrier);
    w->began[round] = now();
    if (r->task != READ) {
        w->work = r->compute(COMPUTE_ROUNDS);
    } else {
        w->sink = r->loops->read(w->memory, r->size);
        w->work = (double)r->size;
    }
    w->ended[round] = now();
}

static void *work(void *argument)
{
    struct worker *w = argument;
    struct roofline *r = w->shared;
    pthread_mutex_lock(&r->opening);
    bool incomplete = r->incomplete;
    pthread_mutex_unlock(&r->opening);
    if (incomplete)
        return NULL;
    roofline_pin(w->i);
    memset(w->memory, 1, r->size); /* by the thread that reads it: its pages are then near its CPU */
    for (;;) {
        pthread_barrier_wait(&r->task_barrier);
        if (r->task == END)
            return NULL;
        for (uint32_t i = 0; i < r->n_rounds; i++)
            work_round(w, i);
        pthread_barrier_wait(&r->task_barrier);
    }
}

/* The seconds from the first thread's start to the last one's end: with more threads than CPUs no thread sees
 * both. */
static double round_seconds(const struct roofline *r, uint32_t round)
{
    double began = r->workers[0].began[round], ended = r->workers[0].ended[round];
    for (uint32_t i = 1; i < r->n_threads; i++) {
        const struct worker *w = &r->workers[i];
        began = w->began[round] < began ? w->began[round] : began;
        ended = w->ended[round] > ended ? w->ended[round] : ended;
    }
    return ended - began;
}

/* The loop of a unit; NULL: this machine lacks it. */
static double (*loop_of(const struct roofline *r, enum task task))(uint64_t)
{
    switch (task) {
    case INT8:
        return r->loops->int8;
    case F32:
        return r->loops->f32;
#if defined(__x86_64__)
    case BF16:
        return isa_has(ISA_AVX512_BF16) ? roofline_bf16 : NULL;
    case AMX:
        return isa_has(ISA_AMX_INT8) ? roofline_amx : NULL;
#endif
    default:
        return NULL;
    }
}

/* The work per second of all threads together, in the best round. 0: there is no such unit. */
static double measure(struct roofline *r, enum task task, uint32_t n_rounds)
{
    assert(n_rounds >= 1 && n_rounds <= ROOFLINE_MAX_ROUNDS);
    r->task = task;
    r->compute = loop_of(r, task);
    if (task != READ && !r->compute)
        return 0;
    r->n_rounds = n_rounds;
    pthread_barrier_wait(&r->task_barrier);
    pthread_barrier_wait(&r->task_barrier);
    double best = 0, total = 0;
    for (uint32_t i = 0; i < r->n_threads; i++)
        total += r->workers[i].work;
    for (uint32_t i = 0; i < n_rounds; i++) {
        double rate = total / round_seconds(r, i);
        best = rate > best ? rate : best;
    }
    return best;
}

static void free_all(struct roofline *r)
{
    if (r->memory != MAP_FAILED)
        munmap(r->memory, r->size * r->n_threads);
    pthread_barrier_destroy(&r->round_barrier);
    pthread_barrier_destroy(&r->task_barrier);
    pthread_mutex_destroy(&r->opening);
    free(r);
}

int roofline_open(struct roofline **out, uint32_t n_threads, struct error *err)
{
    assert(n_threads >= 1 && n_threads <= ROOFLINE_MAX_THREADS);
    struct roofline *r = calloc(1, sizeof *r + n_threads * sizeof r->workers[0]);
    if (!r)
        return error_set(err, -ENOMEM, "roofline: out of memory");
    r->loops = loops();
    r->n_threads = n_threads;
    r->size = READ_TOTAL / n_threads / 4096 * 4096;
    r->memory = mmap(NULL, r->size * n_threads, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_mutex_init(&r->opening, NULL);
    pthread_barrier_init(&r->task_barrier, NULL, n_threads + 1);
    pthread_barrier_init(&r->round_barrier, NULL, n_threads);
    if (r->memory == MAP_FAILED) {
        free_all(r);
        return error_set(err, -ENOMEM, "out of memory: measuring the limits needs 1 GiB");
    }
    madvise(r->memory, r->size * n_threads, MADV_HUGEPAGE);
    uint32_t n = 0;
    pthread_mutex_lock(&r->opening);
    for (; n < n_threads; n++) {
        struct worker *w = &r->workers[n];
        *w = (struct worker){.shared = r, .i = n, .memory = r->memory + n * r->size};
        if (pthread_create(&w->thread, NULL, work, w))
            break;
    }
    r->incomplete = n < n_threads;
    pthread_mutex_unlock(&r->opening);
    if (n == n_threads) {
        *out = r;
        return 0;
    }
    while (n--)
        pthread_join(r->workers[n].thread, NULL);
    free_all(r);
    return error_set(err, -EAGAIN, "measuring the limits needs %u threads", n_threads);
}

void roofline_close(struct roofline *r)
{
    if (!r)
        return;
    r->task = END;
    pthread_barrier_wait(&r->task_barrier);
    for (uint32_t i = 0; i < r->n_threads; i++)
        pthread_join(r->workers[i].thread, NULL);
    free_all(r);
}

double roofline_read_gbps(struct roofline *r, uint32_t n_rounds)
{
    return measure(r, READ, n_rounds) * 1e-9;
}

double roofline_int8_tops(struct roofline *r, uint32_t n_rounds)
{
    return measure(r, INT8, n_rounds) * 1e-12;
}

double roofline_f32_tflops(struct roofline *r, uint32_t n_rounds)
{
    return measure(r, F32, n_rounds) * 1e-12;
}

double roofline_bf16_tflops(struct roofline *r, uint32_t n_rounds)
{
    return measure(r, BF16, n_rounds) * 1e-12;
}

double roofline_amx_tops(struct roofline *r, uint32_t n_rounds)
{
    return measure(r, AMX, n_rounds) * 1e-12;
}

const char *roofline_unit(void)
{
#if defined(__x86_64__)
    const struct roofline_loops *l = loops();
    if (l != &plain)
        return l == &roofline_avx512 ? "AVX-512 VNNI" : l == &roofline_avxvnni ? "AVX-VNNI" : "AVX2";
#endif
    return "plain C";
}
