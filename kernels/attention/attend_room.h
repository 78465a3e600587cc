/* attend_room.h - the work area of attention: the op's arguments, its units, and room for queries, scores and
 * pages. All of it is in shared memory, so that little has to stay in registers.
 *
 * The rows of a step are cut into groups: neighbouring rows of one slot and one split size, at most
 * group_rows, cut where the row's index is a multiple of it. A unit is (group, split, kv head), in the
 * general attention (group, split, part of a kv head's query heads: attend_unit_heads()); unit u belongs to
 * block u % n_blocks. A block reserves its units in batches: it looks up a batch's units together and draws
 * their tickets together.
 *
 * GENERAL  A parameter `general`, constant wherever it is passed, chooses between two versions of the same
 * code: the plain one, for heads of up to 128 values that see their whole past, and the general one, which
 * has the rest (attend.h). With a window the first units of a group begin at the page of the first token that
 * its first row sees.
 *
 * Thread: all compute threads of a block, together, unless a function says one warp or one thread. */
#pragma once
#include "abi/attend_layout.h"
#include "device/compute_warps.h"
#include "kv_tile.h"
#include "abi/step.h"

#define ATTEND_BATCH       32 /* units, one per lane of the warp that looks them up */
#define ATTEND_QUERIES     16 /* (row, head) pairs that share the reading of a page, if rows do */
#define ATTEND_MIN_PIECE   8  /* tokens: whole 16 bytes of scales */
#define ATTEND_QUERY_STATS 4  /* words per query: enum attend_stat */
#define ATTEND_CODE_BYTES  (KV_PAGE_TOKENS * 2) /* a page's weights for a block of q8_0 values */
#define attend_f4          float __attribute__((vector_size(16)))
#define attend_u2          uint32_t __attribute__((vector_size(8)))

struct attend_unit {
    uint32_t row;
    uint16_t n_rows;                   /* rows of the group */
    uint16_t split_shift;              /* a split of them has 1 << split_shift tokens */
    uint32_t slot, last;               /* position of its last row */
    uint32_t kv_head, split, n_splits; /* split: of n_splits, the units of the group and heads */
    uint32_t first_split;              /* of those, counted from position 0: the first that a row sees */
    uint32_t part;                     /* counted over all kv heads; without parts kv_head */
    uint32_t first_page, n_pages;      /* pages of the sequence */
};

/* A place in a batch's stream of pieces (attend.h). */
struct attend_place {
    uint32_t unit; /* index in the batch; n_batch: end of the stream */
    uint32_t pass, page, piece;
    uint32_t slot;   /* slot of the ring */
    uint32_t passes; /* passes so far in the batch */
};
#define ATTEND_PLACES 8 /* the next few places: those that fill the ring, and two more */

enum attend_stat { ATTEND_MAX, ATTEND_SUM, ATTEND_FACTOR, ATTEND_POS };

/* Blocks of q8_0 values for which each query has room for a step (struct arith_weights). */
SIMT_INLINE uint32_t attend_step_blocks(const bool general, uint32_t head_dim)
{
    uint32_t blocks = (general ? head_dim : ATTEND_PLAIN_HEAD_DIM) / ARITH_BLOCK;
    return (blocks + 3) / 4 * 4; /* whole 16 bytes */
}

