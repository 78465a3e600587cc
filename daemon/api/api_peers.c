/* api_peers.c - small facts that clients of other servers ask for first: vLLM's GET /version, /load and
 * /ping, TGI's GET /info. */
#include "api.h"
#include "generation/generation.h"
#include "model/model.h"

void api_peers_version(struct request *r)
{
    buf_puts(&r->out, "{\"version\":\"" HEARTH_VERSION "\"}\n");
    request_reply(r, 200);
}

/* Requests that run or wait. */
void api_peers_load(struct request *r)
{
    struct server_load load = generator_load(r->server->generator);
    buf_printf(&r->out, "{\"server_load\":%u}\n", load.running + load.waiting);
    request_reply(r, 200);
}

void api_peers_info(struct request *r)
{
    const struct server_model *m = r->server->generator->model;
    struct buf *out = &r->out;
    buf_puts(out, "{\"model_id\":");
    json_put_str(out, model_config(m->model)->name);
    buf_printf(out, ",\"model_sha\":\"%016llx\",\"model_pipeline_tag\":\"text-generation\"",
               (unsigned long long)m->hash);
    buf_printf(out, ",\"max_concurrent_requests\":%u,\"max_best_of\":%d,\"max_stop_sequences\":%d",
               r->server->cfg->slots + r->server->cfg->queue_limit, GENERATE_MAX_CHOICES, GENERATE_MAX_STOPS);
    buf_printf(out, ",\"max_input_tokens\":%u,\"max_total_tokens\":%u,\"max_client_batch_size\":1",
               m->n_ctx - 1, m->n_ctx);
    buf_puts(out, ",\"validation_workers\":1,\"router\":\"hearthd\",\"version\":\"" HEARTH_VERSION
                  "\",\"sha\":null,\"docker_label\":null}\n");
    request_reply(r, 200);
}
