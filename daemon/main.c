/* hearthd - the command line: which subcommand, --help, --version. */
#include "cli/commands.h"
#include "config/config.h"
#include "base/log.h"
#include "base/suggest.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int cmd_help(int argc, char **argv);
static int cmd_version(int argc, char **argv);

struct command;
static int run_command(const struct command *command, int argc, char **argv);
static int unknown_command(const char *word);

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *arguments, *help;
    const char *usage; /* NULL: the command answers --help by itself */
} commands[] = {
    {"serve", cmd_serve, "[flags]", "load a model and serve it over HTTP (the default)", NULL},
    {"run", cmd_run, "--model FILE \"prompt\"", "generate one text and print it as it is generated", NULL},
    {"bench", cmd_bench, "--model FILE", "measure speed against the limits of this machine", NULL},
    {"inspect", cmd_inspect, "MODEL", "show what is in a GGUF file and the memory it needs",
     "hearthd inspect MODEL [--graph] [--program] [--json]\n"
     "hearthd inspect --supported\n"
     "\n"
     "  --graph     the graph: the model's operations in order\n"
     "  --program   the program: the operations after fusion, as the decoder runs them\n"
     "  --json      one JSON object instead of a table\n"
     "  --supported the architectures and weight types that this version runs"},
    {"tokenize", cmd_tokenize, "--model FILE", "turn text on stdin into token ids on stdout",
     "hearthd tokenize --model FILE [--no-special] [--ids] < TEXT\n"
     "\n"
     "Prints [1, 2, 3]. The file needs a vocabulary, but no tensors.\n"
     "  --no-special   add no BOS or EOS; names of special tokens stay text\n"
     "  --ids          print the ids only (the default)"},
    {"parse", cmd_parse, "--format NAME", "split a model's raw text into content, reasoning and tool calls",
     "hearthd parse --format NAME | --model FILE [--tools FILE] [--generation-prompt TEXT]\n"
     "              [--length] [--cut N | --by N] [--deltas] < TEXT\n"
     "\n"
     "Prints {\"content\", \"reasoning\", \"tool_calls\" [{\"id\", \"name\", \"arguments\"}], "
     "\"finish_reason\"}.\n"
     "  --format NAME   hermes, qwen3-coder, llama3-json, mistral-nemo, harmony ...; a wrong name lists all\n"
     "  --model FILE    choose the format by the model's chat template\n"
     "  --tools FILE    OpenAI's list of tools: their schemas say which values are text\n"
     "  --generation-prompt TEXT\n"
     "                  the end of the prompt, which may have opened the reasoning\n"
     "  --length        max_tokens cut the text\n"
     "  --cut N         feed the text in two parts, cut at byte N\n"
     "  --by N          feed it N bytes at a time\n"
     "  --deltas        print each piece as it comes"},
    {"constrain", cmd_constrain, "--schema FILE", "check a text against a schema, regex or grammar", NULL},
    {"stats", cmd_stats, "[URL]", "show the figures of a running daemon", NULL},
    {"ps", cmd_ps, "[URL]", "list the requests of a running daemon", NULL},
    {"check-config", cmd_check_config, "[--config FILE]", "check a configuration", NULL},
    {"help", cmd_help, "[COMMAND]", "show this list, or a command's help (--help)", NULL},
    {"version", cmd_version, "", "print the version (--version)", "hearthd version"},
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
         "and an environment variable HEARTH_<KEY>. `hearthd --print-config` shows the values in force.");
}

static int cmd_help(int argc, char **argv)
{
    const struct command *command = argc > 1 ? find_command(argv[1]) : NULL;
    char *help[] = {argc > 1 ? argv[1] : NULL, "--help", NULL};

    if (argc > 1 && !command && argv[1][0] != '-')
        return unknown_command(argv[1]);
    if (!command || command->run == cmd_help) {
        print_overview();
        return EXIT_CLEAN;
    }
    return run_command(command, 2, help);
}

static int unknown_command(const char *word)
{
    const char *names[N_COMMANDS];

    for (size_t i = 0; i < N_COMMANDS; i++)
        names[i] = commands[i].name;
    const char *meant = nearest(word, names, N_COMMANDS);
    if (config_is_model(word))
        log_error("unknown command %s; a model is named by --model", log_quote(word));
    else
        log_error("unknown command %s%s%s%s", log_quote(word), meant ? "; did you mean " : "; see --help",
                  meant ? meant : "", meant ? "?" : "");
    return EXIT_USAGE;
}

static int run_command(const struct command *command, int argc, char **argv)
{
    for (int i = 1; i < argc && command->usage; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            puts(command->usage);
            return EXIT_CLEAN;
        }
    }
    return command->run(argc, argv);
}

/* hearthd FLAGS is hearthd serve FLAGS. */
static int serve_by_default(int argc, char **argv)
{
    argv[0] = "serve";
    return cmd_serve(argc, argv);
}

static int dispatch(int argc, char **argv)
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
    return command ? run_command(command, argc - 1, argv + 1) : unknown_command(argv[1]);
}

/* If a standard stream is closed, the next file or socket would take its number, and get the log. */
static void fill_standard_streams(void)
{
    int fd = open("/dev/null", O_RDWR);

    while (fd >= 0 && fd <= STDERR_FILENO)
        fd = open("/dev/null", O_RDWR);
    if (fd >= 0)
        close(fd);
}

int main(int argc, char **argv)
{
    fill_standard_streams();
    log_open(LOG_LEVEL_INFO, LOG_TEXT); /* so that a broken configuration is an error in the journal, too */
    int code = dispatch(argc, argv);
    return code == EXIT_CLEAN ? command_flush() : code;
}
