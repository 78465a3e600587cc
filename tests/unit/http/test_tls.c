/* The certificate of HTTPS: which one a handshake is given, and for how long it lives. */
#include "support/temporary_dir.h"
#include "http/tls.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* With this exchange of keys the server needs its key once more when the client's second flight comes. */
#define PRIORITY "NORMAL:-VERS-ALL:+VERS-TLS1.2:-KX-ALL:+RSA"

static char *dir, certificate[300], key[300];
static gnutls_pk_algorithm_t algorithm = GNUTLS_PK_RSA;

static void write_pem(const char *path, const gnutls_datum_t *pem)
{
    FILE *f = fopen(path, "we");
    cr_assert(f && fwrite(pem->data, 1, pem->size, f) == pem->size && fclose(f) == 0);
}

/* A key of its own and a certificate signed with it. */
static void make_files(const char *name)
{
    gnutls_x509_privkey_t k;
    gnutls_x509_crt_t c;
    gnutls_datum_t pem;
    cr_assert_eq(gnutls_x509_privkey_init(&k), 0);
    cr_assert_eq(gnutls_x509_privkey_generate(k, algorithm, algorithm == GNUTLS_PK_RSA ? 2048 : 256, 0), 0);
    cr_assert_eq(gnutls_x509_crt_init(&c), 0);
    gnutls_x509_crt_set_version(c, 3);
    gnutls_x509_crt_set_serial(c, "\1", 1);
    gnutls_x509_crt_set_activation_time(c, time(NULL) - 60);
    gnutls_x509_crt_set_expiration_time(c, time(NULL) + 86400);
    gnutls_x509_crt_set_dn_by_oid(c, GNUTLS_OID_X520_COMMON_NAME, 0, name, (unsigned)strlen(name));
    cr_assert_eq(gnutls_x509_crt_set_key(c, k), 0);
    cr_assert_eq(gnutls_x509_crt_sign2(c, c, k, GNUTLS_DIG_SHA256, 0), 0);
    cr_assert_eq(gnutls_x509_crt_export2(c, GNUTLS_X509_FMT_PEM, &pem), 0);
    write_pem(certificate, &pem);
    gnutls_free(pem.data);
    cr_assert_eq(gnutls_x509_privkey_export2(k, GNUTLS_X509_FMT_PEM, &pem), 0);
    write_pem(key, &pem);
    gnutls_free(pem.data);
    gnutls_x509_crt_deinit(c);
    gnutls_x509_privkey_deinit(k);
}

static void load(const char *name)
{
    make_files(name);
    cr_assert_eq(tls_load(certificate, key, NULL), 0);
    cr_assert_eq(strncmp(tls_summary(), name, strlen(name)), 0, "%s", tls_summary());
}

static void open_dir(void)
{
    dir = temporary_dir();
    snprintf(certificate, sizeof certificate, "%s/cert.pem", dir);
    snprintf(key, sizeof key, "%s/key.pem", dir);
}

static void close_dir(void)
{
    tls_unload();
    temporary_dir_remove(dir);
}

struct end {
    gnutls_session_t session;
    gnutls_certificate_credentials_t credentials;
};

static void open_end(struct end *e, unsigned role, int fd)
{
    cr_assert_eq(gnutls_init(&e->session, role | GNUTLS_NONBLOCK), 0);
    cr_assert_eq(gnutls_certificate_allocate_credentials(&e->credentials), 0);
    cr_assert_eq(gnutls_priority_set_direct(e->session, PRIORITY, NULL), 0);
    cr_assert_eq(gnutls_credentials_set(e->session, GNUTLS_CRD_CERTIFICATE, e->credentials), 0);
    gnutls_transport_set_int(e->session, fd);
}

static void close_end(struct end *e)
{
    gnutls_deinit(e->session);
    gnutls_certificate_free_credentials(e->credentials);
}

