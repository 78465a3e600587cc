/* embedded.c - compares the PTX that hearth_embed_ptx() put into this program with the files it came from.
 *   simt_embedded DIRECTORY   the directory of the toys' PTX; it may hold none (no clang with the NVPTX
 * target) */
#include "cuda/ptx_image.h"

#include <glob.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const struct ptx_image toy_ptx_images[];

static bool equals_file(const struct ptx_image *image, const char *directory)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s_sm%u.ptx", directory, image->name, image->sm);
    FILE *f = fopen(path, "rb");
    char *text = malloc(image->size + 2);
    size_t n = f && text ? fread(text, 1, image->size + 2, f) : 0;
    char *unpacked = ptx_image_unpack(image);
    bool same = f && text && unpacked && n == image->size && memcmp(text, unpacked, n) == 0 && !unpacked[n];
    if (!same)
        printf("FAILED  %s: %zu bytes here, %zu there\n", path, image->size, n);
    if (f)
        fclose(f);
    free(text);
    free(unpacked);
    return same;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    char pattern[1024];
    snprintf(pattern, sizeof pattern, "%s/*.ptx", argv[1]);
    glob_t files = {0};
    glob(pattern, 0, NULL, &files);
    size_t n = 0, wrong = 0;
    for (const struct ptx_image *i = toy_ptx_images; i->name; i++, n++)
        wrong += !equals_file(i, argv[1]);
    printf("%zu images, %zu files, %zu wrong\n", n, files.gl_pathc, wrong);
    int status = wrong || n != files.gl_pathc ? 1 : 0;
    globfree(&files);
    return status;
}
