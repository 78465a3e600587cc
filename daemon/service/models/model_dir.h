/* model_dir.h - the models of a directory by name: its .gguf files, of a split model the first part. It
 * leaves out files that cannot be read, files that a link leads out of the directory, and files that cannot
 * be named: a name that is no UTF-8, or another file's. The log says which, of the first two at the start
 * alone, since clients look for names. A scan reads a directory, which takes about 20 us a file and on a
 * network file system any time; taking it into the list takes a fraction of 1 us a file, since only new files
 * are sorted in, and no call of the system. Thread: a scan's any; a list's any, one at a time. Memory:
 * entries live until model_dir_free(); their numbers stay. */
#pragma once
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct model_dir {
    char *path; /* resolved */
    struct model_dir_entry {
        char *name;          /* without ".gguf" and the number of a part */
        char *file;          /* resolved */
        bool present;        /* as of the last reading, and it can be named */
        bool added;          /* by model_dir_add() */
        bool warned, listed; /* listed: in by_name */
        uint64_t bytes;
        int64_t modified; /* Unix seconds */
    } * entries;
    int n;
    /* Numbers: all by file, the present ones by name. */
    int *by_file, *by_name;
    int n_present;
    struct timespec changed; /* the directory's time as of the last reading; 0: it may have changed since */
};

/* The files of a directory, in their order. */
struct model_dir_scan {
    struct model_dir_file {
        char *file;
        uint64_t bytes;
        int64_t modified;
    } * files;
    int n;
    bool whole; /* it could be read to its end */
    bool tells; /* logs what it leaves out */
    int n_left_out;
    struct timespec changed;
};

/* -ENOENT, -ENOTDIR, -EACCES: there is no such directory, or it cannot be read. */
int model_dir_open(struct model_dir *d, const char *path, struct error *err);
void model_dir_free(struct model_dir *d);
/* Reads the directory `path`, which is resolved, as far as `most` entries, models or not. */
void model_dir_scan(struct model_dir_scan *s, const char *path, int most);
void model_dir_scan_free(struct model_dir_scan *s);
/* Makes a whole scan the list's; of one that is not whole nothing is taken. Frees it. */
void model_dir_take(struct model_dir *d, struct model_dir_scan *s);
/* Reads the directory again. On an error all is as it was. */
void model_dir_read(struct model_dir *d);
/* True if files may have come or gone since the last reading: one call of the system. */
bool model_dir_has_changed(const struct model_dir *d);
/* Adds the file of this name, with or without ".gguf", if the directory has it by now and the model has one
 * part: a few calls of the system, however many files there are. */
void model_dir_look_for(struct model_dir *d, const char *name);
/* Returns the number of a file that may lie elsewhere, and adds it if it is new; its name is its own,
 * whatever the directory has. -1 without memory. */
int model_dir_add(struct model_dir *d, const char *file);
/* Looks at the size and time of one. */
void model_dir_look(struct model_dir *d, int number);
/* The number of a present entry by its name, with or without ".gguf", or ":latest" behind it; -1: none. */
int model_dir_find(const struct model_dir *d, const char *name);
/* The first by name; -1: there is none. */
int model_dir_first(const struct model_dir *d);
/* The next by name behind that of `number`, which may be gone; -1: there is none. */
int model_dir_after(const struct model_dir *d, int number);
/* "a, b and 3 more": the present names, in order, as many as have room. */
void model_dir_names(const struct model_dir *d, char *out, size_t room);
