/* Quotas and limits, read from made trees of cgroups. */
#include "base/cgroup.h"
#include "base/team.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A made machine: the files below are written under a directory of its own. */
static char root[64];

static void made_file(const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        cr_assert(mkdir(full, 0700) == 0 || errno == EEXIST);
    }
    FILE *f = fopen(full, "w");
    cr_assert_not_null(f);
    cr_assert(fputs(text, f) >= 0 && fclose(f) == 0);
}

static void machine_open(void)
{
    strcpy(root, "/tmp/hearth-cgroup-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
}

static void machine_close(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", root);
    cr_assert_eq(system(command), 0);
}

TestSuite(cgroup, .init = machine_open, .fini = machine_close);

Test(cgroup, a_machine_without_groups_has_no_bound)
{
    cr_assert_eq(cgroup_memory_available(root), UINT64_MAX);
    cr_assert_eq(cgroup_cores(root), 0);
}

Test(cgroup, what_files_hold_in_the_cache_is_available)
{
    made_file("/proc/self/cgroup", "0::/app\n");
    made_file("/sys/fs/cgroup/app/memory.max", "1000000\n");
    made_file("/sys/fs/cgroup/app/memory.current", "990000\n");
    made_file("/sys/fs/cgroup/app/memory.stat", "anon 90000\nfile 900000\ninactive_file 600000\n"
                                                "active_file 200000\nslab_reclaimable 7\n");
    cr_assert_eq(cgroup_memory_available(root), 1000000 - (990000 - 800000));
}

Test(cgroup, a_group_over_its_limit_has_nothing_left)
{
    made_file("/proc/self/cgroup", "0::/app\n");
    made_file("/sys/fs/cgroup/app/memory.max", "1000\n");
    made_file("/sys/fs/cgroup/app/memory.current", "1001\n");
    cr_assert_eq(cgroup_memory_available(root), 0);
}

Test(cgroup, an_ancestors_limit_bounds_memory)
{
    made_file("/proc/self/cgroup", "0::/outer/middle/app\n");
    made_file("/sys/fs/cgroup/outer/middle/app/memory.max", "max\n");
    made_file("/sys/fs/cgroup/outer/middle/app/memory.current", "10\n");
    made_file("/sys/fs/cgroup/outer/memory.max", "5000\n");
    made_file("/sys/fs/cgroup/outer/memory.current", "1000\n");
    made_file("/sys/fs/cgroup/memory.max", "6000\n");
    made_file("/sys/fs/cgroup/memory.current", "1000\n");
    cr_assert_eq(cgroup_memory_available(root), 4000);
}

Test(cgroup, a_v1_container_is_bounded_at_the_root_of_its_mount)
{
    made_file("/proc/self/cgroup", "5:cpuset:/docker/f00\n4:memory:/docker/f00\n2:cpu,cpuacct:/docker/f00\n");
    made_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "8000\n");
    made_file("/sys/fs/cgroup/memory/memory.usage_in_bytes", "7000\n");
    made_file("/sys/fs/cgroup/memory/memory.stat",
              "inactive_file 1\nactive_file 2\ntotal_inactive_file 3000\ntotal_active_file 1000\n");
    made_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "250000\n");
    made_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    cr_assert_eq(cgroup_memory_available(root), 5000);
    cr_assert_eq(cgroup_cores(root), 2);
}

Test(cgroup, the_tightest_quota_on_the_way_up_counts)
{
    made_file("/proc/self/cgroup", "0::/outer/app\n");
    made_file("/sys/fs/cgroup/outer/app/cpu.max", "800000 100000\n");
    made_file("/sys/fs/cgroup/outer/cpu.max", "350000 100000\n");
    cr_assert_eq(cgroup_cores(root), 3);
}

Test(cgroup, part_of_a_core_is_one_thread)
{
    made_file("/proc/self/cgroup", "0::/\n");
    made_file("/sys/fs/cgroup/cpu.max", "50000 100000\n");
    cr_assert_eq(cgroup_cores(root), 1);
}

Test(cgroup, a_quota_of_max_is_no_bound)
{
    made_file("/proc/self/cgroup", "0::/app\n");
    made_file("/sys/fs/cgroup/app/cpu.max", "max 100000\n");
    cr_assert_eq(cgroup_cores(root), 0);
}

/* The tighter of a team's two bounds counts; the affinity mask is this machine's. */
Test(cgroup, a_team_has_the_cores_of_the_quota_or_of_the_affinity_mask)
{
    cpu_set_t set;
    cr_assert_eq(sched_getaffinity(0, sizeof set, &set), 0);
    uint32_t n_cpus = (uint32_t)CPU_COUNT(&set) < TEAM_MAX ? (uint32_t)CPU_COUNT(&set) : TEAM_MAX;
    made_file("/proc/self/cgroup", "0::/app\n");
    made_file("/sys/fs/cgroup/app/cpu.max", "100000 100000\n");
    cr_assert_eq(team_cores_under(root), 1);
    made_file("/sys/fs/cgroup/app/cpu.max", "409600000 100000\n");
    cr_assert_eq(team_cores_under(root), n_cpus);
    made_file("/sys/fs/cgroup/app/cpu.max", "max 100000\n");
    cr_assert_eq(team_cores_under(root), n_cpus);
}
