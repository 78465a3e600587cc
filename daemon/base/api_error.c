#include "api_error.h"

#include <stdarg.h>
#include <stdio.h>

static void fill(struct api_error *e, int status, const char *type, const char *param, const char *fmt,
                 va_list args)
{
    if (e->status)
        return;
    e->status = status;
    e->type = type;
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    vsnprintf(e->message, sizeof e->message, fmt, args);
}

int api_fail(struct api_error *e, int status, const char *type, const char *param, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fill(e, status, type, param, fmt, args);
    va_end(args);
    return -1;
}

int api_invalid(struct api_error *e, const char *param, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fill(e, 400, "invalid_request", param, fmt, args);
    va_end(args);
    return -1;
}

int api_out_of_memory(struct api_error *e)
{
    if (!e->status)
        e->retry_after_s = 1;
    return api_fail(e, 503, "queue_full", NULL, "out of memory");
}
