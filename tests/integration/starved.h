/* starved.h - a hearthd whose allocations fail and whose clock jumps when the test says so. */
#pragma once
#include "starved/starve.h"

/* Shared with the daemon; written by the test. */
extern struct starve *starve;
/* daemon_start() with that program. */
void starved_start(const char *const *flags);
