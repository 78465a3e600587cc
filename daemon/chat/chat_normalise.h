/* chat_normalise.h - a conversation as clients send it, made one that the model's template takes: system
 * messages in the middle, ids of calls, names of functions that results belong to. Thread: any. Memory: the
 * arena's. */
#pragma once
#include "jinja/jinja.h"

struct chat_template;

/* Replaces *messages. -ENOMEM. */
int chat_normalise(struct arena *a, const struct chat_template *c, struct jinja_list **messages);
