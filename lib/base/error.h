/* error.h - an error: a negative errno for the program, one sentence for the person.
 * Functions of lib/ return 0 (or a count) on success and a negative errno on failure. Where words help they
 * take a `struct error *`, which may be NULL. The first error set is kept, so the root cause survives.
 * Thread: a struct error belongs to its caller; nothing is shared. Memory: none is allocated.
 *
 * These codes have a meaning of their own; command_exit_code() maps them to exit codes:
 *   -ENOENT, -EACCES, -EISDIR  file missing or unreadable      -EBADMSG  file broken
 *   -ENOTSUP  file valid but not supported                     -ENODEV   no device or driver
 *   -ENOMEM   out of memory                                    -EINVAL   bad argument or configuration
 *   -EADDRINUSE  address in use                                -EIO      decoder fault, driver error */
#pragma once

struct error {
    int code; /* 0, or the negative errno of the first error set */
    char text[320];
};

/* Sets *err unless it holds an error already or is NULL. Always returns `code`, so that `return
 * error_set(...)` reads well. */
int error_set(struct error *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
