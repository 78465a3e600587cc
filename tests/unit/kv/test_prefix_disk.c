/* The directory of a prefix cache: what is found there after a restart, what goes when the budget is full,
 * and what is said of files that are broken or foreign. */
#include "support/failing_alloc.h"
#include "kv/prefix_disk.h"
#include "kv/prefix_file.h"
#include "kv/prefix_index.h"
#include "support/temporary_dir.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct kv_layout layout = {.n_layers = 1, .n_kv_heads = 1, .head_dim = 2, .type = KV_F16};
enum { N_BYTES = 512, SIZE = sizeof(struct prefix_file_header) + N_BYTES };

static char words[8][400];
static atomic_uint n_words;

static void keep_words(void *context, const char *text)
{
    (void)context;
    snprintf(words[atomic_fetch_add(&n_words, 1) % 8], sizeof words[0], "%s", text);
}

static struct prefix_disk_config config(const char *dir, uint64_t budget)
{
    return (struct prefix_disk_config){
        .dir = dir, .budget = budget, .model = 1, .order = "a", .kv = layout, .report = keep_words};
}

static struct prefix_disk *disk_open(const char *dir, uint32_t n_pages)
{
    struct prefix_disk *d = NULL;
    struct error err = {0};
    struct prefix_disk_config c = config(dir, (uint64_t)n_pages * SIZE);
    cr_assert_eq(prefix_disk_open(&d, &c, &err), 0, "%s", err.text);
    return d;
}

/* Page `index` of chain `chain`: its name, and bytes that tell it from others. */
static struct kv_page_name name_of(int chain, int index)
{
    struct kv_page_name n = {.key = kv_key_of_salt((uint64_t)chain), .salt = (uint64_t)chain};
    for (int i = 0; i <= index; i++) {
        n.parent = n.key;
        n.ids[0] = i;
        n.key = kv_key_next(n.parent, n.ids);
    }
    return n;
}

static int do_job(struct prefix_disk *d, bool write, struct kv_page_name name, uint8_t *bytes)
{
    struct prefix_job job = {.write = write, .name = name, .bytes = bytes};
    prefix_disk_submit(d, &job);
    while (!prefix_disk_next(d))
        sched_yield();
    return job.rc;
}

static int put(struct prefix_disk *d, int chain, int index)
{
    uint8_t bytes[N_BYTES];
    memset(bytes, chain * 16 + index, sizeof bytes);
    return do_job(d, true, name_of(chain, index), bytes);
}

static int get(struct prefix_disk *d, int chain, int index)
{
    uint8_t bytes[N_BYTES] = {0};
    int rc = do_job(d, false, name_of(chain, index), bytes);
    for (int i = 0; rc == 0 && i < N_BYTES; i++)
        cr_assert_eq(bytes[i], chain * 16 + index);
    return rc;
}

static bool has(struct prefix_disk *d, int chain, int index)
{
    return prefix_disk_has(d, name_of(chain, index).key);
}

static struct prefix_disk_stats stats(struct prefix_disk *d)
{
    struct prefix_disk_stats s;
    prefix_disk_stats(d, &s);
    return s;
}

Test(prefix_disk, pages_are_there_after_a_restart)
{
    char *dir = temporary_dir();
    struct prefix_disk *d = disk_open(dir, 10);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(put(d, 1, i), 0);
    cr_assert_eq(put(d, 1, 2), 0); /* again: nothing to do */
    cr_assert_eq(stats(d).spilled, 3);
    prefix_disk_close(d);
    d = disk_open(dir, 10);
    cr_assert_eq(stats(d).pages, 3);
    cr_assert_eq(stats(d).bytes, 3 * SIZE);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(get(d, 1, i), 0);
    cr_assert_eq(stats(d).hits, 3);
    cr_assert_eq(get(d, 1, 3), -ENOENT);
    cr_assert_eq(stats(d).errors, 0);
    prefix_disk_close(d);
    temporary_dir_remove(dir);
}

static void count_moved(void *context)
{
    atomic_fetch_add((atomic_uint *)context, 1);
}

