/* tool_list.h - the tools that a request offers, as the scanner of the model's text needs them: names, and
 * which parameters are text. Thread: any. Memory: the arena's. */
#pragma once
#include "base/arena.h"
#include "toolcall/toolcall.h"

#include <jansson.h>

/* Reads OpenAI's list of tools; what is no function is passed over. Names are copied into the arena. -ENOMEM.
 */
int tool_list_read(struct arena *a, const json_t *tools, struct toolcall_tools *out);
