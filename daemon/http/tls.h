/* tls.h - the certificate of the TLS listener: read at start, read again on SIGHUP. One per process, since
 * libmicrohttpd's certificate callback tells nothing but the session. Thread: loop. */
#pragma once
#include "base/error.h"

/* The accepted versions, in GnuTLS's words: TLS 1.2 and 1.3 (RFC 8996). */
#define TLS_PRIORITIES "NORMAL:-VERS-TLS1.0:-VERS-TLS1.1"

#define TLS_MAX_KEPT 16 /* replaced certificates */

/* Reads PEM files: the certificate with its chain, and the private key; checks that they belong together.
 * Neither name may be empty. On an error what was there before stays in use; it also does when the files hold
 * the same certificate. One that is replaced is kept for an hour at least, for handshakes that began with it.
 * -EBUSY: TLS_MAX_KEPT were replaced within the last hour. */
int tls_load(const char *certificate, const char *key, struct error *err);
/* For MHD_OPTION_HTTPS_CERT_CALLBACK; running connections keep what they began with. */
void *tls_callback(void);
/* "example.org, until 2027-01-31": the certificate in use; "" when none is. */
const char *tls_summary(void);
unsigned tls_n_kept(void); /* replaced ones in memory */
void tls_unload(void);
