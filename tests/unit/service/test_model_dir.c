/* The models of a directory by name. */
#include "service/models/model_dir.h"
#include "support/temporary_dir.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *dir;
static size_t n_sorted; /* all that qsort_r() was given */

typedef int compare(const void *a, const void *b, void *context);

void qsort_r(void *base, size_t n, size_t size, compare *order, void *context)
{
    void (*sort)(void *, size_t, size_t, compare *, void *) = dlsym(RTLD_NEXT, "qsort_r");
    n_sorted += n;
    sort(base, n, size, order, context);
}

static const char *path_of(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void make(const char *name)
{
    FILE *f = fopen(path_of(name), "w");
    cr_assert(f && fputs("gguf", f) >= 0 && fclose(f) == 0);
}

static void begin(void)
{
    static const char *const names[] = {"b.gguf",
                                        "a.gguf",
                                        ".hidden.gguf",
                                        "notes.txt",
                                        "big-00001-of-00002.gguf",
                                        "big-00002-of-00002.gguf"};
    dir = temporary_dir();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        make(names[i]);
}

static void expect_names(const struct model_dir *d, const char *expected)
{
    char names[200];
    model_dir_names(d, names, sizeof names);
    cr_assert_str_eq(names, expected);
}

Test(model_dir, names_are_those_of_models_and_of_first_parts)
{
    struct model_dir d;
    begin();
    cr_assert_eq(model_dir_open(&d, dir, NULL), 0);
    expect_names(&d, "a, b, big");
    cr_assert_eq(model_dir_first(&d), model_dir_find(&d, "a"));
    cr_assert_geq(model_dir_find(&d, "big"), 0);
    cr_assert_eq(model_dir_find(&d, "b.gguf"), model_dir_find(&d, "b"));
    cr_assert_eq(model_dir_find(&d, "b:latest"), model_dir_find(&d, "b"));
    cr_assert_eq(d.entries[model_dir_find(&d, "b")].bytes, 4);
    model_dir_free(&d);
    temporary_dir_remove(dir);
}

Test(model_dir, what_is_none_is_not_found)
{
    static const char *const none[] = {"",        "c",     "notes", "notes.txt",
                                       ".hidden", "../a",  "./a",   "big-00002-of-00002",
                                       ":latest", ".gguf", "A"};
    struct model_dir d;
    begin();
    cr_assert_eq(model_dir_open(&d, dir, NULL), 0);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        cr_assert_eq(model_dir_find(&d, none[i]), -1, "%s", none[i]);
    char *other = strdup(path_of("out")), link[300];
    cr_assert_eq(mkdir(other, 0700), 0);
    make("out/far.gguf");
    snprintf(link, sizeof link, "%s/x.gguf", other);
    cr_assert_eq(symlink(path_of("a.gguf"), link), 0);
    model_dir_free(&d);
    cr_assert_eq(model_dir_open(&d, other, NULL), 0);
    expect_names(&d, "far");
    model_dir_free(&d);
    free(other);
    temporary_dir_remove(dir);
}

Test(model_dir, numbers_stay_while_files_come_and_go)
{
    struct model_dir d;
    begin();
    cr_assert_eq(model_dir_open(&d, dir, NULL), 0);
    int b = model_dir_find(&d, "b");
    unlink(path_of("b.gguf"));
    make("0.gguf");
    model_dir_read(&d);
    expect_names(&d, "0, a, big");
    cr_assert_eq(model_dir_find(&d, "b"), -1);
    make("b.gguf");
    model_dir_read(&d);
    cr_assert_eq(model_dir_find(&d, "b"), b);
    make("far");
    int far = model_dir_add(&d, path_of("far"));
    cr_assert_eq(model_dir_add(&d, path_of("far")), far);
    cr_assert_eq(model_dir_find(&d, "far"), far);
    model_dir_free(&d);
    temporary_dir_remove(dir);
}

Test(model_dir, more_names_than_have_room_are_counted)
{
    struct model_dir d;
    char names[32];
    begin();
    cr_assert_eq(model_dir_open(&d, dir, NULL), 0);
    model_dir_names(&d, names, 25);
    cr_assert_str_eq(names, "a and 2 more");
    model_dir_free(&d);
    temporary_dir_remove(dir);
}

Test(model_dir, of_two_files_with_one_name_one_is_taken_always_the_same)
{
    struct model_dir d;
    begin();
    make("a-00001-of-00001.gguf");
    cr_assert_eq(model_dir_open(&d, dir, NULL), 0);
    expect_names(&d, "a, b, big");
    int a = model_dir_find(&d, "a");
    cr_assert(strstr(d.entries[a].file, "/a-00001-of-00001.gguf"), "%s", d.entries[a].file);
    model_dir_read(&d);
    cr_assert_eq(model_dir_find(&d, "a"), a);
    unlink(path_of("a-00001-of-00001.gguf"));
    model_dir_read(&d);
    a = model_dir_find(&d, "a");
    cr_assert(strstr(d.entries[a].file, "/a.gguf"), "%s", d.entries[a].file);
    char *other = strdup(path_of("elsewhere"));
    cr_assert_eq(mkdir(other, 0700), 0);
    make("elsewhere/a.gguf");
    free(other);
    int far = model_dir_add(&d, path_of("elsewhere/a.gguf"));
    cr_assert_eq(model_dir_find(&d, "a"), far);
    model_dir_read(&d);
    cr_assert_eq(model_dir_find(&d, "a"), far);
    expect_names(&d, "a, b, big");
    model_dir_free(&d);
    temporary_dir_remove(dir);
}

Test(model_dir, a_name_that_is_no_utf8_is_left_out)
{
    struct model_dir d;
    begin();
    make("\xff\xfe.gguf");
    make("\xc3\xa4.gguf");
    cr_assert_eq(model_dir_open(&d, dir, NULL), 0);
    expect_names(&d, "a, b, big, \xc3\xa4");
    model_dir_free(&d);
    temporary_dir_remove(dir);
}

Test(model_dir, a_directory_that_is_none_is_named)
{
    struct model_dir d;
    struct error err = {0};
    cr_assert_eq(model_dir_open(&d, "/nowhere/at-all", &err), -ENOENT);
    cr_assert(strstr(err.text, "models /nowhere/at-all"), "%s", err.text);
}

#define MANY 3000

static void make_many(void)
{
    char name[32];
    for (int i = 0; i < MANY; i++) {
        snprintf(name, sizeof name, "m%04d.gguf", i * 7 % MANY);
        make(name);
    }
}

Test(model_dir, each_of_thousands_is_found_by_its_name)
{
    struct model_dir d;
    char name[32];
    begin();
    make_many();
    cr_assert_eq(model_dir_open(&d, dir, NULL), 0);
    cr_assert_eq(d.n_present, MANY + 3);
    for (int round = 0; round < 2; round++, model_dir_read(&d)) {
        for (int i = 0; i < MANY; i++) {
            snprintf(name, sizeof name, "m%04d", i);
            int number = model_dir_find(&d, name);
            cr_assert(number >= 0 && !strcmp(d.entries[number].name, name), "%s: %d", name, number);
        }
        cr_assert_eq(d.n, MANY + 3);
    }
    cr_assert_eq(model_dir_find(&d, "m3000"), -1);
    model_dir_free(&d);
    temporary_dir_remove(dir);
}

Test(model_dir, a_scan_ends_at_its_limit_and_then_changes_nothing)
{
    struct model_dir d;
    struct model_dir_scan s;
    begin();
    cr_assert_eq(model_dir_open(&d, dir, NULL), 0);
    make("c.gguf");
    model_dir_scan(&s, d.path, 6);
    cr_assert(!s.whole);
    model_dir_take(&d, &s);
    expect_names(&d, "a, b, big");
    model_dir_scan(&s, d.path, 7);
    cr_assert(s.whole && s.n == 4);
    model_dir_take(&d, &s);
    expect_names(&d, "a, b, big, c");
    model_dir_free(&d);
    temporary_dir_remove(dir);
}

/* Each entry takes calls of the system, also those that turn out to be no models. */
Test(model_dir, a_scan_counts_what_is_no_model)
{
    static const char *const forms[] = {"n%d.txt", "broken%d.gguf"};
    for (int form = 0; form < 2; form++) {
        struct model_dir_scan s;
        char name[32];
        begin();
        for (int i = 0; i < 20; i++) {
            snprintf(name, sizeof name, forms[form], i);
            cr_assert_eq(symlink("/nowhere", path_of(name)), 0);
        }
        model_dir_scan(&s, dir, 25);
        cr_expect_not(s.whole, "%s", forms[form]);
        model_dir_scan_free(&s);
        model_dir_scan(&s, dir, 26);
        cr_expect(s.whole && s.n == 3, "%s: %d", forms[form], s.n);
        model_dir_scan_free(&s);
        temporary_dir_remove(dir);
    }
}

/* Two links to one file are one model, and a link to nothing none. */
Test(model_dir, links_inside_of_the_directory_are_followed)
{
    struct model_dir d;
    begin();
    char *a = strdup(path_of("a.gguf"));
    cr_assert_eq(symlink(a, path_of("x.gguf")), 0);
    cr_assert_eq(symlink(a, path_of("y.gguf")), 0);
    cr_assert_eq(symlink("/nowhere", path_of("z.gguf")), 0);
    cr_assert_eq(model_dir_open(&d, dir, NULL), 0);
    expect_names(&d, "a, b, big");
    cr_assert_eq(d.n, 3);
    model_dir_free(&d);
    free(a);
    temporary_dir_remove(dir);
}

Test(model_dir, one_new_file_is_found_without_reading_the_others)
{
    struct model_dir d;
    begin();
    cr_assert_eq(model_dir_open(&d, dir, NULL), 0);
    make("c.gguf");
    make("d.gguf");
    make("e-00001-of-00002.gguf");
    model_dir_look_for(&d, "c");
    expect_names(&d, "a, b, big, c");
    model_dir_look_for(&d, "d.gguf");
    expect_names(&d, "a, b, big, c, d");
    model_dir_look_for(&d, "../a");
    model_dir_look_for(&d, "e");
    model_dir_look_for(&d, "f");
    model_dir_look_for(&d, "");
    expect_names(&d, "a, b, big, c, d");
    model_dir_free(&d);
    temporary_dir_remove(dir);
}

Test(model_dir, a_change_of_the_directory_is_seen)
{
    struct model_dir d;
    const struct timespec old[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    begin();
    cr_assert_eq(model_dir_open(&d, dir, NULL), 0);
    cr_assert(model_dir_has_changed(&d)); /* just now, so there may be more to come */
    cr_assert_eq(utimensat(AT_FDCWD, dir, old, 0), 0);
    model_dir_read(&d);
    cr_assert(!model_dir_has_changed(&d));
    make("c.gguf");
    cr_assert(model_dir_has_changed(&d));
    model_dir_free(&d);
    temporary_dir_remove(dir);
}

/* With thousands of files a list holds the loop for what has changed, not for what there is. */
Test(model_dir, only_what_is_new_is_sorted)
{
    struct model_dir d;
    char name[32];
    begin();
    make_many();
    cr_assert_eq(model_dir_open(&d, dir, NULL), 0);
    cr_assert_geq(n_sorted, MANY);
    n_sorted = 0;
    model_dir_read(&d);
    unlink(path_of("b.gguf"));
    model_dir_read(&d);
    cr_assert_eq(model_dir_find(&d, "b"), -1);
    cr_assert_eq(n_sorted, 0);
    make("b.gguf");
    make("m1500a.gguf");
    model_dir_look_for(&d, "m1500a");
    model_dir_look_for(&d, "m1500a");
    cr_assert_eq(n_sorted, 2); /* by file and by name */
    model_dir_read(&d);
    cr_assert_eq(n_sorted, 3);
    cr_assert_eq(d.n_present, MANY + 4);
    for (int i = 1; i < d.n_present; i++)
        cr_assert_lt(strcmp(d.entries[d.by_name[i - 1]].name, d.entries[d.by_name[i]].name), 0);
    for (int i = 1; i < d.n; i++)
        cr_assert_lt(strcmp(d.entries[d.by_file[i - 1]].file, d.entries[d.by_file[i]].file), 0);
    snprintf(name, sizeof name, "m%04d", MANY - 1);
    cr_assert_geq(model_dir_find(&d, name), 0);
    model_dir_free(&d);
    temporary_dir_remove(dir);
}

/* In a container the models may be mounted at the root. */
Test(model_dir, the_root_is_a_directory_as_others)
{
    struct model_dir d;
    begin();
    int root = open("/", O_PATH | O_DIRECTORY);
    if ((geteuid() && unshare(CLONE_NEWUSER) < 0) || chroot(dir) < 0) {
        temporary_dir_remove(dir);
        printf("SKIP test_model_dir chroot: %s\n", strerror(errno));
        cr_skip_test("no chroot here");
    }
    cr_assert_eq(model_dir_open(&d, "/", NULL), 0);
    expect_names(&d, "a, b, big");
    cr_assert_str_eq(d.entries[model_dir_find(&d, "a")].file, "/a.gguf");
    model_dir_free(&d);
    cr_assert(fchdir(root) == 0 && chroot(".") == 0);
    close(root);
    temporary_dir_remove(dir);
}
