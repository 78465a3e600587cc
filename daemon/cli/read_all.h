/* read_all.h - all bytes that come from a file descriptor. Thread: any. Memory: *out is the caller's to free.
 */
#pragma once
#include "base/error.h"

#include <stddef.h>

/* -ENOMEM, or the errno of read(); `name` is what the words call the source. */
int read_all(int fd, const char *name, char **out, size_t *len, struct error *err);
