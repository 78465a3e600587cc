/* The choice of a model file, and the errors for one that does not exist. */
#include "service/models/model_file.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char directory[64];

static void make_directory(void)
{
    strcpy(directory, "/tmp/hearth-model-file-XXXXXX");
    cr_assert(mkdtemp(directory));
}

static void remove_directory(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", directory);
    cr_assert_eq(system(command), 0);
}

TestSuite(model_file, .init = make_directory, .fini = remove_directory);

static const char *in(const char *name)
{
    static char paths[4][PATH_MAX];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, PATH_MAX, "%s/%s", directory, name);
    return path;
}

static void touch(const char *name)
{
    FILE *f = fopen(in(name), "w");
    cr_assert(f);
    fclose(f);
}

Test(model_file, a_file_that_is_there_is_itself)
{
    char out[PATH_MAX];
    touch("a.gguf");
    cr_assert_eq(model_file_find(out, in("a.gguf"), NULL), 0);
    cr_assert_str_eq(out, in("a.gguf"));
}

Test(model_file, a_typo_names_the_nearest_gguf_and_no_other_file)
{
    char out[PATH_MAX];
    struct error err = {0};
    touch("qwen3-8b-q4_k_m.gguf");
    touch("llama-3.2-1b-q8_0.gguf");
    touch("lama-3.2-1b-q8_0.txt");
    cr_assert_eq(model_file_find(out, in("lama-3.2-1b-q8_0.gguf"), &err), -ENOENT);
    cr_assert(strstr(err.text, "the nearest name is"), "%s", err.text);
    cr_assert(strstr(err.text, in("llama-3.2-1b-q8_0.gguf")), "%s", err.text);
}

Test(model_file, a_directory_without_models_says_so)
{
    char out[PATH_MAX];
    struct error err = {0};
    cr_assert_eq(model_file_find(out, in("a.gguf"), &err), -ENOENT);
    cr_assert(strstr(err.text, "no .gguf in"), "%s", err.text);
}

Test(model_file, a_missing_directory_is_named)
{
    char out[PATH_MAX];
    struct error err = {0};
    cr_assert_eq(model_file_find(out, in("sub/a.gguf"), &err), -ENOENT);
    cr_assert(strstr(err.text, "does not exist"), "%s", err.text);
}

Test(model_file, a_path_below_a_file_is_missing_too)
{
    char out[PATH_MAX];
    touch("a.gguf");
    cr_assert_eq(model_file_find(out, in("a.gguf/b.gguf"), NULL), -ENOENT);
}

Test(model_file, a_directory_names_the_models_in_it)
{
    char out[PATH_MAX], name[64];
    struct error err = {0};
    touch("b.gguf");
    touch("a.gguf");
    touch("notes.txt");
    cr_assert_eq(model_file_find(out, directory, &err), -EISDIR);
    cr_assert(strstr(err.text, "it contains a.gguf, b.gguf (models = DIR"), "%s", err.text);
    for (int i = 10; i < 40; i++) {
        snprintf(name, sizeof name, "c-of-a-longer-name-%d.gguf", i);
        touch(name);
    }
    err = (struct error){0};
    cr_assert_eq(model_file_find(out, directory, &err), -EISDIR);
    cr_assert(strstr(err.text, "a.gguf, b.gguf, c-of-a-longer-name-10.gguf, "), "%s", err.text);
    cr_assert(strstr(err.text, ".gguf and 25 more (models = DIR"), "%s", err.text);
}

Test(model_file, a_name_without_slash_is_looked_up_here)
{
    char out[PATH_MAX];
    struct error err = {0};
    touch("model.gguf");
    cr_assert_eq(chdir(directory), 0);
    cr_assert_eq(model_file_find(out, "modle.gguf", &err), -ENOENT);
    cr_assert(strstr(err.text, "nearest name is model.gguf"), "%s", err.text);
}

Test(model_file, a_path_that_is_too_long_is_refused)
{
    static char path[PATH_MAX + 10];
    char out[PATH_MAX];
    memset(path, 'a', sizeof path - 1);
    cr_assert_eq(model_file_find(out, path, NULL), -ENOENT);
}

/* As a user that permissions hold for: root, which reads everything, becomes the user nobody. */
Test(model_file, a_file_that_may_not_be_read_names_the_user_who_cannot)
{
    char out[PATH_MAX];
    struct error err = {0};
    touch("a.gguf");
    cr_assert_eq(chmod(in("a.gguf"), 0), 0);
    cr_assert_eq(chmod(directory, 0755), 0);
    if (getuid() == 0)
        cr_assert_eq(setresuid(65534, 65534, 0), 0);
    const struct passwd *user = getpwuid(getuid());
    char words[64];
    snprintf(words, sizeof words, "user %s cannot read it", user ? user->pw_name : "");
    cr_assert_eq(model_file_find(out, in("a.gguf"), &err), -EACCES);
    cr_assert(strstr(err.text, user ? words : "cannot read it"), "%s", err.text);
    if (getuid() == 65534)
        cr_assert_eq(setresuid(0, 0, 0), 0); /* for the end of the test */
}
