/* Keys from file, environment and flags: what wins, and what an error says. */
#include "config/config.h"
#include "config/config_keys.h"
#include "base/team.h"
#include "service/models/runtime.h"
#include "toolcall/toolcall.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT_OF(a) ((int)(sizeof(a) / sizeof *(a)))

/* A file of its own for each test, named relative to the working directory of none: mkstemp decides. */
static const char *file_with(const char *text)
{
    static char path[64];

    strcpy(path, "/tmp/hearth-test-config-XXXXXX");
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    return path;
}

static int load_file(struct config *c, const char *text, struct error *err)
{
    const char *path = file_with(text);
    int rc = config_defaults(c, NULL);

    cr_assert_eq(rc, 0);
    rc = config_read_file(c, path, err);
    unlink(path);
    return rc;
}

static int load_flags(struct config *c, int argc, char **argv, struct error *err)
{
    struct config_arguments args = {.argc = argc, .argv = argv};
    return config_load(c, &args, err);
}

static void assert_has(const char *text, const char *part)
{
    cr_assert(strstr(text, part), "\"%s\" should contain \"%s\"", text, part);
}

Test(config, defaults_are_those_of_the_manual)
{
    struct config c;
    cr_assert_eq(config_defaults(&c, NULL), 0);
    cr_assert_str_eq(c.host, "127.0.0.1");
    cr_assert_eq(c.port, 8080);
    cr_assert_eq(c.slots, 32);
    cr_assert_eq(c.queue_limit, 256);
    cr_assert_eq(c.queue_tokens, 1 << 20);
    cr_assert_eq(c.max_body, 4 << 20);
    cr_assert_eq(c.timeout_ms, 0);
    cr_assert_eq(c.executor, CONFIG_EXECUTOR_AUTO);
    cr_assert_eq(c.arithmetic, BACKEND_INT8);
    config_free(&c);
}

Test(config, every_default_is_a_value_the_key_accepts)
{
    struct config c;
    cr_assert_eq(config_defaults(&c, NULL), 0);
    for (size_t i = 0; i < config_n_keys; i++) {
        char *text = config_format(&c, &config_keys[i]);
        cr_assert_str_eq(text, config_keys[i].initial, "%s", config_keys[i].name);
        free(text);
    }
    config_free(&c);
}

Test(config, chat_format_takes_every_format_that_the_scanner_has)
{
    for (size_t i = 0; i < toolcall_n_formats(); i++) {
        struct config c;
        struct error err = {0};
        char line[128];
        snprintf(line, sizeof line, "chat_format = %s\n", toolcall_format_name(toolcall_format_at(i)));
        cr_expect_eq(load_file(&c, line, &err), 0, "%s", err.text);
        config_free(&c);
    }
    for (size_t i = 0; i < config_n_keys; i++)
        for (size_t k = 1; !strcmp(config_keys[i].name, "chat_format") && config_keys[i].choices[k]; k++)
            cr_expect(toolcall_format_find(config_keys[i].choices[k]), "%s", config_keys[i].choices[k]);
}

Test(config, a_file_sets_keys_and_passes_over_comments)
{
    struct config c;
    struct error err = {0};
    int rc = load_file(&c, "# a comment\n; another\n\nqueue_limit = 8\n model=/srv/a b.gguf \n", &err);
    cr_assert_eq(rc, 0, "%s", err.text);
    cr_assert_eq(c.queue_limit, 8);
    cr_assert_str_eq(c.model, "/srv/a b.gguf");
    config_free(&c);
}

Test(config, a_semicolon_inside_a_value_is_part_of_it)
{
    struct config c;
    cr_assert_eq(load_file(&c, "model = /srv/a ;b.gguf\n", NULL), 0);
    cr_assert_str_eq(c.model, "/srv/a ;b.gguf");
    config_free(&c);
}

Test(config, a_line_of_many_thousand_bytes_is_read_whole)
{
    char text[6000] = "model = ";
    struct config c;
    memset(text + 8, 'x', 5000);
    strcpy(text + 5008, "\nport = 1\n");
    cr_assert_eq(load_file(&c, text, NULL), 0);
    cr_assert_eq(strlen(c.model), 5000);
    cr_assert_eq(c.port, 1);
    config_free(&c);
}

Test(config, an_indented_line_does_not_continue_the_value_before_it)
{
    struct config c;
    cr_assert_eq(load_file(&c, "model = a.gguf\n   port = 9\n", NULL), 0);
    cr_assert_str_eq(c.model, "a.gguf");
    cr_assert_eq(c.port, 9);
    config_free(&c);
}

