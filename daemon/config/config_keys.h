/* config_keys.h - the table of keys, and one value as text: parsed, checked, printed. Only config.c,
 * config_print.c and their tests look in here. Thread: the table is constant. */
#pragma once
#include "config.h"

#include <stddef.h>

enum config_type {
    CONFIG_STRING, /* any text; with `choices` one of them */
    CONFIG_COUNT,  /* uint32_t */
    CONFIG_SIZE,   /* uint64_t, K M G */
    CONFIG_CHOICE, /* int: the index of the name */
    CONFIG_LIST,   /* struct config_list */
};

struct config_key {
    const char *name;
    enum config_type type;
    size_t offset;       /* of the field */
    const char *initial; /* the default, as a file would have it */
    uint64_t min, max;
    const char *zero;           /* the word for 0 ("auto", "none"), or NULL */
    const char *const *choices; /* NULL-terminated */
    bool or_path;               /* beside its choices it takes any text with a / */
    const char *allowed;        /* the choices in fewer words than their list, or NULL */
    bool secret;
    const char *since;
    const char *group; /* heading in the sample and in --help, at the first key of a group */
    const char *help;
};

extern const struct config_key config_keys[];
extern const size_t config_n_keys;

const struct config_key *config_find(const char *name); /* or NULL */
/* The key most likely meant, or NULL. */
const char *config_nearest(const char *name);

/* Parses into the field of *c. On -EINVAL *err says only what is allowed and what was given ("must be 1 to
 * 512 (got \"x\")"): the caller knows the place. */
int config_parse(struct config *c, const struct config_key *key, const char *value, struct error *err);
/* The field as config_parse() reads it, malloc'ed; NULL when out of memory. */
char *config_format(const struct config *c, const struct config_key *key);
#define CONFIG_ALLOWED 320 /* bytes that hold it whole, of any key */
/* "1 to 256", "reject or ignore", "a size of 1K to 1G": what config_parse() takes. */
void config_allowed(const struct config_key *key, char *out, size_t room);
void config_release(struct config *c, const struct config_key *key);
