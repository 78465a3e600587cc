/* cgroup.h - the cores and the memory that this process may use by its control groups.
 * A limit may stand at the process's group or at any ancestor, so every directory up to the root of the
 * hierarchy is read. Both v2 and v1 are supported, also v1 inside a container: there /proc/self/cgroup names
 * a path of the host that does not exist, and the limits stand at the root of the mount.
 * Thread: any; no state is kept. Memory: the stack only. Errors: a file that is missing or unreadable sets no
 * limit. */
#pragma once
#include <stdint.h>

/* In both functions `root` is the prefix of /proc and /sys: "" for this machine. */

/* The whole cores that the tightest cpu quota allows, at least 1; 0 when there is no quota. */
uint32_t cgroup_cores(const char *root);

/* The bytes that this process can still allocate below the tightest memory limit. The page cache counts as
 * free, because the kernel reclaims it first. UINT64_MAX when there is no limit. */
uint64_t cgroup_memory_available(const char *root);
