/* Memory holds keys and prompts: a crash writes none of it unless that is asked for. */
#include "integration/harness.h"
#include "support/temporary_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* True if the kernel wrote a core of the daemon that was just started, or had a program take it. */
static bool leaves_core(void)
{
    int status = 0;
    kill(daemon_.pid, SIGABRT);
    cr_assert_eq(waitpid(daemon_.pid, &status, 0), daemon_.pid);
    daemon_.pid = 0;
    cr_assert(WIFSIGNALED(status));
    return WCOREDUMP(status);
}

Test(core, is_left_only_where_it_is_asked_for)
{
    char *dir = temporary_dir();
    struct rlimit limit = {0};
    cr_assert_eq(chdir(dir), 0); /* a core goes to the working directory */
    getrlimit(RLIMIT_CORE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_CORE, &limit);
    daemon_start((const char *[]){"--core-dumps", "no", "--kv-memory", "16M", NULL});
    bool without = leaves_core();
    daemon_start((const char *[]){"--core-dumps", "yes", "--kv-memory", "16M", NULL});
    bool with = leaves_core();
    cr_assert_eq(chdir("/"), 0);
    temporary_dir_remove(dir);
    cr_assert(!without, "there was a core");
    if (!with) { /* as with AddressSanitizer, which sets the limit to 0 */
        printf("SKIP it_core cores: no core is written here\n");
        cr_skip_test("no core is written here");
    }
}

/* This process, and the daemons it starts, may look into others as a plain user may, root's too. */
static void lose_ptrace(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {0};
    cr_assert_eq(syscall(SYS_capget, &head, sets), 0);
    if (!(sets[0].permitted & 1u << CAP_SYS_PTRACE))
        return;
    cr_assert_eq(prctl(PR_CAPBSET_DROP, CAP_SYS_PTRACE), 0);
    sets[0].effective &= ~(1u << CAP_SYS_PTRACE);
    sets[0].permitted &= ~(1u << CAP_SYS_PTRACE);
    sets[0].inheritable &= ~(1u << CAP_SYS_PTRACE);
    cr_assert_eq(syscall(SYS_capset, &head, sets), 0);
}

/* 0, or why this process may not read the memory of the daemon that is started with this. */
static int open_memory(const char *core_dumps)
{
    char path[64];
    daemon_start((const char *[]){"--core-dumps", core_dumps, "--kv-memory", "16M", NULL});
    snprintf(path, sizeof path, "/proc/%d/mem", daemon_.pid);
    int fd = open(path, O_RDONLY), why = fd < 0 ? errno : 0;
    if (fd >= 0)
        close(fd);
    daemon_stop();
    return why;
}

Test(core, memory_is_read_by_no_other_process_unless_that_is_asked_for)
{
    lose_ptrace();
    cr_assert_eq(open_memory("yes"), 0);
    cr_assert_eq(open_memory("no"), EACCES);
}
