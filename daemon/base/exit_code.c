#include "exit_code.h"
#include "log.h"

#include <errno.h>

int exit_code_of(int code)
{
    switch (-code) {
    case 0:
        return EXIT_CLEAN;
    case EINVAL:
        return EXIT_USAGE;
    case ENOENT:
    case EACCES:
    case EISDIR:
    case ENOTDIR:
        return EXIT_MODEL_MISSING;
    case EBADMSG:
        return EXIT_MODEL_BROKEN;
    case ENOTSUP:
        return EXIT_MODEL_UNSUPPORTED;
    case ENODEV:
        return EXIT_NO_DEVICE;
    case ENOMEM:
    case EAGAIN: /* of a thread: no memory for it, or as many as there may be */
        return EXIT_MEMORY;
    case EADDRINUSE:
        return EXIT_ADDRESS;
    case EIO:
        return EXIT_FAULT;
    default:
        return EXIT_INTERNAL;
    }
}

int exit_fail(const struct error *err)
{
    log_error("%s", err->text);
    return exit_code_of(err->code);
}
