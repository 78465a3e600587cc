/* engine_spill.c - see engine_spill.h. Each page in transit has a place in the backend's transfer buffer. A
 * state goes in parts as large as pages, which are files like them: successors of the page that the state is
 * behind, with ids that no token has.
 *
 * A page goes with its window page, if it still has it; else as a file of a name of its own, without those
 * bytes (a bare page). A restore of such a model ends behind a page from which a sequence may begin: the
 * window pages that its first row sees are there or in files. All pages are accepted together when the last
 * has arrived. */
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

/* The snapshot whose parts are on their way to the disk. */
struct state_export {
    uint32_t snapshot, next; /* next: part */
    struct kv_page_name page;
    bool active;
};

struct engine_disk {
    struct prefix_disk *disk;
    uint8_t *bytes;                  /* the transfer buffer */
    size_t page_bytes, window_bytes; /* a whole page; its window page, the last bytes of it, or 0 */
    uint32_t n_places;
    struct transfer places[PLACES];
    uint32_t n_parts; /* of a recurrent state; 0: the model has none */
    struct state_export out;
    struct kv_key *seen_to; /* [n_snapshots]: the page whose state was exported, or found on the disk */
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
    if (!e->cfg.disk || !e->cfg.prefix_cache || !info.transfer || page == 0 || size < page)
        return 0;
    e->disk = calloc(1, sizeof *e->disk);
    if (!e->disk)
        return error_set(err, -ENOMEM, "no memory for the prefix cache on disk");
    e->disk->disk = e->cfg.disk;
    e->disk->bytes = info.transfer;
    e->disk->page_bytes = page;
    e->disk->window_bytes = info.n_windows ? (size_t)info.window_bytes : 0;
    e->disk->n_places = size / page < PLACES ? (uint32_t)(size / page) : PLACES;
    e->disk->n_parts = e->recurrent ? (uint32_t)((info.state_size + page - 1) / page) : 0;
    e->disk->seen_to = calloc(e->n_snapshots + 1, sizeof *e->disk->seen_to);
    prefix_disk_attach(e->cfg.disk, wake, e);
    return e->disk->seen_to ? 0 : error_set(err, -ENOMEM, "no memory for the prefix cache on disk");
}