Test(config, an_unknown_key_names_file_line_and_the_nearest_key)
{
    struct config c;
    struct error err = {0};
    cr_assert_eq(load_file(&c, "port = 1\n\nque_limit = 8\n", &err), -EINVAL);
    assert_has(err.text, "/tmp/hearth-test-config-");
    assert_has(err.text, ":3: unknown key \"que_limit\"; did you mean queue_limit?");
    config_free(&c);
}

Test(config, a_value_out_of_range_names_line_value_and_range)
{
    struct config c;
    struct error err = {0};
    cr_assert_eq(load_file(&c, "slots = 5000\n", &err), -EINVAL);
    assert_has(err.text, ":1: slots must be 1 to 256 (got \"5000\")");
    config_free(&c);
}

Test(config, cpu_tuning_takes_two_words_or_a_path)
{
    struct config c;
    struct error err = {0};
    cr_assert_eq(load_file(&c, "cpu_tuning = /var/lib/hearth/tuning\n", NULL), 0);
    cr_assert_str_eq(c.cpu_tuning, "/var/lib/hearth/tuning");
    config_free(&c);
    cr_assert_eq(load_file(&c, "cpu_tuning = of\n", &err), -EINVAL);
    assert_has(err.text, "cpu_tuning must be auto, off, or a path with a / (got \"of\")");
    config_free(&c);
}

Test(config, a_word_that_is_no_choice_lists_the_choices)
{
    struct config c;
    struct error err = {0};
    cr_assert_eq(load_file(&c, "executor = eeger\n", &err), -EINVAL);
    assert_has(err.text, "executor must be persistent, eager, graph or auto (got \"eeger\")");
    config_free(&c);
}

Test(config, a_line_without_equals_names_its_number)
{
    struct config c;
    struct error err = {0};
    cr_assert_eq(load_file(&c, "port = 1\nslots\nbogus = 1\n", &err), -EINVAL);
    assert_has(err.text, ":2: expected \"key = value\"");
    config_free(&c);
}

Test(config, sections_are_refused)
{
    struct config c;
    struct error err = {0};
    cr_assert_eq(load_file(&c, "[server]\nport = 1\n", &err), -EINVAL);
    assert_has(err.text, ":1: sections are not supported");
    config_free(&c);
}

Test(config, a_section_without_keys_is_refused_too)
{
    struct config c;
    struct error err = {0};
    cr_assert_eq(load_file(&c, "port = 1\n[server]\n", &err), -EINVAL);
    assert_has(err.text, ":2: sections are not supported");
    config_free(&c);
}

Test(config, a_key_set_twice_in_one_file_names_the_first_line)
{
    struct config c;
    struct error err = {0};
    cr_assert_eq(load_file(&c, "port = 1\nslots = 2\nport = 3\n", &err), -EINVAL);
    assert_has(err.text, ":3: port is already set in line 1");
    config_free(&c);
}

Test(config, a_file_with_a_nul_byte_is_refused)
{
    struct config c;
    struct error err = {0};
    char path[] = "/tmp/hearth-test-config-XXXXXX";
    int fd = mkstemp(path);
    cr_assert_eq(write(fd, "port = 1\0\n", 10), 10);
    close(fd);
    cr_assert_eq(config_defaults(&c, NULL), 0);
    cr_assert_eq(config_read_file(&c, path, &err), -EINVAL);
    assert_has(err.text, "NUL byte");
    unlink(path);
    config_free(&c);
}

Test(config, sizes_take_k_m_and_g)
{
    struct config c;
    cr_assert_eq(load_file(&c, "max_body = 64k\nbody_memory = 2G\nqueue_tokens = 1000\n", NULL), 0);
    cr_assert_eq(c.max_body, 64 * 1024);
    cr_assert_eq(c.body_memory, 2ull << 30);
    cr_assert_eq(c.queue_tokens, 1000);
    config_free(&c);
}

Test(config, a_size_that_overflows_is_refused)
{
    struct config c;
    struct error err = {0};
    cr_assert_eq(load_file(&c, "body_memory = 99999999999999999G\n", &err), -EINVAL);
    assert_has(err.text, "body_memory must be 4K to 64G");
    config_free(&c);
}

