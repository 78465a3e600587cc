#include "ptx_image.h"

#include <assert.h>
#include <stdlib.h>
#include <zlib.h>

#define GZIP_WINDOW (15 + 16) /* zlib.h: 16 more than the largest window means gzip's header */

char *ptx_image_unpack(const struct ptx_image *image)
{
    z_stream z = {.next_in = (unsigned char *)image->packed, .avail_in = (unsigned)image->packed_size};
    char *out = malloc(image->size + 1);
    if (!out || inflateInit2(&z, GZIP_WINDOW) != Z_OK) {
        free(out);
        return NULL;
    }
    z.next_out = (unsigned char *)out;
    z.avail_out = (unsigned)image->size;
    int rc = inflate(&z, Z_FINISH);
    inflateEnd(&z);
    if (rc == Z_MEM_ERROR) {
        free(out);
        return NULL;
    }
    assert(rc == Z_STREAM_END && z.avail_out == 0); /* the build packed it */
    out[image->size] = '\0';
    return out;
}
