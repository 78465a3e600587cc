/* query.h - for the commands that ask a running daemon: where it is, with which key, and its answer as JSON.
 * Blocking. Thread: main. */
#pragma once
#include "config/config.h"
#include "base/error.h"

#include <jansson.h>

/* An `option` of struct config_arguments: takes the one URL of a command; *context is a const char *. */
int ask_take_url(void *context, int argc, char **argv, struct error *err);
/* GET `path` of the daemon at `url` ("http://host:port", "unix:/path"), or, when NULL, of the one that this
 * configuration describes. The key is $HEARTHD_CLIENT_KEY, else, on this machine, the first one that the
 * configuration names and this user can read. *out is the caller's. -EPROTO: another status than 200, no
 * JSON. */
int ask_daemon(const struct config *c, const char *url, const char *path, json_t **out, struct error *err);
/* "object.member" of an answer; what is missing is 0, "" or NULL. */
const json_t *ask_member(const json_t *answer, const char *path);
double ask_number(const json_t *answer, const char *path);
const char *ask_text(const json_t *answer, const char *path);
