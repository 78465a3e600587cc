#include "commands.h"
#include "log.h"

#include <errno.h>

int command_exit_code(int code)
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
        return EXIT_MEMORY;
    case EADDRINUSE:
        return EXIT_ADDRESS;
    case EIO:
        return EXIT_FAULT;
    default:
        return EXIT_INTERNAL;
    }
}

int command_fail(const struct error *err)
{
    log_error("%s", err->text);
    return command_exit_code(err->code);
}

int command_fail_config(const struct error *err)
{
    log_error("%s", err->text);
    return err->code == -ENOMEM ? EXIT_MEMORY : EXIT_USAGE;
}