Test(tls, a_handshake_ends_with_the_certificate_it_began_with_however_often_that_is_replaced)
{
    gnutls_certificate_retrieve_function2 *choose;
    struct end server, client;
    void *callback = tls_callback();
    int fds[2];
    open_dir();
    load("first");
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    open_end(&server, GNUTLS_SERVER, fds[0]);
    open_end(&client, GNUTLS_CLIENT, fds[1]);
    memcpy(&choose, &callback, sizeof choose);
    gnutls_certificate_set_retrieve_function2(server.credentials, choose);
    cr_assert_eq(gnutls_handshake(client.session), GNUTLS_E_AGAIN);
    cr_assert_eq(gnutls_handshake(server.session), GNUTLS_E_AGAIN);
    load("second");
    load("third");
    load("fourth");
    cr_assert_eq(gnutls_handshake(client.session), GNUTLS_E_AGAIN);
    cr_assert_eq(gnutls_handshake(server.session), 0);
    cr_assert_eq(gnutls_handshake(client.session), 0);
    close_end(&server);
    close_end(&client);
    close(fds[0]);
    close(fds[1]);
    close_dir();
}

Test(tls, a_key_of_another_certificate_is_refused_and_the_one_in_use_stays)
{
    char old[320];
    struct error err = {0};
    open_dir();
    load("first");
    snprintf(old, sizeof old, "%s.old", key);
    cr_assert_eq(rename(key, old), 0);
    make_files("second");
    cr_assert_eq(tls_load(certificate, old, &err), -EINVAL);
    cr_assert_not_null(strstr(err.text, "is not the private key of"), "%s", err.text);
    cr_assert_eq(strncmp(tls_summary(), "first", 5), 0);
    close_dir();
}

Test(tls, a_certificate_that_is_read_again_takes_no_memory)
{
    open_dir();
    load("first");
    for (int i = 0; i < 200; i++)
        cr_assert_eq(tls_load(certificate, key, NULL), 0);
    cr_assert_eq(tls_n_kept(), 0);
    load("second");
    cr_assert_eq(tls_load(certificate, key, NULL), 0);
    cr_assert_eq(tls_n_kept(), 1);
    close_dir();
}

Test(tls, a_storm_of_new_certificates_is_bounded)
{
    struct error err = {0};
    char name[32];
    algorithm = GNUTLS_PK_ECDSA;
    open_dir();
    load("first");
    for (int i = 0; i < TLS_MAX_KEPT; i++) {
        snprintf(name, sizeof name, "number %d", i);
        load(name);
    }
    cr_assert_eq(tls_n_kept(), TLS_MAX_KEPT);
    make_files("one more");
    cr_assert_eq(tls_load(certificate, key, &err), -EBUSY);
    cr_assert_not_null(strstr(err.text, "within the last hour"), "%s", err.text);
    cr_assert_eq(strncmp(tls_summary(), name, strlen(name)), 0, "the last one stays: %s", tls_summary());
    cr_assert_eq(tls_n_kept(), TLS_MAX_KEPT);
    close_dir();
}

static void refused(const char *certificate_path, const char *key_path, const char *words)
{
    struct error err = {0};
    cr_assert_eq(tls_load(certificate_path, key_path, &err), -EINVAL);
    cr_assert_str_eq(err.text, words);
}

Test(tls, a_file_that_cannot_be_read_is_named_with_its_key_and_the_reason)
{
    char words[512];
    open_dir();
    make_files("first");
    refused("/nowhere/c.pem", key, "tls_certificate /nowhere/c.pem: No such file or directory");
    refused(certificate, "/nowhere/k.pem", "tls_key /nowhere/k.pem: No such file or directory");
    snprintf(words, sizeof words, "tls_key %s: Is a directory", dir);
    refused(certificate, dir, words);
    snprintf(words, sizeof words, "%s: No certificate was found", key);
    refused(key, certificate, words);
    close_dir();
}
