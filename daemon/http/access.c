#include "access.h"
#include "base/hash.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <gnutls/crypto.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define DIGEST  32
#define MAX_KEY 512
#define NETWORK 8 /* bytes of an IPv6 address, its /64 */
_Static_assert(ACCESS_ADDRESS >= INET6_ADDRSTRLEN, "any address fits");

struct keys {
    uint8_t (*digests)[DIGEST];
    uint32_t n, room;
};

struct proxy { /* an address and how many of its bits count; IPv4 as ::ffff:a.b.c.d */
    struct in6_addr address;
    unsigned bits;
};

struct access {
    const struct config *cfg;
    struct keys users, admins;
    struct proxy *proxies;
    uint64_t seed; /* of client numbers: no client can choose an address that has the number of another */
    char warning[200];
};

/* --- keys --- */

static int add_key(struct keys *keys, const char *key, size_t n, struct error *err)
{
    if (keys->n == keys->room) {
        uint32_t room = keys->room ? 2 * keys->room : 8;
        void *grown = realloc(keys->digests, room * sizeof *keys->digests);
        if (!grown)
            return error_set(err, -ENOMEM, "keys: out of memory");
        keys->digests = grown;
        keys->room = room;
    }
    if (gnutls_hash_fast(GNUTLS_DIG_SHA256, key, n, keys->digests[keys->n]) < 0)
        return error_set(err, -EIO, "keys: SHA-256 is unavailable");
    keys->n++;
    return 0;
}

/* A key travels in a header: visible ASCII only. */
static bool is_key(const char *key, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (key[i] <= ' ' || key[i] > '~')
            return false;
    return n > 0 && n <= MAX_KEY;
}

/* One line, its end included; `n` bytes of it. */
static int read_line(struct keys *keys, const char *line, size_t n, struct error *err)
{
    const char *start = line + strspn(line, " \t"), *end = line + n;
    while (end > start && isspace((unsigned char)end[-1]))
        end--;
    bool comment = *start == '#' && !memchr(line, '\0', n);
    if (end <= start || comment)
        return 0;
    return is_key(start, (size_t)(end - start)) ? add_key(keys, start, (size_t)(end - start), err) : -EINVAL;
}

static int read_lines(struct keys *keys, FILE *f, const char *path, struct error *err)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    int rc = 0, number = 0;
    errno = 0;
    while (rc == 0 && (n = getline(&line, &room, f)) >= 0) {
        number++;
        rc = read_line(keys, line, (size_t)n, err);
    }
    free(line);
    if (rc == -EINVAL)
        return error_set(err, rc, "%s:%d: a key must be 1 to %d visible ASCII characters without blanks",
                         path, number, MAX_KEY);
    if (rc < 0 || (!ferror(f) && errno != ENOMEM))
        return rc;
    return error_set(err, errno ? -errno : -EIO, "%s: %s", path, errno ? strerror(errno) : "cannot be read");
}

/* *open: becomes the key of a file that users besides owner and group can read. */
static int read_file(struct keys *keys, const char *key, const char *path, const char **open,
                     struct error *err)
{
    struct stat st;
    FILE *f = fopen(path, "re");
    if (!f)
        return error_set(err, -errno, "%s %s: %s", key, path, strerror(errno));
    if (fstat(fileno(f), &st) == 0 && (st.st_mode & S_IROTH))
        *open = key;
    uint32_t before = keys->n;
    int rc = read_lines(keys, f, path, err);
    fclose(f);
    if (rc == 0 && keys->n == before)
        return error_set(err, -EINVAL, "%s: contains no key", path);
    return rc;
}

