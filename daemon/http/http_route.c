#include "http_route.h"
#include "base/suggest.h"

#include <stdint.h>
#include <string.h>

/* {id} stands for the rest, which may hold slashes, but not for nothing. */
static bool matches(const char *pattern, const char *path)
{
    size_t n = strcspn(pattern, "{");
    return pattern[n] ? !strncmp(pattern, path, n) && path[n] : !strcmp(pattern, path);
}

const struct route *route_find(const struct route *routes, const char *path, const char *method)
{
    for (; routes->path; routes++)
        if (matches(routes->path, path))
            return routes->on_post && !strcmp(method, "POST") ? routes->on_post : routes;
    return NULL;
}

const char *route_id(const struct route *route, const char *path)
{
    return path + strcspn(route->path, "{");
}

/* Bytes of the folders that two paths have in common, with the slash behind them. */
static size_t common_folders(const char *a, const char *b)
{
    size_t n = 0;
    for (size_t i = 0; a[i] && a[i] == b[i]; i++)
        n = a[i] == '/' ? i + 1 : n;
    return n;
}

/* Only what differs is compared: a long folder does not make two names alike. */
const char *route_nearest(const struct route *routes, const char *path)
{
    const char *best = NULL;
    size_t least = SIZE_MAX;
    for (; routes->path; routes++) {
        size_t n = common_folders(path, routes->path),
               distance = nearest_distance(path + n, routes->path + n);
        const char *rest = routes->path + n;
        if (distance >= least || distance >= strlen(path + n) || !nearest(path + n, &rest, 1))
            continue;
        least = distance;
        best = routes->path;
    }
    return best;
}

const struct route *route_beside(const struct route *routes, const char *path)
{
    size_t n = *path == '/' ? strcspn(path + 1, "/") + 1 : 0;
    if (!path[n] || n < 2)
        return NULL;
    for (; routes->path; routes++)
        if (!strncmp(routes->path, path, n + 1))
            return routes;
    return NULL;
}

const char *route_allow(const struct route *route)
{
    if (route->remove)
        return "DELETE, OPTIONS";
    if (route->both || route->on_post)
        return "GET, HEAD, POST, OPTIONS";
    return route->post ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
}

bool route_takes(const struct route *route, const char *method)
{
    if (route->remove)
        return !strcmp(method, "DELETE");
    if (route->post && (!route->both || !strcmp(method, "POST")))
        return !strcmp(method, "POST");
    return !strcmp(method, "GET") || !strcmp(method, "HEAD");
}

bool route_takes_body(const struct route *route, const char *method)
{
    return route->body && !strcmp(method, "POST");
}
