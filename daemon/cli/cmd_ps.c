/* hearthd ps: what a running daemon works on, a line for each request. */
#include "query.h"
#include "query_print.h"
#include "commands.h"

#include <stdio.h>

static void usage(void)
{
    puts("hearthd ps [URL]\n"
         "\n"
         "Lists the requests that run or wait in a daemon, oldest last, without their prompts.\n"
         "URL is http://host:port or unix:/path (default: the address in this machine's configuration).\n"
         "The API key comes from HEARTHD_CLIENT_KEY or, for a daemon on this machine, from its key files.");
}

static int ps(struct config *cfg, void *options, struct error *err)
{
    json_t *answer = NULL;
    int rc = ask_daemon(cfg, *(const char **)options, "/requests", &answer, err);
    if (rc < 0)
        return rc;
    query_print_requests(answer, stdout);
    json_decref(answer);
    return 0;
}

int cmd_ps(int argc, char **argv)
{
    static const struct command_configured command = {usage, ask_take_url, ps};
    const char *url = NULL;

    return command_run_configured(&command, &url, argc, argv);
}
