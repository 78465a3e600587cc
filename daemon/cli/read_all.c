#include "read_all.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int read_all(int fd, const char *name, char **out, size_t *len, struct error *err)
{
    size_t room = 64 * 1024, n = 0;
    char *text = malloc(room);
    while (text) {
        ssize_t got = read(fd, text + n, room - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            int rc = error_set(err, -errno, "%s: %s", name, strerror(errno));
            free(text);
            return rc;
        }
        if (!got) {
            *out = text;
            *len = n;
            return 0;
        }
        n += (size_t)got;
        if (n < room)
            continue;
        room *= 2;
        char *grown = realloc(text, room);
        if (!grown)
            free(text);
        text = grown;
    }
    return error_set(err, -ENOMEM, "%s: out of memory after %zu bytes", name, n);
}