Test(config, numbers_with_a_sign_or_a_tail_are_refused)
{
    static const char *const bad[] = {"port = -1\n", "port = +1\n",  "port = 1x\n", "port = 0x10\n",
                                      "port =\n",    "port = 1 2\n", "port = 1K\n"};
    for (int i = 0; i < COUNT_OF(bad); i++) {
        struct config c;
        cr_assert_eq(load_file(&c, bad[i], NULL), -EINVAL, "%s", bad[i]);
        config_free(&c);
    }
}

Test(config, zero_has_a_word_where_it_means_something)
{
    struct config c;
    cr_assert_eq(load_file(&c, "threads = auto\ntimeout_ms = none\nport = any\nwatchdog_ms = off\n", NULL),
                 0);
    cr_assert_eq(c.threads, 0);
    cr_assert_eq(c.timeout_ms, 0);
    cr_assert_eq(c.port, 0);
    cr_assert_eq(c.watchdog_ms, 0);
    config_free(&c);
}

Test(config, a_context_has_room_for_a_token_of_prompt_and_one_of_text)
{
    struct config c;
    struct error err = {0};
    cr_assert_eq(load_file(&c, "n_ctx = 1\n", &err), -EINVAL);
    cr_assert_not_null(strstr(err.text, "must be auto or 2 to 1048576 (got \"1\")"), "%s", err.text);
    config_free(&c);
    cr_assert_eq(load_file(&c, "n_ctx = 2\n", NULL), 0);
    cr_assert_eq(c.n_ctx, 2);
    config_free(&c);
    cr_assert_eq(load_file(&c, "n_ctx = 0\n", NULL), 0, "auto");
    cr_assert_eq(c.n_ctx, 0);
    config_free(&c);
}

Test(config, a_gpu_is_named_by_its_number_and_auto_is_none_of_them)
{
    struct config c;
    cr_assert_eq(load_file(&c, "cuda_device = auto\n", NULL), 0);
    cr_assert_eq(c.cuda_device, 0);
    config_free(&c);
    for (int i = 0; i < 16; i++) {
        char text[64];
        snprintf(text, sizeof text, "cuda_device = %d\n", i);
        cr_assert_eq(load_file(&c, text, NULL), 0, "%s", text);
        cr_assert_eq(c.cuda_device, 1 + i);
        config_free(&c);
    }
    struct error err = {0};
    cr_assert_eq(load_file(&c, "cuda_device = 16\n", &err), -EINVAL);
    cr_assert_not_null(strstr(err.text, "must be auto or 0 to 15 (got \"16\")"), "%s", err.text);
    config_free(&c);
}

Test(config, the_driver_is_told_where_to_keep_kernels_unless_nothing_is_said)
{
    struct config c;
    setenv("CUDA_CACHE_PATH", "/var/cache/unit", 1);
    cr_assert_eq(load_file(&c, "", NULL), 0);
    runtime_prepare(&c);
    cr_assert_str_eq(getenv("CUDA_CACHE_PATH"), "/var/cache/unit");
    config_free(&c);
    cr_assert_eq(load_file(&c, "cuda_cache = /srv/kernels\n", NULL), 0);
    runtime_prepare(&c);
    cr_assert_str_eq(getenv("CUDA_CACHE_PATH"), "/srv/kernels");
    config_free(&c);
}

Test(config, threads_are_bounded_by_what_a_team_may_have)
{
    struct config c;
    char text[64];
    snprintf(text, sizeof text, "threads = %d\n", TEAM_MAX);
    cr_assert_eq(load_file(&c, text, NULL), 0);
    config_free(&c);
    snprintf(text, sizeof text, "threads = %d\n", TEAM_MAX + 1);
    cr_assert_eq(load_file(&c, text, NULL), -EINVAL, "%s", text);
    config_free(&c);
}

Test(config, the_environment_wins_over_the_file_and_flags_over_both)
{
    const char *path = file_with("port = 1\nslots = 2\nqueue_limit = 3\n");
    char *argv[] = {"--config", (char *)path, "--queue-limit", "30"};
    char *env[] = {"PATH=/bin", "HEARTH_SLOTS=20", "HEARTH_QUEUE_LIMIT=21", NULL};
    struct config_arguments args = {.argc = 4, .argv = argv, .environ = env};
    struct config c;
    cr_assert_eq(config_load(&c, &args, NULL), 0);
    cr_assert_eq(c.port, 1);
    cr_assert_eq(c.slots, 20);
    cr_assert_eq(c.queue_limit, 30);
    unlink(path);
    config_free(&c);
}

