/* api_chat.h - what the dialects that are translated into chats share with OpenAI's. Thread: loop or pool. */
#pragma once
#include "chat/chat_json.h"
#include "generation/generation.h"

extern const struct field chat_fields[];
void chat_defaults(struct params *p);
int chat_dialect_prepare(struct generation *g, struct api_error *err);
/* Makes `logprobs` and `top_logprobs`, which are a switch and a number there, what the engine takes. */
int chat_prepare_logprobs(struct params *p, struct api_error *err);
/* The call's arguments if they are a whole JSON object, else {}: for replies that hold an object. */
void chat_put_input(struct buf *out, const struct answer_call *call);
/* The name of the loaded model, as a string. */
void chat_put_model(struct buf *out, const struct generation *g);
/* The log-probabilities of a piece's tokens, as an array. */
void chat_put_logprobs(struct buf *out, const struct choice *c, const struct piece *piece);
/* llama-server's member of its replies: ,"timings":{..} of a choice. */
void llama_put_timings(struct buf *out, const struct choice *c);
