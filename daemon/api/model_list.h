/* model_list.h - a reply with something for each model that requests may name. It is written on the loop, a
 * window of REPLY_WINDOW bytes at a time as its client takes it, so that a directory of thousands of models
 * holds up no other request. A model that comes or goes meanwhile is in it or not. Thread: loop. Memory: the
 * request's arena. */
#pragma once
#include "generation/generator.h"

struct request;

struct model_list;

/* A list of all models. */
struct model_list_part {
    void (*begin)(struct request *r, const struct model_list_part *p); /* writes what is before it; or NULL */
    void (*put)(struct request *r, struct model_list *l, const struct model_view *v);
    void (*end)(struct request *r, struct model_list *l); /* writes what follows it; or NULL */
    const void *of;                                       /* their own */
};

struct model_list {
    const struct model_list_part *part; /* the parts to come; the last one has no put() */
    int i;                              /* the number of the next model; put(): that of this one, and 1 */
    uint32_t n;                         /* models of this part that were put */
    const char *first, *last;           /* names, for put() and end() to keep */
};

/* The model that `name` means, with the tag ":latest" or without it. False: r->error is a 404 that says what
 * there is. */
bool model_list_find(struct request *r, const char *name, struct model_view *out);
/* Replies with what `out` holds and then with the parts, which stay as they are. */
void model_list_reply(struct request *r, const struct model_list_part *parts);
