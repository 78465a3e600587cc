/* cgroup.h - what the control groups of this process allow it: cores and memory.
 * A bound may stand at our group or at any of its ancestors, so every directory up to the root of a hierarchy
 * is asked; v2 and v1 (also v1 inside a container, whose /proc/self/cgroup names a path of the host that is
 * not there: its own bounds lie at the root of the mount). Thread: any; nothing is kept. */
#pragma once
#include <stdint.h>

/* `root` is put before /proc and /sys: "" for this machine. A file that is missing or cannot be read is no
 * bound. */

/* Whole cores that the tightest cpu quota allows, at least 1; 0: no quota. */
uint32_t cgroup_cores(const char *root);

/* Bytes that may still be taken before the tightest memory limit, with what the kernel would give back first
 * (pages of files it keeps as cache) counted as free; UINT64_MAX: no limit. */
uint64_t cgroup_memory_available(const char *root);
