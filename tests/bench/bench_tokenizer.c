/* bench_tokenizer VOCABULARY.gguf [TEXT] - how fast a vocabulary loads and encodes on one core.
 * Without a text file it writes itself 5 MB of English in which names, numbers and the order of sentences
 * vary, so that words repeat as they do in prose, not as they do in a loop. */
#include "gguf/gguf.h"
#include "tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TEXT_BYTES ((size_t)5 << 20)
#define ROUNDS     5

static const char *const sentences[] = {
    "Once upon a time, there was a little girl named %s. ",
    "She loved to play with her toys and eat yummy food. ",
    "One day, %s found a big, red apple on the ground and wanted to eat it.\n\n",
    "\"%s, can you help me get the apple?\" asked the old man, who had walked %u miles through the snow. ",
    "It wasn't far from the harbour, yet they'd never seen so many ships as in the spring of %u. ",
    "The little bear was walking in the woods; he saw a tall tree, and he started to climb it.\n",
    "Suddenly he heard a voice: \"Hello! I am stuck. Can you help me?\"\n\n",
    "The committee's report (section %u) describes the measurements and their uncertainty. ",
    "Thermodynamic equilibrium is approached exponentially, which %s could not have known at the time. ",
    "He bought %u oranges, three loaves of bread, and a newspaper that nobody would read. ",
    "The bird flew up, and the tree was so happy that it thanked %s and the bear.\n",
    "From that day on, %s and the dog called Spot were the best of friends.\n\n",
};
static const char *const names[] = {"Lily",     "Tom",       "Max",       "Anna",      "Sue",
                                    "Benjamin", "Charlotte", "Yusuf",     "Katarina",  "Dmitri",
                                    "Rosalie",  "Ingrid",    "Oluwaseun", "Marguerite"};

static uint32_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

/* A new word, now and then: prose has names and slips that no cache holds. */
static size_t put_new_word(char *out, uint64_t *state)
{
    static const char *const parts[] = {"ka",  "ri",  "ven", "tor", "al", "mis",
                                        "che", "gou", "lan", "der", "fi", "ost"};
    size_t n = 0;
    for (unsigned i = 0, k = 2 + next_random(state) % 3; i < k; i++)
        n += (size_t)sprintf(out + n, "%s", parts[next_random(state) % 12]);
    out[n++] = ' ';
    return n;
}

static char *write_text(size_t *len)
{
    char *text = malloc(TEXT_BYTES + 512);
    uint64_t state = 7;
    size_t n = 0;
    while (text && n < TEXT_BYTES) {
        const char *s = sentences[next_random(&state) % (sizeof sentences / sizeof sentences[0])];
        const char *name = names[next_random(&state) % (sizeof names / sizeof names[0])];
        for (; *s; s++) {
            if (*s != '%') {
                text[n++] = *s;
                continue;
            }
            s++;
            n += (size_t)(*s == 's' ? sprintf(text + n, "%s", name)
                                    : sprintf(text + n, "%u", next_random(&state) % 3000));
        }
        if (next_random(&state) % 4 == 0)
            n += put_new_word(text + n, &state);
    }
    *len = n;
    return text;
}

static char *read_text(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    char *text = size > 0 ? malloc((size_t)size) : NULL;
    *len = text ? fread(text, 1, (size_t)size, f) : 0;
    fclose(f);
    return text;
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int open_vocabulary(struct tokenizer **t, const char *path, struct error *err)
{
    struct gguf *g;
    int rc = gguf_open(&g, path, err);
    if (rc < 0)
        return rc;
    rc = tokenizer_open(t, g, err);
    gguf_close(g);
    return rc;
}

static int measure(const struct tokenizer *t, const char *text, size_t len, struct error *err)
{
    double best = 0;
    size_t n = 0;
    for (int i = 0; i < ROUNDS; i++) {
        int32_t *ids = NULL;
        double start = now_ms();
        int rc = tokenizer_encode(t, text, len, (struct tokenizer_flags){0}, 0, &ids, &n, err);
        double ms = now_ms() - start;
        free(ids);
        if (rc < 0)
            return rc;
        if (!i || ms < best)
            best = ms;
    }
    printf("%zu bytes, %zu tokens: %.1f ms, %.1f MB/s, %.2f million tokens/s (best of %d)\n", len, n, best,
           (double)len / best / 1e3, (double)n / best / 1e3, ROUNDS);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s VOCABULARY.gguf [TEXT]\n", argv[0]);
        return 2;
    }
    struct error err = {0};
    struct tokenizer *t = NULL;
    double start = now_ms();
    int rc = open_vocabulary(&t, argv[1], &err);
    double loaded = now_ms() - start;
    size_t len = 0;
    char *text = argc > 2 ? read_text(argv[2], &len) : write_text(&len);
    if (rc >= 0 && text) {
        printf("%u tokens, loaded in %.1f ms\n", tokenizer_n_vocab(t), loaded);
        rc = measure(t, text, len, &err);
    }
    if (rc < 0 || !text)
        fprintf(stderr, "%s\n", text ? err.text : "no text");
    free(text);
    tokenizer_close(t);
    return rc < 0 || !text;
}
