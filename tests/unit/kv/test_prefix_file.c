/* A page as a file: it comes back as it was, or is refused. */
#include "kv/prefix_file.h"
#include "support/temporary_dir.h"

#include <errno.h>
#include <sys/stat.h>

#define N_BYTES 500

struct page {
    struct kv_page_name name;
    uint8_t bytes[N_BYTES];
};

static struct page some_page(void)
{
    struct page p = {.name = {.parent = kv_key_of_salt(9), .salt = 9}};
    for (int i = 0; i < KV_PAGE_TOKENS; i++)
        p.name.ids[i] = i * 7;
    p.name.key = kv_key_next(p.name.parent, p.name.ids);
    for (int i = 0; i < N_BYTES; i++)
        p.bytes[i] = (uint8_t)(i * 31 + 5);
    return p;
}

static int open_dir(const char *path)
{
    int dir = open(path, O_RDONLY | O_DIRECTORY);
    cr_assert_geq(dir, 0);
    return dir;
}

static struct prefix_file file_of(struct page *p)
{
    return (struct prefix_file){.place = 77, .name = &p->name, .bytes = p->bytes, .n_bytes = N_BYTES};
}

static int write_page(int dir, struct page *p)
{
    struct prefix_file f = file_of(p);
    return prefix_file_write(dir, &f, 1, 123456789012345678u, NULL);
}

static int read_page(int dir, const struct page *like, uint8_t *out, struct error *err)
{
    struct prefix_file f = {.place = 77, .name = &like->name, .bytes = out, .n_bytes = N_BYTES};
    return prefix_file_read(dir, &f, err);
}

Test(prefix_file, a_page_comes_back_as_it_was_from_a_private_file)
{
    char *path = temporary_dir(), name[PREFIX_FILE_NAME];
    int dir = open_dir(path);
    struct page p = some_page();
    uint8_t out[N_BYTES];
    struct stat st;
    cr_assert_eq(write_page(dir, &p), 0);
    cr_assert_eq(read_page(dir, &p, out, NULL), 0);
    cr_assert_eq(memcmp(out, p.bytes, N_BYTES), 0);
    prefix_file_name(name, 77, p.name.key);
    cr_assert_eq(fstatat(dir, name, &st, 0), 0);
    cr_assert_eq(st.st_mode & 0777, 0600);
    cr_assert_eq((size_t)st.st_size, prefix_file_size(N_BYTES));
    cr_assert_eq(st.st_mtim.tv_sec, 123456789);
    cr_assert_eq(temporary_dir_count(path), 1);
    temporary_dir_remove(path);
}

Test(prefix_file, a_file_with_any_byte_changed_is_refused)
{
    char *path = temporary_dir(), name[PREFIX_FILE_NAME], byte;
    int dir = open_dir(path);
    struct page p = some_page();
    uint8_t out[N_BYTES];
    cr_assert_eq(write_page(dir, &p), 0);
    prefix_file_name(name, 77, p.name.key);
    int fd = openat(dir, name, O_RDWR);
    for (size_t at = 0; at < prefix_file_size(N_BYTES); at++) {
        struct error err = {0};
        cr_assert_eq(pread(fd, &byte, 1, (off_t)at), 1);
        char other = (char)(byte ^ (1 << at % 8));
        cr_assert_eq(pwrite(fd, &other, 1, (off_t)at), 1);
        cr_assert_eq(read_page(dir, &p, out, &err), -EBADMSG, "byte %zu", at);
        cr_assert(strstr(err.text, name), "%s", err.text);
        cr_assert_eq(pwrite(fd, &byte, 1, (off_t)at), 1);
    }
    cr_assert_eq(read_page(dir, &p, out, NULL), 0);
    close(fd);
    temporary_dir_remove(path);
}

Test(prefix_file, a_file_of_any_other_length_is_refused)
{
    char *path = temporary_dir(), name[PREFIX_FILE_NAME];
    int dir = open_dir(path);
    struct page p = some_page();
    uint8_t out[N_BYTES];
    cr_assert_eq(write_page(dir, &p), 0);
    prefix_file_name(name, 77, p.name.key);
    int fd = openat(dir, name, O_RDWR);
    for (size_t n = prefix_file_size(N_BYTES) + 1; n-- > 0;) {
        cr_assert_eq(ftruncate(fd, (off_t)(n == prefix_file_size(N_BYTES) ? n + 1 : n)), 0);
        cr_assert_eq(read_page(dir, &p, out, NULL), -EBADMSG, "%zu bytes", n);
    }
    close(fd);
    temporary_dir_remove(path);
}

