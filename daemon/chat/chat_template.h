/* chat_template.h - how the model wants a conversation written: the template of its file, of the
 * configuration, or ChatML where its tokens exist and nothing else is said. Opened once at load, so that no
 * request has to look into the file; what it cannot do is said then. Thread: immutable after open; any thread
 * may render. Memory: the tokenizer must outlive it. */
#pragma once
#include "base/arena.h"
#include "base/error.h"
#include "jinja/jinja.h"
#include "toolcall/toolcall.h"

struct chat_template; /* opaque: the fields are in chat_template.c */
struct gguf;
struct tokenizer;

/* `choice`: a file's path, "chatml", or "" for what the model's file says. *out is NULL when there is none to
 * be had. -EINVAL: the chosen file; -ENOTSUP, -EBADMSG: the model's own, the words name line and construct.
 */
int chat_template_open(struct chat_template **out, const char *choice, const struct gguf *g,
                       const struct tokenizer *t, struct error *err);
void chat_template_close(struct chat_template *c); /* NULL is fine */
/* True if `choice` could be opened, as far as that can be told without a model. */
int chat_template_check(const char *choice, struct error *err);

/* The template as it was written; its own memory, *len bytes. */
const char *chat_template_source(const struct chat_template *c, size_t *len);
/* The marks of tool calls and reasoning that the template shows; "none" without a template. */
const struct toolcall_format *chat_template_format(const struct chat_template *c);
bool chat_template_reads(const struct chat_template *c, const char *variable);
/* The forms that the template takes where clients may use two: found at open, by rendering both. */
bool chat_template_wants_parts(const struct chat_template *c);         /* of a content, not its text */
bool chat_template_wants_argument_text(const struct chat_template *c); /* of a call, not an object */

bool chat_template_needs_descriptions(const struct chat_template *c); /* it fails on a tool without one */
/* It has the mark that opens its format's reasoning: its model may reason unasked. */
bool chat_template_shows_reasoning(const struct chat_template *c);
bool chat_template_needs_content(const struct chat_template *c); /* a text beside calls, not none */
/* It refuses a user's message behind another or behind a tool's result. */
bool chat_template_folds_user(const struct chat_template *c);
bool chat_template_takes_late_system(const struct chat_template *c); /* a system message behind others */
bool chat_template_wants_short_ids(const struct chat_template *c);   /* of calls: 9 letters and digits */

struct chat {            /* the variables of a rendering; JINJA_UNDEFINED: not given */
    struct arena *arena; /* of all of it, until it has been rendered */
    struct jinja_list *messages;
    struct jinja_value tools, documents;
    struct jinja_dict *variables; /* the client's own, or NULL; none of names that are given otherwise */
    bool add_generation_prompt;
    int64_t now; /* Unix seconds */
};

/* True if a template gets its value from elsewhere than chat.variables. */
bool chat_template_reserves(const char *variable);
/* Within limits.operations and limits.output; codes of jinja_render(). */
int chat_template_render(const struct chat_template *c, const struct chat *chat, struct jinja_limits limits,
                         struct arena *arena, struct jinja_text *out, struct error *err);
