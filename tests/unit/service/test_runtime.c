/* A model made ready: what the file does meanwhile. */
#include "service/models/runtime.h"
#include "gguf/gguf.h"
#include "model/model.h"
#include "support/temporary_dir.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct config cfg;
static char path[200];

static void make(void)
{
    char command[600];
    struct config_arguments none = {.argc = 0, .argv = (char *[]){NULL}, .environ = (char *[]){NULL}};
    cr_assert_eq(config_load(&cfg, &none, NULL), 0);
    cfg.backend = CONFIG_CPU;
    cfg.slots = 1;
    cfg.threads = 1;
    char *dir = temporary_dir();
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    free(dir);
    snprintf(command, sizeof command, "cp " HEARTH_TEST_DATA "/tiny-qwen3-s11-q4_k_m.gguf %s", path);
    cr_assert_eq(system(command), 0);
}

static void drop(void)
{
    unlink(path);
    *strrchr(path, '/') = '\0';
    rmdir(path);
    config_free(&cfg);
}

TestSuite(runtime, .init = make, .fini = drop);

static int read_then_load(struct runtime *r, void (*between)(void), struct error *err)
{
    cr_assert_eq(runtime_read(r, &cfg, path, err), 0, "%s", err->text);
    between();
    return runtime_load(r, &cfg, NULL, err);
}

static void nothing(void) {}

static void rewrite(void)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    struct timespec later[] = {{0, UTIME_OMIT}, {2000000000, 0}};
    cr_assert_eq(pwrite(fd, "GGUF", 4, 0), 4);
    cr_assert_eq(futimens(fd, later), 0);
    close(fd);
}

static void cut(void)
{
    cr_assert_eq(truncate(path, 100000), 0);
}

static void rename_over(void)
{
    char other[220];
    snprintf(other, sizeof other, "%s.new", path);
    FILE *f = fopen(other, "w");
    cr_assert(f && fputs("another", f) >= 0 && fclose(f) == 0);
    cr_assert_eq(rename(other, path), 0);
}

static void expect_refused(void (*between)(void), const char *words)
{
    struct runtime r;
    struct error err = {0};
    cr_assert_eq(read_then_load(&r, between, &err), -EIO);
    cr_assert(strstr(err.text, path) && strstr(err.text, words), "%s", err.text);
    runtime_close(&r);
}

Test(runtime, a_file_that_is_changed_while_it_is_loaded_is_refused)
{
    expect_refused(rewrite, "was changed while it was read");
}

Test(runtime, a_file_that_is_cut_short_while_it_is_loaded_is_refused)
{
    expect_refused(cut, "was cut short while it was read");
}

Test(runtime, a_file_that_another_is_renamed_over_is_loaded_to_its_end)
{
    struct runtime r;
    struct error err = {0};
    cr_assert_eq(read_then_load(&r, rename_over, &err), 0, "%s", err.text);
    runtime_close(&r);
}

Test(runtime, a_loaded_model_has_its_hash_and_no_file)
{
    struct runtime r, again;
    struct error err = {0};
    cr_assert_eq(read_then_load(&r, nothing, &err), 0, "%s", err.text);
    cr_assert_eq(gguf_n_values(model_gguf(r.model)), 0, "metadata is freed");
    cr_assert_eq(read_then_load(&again, nothing, &err), 0);
    cr_assert_eq(r.hash, again.hash);
    runtime_close(&r);
    runtime_close(&again);
}
