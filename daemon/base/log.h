/* log.h - one line per event on stderr: text, or JSON objects, or text with journald's priorities when stderr
 * is the journal. Never prompt text. Bytes that could break a line or a terminal are escaped here (escape.h),
 * wherever they came from; foreign words (ids, names, User-Agents) go through log_quote() so that a reader
 * sees where they begin and end. Thread: any. A line is one write(2) that never waits: lines for which there
 * is no room are left out and counted. Memory: none is allocated; a line is cut at LOG_MAX_LINE bytes. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define LOG_MAX_LINE    2048
#define LOG_MAX_CHOICES 8

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };
enum log_format { LOG_TEXT, LOG_JSON };

/* Also finds out whether stderr is the journal. Before it: text, info. */
void log_open(enum log_level level, enum log_format format);
void log_set_level(enum log_level level);
bool log_enabled(enum log_level level);

void log_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_info(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_debug(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* One request that was answered or cut off, or whose client left. Its id is a prefix in text. In JSON that is
 * the key "request", and every field has one of its own, beside the message. */
struct log_access {
    const char *method;
    const char *route;  /* NULL: no route has this path */
    const char *path;   /* as the client sent it */
    const char *client; /* its address, or NULL */
    int status;
    const char *error; /* the type of the refusal or failure; NULL: none */
    double ms;
    /* Figures of a generation; finish NULL: it was none, or came to nothing. */
    const char *finish;
    const char *choices[LOG_MAX_CHOICES]; /* each one's, where there are several */
    uint32_t n_choices;
    const char *generation; /* the reply's id */
    uint32_t prompt_tokens, cached_tokens, tokens;
};
void log_access(enum log_level level, const char *id, const struct log_access *a);

/* `text` in double quotes, escaped, cut after 120 bytes; NULL is "-". One of eight buffers of this thread:
 * valid until the ninth call after it. */
const char *log_quote(const char *text);
