/* hearthd ps: what a running daemon works on, a line for each request. */
#include "ask.h"
#include "commands.h"

#include <stdio.h>

static void print_request(const json_t *r)
{
    printf("%-27s %-22s %-10s %8.1f %8.0f %8.0f %8.0f/%-8.0f %4.0f\n", ask_text(r, "id"),
           ask_text(r, "route"), ask_text(r, "state"), ask_number(r, "age_ms") / 1e3,
           ask_number(r, "prompt_tokens"), ask_number(r, "computed"), ask_number(r, "tokens"),
           ask_number(r, "max_tokens"), ask_number(r, "priority"));
}

static void usage(void)
{
    puts("hearthd ps [URL]\n"
         "\n"
         "The requests that a running daemon works on or that wait there, oldest last; no prompt is shown.\n"
         "URL is http://host:port or unix:/path; by itself the place where this machine's configuration\n"
         "lets it listen. A key comes from HEARTHD_KEY or the configured key files.");
}

static int ps(struct config *cfg, void *options, struct error *err)
{
    json_t *answer = NULL;
    int rc = ask_daemon(cfg, *(const char **)options, "/requests", &answer, err);
    if (rc < 0)
        return rc;
    const json_t *requests = ask_member(answer, "requests");
    printf("%-27s %-22s %-10s %8s %8s %8s %17s %4s\n", "ID", "ROUTE", "STATE", "SECONDS", "PROMPT", "DONE",
           "TOKENS/MAX", "PRIO");
    for (size_t i = 0; i < json_array_size(requests); i++)
        print_request(json_array_get(requests, i));
    json_decref(answer);
    return 0;
}

int cmd_ps(int argc, char **argv)
{
    static const struct command_configured command = {usage, ask_take_url, ps};
    const char *url = NULL;

    return command_run_configured(&command, &url, argc, argv);
}
