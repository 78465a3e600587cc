#include "log.h"
#include "escape.h"

#include <assert.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_WORD 160 /* bytes of a foreign word in a JSON member */

static _Atomic int current_level = LOG_LEVEL_INFO;
static enum log_format current_format = LOG_TEXT;
static bool to_journal;

static const char *const level_names[] = {"error", "warn", "info", "debug"};
static const int journal_priorities[] = {3, 4, 6, 7};

/* systemd sets JOURNAL_STREAM to "device:inode" of the socket it gave us; it counts only while stderr still
 * is that socket. */
static bool stderr_is_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long device, inode;
    struct stat st;

    if (!stream || sscanf(stream, "%llu:%llu", &device, &inode) != 2 || fstat(STDERR_FILENO, &st) < 0)
        return false;
    return st.st_dev == device && st.st_ino == inode;
}

void log_open(enum log_level level, enum log_format format)
{
    atomic_store(&current_level, (int)level);
    current_format = format;
    to_journal = stderr_is_journal();
}

void log_set_level(enum log_level level)
{
    atomic_store(&current_level, (int)level);
}

bool log_enabled(enum log_level level)
{
    return (int)level <= atomic_load_explicit(&current_level, memory_order_relaxed);
}

static void append(char *out, size_t room, size_t *n, const char *text)
{
    assert(*n < room);
    size_t length = strnlen(text, room - *n - 1);

    memcpy(out + *n, text, length);
    *n += length;
}

/* `keys`: further members, each with a comma before it. */
static size_t format_json(char *line, size_t room, enum log_level level, const char *id, const char *message,
                          const char *keys)
{
    struct timespec now;
    struct tm tm;
    char head[128];
    size_t n = 0;

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    size_t length = strftime(head, sizeof head, "{\"time\":\"%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(head + length, sizeof head - length, ".%03ldZ\",\"level\":\"%s\"", now.tv_nsec / 1000000,
             level_names[level]);
    append(line, room, &n, head);
    if (id) {
        append(line, room, &n, ",\"request\":\"");
        escape_append(line, room - 64, &n, id, strlen(id), ESCAPE_JSON);
        append(line, room, &n, "\"");
    }
    append(line, room, &n, ",\"message\":\"");
    escape_append(line, room - 8 - strlen(keys), &n, message, strlen(message), ESCAPE_JSON);
    append(line, room, &n, "\"");
    append(line, room, &n, keys);
    append(line, room, &n, "}");
    return n;
}

static size_t format_text(char *line, size_t room, enum log_level level, const char *id, const char *message)
{
    size_t n = 0;

    if (to_journal)
        n = (size_t)snprintf(line, room, "<%d>", journal_priorities[level]);
    else if (level != LOG_LEVEL_INFO)
        n = (size_t)snprintf(line, room, "%s: ", level == LOG_LEVEL_WARN ? "warning" : level_names[level]);
    if (id) {
        escape_append(line, room / 2, &n, id, strlen(id), ESCAPE_LINE);
        append(line, room, &n, ": ");
    }
    escape_append(line, room - 8, &n, message, strlen(message), ESCAPE_LINE);
    return n;
}

_Static_assert(LOG_MAX_LINE <= PIPE_BUF, "a line is written at once");

/* The reader of the log may have stopped, and a full pipe must not stop the daemon. poll() says that there is
 * room for a line: a pipe promises PIPE_BUF bytes. (A file or a closed descriptor never blocks.) */
static bool has_room(void)
{
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};

    return poll(&p, 1, 0) != 0;
}

static bool put_line(enum log_level level, const char *id, const char *message, const char *keys)
{
    char line[LOG_MAX_LINE];
    size_t n = current_format == LOG_JSON ? format_json(line, sizeof line - 1, level, id, message, keys)
                                          : format_text(line, sizeof line - 1, level, id, message);

    line[n++] = '\n';
    return has_room() && write(STDERR_FILENO, line, n) == (ssize_t)n;
}

static void write_line(enum log_level level, const char *id, const char *message, const char *keys)
{
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    static unsigned long n_lost;
    char words[64];

    pthread_mutex_lock(&one_at_a_time);
    if (n_lost) {
        snprintf(words, sizeof words, "%lu lines of the log could not be written", n_lost);
        n_lost = put_line(LOG_LEVEL_WARN, NULL, words, "") ? 0 : n_lost;
    }
    n_lost += !put_line(level, id, message, keys);
    pthread_mutex_unlock(&one_at_a_time);
}