struct attend_room {
    struct attend_args in;
    uint64_t rows;   /* struct step_row [n_rows] */
    uint64_t handed; /* not 0: rows of few splits hand their parts over in words there: attend_is_handed() */
    uint32_t n_rows;
    uint32_t lone_rows;            /* no two rows share a slot */
    uint32_t ratio;                /* query heads of a unit */
    uint32_t parts;                /* a kv head has so many units a split */
    uint32_t group_rows;           /* > 1 only if a pass takes all query heads */
    uint32_t pass_heads;           /* query heads that go through a page together */
    uint32_t n_queries;            /* queries for which there is room */
    uint32_t piece_shift;          /* a piece of a tile has 1 << piece_shift tokens: one slot of the ring */
    uint32_t piece_bytes, n_slots; /* n_slots: 2 or 3 */
    uint32_t max_splits;
    struct kv_tile tile;
    uint32_t n_units, n_batch; /* units of all blocks; units in units[] */
    uint32_t more;             /* this block has units behind the batch */
    uint32_t whole;         /* the first batch had all of its units: it still stands at the end of a layer */
    uint32_t tickets;       /* a bit per unit of the batch that draws a ticket */
    uint32_t last_arrivals; /* a bit per unit of the batch: this block merges it */
    /* Offsets in the work area. */
    uint32_t first_split; /* u32 [n_rows + 1]: splits of all groups before that row */
    uint32_t stats;       /* [2][n_queries][ATTEND_QUERY_STATS], alternating by pass */
    uint32_t stage;       /* float [2][head_dim]: a row's own k and v */
    uint32_t queries;     /* [n_queries][head_dim * 4 bytes], scaled: attend_put_query() */
    uint32_t outs;        /* float [n_queries][head_dim] */
    uint32_t sums;        /* q8_0: int32 [n_queries][head_dim]: sums of the page so far */
    uint32_t steps;       /* q8_0: float [n_queries][attend_step_blocks()], of the page */
    uint32_t codes;       /* q8_0: [n_queries][blocks][ATTEND_CODE_BYTES], of the page: attend_put_code() */
    uint32_t scores;      /* float [n_queries][KV_PAGE_TOKENS] */
    uint32_t ring;        /* [n_slots][piece_bytes] */
    struct attend_unit units[ATTEND_BATCH];
    struct attend_place places[ATTEND_PLACES]; /* the n-th is at n % ATTEND_PLACES */
};

SIMT_INLINE uint32_t attend_round16(uint32_t n)
{
    return (n + 15) / 16 * 16;
}

/* Bytes of work area per query. */
SIMT_INLINE uint32_t attend_query_bytes(const bool general, uint32_t head_dim, bool q8)
{
    return 2 * head_dim * 4 + KV_PAGE_TOKENS * 4 + 2 * ATTEND_QUERY_STATS * 4 +
           (q8 ? head_dim * 4 + attend_step_blocks(general, head_dim) * 4 +
                     head_dim / ARITH_BLOCK * ATTEND_CODE_BYTES
               : 0);
}

/* Divides the work area: as many queries as wanted beside two pieces, and pieces as large as then possible;
 * with less room, fewer queries. */
SIMT_INLINE void attend_room_share(const bool general, SIMT_SHARED struct attend_room *room, uint32_t bytes)
{
    uint32_t ratio = room->ratio, wanted = ratio, head_dim = room->in.layout.head_dim;
    uint32_t token = room->tile.row_bytes + room->tile.scale_bytes;
    uint32_t per_query = attend_query_bytes(general, head_dim, room->tile.scale_bytes != 0);
    if (!room->lone_rows && ratio < ATTEND_QUERIES)
        wanted = ATTEND_QUERIES / ratio * ratio;
    uint32_t shift = 6;
    while (1u << shift > ATTEND_MIN_PIECE && wanted * per_query + (token << shift) * 2 > bytes)
        shift--;
    uint32_t piece = token << shift, queries = (bytes - 2 * piece) / per_query;
    queries = queries < wanted ? queries : wanted;
    uint32_t slots = (bytes - queries * per_query) / piece; /* 4 would equal 2 of pieces twice as large */
    room->n_slots = shift < 6 && slots > 2 ? 3 : 2;
    room->n_queries = queries;
    room->pass_heads = queries < ratio ? queries : ratio;
    room->group_rows = room->lone_rows || queries < ratio ? 1 : queries / ratio;
    room->piece_shift = shift;
    room->piece_bytes = piece;
}

SIMT_INLINE void attend_room_place(const bool general, SIMT_SHARED struct attend_room *room)
{
    uint32_t head_dim = room->in.layout.head_dim;
    uint32_t at = attend_round16(sizeof *room);
    room->first_split = at;
    at += attend_round16((room->n_rows + 1) * 4);
    room->stage = at;
    at += 2 * head_dim * 4;
    attend_room_share(general, room, room->in.work_bytes - at);
    room->stats = at;
    at += 2 * room->n_queries * ATTEND_QUERY_STATS * 4;
    room->queries = at;
    at += room->n_queries * head_dim * 4;
    room->outs = at;
    at += room->n_queries * head_dim * 4;
    room->sums = at;
    at += room->tile.scale_bytes ? room->n_queries * head_dim * 4 : 0;
    room->steps = at;
    at += room->tile.scale_bytes ? room->n_queries * attend_step_blocks(general, head_dim) * 4 : 0;
    room->codes = at;
    at += room->tile.scale_bytes ? room->n_queries * (head_dim / ARITH_BLOCK) * ATTEND_CODE_BYTES : 0;
    room->scores = at;
    at += room->n_queries * KV_PAGE_TOKENS * 4;
    room->ring = at;
}

