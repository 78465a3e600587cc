/* variant_model.h - opens variants of model files, for tests of what a model refuses. */
#pragma once
#include "model/model.h"
#include "variant.h"

static inline int open_edited(struct model **m, const char *base, const struct variant_edit *edits, size_t n,
                              struct error *err)
{
    char path[64];
    variant_write(path, base, edits, n);
    int rc = model_open(m, path, err);
    unlink(path);
    return rc;
}

/* The variant is refused with this code, and the words hold this text. */
static inline void refused(const char *base, int code, const char *words, const struct variant_edit *edits,
                           size_t n)
{
    struct error err = {0};
    struct model *m = NULL;
    int rc = open_edited(&m, base, edits, n, &err);
    cr_assert_eq(rc, code, "%d: %s", rc, err.text);
    cr_assert_null(m);
    cr_assert_not_null(strstr(err.text, words), "\"%s\" does not say \"%s\"", err.text, words);
}

/* The variant opens. */
static inline struct model *edited(const char *base, const struct variant_edit *edits, size_t n)
{
    struct error err = {0};
    struct model *m = NULL;
    int rc = open_edited(&m, base, edits, n, &err);
    cr_assert_eq(rc, 0, "%s", err.text);
    return m;
}
