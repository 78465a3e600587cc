/* tensor_bytes.h - all bytes of a tensor, read as the backends read them. */
#pragma once
#include "gguf/gguf.h"

#include <criterion/criterion.h>
#include <stdlib.h>

/* To free. */
static inline void *tensor_bytes(const struct gguf *g, const struct gguf_tensor *t)
{
    struct error err = {0};
    void *bytes = malloc(t->size + 1);
    cr_assert_not_null(bytes);
    cr_assert_eq(gguf_read(g, t, 0, bytes, t->size, &err), 0, "%s", err.text);
    return bytes;
}
