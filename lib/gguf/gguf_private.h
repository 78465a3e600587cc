/* gguf_private.h - declarations shared by gguf.c, which reads a file, and gguf_value.c, which reads its
 * values by type. Thread and memory: as in gguf.h; the names of types are static. */
#pragma once
#include "gguf.h"

const char *gguf_type_name(uint32_t type); /* "u8", ...; "?" for an unknown one */

/* Sets err to the file, the key and the message; returns -EBADMSG. */
int gguf_fail_value(const struct gguf *g, const struct gguf_value *v, struct error *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
