/* gguf_private.h - what gguf.c (reading a file) and gguf_value.c (typed access to its values) share. */
#pragma once
#include "gguf.h"

const char *gguf_type_name(uint32_t type); /* "u8", ...; "?" for an unknown one */

/* -EBADMSG, with the file and the key before the words. */
int gguf_fail_value(const struct gguf *g, const struct gguf_value *v, struct error *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
