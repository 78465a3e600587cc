/* ptx_text.h - the identity of a PTX text that was translated: the emulated driver runs no other.
 * Thread: any. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ptx_text {
    uint64_t hash, size;
};

/* FNV-1a over 64 bits. */
static inline struct ptx_text ptx_text_of(const char *text)
{
    struct ptx_text t = {.hash = UINT64_C(0xcbf29ce484222325)};
    for (; text[t.size]; t.size++)
        t.hash = (t.hash ^ (unsigned char)text[t.size]) * UINT64_C(0x100000001b3);
    return t;
}

/* Returns whether the text is one of those linked into this driver. libcuda/module.c refers to it weakly: a
 * driver of kernels compiled from C has none. */
bool ptx_text_linked(const char *text) __attribute__((weak));
