/* tokenizer_fixture.h - opening vocabularies and reading test vectors. */
#pragma once

#include "gguf/gguf.h"
#include "support/models/gguf_write.h"
#include "tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEMO_MODEL HEARTH_SOURCE_DIR "/models/hearth-stories-6m-q4_k_m.gguf"
#define SPM_MODEL  HEARTH_TEST_DATA "/tokenizer/llama-spm.gguf"

/* NULL, with the reason on stderr, when it cannot be opened. */
static inline struct tokenizer *fixture_open(const char *path)
{
    struct error err = {0};
    struct gguf *g = NULL;
    struct tokenizer *t = NULL;
    if (gguf_open(&g, path, &err) < 0 || tokenizer_open(&t, g, &err) < 0)
        fprintf(stderr, "%s\n", err.text);
    gguf_close(g);
    return t;
}

/* The vocabulary of these metadata, through a file that is gone again; NULL as above. Frees what w holds. */
static inline struct tokenizer *fixture_of(struct gguf_write *w)
{
    char path[] = "/tmp/hearth-test-vocabulary-XXXXXX";
    struct gguf_bytes bytes = {0};
    struct tokenizer *t = NULL;
    gguf_write_head(w, &bytes);
    int fd = mkstemp(path);
    if (fd >= 0 && write(fd, bytes.p, bytes.n) == (ssize_t)bytes.n)
        t = fixture_open(path);
    if (fd >= 0) {
        close(fd);
        unlink(path);
    }
    free(bytes.p);
    gguf_write_free(w);
    return t;
}

/* The whole file, NUL-terminated, or NULL. */
static inline char *fixture_read(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    size_t room = 1 << 20;
    char *text = malloc(room + 1);
    size_t n = text ? fread(text, 1, room, f) : 0;
    fclose(f);
    if (text)
        text[n] = 0;
    return text;
}
