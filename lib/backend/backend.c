/* backend.c - what the backends have in common. */
#include "backend/backend.h"
#include "abi/device_abi.h"

#include <errno.h>

int backend_check_config(const struct backend_config *cfg, struct error *err)
{
    if (cfg->n_slots < 1 || cfg->n_slots > STEP_MAX_SLOTS)
        return error_set(err, -EINVAL, "%u slots, must be 1..%u", cfg->n_slots, STEP_MAX_SLOTS);
    if (cfg->n_ctx < 1 || cfg->n_ctx > 1u << 24)
        return error_set(err, -EINVAL, "a context of %u tokens, must be 1..%u", cfg->n_ctx, 1u << 24);
    if (cfg->steps_in_flight > DECODER_RING)
        return error_set(err, -EINVAL, "%u steps in flight, must be 1 or 2", cfg->steps_in_flight);
    if (cfg->kv_type >= KV_N_TYPES)
        return error_set(err, -EINVAL, "unknown KV cache type %u", (unsigned)cfg->kv_type);
    return 0;
}
