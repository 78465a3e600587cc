/* Memory holds keys and prompts: a crash writes none of it unless that is asked for. */
#include "harness.h"
#include "support/temporary_dir.h"

#include <sys/resource.h>
#include <sys/wait.h>

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