/* Sets what differs between the layers of a kind. */
SIMT_INLINE void attend_room_layer(const bool general, SIMT_SHARED struct attend_args *to,
                                   const struct attend_args *in)
{
    to->in = in->in;
    to->out = in->out;
    to->q_gain = in->q_gain;
    to->k_gain = in->k_gain;
    to->q_col = in->q_col;
    to->k_col = in->k_col;
    to->v_col = in->v_col;
    to->layer = in->layer;
    to->eps = in->eps;
    to->scale = in->scale;
    if (!general)
        return;
    to->sinks = in->sinks;
    to->cached = in->cached;
    to->v_normed = in->v_normed;
}

/* Copies field by field: a copy of the whole struct would go through local memory. */
SIMT_INLINE void attend_room_args(const bool general, SIMT_SHARED struct attend_args *to,
                                  const struct attend_args *in)
{
    attend_room_layer(general, to, in);
    to->cosines = in->cosines;
    to->sines = in->sines;
    to->kv = in->kv;
    to->scratch = in->scratch;
    to->layout.n_layers = in->layout.n_layers;
    to->layout.n_kv_heads = in->layout.n_kv_heads;
    to->layout.head_dim = in->layout.head_dim;
    to->layout.type = in->layout.type;
    to->layout.page_bytes = in->layout.page_bytes;
    to->layout.at = in->layout.at;
    to->slots.tables = in->slots.tables;
    to->slots.n_slots = in->slots.n_slots;
    to->slots.n_ctx = in->slots.n_ctx;
    to->slots.pages_per_slot = in->slots.pages_per_slot;
    to->slots.n_pages = in->slots.n_pages;
    to->max_rows = in->max_rows;
    to->ready = in->ready;
    to->in_stride = in->in_stride;
    to->out_stride = in->out_stride;
    to->n_heads = in->n_heads;
    to->rope_dim = in->rope_dim;
    to->neox = in->neox;
    to->work = in->work;
    to->work_bytes = in->work_bytes;
    if (!general)
        return;
    to->temperatures = in->temperatures;
    to->window = in->window;
    to->cap = in->cap;
}

/* Sets up the work area, by one thread. */
SIMT_INLINE void attend_room_set(const bool general, SIMT_SHARED struct attend_room *room,
                                 const struct attend_args *in, const SIMT_GLOBAL struct step_row *rows,
                                 uint32_t n_rows, bool lone_rows)
{
    attend_room_args(general, &room->in, in);
    room->rows = (uint64_t)(uintptr_t)rows;
    room->n_rows = n_rows;
    room->lone_rows = lone_rows;
    uint32_t ratio = in->n_heads / in->layout.n_kv_heads;
    room->ratio = general ? attend_unit_heads(ratio) : ratio;
    room->parts = ratio / room->ratio;
    room->max_splits = attend_max_splits(in->slots.n_ctx, general ? in->window : 0);
    struct kv_tile tile = kv_tile_of(in->layout.head_dim, in->layout.type);
    room->tile.type = tile.type;
    room->tile.unit_shift = tile.unit_shift;
    room->tile.unit_mask = tile.unit_mask;
    room->tile.unit_bytes = tile.unit_bytes;
    room->tile.shift = tile.shift;
    room->tile.mask = tile.mask;
    room->tile.row_bytes = tile.row_bytes;
    room->tile.scale_bytes = tile.scale_bytes;
    attend_room_place(general, room);
}

#define ATTEND_AT(type, room, part) ((SIMT_SHARED type *)((SIMT_SHARED char *)(room) + (room)->part))

