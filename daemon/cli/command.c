/* command.c - what the commands share: errors of the configuration, a run with it, the end of the output. */
#include "commands.h"
#include "config/config.h"
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

int command_fail_config(const struct error *err)
{
    log_error("%s", err->text);
    return err->code == -ENOMEM ? EXIT_MEMORY : EXIT_USAGE;
}

int command_run_configured(const struct command_configured *c, void *options, int argc, char **argv)
{
    struct config_arguments args = {.argc = argc - 1,
                                    .argv = argv + 1,
                                    .environ = environ,
                                    .default_file = CONFIG_FILE,
                                    .secure = getauxval(AT_SECURE) != 0,
                                    .option = c->option,
                                    .context = options};
    struct config cfg;
    struct error err = {0};
    int rc = config_load(&cfg, &args, &err);

    config_warn(&args);
    if (rc < 0)
        rc = command_fail_config(&err);
    else if (args.help)
        c->usage();
    else if (args.print_config)
        config_print(&cfg, stdout);
    else if (c->run(&cfg, options, &err) < 0)
        rc = exit_fail(&err);
    config_free(&cfg);
    return rc;
}

int command_flush(void)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return EXIT_CLEAN;
    log_error("stdout: %s", errno ? strerror(errno) : "cannot be written");
    return EXIT_INTERNAL;
}
