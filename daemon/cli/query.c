#include "query.h"
#include "http_get.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ask_take_url(void *context, int argc, char **argv, struct error *err)
{
    const char **url = context;

    (void)argc;
    if (argv[0][0] == '-')
        return 0;
    if (*url)
        return error_set(err, -EINVAL, "only one URL is allowed");
    *url = argv[0];
    return 1;
}

/* Finds where the configured daemon listens; the socket first, since its path needs no guess. */
static void configured_url(const struct config *c, char *out, size_t room)
{
    const char *host = strcmp(c->host, "0.0.0.0") == 0 ? "127.0.0.1"
                       : strcmp(c->host, "::") == 0    ? "::1"
                                                       : c->host;
    bool v6 = strchr(host, ':') != NULL;

    if (c->unix_socket[0])
        snprintf(out, room, "unix:%s", c->unix_socket);
    else
        snprintf(out, room, "http://%s%s%s:%u", v6 ? "[" : "", host, v6 ? "]" : "", c->port);
}

/* The first key of a file that this user can read. */
static bool read_key(const char *path, char *out, size_t room)
{
    char *line = NULL;
    size_t n = 0;
    bool found = false;
    FILE *f = path[0] ? fopen(path, "re") : NULL;

    while (f && !found && getline(&line, &n, f) >= 0) {
        char *start = line + strspn(line, " \t");
        start[strcspn(start, " \t\r\n")] = '\0';
        found = *start && *start != '#';
        if (found)
            snprintf(out, room, "%s", start);
    }
    free(line);
    if (f)
        fclose(f);
    return found;
}

static const char *choose_key(const struct config *c, bool here, char *room, size_t size)
{
    const char *given = getenv("HEARTHD_CLIENT_KEY");

    if (given && *given)
        return given;
    if (!here)
        return NULL;
    if (read_key(c->admin_key_file, room, size) || read_key(c->api_keys_file, room, size))
        return room;
    return c->api_keys.n ? c->api_keys.items[0] : NULL;
}

int ask_daemon(const struct config *c, const char *url, const char *path, json_t **out, struct error *err)
{
    char configured[512], key[1024], *body = NULL;
    json_error_t where;

    if (!url && !c->unix_socket[0] && !c->port)
        return error_set(err, -EINVAL, "port is any: give the port in use (--port), or the daemon's URL");
    configured_url(c, configured, sizeof configured);
    url = url ? url : configured;
    /* Keys in files are this machine's daemons': no other machine may learn them. */
    bool here = strcmp(url, configured) == 0 || http_is_local(url);
    const char *used = choose_key(c, here, key, sizeof key);
    int status = http_get(url, path, used, &body, err);
    if (status < 0)
        return status;
    *out = status == 200 ? json_loads(body, 0, &where) : NULL;
    free(body);
    if (status == 401)
        return error_set(err, -EPROTO, "%s%s: %s (HEARTHD_CLIENT_KEY=...)", url, path,
                         used ? "the daemon does not know this key" : "a key is needed");
    if (status != 200)
        return error_set(err, -EPROTO, "%s%s: status %d", url, path, status);
    return *out ? 0 : error_set(err, -EPROTO, "%s%s: the reply is not JSON: %s", url, path, where.text);
}

const json_t *ask_member(const json_t *answer, const char *path)
{
    char name[64];

    for (const char *dot; answer && (dot = strchr(path, '.')); path = dot + 1) {
        snprintf(name, sizeof name, "%.*s", (int)(dot - path), path);
        answer = json_object_get(answer, name);
    }
    return json_object_get(answer, path);
}

double ask_number(const json_t *answer, const char *path)
{
    return json_number_value(ask_member(answer, path));
}

const char *ask_text(const json_t *answer, const char *path)
{
    const char *value = json_string_value(ask_member(answer, path));

    return value ? value : "";
}
