/* Key files: which lines are keys, and what is refused; and by what address a client is named. */
#include "http/access.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct config cfg;
static struct access *a;
static struct error err;

/* access_open() with a key file of these bytes. */
static int open_keys(const char *bytes, size_t n)
{
    char path[40];
    int fd = memfd_create("keys", MFD_CLOEXEC);
    cr_assert_eq(write(fd, bytes, n), (ssize_t)n);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    cr_assert_eq(config_defaults(&cfg, NULL), 0);
    cr_assert_eq(config_set(&cfg, "api_keys_file", path, NULL), 0);
    int rc = access_open(&a, &cfg, &err);
    close(fd);
    return rc;
}

static void close_keys(void)
{
    access_close(a);
    config_free(&cfg);
}

Test(key_file, one_that_everybody_can_read_is_warned_about_by_its_key, .fini = close_keys)
{
    cr_assert_eq(open_keys("alpha\n", 6), 0);
    cr_assert_str_eq(access_warning(a), "api_keys_file is readable by every user of this machine");
}

static bool is_user(const char *key)
{
    return access_identify(a, NULL, key).role == ACCESS_USER;
}

Test(key_file, blank_lines_comments_and_outer_blanks_are_passed_over, .fini = close_keys)
{
    const char text[] = "# clients\n\n  alpha \r\n\tbeta\n   \ngamma";
    cr_assert_eq(open_keys(text, strlen(text)), 0, "%s", err.text);
    cr_assert_eq(access_n_keys(a), 3);
    cr_assert(is_user("alpha") && is_user("beta") && is_user("gamma") && !is_user("# clients"));
}

Test(key_file, no_part_of_a_long_comment_is_a_key, .fini = close_keys)
{
    char text[2000];
    memset(text, 'x', sizeof text);
    text[0] = '#';
    memcpy(text + sizeof text - 7, "\nalpha\n", 7);
    cr_assert_eq(open_keys(text, sizeof text), 0, "%s", err.text);
    cr_assert_eq(access_n_keys(a), 1);
    cr_assert(is_user("alpha"));
}

Test(key_file, a_nul_byte_ends_no_key, .fini = close_keys)
{
    cr_assert_eq(open_keys("alpha\n# one\nbeta\0gamma\n", 23), -EINVAL);
    cr_assert(strstr(err.text, ":3: a key must be 1 to 512 visible ASCII"), "%s", err.text);
}

Test(key_file, the_longest_key_has_512_characters, .fini = close_keys)
{
    char text[520];
    memset(text, 'k', sizeof text);
    text[512] = '\n';
    cr_assert_eq(open_keys(text, 513), 0, "%s", err.text);
    text[512] = '\0';
    cr_assert(is_user(text));
}

Test(key_file, a_longer_one_is_refused, .fini = close_keys)
{
    char text[520];
    memset(text, 'k', sizeof text);
    text[513] = '\n';
    cr_assert_eq(open_keys(text, 514), -EINVAL);
}

static const char *address_of(const char *text, const char *forwarded_for)
{
    static char out[ACCESS_ADDRESS];
    struct sockaddr_in four = {.sin_family = AF_INET};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    struct sockaddr *peer = (struct sockaddr *)&four;
    if (inet_pton(AF_INET, text, &four.sin_addr) != 1) {
        cr_assert_eq(inet_pton(AF_INET6, text, &six.sin6_addr), 1);
        peer = (struct sockaddr *)&six;
    }
    access_address(a, peer, forwarded_for, out);
    return out;
}

Test(address, is_the_peers_or_what_a_trusted_proxy_says, .fini = close_keys)
{
    char out[ACCESS_ADDRESS];
    cr_assert_eq(config_defaults(&cfg, NULL), 0);
    cr_assert_eq(config_set(&cfg, "trusted_proxies", "10.0.0.0/8, fd00::1", NULL), 0);
    cr_assert_eq(access_open(&a, &cfg, &err), 0, "%s", err.text);
    cr_assert_str_eq(address_of("192.0.2.7", NULL), "192.0.2.7");
    cr_assert_str_eq(address_of("192.0.2.7", "192.0.2.8"), "192.0.2.7", "no proxy of ours");
    cr_assert_str_eq(address_of("::ffff:192.0.2.7", NULL), "192.0.2.7");
    cr_assert_str_eq(address_of("2001:db8:0::7", NULL), "2001:db8::7");
    cr_assert_str_eq(address_of("10.1.2.3", "203.0.113.9, 192.0.2.8, 10.0.0.4"), "192.0.2.8");
    cr_assert_str_eq(address_of("fd00::1", "2001:db8::9"), "2001:db8::9");
    cr_assert_str_eq(address_of("10.1.2.3", "nonsense\n"), "10.1.2.3");
    access_address(a, NULL, "192.0.2.8", out);
    cr_assert_str_eq(out, "unix");
    access_address(a, &(struct sockaddr){.sa_family = AF_UNIX}, "192.0.2.8", out);
    cr_assert_str_eq(out, "unix");
}

static uint64_t client_of(const char *text, const char *forwarded_for)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    struct sockaddr_in four = {.sin_family = AF_INET};
    if (inet_pton(AF_INET, text, &four.sin_addr) == 1)
        return access_client(a, (const struct sockaddr *)&four, forwarded_for);
    cr_assert_eq(inet_pton(AF_INET6, text, &six.sin6_addr), 1);
    return access_client(a, (const struct sockaddr *)&six, forwarded_for);
}

