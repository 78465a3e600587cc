/* hearthd serve: the daemon with the configuration in force. */
#include "base/log.h"
#include "commands.h"
#include "config/config.h"
#include "service/serve.h"

#include <stdio.h>
#include <sys/auxv.h>
#include <unistd.h>

static void usage(void)
{
    puts("hearthd serve [--config FILE] [flags]\n"
         "\n"
         "Loads a GGUF model and serves it over HTTP until SIGTERM or SIGINT. Running requests then finish;\n"
         "a second signal cancels them. SIGHUP reads log_level, the key files and the certificate again.\n"
         "\n"
         "  --config FILE         read FILE instead of " CONFIG_FILE "\n"
         "  --print-config        print every key's value and its source, and exit");
    config_help(stdout);
}

int cmd_serve(int argc, char **argv)
{
    static struct config cfg;
    static struct config_arguments args;
    struct error err = {0};

    args = (struct config_arguments){.argc = argc - 1,
                                     .argv = argv + 1,
                                     .environ = environ,
                                     .default_file = CONFIG_FILE,
                                     .secure = getauxval(AT_SECURE) != 0};
    if (config_load(&cfg, &args, &err) < 0) {
        config_warn(&args);
        config_free(&cfg);
        return command_fail_config(&err);
    }
    log_open((enum log_level)cfg.log_level, (enum log_format)cfg.log_format);
    config_warn(&args);
    int rc = EXIT_CLEAN;
    if (args.help)
        usage();
    else if (args.print_config)
        config_print(&cfg, stdout);
    else
        rc = serve(&cfg, &args);
    config_free(&cfg);
    return rc;
}
