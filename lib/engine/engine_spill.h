/* engine_spill.h - how pages of the prefix cache go to the disk and come back while the engine runs.
 *
 * Out: pages that were hit, and when nothing else is to do all that nobody holds any more, are exported by a
 * step's page ops into the backend's transfer buffer and written from there by the disk's thread. Beside
 * running requests at most one page is on its way, else a few.
 * Back: a sequence that begins with pages the disk has is seated as usual and waits (`restoring`) while they
 * are read into the transfer buffer, imported by page ops and accepted, as if they had been computed. What
 * cannot be read, or not in time, is computed.
 * Thread: engine only. Memory: taken in engine_disk_open(). */
#pragma once
#include "engine_private.h"

/* With cfg.disk, where pages can be exported; else e->disk stays NULL and the rest does nothing. */
int engine_disk_open(struct engine *e, struct error *err);
/* Waits for what is being read or written. */
void engine_disk_close(struct engine *e);

/* `slot` has just been seated with its hit in memory: more of its prompt may be on the disk. */
void engine_disk_begin(struct engine *e, uint32_t slot, uint64_t now_ns);
/* Takes what the disk has finished, asks for more. Once in every round. */
void engine_disk_move(struct engine *e, uint64_t now_ns);
/* Adds page ops to a step whose rows are complete. */
void engine_disk_build(struct engine *e);
/* After a step has retired. */
void engine_disk_retire(struct engine *e, uint64_t now_ns);
/* There is something to export or import now. */
bool engine_disk_wants_step(const struct engine *e);
/* The engine is closing, nothing runs, and there are pages that should go to the disk first: one more round.
 * Not for longer than a second. */
bool engine_disk_lingers(const struct engine *e, uint64_t now_ns);
/* Every running request waits for the disk. */
bool engine_disk_waits(const struct engine *e);
