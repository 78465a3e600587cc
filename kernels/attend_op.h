/* attend_op.h - the program's op ATTEND, for the persistent decoder: QK-norm, RoPE, append and attention. */
#pragma once
#include "attend.h"
#include "walk.h"

/* False: leave, as walk.h says; a row or page out of range has been recorded then. */
SIMT_INLINE bool attend_op(struct walk *w);
