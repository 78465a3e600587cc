#include "load_notice.h"

bool load_notice_due(struct load_notice *n, double fraction, uint64_t moves, uint64_t now_ns)
{
    uint32_t percent = (uint32_t)(fraction * 100);
    bool moved = moves != n->moves && now_ns - n->said_ns >= LOAD_NOTICE_MS * 1000000ull;

    if (percent == n->percent && !moved)
        return false;
    *n = (struct load_notice){.percent = percent, .moves = moves, .said_ns = now_ns};
    return true;
}
