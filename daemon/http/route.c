#include "route.h"
#include "generation/generation.h"
#include "base/suggest.h"

#include <string.h>

static const struct route routes[] = {
    {.path = "/", .open = true, .quiet = true, .handle = api_page},
    {.path = "/generate",
     .post = true,
     .body = true,
     .needs_model = true,
     .work = true,
     .handle = api_generate,
     .dialect = &dialect_generate},
    {.path = "/v1/completions",
     .post = true,
     .body = true,
     .needs_model = true,
     .work = true,
     .handle = api_generate,
     .dialect = &dialect_completions},
    {.path = "/v1/chat/completions",
     .post = true,
     .body = true,
     .needs_model = true,
     .work = true,
     .handle = api_generate,
     .dialect = &dialect_chat},
    {.path = "/v1/messages",
     .post = true,
     .body = true,
     .needs_model = true,
     .work = true,
     .handle = api_generate,
     .dialect = &dialect_messages},
    {.path = "/v1/messages/count_tokens",
     .post = true,
     .body = true,
     .needs_model = true,
     .work = true,
     .handle = api_generate,
     .dialect = &dialect_count},
    {.path = "/api/chat",
     .post = true,
     .body = true,
     .needs_model = true,
     .work = true,
     .handle = api_generate,
     .dialect = &dialect_ollama_chat},
    {.path = "/api/generate",
     .post = true,
     .body = true,
     .needs_model = true,
     .work = true,
     .handle = api_generate,
     .dialect = &dialect_ollama_generate},
    {.path = "/api/tags", .needs_model = true, .handle = api_ollama_tags},
    {.path = "/api/ps", .needs_model = true, .handle = api_ollama_ps},
    {.path = "/api/show", .post = true, .body = true, .needs_model = true, .handle = api_ollama_show},
    {.path = "/api/version", .handle = api_ollama_version},
    {.path = "/v1/models", .needs_model = true, .handle = api_models},
    {.path = "/v1/models/{id}", .needs_model = true, .handle = api_model},
    {.path = "/tokenize",
     .post = true,
     .body = true,
     .needs_model = true,
     .text = true,
     .handle = api_tokenize},
    {.path = "/detokenize",
     .post = true,
     .body = true,
     .needs_model = true,
     .text = true,
     .handle = api_detokenize},
    {.path = "/admin/model",
     .post = true,
     .both = true,
     .body = true,
     .admin = true,
     .handle = api_admin_model},
    {.path = "/admin/suspend", .post = true, .admin = true, .handle = api_admin_suspend},
    {.path = "/admin/resume", .post = true, .admin = true, .handle = api_admin_resume},
    {.path = "/requests", .handle = api_requests},
    {.path = "/requests/{id}", .remove = true, .handle = api_cancel},
    {.path = "/stats", .quiet = true, .handle = api_stats},
    {.path = "/metrics", .quiet = true, .handle = api_metrics},
    {.path = "/health", .always = true, .open = true, .quiet = true, .handle = api_health},
    {.path = "/health/live", .always = true, .open = true, .quiet = true, .handle = api_health_live},
    {.path = "/health/ready", .always = true, .open = true, .quiet = true, .handle = api_health},
    {.path = "/health/proxy", .always = true, .open = true, .quiet = true, .handle = api_health_proxy},
};
#define N_ROUTES (sizeof routes / sizeof *routes)

/* {id} stands for the rest, which may hold slashes, but not for nothing. */
static bool matches(const char *pattern, const char *path)
{
    size_t n = strcspn(pattern, "{");
    return pattern[n] ? !strncmp(pattern, path, n) && path[n] : !strcmp(pattern, path);
}

const struct route *route_find(const char *path)
{
    for (size_t i = 0; i < N_ROUTES; i++)
        if (matches(routes[i].path, path))
            return &routes[i];
    return NULL;
}

const char *route_id(const struct route *route, const char *path)
{
    return path + strcspn(route->path, "{");
}

const char *route_nearest(const char *path)
{
    const char *nearest = routes[0].path;
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < N_ROUTES; i++) {
        size_t d = nearest_distance(path, routes[i].path);
        if (d < best) {
            best = d;
            nearest = routes[i].path;
        }
    }
    return nearest;
}

const char *route_allow(const struct route *route)
{
    if (route->remove)
        return "DELETE, OPTIONS";
    if (route->both)
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
