#include "close_watch.h"

enum close_verdict close_watch_look(struct close_watch *w, uint64_t moves)
{
    w->n_still = moves == w->moves ? w->n_still + 1 : 0;
    w->moves = moves;
    if (w->n_still == 0)
        return CLOSE_MOVED;
    return w->n_still < CLOSE_STILL_MOST ? CLOSE_STILL : CLOSE_HANGS;
}
