/* engine_spill.h - moves pages of the prefix cache to the disk and back while the engine runs.
 *
 * Export: pages that were hit and, while the engine is idle, all published pages that no sequence holds are
 * exported by a step's page ops into the backend's transfer buffer; the disk's thread writes them from there.
 * Beside running requests at most one page is in transit, else a few. Import: a sequence whose prompt begins
 * with pages on the disk gets its slot as usual and waits (`restoring`) while they are read into the transfer
 * buffer, imported by page ops and accepted as if they had been computed. Pages that cannot be read in time
 * are computed.
 * Thread: engine only. Memory: allocated in engine_disk_open(). */
#pragma once
#include "engine_private.h"

/* Sets e->disk if cfg.disk is set and the backend can export pages. Otherwise e->disk stays NULL and the
 * other functions do nothing. Returns 0 or -ENOMEM. */
int engine_disk_open(struct engine *e, struct error *err);
/* Waits for the pages that are being read or written. e->disk may be NULL. */
void engine_disk_close(struct engine *e);

/* Begins the restore of a sequence that has just got its slot and its hit in memory: more of its prompt may
 * be on the disk. */
void engine_disk_begin(struct engine *e, uint32_t slot, uint64_t now_ns);
/* Collects the jobs that the disk has finished and submits further reads. Call once per round of the
 * engine. */
void engine_disk_move(struct engine *e, uint64_t now_ns);
/* Adds page ops to e->step, whose rows are complete. */
void engine_disk_build(struct engine *e);
/* Completes the imports and exports of retired steps. Call after each step. */
void engine_disk_retire(struct engine *e, uint64_t now_ns);
/* True if there is a page to export or import now. */
bool engine_disk_wants_step(struct engine *e);
/* True if the engine, which is closing and idle, should do one more round because pages have yet to go to the
 * disk; for at most a second. It sleeps a millisecond before it returns true. */
bool engine_disk_lingers(struct engine *e, uint64_t now_ns);
/* True if there are running requests and every one waits for the disk. */
bool engine_disk_waits(const struct engine *e);
