/* hearthd - the command line: which subcommand, --help, --version. */
#include "commands.h"
#include "config.h"
#include "log.h"
#include "nearest.h"

#include <stdio.h>
#include <string.h>

static int cmd_help(int argc, char **argv);
static int cmd_version(int argc, char **argv);

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *arguments, *help;
} commands[] = {
    {"serve", cmd_serve, "[flags]", "load a model and serve it over HTTP (what hearthd does by itself)"},
    {"run", cmd_run, "--model FILE \"prompt\"", "generate once, print as it comes"},
    {"bench", cmd_bench, "--model FILE", "speed beside the limits of this machine"},
    {"inspect", cmd_inspect, "MODEL", "what is in a GGUF file, and the memory it will take"},
    {"tokenize", cmd_tokenize, "--model FILE", "text on stdin, token ids on stdout"},
    {"check-config", cmd_check_config, "[--config FILE]", "say what is wrong with a configuration"},
    {"help", cmd_help, "[COMMAND]", "this, or a command's own help (--help)"},
    {"version", cmd_version, "", "the version (--version)"},
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static int cmd_version(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    puts("hearthd " HEARTH_VERSION);
    return EXIT_CLEAN;
}

static void print_overview(void)
{
    puts("hearthd serves a GGUF model over HTTP.\n"
         "\n"
         "  hearthd --model FILE\n"
         "  curl -d '{\"prompt\":\"Once upon a time\"}' http://127.0.0.1:8080/generate\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        printf("  %-12s %-24s %s\n", commands[i].name, commands[i].arguments, commands[i].help);
    puts("\n`hearthd serve --help` lists every flag; each is also a line of " CONFIG_FILE "\n"
         "and a variable HEARTH_<KEY>. `hearthd --print-config` shows what is in force.");
}

static int cmd_help(int argc, char **argv)
{
    const struct command *command = argc > 1 ? find_command(argv[1]) : NULL;
    char *help[] = {argc > 1 ? argv[1] : NULL, "--help", NULL};

    if (!command || command->run == cmd_help) {
        print_overview();
        return EXIT_CLEAN;
    }
    return command->run(2, help);
}

static int unknown_command(const char *word)
{
    const char *names[N_COMMANDS];

    for (size_t i = 0; i < N_COMMANDS; i++)
        names[i] = commands[i].name;
    const char *meant = nearest(word, names, N_COMMANDS);
    log_error("unknown command %s%s%s%s", log_quote(word), meant ? "; did you mean " : "; see --help",
              meant ? meant : "", meant ? "?" : "");
    return EXIT_USAGE;
}

/* hearthd FLAGS is hearthd serve FLAGS. */
static int serve_by_default(int argc, char **argv)
{
    argv[0] = "serve";
    return cmd_serve(argc, argv);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return serve_by_default(argc, argv);
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0)
        return cmd_version(argc - 1, argv + 1);
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0))
        return cmd_help(argc - 1, argv + 1);
    if (argv[1][0] == '-')
        return serve_by_default(argc, argv);
    const struct command *command = find_command(argv[1]);
    return command ? command->run(argc - 1, argv + 1) : unknown_command(argv[1]);
}