Test(config, a_flag_takes_its_value_after_equals_or_as_the_next_word)
{
    char *argv[] = {"--queue-limit=9", "--drain-timeout-ms", "50"};
    struct config c;
    cr_assert_eq(load_flags(&c, 3, argv, NULL), 0);
    cr_assert_eq(c.queue_limit, 9);
    cr_assert_eq(c.drain_timeout_ms, 50);
    config_free(&c);
}

Test(config, the_later_of_two_equal_flags_wins)
{
    char *argv[] = {"--port=1", "--port=2"};
    struct config c;
    cr_assert_eq(load_flags(&c, 2, argv, NULL), 0);
    cr_assert_eq(c.port, 2);
    config_free(&c);
}

Test(config, a_wrong_flag_value_names_the_flag)
{
    char *argv[] = {"--slots=many"};
    struct config c;
    struct error err = {0};
    cr_assert_eq(load_flags(&c, 1, argv, &err), -EINVAL);
    cr_assert_str_eq(err.text, "--slots must be 1 to 256 (got \"many\")");
    config_free(&c);
}

/* These values would make two lines of --print-config, or be lost when it is read back. */
Test(config, a_value_that_no_line_of_the_file_can_say_is_refused)
{
    static const char *const cases[][2] = {
        {"--host=a\nport = 1", "--host must not contain control characters"},
        {"--host=a\r", "--host must not contain control characters"},
        {"--cors-origins=https://a, b\x7f", "--cors-origins must not contain control characters"},
        {"--model= a.gguf", "--model must not begin or end with white space"},
        {"--model=a.gguf ", "--model must not begin or end with white space"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char *argv[] = {(char *)cases[i][0]};
        struct config c;
        struct error err = {0};
        cr_assert_eq(load_flags(&c, 1, argv, &err), -EINVAL);
        cr_assert_str_eq(err.text, cases[i][1]);
        config_free(&c);
    }
}

Test(config, a_flag_without_its_value_says_so)
{
    char *argv[] = {"--slots"};
    struct config c;
    struct error err = {0};
    cr_assert_eq(load_flags(&c, 1, argv, &err), -EINVAL);
    cr_assert_str_eq(err.text, "--slots needs a value");
    config_free(&c);
}

Test(config, a_mistyped_flag_names_the_nearest)
{
    char *argv[] = {"--quue-limit", "3"};
    struct config c;
    struct error err = {0};
    cr_assert_eq(load_flags(&c, 2, argv, &err), -EINVAL);
    cr_assert_str_eq(err.text, "unknown flag \"--quue-limit\"; did you mean --queue-limit?");
    config_free(&c);
}

Test(config, a_model_without_its_flag_is_told_the_flag)
{
    char *argv[] = {"small.gguf"};
    struct config c;
    struct error err = {0};
    cr_assert_eq(load_flags(&c, 1, argv, &err), -EINVAL);
    cr_assert_str_eq(err.text, "unknown argument \"small.gguf\"; a model is named by --model");
    config_free(&c);
}

Test(config, a_wrong_variable_is_named)
{
    char *env[] = {"HEARTH_KV_TYPE=f32", NULL};
    struct config_arguments args = {.environ = env};
    struct config c;
    struct error err = {0};
    cr_assert_eq(config_load(&c, &args, &err), -EINVAL);
    cr_assert_str_eq(err.text,
                     "environment variable HEARTH_KV_TYPE must be f16, q8_0, bf16 or auto (got \"f32\")");
    config_free(&c);
}

Test(config, a_variable_that_looks_like_a_typo_changes_nothing)
{
    char *env[] = {"HEARTH_QUEUE_LIMT=3", NULL};
    struct config_arguments args = {.environ = env};
    struct config c;
    cr_assert_eq(config_load(&c, &args, NULL), 0);
    cr_assert_eq(c.queue_limit, 256);
    config_free(&c);
}

Test(config, a_foreign_variable_with_our_prefix_is_left_alone)
{
    char *env[] = {"HEARTH_SERVICE_ACCOUNT_NAME=x", NULL};
    struct config_arguments args = {.environ = env};
    struct config c;
    cr_assert_eq(config_load(&c, &args, NULL), 0);
    config_free(&c);
}

Test(config, a_missing_config_file_that_was_asked_for_is_an_error)
{
    char *argv[] = {"--config=/nonexistent/hearthd.conf"};
    struct config c;
    struct error err = {0};
    cr_assert_eq(load_flags(&c, 1, argv, &err), -ENOENT);
    assert_has(err.text, "/nonexistent/hearthd.conf");
    config_free(&c);
}

Test(config, a_missing_default_file_is_fine)
{
    struct config_arguments args = {.default_file = "/nonexistent/hearthd.conf"};
    struct config c;
    cr_assert_eq(config_load(&c, &args, NULL), 0);
    config_free(&c);
}

Test(config, a_setuid_process_ignores_config_and_where_a_drivers_code_lies)
{
    const char *path = file_with("port = 1\n");
    char *argv[] = {
        "--config",           (char *)path, "--slots=3", "--libcuda=/evil2.so", "--cuda-cache=/evil2",
        "--cpu-tuning=/evil2"};
    char *env[] = {"HEARTH_LIBCUDA=/evil.so", "HEARTH_CUDA_CACHE=/evil", "HEARTH_CPU_TUNING=/evil", NULL};
    struct config_arguments args = {.argc = 6, .argv = argv, .environ = env, .secure = true};
    struct config c;
    cr_assert_eq(config_load(&c, &args, NULL), 0);
    cr_assert_eq(c.port, 8080);
    cr_assert_eq(c.slots, 3);
    cr_assert_str_eq(c.libcuda, "");
    cr_assert_str_eq(c.cuda_cache, "");
    cr_assert_str_eq(c.cpu_tuning, "auto");
    unlink(path);
    config_free(&c);
}

static char *printed(void (*print)(const struct config *c, FILE *f), const struct config *c)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    print(c, f);
    fclose(f);
    return text;
}

