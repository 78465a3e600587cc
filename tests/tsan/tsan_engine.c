/* tsan_engine.c - the engine's threads under ThreadSanitizer: one thread submits, cancels and takes news, one
 * reads figures and pings, the engine's own runs a decoder without a model; then the same with a prefix cache
 * on disk and its thread, and again with what that left until some of it was read. A plain program: Criterion
 * cannot start under TSan. Ends with 0 when every request ended once and no page stayed. */
#include "engine/engine.h"
#include "support/fake_backend.h"
#include "kv/prefix_disk.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

enum { N_REQUESTS = 400, N_TOKENS = 24, N_PROMPT = 150, MAX_REFUSED = 100, MAX_LIVES = 40 };

struct one {
    struct engine_request r;
    struct engine_token out[N_TOKENS];
    bool done;
};

static struct engine *engine;
static atomic_bool stop;
static _Atomic uint32_t n_wakes;
static uint32_t random_state = 1;

static uint32_t below(uint32_t n)
{
    random_state = random_state * 1664525 + 1013904223;
    return (random_state >> 8) % n;
}

static void wake(void *context)
{
    (void)context;
    atomic_fetch_add(&n_wakes, 1);
}

static void *watch(void *arg)
{
    (void)arg;
    struct engine_stats s;
    struct error why;
    while (!atomic_load(&stop)) {
        engine_stats(engine, &s);
        engine_ping(engine);
        if (s.pages_used > s.pages_total || engine_fault(engine, &why))
            abort();
        sched_yield();
    }
    return NULL;
}

static struct one *make_one(const int32_t *ids)
{
    struct one *o = calloc(1, sizeof *o);
    o->r = (struct engine_request){.prompt = ids + below(3),
                                   .n_prompt = 1 + below(N_PROMPT - 3),
                                   .max_tokens = below(N_TOKENS),
                                   .cache_prompt = below(4) > 0,
                                   .out = o->out,
                                   .user = o,
                                   .priority = (int32_t)below(5)};
    o->r.sampling = (struct step_sampling){STEP_SAMPLING_NEUTRAL};
    return o;
}

/* A second choice of o's prompt, with a seed and tokens of its own. */
static struct one *make_second(struct one *o)
{
    struct one *second = calloc(1, sizeof *second);
    second->r = o->r;
    second->r.out = second->out;
    second->r.user = second;
    second->r.sampling.seed = 1;
    o->r.next_choice = &second->r;
    return second;
}

/* One request, or two choices of one, into out[0..1]; how many. A refused one is NULL. */
static uint32_t send_one(const int32_t *ids, struct one **out, uint32_t room)
{
    out[0] = make_one(ids);
    uint32_t n = room > 1 && below(4) == 0 ? 2 : 1;
    if (n == 2)
        out[1] = make_second(out[0]);
    if (engine_submit(engine, &out[0]->r, NULL) == 0)
        return n;
    for (uint32_t i = 0; i < n; i++) {
        free(out[i]);
        out[i] = NULL;
    }
    return n;
}

/* Takes all news; the number of requests that ended, which are freed at once. */
static uint32_t take_news(struct one **open)
{
    uint32_t n_ended = 0;
    for (struct engine_request *r; (r = engine_next(engine));) {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < atomic_load_explicit(&r->n_out, memory_order_acquire); i++)
            sum += (uint32_t)r->out[i].token;
        if (atomic_load_explicit(&r->state, memory_order_acquire) != ENGINE_DONE)
            continue;
        for (uint32_t i = 0; i < N_REQUESTS; i++)
            if (open[i] == r->user)
                open[i] = NULL;
        if (r->finish == ENGINE_RUNNING || sum > UINT32_MAX)
            abort();
        free(r->user);
        n_ended++;
    }
    return n_ended;
}

