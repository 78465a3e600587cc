/* exit_code.h - how the process ends, as the manual page and the units know it. Thread: any. */
#pragma once
#include "base/error.h"

enum exit_code {
    EXIT_CLEAN = 0,
    EXIT_INTERNAL = 1,
    EXIT_USAGE = 2,         /* usage or config */
    EXIT_MODEL_MISSING = 3, /* or unreadable */
    EXIT_MODEL_BROKEN = 4,
    EXIT_MODEL_UNSUPPORTED = 5,
    EXIT_NO_DEVICE = 6, /* or no driver */
    EXIT_MEMORY = 7,    /* at load */
    EXIT_ADDRESS = 8,   /* in use */
    EXIT_FAULT = 9,     /* of the decoder, or a driver that does not start */
};

/* The exit code that a lib/ error stands for (error.h names the codes). */
int exit_code_of(int code);
/* Logs the words as an error and returns the exit code of err->code. */
int exit_fail(const struct error *err);
