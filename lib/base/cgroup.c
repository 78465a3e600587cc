#include "cgroup.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define PATH_SIZE (2 * PATH_MAX)

/* A directory of a hierarchy: the first `len` bytes of `path`. A file's name is appended after them. */
struct directory {
    char path[PATH_SIZE];
    size_t len;
    bool v2;
};

static FILE *file_open(struct directory *d, const char *name)
{
    snprintf(d->path + d->len, sizeof d->path - d->len, "/%s", name);
    return fopen(d->path, "re");
}

/* Reads the first n numbers of a file. The word "max" is not a number: false. */
static bool read_numbers(struct directory *d, const char *name, long long *out, int n)
{
    FILE *f = file_open(d, name);
    if (!f)
        return false;
    bool ok = true;
    for (int i = 0; ok && i < n; i++)
        ok = fscanf(f, "%lld", &out[i]) == 1;
    fclose(f);
    return ok;
}

/* True if the comma-separated list contains `name`. */
static bool names_controller(const char *list, const char *name)
{
    for (size_t n; *list; list += n + (list[n] == ',')) {
        n = strcspn(list, ",");
        if (n == strlen(name) && strncmp(list, name, n) == 0)
            return true;
    }
    return false;
}

/* Sets *d to the directory that a line of /proc/self/cgroup ("number:controllers:path") names. A v2 line has
 * no controllers. */
static bool directory_set(struct directory *d, const char *root, const char *controller, char *line)
{
    char *list = strchr(line, ':'), *group = list ? strchr(list + 1, ':') : NULL;
    if (!group)
        return false;
    *list++ = *group++ = '\0';
    group[strcspn(group, "\n")] = '\0';
    d->v2 = !*list;
    if (!d->v2 && !names_controller(list, controller))
        return false;
    int n = snprintf(d->path, sizeof d->path, "%s/sys/fs/cgroup%s%s%s", root, d->v2 ? "" : "/",
                     d->v2 ? "" : controller, group);
    d->len = (size_t)n;
    while (n > 0 && d->len && d->path[d->len - 1] == '/')
        d->path[--d->len] = '\0';
    return n > 0 && (size_t)n < sizeof d->path - 64; /* leaves room for a file name */
}

/* The smallest bound of all directories from this process's groups up to the roots of their mounts. */
static uint64_t least_bound(const char *root, const char *controller, uint64_t (*bound)(struct directory *))
{
    char path[PATH_MAX], line[PATH_MAX + 256];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    if (!f)
        return UINT64_MAX;
    uint64_t least = UINT64_MAX;
    struct directory d;
    while (fgets(line, sizeof line, f)) {
        if (!directory_set(&d, root, controller, line))
            continue;
        size_t top = strlen(root) + strlen("/sys/fs/cgroup") + (d.v2 ? 0 : 1 + strlen(controller));
        for (;;) {
            uint64_t n = bound(&d);
            least = n < least ? n : least;
            if (d.len <= top)
                break;
            while (d.path[--d.len] != '/') {
            }
        }
    }
    fclose(f);
    return least;
}

static uint64_t bound_cores(struct directory *d)
{
    long long quota[2]; /* quota and period, in microseconds */
    bool ok = d->v2 ? read_numbers(d, "cpu.max", quota, 2)
                    : read_numbers(d, "cpu.cfs_quota_us", &quota[0], 1) &&
                          read_numbers(d, "cpu.cfs_period_us", &quota[1], 1);
    if (!ok || quota[0] <= 0 || quota[1] <= 0)
        return UINT64_MAX;
    return quota[0] < quota[1] ? 1 : (uint64_t)(quota[0] / quota[1]);
}

uint32_t cgroup_cores(const char *root)
{
    uint64_t n = least_bound(root, "cpu", bound_cores);
    return n > UINT32_MAX ? 0 : (uint32_t)n;
}

/* Bytes of the page cache. Dirty pages are counted too: they are few, and the kernel writes them back before
 * memory runs out. */
static uint64_t reclaimable(struct directory *d)
{
    FILE *f = file_open(d, "memory.stat");
    if (!f)
        return 0;
    const char *prefix = d->v2 ? "" : "total_"; /* v1: the sums over the child groups, as in its
                                                 * usage_in_bytes */
    char line[128], key[64];
    unsigned long long n, sum = 0;
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "%63s %llu", key, &n) != 2 || strncmp(key, prefix, strlen(prefix)) != 0)
            continue;
        const char *what = key + strlen(prefix);
        if (strcmp(what, "inactive_file") == 0 || strcmp(what, "active_file") == 0)
            sum += n;
    }
    fclose(f);
    return sum;
}

static uint64_t bound_memory(struct directory *d)
{
    long long limit, used;
    if (!read_numbers(d, d->v2 ? "memory.max" : "memory.limit_in_bytes", &limit, 1) || limit < 0)
        return UINT64_MAX;
    if (!read_numbers(d, d->v2 ? "memory.current" : "memory.usage_in_bytes", &used, 1) || used < 0)
        return (uint64_t)limit;
    uint64_t cache = reclaimable(d), held = (uint64_t)used > cache ? (uint64_t)used - cache : 0;
    return (uint64_t)limit > held ? (uint64_t)limit - held : 0;
}

uint64_t cgroup_memory_available(const char *root)
{
    return least_bound(root, "memory", bound_memory);
}
