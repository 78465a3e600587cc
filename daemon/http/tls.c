#include "tls.h"
#include "base/clock.h"

#include <errno.h>
#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_CHAIN 16
/* A handshake that began with a certificate since replaced may still be under way, for at most
 * header_timeout_ms, which is an hour at most: until then all that were replaced are kept. */
#define KEEP_NS (3601ull * 1000000000)

struct identity {
    gnutls_pcert_st chain[MAX_CHAIN];
    unsigned n_chain;
    gnutls_privkey_t key;
    char summary[200];
    struct identity *before; /* the older identity that this one replaced, or NULL */
    uint64_t replaced_ns;
};

static struct identity *current;

static void identity_close(struct identity *id)
{
    if (!id)
        return;
    for (unsigned i = 0; i < id->n_chain; i++)
        gnutls_pcert_deinit(&id->chain[i]);
    if (id->key)
        gnutls_privkey_deinit(id->key);
    free(id);
}

static void close_all(struct identity **list)
{
    while (*list) {
        struct identity *gone = *list;
        *list = gone->before;
        identity_close(gone);
    }
}

/* The newest was replaced last, so behind one that may go all may. */
static void drop_old(uint64_t now)
{
    struct identity **at;
    if (!current)
        return;
    for (at = &current->before; *at && now - (*at)->replaced_ns <= KEEP_NS; at = &(*at)->before)
        ;
    close_all(at);
}

static int replace(struct identity *id, struct error *err)
{
    uint64_t now = clock_ns();
    drop_old(now);
    if (tls_n_kept() == TLS_MAX_KEPT)
        return error_set(err, -EBUSY,
                         "%d certificates were replaced within the last hour; reload later, or restart",
                         TLS_MAX_KEPT);
    if (current)
        current->replaced_ns = now;
    id->before = current;
    current = id;
    return 0;
}

/* The keys are equal then, too: each is its certificate's. */
static bool is_current(const struct identity *id)
{
    if (!current || current->n_chain != id->n_chain)
        return false;
    for (unsigned i = 0; i < id->n_chain; i++) {
        const gnutls_datum_t *a = &current->chain[i].cert, *b = &id->chain[i].cert;
        if (a->size != b->size || memcmp(a->data, b->data, a->size))
            return false;
    }
    return true;
}

/* GnuTLS ends its words with a full stop. */
static int tls_error(struct error *err, const char *path, int rc)
{
    const char *words = gnutls_strerror(rc);
    size_t n = strlen(words);
    return error_set(err, rc == GNUTLS_E_MEMORY_ERROR ? -ENOMEM : -EINVAL, "%s: %.*s", path,
                     (int)(n && words[n - 1] == '.' ? n - 1 : n), words);
}

/* GnuTLS does not tell why a file cannot be read. */
static int read_pem(gnutls_datum_t *pem, const char *name, const char *path, struct error *err)
{
    errno = 0;
    int rc = gnutls_load_file(path, pem);
    if (rc == GNUTLS_E_FILE_ERROR && errno)
        return error_set(err, -EINVAL, "%s %s: %s", name, path, strerror(errno));
    return rc < 0 ? tls_error(err, path, rc) : 0;
}

static int read_chain(struct identity *id, const char *path, struct error *err)
{
    gnutls_datum_t pem = {0};
    int rc = read_pem(&pem, "tls_certificate", path, err);
    if (rc < 0)
        return rc;
    unsigned room = MAX_CHAIN;
    rc = gnutls_pcert_list_import_x509_raw(id->chain, &room, &pem, GNUTLS_X509_FMT_PEM, 0);
    gnutls_free(pem.data);
    if (rc < 0)
        return tls_error(err, path, rc);
    id->n_chain = room;
    return 0;
}

static int read_key(struct identity *id, const char *path, struct error *err)
{
    gnutls_datum_t pem = {0};
    int rc = read_pem(&pem, "tls_key", path, err);
    if (rc < 0)
        return rc;
    rc = gnutls_privkey_init(&id->key);
    if (rc == 0)
        rc = gnutls_privkey_import_x509_raw(id->key, &pem, GNUTLS_X509_FMT_PEM, NULL, 0);
    gnutls_memset(pem.data, 0, pem.size);
    gnutls_free(pem.data);
    return rc < 0 ? tls_error(err, path, rc) : 0;
}

