/* turn.h - the order in which the decoders of a process compute, where it has several models: a step at a
 * time, first come, first served. Two teams of one thread per CPU that worked at once would wait at every
 * barrier for threads that have no CPU. While a decoder waits its team spins or sleeps as between two steps.
 *
 * Thread: any; a turn belongs to one thread until it gives it back. */
#pragma once
#include <stdbool.h>

/* Waits until all that asked before have had their turn; `waits` is called every 100 ms meanwhile, so that
 * the caller can show its life. Uncontended it costs about 20 ns. */
void turn_take(void (*waits)(void *context), void *context);
void turn_give(void);
/* Takes the turn if no other decoder has it or waits for it. */
bool turn_try(void);
/* True if another decoder waits for the turn that the caller has. */
bool turn_is_asked(void);
