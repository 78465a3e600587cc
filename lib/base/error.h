/* error.h - an error: a negative errno for the program and one sentence for the person who reads it.
 * Functions of lib/ return 0 (or a count) on success and a negative errno on failure. A function with more to
 * say takes a `struct error *`, which may be NULL. The first error set is kept, so that the root cause
 * survives. Thread: any; a struct error belongs to one caller, and no state is shared. Memory: the text lies
 * in the struct.
 *
 * exit_code_of() turns these codes into exit codes of their own:
 *   -ENOENT, -EACCES, -EISDIR  file missing or unreadable      -EBADMSG  file broken
 *   -ENOTSUP  file valid but not supported                     -ENODEV   no device or driver
 *   -ENOMEM   out of memory                                    -EINVAL   bad argument or configuration
 *   -EADDRINUSE  address taken                                 -EIO      decoder fault, driver, read error */
#pragma once

struct error {
    int code; /* 0, or the negative errno of the first error set */
    char text[320];
};

/* Sets *err unless it is NULL or holds an error already. Returns `code`, which must be negative, so that
 * callers write `return error_set(...)`. */
int error_set(struct error *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