static void open_proxies(const char *list)
{
    cr_assert_eq(config_defaults(&cfg, NULL), 0);
    cr_assert_eq(config_set(&cfg, "trusted_proxies", list, NULL), 0);
    cr_assert_eq(access_open(&a, &cfg, &err), 0, "%s", err.text);
}

Test(client, of_ipv6_is_a_network_of_64_bits, .fini = close_keys)
{
    open_proxies("10.0.0.0/8, fd00::1");
    uint64_t client = client_of("2001:db8:1:2::1", NULL);
    cr_assert_eq(client_of("2001:db8:1:2:ffff:ffff:ffff:ffff", NULL), client);
    cr_assert_neq(client_of("2001:db8:1:3::1", NULL), client);
    cr_assert_eq(client_of("10.1.2.3", "2001:db8:1:2::77"), client, "behind a proxy, too");
    cr_assert_eq(client_of("fd00::1", "192.0.2.8, 2001:db8:1:2:a:b:c:d"), client);
    cr_assert_neq(client_of("fd00::1", "2001:db8:1:3::77"), client);
}

Test(client, of_ipv4_is_an_address_however_it_is_written, .fini = close_keys)
{
    open_proxies("10.0.0.0/8");
    uint64_t client = client_of("192.0.2.7", NULL);
    cr_assert_neq(client_of("192.0.2.8", NULL), client);
    cr_assert_eq(client_of("::ffff:192.0.2.7", NULL), client);
    cr_assert_neq(client_of("::ffff:192.0.2.8", NULL), client);
    cr_assert_eq(client_of("10.1.2.3", "192.0.2.7"), client);
    cr_assert_eq(client_of("10.1.2.3", "::ffff:192.0.2.7"), client);
    cr_assert_eq(client_of("::ffff:10.1.2.3", "::ffff:192.0.2.7"), client,
                 "a mapped proxy is one of the list");
    cr_assert_neq(client_of("10.1.2.3", "::ffff:192.0.2.8"), client);
}

Test(client, over_a_unix_socket_is_none_of_the_network, .fini = close_keys)
{
    open_proxies("10.0.0.0/8");
    uint64_t client = access_client(a, &(struct sockaddr){.sa_family = AF_UNIX}, NULL);
    cr_assert_neq(client_of("::1", NULL), client);
    cr_assert_neq(client_of("127.0.0.1", NULL), client);
}

Test(origin, is_our_own_or_in_the_list_and_always_one_that_a_reply_may_repeat, .fini = close_keys)
{
    cr_assert_eq(config_defaults(&cfg, NULL), 0);
    cr_assert_eq(access_open(&a, &cfg, &err), 0, "%s", err.text);
    cr_assert(access_allows_origin(a, "http://Host:8080", "host:8080"));
    cr_assert(access_allows_origin(a, "https://host", "host"), "a proxy speaks TLS for us");
    cr_assert(!access_allows_origin(a, "http://host", NULL));
    cr_assert(!access_allows_origin(a, "http://host:8080", "host"));
    cr_assert(!access_allows_origin(a, "ht\x85p://host", "host"));
    cr_assert(!access_allows_origin(a, "file://host", "host"));
    cr_assert(!access_allows_origin(a, "http://h\tst", "h\tst"), "over a Unix socket a Host may be anything");
    cr_assert_eq(config_set(&cfg, "cors_origins", "*", NULL), 0);
    cr_assert(access_allows_origin(a, "file://host", "host"));
    cr_assert(access_allows_origin(a, "null", "host"));
    cr_assert(!access_allows_origin(a, "http://\x1b[2J", "host"));
    cr_assert(!access_allows_origin(a, "", "host"));
}

/* access_open() with this list; its error's code. */
static int open_with(const char *key, const char *list)
{
    cr_assert_eq(config_defaults(&cfg, NULL), 0);
    cr_assert_eq(config_set(&cfg, key, list, NULL), 0);
    a = NULL;
    int rc = access_open(&a, &cfg, &err);
    close_keys();
    return rc;
}

Test(names, that_no_browser_says_are_refused)
{
    static const char *const origins[] = {"*", "null", "https://a.example", "http://[::1]:3000",
                                          "chrome-extension://abc, https://b.example:8443"};
    static const char *const no_origins[] = {"a.example", "https://a.example/", "https://", "://a.example",
                                             "https://b.example, a.example"};
    for (size_t i = 0; i < sizeof origins / sizeof *origins; i++)
        cr_assert_eq(open_with("cors_origins", origins[i]), 0, "%s", origins[i]);
    for (size_t i = 0; i < sizeof no_origins / sizeof *no_origins; i++)
        cr_assert_eq(open_with("cors_origins", no_origins[i]), -EINVAL, "%s", no_origins[i]);
    cr_assert_eq(open_with("allowed_hosts", "*"), 0);
    cr_assert_eq(open_with("allowed_hosts", "a.example, b, ::1"), 0);
    cr_assert_eq(open_with("allowed_hosts", "a.example:8080"), -EINVAL);
    cr_assert_eq(open_with("allowed_hosts", "http://a.example"), -EINVAL);
}
