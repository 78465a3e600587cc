/* Weights read in pieces: the bytes, the sum of them, and what a file that shrinks or changes does to a load.
 */
#include "model/weight_reader.h"
#include "backend/executor.h"
#include "model/graph.h"
#include "model/model.h"
#include "support/models/tensor_bytes.h"
#include "model/weight_use.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define QWEN3 HEARTH_TEST_DATA "/tiny-qwen3-s11-q4_k_m.gguf"
#define ODD   HEARTH_TEST_DATA "/tiny-qwen2-odd-s13-q5_0.gguf" /* rows that fill no group, biases */

static struct model *opened(const char *path)
{
    struct model *m = NULL;
    struct error err = {0};
    cr_assert_eq(model_open(&m, path, &err), 0, "%s", err.text);
    return m;
}

/* Reads every weight, in pieces of `step` groups, the last piece first when `backwards`. */
static uint64_t sum_in_pieces(const struct model *m, uint32_t step, bool backwards)
{
    struct weight_reader r;
    uint64_t sum = 0;
    weight_reader_open(&r, m);
    for (uint32_t w = 0; w < model_n_weights(m); w++) {
        uint32_t n = weight_groups(m, w), pieces = (n + step - 1) / step;
        uint8_t *bytes = malloc(weight_groups_size(m, w, step));
        for (uint32_t i = 0; i < pieces; i++) {
            uint32_t first = (backwards ? pieces - 1 - i : i) * step;
            cr_assert_eq(weight_reader_groups(&r, w, first, first + step < n ? first + step : n, bytes), 0);
        }
        free(bytes);
    }
    cr_assert_eq(weight_reader_close(&r, &sum, NULL), 0);
    return sum;
}

Test(weight_reader, the_bytes_are_the_files)
{
    struct model *m = opened(ODD);
    struct weight_reader r;
    weight_reader_open(&r, m);
    for (uint32_t w = 0; w < model_n_weights(m); w++) {
        uint8_t *whole = tensor_bytes(model_gguf(m), gguf_tensor_at(model_gguf(m), w));
        uint8_t *piece = malloc(weight_groups_size(m, w, 1));
        size_t size = model_weight(m, w)->size, group = weight_groups_size(m, w, 1);
        for (uint32_t g = 0; g < weight_groups(m, w); g++) {
            size_t n = size - g * group < group ? size - g * group : group;
            cr_assert_eq(weight_reader_groups(&r, w, g, g + 1, piece), 0);
            cr_assert_eq(memcmp(piece, whole + g * group, n), 0);
        }
        free(whole);
        free(piece);
    }
    model_close(m);
}

Test(weight_reader, the_sum_depends_on_neither_order_nor_pieces)
{
    struct model *m = opened(ODD);
    uint64_t sum = sum_in_pieces(m, 1, false);
    cr_assert_eq(sum_in_pieces(m, 1, true), sum);
    cr_assert_eq(sum_in_pieces(m, 3, true), sum);
    cr_assert_eq(sum_in_pieces(m, 1000, false), sum);
    model_close(m);
}

static void copy_of(char path[40], const char *from)
{
    char command[600];
    strcpy(path, "/tmp/hearth-weights-XXXXXX");
    close(mkstemp(path));
    snprintf(command, sizeof command, "cp %s %s", from, path);
    cr_assert_eq(system(command), 0);
}

