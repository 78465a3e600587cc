/* access.h - who may ask: API keys, the admin key, origins, host names, and who counts as one client.
 *
 * Keys are kept as SHA-256 only and compared in constant time, all of them on every request. A key file has
 * one key a line; blank lines and lines that begin with # are skipped. Thread: loop. */
#pragma once
#include "config/config.h"
#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct access;

/* Reads the key files and the lists of names. -EINVAL, -ENOENT, -EACCES with words that name the file and
 * line, or the key and its value. `cfg` must outlive it. */
int access_open(struct access **out, const struct config *cfg, struct error *err);
void access_close(struct access *a); /* NULL is fine */
/* Reads the key files again; on an error everything stays as it was. */
int access_reload(struct access *a, struct error *err);

/* True if a request without a key is refused. */
bool access_needs_key(const struct access *a);
uint32_t access_n_keys(const struct access *a); /* the admin key not counted */
/* A warning about the keys for the operator, or "". */
const char *access_warning(const struct access *a);

enum access_role { ACCESS_NONE, ACCESS_USER, ACCESS_ADMIN };
struct access_who {
    enum access_role role;
    uint64_t owner; /* of a key: never 0 and the same after a restart; 0: no keys are in use */
};
/* From the request's headers, either may be NULL: `Authorization: Bearer KEY`, `x-api-key: KEY`. */
struct access_who access_identify(const struct access *a, const char *authorization, const char *x_api_key);

/* True if a browser's page from `origin` may ask, `host` being the request's Host (or NULL). */
bool access_allows_origin(const struct access *a, const char *origin, const char *host);
/* True if the Host names this server: an address, localhost, or one of allowed_hosts. Else a page elsewhere
 * may have had its name pointed here (DNS rebinding). */
bool access_allows_host(const struct access *a, const char *host);

/* A number for the client that the address stands for: its own, or behind one of trusted_proxies the last
 * one of `forwarded_for` that is none of them. All IPv6 addresses of one /64 are one client; an IPv4-mapped
 * address is the IPv4 one. Never 0. */
uint64_t access_client(const struct access *a, const struct sockaddr *peer, const char *forwarded_for);
/* The same client's address in words: IPv4 or IPv6, "unix" over a Unix socket. */
#define ACCESS_ADDRESS 46 /* bytes */
void access_address(const struct access *a, const struct sockaddr *peer, const char *forwarded_for,
                    char out[ACCESS_ADDRESS]);