static void expect_miss(int dir, const struct page *like, const char *what)
{
    uint8_t out[N_BYTES];
    struct error err = {0};
    cr_assert_eq(read_page(dir, like, out, &err), -ENOENT, "%s", what);
    cr_assert_eq(err.code, 0, "%s: %s", what, err.text);
}

Test(prefix_file, a_page_of_other_tokens_with_the_same_key_is_a_miss)
{
    char *path = temporary_dir();
    int dir = open_dir(path);
    struct page p = some_page(), other = p;
    cr_assert_eq(write_page(dir, &p), 0);
    other.name.ids[63]++;
    expect_miss(dir, &other, "tokens");
    other = p;
    other.name.salt++;
    expect_miss(dir, &other, "salt");
    other = p;
    other.name.parent.b++;
    expect_miss(dir, &other, "parent");
    other = p;
    other.name.key.a++;
    expect_miss(dir, &other, "no file");
    temporary_dir_remove(path);
}

Test(prefix_file, a_file_under_the_name_of_another_is_refused)
{
    char *path = temporary_dir(), from[PREFIX_FILE_NAME], to[PREFIX_FILE_NAME];
    int dir = open_dir(path);
    struct page p = some_page();
    uint8_t out[N_BYTES];
    cr_assert_eq(write_page(dir, &p), 0);
    prefix_file_name(from, 77, p.name.key);
    prefix_file_name(to, 78, p.name.key);
    cr_assert_eq(renameat(dir, from, dir, to), 0);
    struct prefix_file f = {.place = 78, .name = &p.name, .bytes = out, .n_bytes = N_BYTES};
    cr_assert_eq(prefix_file_read(dir, &f, NULL), -EBADMSG);
    temporary_dir_remove(path);
}

Test(prefix_file, a_link_a_pipe_and_a_directory_are_not_read)
{
    char *path = temporary_dir(), name[PREFIX_FILE_NAME];
    int dir = open_dir(path);
    struct page p = some_page();
    uint8_t out[N_BYTES];
    prefix_file_name(name, 77, p.name.key);
    cr_assert_eq(symlinkat("/dev/zero", dir, name), 0);
    cr_assert_eq(read_page(dir, &p, out, NULL), -EPERM);
    unlinkat(dir, name, 0);
    cr_assert_eq(mkfifoat(dir, name, 0600), 0);
    cr_assert_eq(read_page(dir, &p, out, NULL), -EPERM);
    unlinkat(dir, name, 0);
    cr_assert_eq(mkdirat(dir, name, 0700), 0);
    cr_assert_eq(read_page(dir, &p, out, NULL), -EPERM);
    unlinkat(dir, name, AT_REMOVEDIR);
    temporary_dir_remove(path);
}

Test(prefix_file, names_are_read_back_and_no_others_are)
{
    char name[PREFIX_FILE_NAME];
    uint64_t place = 0;
    struct kv_key key = {0};
    prefix_file_name(name, 0x0123456789abcdefu, (struct kv_key){1, UINT64_MAX});
    cr_assert_str_eq(name, "0123456789abcdef-0000000000000001ffffffffffffffff.kv");
    cr_assert(prefix_file_parse_name(name, &place, &key));
    cr_assert(place == 0x0123456789abcdefu && key.a == 1 && key.b == UINT64_MAX);
    static const char *const others[] = {"",
                                         ".",
                                         "x",
                                         ".tmp-1-2",
                                         "0123456789abcdef-0000000000000001ffffffffffffffff.kv~",
                                         "0123456789abcdef-0000000000000001ffffffffffffffff",
                                         "123456789abcdef-0000000000000001ffffffffffffffff.kv",
                                         "0123456789ABCDEF-0000000000000001ffffffffffffffff.kv"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        cr_assert_not(prefix_file_parse_name(others[i], &place, &key), "%s", others[i]);
}

Test(prefix_file, a_write_that_fails_leaves_nothing)
{
    char *path = temporary_dir();
    int dir = open_dir(path);
    struct page p = some_page();
    struct prefix_file f = file_of(&p);
    struct error err = {0};
    struct rlimit limit = {400, 400};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    cr_assert_lt(prefix_file_write(dir, &f, 1, 1, &err), 0);
    cr_assert(strstr(err.text, ".kv: File too large"), "%s", err.text);
    cr_assert_eq(temporary_dir_count(path), 0);
    temporary_dir_remove(path);
}
