/* config.h - the daemon's keys: one table says name, type, range, default and help of each, and from it come
 * the INI file, the environment, the flags, --help, --print-config and check-config.
 *
 * Sources, the later wins: defaults, file (--config FILE, else /etc/hearth/hearthd.conf if it is there),
 * environment HEARTH_<KEY>, flag --key-with-dashes VALUE or =VALUE. An error names file and line, variable or
 * flag, the value, and what is allowed; an unknown key names the nearest one. A key is in the table only
 * when what it switches works.
 *
 * A new key is a field of struct config and a row in config_keys.c, nothing else. Thread: filled once at
 * start (and read again into a second struct on SIGHUP), constant afterwards. Memory: the struct owns its
 * strings and lists until config_free(). */
#pragma once
#include "backend/backend.h"
#include "base/error.h"
#include "backend/executor.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define CONFIG_FILE     HEARTH_CONFIG_FILE /* "/etc/hearth/hearthd.conf" unless installed elsewhere */
#define CONFIG_MAX_KEYS 64
/* persistent, or where the backend's decoder does not run the model, graph */
#define CONFIG_EXECUTOR_AUTO (EXECUTOR_GRAPH + 1)
#define CONFIG_KV_AUTO       KV_N_TYPES /* runtime_kv_type() says which */

enum config_backend { CONFIG_AUTO, CONFIG_CPU, CONFIG_CUDA };
enum config_unknown { CONFIG_REJECT, CONFIG_IGNORE };

struct config_list { /* "a, b" in a file */
    uint32_t n;
    char **items;
};

struct config_origin { /* the source of a value */
    enum { CONFIG_FROM_DEFAULT, CONFIG_FROM_FILE, CONFIG_FROM_ENV, CONFIG_FROM_FLAG } kind;
    int line; /* of the file */
};

/* The fields are named like the keys. Strings are never NULL; "" means not set. Times are milliseconds, sizes
 * bytes; where 0 has a meaning of its own it is said. */
struct config {
    char *host;
    uint32_t port; /* 0: any */
    char *unix_socket;
    uint32_t tls_port;               /* 0: none */
    char *tls_certificate, *tls_key; /* PEM files */
    struct config_list api_keys;
    char *api_keys_file, *admin_key_file;
    struct config_list cors_origins, allowed_hosts, trusted_proxies;

    char *model;         /* "": the one in the install's models/, see model_file.c */
    char *model_dir;     /* "": where the model lies */
    char *chat_template; /* a file, "chatml", or "": the model's own */
    char *chat_format;   /* "auto": by the template; else a name of toolcall.h */
    int backend;         /* enum config_backend */
    int executor;        /* enum executor_kind, or CONFIG_EXECUTOR_AUTO */
    int arithmetic;      /* enum backend_arithmetic */
    char *isa;           /* cpu: auto, avx512, avxvnni, avx2, amx, scalar */
    char *cpu_tuning;    /* cpu: auto, off, or a file */
    char *libcuda;       /* cuda */
    int cuda_device;     /* cuda; 1 + its number, 0: the one with the most memory */
    char *cuda_cache;    /* cuda; "": as the environment or the driver says */
    int cuda_words;      /* cuda; 0: all blocks wait for each other between two operations */
    uint32_t threads;    /* 0: as many as the process may use */
    uint32_t n_ctx;      /* 0: min(model, 8192) */
    uint32_t slots;
    uint64_t kv_memory;         /* 0: the backend's default */
    int kv_type;                /* enum kv_type, or CONFIG_KV_AUTO */
    char *prefix_cache_dir;     /* "": $STATE_DIRECTORY/prefix, or none */
    uint64_t prefix_cache_disk; /* bytes; 0: off */
    uint32_t step_ms;           /* 0: the backend's default */
    uint32_t steps_in_flight;
    int speculation;        /* enum engine_speculation */
    uint32_t park_after_ms; /* cuda; 0: never */

    uint32_t queue_limit;  /* waiting requests */
    uint64_t queue_tokens; /* prompt tokens of all waiting requests together */
    uint64_t max_body, body_memory;
    uint32_t max_connections;
    uint32_t client_limit; /* requests of one client at once; 0: no limit */
    uint32_t header_timeout_ms, body_timeout_ms, keepalive_ms;
    uint32_t timeout_ms; /* 0: none */
    uint32_t queue_timeout_ms;
    uint32_t max_timeout_ms; /* 0: none; this and the next do not bind who has the admin key */
    uint32_t max_priority;
    int unknown_fields; /* enum config_unknown */

    uint32_t drain_timeout_ms, drain_min_ms;
    uint32_t watchdog_ms; /* 0: off */
    int core_dumps;       /* bool */
    int metrics_aliases;  /* bool */
    int log_level;        /* enum log_level */
    int log_format;       /* enum log_format */

    char *models;         /* directory of those that requests may name; "": they have no choice */
    uint32_t model_ttl_s; /* 0: never */

    char *file;                                    /* the file that was read, or "" */
    struct config_origin origins[CONFIG_MAX_KEYS]; /* in table order */
};

/* The flags that a command takes beside the keys. `option` is asked for every argument that is not a key's
 * flag: it returns how many arguments it took (argv[0] is this one, argc are left), 0 when it does not know
 * it, or a negative errno with *err set. */
struct config_arguments {
    int argc; /* without the program's and the command's name */
    char **argv;
    char **environ;
    const char *default_file; /* CONFIG_FILE, or NULL: no file unless --config */
    bool secure;              /* AT_SECURE: --config, libcuda, cuda_cache and cpu_tuning are ignored */
    int (*option)(void *context, int argc, char **argv, struct error *err);
    void *context;
    /* Set by config_load(). */
    bool help, print_config;
};

/* Fills *out from all sources. -EINVAL: a key or value is wrong; -ENOENT, -EACCES: the file of --config.
 * *out is to be freed either way. */
int config_load(struct config *out, struct config_arguments *args, struct error *err);
/* Logs what config_load() passed over: a HEARTH_ variable that is no key may belong to another program, or be
 * a typing error. On its own, since only what was loaded says how to log. */
void config_warn(const struct config_arguments *args);
/* The defaults alone. */
int config_defaults(struct config *out, struct error *err);
/* A file's lines on top of what *c holds. */
int config_read_file(struct config *c, const char *path, struct error *err);
/* One value, as if by its flag. For tests. */
int config_set(struct config *c, const char *key, const char *value, struct error *err);
void config_free(struct config *c); /* NULL and a zeroed struct are fine */

/* True for a word that looks like the model's file, given without --model. */
bool config_is_model(const char *argument);

/* For commands: was this key given by anything but its default? */
bool config_is_set(const struct config *c, const char *key);
/* Every key with value and origin, as a file that reads back to the same; secrets are masked. */
void config_print(const struct config *c, FILE *f);
/* The names of the keys that differ in the two, with commas between them, as far as there is room. */
void config_changes(const struct config *a, const struct config *b, char *out, size_t room);
/* The flags as --help shows them. */
void config_help(FILE *f);
/* The commented sample: every key at its default. config/hearthd.conf is this text. */
void config_sample(FILE *f);
/* The manual page of the keys: config/man/hearthd.conf.5 is this text. */
void config_man(FILE *f);
/* Names of enum values, as the file has them. */
const char *config_executor_name(int executor);
const char *config_arithmetic_name(int arithmetic);
const char *config_kv_type_name(int kv_type);
const char *config_log_level_name(int log_level);
