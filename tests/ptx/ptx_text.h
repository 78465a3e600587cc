/* ptx_text.h - the identity of a PTX text that was translated: the emulated driver runs no other.
 * Thread: any. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ptx_text {
    uint64_t hash, size;
};

struct ptx_text ptx_text_of(const char *text);

/* Returns whether the text is one of those linked into this driver. libcuda/module.c refers to it weakly: a
 * driver of kernels compiled from C has none. */
bool ptx_text_linked(const char *text) __attribute__((weak));
