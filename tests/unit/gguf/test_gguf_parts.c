/* Models in several files, and parts that do not belong together. */
#include "gguf/gguf.h"
#include "support/decoder_run.h"
#include "support/models/split_model.h"
#include "support/temporary_dir.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#define WHOLE HEARTH_TEST_DATA "/tiny-qwen3-s11-q4_k_m.gguf"

/* Opens a model that must be refused, and returns the code. */
static int refused(const char *path, struct error *err)
{
    struct gguf *g = NULL;
    *err = (struct error){0};
    int rc = gguf_open(&g, path, err);
    cr_assert(rc < 0 && !g && err->code == rc, "%s", path);
    return rc;
}

static void assert_says(const struct error *err, const char *words)
{
    cr_assert(strstr(err->text, words), "%s", err->text);
}

Test(gguf_parts, the_first_part_opens_all_with_the_bytes_of_the_whole_file)
{
    char first[512], *dir = temporary_dir();
    struct gguf *g, *whole;
    struct error err = {0};
    split_model(WHOLE, dir, 3, first);
    cr_assert_eq(gguf_open(&g, first, &err), 0, "%s", err.text);
    cr_assert_eq(gguf_open(&whole, WHOLE, NULL), 0);
    cr_assert_gt(gguf_file_size(g), gguf_file_size(whole));
    cr_assert_eq(gguf_n_tensors(g), gguf_n_tensors(whole));
    for (size_t i = 0; i < gguf_n_tensors(whole); i++) {
        const struct gguf_tensor *a = gguf_tensor_at(whole, i), *b = gguf_find_tensor(g, a->name);
        cr_assert(b && b->size == a->size && b->type == a->type, "%s", a->name);
        void *of_a = tensor_bytes(whole, a), *of_b = tensor_bytes(g, b);
        cr_assert_eq(memcmp(of_a, of_b, a->size), 0, "%s", a->name);
        free(of_a);
        free(of_b);
    }
    cr_assert_eq(gguf_check_unchanged(g, NULL), 0);
    gguf_close(g);
    gguf_close(whole);
    temporary_dir_remove(dir);
}

Test(gguf_parts, a_split_model_gives_the_logits_of_the_whole_one)
{
    char first[512], *dir = temporary_dir();
    const int32_t tokens[] = {5, 17, 100, 3};
    split_model(WHOLE, dir, 2, first);
    struct decoder_run_config c = {
        .path = first, .kv_type = KV_F16, .kind = EXECUTOR_PERSISTENT, .n_threads = 2};
    float *split = decoder_run_logits(&c, tokens, 4, 4);
    c.path = WHOLE;
    float *whole = decoder_run_logits(&c, tokens, 4, 4);
    cr_assert_eq(memcmp(split, whole, 4 * 512 * sizeof *whole), 0);
    free(split);
    free(whole);
    temporary_dir_remove(dir);
}

Test(gguf_parts, missing_parts_are_named)
{
    char first[512], path[512], *dir = temporary_dir();
    struct error err;
    split_model(WHOLE, dir, 4, first);
    for (uint32_t no = 1; no < 4; no += 2) {
        split_path(dir, no, 4, path);
        unlink(path);
    }
    cr_assert_eq(refused(first, &err), -ENOENT);
    assert_says(&err,
                "2 of the model's 4 parts missing: model-00002-of-00004.gguf, model-00004-of-00004.gguf");
    temporary_dir_remove(dir);
}

Test(gguf_parts, another_part_than_the_first_is_refused_and_the_first_named)
{
    char first[512], path[512], *dir = temporary_dir();
    struct error err;
    split_model(WHOLE, dir, 3, first);
    split_path(dir, 1, 3, path);
    cr_assert_eq(refused(path, &err), -EINVAL);
    assert_says(&err, "part 2 of a split model; name the first one");
    assert_says(&err, first);
    temporary_dir_remove(dir);
}

Test(gguf_parts, a_part_that_contradicts_the_first_is_refused)
{
    char first[512], path[512], other[512], *dir = temporary_dir();
    struct error err;
    struct gguf *g;
    split_model(WHOLE, dir, 2, first);
    cr_assert_eq(gguf_open(&g, WHOLE, NULL), 0);

    split_write_part(g, dir, 1, 2, 1); /* another number of tensors */
    cr_assert_eq(refused(first, &err), -EBADMSG);
    assert_says(&err, "with 1 tensors in all, expected part 2 of 2 with");

    split_path(dir, 0, 2, path); /* the first part again, under the second one's name */
    split_path(dir, 1, 2, other);
    unlink(other);
    cr_assert_eq(link(path, other), 0);
    cr_assert_eq(refused(first, &err), -EBADMSG);
    assert_says(&err, "says part 1 of 2");

    unlink(other); /* both parts agree on a wrong sum */
    split_write_part(g, dir, 0, 2, 7);
    split_write_part(g, dir, 1, 2, 7);
    cr_assert_eq(refused(first, &err), -EBADMSG);
    assert_says(&err, "split.tensors.count is 7");
    gguf_close(g);
    temporary_dir_remove(dir);
}

Test(gguf_parts, names_and_keys_must_agree)
{
    char first[512], path[512], *dir = temporary_dir();
    struct error err;
    split_model(WHOLE, dir, 2, first);
    (void)snprintf(path, sizeof path, "%s/renamed.gguf", dir);
    cr_assert_eq(rename(first, path), 0);
    cr_assert_eq(refused(path, &err), -EBADMSG);
    assert_says(&err, "its name does not end in -00001-of-00002.gguf");
    (void)snprintf(path, sizeof path, "%s/whole-00001-of-00002.gguf", dir);
    cr_assert_eq(symlink(WHOLE, path), 0);
    cr_assert_eq(refused(path, &err), -EBADMSG);
    assert_says(&err, "named as one of 2 parts, but it has no split.count");
    temporary_dir_remove(dir);
}

Test(gguf_parts, a_part_that_changes_is_noticed)
{
    char first[512], path[512], *dir = temporary_dir();
    struct gguf *g;
    split_model(WHOLE, dir, 2, first);
    cr_assert_eq(gguf_open(&g, first, NULL), 0);
    split_path(dir, 1, 2, path);
    cr_assert_eq(truncate(path, 100), 0);
    cr_assert_eq(gguf_check_unchanged(g, NULL), -EIO);
    gguf_close(g);
    temporary_dir_remove(dir);
}
