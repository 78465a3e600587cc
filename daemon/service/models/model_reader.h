/* model_reader.h - reads a directory of models anew when a list or a new name asks for it, and files may have
 * come or gone: one of few files at once, one of many by libuv's pool. The list is as it was until then, and
 * no client has the loop wait for thousands of files. Thread: loop. Memory: the caller's; it must stay where
 * it is while `on`. */
#pragma once
#include "model_dir.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct model_reader {
    uv_loop_t *loop;
    struct model_dir *dir;
    bool on; /* the pool reads the directory */
    /* Private. */
    uint64_t at_ns;
    struct model_dir_scan scan;
    uv_work_t work;
};

/* Sees what has come and gone, unless that is being read already. */
void model_reader_refresh(struct model_reader *r);