Test(config, print_says_where_each_value_came_from)
{
    const char *path = file_with("# first\nport = 1\n");
    char *argv[] = {"--config", (char *)path, "--queue-limit=30"};
    char *env[] = {"HEARTH_SLOTS=20", NULL};
    struct config_arguments args = {.argc = 3, .argv = argv, .environ = env};
    struct config c;
    char expected[128];
    cr_assert_eq(config_load(&c, &args, NULL), 0);
    char *text = printed(config_print, &c);
    snprintf(expected, sizeof expected, "# %s:2\nport = 1\n", path);
    assert_has(text, expected);
    assert_has(text, "# HEARTH_SLOTS\nslots = 20\n");
    assert_has(text, "# --queue-limit\nqueue_limit = 30\n");
    free(text);
    unlink(path);
    config_free(&c);
}

Test(config, changes_are_named_as_far_as_there_is_room)
{
    struct config a, b;
    char names[64], few[12];
    cr_assert_eq(config_defaults(&a, NULL), 0);
    cr_assert_eq(config_defaults(&b, NULL), 0);
    config_changes(&a, &b, names, sizeof names);
    cr_assert_str_eq(names, "");
    cr_assert_eq(config_set(&b, "port", "81", NULL), 0);
    cr_assert_eq(config_set(&b, "cors_origins", "http://a, http://b", NULL), 0);
    cr_assert_eq(config_set(&b, "n_ctx", "77", NULL), 0);
    config_changes(&a, &b, names, sizeof names);
    cr_assert_str_eq(names, "port, cors_origins, n_ctx");
    config_changes(&a, &b, few, sizeof few);
    cr_assert_str_eq(few, "port, n_ctx");
    config_free(&a);
    config_free(&b);
}

Test(config, what_print_writes_reads_back_to_the_same)
{
    char *argv[] = {"--max-body=5M", "--threads=3", "--executor=eager", "--model=/a b.gguf",
                    "--timeout-ms=7"};
    struct config c, again;
    struct error err = {0};
    cr_assert_eq(load_flags(&c, COUNT_OF(argv), argv, NULL), 0);
    char *text = printed(config_print, &c);
    cr_assert_eq(load_file(&again, text, &err), 0, "%s", err.text);
    for (size_t i = 0; i < config_n_keys; i++) {
        char *a = config_format(&c, &config_keys[i]), *b = config_format(&again, &config_keys[i]);
        cr_assert_str_eq(a, b, "%s", config_keys[i].name);
        free(a);
        free(b);
    }
    free(text);
    config_free(&c);
    config_free(&again);
}