static int read_keys(const struct config *cfg, struct keys *users, struct keys *admins, const char **open,
                     struct error *err)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < cfg->api_keys.n; i++) {
        const char *key = cfg->api_keys.items[i];
        rc = is_key(key, strlen(key))
                 ? add_key(users, key, strlen(key), err)
                 : error_set(err, -EINVAL, "api_keys: key %u is not visible ASCII", i + 1);
    }
    if (rc == 0 && cfg->api_keys_file[0])
        rc = read_file(users, "api_keys_file", cfg->api_keys_file, open, err);
    if (rc == 0 && cfg->admin_key_file[0])
        rc = read_file(admins, "admin_key_file", cfg->admin_key_file, open, err);
    return rc;
}

static void free_keys(struct keys *keys)
{
    free(keys->digests);
    *keys = (struct keys){0};
}

int access_reload(struct access *a, struct error *err)
{
    struct keys users = {0}, admins = {0};
    const char *open = NULL;
    int rc = read_keys(a->cfg, &users, &admins, &open, err);
    if (rc < 0) {
        free_keys(&users);
        free_keys(&admins);
        return rc;
    }
    free_keys(&a->users);
    free_keys(&a->admins);
    a->users = users;
    a->admins = admins;
    a->warning[0] = '\0';
    if (open)
        snprintf(a->warning, sizeof a->warning, "%s is readable by every user of this machine", open);
    else if (a->cfg->api_keys.n)
        snprintf(a->warning, sizeof a->warning,
                 "api_keys is visible in the process list: use api_keys_file in production");
    return 0;
}

/* --- addresses --- */

static bool parse_address(const char *text, size_t n, struct in6_addr *out)
{
    char word[INET6_ADDRSTRLEN];
    struct in_addr four;
    if (n == 0 || n >= sizeof word)
        return false;
    memcpy(word, text, n);
    word[n] = '\0';
    if (inet_pton(AF_INET6, word, out) == 1)
        return true;
    if (inet_pton(AF_INET, word, &four) != 1)
        return false;
    *out = (struct in6_addr){.s6_addr = {[10] = 0xff, [11] = 0xff}};
    memcpy(&out->s6_addr[12], &four, 4);
    return true;
}

static int parse_proxy(const char *text, struct proxy *out, struct error *err)
{
    size_t n = strcspn(text, "/");
    bool four = !memchr(text, ':', n);
    unsigned long most = four ? 32 : 128, bits = most;
    char *end = NULL;
    if (text[n] == '/' && isdigit((unsigned char)text[n + 1]))
        bits = strtoul(text + n + 1, &end, 10);
    if (!parse_address(text, n, &out->address) || bits > most || (text[n] == '/' && (!end || *end)))
        return error_set(err, -EINVAL,
                         "trusted_proxies: %.80s is neither an address nor a network like 10.0.0.0/8", text);
    out->bits = (unsigned)bits + (four ? 96 : 0);
    return 0;
}

static bool is_proxy(const struct access *a, const struct in6_addr *address)
{
    for (uint32_t i = 0; i < a->cfg->trusted_proxies.n; i++) {
        const struct proxy *p = &a->proxies[i];
        unsigned whole = p->bits / 8, rest = p->bits % 8;
        uint8_t differ =
            rest ? (uint8_t)((p->address.s6_addr[whole] ^ address->s6_addr[whole]) >> (8 - rest)) : 0;
        if (!memcmp(&p->address, address, whole) && !differ)
            return true;
    }
    return false;
}

/* The last address of the list that is no proxy of ours: the addresses before it may be forged. */
static void take_forwarded(const struct access *a, const char *list, struct in6_addr *address)
{
    size_t end = strlen(list);
    while (end && is_proxy(a, address)) {
        size_t start = end;
        while (start && list[start - 1] != ',')
            start--;
        size_t from = start + strspn(list + start, " \t"), to = end;
        while (to > from && (list[to - 1] == ' ' || list[to - 1] == '\t'))
            to--;
        if (!parse_address(list + from, to > from ? to - from : 0, address))
            return;
        end = start ? start - 1 : 0;
    }
}

