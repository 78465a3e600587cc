/* engine_spill.c - see engine_spill.h. Each page in transit has a place in the backend's transfer buffer. */
#include "engine_spill.h"
#include "kv/prefix_disk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PLACES       8   /* most pages in the transfer buffer: on cpu each place becomes resident memory */
#define IDLE_EXPORTS 4   /* most pages on their way to the disk while the engine is idle */
#define TOUCHES      256 /* most pages per round that were hit and are on the disk already */
#define PATIENCE_NS  2000000000ull /* most time to wait for one page */
#define LINGER_NS    1000000000ull /* most time that closing waits for pages to be written */
#define LINGER_NAP   1000000       /* ns between rounds, in which the disk writes */

/* A page's place in the transfer buffer. */
struct transfer {
    enum { FREE, EXPORTING, WRITING, READING, READY, IMPORTING } state;
    uint64_t step;        /* EXPORTING, IMPORTING */
    uint32_t slot, index; /* READING, READY, IMPORTING: the sequence and its page */
    uint64_t admitted;    /* admission number of that sequence, because slots are reused */
    struct prefix_job job;
};

struct engine_disk {
    struct prefix_disk *disk;
    uint8_t *bytes; /* the transfer buffer */
    size_t page_bytes;
    uint32_t n_places;
    struct transfer places[PLACES];
};

/* ---- open and close ---- */

static void wake(void *context)
{
    engine_ping(context);
}

int engine_disk_open(struct engine *e, struct error *err)
{
    struct backend_info info;
    executor_info(e->x, &info);
    size_t page = kv_page_size(&info.kv), size = info.transfer_bytes;
    if (!e->cfg.disk || !e->cfg.prefix_cache || e->recurrent || !info.transfer || page == 0 || size < page)
        return 0;
    e->disk = calloc(1, sizeof *e->disk);
    if (!e->disk)
        return error_set(err, -ENOMEM, "no memory for the prefix cache on disk");
    e->disk->disk = e->cfg.disk;
    e->disk->bytes = info.transfer;
    e->disk->page_bytes = page;
    e->disk->n_places = size / page < PLACES ? (uint32_t)(size / page) : PLACES;
    prefix_disk_attach(e->cfg.disk, wake, e);
    return 0;
}

void engine_disk_close(struct engine *e)
{
    if (!e->disk)
        return;
    prefix_disk_detach(e->disk->disk);
    free(e->disk);
    e->disk = NULL;
}

/* ---- places ---- */

static struct transfer *find_place(struct engine_disk *d)
{
    for (uint32_t i = 0; i < d->n_places; i++)
        if (d->places[i].state == FREE)
            return &d->places[i];
    return NULL;
}

static uint32_t count_places(const struct engine_disk *d, int state, int or_state)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->n_places; i++)
        n += (int)d->places[i].state == state || (int)d->places[i].state == or_state;
    return n;
}

static void *bytes_of(const struct engine_disk *d, const struct transfer *t)
{
    return d->bytes + (size_t)(t - d->places) * d->page_bytes;
}

static struct step_page_op page_op(const struct engine_disk *d, const struct transfer *t, uint32_t kind,
                                   uint32_t page)
{
    return (struct step_page_op){
        .kind = kind, .page = page, .host_offset = (uint32_t)((size_t)(t - d->places) * d->page_bytes / 64)};
}

/* ---- import: from the disk ---- */

/* The sequence that the page is for; NULL if it has ended. */
static struct sequence *reader_of(struct engine *e, const struct transfer *t)
{
    struct sequence *q = &e->seqs[t->slot];
    return q->r && q->admitted == t->admitted ? q : NULL;
}

/* The place with page `index` of the sequence in this state, or NULL. */
static struct transfer *find_page(struct engine *e, const struct sequence *q, uint32_t index, int state)
{
    for (uint32_t i = 0; i < e->disk->n_places; i++) {
        struct transfer *t = &e->disk->places[i];
        if ((int)t->state == state && t->index == index && reader_of(e, t) == q)
            return t;
    }
    return NULL;
}

static struct kv_page_name name_of(const struct engine_request *r, struct kv_key parent, uint32_t index)
{
    struct kv_page_name name = {.parent = parent, .salt = r->salt};
    memcpy(name.ids, r->prompt + (size_t)index * KV_PAGE_TOKENS, sizeof name.ids);
    name.key = kv_key_next(parent, name.ids);
    return name;
}