/* A caller that waits for it can tell a slow disk from one that hangs. */
Test(prefix_disk, each_page_time_and_removal_is_a_move)
{
    char *dir = temporary_dir();
    atomic_uint n = 0;
    struct prefix_disk *d = NULL;
    struct prefix_disk_config c = config(dir, 2 * SIZE);
    c.moved = count_moved;
    c.context = &n;
    cr_assert_eq(prefix_disk_open(&d, &c, NULL), 0);
    put(d, 1, 0);
    put(d, 2, 0);
    cr_assert_eq(n, 2);
    put(d, 3, 0);
    cr_assert_eq(n, 4); /* it took the first one's place */
    struct kv_page_name name = name_of(2, 0);
    cr_assert(prefix_disk_touch(d, &name));
    prefix_disk_close(d);
    cr_assert_eq(n, 5);
    temporary_dir_remove(dir);
}

Test(prefix_disk, the_budget_holds_and_the_least_recently_used_goes_first)
{
    char *dir = temporary_dir();
    struct prefix_disk *d = disk_open(dir, 3);
    for (int chain = 1; chain <= 3; chain++)
        cr_assert_eq(put(d, chain, 0), 0);
    struct kv_page_name first = name_of(1, 0);
    cr_assert(prefix_disk_touch(d, &first));
    cr_assert_eq(put(d, 4, 0), 0);
    cr_assert(has(d, 1, 0) && !has(d, 2, 0) && has(d, 3, 0) && has(d, 4, 0));
    cr_assert_eq(get(d, 3, 0), 0);
    cr_assert_eq(put(d, 5, 0), 0);
    cr_assert(!has(d, 1, 0) && has(d, 3, 0) && has(d, 4, 0) && has(d, 5, 0));
    cr_assert_eq(temporary_dir_count(dir), 3);
    cr_assert_eq(stats(d).bytes, 3 * SIZE);
    prefix_disk_close(d);
    temporary_dir_remove(dir);
}

Test(prefix_disk, of_a_chain_the_end_goes_first_after_a_restart_too)
{
    for (int restart = 0; restart < 2; restart++) {
        char *dir = temporary_dir();
        struct prefix_disk *d = disk_open(dir, 6);
        for (int i = 0; i < 6; i++)
            cr_assert_eq(put(d, 1, i), 0);
        struct kv_page_name root = name_of(1, 0);
        cr_assert(prefix_disk_touch(d, &root));
        if (restart) {
            prefix_disk_close(d);
            d = disk_open(dir, 6);
        }
        for (int chain = 2; chain <= 4; chain++)
            cr_assert_eq(put(d, chain, 0), 0);
        for (int i = 0; i < 6; i++)
            cr_assert_eq(has(d, 1, i), i < 3, "page %d, restart %d", i, restart);
        prefix_disk_close(d);
        temporary_dir_remove(dir);
    }
}

Test(prefix_disk, a_smaller_budget_is_met_at_the_start)
{
    char *dir = temporary_dir();
    struct prefix_disk *d = disk_open(dir, 6);
    for (int i = 0; i < 6; i++)
        cr_assert_eq(put(d, 1, i), 0);
    prefix_disk_close(d);
    d = disk_open(dir, 2);
    cr_assert(has(d, 1, 0) && has(d, 1, 1) && !has(d, 1, 2));
    cr_assert_eq(temporary_dir_count(dir), 2);
    prefix_disk_close(d);
    struct prefix_disk_config c = config(dir, SIZE - 1);
    cr_assert_eq(prefix_disk_open(&d, &c, NULL), -EINVAL);
    temporary_dir_remove(dir);
}

static void expect_other(const char *dir, struct prefix_disk_config c, const char *what)
{
    struct prefix_disk *d = NULL;
    cr_assert_eq(prefix_disk_open(&d, &c, NULL), 0);
    cr_assert_not(has(d, 1, 0), "%s", what);
    cr_assert_eq(stats(d).pages, 1, "%s", what); /* counted all the same */
    cr_assert_eq(temporary_dir_count(dir), 1);
    prefix_disk_close(d);
}

Test(prefix_disk, pages_of_another_model_type_shape_or_order_are_not_found)
{
    char *dir = temporary_dir();
    struct prefix_disk *d = disk_open(dir, 10);
    cr_assert_eq(put(d, 1, 0), 0);
    prefix_disk_close(d);
    struct prefix_disk_config c = config(dir, 10 * SIZE);
    c.model = 2;
    expect_other(dir, c, "model");
    c = config(dir, 10 * SIZE);
    c.order = "b";
    expect_other(dir, c, "order");
    c = config(dir, 10 * SIZE);
    c.kv.type = KV_Q8_0;
    expect_other(dir, c, "type");
    c = config(dir, 10 * SIZE);
    c.kv.n_layers = 2;
    expect_other(dir, c, "layers");
    temporary_dir_remove(dir);
}