static uint64_t identify(uint64_t seed, const uint8_t *bytes, size_t n)
{
    uint64_t id = hash_bytes(seed, bytes, n);
    return id ? id : 1;
}

static struct in6_addr find_address(const struct access *a, const struct sockaddr *peer,
                                    const char *forwarded_for)
{
    struct in6_addr address = {0}; /* over a Unix socket all are one */
    if (peer && peer->sa_family == AF_INET6) {
        address = ((const struct sockaddr_in6 *)peer)->sin6_addr;
    } else if (peer && peer->sa_family == AF_INET) {
        address.s6_addr[10] = address.s6_addr[11] = 0xff;
        memcpy(&address.s6_addr[12], &((const struct sockaddr_in *)peer)->sin_addr, 4);
    }
    if (forwarded_for && is_proxy(a, &address))
        take_forwarded(a, forwarded_for, &address);
    return address;
}

/* Bytes of the address that tell clients apart. With IPv6 one customer has a whole /64 at least. Over a Unix
 * socket the address is empty, and all of it counts, so that it is no network of TCP clients. */
static size_t client_bytes(const struct in6_addr *address)
{
    bool whole = IN6_IS_ADDR_V4MAPPED(address) || IN6_IS_ADDR_UNSPECIFIED(address);
    return whole ? sizeof address->s6_addr : NETWORK;
}

uint64_t access_client(const struct access *a, const struct sockaddr *peer, const char *forwarded_for)
{
    struct in6_addr address = find_address(a, peer, forwarded_for);
    return identify(a->seed, address.s6_addr, client_bytes(&address));
}

void access_address(const struct access *a, const struct sockaddr *peer, const char *forwarded_for,
                    char out[ACCESS_ADDRESS])
{
    if (!peer || (peer->sa_family != AF_INET && peer->sa_family != AF_INET6)) {
        snprintf(out, ACCESS_ADDRESS, "unix");
        return;
    }
    struct in6_addr address = find_address(a, peer, forwarded_for);
    bool four = IN6_IS_ADDR_V4MAPPED(&address);
    inet_ntop(four ? AF_INET : AF_INET6, address.s6_addr + (four ? 12 : 0), out, ACCESS_ADDRESS);
}

/* --- life --- */

