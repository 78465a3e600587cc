/* serve.h - the life of the daemon: bind, load beside the loop, warm up, say READY, watch, drain. Thread: the
 * process's first, once. */
#pragma once

struct config;
struct config_arguments;

/* Serves until a signal or a fault ends it; returns the exit code. SIGHUP reads `args` again. Both arguments
 * must live until it returns. */
int serve(struct config *cfg, struct config_arguments *args);