void engine_disk_close(struct engine *e)
{
    if (!e->disk)
        return;
    prefix_disk_detach(e->disk->disk);
    free(e->disk->seen_to);
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

static struct step_page_op part_op(const struct engine *e, const struct transfer *t, uint32_t kind,
                                   uint32_t snapshot, uint32_t part)
{
    struct step_page_op op = page_op(e->disk, t, kind, e->cfg.n_slots + snapshot);
    op.from = part;
    return op;
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

/* The name of a page without its window page. */
static struct kv_page_name bare_name(struct kv_page_name name)
{
    static const int32_t bare[KV_PAGE_TOKENS] = {-3};
    name.key = kv_key_next(name.key, bare);
    return name;
}

/* The name of a part of the state behind a page. */
static struct kv_page_name part_name(struct kv_key page, uint64_t salt, uint32_t part)
{
    struct kv_page_name name = {.parent = page, .salt = salt, .ids = {-2, (int32_t)part}};
    name.key = kv_key_next(page, name.ids);
    return name;
}

static bool has_state(const struct engine *e, struct kv_key page, uint64_t salt)
{
    for (uint32_t i = 0; i < e->disk->n_parts; i++)
        if (!prefix_disk_has(e->disk->disk, part_name(page, salt, i).key))
            return false;
    return true;
}

/* Pages of a prompt that a hit may have. */
static uint32_t most_pages(const struct engine_request *r)
{
    uint32_t max = kv_shared_pages(r->n_prompt);
    return max < ENGINE_MAX_HIT ? max : ENGINE_MAX_HIT;
}

/* The end of the prompt's pages from `n` on that are on the disk. */
static uint32_t pages_on_disk(const struct engine *e, const struct sequence *q, uint32_t n)
{
    struct kv_key key = q->restore_key;
    for (uint32_t max = most_pages(q->r); n < max; n++) {
        key = kv_key_next(key, q->r->prompt + (size_t)n * KV_PAGE_TOKENS);
        if (!prefix_disk_has(e->disk->disk, key))
            break;
    }
    return n;
}

/* The same for a model with window pages. Each page is whole or bare; the last ones, whose window pages the
 * row behind them sees, are whole, and their window pages and those that the sequence holds fit its share. */
static uint32_t windows_on_disk(const struct engine *e, struct sequence *q, uint32_t n)
{
    struct kv_page_name name = {.key = q->restore_key};
    uint32_t share = e->n_windows / e->cfg.n_slots, held = kv_cache_n_windows(e->kv, q->r->slot);
    uint32_t found = n, first_whole = n;
    for (uint32_t i = n, max = most_pages(q->r); i < max; i++) {
        name = name_of(q->r, name.key, i);
        bool whole = prefix_disk_has(e->disk->disk, name.key);
        if (!whole && !prefix_disk_has(e->disk->disk, bare_name(name).key))
            break;
        first_whole = whole ? first_whole : i + 1;
        uint32_t first = kv_cache_first_window(e->kv, (i + 1) * KV_PAGE_TOKENS);
        first = first > n ? first : n; /* the sequence holds those before */
        if (first < first_whole || held + i + 1 - first > share)
            continue;
        found = i + 1;
        q->restore_window = first;
    }
    return found;
}

/* Finds the last state on the disk whose pages are there or in memory, behind the one that the sequence
 * begins with. The first n pages are in memory. Returns the number of its pages, or 0. */
static uint32_t find_state(const struct engine *e, struct sequence *q, uint32_t n)
{
    const struct engine_request *r = q->r;
    struct kv_key key = kv_key_of_salt(r->salt);
    uint32_t found = 0;
    for (uint32_t i = 0, max = most_pages(r); i < max; i++) {
        key = kv_key_next(key, r->prompt + (size_t)i * KV_PAGE_TOKENS);
        if (i >= n && !prefix_disk_has(e->disk->disk, key))
            break;
        if (i >= q->n_done / KV_PAGE_TOKENS && has_state(e, key, r->salt)) {
            found = i + 1;
            q->restore_state_key = key;
        }
    }
    return found;
}

/* The same for a recurrent model: pages up to a state, and its parts behind them. */
static uint32_t begin_state(struct engine *e, struct sequence *q, uint32_t n)
{
    uint32_t n_state = find_state(e, q, n);
    q->restore_snapshot = n_state ? kv_cache_take_snapshot(e->kv) : SNAPSHOT_NONE;
    if (q->restore_snapshot == SNAPSHOT_NONE)
        return n;
    q->restore_state = n_state * KV_PAGE_TOKENS;
    q->restore_parts = n_state > n ? n_state : n;
    return q->restore_parts + e->disk->n_parts;
}

void engine_disk_begin(struct engine *e, uint32_t slot, uint64_t now_ns)
{
    struct sequence *q = &e->seqs[slot];
    const struct engine_request *r = q->r;
    if (!e->disk || !e->cfg.prefix_cache || !engine_reuses(r))
        return;
    uint32_t n = (e->recurrent ? q->n_known : q->n_done) / KV_PAGE_TOKENS;
    q->restore_key = kv_cache_key(e->kv, slot);
    q->restore_parts = UINT32_MAX;
    q->restore_asked = q->restore_sent = q->restore_done = n;
    if (e->n_windows)
        q->restore_end = windows_on_disk(e, q, n);
    else
        q->restore_end = e->recurrent ? begin_state(e, q, n) : pages_on_disk(e, q, n);
    q->restore_all = q->restore_end;
    q->restore_ns = now_ns;
    q->restoring = q->restore_end > n;
}

/* The job of reading the next item that the sequence asks for: a page of its prompt, or a part of its state.
 */
static struct prefix_job next_job(const struct engine_disk *d, struct sequence *q, uint32_t index)
{
    if (index >= q->restore_parts)
        return (struct prefix_job){.name =
                                       part_name(q->restore_state_key, q->r->salt, index - q->restore_parts)};
    struct kv_page_name name = name_of(q->r, q->restore_key, index), bare = bare_name(name);
    q->restore_key = name.key;
    if (d->window_bytes && index < q->restore_window && prefix_disk_has(d->disk, bare.key))
        return (struct prefix_job){.name = bare, .n_absent = d->window_bytes};
    return (struct prefix_job){.name = name};
}

/* Submits reads of the sequence's next pages while there are free places. */
static void ask(struct engine *e, struct sequence *q)
{
    struct engine_disk *d = e->disk;
    struct transfer *t;
    while (q->restore_asked < q->restore_end && (t = find_place(d))) {
        *t = (struct transfer){
            .state = READING, .slot = q->r->slot, .admitted = q->admitted, .index = q->restore_asked++};
        t->job = next_job(d, q, t->index);
        t->job.bytes = bytes_of(d, t);
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

static void note_cached(struct engine *e, struct sequence *q, uint32_t n)
{
    q->r->n_cached += n;
    atomic_store_explicit(&q->r->n_prompt_done, q->n_done, memory_order_release);
    count(&e->prompt_tokens, n);
    count(&e->cached_tokens, n);
    e->room = true; /* a queued request may wait for these pages */
}

/* The sequence begins behind the imported pages, if all have come; else it computes their tokens. */
static void end_windows(struct engine *e, struct sequence *q, uint32_t slot)
{
    uint32_t end = q->restore_end * KV_PAGE_TOKENS, n = end - q->n_done;
    if (q->restore_done < q->restore_all) {
        kv_cache_import_failed(e->kv, slot);
        return;
    }
    kv_cache_accept(e->kv, slot, q->r->prompt + q->n_done, n);
    q->n_rows = q->n_done = end;
    note_cached(e, q, n);
}

/* Ends a restore that has all that will come. The sequence begins with the state, if all its parts have. */
static void end_restore(struct engine *e, struct sequence *q, uint32_t slot)
{
    uint32_t snapshot = q->restore_snapshot, before = q->n_done;
    q->restoring = false;
    if (e->n_windows)
        end_windows(e, q, slot);
    q->restore_snapshot = SNAPSHOT_NONE;
    if (snapshot == SNAPSHOT_NONE)
        return;
    if (q->restore_done < q->restore_all) {
        kv_cache_drop_snapshot(e->kv, snapshot);
        return;
    }
    kv_cache_keep_snapshot(e->kv, slot, q->restore_state, snapshot);
    engine_states_begin_again(e, slot);
    note_cached(e, q, q->n_done - before);
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
        if (q->restore_done >= q->restore_end)
            end_restore(e, q, slot);
    }
}

/* Adds the operations that move a page and its window page, or WINDOW_NONE. */
static void move_page(struct engine *e, const struct transfer *t, uint32_t kind, uint32_t page,
                      uint32_t window)
{
    struct step *s = &e->step;
    const struct engine_disk *d = e->disk;
    struct step_page_op op = page_op(d, t, kind, page);
    s->page_ops[s->n_page_ops++] = op;
    if (window == WINDOW_NONE)
        return;
    op.page = engine_window(e, window);
    op.host_offset += (uint32_t)((d->page_bytes - d->window_bytes) / 64);
    s->page_ops[s->n_page_ops++] = op;
}

static void import(struct engine *e, const struct sequence *q, uint32_t slot, const struct transfer *t)
{
    if (t->index >= q->restore_parts) {
        e->step.page_ops[e->step.n_page_ops++] =
            part_op(e, t, STEP_STATE_IMPORT, q->restore_snapshot, t->index - q->restore_parts);
        return;
    }
    bool window = e->n_windows && t->index >= q->restore_window;
    kv_cache_grow_import(e->kv, slot, t->index, window);
    move_page(e, t, STEP_PAGE_IMPORT, kv_cache_page(e->kv, slot, t->index),
              window ? kv_cache_window(e->kv, slot, t->index) : WINDOW_NONE);
}

static void build_imports(struct engine *e)
{
    struct step *s = &e->step;
    for (uint32_t slot = 0; slot < e->cfg.n_slots; slot++) {
        struct sequence *q = &e->seqs[slot];
        struct transfer *t;
        while (q->r && q->restoring && s->n_page_ops + engine_page_ops(e) <= STEP_MAX_PAGE_OPS &&
               (t = find_page(e, q, q->restore_sent, READY))) {
            import(e, q, slot, t);
            t->state = IMPORTING;
            t->step = q->last_step = s->id;
            q->restore_sent++;
        }
    }
}

/* Accepts imported page `index` of the sequence, as if it had been computed, or a part of its state. */
static void accept(struct engine *e, struct sequence *q, uint32_t slot, uint32_t index, uint64_t now_ns)
{
    q->restore_ns = now_ns;
    q->restore_done = index + 1;
    if (index < q->restore_parts && !e->n_windows) {
        kv_cache_accept(e->kv, slot, q->r->prompt + (size_t)index * KV_PAGE_TOKENS, KV_PAGE_TOKENS);
        if (e->recurrent) {
            q->n_known = (index + 1) * KV_PAGE_TOKENS;
        } else {
            q->n_rows = q->n_done = (index + 1) * KV_PAGE_TOKENS;
            note_cached(e, q, KV_PAGE_TOKENS);
        }
    }
    if (q->restore_done >= q->restore_end)
        end_restore(e, q, slot);
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
        for (uint32_t index = q->restore_done;
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

/* Marks the page's file as used, if there is one: a whole page's serves a bare one. */
static bool touch_page(struct engine_disk *d, const struct kv_page_name *name, bool bare)
{
    struct kv_page_name other = bare_name(*name);
    return prefix_disk_touch(d->disk, name) || (bare && prefix_disk_touch(d->disk, &other));
}

static bool is_bare(const struct engine *e, uint32_t page)
{
    return e->n_windows && kv_cache_window_of(e->kv, page) == WINDOW_NONE;
}

/* Marks pages that are on the disk already as used there, instead of writing them again. */
static void touch_pages(struct engine *e)
{
    struct kv_page_name name;
    uint32_t page;
    for (uint32_t n = 0; n < TOUCHES && kv_cache_keep(e->kv, is_idle(e), &page, &name); n++) {
        if (!touch_page(e->disk, &name, is_bare(e, page)))
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
    for (uint32_t left = exports_left(e); left > 0 && s->n_page_ops + engine_page_ops(e) <= STEP_MAX_PAGE_OPS;
         left--) {
        touch_pages(e);
        if (!kv_cache_keep(e->kv, is_idle(e), &page, &name) || !(t = find_place(d)))
            return;
        kv_cache_kept(e->kv, page);
        *t = (struct transfer){.state = EXPORTING, .step = s->id};
        t->job = (struct prefix_job){.write = true, .name = name, .bytes = bytes_of(d, t)};
        if (is_bare(e, page)) {
            t->job.name = bare_name(name);
            t->job.n_absent = d->window_bytes;
        }
        move_page(e, t, STEP_PAGE_EXPORT, page, kv_cache_window_of(e->kv, page));
    }
}

/* Finds the next snapshot whose state is not on the disk though its page is, once all pages are written. */
static bool find_export(struct engine *e, struct state_export *out)
{
    struct engine_disk *d = e->disk;
    for (uint32_t i = 0; d->n_parts && i < e->n_snapshots; i++) {
        struct kv_page_name page;
        if (!kv_cache_snapshot_name(e->kv, i, &page) ||
            memcmp(&d->seen_to[i], &page.key, sizeof page.key) == 0 || !prefix_disk_has(d->disk, page.key))
            continue;
        d->seen_to[i] = page.key;
        if (has_state(e, page.key, page.salt))
            continue;
        *out = (struct state_export){.snapshot = i, .page = page, .active = true};
        return true;
    }
    return false;
}

/* True if there is a state to export now: only an idle engine does. */
static bool wants_export(struct engine *e)
{
    struct kv_page_name name;
    uint32_t page;
    if (e->disk->out.active)
        return true;
    if (!is_idle(e) || kv_cache_keep(e->kv, true, &page, &name) || !find_export(e, &e->disk->out))
        return false;
    kv_cache_hold_snapshot(e->kv, e->disk->out.snapshot);
    return true;
}

static void build_state_exports(struct engine *e)
{
    struct step *s = &e->step;
    struct engine_disk *d = e->disk;
    struct transfer *t;
    for (uint32_t left = exports_left(e); left > 0 && s->n_page_ops < STEP_MAX_PAGE_OPS; left--) {
        if (!wants_export(e) || !(t = find_place(d)))
            return;
        *t = (struct transfer){.state = EXPORTING, .step = s->id};
        t->job = (struct prefix_job){.write = true,
                                     .name = part_name(d->out.page.key, d->out.page.salt, d->out.next),
                                     .bytes = bytes_of(d, t)};
        s->page_ops[s->n_page_ops++] = part_op(e, t, STEP_STATE_EXPORT, d->out.snapshot, d->out.next++);
        if (d->out.next < d->n_parts)
            continue;
        kv_cache_release_snapshot(e->kv, d->out.snapshot);
        d->out.active = false;
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
    build_state_exports(e);
}

void engine_disk_retire(struct engine *e, uint64_t now_ns)
{
    if (!e->disk)
        return;
    retire_imports(e, now_ns);
    retire_exports(e);
}

bool engine_disk_wants_step(struct engine *e)
{
    struct kv_page_name name;
    uint32_t page;
    if (!e->disk || e->faulted)
        return false;
    return count_places(e->disk, READY, READY) > 0 ||
           (exports_left(e) > 0 && (kv_cache_keep(e->kv, is_idle(e), &page, &name) || wants_export(e)));
}

/* The signal to stop often follows the last answer, before its pages are exported. */
bool engine_disk_lingers(struct engine *e, uint64_t now_ns)
{
    struct kv_page_name name;
    uint32_t page;
    if (!e->disk || e->faulted || now_ns > e->closing_ns + LINGER_NS || !prefix_disk_writes(e->disk->disk) ||
        (!kv_cache_keep(e->kv, true, &page, &name) && !wants_export(e)))
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