static int read_proxies(struct access *a, struct error *err)
{
    const struct config_list *list = &a->cfg->trusted_proxies;
    a->proxies = calloc(list->n ? list->n : 1, sizeof *a->proxies);
    if (!a->proxies)
        return error_set(err, -ENOMEM, "trusted_proxies: out of memory");
    for (uint32_t i = 0; i < list->n; i++) {
        int rc = parse_proxy(list->items[i], &a->proxies[i], err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* A form that no browser sends would match nothing, and its pages would be refused without a reason.
 */
static int check_names(const struct config *cfg, struct error *err)
{
    for (uint32_t i = 0; i < cfg->cors_origins.n; i++) {
        const char *origin = cfg->cors_origins.items[i], *name = strstr(origin, "://");
        if (strcmp(origin, "*") && strcmp(origin, "null") &&
            (!name || name == origin || !name[3] || strchr(name + 3, '/')))
            return error_set(err, -EINVAL,
                             "cors_origins: %.80s is not an origin like https://chat.example.org "
                             "(scheme and name, no path)",
                             origin);
    }
    for (uint32_t i = 0; i < cfg->allowed_hosts.n; i++) {
        const char *host = cfg->allowed_hosts.items[i];
        struct in6_addr address; /* allowed anyway */
        if (strpbrk(host, "/:") && !parse_address(host, strlen(host), &address))
            return error_set(
                err, -EINVAL,
                "allowed_hosts: %.80s is not a name like chat.example.org (no scheme, port or path)", host);
    }
    return 0;
}

int access_open(struct access **out, const struct config *cfg, struct error *err)
{
    struct access *a = calloc(1, sizeof *a);
    if (!a)
        return error_set(err, -ENOMEM, "access: out of memory");
    a->cfg = cfg;
    a->seed = hash_seed();
    int rc = check_names(cfg, err);
    if (rc == 0)
        rc = read_proxies(a, err);
    if (rc == 0)
        rc = access_reload(a, err);
    if (rc < 0) {
        access_close(a);
        return rc;
    }
    *out = a;
    return 0;
}

void access_close(struct access *a)
{
    if (!a)
        return;
    free_keys(&a->users);
    free_keys(&a->admins);
    free(a->proxies);
    free(a);
}

bool access_needs_key(const struct access *a)
{
    return a->users.n > 0;
}

uint32_t access_n_keys(const struct access *a)
{
    return a->users.n;
}

const char *access_warning(const struct access *a)
{
    return a->warning;
}

/* --- a request --- */

static const char *given_key(const char *authorization, const char *x_api_key)
{
    static const char scheme[] = "Bearer ";
    if (authorization && !strncasecmp(authorization, scheme, sizeof scheme - 1))
        return authorization + sizeof scheme - 1 + strspn(authorization + sizeof scheme - 1, " ");
    return x_api_key;
}

/* Looks at every key, whichever matches. */
static bool has_digest(const struct keys *keys, const uint8_t digest[DIGEST])
{
    unsigned found = 0;
    for (uint32_t i = 0; i < keys->n; i++)
        found |= gnutls_memcmp(keys->digests[i], digest, DIGEST) == 0;
    return found != 0;
}

struct access_who access_identify(const struct access *a, const char *authorization, const char *x_api_key)
{
    enum access_role open = access_needs_key(a) ? ACCESS_NONE : ACCESS_USER;
    const char *key = given_key(authorization, x_api_key);
    uint8_t digest[DIGEST];
    if (!key || (!a->users.n && !a->admins.n) ||
        gnutls_hash_fast(GNUTLS_DIG_SHA256, key, strlen(key), digest) < 0)
        return (struct access_who){.role = open};
    bool user = has_digest(&a->users, digest), admin = has_digest(&a->admins, digest);
    if (!user && !admin)
        return (struct access_who){.role = open};
    return (struct access_who){.role = admin ? ACCESS_ADMIN : ACCESS_USER,
                               .owner = access_needs_key(a) ? identify(0, digest, DIGEST) : 0};
}

static bool in_list(const struct config_list *list, const char *word, size_t n)
{
    for (uint32_t i = 0; i < list->n; i++)
        if (!strcmp(list->items[i], "*") ||
            (strlen(list->items[i]) == n && !strncasecmp(list->items[i], word, n)))
            return true;
    return false;
}

/* The reply repeats an origin: only what browsers write in one comes that far. */
static bool is_origin(const char *origin)
{
    for (const char *c = origin; *c; c++)
        if (*c <= ' ' || *c >= 127)
            return false;
    return *origin;
}

/* True if a page that this server has sent is asking, over TLS or not. */
static bool is_own(const char *origin, const char *host)
{
    size_t scheme = !strncasecmp(origin, "https://", 8) ? 8 : !strncasecmp(origin, "http://", 7) ? 7 : 0;
    return scheme && host && !strcasecmp(origin + scheme, host);
}

bool access_allows_origin(const struct access *a, const char *origin, const char *host)
{
    return is_origin(origin) &&
           (is_own(origin, host) || in_list(&a->cfg->cors_origins, origin, strlen(origin)));
}

bool access_allows_host(const struct access *a, const char *host)
{
    struct in6_addr address;
    size_t n = *host == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
    if (n > strlen(host))
        return false;
    if (*host == '[' ? parse_address(host + 1, n - 2, &address) : parse_address(host, n, &address))
        return true;
    return (n == 9 && !strncasecmp(host, "localhost", 9)) || in_list(&a->cfg->allowed_hosts, host, n);
}
