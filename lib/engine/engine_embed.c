/* engine_embed.c - the vector of a prompt, from the hidden states of its tokens. They come as the prompt is
 * computed, in the order of its tokens whatever the chunks are, so the sum of floats has one order. */
#include "engine_private.h"

#include <math.h>

uint32_t engine_n_embedding(const struct engine *e)
{
    return executor_n_hidden(e->x);
}

static void add_row(struct engine *e, float *sum, uint32_t row, uint32_t n)
{
    executor_hidden(e->x, row, e->hidden);
    for (uint32_t i = 0; i < n; i++)
        sum[i] += e->hidden[i];
}

static void add_rows(struct engine *e, const struct engine_request *r, const struct span *rows, uint32_t n)
{
    uint32_t i = 0;
    if (rows->end == rows->n) { /* the first token is the sum so far */
        executor_hidden(e->x, rows->row, r->embedding);
        i = 1;
    }
    for (; i < rows->n; i++)
        add_row(e, r->embedding, rows->row + i, n);
    for (uint32_t k = 0; rows->end == r->n_prompt && k < n; k++)
        r->embedding[k] /= (float)r->n_prompt;
}

static bool is_finite(const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

bool engine_embed_rows(struct engine *e, const struct sequence *q, const struct span *rows)
{
    const struct engine_request *r = q->r;
    uint32_t n = engine_n_embedding(e);
    if (r->pooling == ENGINE_POOL_MEAN)
        add_rows(e, r, rows, n);
    else if (r->pooling == ENGINE_POOL_FIRST && rows->end == rows->n)
        executor_hidden(e->x, rows->row, r->embedding);
    else if (r->pooling == ENGINE_POOL_LAST && rows->end == r->n_prompt)
        executor_hidden(e->x, rows->row + rows->n - 1, r->embedding);
    return rows->end < r->n_prompt || is_finite(r->embedding, n);
}
