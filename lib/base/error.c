#include "error.h"

#include <stdarg.h>
#include <stdio.h>

int error_set(struct error *err, int code, const char *fmt, ...)
{
    if (!err || err->code)
        return code;
    err->code = code;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(err->text, sizeof err->text, fmt, ap); /* a truncated text is still useful */
    va_end(ap);
    return code;
}
