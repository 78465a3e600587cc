#include "ptx/ptx_text.h"
#include "base/hash.h"

#include <string.h>

struct ptx_text ptx_text_of(const char *text)
{
    size_t size = strlen(text);
    return (struct ptx_text){.hash = hash_bytes(0, text, size), .size = size};
}
