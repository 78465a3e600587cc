/* hearthd check-config: whether the daemon would accept its configuration, without starting it. */
#include "http/access.h"
#include "chat/chat_template.h"
#include "commands.h"
#include "config/config.h"
#include "service/models/model_dir.h"
#include "service/models/model_file.h"
#include "service/models/runtime.h"
#include "service/server.h"
#include "http/tls.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

/* The text that is printed instead of a check. */
enum show { SHOW_NOTHING, SHOW_SAMPLE, SHOW_MAN };

static int take_show(void *context, int argc, char **argv, struct error *err)
{
    (void)argc;
    (void)err;
    enum show show = strcmp(argv[0], "--sample") == 0 ? SHOW_SAMPLE
                     : strcmp(argv[0], "--man") == 0  ? SHOW_MAN
                                                      : SHOW_NOTHING;
    if (show == SHOW_NOTHING)
        return 0;
    *(enum show *)context = show;
    return 1;
}

/* Checks what the values name, in serve's order: keys, addresses, places to listen, certificate, template. */
static int check_named(const struct config *c, struct error *err)
{
    struct access *access = NULL;
    int rc = access_open(&access, c, err);
    access_close(access);
    if (rc == 0)
        rc = server_check(c, err);
    if (rc == 0 && c->tls_port)
        rc = tls_load(c->tls_certificate, c->tls_key, err);
    tls_unload();
    if (rc == 0)
        rc = runtime_check(c, err);
    return rc < 0 ? rc : chat_template_check(c->chat_template, err);
}

/* As serve reads the directory at start; it names the files that are left out. */
static int check_models(const struct config *c, struct error *err)
{
    struct model_dir dir;
    int rc = model_dir_open(&dir, c->models, err);
    if (rc == 0 && !c->model[0] && model_dir_first(&dir) < 0)
        rc = error_set(err, -ENOENT, "models %s: no .gguf in it", dir.path);
    model_dir_free(&dir);
    return rc;
}

/* A model that is named must be there; one that is not may come with the install. */
static int check(const struct config *c)
{
    char path[PATH_MAX];
    struct error err = {0};

    if (c->model[0] && model_file_find(path, c->model, &err) < 0)
        return exit_fail(&err);
    if (c->models[0] && check_models(c, &err) < 0)
        return exit_fail(&err);
    if (check_named(c, &err) < 0)
        return command_fail_config(&err);
    printf("%s: ok\n", c->file[0] ? c->file : "environment and flags, without a file");
    return EXIT_CLEAN;
}

static void usage(void)
{
    puts("hearthd check-config [--config FILE] [flags]\n"
         "\n"
         "Checks the file, environment and flags as `hearthd serve` would read them, and reports an error.\n"
         "Also checks that the model and the directory of models exist, and that the host, the path of the\n"
         "Unix socket, the key files, the certificate and the chat template can be used.\n"
         "  --sample   print a file with every key, explained, with its default\n"
         "  --man      print the manual page of the keys");
}

int cmd_check_config(int argc, char **argv)
{
    enum show show = SHOW_NOTHING;
    struct config_arguments args = {.argc = argc - 1,
                                    .argv = argv + 1,
                                    .environ = environ,
                                    .default_file = CONFIG_FILE,
                                    .secure = getauxval(AT_SECURE) != 0,
                                    .option = take_show,
                                    .context = &show};
    struct config c;
    struct error err = {0};
    int rc = config_load(&c, &args, &err);

    config_warn(&args);
    if (rc < 0)
        rc = command_fail_config(&err);
    else if (args.help)
        usage();
    else if (show == SHOW_SAMPLE)
        config_sample(stdout);
    else if (show == SHOW_MAN)
        config_man(stdout);
    else if (args.print_config)
        config_print(&c, stdout);
    else
        rc = check(&c);
    config_free(&c);
    return rc;
}