static void flip(const char *path, uint64_t at)
{
    uint8_t byte;
    int fd = open(path, O_RDWR);
    cr_assert(fd >= 0 && pread(fd, &byte, 1, (off_t)at) == 1);
    byte ^= 0x10;
    cr_assert_eq(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
}

/* Also in a large tensor: models that differ in a few weights must not share what was computed from them. */
Test(weight_reader, any_byte_anywhere_changes_the_sum)
{
    char path[40];
    copy_of(path, QWEN3);
    struct model *m = opened(path);
    const struct gguf_tensor *t = gguf_find_tensor(model_gguf(m), "token_embd.weight");
    uint64_t sum = sum_in_pieces(m, 4, false), before = sum;
    cr_assert_gt(t->size, 65536);
    for (size_t at = 0; at < t->size; at += 9973) {
        flip(path, t->offset + at);
        uint64_t now = sum_in_pieces(m, 4, false);
        cr_assert(now != sum && now != before, "byte %zu", at);
        before = now;
    }
    unlink(path);
    model_close(m);
}

/* ---- backends ---- */

static int load(struct executor **x, const struct model *m, bool exact, struct error *err)
{
    struct backend_config cfg = {.n_threads = 3,
                                 .n_slots = 1,
                                 .n_ctx = 64,
                                 .kv_memory = 1 << 22,
                                 .arithmetic = exact ? BACKEND_EXACT : BACKEND_INT8};
    return executor_open(x, exact ? EXECUTOR_EAGER : EXECUTOR_PERSISTENT, &cpu_backend, &cfg, m, err);
}

static uint64_t sum_of_backend(const struct model *m, bool exact)
{
    struct executor *x = NULL;
    struct backend_info info;
    struct error err = {0};
    cr_assert_eq(load(&x, m, exact, &err), 0, "%s", err.text);
    executor_info(x, &info);
    executor_close(x);
    return info.weights_sum;
}

Test(weight_reader, every_arithmetic_reads_the_same_weights_once)
{
    const char *paths[] = {QWEN3, ODD};
    for (size_t i = 0; i < 2; i++) {
        struct model *m = opened(paths[i]);
        uint64_t sum = sum_of_backend(m, false);
        cr_assert_eq(sum_of_backend(m, true), sum);
        model_close(m);
    }
}

static void expect_refused(const struct model *m, bool exact, const char *path, const char *words)
{
    struct executor *x = NULL;
    struct error err = {0};
    cr_assert_eq(load(&x, m, exact, &err), -EIO);
    cr_assert(strstr(err.text, path) && strstr(err.text, words), "%s", err.text);
}

Test(weight_reader, a_file_cut_short_before_its_weights_are_read_fails_the_load)
{
    for (int exact = 0; exact < 2; exact++) {
        char path[40];
        copy_of(path, QWEN3);
        struct model *m = opened(path);
        const struct gguf *g = model_gguf(m);
        const struct gguf_tensor *last = gguf_tensor_at(g, gguf_n_tensors(g) - 1);
        cr_assert_eq(truncate(path, (off_t)last->offset), 0);
        expect_refused(m, exact, path, "cut short");
        cr_assert_eq(truncate(path, 0), 0);
        expect_refused(m, exact, path, "cut short");
        unlink(path);
        model_close(m);
    }
}

/* ---- a file that is cut short while it is read ---- */

struct cutter {
    const char *path;
    off_t size;
    atomic_bool done;
};

static void *cut_and_mend(void *context)
{
    struct cutter *c = context;
    while (!atomic_load(&c->done)) {
        (void)!truncate(c->path, 0);
        (void)!truncate(c->path, c->size);
    }
    return NULL;
}

/* The reader returns an error or bytes for any file: never a signal. */
Test(weight_reader, a_file_cut_short_at_any_moment_ends_no_process, .timeout = 300)
{
    char path[40];
    struct stat st;
    pthread_t thread;
    copy_of(path, QWEN3);
    struct model *m = opened(path);
    cr_assert_eq(stat(path, &st), 0);
    struct cutter c = {.path = path, .size = st.st_size};
    cr_assert_eq(pthread_create(&thread, NULL, cut_and_mend, &c), 0);
    for (int i = 0, failed = 0; i < 2000 && failed < 20; i++) {
        struct executor *x = NULL;
        struct error err = {0};
        int rc = load(&x, m, false, &err);
        cr_assert(rc == 0 || rc == -EIO, "%s", err.text);
        failed += rc < 0;
        executor_close(x);
        struct model *other = NULL;
        if (model_open(&other, path, NULL) == 0)
            model_close(other);
    }
    atomic_store(&c.done, true);
    pthread_join(thread, NULL);
    unlink(path);
    model_close(m);
}
