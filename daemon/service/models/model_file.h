/* model_file.h - which GGUF file is meant, and what to say when it is not there. Pure but for the file
 * system; any thread. */
#pragma once
#include "base/error.h"

#include <limits.h>
#include <stdbool.h>

/* The file to open: `model` itself when it is not "", else the first *.gguf, by name, of the install's
 * models directory or of share/hearth/models beside the binary's directory. Errors are those of opening it
 * (-ENOENT, -EACCES, -EISDIR); the words name the nearest file of its directory, or where was looked. */
int model_file_find(char out[PATH_MAX], const char *model, struct error *err);
/* A file below `dir`, which is resolved: `word` is a path in it, or an absolute one that leads there. Neither
 * ".." nor a link leads out: what is outside is as if it were not there. -ENOENT, -EACCES. */
int model_file_below(char out[PATH_MAX], const char *dir, const char *word, struct error *err);
/* Both are resolved; "" has nothing below it. */
bool model_file_is_below(const char *dir, const char *path);
