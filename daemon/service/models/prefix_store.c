#include "prefix_store.h"
#include "base/log.h"
#include "kv/prefix_disk.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* prefix_cache_dir, else "prefix" in the (first) state directory of the service manager; "": nowhere. */
static void find_dir(const struct config *cfg, char *out, size_t room)
{
    const char *state = getenv("STATE_DIRECTORY");

    if (cfg->prefix_cache_dir[0])
        snprintf(out, room, "%s", cfg->prefix_cache_dir);
    else if (state && state[0] == '/')
        snprintf(out, room, "%.*s/prefix", (int)strcspn(state, ":"), state);
    else
        out[0] = '\0';
}

static void report(void *context, const char *words)
{
    (void)context;
    log_warn("%s", words);
}

struct prefix_disk *prefix_store_open(const struct config *cfg, const struct executor *x, uint64_t model_hash,
                                      struct prefix_dir *shared, void (*moved)(void *context), void *context)
{
    struct prefix_disk *d = NULL;
    struct prefix_disk_stats stats;
    struct backend_info info;
    struct error err = {0};
    char dir[PATH_MAX];

    executor_info(x, &info);
    find_dir(cfg, dir, sizeof dir);
    if (!dir[0] || cfg->prefix_cache_disk == 0 || !info.shares_pages || !info.kv_order)
        return NULL;
    struct prefix_disk_config c = {.dir = dir,
                                   .budget = cfg->prefix_cache_disk,
                                   .shared = shared,
                                   .model = model_hash,
                                   .order = info.kv_order,
                                   .kv = info.kv,
                                   .report = report,
                                   .moved = moved,
                                   .context = context};
    if (prefix_disk_open(&d, &c, &err) < 0) {
        log_warn("the prefix cache is not kept on disk: %s", err.text);
        return NULL;
    }
    prefix_disk_stats(d, &stats);
    log_info("prefix cache in %s: %llu pages, %llu MB of %llu", dir, (unsigned long long)stats.pages,
             (unsigned long long)(stats.bytes >> 20), (unsigned long long)(cfg->prefix_cache_disk >> 20));
    return d;
}
