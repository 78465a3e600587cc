#include "utf8.h"

#include <assert.h>
#include <string.h>

size_t utf8_char(const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;
    if (!n)
        return 0;
    if (u[0] < 0x80)
        return 1;
    size_t len = u[0] >= 0xF0 ? 4 : u[0] >= 0xE0 ? 3 : 2;
    if (u[0] < 0xC2 || u[0] > 0xF4 || n < len)
        return 0;
    unsigned char low = u[0] == 0xE0 ? 0xA0 : u[0] == 0xF0 ? 0x90 : 0x80;
    unsigned char high = u[0] == 0xED ? 0x9F : u[0] == 0xF4 ? 0x8F : 0xBF;
    if (u[1] < low || u[1] > high)
        return 0;
    for (size_t i = 2; i < len; i++)
        if ((u[i] & 0xC0) != 0x80)
            return 0;
    return len;
}

size_t utf8_valid(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint64_t eight; /* ASCII is skipped eight bytes at a time */
        if (n - i >= sizeof eight) {
            memcpy(&eight, s + i, sizeof eight);
            if (!(eight & 0x8080808080808080u)) {
                i += sizeof eight;
                continue;
            }
        }
        size_t len = utf8_char(s + i, n - i);
        if (!len)
            break;
        i += len;
    }
    return i;
}

size_t utf8_invalid(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && !utf8_char(s + i, n - i))
        i++;
    return i;
}

uint32_t utf8_code(const char *s, size_t len)
{
    const unsigned char *u = (const unsigned char *)s;
    assert(len >= 1 && len <= 4);
    switch (len) {
    case 1:
        return u[0];
    case 2:
        return (u[0] & 0x1Fu) << 6 | (u[1] & 0x3Fu);
    case 3:
        return (u[0] & 0x0Fu) << 12 | (u[1] & 0x3Fu) << 6 | (u[2] & 0x3Fu);
    default:
        return (u[0] & 0x07u) << 18 | (u[1] & 0x3Fu) << 12 | (u[2] & 0x3Fu) << 6 | (u[3] & 0x3Fu);
    }
}

bool utf8_is_obeyed(uint32_t code)
{
    static const struct {
        uint32_t first, last;
    } ranges[] = {
        {0x00, 0x1F},       {0x7F, 0xA0 - 1},   {0xAD, 0xAD},     {0x61C, 0x61C},   {0x115F, 0x1160},
        {0x180E, 0x180E},   {0x200B, 0x200B},   {0x200E, 0x200F}, {0x2028, 0x202E}, {0x2060, 0x206F},
        {0x3164, 0x3164},   {0xFEFF, 0xFEFF},   {0xFFA0, 0xFFA0}, {0xFFF9, 0xFFFB}, {0x1BCA0, 0x1BCA3},
        {0x1D173, 0x1D17A}, {0xE0000, 0xE0FFF},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges && code >= ranges[i].first; i++)
        if (code <= ranges[i].last)
            return true;
    return false;
}