SIMT_INLINE const SIMT_GLOBAL struct step_row *attend_rows(const SIMT_SHARED struct attend_room *room)
{
    return DECODER_AT(const struct step_row, room->rows);
}

SIMT_INLINE struct kv_tile attend_tile(const SIMT_SHARED struct attend_room *room)
{
    return (struct kv_tile){room->tile.type,       room->tile.unit_shift, room->tile.unit_mask,
                            room->tile.unit_bytes, room->tile.shift,      room->tile.mask,
                            room->tile.row_bytes,  room->tile.scale_bytes};
}

/* The id of a sequence's page; n_pages or more: no page. */
SIMT_INLINE uint32_t attend_page_of(const SIMT_SHARED struct attend_room *room, uint32_t slot, uint32_t page)
{
    return DECODER_AT(const uint32_t, room->in.slots.tables)[slot * room->in.slots.pages_per_slot + page];
}

SIMT_INLINE SIMT_GLOBAL char *attend_tile_at(const SIMT_SHARED struct attend_room *room, uint32_t id,
                                             uint32_t kv_head, uint32_t which)
{
    struct kv_layout l = {.n_layers = room->in.layout.n_layers,
                          .n_kv_heads = room->in.layout.n_kv_heads,
                          .head_dim = room->in.layout.head_dim,
                          .type = room->in.layout.type,
                          .page_bytes = room->in.layout.page_bytes,
                          .at = room->in.layout.at};
    return DECODER_AT(char, room->in.kv) + kv_offset(&l, id, room->in.layer, kv_head, which);
}

/* The plain attention has no window: what follows from one is a constant there. */
SIMT_INLINE uint32_t attend_window(const bool general, const SIMT_SHARED struct attend_room *room)
{
    return general ? room->in.window : 0;
}

/* Returns whether row r continues the group of the row before it. */
SIMT_INLINE bool attend_goes_on(const bool general, const SIMT_SHARED struct attend_room *room, uint32_t r)
{
    const SIMT_GLOBAL struct step_row *rows = attend_rows(room);
    uint32_t window = attend_window(general, room);
    return r % room->group_rows && rows[r].slot == rows[r - 1].slot &&
           arith_split(rows[r].pos, window) == arith_split(rows[r - 1].pos, window);
}

/* Splits of the group that begins at row r; 0 if none does. */
SIMT_INLINE uint32_t attend_group_splits(const bool general, const SIMT_SHARED struct attend_room *room,
                                         uint32_t r)
{
    if (attend_goes_on(general, room, r))
        return 0;
    uint32_t last = r, window = attend_window(general, room);
    while (last + 1 < room->n_rows && attend_goes_on(general, room, last + 1))
        last++;
    return attend_end_split(window, attend_rows(room)[last].pos) -
           attend_first_split(window, attend_rows(room)[r].pos);
}

/* Checks the rows and counts the splits of each group into first_split[r + 1]; attend_sum_splits() sums them
 * up. False: a row is out of range. */
SIMT_INLINE bool attend_count_splits(const bool general, const struct crew *crew,
                                     const struct flow_guard *guard, SIMT_SHARED struct attend_room *room)
{
    const SIMT_GLOBAL struct step_row *rows = attend_rows(room);
    SIMT_SHARED uint32_t *first = ATTEND_AT(uint32_t, room, first_split);
    uint32_t n_slots = room->in.slots.n_slots, n_ctx = room->in.slots.n_ctx;
    bool bad = false;
    for (uint32_t r = simt_thread(); r < room->n_rows; r += crew->n_threads) {
        if (rows[r].slot >= n_slots || rows[r].pos >= n_ctx) {
            bool slot = rows[r].slot >= n_slots;
            flow_fail(guard, DECODER_RANGE, DECODER_RANGE_ROW, slot ? rows[r].slot : rows[r].pos,
                      slot ? n_slots : n_ctx);
            bad = true;
        } else {
            first[r + 1] = attend_group_splits(general, room, r);
        }
    }
    if (simt_thread() == 0)
        first[0] = 0;
    return !crew_any(crew, bad);
}

/* Units of a group's split. */
SIMT_INLINE uint32_t attend_parts(const bool general, const SIMT_SHARED struct attend_room *room)
{
    return room->in.layout.n_kv_heads * (general ? room->parts : 1);
}

