#include "cpu_name.h"

#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

void cpu_name(char *name, size_t size)
{
    snprintf(name, size, "CPU");
#if defined(__x86_64__)
    unsigned words[12] = {0}, top, b, c, d;
    if (!__get_cpuid(0x80000000u, &top, &b, &c, &d) || top < 0x80000004u)
        return;
    for (unsigned i = 0; i < 3; i++)
        __get_cpuid(0x80000002u + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2], &words[4 * i + 3]);
    char text[sizeof words + 1] = {0};
    memcpy(text, words, sizeof words);
    const char *start = text + strspn(text, " ");
    size_t len = strlen(start);
    while (len && start[len - 1] == ' ')
        len--;
    if (len)
        snprintf(name, size, "%.*s", (int)len, start);
#endif
}
