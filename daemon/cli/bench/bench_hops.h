/* bench_hops.h - what a token's time at the client is made of: a stream of POST /generate over the loopback
 * interface, from a server and an engine in this process, which take the times of each token on its way.
 *
 * A token's way begins when the engine has seen the result of the step before, and ends when the client has
 * read the token's event. Its hops follow one another without a gap, so that they add up to the way. Those up
 * to the step's end make the distance between two tokens; the others run beside the next step. Thread: one.
 */
#pragma once
#include "bench.h"
#include "engine/engine.h"
#include "http/stream_times.h"

enum bench_hop {
    HOP_ENGINE,  /* retiring the step before, the engine's rounds, building and submitting this one */
    HOP_LENT,    /* the engine's thread wakes the loop and lends it its CPU */
    HOP_BORDER,  /* on cpu the step's turn and tables, on cuda its publishing and the look for its end */
    HOP_PCIE,    /* on cuda the rest of the step: its words and results on their way, and the host's look */
    HOP_KERNEL,  /* the ops */
    HOP_PUBLISH, /* from the result to the published token */
    HOP_WAKE,    /* until the loop's turn begins that takes it */
    HOP_HTTP,    /* text, event, and libmicrohttpd up to its hand-over */
    HOP_SOCKET,  /* sending, the interface, waking the client's thread, reading */
    BENCH_HOPS,
};
#define BENCH_CYCLE_HOPS HOP_PUBLISH /* the first of them: the distance between two tokens */

struct bench_figure { /* us */
    double mean, median, p90, p99;
};

struct bench_hops {
    char test[48];
    char machine[320]; /* model and device, for people */
    bool emulated;     /* the device: its times are of no use, and are not shown */
    bool by_device;    /* HOP_KERNEL and HOP_BORDER are medians of traced steps, by the device's clock, for
                          all tokens; else there is no HOP_PCIE */
    double empty_us;   /* by_device: what a step without rows takes there and back, alone; else 0 */
    int executor;      /* enum executor_kind */
    uint32_t n_streams, n_tokens; /* that the figures are of */
    uint32_t n_held; /* tokens left out: with no text of their own, in the event of a later one */
    uint32_t n_late; /* tokens that the loop took together with a later one */
    struct bench_figure hops[BENCH_HOPS], way;
    struct bench_figure gap;                /* between the client's reads of a token and of the one before */
    struct bench_figure beyond, beyond_gap; /* way and gap without HOP_KERNEL */
    /* All streams together, from each one's first event to its last: by the client's clock alone; the first
     * hops, up to the step's end, of the tokens in between; and by how much the other hops of the last token
     * took longer than those of the first. The first is the sum of the others. */
    int64_t client_ns, cycles_ns, shift_ns;
};

/* Measures one test: `streams` of them, after one that does not count. -EINVAL: it does not fit into the
 * context, or the executor is not persistent; -EIO: times that cannot be. */
int bench_hops(const struct config *cfg, const struct bench_test *test, uint32_t streams,
               struct bench_hops *out, struct error *err);
/* -EINVAL: the executor is not persistent. */
int bench_refuse_hops(struct error *err);
void bench_hops_print_table(const struct bench_hops *h, FILE *f);
void bench_hops_print_json(const struct bench_hops *h, FILE *f);

/* ---- the client ---- */

struct hops_read {    /* one token at the client */
    uint64_t ns;      /* when the client had all of its event */
    uint64_t n_bytes; /* length of all streams' bodies up to there */
    bool held;        /* its text came with a later one's, or has none */
};

/* The bytes of one reply, as they came. */
struct hops_reply {
    char *bytes;
    size_t n;
    struct hops_arrival {
        size_t end; /* bytes that were there */
        uint64_t ns;
    } * arrivals;
    size_t n_arrivals;
};
/* Finds the tokens of a stream of events in chunks: reads[n_tokens]. n_before: bytes of the bodies of earlier
 * streams; the sum with this one's in *n_after. -EIO: it is no such stream, has an error in it, or another
 * number of tokens; with words. */
int hops_reply_read(const struct hops_reply *r, uint32_t n_tokens, uint64_t n_before, struct hops_read *reads,
                    uint64_t *n_after, struct error *err);

struct hops_client {
    uint16_t port;
    char *body; /* the request's */
    uint32_t n_streams, n_tokens;
    struct hops_read *reads; /* [n_streams][n_tokens] */
    uint64_t n_bytes;        /* length of all replies' bodies */
};
/* Asks for one stream after the other. Any thread, blocking. */
int hops_client_run(struct hops_client *c, struct error *err);

/* ---- a device ---- */

struct hops_device {
    uint64_t kernel_ns; /* a step in the test's middle takes this from its first op to its last, by the
                           device's clock */
    uint64_t border_ns; /* and beside that from when the border has the step to when it has seen its end */
    uint64_t empty_ns;  /* a step without rows takes this by the host's clock: border and PCIe, nothing beside
                           them */
};
/* Loads the model and measures these: medians, or with `once` one look at each. */
int hops_device(const struct config *cfg, const struct bench_test *test, bool once, struct hops_device *out,
                struct error *err);

/* ---- figures ---- */

/* The times of n_streams streams of n_tokens each. The figures leave out the first stream, and the first
 * token of each, whose step reads the prompt. */
struct hops_seen {
    uint32_t n_streams, n_tokens;
    bool ahead;         /* a device that goes on with the next step by itself: HOP_ENGINE is what it waits */
    uint64_t kernel_ns; /* of every step; 0: as engine_times.ops_ns says, and the rest is the border's */
    uint64_t border_ns; /* of every step, if kernel_ns is given */
    const struct engine_times *engine; /* [n_streams][n_tokens], as the others */
    const struct stream_taken *taken;
    const struct hops_read *reads;
    const struct stream_handed *handed; /* [n_handed] */
    uint32_t n_handed;
};
/* Fills the fields of *out from n_tokens on. -EIO: times are out of order, with words; -EINVAL: no token has
 * text of its own; -ENOMEM. */
int hops_figures(const struct hops_seen *seen, struct bench_hops *out, struct error *err);
