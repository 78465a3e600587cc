/* commands.h - the subcommands of hearthd. Each takes its own arguments, argv[0] being the subcommand's name,
 * prints its result on stdout and everything else on stderr, and returns the process's exit code. */
#pragma once
#include "base/error.h"

struct config;

enum exit_code {
    EXIT_CLEAN = 0,
    EXIT_INTERNAL = 1,
    EXIT_USAGE = 2,         /* usage or config */
    EXIT_MODEL_MISSING = 3, /* or unreadable */
    EXIT_MODEL_BROKEN = 4,
    EXIT_MODEL_UNSUPPORTED = 5,
    EXIT_NO_DEVICE = 6, /* or no driver */
    EXIT_MEMORY = 7,    /* at load */
    EXIT_ADDRESS = 8,   /* in use */
    EXIT_FAULT = 9,     /* of the decoder, or a driver that does not start */
};

int cmd_serve(int argc, char **argv);
int cmd_check_config(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_parse(int argc, char **argv);
int cmd_constrain(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_stats(int argc, char **argv);
int cmd_ps(int argc, char **argv);

/* A command that reads the configuration: --help, --print-config and errors are the same for all of them. */
struct command_configured {
    void (*usage)(void);
    /* As config_arguments.option; `options` is what command_run_configured() got. */
    int (*option)(void *options, int argc, char **argv, struct error *err);
    int (*run)(struct config *cfg, void *options, struct error *err);
};
/* Returns the exit code. */
int command_run_configured(const struct command_configured *c, void *options, int argc, char **argv);

/* The exit code that a lib/ error stands for (error.h names the codes). */
int command_exit_code(int code);
/* Logs the words as an error and returns the exit code of err->code. */
int command_fail(const struct error *err);
/* The same for an error of config_load(): 2 whatever the errno, but for memory. */
int command_fail_config(const struct error *err);
/* Writes out what stdout still holds: EXIT_CLEAN, or words on stderr and EXIT_INTERNAL. */
int command_flush(void);
