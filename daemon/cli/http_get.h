/* http_get.h - one GET of a running hearthd, for the commands that ask it something. Not libcurl: the daemon
 * itself asks over a connection that is open already, and would load twenty libraries more for it. Blocking;
 * any thread. */
#pragma once
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

#define HTTP_GET_MAX (16 << 20) /* bytes of a reply */

/* `url` is "http://host:port", "host:port" or "unix:/path"; `key` an API key or NULL. The body,
 * NUL-terminated and malloc'ed, into *body; returns the status, or a negative errno with words that name the
 * url: -EINVAL is no url, -ENOTCONN no server there, -ETIMEDOUT no answer in ten seconds. */
int http_get(const char *url, const char *path, const char *key, char **body, struct error *err);
/* True if this url, as http_get() reads it, is a Unix socket, localhost, 127.0.0.1 or ::1. */
bool http_is_local(const char *url);
/* The same over a connection that is open already, without words. */
int http_get_over(int fd, const char *path, const char *key, char **body);