/* Turns the counts into running sums, by one warp. */
SIMT_INLINE void attend_sum_splits(const bool general, SIMT_SHARED struct attend_room *room)
{
    SIMT_SHARED uint32_t *first = ATTEND_AT(uint32_t, room, first_split);
    uint32_t lane = simt_lane(), total = 0;
    for (uint32_t start = 0; start < room->n_rows; start += SIMT_LANES) {
        uint32_t r = start + lane, sum = r < room->n_rows ? first[r + 1] : 0;
        for (uint32_t w = 1; w < SIMT_LANES; w *= 2) {
            uint32_t below = simt_shfl_u32(sum, (lane - w) % SIMT_LANES);
            sum += lane >= w ? below : 0;
        }
        if (r < room->n_rows)
            first[r + 1] = total + sum;
        total += simt_shfl_u32(sum, SIMT_LANES - 1);
    }
    if (lane == 0)
        room->n_units = total * attend_parts(general, room);
    simt_syncwarp();
}

/* Returns the first split, counted from position 0, of which a row of the unit at position pos sees a
 * token. */
SIMT_INLINE uint32_t attend_row_first(const bool general, const SIMT_SHARED struct attend_room *room,
                                      const SIMT_SHARED struct attend_unit *u, uint32_t pos)
{
    return attend_first_seen(attend_window(general, room), pos) >> u->split_shift;
}

/* Returns the number of splits of which row `row` of the unit sees a token. */
SIMT_INLINE uint32_t attend_row_splits(const bool general, const SIMT_SHARED struct attend_room *room,
                                       const SIMT_SHARED struct attend_unit *u, uint32_t row)
{
    if (u->n_rows == 1)
        return u->n_splits;
    uint32_t pos = attend_rows(room)[row].pos;
    return (pos >> u->split_shift) + 1 - attend_row_first(general, room, u, pos);
}

/* Moves a unit to the splits that the group's first row sees, and to the first page there. */
SIMT_INLINE void attend_find_pages(const SIMT_SHARED struct attend_room *room,
                                   SIMT_SHARED struct attend_unit *u, uint32_t pages)
{
    uint32_t pos = attend_rows(room)[u->row].pos;
    uint32_t seen = attend_first_seen(room->in.window, pos) / KV_PAGE_TOKENS;
    u->first_split = attend_row_first(true, room, u, pos);
    u->first_page += u->first_split * pages;
    u->first_page = u->first_page > seen ? u->first_page : seen;
}

SIMT_INLINE void attend_find_unit(const bool general, const SIMT_SHARED struct attend_room *room,
                                  SIMT_SHARED struct attend_unit *u, uint32_t index)
{
    const SIMT_SHARED uint32_t *first = ATTEND_AT(const uint32_t, room, first_split);
    uint32_t n_parts = attend_parts(general, room), split = index / n_parts;
    uint32_t row = 0, end = room->n_rows; /* first[row] <= split < first[end] */
    while (end - row > 1) {
        uint32_t middle = (row + end) / 2;
        if (first[middle] <= split)
            row = middle;
        else
            end = middle;
    }
    while (end < room->n_rows && first[end + 1] == first[end]) /* rows that begin no group */
        end++;
    uint32_t last = attend_rows(room)[end - 1].pos;
    uint32_t tokens = arith_split(last, attend_window(general, room)), pages = tokens / KV_PAGE_TOKENS;
    u->row = row;
    u->n_rows = (uint16_t)(end - row);
    u->split_shift = (uint16_t)__builtin_ctz(tokens);
    u->slot = attend_rows(room)[row].slot;
    u->last = last;
    u->part = index % n_parts;
    u->kv_head = general ? u->part / room->parts : u->part;
    u->split = split - first[row];
    u->n_splits = first[row + 1] - first[row];
    u->first_page = u->split * pages;
    if (general)
        attend_find_pages(room, u, pages);
    uint32_t left = last / KV_PAGE_TOKENS + 1 - u->first_page;
    uint32_t most = general ? (u->first_split + u->split + 1) * pages - u->first_page : pages;
    u->n_pages = left < most ? left : most;
}