static void log_write(enum log_level level, const char *fmt, va_list args)
{
    char message[LOG_MAX_LINE];

    if (!log_enabled(level))
        return;
    vsnprintf(message, sizeof message, fmt, args);
    write_line(level, NULL, message, "");
}

#define LOG_AT(level)                                                                                        \
    va_list args;                                                                                            \
    va_start(args, fmt);                                                                                     \
    log_write(level, fmt, args);                                                                             \
    va_end(args)

void log_error(const char *fmt, ...)
{
    LOG_AT(LOG_LEVEL_ERROR);
}

void log_warn(const char *fmt, ...)
{
    LOG_AT(LOG_LEVEL_WARN);
}

void log_info(const char *fmt, ...)
{
    LOG_AT(LOG_LEVEL_INFO);
}

void log_debug(const char *fmt, ...)
{
    LOG_AT(LOG_LEVEL_DEBUG);
}

static void append_key(char *out, size_t room, size_t *n, const char *name, const char *text)
{
    append(out, room, n, ",\"");
    append(out, room, n, name);
    append(out, room, n, "\":");
    if (!text) {
        append(out, room, n, "null");
        return;
    }
    append(out, room, n, "\"");
    escape_append(out, *n + MAX_WORD < room ? *n + MAX_WORD : room, n, text, strlen(text), ESCAPE_JSON);
    append(out, room, n, "\"");
}

/* Each after `before`; nothing where there is only one. */
static void append_choices(char *out, size_t room, size_t *n, const struct log_access *a,
                           const char *const before[2], const char *after)
{
    if (!a->finish || a->n_choices < 2)
        return;
    for (uint32_t i = 0; i < a->n_choices; i++) {
        append(out, room, n, before[i > 0]);
        append(out, room, n, a->choices[i]);
    }
    append(out, room, n, after);
}

static void access_keys(const struct log_access *a, char *out, size_t room)
{
    char figures[160];
    size_t n = 0;

    append_key(out, room, &n, "method", a->method);
    append_key(out, room, &n, "route", a->route);
    if (!a->route)
        append_key(out, room, &n, "path", a->path);
    snprintf(figures, sizeof figures, ",\"status\":%d,\"ms\":%.1f", a->status, a->ms);
    append(out, room, &n, figures);
    if (a->error)
        append_key(out, room, &n, "error", a->error);
    if (a->finish) {
        append_key(out, room, &n, "generation", a->generation);
        snprintf(figures, sizeof figures, ",\"prompt_tokens\":%u,\"cached_tokens\":%u,\"tokens\":%u",
                 a->prompt_tokens, a->cached_tokens, a->tokens);
        append(out, room, &n, figures);
        append_key(out, room, &n, "finish", a->finish);
        append_choices(out, room, &n, a, (const char *const[]){",\"choices\":[\"", "\",\""}, "\"]");
    }
    if (a->client)
        append_key(out, room, &n, "client", a->client);
    out[n] = '\0';
}

void log_access(enum log_level level, const char *id, const struct log_access *a)
{
    char message[512], keys[1024], generation[160] = "", choices[128] = "";
    size_t n = 0;

    if (!log_enabled(level))
        return;
    if (a->finish)
        snprintf(generation, sizeof generation, " %s prompt=%u cached=%u tokens=%u finish=%s", a->generation,
                 a->prompt_tokens, a->cached_tokens, a->tokens, a->finish);
    append_choices(choices, sizeof choices - 1, &n, a, (const char *const[]){" choices=", ","}, "");
    choices[n] = '\0';
    snprintf(message, sizeof message, "%.40s %s %d%s%s%s%s %.1f ms%s%s", a->method,
             a->route ? a->route : log_quote(a->path), a->status, a->error ? " " : "",
             a->error ? a->error : "", generation, choices, a->ms, a->client ? " from " : "",
             a->client ? a->client : "");
    access_keys(a, keys, sizeof keys);
    write_line(level, id, message, keys);
}

const char *log_quote(const char *text)
{
    static _Thread_local char buffers[8][144];
    static _Thread_local unsigned next;
    char *out = buffers[next++ % 8];
    size_t n = 0;

    if (!text)
        return "-";
    append(out, sizeof buffers[0], &n, "\"");
    if (!escape_append(out, 122, &n, text, strlen(text), ESCAPE_QUOTED))
        append(out, sizeof buffers[0], &n, "…");
    append(out, sizeof buffers[0], &n, "\"");
    out[n] = '\0';
    return out;
}