static uint32_t run(const int32_t *ids)
{
    static struct one *open[N_REQUESTS];
    uint32_t n_sent = 0, n_ended = 0, n_lost = 0;
    while (n_ended + n_lost < N_REQUESTS) {
        bool room = n_sent - n_ended - n_lost < 50; /* beyond that some are refused */
        if (n_sent < N_REQUESTS && (room || (n_lost < MAX_REFUSED && below(500) == 0))) {
            uint32_t n = send_one(ids, &open[n_sent], N_REQUESTS - n_sent);
            n_lost += open[n_sent] ? 0 : n;
            n_sent += n;
        }
        struct one *victim = open[below(N_REQUESTS)];
        if (victim && below(3) == 0)
            engine_cancel(engine, &victim->r);
        n_ended += take_news(open);
        sched_yield();
    }
    return n_ended;
}

/* A whole engine's life, with or without a disk. */
static bool life(struct prefix_disk *disk)
{
    static int32_t ids[N_PROMPT];
    const int32_t end_tokens[] = {3, 17, 42};
    struct error err = {0};
    struct executor *x = NULL;
    pthread_t watcher;
    for (int i = 0; i < N_PROMPT; i++)
        ids[i] = i * 37;
    atomic_store(&stop, false);
    struct fake *fake = fake_open(20, 4, end_tokens, 3);
    fake->lazy = 3;
    struct engine_config cfg = {.n_slots = 4,
                                .n_ctx = 256,
                                .queue_limit = 50,
                                .steps_in_flight = 2,
                                .prefix_cache = true,
                                .disk = disk,
                                .end_tokens = end_tokens,
                                .n_end_tokens = 3,
                                .wake = wake};
    if (executor_wrap(&x, &fake->be, &err) < 0 || engine_open(&engine, x, &cfg, &err) < 0 ||
        pthread_create(&watcher, NULL, watch, NULL) != 0) {
        fprintf(stderr, "tsan_engine: %s\n", err.text);
        return false;
    }
    uint32_t n_ended = run(ids);
    struct one *last;
    send_one(ids, &last, 1); /* is cut off by the end */
    atomic_store(&stop, true);
    pthread_join(watcher, NULL);
    engine_close(engine);
    bool ok = n_ended > 100 && atomic_load(&n_wakes) > 0 && !fake->broken && last &&
              atomic_load(&last->r.state) == ENGINE_DONE;
    free(last);
    if (!ok)
        fprintf(stderr, "tsan_engine: %u requests ended, decoder: %s\n", n_ended,
                fake->why ? fake->why : "well");
    executor_close(x);
    return ok;
}

static bool life_on_disk(const char *dir, struct prefix_disk_stats *stats)
{
    struct prefix_disk *disk = NULL;
    struct prefix_disk_config c = {
        .dir = dir, .budget = 8 * 1024, .model = 1, .order = "fake", .kv = fake_layout};
    if (prefix_disk_open(&disk, &c, NULL) < 0)
        return false;
    bool ok = life(disk);
    prefix_disk_stats(disk, stats);
    prefix_disk_close(disk);
    return ok && stats->errors == 0;
}

static void remove_dir(const char *path)
{
    DIR *dir = opendir(path);
    for (const struct dirent *e; dir && (e = readdir(dir));)
        unlinkat(dirfd(dir), e->d_name, 0);
    if (dir)
        closedir(dir);
    rmdir(path);
}

int main(void)
{
    char dir[] = "/tmp/hearth-tsan-XXXXXX";
    struct prefix_disk_stats stats = {0};
    if (!mkdtemp(dir))
        return 1;
    bool ok = life(NULL) && life_on_disk(dir, &stats);
    /* The scheduler chooses if a page gets to the disk, and is asked for before it has been computed again.
     */
    stats.hits = 0;
    for (int i = 0; i < MAX_LIVES && ok && stats.hits == 0; i++)
        ok = life_on_disk(dir, &stats);
    remove_dir(dir);
    if (!ok || stats.hits == 0) {
        fprintf(stderr, "tsan_engine: %llu pages read from the disk, %llu written in the last life\n",
                (unsigned long long)stats.hits, (unsigned long long)stats.spilled);
        return 1;
    }
    return 0;
}
