/* json_fields.h - the members of a JSON object by table: each row says name, type, range and where the value
 * goes. null is the same as absent; a number without a fraction (64.0) is an integer; an unknown member is an
 * error that names it and where it is known, or the nearest known one. Errors name the field, what is allowed
 * and what came; never the text of a string that may be a prompt. Thread: any. */
#pragma once
#include "base/api_error.h"
#include "base/arena.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum field_kind {
    FIELD_BOOL,    /* bool */
    FIELD_U32,     /* uint32_t in min..max */
    FIELD_I32,     /* int32_t */
    FIELD_U64,     /* uint64_t, at most 2^53 - 1 */
    FIELD_FLOAT,   /* float */
    FIELD_CUSTOM,  /* `read` */
    FIELD_IGNORED, /* known, and without effect on the answer */
};

struct field_reader;

struct field {
    const char *name;
    enum field_kind kind;
    size_t offset;   /* into the struct that is filled */
    double min, max; /* both allowed */
    size_t given;    /* offset of a bool set when the field is there; 0: none (no struct begins with one) */
    int (*read)(struct field_reader *r, const struct field *f, const json_t *value);
};

/* A table that is another's, and what to say of a member that only it knows. */
struct field_place {
    const struct field *fields;
    const char *words;
};

struct field_reader {
    void *out; /* the struct that is filled; keeps what it holds where a field is absent */
    struct arena *arena;
    struct api_error *err;
    bool ignore_unknown;
    const struct field_place *elsewhere; /* of the body's members; ends with an empty one, or NULL */
    const char *within;  /* the object's own path ("stream_options", "messages[2]"); NULL: the body */
    const void *context; /* for custom readers */
};

/* Reads `object` by the tables, the first that knows a name wins; each ends with an empty row. 0 or -1. */
int fields_read(struct field_reader *r, const json_t *object, const struct field *const *tables,
                size_t n_tables);

/* Kinds of values that a member may be of, where another reader than fields_read() takes it. */
enum { SHAPE_STRING = 1, SHAPE_OBJECT = 2, SHAPE_ARRAY = 4, SHAPE_BOOL = 8, SHAPE_INTEGER = 16 };
struct field_shape {
    const char *name;
    unsigned kinds;
};
/* 0, or -1 with words that begin with the path: the value is there, not null and of another kind. */
int field_has_shape(const json_t *value, const char *path, unsigned kinds, struct api_error *err);
/* The same of an object's members; the table ends with an empty row. The first wrong one is told. */
int fields_have_shapes(const json_t *object, const struct field_shape *shapes, struct api_error *err);

/* A member's whole path ("messages[2].role"), for words and param. One of two buffers of this thread. */
const char *field_path(const struct field_reader *r, const char *name);
/* "a string", "7", "true": what came, for an error's words. One of two buffers of this thread. */
const char *field_got(const json_t *value);
/* The same for a member that takes one of a few words, where a string is no prompt: "\"wizard\"", cut. */
const char *field_got_word(const json_t *value);
/* A number without a fraction, in min..max; else -1 with words that begin with `name`. */
int field_integer(struct field_reader *r, const char *name, const json_t *value, double min, double max,
                  int64_t *out);
