/* query_print.h - answers of a running daemon as tables for people. A missing member is 0 or "", and no
 * control character of an answer reaches the terminal.
 * Thread: one at a time, as texts are built in static buffers. */
#pragma once
#include <jansson.h>
#include <stdio.h>

/* GET /stats. */
void query_print_stats(const json_t *answer, FILE *f);
/* GET /requests: a line for each. */
void query_print_requests(const json_t *answer, FILE *f);