void engine_disk_begin(struct engine *e, uint32_t slot, uint64_t now_ns)
{
    struct sequence *q = &e->seqs[slot];
    const struct engine_request *r = q->r;
    if (!e->disk || !e->cfg.prefix_cache || !engine_reuses(r))
        return;
    uint32_t n = q->n_done / KV_PAGE_TOKENS, max = kv_shared_pages(r->n_prompt), end = n;
    max = max < ENGINE_MAX_HIT ? max : ENGINE_MAX_HIT;
    struct kv_key key = kv_cache_key(e->kv, slot);
    q->restore_key = key;
    for (; end < max; end++) {
        key = kv_key_next(key, r->prompt + (size_t)end * KV_PAGE_TOKENS);
        if (!prefix_disk_has(e->disk->disk, key))
            break;
    }
    q->restore_asked = q->restore_sent = n;
    q->restore_end = end;
    q->restore_ns = now_ns;
    q->restoring = end > n;
}

/* Submits reads of the sequence's next pages while there are free places. */
static void ask(struct engine *e, struct sequence *q)
{
    struct engine_disk *d = e->disk;
    struct transfer *t;
    while (q->restore_asked < q->restore_end && (t = find_place(d))) {
        *t = (struct transfer){
            .state = READING, .slot = q->r->slot, .admitted = q->admitted, .index = q->restore_asked++};
        t->job =
            (struct prefix_job){.name = name_of(q->r, q->restore_key, t->index), .bytes = bytes_of(d, t)};
        q->restore_key = t->job.name.key;
        prefix_disk_submit(d->disk, &t->job);
    }
}

static void take_finished(struct engine *e, uint64_t now_ns)
{
    struct prefix_job *job;
    while ((job = prefix_disk_next(e->disk->disk))) {
        struct transfer *t =
            &e->disk->places[(size_t)((uint8_t *)job->bytes - e->disk->bytes) / e->disk->page_bytes];
        struct sequence *q = job->write ? NULL : reader_of(e, t);
        t->state = q && job->rc == 0 && t->index < q->restore_end ? READY : FREE;
        if (!q)
            continue;
        q->restore_ns = now_ns;
        if (job->rc < 0 && t->index < q->restore_end)
            q->restore_end = t->index; /* the rest of the prompt is computed */
    }
}

/* Frees the places of sequences that have ended or no longer want the page. */
static void drop_unwanted(struct engine *e)
{
    for (uint32_t i = 0; i < e->disk->n_places; i++) {
        struct transfer *t = &e->disk->places[i];
        const struct sequence *q = t->state == READY ? reader_of(e, t) : NULL;
        if (t->state == READY && (!q || t->index >= q->restore_end))
            t->state = FREE;
    }
}

static void move_restores(struct engine *e, uint64_t now_ns)
{
    for (uint32_t slot = 0; slot < e->cfg.n_slots; slot++) {
        struct sequence *q = &e->seqs[slot];
        if (!q->r || !q->restoring)
            continue;
        if (now_ns > q->restore_ns + PATIENCE_NS)
            q->restore_end = q->restore_sent;
        ask(e, q);
        q->restoring = q->n_done / KV_PAGE_TOKENS < q->restore_end;
    }
}

static void build_imports(struct engine *e)
{
    struct step *s = &e->step;
    for (uint32_t slot = 0; slot < e->cfg.n_slots; slot++) {
        struct sequence *q = &e->seqs[slot];
        struct transfer *t;
        while (q->r && q->restoring && s->n_page_ops < STEP_MAX_PAGE_OPS &&
               (t = find_page(e, q, q->restore_sent, READY))) {
            kv_cache_grow(e->kv, slot, (t->index + 1) * KV_PAGE_TOKENS);
            s->page_ops[s->n_page_ops++] =
                page_op(e->disk, t, STEP_PAGE_IMPORT, kv_cache_page(e->kv, slot, t->index));
            t->state = IMPORTING;
            t->step = q->last_step = s->id;
            q->restore_sent++;
        }
    }
}

/* Accepts imported page `index` of the sequence, as if it had been computed. */
static void accept(struct engine *e, struct sequence *q, uint32_t slot, uint32_t index, uint64_t now_ns)
{
    struct engine_request *r = q->r;
    kv_cache_accept(e->kv, slot, r->prompt + (size_t)index * KV_PAGE_TOKENS, KV_PAGE_TOKENS);
    q->n_rows = q->n_done = (index + 1) * KV_PAGE_TOKENS;
    q->restore_ns = now_ns;
    q->restoring = index + 1 < q->restore_end;
    r->n_cached += KV_PAGE_TOKENS;
    atomic_store_explicit(&r->n_prompt_done, q->n_done, memory_order_release);
    count(&e->prompt_tokens, KV_PAGE_TOKENS);
    count(&e->cached_tokens, KV_PAGE_TOKENS);
    e->room = true; /* a queued request may wait for this page */
}

