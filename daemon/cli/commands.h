/* commands.h - the subcommands of hearthd. Each takes its own arguments, argv[0] being the subcommand's name,
 * prints its result on stdout and everything else on stderr, and returns the process's exit code. Thread:
 * main. */
#pragma once
#include "base/error.h"
#include "base/exit_code.h"

struct config;

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
    /* Has the contract of config_arguments.option; `options` is what command_run_configured() got. */
    int (*option)(void *options, int argc, char **argv, struct error *err);
    int (*run)(struct config *cfg, void *options, struct error *err);
};
/* Returns the exit code. */
int command_run_configured(const struct command_configured *c, void *options, int argc, char **argv);

/* exit_fail() for an error of config_load(): 2 for every errno except -ENOMEM. */
int command_fail_config(const struct error *err);
/* Writes out what stdout still holds: EXIT_CLEAN, or words on stderr and EXIT_INTERNAL. */
int command_flush(void);