Test(prefix_disk, a_broken_file_is_named_once_and_removed)
{
    char *dir = temporary_dir(), key[20];
    struct prefix_disk *d = disk_open(dir, 10);
    cr_assert_eq(put(d, 1, 0), 0);
    cr_assert_eq(put(d, 1, 1), 0);
    snprintf(key, sizeof key, "%016" PRIx64, name_of(1, 0).key.a);
    temporary_dir_spoil(dir, name_of(1, 0).key.a);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(get(d, 1, 0), i ? -ENOENT : -EBADMSG);
    cr_assert_eq(get(d, 1, 1), 0);
    cr_assert_eq(atomic_load(&n_words), 1);
    cr_assert(strstr(words[0], key) && strstr(words[0], "checksum"), "%s", words[0]);
    cr_assert_eq(stats(d).errors, 1);
    cr_assert_eq(temporary_dir_count(dir), 1);
    prefix_disk_close(d);
    temporary_dir_remove(dir);
}

Test(prefix_disk, foreign_files_are_named_and_left_alone)
{
    char *dir = temporary_dir();
    int fd = open(dir, O_RDONLY | O_DIRECTORY);
    close(openat(fd, "notes.txt", O_CREAT | O_WRONLY, 0644));
    struct prefix_disk *d = disk_open(dir, 10);
    cr_assert_eq(atomic_load(&n_words), 1);
    cr_assert(strstr(words[0], "notes.txt"), "%s", words[0]);
    cr_assert_eq(stats(d).pages, 0);
    prefix_disk_close(d);
    cr_assert_eq(temporary_dir_count(dir), 1);
    close(fd);
    temporary_dir_remove(dir);
}

Test(prefix_disk, temporary_files_go_at_the_start_unless_their_writer_lives)
{
    char *dir = temporary_dir();
    int fd = open(dir, O_RDONLY | O_DIRECTORY);
    close(openat(fd, ".tmp-1-2", O_CREAT | O_WRONLY, 0600));
    int held = openat(fd, ".tmp-1-3", O_CREAT | O_WRONLY, 0600);
    cr_assert_eq(flock(held, LOCK_EX), 0);
    struct prefix_disk *d = disk_open(dir, 10);
    cr_assert_eq(faccessat(fd, ".tmp-1-2", F_OK, 0), -1);
    cr_assert_eq(faccessat(fd, ".tmp-1-3", F_OK, 0), 0);
    prefix_disk_close(d);
    close(fd);
    temporary_dir_remove(dir);
}

Test(prefix_disk, two_share_a_directory)
{
    char *dir = temporary_dir();
    struct prefix_disk *a = disk_open(dir, 10), *b = disk_open(dir, 10);
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(put(a, 1, i), 0);
        cr_assert_eq(put(b, 1, i), 0); /* over the other's */
    }
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(get(a, 1, i), 0);
        cr_assert_eq(get(b, 1, i), 0);
    }
    temporary_dir_each(dir, temporary_dir_unlink, NULL); /* as the other does when its budget is full */
    cr_assert_eq(get(a, 1, 0), -ENOENT);
    cr_assert_not(has(a, 1, 0));
    cr_assert_eq(stats(a).errors, 0);
    prefix_disk_close(a);
    prefix_disk_close(b);
    temporary_dir_remove(dir);
}

/* Two models of one daemon: pages of both count, and either makes room for the other. */
Test(prefix_disk, of_one_process_all_share_the_budget)
{
    char *dir = temporary_dir();
    struct prefix_dir *shared;
    struct prefix_disk *disks[2];
    struct error err = {0};
    cr_assert_eq(prefix_dir_open(&shared), 0);
    for (int i = 0; i < 2; i++) {
        struct prefix_disk_config c = config(dir, 6 * (uint64_t)SIZE);
        c.shared = shared;
        c.model = 1 + (uint64_t)i;
        cr_assert_eq(prefix_disk_open(&disks[i], &c, &err), 0, "%s", err.text);
    }
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(put(disks[0], 1, i), 0);
        cr_assert_eq(put(disks[1], 1, i), 0);
    }
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(stats(disks[i]).pages, 6);
        cr_assert_eq(get(disks[i], 1, 0), 0, "each has its own page under one key");
    }
    cr_assert(!has(disks[0], 1, 1) && !has(disks[0], 1, 2), "the first chain's make room for the second's");
    cr_assert_eq(temporary_dir_count(dir), 6);
    prefix_disk_close(disks[0]);
    cr_assert_eq(put(disks[1], 2, 0), 0);
    cr_assert_eq(stats(disks[1]).pages, 6, "what a closed one has written counts on");
    prefix_disk_close(disks[1]);
    prefix_dir_close(shared);
    temporary_dir_remove(dir);
}

