/* model_private.h - what the files of a model share.
 * Thread: any; pure. Memory: the caller's. */
#pragma once
#include "model.h"

/* Copies text of the file for people: whole characters as far as they fit; what a terminal obeys and what is
 * no UTF-8 become '?'. */
void model_copy_text(char *out, size_t size, const char *s, size_t len);

/* Reads the keys of architecture `arch` into *c (model_config.c); what depends on tensors is not set yet.
 * -EBADMSG, -ENOTSUP name the key. */
int model_read_config(struct model_config *c, const struct gguf *g, const struct arch *arch,
                      struct error *err);
