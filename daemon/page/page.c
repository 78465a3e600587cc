#include "page.h"

#include <gnutls/crypto.h>
#include <stdio.h>
#include <string.h>

/* The base64 of the SHA-256 of what stands between the tags; "" when they are not there. */
static void hash_between(const char *open, const char *close, char *out, size_t room)
{
    const char *start = strstr(page_html, open), *end = start ? strstr(start, close) : NULL;
    unsigned char digest[32];
    gnutls_datum_t raw = {digest, sizeof digest}, text = {0};
    out[0] = '\0';
    if (!end)
        return;
    start += strlen(open);
    if (gnutls_hash_fast(GNUTLS_DIG_SHA256, start, (size_t)(end - start), digest) < 0 ||
        gnutls_base64_encode2(&raw, &text) < 0)
        return;
    snprintf(out, room, "%.*s", (int)text.size, (const char *)text.data);
    gnutls_free(text.data);
}

const char *page_policy(void)
{
    static char policy[512];
    char style[64], script[64];
    if (policy[0])
        return policy;
    hash_between("<style>", "</style>", style, sizeof style);
    hash_between("<script>", "</script>", script, sizeof script);
    if (!style[0] || !script[0])
        return NULL;
    snprintf(policy, sizeof policy,
             "default-src 'none'; style-src 'sha256-%s'; script-src 'sha256-%s'; connect-src 'self'; "
             "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
             style, script);
    return policy;
}