static atomic_bool held;      /* files that are being written stay so */
static atomic_uint n_writing; /* files that are being written, or were, while `held` */

/* In place of the C library's: each new file is locked. */
int flock(int fd, int operation)
{
    if (atomic_load(&held))
        atomic_fetch_add(&n_writing, 1);
    while (atomic_load(&held))
        sched_yield();
    return (int)syscall(SYS_flock, fd, operation);
}

/* A page that fills the budget is being written for one model: the other's is left out, not an error. */
Test(prefix_disk, pages_that_are_being_written_stay_within_the_budget)
{
    char *dir = temporary_dir();
    struct prefix_dir *shared;
    struct prefix_disk *disks[2];
    uint8_t bytes[2][N_BYTES] = {{0}};
    struct prefix_job jobs[2];
    cr_assert_eq(prefix_dir_open(&shared), 0);
    for (int i = 0; i < 2; i++) {
        struct prefix_disk_config c = config(dir, SIZE);
        c.shared = shared;
        c.model = 1 + (uint64_t)i;
        cr_assert_eq(prefix_disk_open(&disks[i], &c, NULL), 0);
        jobs[i] = (struct prefix_job){.write = true, .name = name_of(1, i), .bytes = bytes[i]};
    }
    atomic_store(&held, true);
    prefix_disk_submit(disks[0], &jobs[0]);
    while (atomic_load(&n_writing) == 0)
        sched_yield();
    prefix_disk_submit(disks[1], &jobs[1]);
    bool done = false;
    while (!done && atomic_load(&n_writing) == 1) {
        done = prefix_disk_next(disks[1]) != NULL;
        sched_yield();
    }
    atomic_store(&held, false);
    cr_assert(done, "both are written");
    cr_expect_eq(jobs[1].rc, -ENOSPC);
    while (!prefix_disk_next(disks[0]))
        sched_yield();
    cr_expect_eq(jobs[0].rc, 0);
    cr_expect_eq(temporary_dir_count(dir), 1);
    cr_expect(prefix_disk_writes(disks[1]) && stats(disks[1]).errors == 0 && atomic_load(&n_words) == 0);
    cr_expect_eq(put(disks[1], 1, 1), 0);
    cr_expect_eq(stats(disks[1]).pages, 1);
    for (int i = 0; i < 2; i++)
        prefix_disk_close(disks[i]);
    prefix_dir_close(shared);
    temporary_dir_remove(dir);
}

Test(prefix_disk, a_full_disk_is_said_once_and_writing_pauses)
{
    char *dir = temporary_dir();
    struct prefix_disk *d = disk_open(dir, 10);
    struct rlimit limit = {100, 100};
    cr_assert(prefix_disk_writes(d));
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    cr_assert_eq(put(d, 1, 0), -EFBIG);
    cr_assert_not(prefix_disk_writes(d));
    cr_assert_eq(put(d, 1, 1), -EFBIG);
    cr_assert_eq(atomic_load(&n_words), 1);
    cr_assert_eq(stats(d).errors, 2);
    prefix_disk_close(d);
    temporary_dir_remove(dir);
}

Test(prefix_disk, a_directory_is_made_private_and_must_be)
{
    char *dir = temporary_dir(), inner[64], deeper[80];
    struct prefix_disk *d = NULL;
    struct error err = {0};
    struct stat st;
    snprintf(inner, sizeof inner, "%s/prefix", dir);
    snprintf(deeper, sizeof deeper, "%s/none/prefix", dir);
    d = disk_open(inner, 10);
    prefix_disk_close(d);
    cr_assert_eq(stat(inner, &st), 0);
    cr_assert_eq(st.st_mode & 0777, 0700);
    struct prefix_disk_config c = config(deeper, 10 * SIZE);
    cr_assert_eq(prefix_disk_open(&d, &c, &err), -ENOENT);
    cr_assert(strstr(err.text, deeper), "%s", err.text);
    c.dir = inner;
    for (mode_t bit = 1; bit <= 040; bit <<= 1) {
        err = (struct error){0};
        cr_assert_eq(chmod(inner, 0700 | bit), 0);
        cr_assert_eq(prefix_disk_open(&d, &c, &err), -EPERM, "%o", bit);
        cr_assert(strstr(err.text, inner) && strstr(err.text, "chmod 700"), "%s", err.text);
    }
    cr_assert_eq(chmod(inner, 02700), 0);
    cr_assert_eq(prefix_disk_open(&d, &c, NULL), 0);
    prefix_disk_close(d);
    rmdir(inner);
    temporary_dir_remove(dir);
}

