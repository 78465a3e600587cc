/* starved.h - a hearthd whose allocations fail and whose clock jumps when the test says so. */
#pragma once
#include "integration/starved/starve.h"

/* Shared with the daemon; written by the test. */
extern struct starve *starve;
/* Makes `starve` for the daemon that is spawned next, which is that program. Close what is returned after
 * that. */
int starved_open(void);
/* daemon_start() with it. */
void starved_start(const char *const *flags);
