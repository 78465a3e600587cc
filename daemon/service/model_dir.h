/* model_dir.h - the models of a directory by name: its .gguf files, of a split model the first part. What a
 * link leads out of the directory is none of them, nor what cannot be named: a name that is no UTF-8, or
 * another file's. Thread: any, one at a time for a list. Memory: entries
 * live until model_dir_free(); their numbers stay. */
#pragma once
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct model_dir {
    char *path; /* resolved */
    struct model_dir_entry {
        char *name;   /* without ".gguf" and the number of a part */
        char *file;   /* resolved */
        bool present; /* as of the last reading, and it can be named */
        bool added;   /* by model_dir_add() */
        bool warned;
        uint64_t bytes;
        int64_t modified; /* Unix seconds */
    } * entries;
    int n;
};

/* -ENOENT, -ENOTDIR, -EACCES: there is no such directory, or it cannot be read. */
int model_dir_open(struct model_dir *d, const char *path, struct error *err);
void model_dir_free(struct model_dir *d);
/* Reads the directory again. On an error all is as it was. */
void model_dir_read(struct model_dir *d);
/* Returns the number of a file that may lie elsewhere, and adds it if it is new; its name is its own,
 * whatever the directory has. -1 without memory. */
int model_dir_add(struct model_dir *d, const char *file);
/* Looks at the size and time of one. */
void model_dir_look(struct model_dir *d, int number);
/* The number of a present entry by its name, with or without ".gguf", or ":latest" behind it; -1: none. */
int model_dir_find(const struct model_dir *d, const char *name);
/* The first by name; -1: there is none. */
int model_dir_first(const struct model_dir *d);
/* "a, b and 3 more": the present names, in order, as many as have room. */
void model_dir_names(const struct model_dir *d, char *out, size_t room);
