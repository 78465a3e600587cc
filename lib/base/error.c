#include "error.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

int error_set(struct error *err, int code, const char *fmt, ...)
{
    assert(code < 0); /* 0 would report success after a failure */
    if (!err || err->code)
        return code;
    err->code = code;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(err->text, sizeof err->text, fmt, ap); /* a text that is too long is cut */
    va_end(ap);
    return code;
}