/* The key's public half must be the certificate's. */
static int check_pair(const struct identity *id, const char *certificate, const char *key, struct error *err)
{
    unsigned char of_key[64], of_certificate[64];
    size_t n_key = sizeof of_key, n_certificate = sizeof of_certificate;
    gnutls_pubkey_t public = NULL;
    int rc = gnutls_pubkey_init(&public);
    if (rc == 0)
        rc = gnutls_pubkey_import_privkey(public, id->key, 0, 0);
    if (rc == 0)
        rc = gnutls_pubkey_get_key_id(public, GNUTLS_KEYID_USE_SHA256, of_key, &n_key);
    if (rc == 0)
        rc = gnutls_pubkey_get_key_id(id->chain[0].pubkey, GNUTLS_KEYID_USE_SHA256, of_certificate,
                                      &n_certificate);
    gnutls_pubkey_deinit(public);
    if (rc < 0)
        return tls_error(err, key, rc);
    if (n_key != n_certificate || memcmp(of_key, of_certificate, n_key))
        return error_set(err, -EINVAL, "%s is not the private key of %s", key, certificate);
    return 0;
}

static void summarise(struct identity *id)
{
    gnutls_x509_crt_t crt;
    char name[120] = "?", date[16] = "?";
    size_t n = sizeof name;
    if (gnutls_pcert_export_x509(&id->chain[0], &crt) < 0)
        return;
    gnutls_x509_crt_get_dn_by_oid(crt, GNUTLS_OID_X520_COMMON_NAME, 0, 0, name, &n);
    time_t end = gnutls_x509_crt_get_expiration_time(crt);
    struct tm tm;
    if (gmtime_r(&end, &tm))
        strftime(date, sizeof date, "%Y-%m-%d", &tm);
    snprintf(id->summary, sizeof id->summary, "%s, %s %s", name, end < time(NULL) ? "EXPIRED" : "until",
             date);
    gnutls_x509_crt_deinit(crt);
}

int tls_load(const char *certificate, const char *key, struct error *err)
{
    if (!certificate[0] || !key[0])
        return error_set(err, -EINVAL, "tls_port needs tls_certificate and tls_key");
    struct identity *id = calloc(1, sizeof *id);
    if (!id)
        return error_set(err, -ENOMEM, "tls: out of memory");
    int rc = read_chain(id, certificate, err);
    if (rc == 0)
        rc = read_key(id, key, err);
    if (rc == 0)
        rc = check_pair(id, certificate, key, err);
    bool same = rc == 0 && is_current(id);
    if (rc == 0)
        summarise(id);
    if (rc == 0 && !same)
        rc = replace(id, err);
    if (same) /* it may have expired since */
        memcpy(current->summary, id->summary, sizeof id->summary);
    if (rc < 0 || same)
        identity_close(id);
    return rc;
}

static int choose(gnutls_session_t session, const gnutls_datum_t *authorities, int n_authorities,
                  const gnutls_pk_algorithm_t *algorithms, int n_algorithms, gnutls_pcert_st **chain,
                  unsigned *n_chain, gnutls_privkey_t *key)
{
    (void)session;
    (void)authorities;
    (void)n_authorities;
    (void)algorithms;
    (void)n_algorithms;
    if (!current)
        return -1;
    *chain = current->chain;
    *n_chain = current->n_chain;
    *key = current->key;
    return 0;
}

void *tls_callback(void)
{
    gnutls_certificate_retrieve_function2 *function = choose;
    void *address;
    memcpy(&address, &function, sizeof address); /* libmicrohttpd takes a pointer to anything */
    return address;
}

const char *tls_summary(void)
{
    return current ? current->summary : "";
}

unsigned tls_n_kept(void)
{
    unsigned n = 0;
    for (const struct identity *id = current ? current->before : NULL; id; id = id->before)
        n++;
    return n;
}

void tls_unload(void)
{
    close_all(&current);
}
