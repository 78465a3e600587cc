/* api.h - the routes, and the handlers that answer them: api_*.c. A handler is called when the request's body
 * is there; it replies, fails, or suspends the request. Thread: loop. */
#pragma once
#include "http/http_route.h"

struct request;

/* Ends with a row without a path. */
extern const struct route api_routes[];

void api_health(struct request *r);
void api_health_live(struct request *r);
void api_health_proxy(struct request *r);
void api_stats(struct request *r);
void api_page(struct request *r);
void api_metrics(struct request *r);
void api_requests(struct request *r);
void api_cancel(struct request *r);
void api_models(struct request *r);
void api_model(struct request *r);
void api_tokenize(struct request *r);
void api_detokenize(struct request *r);
void api_admin_model(struct request *r);
void api_admin_suspend(struct request *r);
void api_admin_resume(struct request *r);
void api_generate(struct request *r); /* every dialect's generating route */
void api_ollama_tags(struct request *r);
void api_ollama_ps(struct request *r);
void api_ollama_show(struct request *r);
void api_ollama_version(struct request *r);
void api_peers_version(struct request *r);
void api_peers_load(struct request *r);
void api_peers_info(struct request *r);
void api_llama_props(struct request *r);
void api_llama_slots(struct request *r);
/* An error in OpenAI's form. */
void api_openai_put_error(struct buf *out, const struct api_error *e);
/* An error in TGI's form. */
void api_tgi_put_error(struct buf *out, const struct api_error *e);
/* An error in Ollama's form. */
void api_ollama_put_error(struct buf *out, const struct api_error *e);
/* An error in Anthropic's form. */
void api_anthropic_put_error(struct buf *out, const struct api_error *e);