Test(prefix_disk, every_failing_allocation_at_the_start_is_an_error)
{
    char *dir = temporary_dir();
    struct prefix_disk *d = disk_open(dir, 10);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(put(d, 1, i), 0);
    prefix_disk_close(d);
    struct prefix_disk_config c = config(dir, 10 * SIZE);
    for (long n = 0;; n++) {
        d = NULL;
        fail_alloc_after(n);
        int rc = prefix_disk_open(&d, &c, NULL);
        fail_alloc_never();
        if (rc == 0)
            break;
        cr_assert_eq(rc, -ENOMEM, "allocation %ld gave %d", n, rc);
        cr_assert_null(d);
    }
    cr_assert_eq(stats(d).pages, 3);
    prefix_disk_close(d);
    temporary_dir_remove(dir);
}

/* ---- the index ---- */

static struct kv_key key_of(uint64_t i)
{
    return (struct kv_key){i * 0x9E3779B97F4A7C15u, i};
}

Test(prefix_index, holds_what_was_put_and_not_removed)
{
    struct prefix_index x;
    prefix_index_open(&x);
    cr_assert_null(prefix_index_find(&x, 1, key_of(1)));
    for (uint64_t i = 1; i <= 3000; i++)
        cr_assert_eq(prefix_index_put(&x, i % 2, key_of(i), key_of(0), i, i), 0);
    for (uint64_t i = 1; i <= 3000; i += 3)
        prefix_index_remove(&x, i % 2, key_of(i));
    for (uint64_t i = 1; i <= 3000; i++) {
        const struct prefix_entry *e = prefix_index_find(&x, i % 2, key_of(i));
        cr_assert_eq(e != NULL, i % 3 != 1);
        cr_assert(!e || e->size == i);
        cr_assert_null(prefix_index_find(&x, 1 - i % 2, key_of(i)));
    }
    cr_assert_eq(x.n, 2000);
    for (uint64_t last = 0; x.n > 0;) {
        const struct prefix_entry *e = prefix_index_oldest(&x);
        cr_assert_gt(e->stamp_ns, last);
        last = e->stamp_ns;
        prefix_index_remove(&x, e->place, e->key);
    }
    cr_assert_eq(x.bytes, 0);
    cr_assert_null(prefix_index_oldest(&x));
    prefix_index_close(&x);
}

Test(prefix_index, every_touched_entry_is_stale_once)
{
    struct prefix_index x;
    prefix_index_open(&x);
    for (uint64_t i = 1; i <= 10; i++)
        cr_assert_eq(prefix_index_put(&x, 1, key_of(i), key_of(i - 1), 1, 100 - i), 0);
    for (uint64_t i = 1; i <= 10; i++)
        for (int twice = 0; twice < 2; twice++)
            cr_assert_neq(prefix_index_touch(&x, 1, key_of(i), key_of(i - 1), 1000), 0);
    prefix_index_remove(&x, 1, key_of(4));
    unsigned n = 0;
    while (prefix_index_stale(&x))
        n++;
    cr_assert_eq(n, 9);
    cr_assert_eq(prefix_index_oldest(&x)->key.b, 10);
    cr_assert_eq(prefix_index_touch(&x, 1, key_of(4), key_of(3), 1000), 0);
    prefix_index_close(&x);
}

Test(prefix_index, a_failed_allocation_leaves_it_as_it_was)
{
    struct prefix_index x;
    prefix_index_open(&x);
    for (long n = 0; n < 2; n++) {
        fail_alloc_after(n);
        int rc = prefix_index_put(&x, 1, key_of(1), key_of(0), 1, 1);
        fail_alloc_never();
        cr_assert_eq(rc, -ENOMEM);
        cr_assert_eq(x.n, 0);
    }
    cr_assert_eq(prefix_index_put(&x, 1, key_of(1), key_of(0), 1, 1), 0);
    prefix_index_close(&x);
}
