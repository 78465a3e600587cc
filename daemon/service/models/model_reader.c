#include "model_reader.h"
#include "base/clock.h"

#include <limits.h>

#define FEW_FILES 256           /* most that are read on the loop: some milliseconds */
#define FRESH_NS  1000000000ull /* sizes and times of files that are listed may be so old */

static void read_on_pool(uv_work_t *work)
{
    struct model_reader *r = work->data;
    model_dir_scan(&r->scan, r->dir->path, INT_MAX);
}

static void on_read(uv_work_t *work, int status)
{
    struct model_reader *r = work->data;
    (void)status; /* it is never cancelled */
    model_dir_take(r->dir, &r->scan);
    r->at_ns = clock_ns();
    r->on = false;
}

/* False: there are too many files. */
static bool read_at_once(struct model_reader *r, uint64_t now_ns)
{
    model_dir_scan(&r->scan, r->dir->path, FEW_FILES);
    bool whole = r->scan.whole;
    model_dir_take(r->dir, &r->scan);
    r->at_ns = now_ns;
    return whole;
}

void model_reader_refresh(struct model_reader *r)
{
    uint64_t now_ns = clock_ns();
    bool fresh = r->at_ns && now_ns - r->at_ns < FRESH_NS;
    if (r->on || (fresh && !model_dir_has_changed(r->dir)))
        return;
    if (r->dir->n <= FEW_FILES && read_at_once(r, now_ns))
        return;
    r->on = true;
    r->work.data = r;
    uv_queue_work(r->loop, &r->work, read_on_pool, on_read);
}