static void retire_imports(struct engine *e, uint64_t now_ns)
{
    for (uint32_t i = 0; i < e->disk->n_places; i++) {
        struct transfer *t = &e->disk->places[i], *next = t;
        if (t->state != IMPORTING || t->step > e->retired)
            continue;
        struct sequence *q = reader_of(e, t);
        if (!q) {
            t->state = FREE;
            engine_release(e, t->slot);
            continue;
        }
        for (uint32_t index = q->n_done / KV_PAGE_TOKENS;
             (next = find_page(e, q, index, IMPORTING)) && next->step <= e->retired; index++) {
            next->state = FREE;
            accept(e, q, next->slot, index, now_ns);
        }
    }
}

/* ---- export: to the disk ---- */

static bool is_idle(const struct engine *e)
{
    return e->n_live == 0 && e->queue.n == 0;
}

/* The number of further pages that may be exported now. */
static uint32_t exports_left(const struct engine *e)
{
    uint32_t most = is_idle(e) ? IDLE_EXPORTS : 1, n = count_places(e->disk, EXPORTING, WRITING);
    return n < most && prefix_disk_writes(e->disk->disk) ? most - n : 0;
}

/* Marks pages that are on the disk already as used there, instead of writing them again. */
static void touch_pages(struct engine *e)
{
    struct kv_page_name name;
    uint32_t page;
    for (uint32_t n = 0; n < TOUCHES && kv_cache_keep(e->kv, is_idle(e), &page, &name); n++) {
        if (!prefix_disk_touch(e->disk->disk, &name))
            return;
        kv_cache_kept(e->kv, page);
    }
}

static void build_exports(struct engine *e)
{
    struct step *s = &e->step;
    struct engine_disk *d = e->disk;
    struct kv_page_name name;
    struct transfer *t;
    uint32_t page;
    for (uint32_t left = exports_left(e); left > 0 && s->n_page_ops < STEP_MAX_PAGE_OPS; left--) {
        touch_pages(e);
        if (!kv_cache_keep(e->kv, is_idle(e), &page, &name) || !(t = find_place(d)))
            return;
        kv_cache_kept(e->kv, page);
        *t = (struct transfer){.state = EXPORTING, .step = s->id};
        t->job = (struct prefix_job){.write = true, .name = name, .bytes = bytes_of(d, t)};
        s->page_ops[s->n_page_ops++] = page_op(d, t, STEP_PAGE_EXPORT, page);
    }
}

static void retire_exports(struct engine *e)
{
    for (uint32_t i = 0; i < e->disk->n_places; i++) {
        struct transfer *t = &e->disk->places[i];
        if (t->state != EXPORTING || t->step > e->retired)
            continue;
        t->state = WRITING;
        prefix_disk_submit(e->disk->disk, &t->job);
    }
}

/* ---- called by the engine ---- */

void engine_disk_move(struct engine *e, uint64_t now_ns)
{
    if (!e->disk)
        return;
    take_finished(e, now_ns);
    drop_unwanted(e);
    move_restores(e, now_ns);
    touch_pages(e);
}

/* Exports come last: no import or row of this step writes their pages, and later steps write them after this
 * step's ops. */
void engine_disk_build(struct engine *e)
{
    if (!e->disk)
        return;
    build_imports(e);
    build_exports(e);
}

void engine_disk_retire(struct engine *e, uint64_t now_ns)
{
    if (!e->disk)
        return;
    retire_imports(e, now_ns);
    retire_exports(e);
}

bool engine_disk_wants_step(const struct engine *e)
{
    struct kv_page_name name;
    uint32_t page;
    if (!e->disk || e->faulted)
        return false;
    return count_places(e->disk, READY, READY) > 0 ||
           (exports_left(e) > 0 && kv_cache_keep(e->kv, is_idle(e), &page, &name));
}

/* The signal to stop often follows the last answer, before its pages are exported. */
bool engine_disk_lingers(const struct engine *e, uint64_t now_ns)
{
    struct kv_page_name name;
    uint32_t page;
    if (!e->disk || e->faulted || now_ns > e->closing_ns + LINGER_NS || !prefix_disk_writes(e->disk->disk) ||
        !kv_cache_keep(e->kv, true, &page, &name))
        return false;
    nanosleep(&(struct timespec){.tv_nsec = LINGER_NAP}, NULL);
    return true;
}

bool engine_disk_waits(const struct engine *e)
{
    bool any = false;
    for (uint32_t i = 0; e->disk && i < e->cfg.n_slots; i++) {
        const struct sequence *q = &e->seqs[i];
        if (q->r && !q->restoring && q->first == NO_SLOT)
            return false;
        any = any || (q->r && q->restoring);
    }
    return any;
}
