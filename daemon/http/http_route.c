#include "http_route.h"
#include "base/suggest.h"

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

const char *route_nearest(const struct route *routes, const char *path)
{
    const char *best = NULL;
    for (; routes->path; routes++) {
        const char *both[] = {best, routes->path};
        const char *found = best ? nearest(path, both, 2) : nearest(path, both + 1, 1);
        best = found ? found : best;
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
