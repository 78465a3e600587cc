/* api_openai_private.h - what OpenAI's dialects share: readers of fields and parts of replies. Thread: loop;
 * readers may run on the pool. */
#pragma once
#include "generation/generation.h"

#define AT(field) offsetof(struct params, field)
#define IGNORED(n)                                                                                           \
    {                                                                                                        \
        .name = n, .kind = FIELD_IGNORED                                                                     \
    }
#define INERT(n)                                                                                             \
    {                                                                                                        \
        .name = n, .kind = FIELD_CUSTOM, .read = openai_read_inert                                           \
    }
#define WORD(n)                                                                                              \
    {                                                                                                        \
        .name = n, .kind = FIELD_CUSTOM, .read = openai_read_word                                            \
    }
#define COMMON_FIELDS                                                                                        \
    IGNORED("user"), {.name = "stream_options", .kind = FIELD_CUSTOM, .read = openai_read_stream_options},   \
    {                                                                                                        \
        .name = "max_tokens", .kind = FIELD_CUSTOM, .read = read_max_tokens                                  \
    }

int openai_read_inert(struct field_reader *r, const struct field *f, const json_t *value);
int openai_read_word(struct field_reader *r, const struct field *f, const json_t *value);
int openai_read_suffix(struct field_reader *r, const struct field *f, const json_t *value);
/* Makes ids of the prompt and its suffix. 0 or -1 with *err. */
int openai_put_suffix(struct generation *g, struct api_error *err);
int openai_read_stream_options(struct field_reader *r, const struct field *f, const json_t *value);
int openai_read_effort(struct field_reader *r, const struct field *f, const json_t *value);
/* Names of other servers' fields (openai_extras.c). */
extern const struct field openai_extras[], chat_extras[];

/* {"id":..,"choices":[ */
void openai_put_head(struct generation *g, struct buf *out, const char *object);
void openai_put_usage(struct buf *out, const struct generation *g);
/* The member prompt_logprobs, if it was asked for. */
void openai_put_prompt(struct generation *g, struct buf *out);
void openai_put_token_key(struct buf *out, const struct generation *g, int32_t token);
void openai_close_chunk(const struct generation *g, struct buf *out);
/* The reply of a dialect that only counts the prompt's tokens. */
void openai_put_count(struct generation *g, struct buf *out);
/* The usage event, if it was asked for, and [DONE]. */
void openai_put_last(struct generation *g, struct buf *out, const char *object);
