/* fuzz_access - any bytes as a key file, and as the headers that it decides on. Lines of the input: the first
 * byte chooses bit 0 whether the rest is a key file; else its lines are Authorization, x-api-key, Host,
 * Origin and X-Forwarded-For in this order, the sixth an entry of trusted_proxies. */
#include "http/access.h"
#include "fuzz_file.h"

#include <arpa/inet.h>
#include <errno.h>

enum { AUTHORIZATION, X_API_KEY, HOST, ORIGIN, FORWARDED, PROXY, N_LINES };

static struct config base(void)
{
    struct config c;
    CHECK(config_defaults(&c, NULL) == 0);
    CHECK(config_set(&c, "api_keys", "sesame", NULL) == 0);
    CHECK(config_set(&c, "allowed_hosts", "llm.example.org", NULL) == 0);
    CHECK(config_set(&c, "cors_origins", "https://page.example.org", NULL) == 0);
    CHECK(config_set(&c, "trusted_proxies", "10.0.0.0/8, ::1, fd00::/13", NULL) == 0);
    return c;
}

/* Every line that is a key lets in, and nothing else was read as one. */
static void check_keys(const struct access *a, const char *text, size_t n)
{
    uint32_t n_keys = 1; /* the configuration's */
    char *copy = strndup(text, n), *rest = copy, *line;
    CHECK(strlen(copy) == n); /* no key file has a NUL */
    while ((line = strsep(&rest, "\n"))) {
        line += strspn(line, " \t\r\v\f");
        for (size_t end = strlen(line); end && strchr(" \t\r\v\f", line[end - 1]); end--)
            line[end - 1] = '\0';
        if (!*line || *line == '#')
            continue;
        n_keys++;
        CHECK(access_identify(a, NULL, line).role == ACCESS_USER);
    }
    CHECK(access_n_keys(a) == n_keys);
    free(copy);
}

static void read_keys(const char *text, size_t n)
{
    struct config c = base();
    struct access *a;
    struct error err = {0};
    struct fuzz_file f = fuzz_file_open(text, n);
    CHECK(config_set(&c, "api_keys_file", f.path, NULL) == 0);
    int rc = access_open(&a, &c, &err);
    if (rc < 0) {
        CHECK(rc == -EINVAL && err.code == rc && !strncmp(err.text, f.path, strlen(f.path)));
    } else {
        check_keys(a, text, n);
        CHECK(access_reload(a, &err) == 0);
        check_keys(a, text, n);
        CHECK(access_identify(a, NULL, NULL).role == ACCESS_NONE);
        access_close(a);
    }
    fuzz_file_close(&f);
    config_free(&c);
}

/* Only a client with the key gets in, with any bytes around it. */
static void check_identity(const struct access *a, const char *authorization, const char *x_api_key)
{
    struct access_who who = access_identify(a, authorization, x_api_key);
    CHECK(who.role == ACCESS_NONE || who.role == ACCESS_USER);
    if (who.role != ACCESS_USER)
        return;
    CHECK(who.owner);
    CHECK((authorization && strstr(authorization, "sesame")) || !strcmp(x_api_key, "sesame"));
}

static void check_host(const struct access *a, const char *host)
{
    bool digits = strspn(host, "0123456789abcdefABCDEF.:[]%") > 0;
    if (access_allows_host(a, host))
        CHECK(digits || !strncasecmp(host, "localhost", 9) || !strncasecmp(host, "llm.example.org", 15));
}

static void check_origin(const struct access *a, const char *origin, const char *host)
{
    const char *authority = strstr(origin, "://");
    if (access_allows_origin(a, origin, host))
        CHECK(!strcasecmp(origin, "https://page.example.org") ||
              (authority && !strcasecmp(authority + 3, host)));
}

/* Behind a proxy that is not trusted the header says nothing. */
static void check_client(const struct access *a, const char *forwarded)
{
    struct sockaddr_in6 peer = {.sin6_family = AF_INET6};
    CHECK(inet_pton(AF_INET6, "2001:db8::7", &peer.sin6_addr) == 1);
    uint64_t alone = access_client(a, (const struct sockaddr *)&peer, NULL);
    CHECK(alone && access_client(a, (const struct sockaddr *)&peer, forwarded) == alone);
    peer.sin6_addr = in6addr_loopback;
    CHECK(access_client(a, (const struct sockaddr *)&peer, forwarded));
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x0a000001)};
    CHECK(access_client(a, (const struct sockaddr *)&four, forwarded));
    CHECK(access_client(a, NULL, forwarded));
}

static void read_proxy(const char *text)
{
    struct config c = base();
    struct access *a = NULL;
    struct error err = {0};
    struct sockaddr_in6 peer = {.sin6_family = AF_INET6};
    if (config_set(&c, "trusted_proxies", text, NULL) == 0 && access_open(&a, &c, &err) == 0)
        CHECK(access_client(a, (const struct sockaddr *)&peer, "192.0.2.1, ::ffff:10.0.0.1"));
    else
        CHECK(!a && (!err.code || err.text[0]));
    access_close(a);
    config_free(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct config c;
    static struct access *a;
    if (!a) {
        c = base();
        CHECK(access_open(&a, &c, NULL) == 0);
    }
    if (!size)
        return 0;
    const char *text = (const char *)data + 1;
    if (data[0] & 1) {
        read_keys(text, size - 1);
        return 0;
    }
    char *copy = strndup(text, size - 1), *rest = copy, *lines[N_LINES];
    for (size_t i = 0; i < N_LINES; i++) {
        char *line = strsep(&rest, "\n");
        lines[i] = line ? line : "";
    }
    check_identity(a, *lines[AUTHORIZATION] ? lines[AUTHORIZATION] : NULL, lines[X_API_KEY]);
    check_host(a, lines[HOST]);
    check_origin(a, lines[ORIGIN], lines[HOST]);
    check_client(a, lines[FORWARDED]);
    read_proxy(lines[PROXY]);
    free(copy);
    return 0;
}
