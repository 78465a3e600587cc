/* edge_order.h - edges together by the state they leave, in the order in which they came: a counting sort. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Makes counts, each in the place behind its own, the places where what is counted begins. */
static inline void edges_begin(uint32_t *first, uint32_t n_states)
{
    for (uint32_t s = 0; s < n_states; s++)
        first[s + 1] += first[s];
}

/* The same again, once each place has moved to its end, where the next one begins. */
static inline void edges_begin_again(uint32_t *first, uint32_t n_states)
{
    memmove(first + 1, first, n_states * sizeof *first);
    first[0] = 0;
}

static inline uint32_t edge_from(const void *edges, size_t size, uint32_t i)
{
    return *(const uint32_t *)((const char *)edges + size * i);
}

/* Copies n edges, of `size` bytes and with the state first, to `sorted`; those of state s are then first[s]
 * up to first[s + 1]. first[n_states + 1]. A constant size makes the copies moves. */
static inline void edges_by_state(void *sorted, const void *edges, size_t size, uint32_t n, uint32_t *first,
                                  uint32_t n_states)
{
    memset(first, 0, (n_states + 1) * sizeof *first);
    for (uint32_t i = 0; i < n; i++)
        first[edge_from(edges, size, i) + 1]++;
    edges_begin(first, n_states);
    for (uint32_t i = 0; i < n; i++)
        memcpy((char *)sorted + size * first[edge_from(edges, size, i)]++, (const char *)edges + size * i,
               size);
    edges_begin_again(first, n_states);
}
