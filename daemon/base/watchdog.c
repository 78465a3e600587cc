#include "watchdog.h"

#include <assert.h>

static void begin(struct watchdog *w, const struct watchdog_signs *signs)
{
    w->begun = true;
    w->checked_ns = signs->now_ns;
    w->engine_ns = signs->engine_ns;
    w->decoder_ns = signs->decoder_ns;
    w->decoder_idle = signs->decoder_idle;
}

enum watchdog_verdict watchdog_check(struct watchdog *w, const struct watchdog_signs *signs)
{
    if (w->limit_ns == 0)
        return WATCHDOG_ALIVE;
    if (!w->begun)
        begin(w, signs);
    assert(signs->now_ns >= w->checked_ns); /* else each look back would count as a quarter of the limit */
    uint64_t gap = signs->now_ns - w->checked_ns;
    if (gap > w->limit_ns / 4)
        gap = w->limit_ns / 4;

    bool decoder_beat = signs->decoder_ns != w->decoder_ns;
    bool engine_beat = signs->engine_ns != w->engine_ns || (decoder_beat && !signs->decoder_idle);
    bool decoder_idle = signs->decoder_idle || w->decoder_idle; /* now, or until a moment ago */
    w->decoder_silent_ns = decoder_beat || decoder_idle ? 0 : w->decoder_silent_ns + gap;
    w->engine_silent_ns = engine_beat ? 0 : w->engine_silent_ns + gap;
    begin(w, signs);

    if (w->decoder_silent_ns >= w->limit_ns)
        return WATCHDOG_DECODER_STALLED;
    return w->engine_silent_ns >= w->limit_ns ? WATCHDOG_ENGINE_STALLED : WATCHDOG_ALIVE;
}