SIMT_INLINE uint32_t attend_n_passes(const SIMT_SHARED struct attend_room *room)
{
    return (room->ratio + room->pass_heads - 1) / room->pass_heads;
}

/* Sets the place after `from`, by one thread. */
SIMT_INLINE void attend_next_place(const SIMT_SHARED struct attend_room *room,
                                   SIMT_SHARED struct attend_place *to,
                                   const SIMT_SHARED struct attend_place *from)
{
    uint32_t unit = from->unit, pass = from->pass, page = from->page, piece = from->piece + 1;
    uint32_t slot = from->slot + 1, passes = from->passes;
    if (piece == 2 * KV_PAGE_TOKENS >> room->piece_shift) {
        piece = 0;
        page++;
    }
    if (unit < room->n_batch && page == room->units[unit].n_pages) {
        page = 0;
        pass++;
        passes++;
    }
    if (pass == attend_n_passes(room)) {
        pass = 0;
        unit++;
    }
    to->unit = unit;
    to->pass = pass;
    to->page = page;
    to->piece = piece;
    to->slot = slot == room->n_slots ? 0 : slot;
    to->passes = passes;
}

/* Sets the places that fill the ring at the start of a batch, and the next one, by one thread. */
SIMT_INLINE void attend_first_places(SIMT_SHARED struct attend_room *room)
{
    SIMT_SHARED struct attend_place *p = room->places;
    p->unit = p->pass = p->page = p->piece = p->slot = p->passes = 0;
    for (uint32_t i = 0; i < room->n_slots; i++)
        attend_next_place(room, p + i + 1, p + i);
}

/* Where the words of parts that are handed over are: two layers in turn have their own. */
SIMT_INLINE uint64_t attend_words_at(const SIMT_SHARED struct attend_room *room)
{
    const SIMT_SHARED struct attend_args *in = &room->in;
    return in->scratch + attend_handed_at(in->max_rows, in->n_heads, in->layout.head_dim, room->max_splits) +
           in->layer % 2 * attend_handed_bytes(in->n_heads, in->layout.head_dim);
}

/* Returns whether a unit's part is handed over as words, without a ticket. */
SIMT_INLINE bool attend_is_handed(const SIMT_SHARED struct attend_room *room,
                                  const SIMT_SHARED struct attend_unit *u)
{
    return room->handed && u->n_splits > 1 && u->n_splits <= ATTEND_HANDED_SPLITS;
}

/* Looks up this block's units from number `done` on and the first places of their stream, by one warp. The
 * stream begins in the first unit, which lane 0 has looked up itself. */
SIMT_INLINE void attend_find_batch(const bool general, SIMT_SHARED struct attend_room *room, uint32_t done)
{
    uint32_t lane = simt_lane(), n_blocks = simt_n_blocks(), n_units = room->n_units;
    uint32_t index = simt_block() + (done + lane) * n_blocks;
    if (index < n_units)
        attend_find_unit(general, room, &room->units[lane], index);
    bool handed = !general && room->lone_rows && room->n_rows <= ATTEND_HANDED_ROWS &&
                  n_units <= ATTEND_BATCH * n_blocks; /* a block that waits has no further batch */
    bool splits = index < n_units && room->units[lane].n_splits > 1;
    uint32_t tickets = simt_ballot(splits && !(handed && room->units[lane].n_splits <= ATTEND_HANDED_SPLITS));
    uint32_t found = simt_ballot(index < n_units), n = 0;
    for (; found; found &= found - 1)
        n++;
    if (lane != 0)
        return;
    room->n_batch = n;
    room->more = simt_block() + (done + ATTEND_BATCH) * n_blocks < n_units;
    room->whole = done == 0 && !room->more;
    room->handed = handed ? attend_words_at(room) : 0;
    room->tickets = tickets;
    attend_first_places(room);
}

/* Takes up the plan of the layer before: it has one batch. By one thread; a barrier must follow. */
SIMT_INLINE void attend_room_again(const bool general, SIMT_SHARED struct attend_room *room,
                                   const struct attend_args *in)
{
    attend_room_layer(general, &room->in, in);
    if (room->handed)
        room->handed = attend_words_at(room);
    attend_first_places(room);
}
