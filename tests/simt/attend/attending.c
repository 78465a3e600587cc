/* attending.c - the kernels of attend.h and of the nodes around it compared with lib/cpu, bit for bit:
 * generated sequences, head sizes, groups of heads, cache types, lengths, chunks, page tables, grids and
 * schedules.
 *
 *   simt_attending FIRST END
 *   ATTEND_CASE=n simt_attending      case n alone, with its report */
#include "attend_cases.h"

#include <stdlib.h>

/* Every third case is one of the general attention: one more than plain, or several. */
static void make_general(struct attend_shape *s, uint64_t n)
{
    static const uint32_t windows[] = {0, 1, 40, 64, 130}, long_heads[] = {192, 256, 512, 576};
    s->window = windows[n % 5];
    s->cap = n % 4 == 1 ? 1.5f : 0;
    s->temperatures = n % 3 == 1;
    s->sinks = n % 6 == 2;
    s->v_normed = n % 7 == 3;
    s->cached = n % 9 == 4;
    if (n % 4 == 0 && s->before < 1000) {
        s->head_dim = long_heads[n / 4 % 4];
        if (n / 4 % 2 == 1) { /* several units of a kv head */
            static const uint32_t many[] = {12, 20, 9, 10, 11};
            s->ratio = many[n / 8 % 5];
            s->n_kv_heads = 1 + (uint32_t)(n / 8 % 2);
        }
        s->before = 150;
        s->n_ctx = 200;
        s->n_steps = 2;
    }
    uint32_t least = attend_min_work(s->head_dim);
    s->work_bytes = s->work_bytes > least ? s->work_bytes : least;
}

/* True for a case of the nodes: 5 is prime to what head_dim and type go by. */
static bool is_of_nodes(uint64_t n)
{
    return n % 5 == 3;
}

static struct attend_shape shape_of(uint64_t n)
{
    static const uint32_t ratios[] = {1, 2, 4, 7, 8, 3}, works[] = {12288, 40960, 20480, 16384};
    struct attend_shape s = {.head_dim = 32 * (1 + (uint32_t)(n % 4)), .type = n / 4 % KV_N_TYPES};
    s.ratio = ratios[n / 3 % 6];
    s.n_kv_heads = 1 + (uint32_t)(n / 5 % 2);
    s.neox = n / 2 % 2;
    s.normed = n / 9 % 2;
    s.n_blocks = 1 + (uint32_t)(n / 2 % 4);
    s.n_warps = 2 + (uint32_t)(n / 8 % 7);
    s.work_bytes = works[n / 7 % 4];
    s.n_steps = 3;
    s.chunk = n % 3 ? 12 : 0;
    s.before = n % 2 ? 70 : 300;
    s.n_ctx = 400;
    s.max_rows = 24;
    s.kept = n % 11 == 7;
    bool behind = n % 120 == 39 || n % 120 == 63 || n % 120 == 78 || n % 120 == 99; /* two are nodes */
    if (n % 40 == 39 || behind) {                                                   /* where splits double */
        s.head_dim = 32;
        s.n_kv_heads = 1;
        s.before = 1026;
        s.n_ctx = 1100;
        s.n_steps = 2;
    }
    if (n % 3 == 0)
        make_general(&s, n / 3);
    if (behind) { /* a window of several splits, behind which their size stays, and rows that see other ones
                   */
        s.window = n % 120 == 99 ? 120 : n % 120 == 39 ? 1040 : 740; /* the second has splits of two pages */
        s.chunk = 20;
        s.ratio = 2; /* several rows in a group */
    }
    static const uint32_t others[] = {80, 16, 48, 112, 34, 100};
    if (is_of_nodes(n) && n / 5 % 2 && s.head_dim <= 128)
        s.head_dim = others[n / 10 % 6];
    s.rope_dim = n % 7 ? s.head_dim : s.head_dim / 4 * 2;
    return s;
}

static int run(uint64_t number)
{
    struct attend_case c;
    struct simt_report report = {0};
    attend_case_open(&c, shape_of(number), number);
    uint32_t sm = number / 2 % 2 ? 80 : 90;
    bool nodes = is_of_nodes(number);
    int rc = nodes ? attend_case_run_nodes(&c, sm, number, -1, &report)
                   : attend_case_run_grid(&c, sm, number, -1, &report);
    if (rc < 0) {
        printf("FAILED  case %llu, %s sm_%u: ", (unsigned long long)number, nodes ? "nodes" : "attend_grid",
               sm);
        simt_report_print(&report, stdout);
    }
    attend_case_close(&c);
    return rc;
}

/* A row of three splits on two blocks, of which the second has the middle one. */
static int lose(uint32_t sm)
{
    static const struct attend_shape shape = {32, 1, 6, KV_F16, 32, 1, 1, 2, 2, 12288, 200, 1, 1, 130, 0};
    struct attend_case c;
    struct simt_report report = {0};
    uint64_t number = 0;
    attend_case_open(&c, shape, number);
    while (c.steps[0].rows[0].pos < 128) { /* the first one that has three splits */
        attend_case_close(&c);
        attend_case_open(&c, shape, ++number);
    }
    int rc = attend_case_lose(&c, sm, number, &report);
    if (rc < 0) {
        printf("FAILED  a lost block, sm_%u: ", sm);
        simt_report_print(&report, stdout);
    }
    attend_case_close(&c);
    return rc;
}

int main(int argc, char **argv)
{
    const char *one = getenv("ATTEND_CASE");
    if (one)
        return run(strtoull(one, NULL, 10)) < 0;
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 0,
             end = argc > 2 ? strtoull(argv[2], NULL, 10) : 24;
    uint32_t failures = 0;
    for (uint64_t i = first; i < end && failures < 10; i++)
        failures += run(i) < 0;
    failures += lose(80) < 0;
    failures += lose(90) < 0;
    printf("cases %llu to %llu, %u failures\n", (unsigned long long)first, (unsigned long long)end, failures);
    return failures ? 1 : 0;
}
