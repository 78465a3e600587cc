/* api_error.h - a refusal or failure as a client sees it: an HTTP status and the object API.md shows. Thread:
 * any; one at a time for an error. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct api_error {
    int status; /* 0: no error */
    const char *type;
    char param[64]; /* "" is null */
    char message[400];
    uint32_t retry_after_s; /* 0: no Retry-After */
    bool close;             /* the connection ends with this reply */
    bool at_once;           /* answered without reading the body, whose end is uncertain */
    /* context_exceeded: */
    bool has_context, estimated;
    uint64_t n_prompt_tokens, n_requested; /* the latter with max_tokens, where they are what is too much */
    uint32_t n_ctx;
    /* queue_full: */
    bool has_queue;
    uint32_t queue_depth, queue_limit;
};

/* Sets *e unless it holds an error already (the first is the cause). Returns -1, so that `return
 * api_fail(...)` reads well. `param` may be NULL. */
int api_fail(struct api_error *e, int status, const char *type, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* 400 invalid_request. */
int api_invalid(struct api_error *e, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int api_out_of_memory(struct api_error *e);
