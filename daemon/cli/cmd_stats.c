/* hearthd stats: GET /stats of a running daemon, as a table. */
#include "query.h"
#include "query_print.h"
#include "commands.h"

#include <stdio.h>

static void usage(void)
{
    puts("hearthd stats [URL]\n"
         "\n"
         "Shows the figures of a running daemon as a table.\n"
         "URL is http://host:port or unix:/path (default: the address in this machine's configuration).\n"
         "The API key comes from HEARTHD_CLIENT_KEY or, for a daemon on this machine, from its key files.");
}

static int stats(struct config *cfg, void *options, struct error *err)
{
    json_t *answer = NULL;
    int rc = ask_daemon(cfg, *(const char **)options, "/stats", &answer, err);

    if (rc < 0)
        return rc;
    query_print_stats(answer, stdout);
    json_decref(answer);
    return 0;
}

int cmd_stats(int argc, char **argv)
{
    static const struct command_configured command = {usage, ask_take_url, stats};
    const char *url = NULL;

    return command_run_configured(&command, &url, argc, argv);
}
