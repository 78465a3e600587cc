/* admin.h - what tests of /admin routes share: the admin key, a directory of models, and waiting for a swap
 * to end. */
#pragma once
#include "harness.h"
#include "support/models/made_model.h"
#include "support/temporary_dir.h"

#include <sys/resource.h>
#include <sys/stat.h>

#define ADMIN_KEY "x-api-key: boss-key\r\n"

static char *admin_dir; /* with the key in "key", and models */

/* Makes admin_dir; the path of its key file for --admin-key-file. */
static inline const char *admin_open(void)
{
    static char path[96];
    admin_dir = temporary_dir();
    snprintf(path, sizeof path, "%s/key", admin_dir);
    FILE *f = fopen(path, "w");
    cr_assert(f && fputs("boss-key\n", f) >= 0 && fclose(f) == 0);
    cr_assert_eq(chmod(path, 0600), 0);
    return path;
}

static inline void admin_close(void)
{
    temporary_dir_remove(admin_dir);
}

/* A file below admin_dir with the bytes of another, all of them or the first n; its path. */
static inline const char *admin_copy(const char *from, const char *name, size_t n)
{
    static char path[4][128];
    static unsigned next;
    char *to = path[next++ % 4], block[65536];
    snprintf(to, sizeof path[0], "%s/%s", admin_dir, name);
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    cr_assert(in && out, "%s, %s", from, to);
    for (size_t got; n && (got = fread(block, 1, n < sizeof block ? n : sizeof block, in)); n -= got)
        cr_assert_eq(fwrite(block, 1, got, out), got);
    fclose(in);
    cr_assert_eq(fclose(out), 0);
    return to;
}

/* A model with random weights in admin_dir. */
static inline const char *admin_make_model(const char *shape, const char *name, uint32_t n_ctx)
{
    static char path[128];
    char flags[32];
    snprintf(path, sizeof path, "%s/%s", admin_dir, name);
    snprintf(flags, sizeof flags, "--n-ctx %u", n_ctx);
    make_model(path, shape, "q4_k_m", flags);
    return path;
}

/* Ends the daemon in order and removes admin_dir. */
static inline void admin_finish(void)
{
    daemon_stop();
    admin_close();
}

/* Limits what the process may map from here on: so much more than now. */
static inline void admin_limit_memory(size_t more)
{
    char path[64], line[128];
    unsigned long long kb = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)daemon_.pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f) && sscanf(line, "VmData: %llu kB", &kb) != 1) {
    }
    fclose(f);
    rlim_t most = kb * 1024 + more;
    cr_assert_eq(prlimit(daemon_.pid, RLIMIT_DATA, &(struct rlimit){most, RLIM_INFINITY}, NULL), 0);
}

static inline struct reply admin_get(void)
{
    return client_once(daemon_.port, "GET", "/admin/model", ADMIN_KEY, NULL);
}

static inline struct reply admin_post(const char *path, const char *body)
{
    return client_once(daemon_.port, "POST", path, ADMIN_KEY, body);
}

static inline struct reply admin_swap(const char *model)
{
    char body[600];
    snprintf(body, sizeof body, "{\"model\":\"%s\"}", model);
    return admin_post("/admin/model", body);
}

static inline void admin_expect(struct reply r, int status)
{
    cr_assert_eq(r.status, status, "%d: %s", r.status, r.body);
    reply_free(&r);
}

/* A member of GET /admin/model, "" where it is null; to free. */
static inline char *admin_text(const char *name)
{
    struct reply r = admin_get();
    cr_assert_eq(r.status, 200, "%d: %s", r.status, r.body);
    json_t *root = reply_json(&r);
    const char *text = json_string_value(json_at(root, name));
    char *copy = strdup(text ? text : "");
    json_decref(root);
    reply_free(&r);
    return copy;
}

static inline bool admin_is(const char *name, const char *text)
{
    char *now = admin_text(name);
    bool is = strcmp(now, text) == 0;
    free(now);
    return is;
}

static inline void admin_wait(const char *state)
{
    for (int left = 60000; !admin_is("state", state); left--) {
        char *log = left ? NULL : daemon_read_log();
        cr_assert_gt(left, 0, "it is never %s:\n%s", state, log);
        usleep(5000);
    }
}

/* Swaps and waits until that has gone well and the old model is closed. */
static inline void admin_swapped(const char *model)
{
    admin_expect(admin_swap(model), 202);
    admin_wait("idle");
    char *now = admin_text("model"), *log = daemon_read_log();
    cr_assert_str_eq(now, model, "%s", log);
    free(now);
    free(log);
}

/* Swaps and waits; it must have failed with these words. */
static inline void admin_not_swapped(const char *model, const char *words)
{
    admin_expect(admin_swap(model), 202);
    admin_wait("idle");
    char *error = admin_text("last.error");
    cr_assert(strstr(error, words), "%s: \"%s\" lacks \"%s\"", model, error, words);
    free(error);
}
