/* gguf_private.h - declarations shared by gguf.c, which reads a file, gguf_value.c, which reads its values by
 * type, and gguf_parts.c, which joins the parts of a split model. Thread and memory: as in gguf.h; the names
 * of types are static. */
#pragma once
#include "gguf.h"

const char *gguf_type_name(uint32_t type); /* "u8", ...; "?" for an unknown one */

/* Sets err to the file, the key and the message; returns -EBADMSG. */
int gguf_fail_value(const struct gguf *g, const struct gguf_value *v, struct error *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Reads one file, any part of a model; bytes NULL: the file at `path`. */
int gguf_open_one(struct gguf **out, const char *path, const void *bytes, size_t size, struct error *err);
/* Gives g the other parts and their tensors. The array (malloc) and the parts are g's from here on, also on
 * failure. */
int gguf_adopt(struct gguf *g, struct gguf **parts, uint32_t n_parts, struct error *err);
