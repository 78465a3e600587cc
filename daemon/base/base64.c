#include "base64.h"

#include <gnutls/gnutls.h>

void buf_put_base64(struct buf *out, const void *bytes, size_t n)
{
    gnutls_datum_t raw = {(unsigned char *)(uintptr_t)bytes, (unsigned)n}, text = {0};
    if (gnutls_base64_encode2(&raw, &text) == 0)
        buf_put(out, (const char *)text.data, text.size);
    else
        out->failed = true;
    gnutls_free(text.data);
}
