/* The addresses of connections, and which of them has most that are idle. */
#include "http/peer.h"

#include <criterion/criterion.h>

#define N_PEERS 3000
#define LEVELS  20 /* some have more */

static uint32_t state = 7;

static uint32_t random_below(uint32_t n)
{
    state = state * 1664525 + 1013904223;
    return (uint32_t)(((uint64_t)state * n) >> 32);
}

static uint32_t most_of(struct peer *const *peers, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++)
        most = peers[i]->n_idle > most ? peers[i]->n_idle : most;
    return most;
}

static uint32_t clamp(uint32_t n)
{
    return n < LEVELS + 1 ? n : LEVELS + 1;
}

/* Against a walk over all, while some gain and some lose connections. */
Test(peer, the_largest_of_thousands_is_known_after_each_change)
{
    static struct peers all;
    static struct peer *peers[N_PEERS];
    cr_assert(peers_open(&all, LEVELS));
    for (uint64_t i = 0; i < N_PEERS; i++)
        cr_assert((peers[i] = peer_ref(&all, i * 0x100000001u)));
    cr_assert_eq(all.most, 0);
    for (uint32_t round = 0; round < 30000; round++) {
        struct peer *p = peers[random_below(round % 3 ? N_PEERS : 4)]; /* few of them grow */
        if (p->n_idle && random_below(8) < 4)
            peer_remove_idle(&all, p);
        else
            peer_add_idle(&all, p);
        if (round % 7)
            continue;
        uint32_t most = most_of(peers, N_PEERS);
        cr_assert_eq(all.most, clamp(most), "round %u: %u, %u expected", round, all.most, most);
        TAILQ_FOREACH(p, peers_largest(&all), level)
            cr_assert_eq(clamp(p->n_idle), all.most);
        cr_assert(TAILQ_FIRST(peers_largest(&all)));
    }
    for (uint32_t i = 0; i < N_PEERS; i++) {
        while (peers[i]->n_idle)
            peer_remove_idle(&all, peers[i]);
        peer_unref(peers[i]);
    }
    cr_assert_eq(all.most, 0);
    peers_close(&all);
}

Test(peer, an_address_is_one_peer_until_its_last_connection_goes)
{
    static struct peers all;
    cr_assert(peers_open(&all, LEVELS));
    struct peer *a = peer_ref(&all, 1), *b = peer_ref(&all, 1 + PEER_BUCKETS);
    cr_assert(a != b && peer_ref(&all, 1) == a && a->refs == 2);
    peer_unref(a);
    cr_assert_eq(peer_ref(&all, 1), a);
    peer_unref(a);
    peer_unref(a);
    peer_unref(b);
    for (int i = 0; i < PEER_BUCKETS; i++)
        cr_assert(LIST_EMPTY(&all.buckets[i]));
    peers_close(&all);
}