/* Else a daemon started with what was printed would let in a client that says "(set)". */
Test(config, print_masks_keys_with_a_line_that_reads_back_to_none)
{
    char *argv[] = {"--api-keys=alpha, beta", "--slots=3"};
    struct config c, again;
    struct error err = {0};
    cr_assert_eq(load_flags(&c, COUNT_OF(argv), argv, NULL), 0);
    char *text = printed(config_print, &c);
    assert_has(text, "\n# --api-keys\n# api_keys = (set)\n");
    cr_assert(!strstr(text, "alpha") && !strstr(text, "beta"), "%s", text);
    cr_assert_eq(load_file(&again, text, &err), 0, "%s", err.text);
    cr_assert_eq(again.api_keys.n, 0);
    cr_assert_eq(again.slots, 3);
    free(text);
    config_free(&c);
    config_free(&again);
}

static void sample(const struct config *c, FILE *f)
{
    (void)c;
    config_sample(f);
}

static void man(const struct config *c, FILE *f)
{
    (void)c;
    config_man(f);
}

static void flags(const struct config *c, FILE *f)
{
    (void)c;
    config_help(f);
}

Test(config, a_long_list_of_choices_is_shown_to_its_end)
{
    struct config c;
    struct error err = {0};
    char allowed[2 * CONFIG_ALLOWED], *help = printed(flags, NULL);
    cr_assert_eq(load_file(&c, "chat_format = foo\n", &err), -EINVAL);
    assert_has(err.text, "think or none (got \"foo\")");
    config_free(&c);
    assert_has(help, "minimax, think or none;");
    free(help);
    for (size_t i = 0; i < config_n_keys; i++) {
        config_allowed(&config_keys[i], allowed, sizeof allowed);
        cr_assert_lt(strlen(allowed), CONFIG_ALLOWED, "%s", config_keys[i].name);
    }
}

static void expect_file(const char *path, void (*print)(const struct config *, FILE *), const char *advice)
{
    static char kept[128 * 1024];
    FILE *f = fopen(path, "r");
    cr_assert(f, "%s", path);
    kept[fread(kept, 1, sizeof kept - 1, f)] = '\0';
    fclose(f);
    char *text = printed(print, NULL);
    cr_assert_str_eq(kept, text, "write %s again: hearthd check-config %s", path, advice);
    free(text);
}

Test(config, sample_and_manual_page_in_the_source_tree_are_what_the_table_says)
{
    expect_file(HEARTH_SOURCE_DIR "/config/hearthd.conf", sample, "--sample");
    expect_file(HEARTH_SOURCE_DIR "/config/man/hearthd.conf.5", man, "--man");
}

Test(config, the_sample_with_every_key_switched_on_is_the_defaults)
{
    struct config c;
    struct error err = {0};
    char *text = printed(sample, NULL);
    for (char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (line[0] == '#' && line[1] >= 'a' && line[1] <= 'z')
            line[0] = ' ';
    cr_assert_eq(load_file(&c, text, &err), 0, "%s", err.text);
    for (size_t i = 0; i < config_n_keys; i++)
        cr_assert_eq(c.origins[i].kind, CONFIG_FROM_FILE, "%s", config_keys[i].name);
    free(text);
    config_free(&c);
}

static int take_prompt(void *context, int argc, char **argv, struct error *err)
{
    (void)argc;
    (void)err;
    if (argv[0][0] == '-')
        return 0;
    *(const char **)context = argv[0];
    return 1;
}

Test(config, arguments_that_are_no_keys_go_to_the_command)
{
    const char *prompt = NULL;
    char *argv[] = {"--threads", "2", "Once upon", "--slots=1"};
    struct config_arguments args = {.argc = 4, .argv = argv, .option = take_prompt, .context = &prompt};
    struct config c;
    cr_assert_eq(config_load(&c, &args, NULL), 0);
    cr_assert_str_eq(prompt, "Once upon");
    cr_assert_eq(c.threads, 2);
    cr_assert_eq(c.slots, 1);
    config_free(&c);
}

Test(config, a_list_is_split_at_commas_and_trimmed)
{
    static const struct config_key key = {.name = "list", .type = CONFIG_LIST, .initial = ""};
    struct config_list list = {0};
    cr_assert_eq(config_parse((struct config *)&list, &key, " a, b c ,,\nd\n", NULL), 0);
    cr_assert_eq(list.n, 3);
    cr_assert_str_eq(list.items[0], "a");
    cr_assert_str_eq(list.items[1], "b c");
    cr_assert_str_eq(list.items[2], "d");
    config_release((struct config *)&list, &key);
}
