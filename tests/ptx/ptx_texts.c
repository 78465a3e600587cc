/* ptx_texts.c - the PTX texts that this driver was linked with, one for each translated file. */
#include "ptx/ptx_text.h"

extern const struct ptx_text __start_ptx_texts[], __stop_ptx_texts[];

bool ptx_text_linked(const char *text)
{
    struct ptx_text wanted = ptx_text_of(text);
    for (const struct ptx_text *t = __start_ptx_texts; t < __stop_ptx_texts; t++)
        if (t->hash == wanted.hash && t->size == wanted.size)
            return true;
    return false;
}
