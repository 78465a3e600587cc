/* base64.h - base64 with padding (RFC 4648, section 4), by GnuTLS. Thread: any. */
#pragma once
#include "buf.h"

/* Appends the n bytes in base64. Running out of memory is remembered in `out`. */
void buf_put_base64(struct buf *out, const void *bytes, size_t n);
