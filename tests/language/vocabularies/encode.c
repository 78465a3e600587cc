/* encode.c - encode VOCABULARY.gguf: reads texts from stdin, each ended by a NUL, and writes the ids of each
 * as a line. It ends with 1 and a message at the first text that its ids do not decode to. */
#include "support/tokenizer_fixture.h"

#include <inttypes.h>

static int encode_line(const struct tokenizer *t, const char *s, size_t len)
{
    struct error err = {0};
    int32_t *ids = NULL;
    size_t n = 0, back_len = 0;
    char *back = NULL;
    if (tokenizer_encode(t, s, len, (struct tokenizer_flags){0}, 0, &ids, &n, &err) ||
        tokenizer_detokenise(t, ids, n, true, &back, &back_len, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    int differs = back_len != len || memcmp(back, s, len) != 0;
    if (differs)
        fprintf(stderr, "encode: \"%s\" became \"%s\"\n", s, back);
    for (size_t i = 0; i < n; i++)
        printf("%s%" PRId32, i ? " " : "", ids[i]);
    putchar('\n');
    free(back);
    free(ids);
    return differs;
}

int main(int argc, char **argv)
{
    struct tokenizer *t = argc == 2 ? fixture_open(argv[1]) : NULL;
    if (!t)
        return 2;
    char *text = NULL;
    size_t room = 0;
    int status = 0;
    for (ssize_t n; !status && (n = getdelim(&text, &room, 0, stdin)) > 0;)
        status = encode_line(t, text, (size_t)n - 1);
    free(text);
    tokenizer_close(t);
    return status;
}
