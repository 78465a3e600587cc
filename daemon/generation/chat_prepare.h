/* chat_prepare.h - from a chat's messages to the ids of its prompt. Thread: loop or pool. */
#pragma once

struct generation;
struct api_error;

/* Renders g->p.chat into g->p.ids and keeps the prompt's end. 0, or -1 with *err, or g->exceeded. */
int chat_prepare(struct generation *g, struct api_error *err);
