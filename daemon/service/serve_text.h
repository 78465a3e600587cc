/* serve_text.h - what the daemon tells a person at start: progress, the start line, a curl line to copy.
 * Thread: the loop's. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct backend_info;
struct runtime;

struct serve_facts {
    const char *where; /* server_where() */
    const struct runtime *runtime;
    uint32_t slots, n_ctx;
};

/* "listening on http://127.0.0.1:8080 · hearth-stories-6m · cpu avx512vnni, 2 threads · 32 slots × 1,024" */
void serve_start_line(const struct serve_facts *facts, char *out, size_t room);
/* "memory: weights 359 MiB, KV cache 448 MiB for 4,096 tokens, recurrent states 12 MiB, activations 20 MiB":
 * states only where the model has some. */
void serve_memory_line(const struct backend_info *info, uint64_t draw_bytes, char *out, size_t room);
/* A curl command that reaches the first of the addresses in `where`; keyed: with a place for the key. */
void serve_curl_line(const char *where, bool keyed, char *out, size_t room);
/* Digits in groups of three, "1,024". */
const char *serve_grouped(uint64_t number, char out[32]);

/* A bar on stderr, when that is a terminal. */
void serve_show_progress(double fraction);
void serve_hide_progress(void);
