/* litmus.c - the outcomes that the PTX memory model allows of small programs, by trying them all: litmus
 * FILE.
 *
 * FILE (litmus.txt) has programs made of the decoder's own hand-overs, the outcomes that must never be, and
 * for each order, fence or scope in them the program without it, in which such an outcome must be possible:
 * so each of them is needed, and the test can fail. The emulator shows no outcome of weak memory; this does.
 *
 * An execution chooses for each read the write that it reads, for each location an order of its writes, and
 * an order of the fence.sc. It is allowed if it breaks none of the axioms of PTX ISA 8.0, chapter 8; the
 * numbers of its sections stand beside the code. All accesses have one size and use the generic proxy.
 *
 * Thread: one. */
#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_EVENTS  24
#define MAX_THREADS 6
#define MAX_NAMES   12
#define MAX_LINES   24
#define INIT        (-1)
#define HOST        (-1)

enum kind { NOTHING, LOAD, STORE, ADD, FENCE, BARRIER };
enum scope { WEAK, CTA, GPU, SYS };

struct event {
    enum kind kind;
    enum scope scope;
    bool acquires, releases, is_sc, is_red; /* is_red: an ADD without a result */
    int thread, block;                      /* INIT, HOST */
    int place;                              /* location, or a barrier's number */
    int reg, from_reg;                      /* registers, or -1 */
    int value;                              /* stored or added */
    bool waits; /* a load that reads `value`, before which nothing further is stored */
};

struct program {
    char name[64];
    char threads[MAX_THREADS][256], never[MAX_LINES][96], may[MAX_LINES][96], unless[MAX_LINES][128];
    int n_threads, n_never, n_may, n_unless, line;
};

struct relation {
    uint32_t row[MAX_EVENTS];
};

/* One program as events; those at the beginning are the initial writes, of value 0. */
struct run {
    struct event events[MAX_EVENTS];
    int n, n_places;
    char places[MAX_NAMES][16], registers[MAX_NAMES][16];
    int n_registers;
    struct relation po, po_place, dependency;
    /* The choice. */
    int source[MAX_EVENTS], rank[MAX_EVENTS], fence_rank[MAX_EVENTS];
    long n_allowed;
    const char *outcome;
    bool found;
};

static int line_number;

static void bad(const char *what, const char *text)
{
    (void)fprintf(stderr, "litmus: line %d: %s: %s\n", line_number, what, text);
    exit(2);
}

/* --- relations --- */

static bool has(const struct relation *r, int a, int b)
{
    return r->row[a] >> b & 1;
}

static void add(struct relation *r, int a, int b)
{
    r->row[a] |= 1u << b;
}

static void close_over(struct relation *r, int n)
{
    for (int k = 0; k < n; k++)
        for (int i = 0; i < n; i++)
            if (has(r, i, k))
                r->row[i] |= r->row[k];
}

static bool is_cyclic(struct relation r, int n)
{
    close_over(&r, n);
    for (int i = 0; i < n; i++)
        if (has(&r, i, i))
            return true;
    return false;
}

static bool reads(const struct event *e)
{
    return e->kind == LOAD || e->kind == ADD;
}

static bool writes(const struct event *e)
{
    return e->kind == STORE || e->kind == ADD;
}

static bool is_memory(const struct event *e)
{
    return reads(e) || writes(e);
}

/* 8.5: the scope's threads include the other operation's. */
static bool includes(const struct event *a, const struct event *b)
{
    return a->scope == SYS || (a->scope == GPU && a->block != HOST && b->block != HOST) ||
           (a->scope == CTA && a->block == b->block);
}

/* 8.7 */
static bool morally_strong(const struct event *a, const struct event *b)
{
    bool overlap = !is_memory(a) || !is_memory(b) || a->place == b->place;
    bool strong = a->scope != WEAK && b->scope != WEAK && includes(a, b) && includes(b, a);
    return overlap && (strong || (a->thread == b->thread && a->thread != INIT));
}

/* --- the text of a program --- */

static int name_of(char names[][16], int *n, const char *name)
{
    for (int i = 0; i < *n; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    if (*n == MAX_NAMES || strlen(name) > 15)
        bad("too many names, or a long one", name);
    (void)strcpy(names[*n], name);
    return (*n)++;
}

static void set_qualifiers(struct event *e, char *dots)
{
    for (char *q = strtok(dots, "."); q; q = strtok(NULL, ".")) {
        e->acquires |= strcmp(q, "acquire") == 0 || strcmp(q, "acq_rel") == 0 || strcmp(q, "sc") == 0;
        e->releases |= strcmp(q, "release") == 0 || strcmp(q, "acq_rel") == 0 || strcmp(q, "sc") == 0;
        e->is_sc |= strcmp(q, "sc") == 0;
        e->scope = strcmp(q, "cta") == 0   ? CTA
                   : strcmp(q, "gpu") == 0 ? GPU
                   : strcmp(q, "sys") == 0 ? SYS
                                           : e->scope;
    }
}

static void set_value(struct run *r, struct event *e, const char *text)
{
    if (isdigit((unsigned char)*text))
        e->value = atoi(text);
    else
        e->from_reg = name_of(r->registers, &r->n_registers, text);
}

/* An instruction such as "ld.acquire.gpu r0 flag", "ld.acquire.gpu flag==1" (it waits for that), "st x 1",
 * "atom.acq_rel.gpu r0 t 1", "red.release.gpu c 1", "fence.sc.gpu", "bar 1"; bar is bar.sync or
 * bar.warp.sync. */
static struct event parse(struct run *r, const char *text, int thread, int block)
{
    char op[48] = "", a[32] = "", b[32] = "", c[32] = "";
    struct event e = {.thread = thread, .block = block, .reg = -1, .from_reg = -1, .place = -1};
    int n = sscanf(text, "%47s %31s %31s %31s", op, a, b, c);
    char *dot = strchr(op, '.'), *equals = strstr(a, "==");
    if (dot)
        *dot = '\0';
    if (strcmp(op, "st") == 0 && n == 3) {
        e.kind = STORE;
        e.place = name_of(r->places, &r->n_places, a);
        set_value(r, &e, b);
    } else if (strcmp(op, "ld") == 0 && n == 2 && equals) {
        *equals = '\0';
        e.kind = LOAD;
        e.waits = true;
        e.place = name_of(r->places, &r->n_places, a);
        e.value = atoi(equals + 2);
    } else if (strcmp(op, "ld") == 0 && n == 3) {
        e.kind = LOAD;
        e.reg = name_of(r->registers, &r->n_registers, a);
        e.place = name_of(r->places, &r->n_places, b);
    } else if (strcmp(op, "atom") == 0 && n == 4) {
        e.kind = ADD;
        e.reg = name_of(r->registers, &r->n_registers, a);
        e.place = name_of(r->places, &r->n_places, b);
        e.value = atoi(c);
    } else if (strcmp(op, "red") == 0 && n == 3) {
        e.kind = ADD;
        e.is_red = true;
        e.place = name_of(r->places, &r->n_places, a);
        e.value = atoi(b);
    } else if (strcmp(op, "fence") == 0 && n == 1) {
        e.kind = FENCE;
    } else if (strcmp(op, "bar") == 0 && n == 2) {
        e.kind = BARRIER;
        e.place = atoi(a);
    } else if (strcmp(op, "none") != 0) {
        bad("no such instruction", text);
    }
    if (dot)
        set_qualifiers(&e, dot + 1);
    return e;
}

/* Adds the events of "block 0: st x 1; bar 1"; instruction `other_at` (from 1) is `other`, unless that is
 * NULL. */
static void add_thread(struct run *r, const char *text, int thread, int other_at, const char *other)
{
    char copy[256], *rest = NULL;
    int block = HOST, at = 0;
    const char *colon = strchr(text, ':');
    if (!colon || (sscanf(text, " block %d", &block) != 1 && strncmp(text, " host", 5) != 0))
        bad("a thread is \"Tn block N: ...\" or \"Tn host: ...\"", text);
    (void)snprintf(copy, sizeof copy, "%s", colon + 1);
    for (char *one = strtok_r(copy, ";", &rest); one; one = strtok_r(NULL, ";", &rest)) {
        struct event e = parse(r, other && ++at == other_at ? other : one, thread, block);
        if (r->n == MAX_EVENTS)
            bad("too many instructions", text);
        if (e.kind != NOTHING)
            r->events[r->n++] = e;
    }
    if (other && at < other_at)
        bad("the thread has fewer instructions", other);
}

/* Puts the initial writes before the others. */
static void add_initial_writes(struct run *r)
{
    if (r->n + r->n_places > MAX_EVENTS)
        bad("too many instructions and locations", "");
    memmove(r->events + r->n_places, r->events, (size_t)r->n * sizeof *r->events);
    for (int i = 0; i < r->n_places; i++)
        r->events[i] = (struct event){.kind = STORE,
                                      .scope = SYS,
                                      .thread = INIT,
                                      .block = HOST,
                                      .place = i,
                                      .reg = -1,
                                      .from_reg = -1};
    r->n += r->n_places;
}

static void order_by_program(struct run *r)
{
    const struct event *e = r->events;
    for (int a = 0; a < r->n; a++)
        for (int b = 0; b < r->n; b++) {
            bool before = e[a].thread == e[b].thread ? a < b && e[a].thread != INIT : e[a].thread == INIT;
            if (!before)
                continue;
            add(&r->po, a, b);
            if (is_memory(&e[a]) && is_memory(&e[b]) && e[a].place == e[b].place)
                add(&r->po_place, a, b);
            bool data = e[b].from_reg >= 0 && e[a].reg == e[b].from_reg;
            if (e[a].thread != INIT && reads(&e[a]) && writes(&e[b]) && (data || e[a].waits))
                add(&r->dependency, a, b);
        }
}

/* --- one execution --- */

/* The value that a write leaves; a register's, through what its load read. No value depends on
 * itself: 8.10.4. */
static int value_of(const struct run *r, int write);
static int register_value(const struct run *r, int reg)
{
    for (int i = 0; i < r->n; i++)
        if (r->events[i].reg == reg)
            return value_of(r, r->source[i]);
    return 0;
}
static int value_of(const struct run *r, int write)
{
    const struct event *e = &r->events[write];
    if (e->kind == ADD)
        return value_of(r, r->source[write]) + e->value;
    return e->from_reg >= 0 ? register_value(r, e->from_reg) : e->value;
}

struct orders {
    struct relation rf, obs, base, cause, co, com;
};

/* 8.9.2: a write, then atomic operations that each read from the one before, then a read. */
static void observe(const struct run *r, struct orders *o)
{
    for (int i = 0; i < r->n; i++)
        if (reads(&r->events[i])) {
            add(&o->rf, r->source[i], i);
            if (morally_strong(&r->events[r->source[i]], &r->events[i]))
                add(&o->obs, r->source[i], i);
        }
    close_over(&o->obs, r->n); /* what lies between two of its steps both reads and writes: an ADD */
}

/* 8.8: operation `first` and write `w` are a release pattern. */
static bool release_pattern(const struct run *r, int first, int w)
{
    const struct event *f = &r->events[first], *e = &r->events[w];
    if (!f->releases || !writes(e) || e->scope == WEAK)
        return false;
    return first == w ||
           (has(&r->po, first, w) && f->thread == e->thread && (f->kind == FENCE || f->place == e->place));
}

/* 8.8: read `rd` and operation `last` are an acquire pattern. A red's read begins none. */
static bool acquire_pattern(const struct run *r, int rd, int last)
{
    const struct event *e = &r->events[rd], *l = &r->events[last];
    if (!l->acquires || !reads(e) || e->scope == WEAK || e->is_red)
        return false;
    return rd == last ||
           (has(&r->po, rd, last) && e->thread == l->thread && (l->kind == FENCE || l->place == e->place));
}

static bool patterns_meet(const struct run *r, const struct orders *o, int first, int last)
{
    if (!morally_strong(&r->events[first], &r->events[last]))
        return false;
    for (int w = 0; w < r->n; w++)
        for (int rd = 0; release_pattern(r, first, w) && rd < r->n; rd++)
            if (has(&o->obs, w, rd) && acquire_pattern(r, rd, last))
                return true;
    return false;
}

/* 8.9.4 */
static bool synchronizes(const struct run *r, const struct orders *o, int a, int b)
{
    const struct event *x = &r->events[a], *y = &r->events[b];
    if (x->thread == y->thread)
        return false;
    if (x->kind == BARRIER && y->kind == BARRIER)
        return x->block == y->block && x->place == y->place;
    if (x->is_sc && y->is_sc && morally_strong(x, y) && r->fence_rank[a] < r->fence_rank[b])
        return true;
    return patterns_meet(r, o, a, b);
}

static bool same_place(const struct run *r, int a, int b)
{
    const struct event *x = &r->events[a], *y = &r->events[b];
    return a != b && is_memory(x) && is_memory(y) && x->place == y->place;
}

/* 8.9.5 */
static void order_by_cause(const struct run *r, struct orders *o)
{
    o->base = r->po;
    for (int a = 0; a < r->n; a++)
        for (int b = 0; b < r->n; b++)
            if (synchronizes(r, o, a, b))
                add(&o->base, a, b);
    close_over(&o->base, r->n);
    for (int a = 0; a < r->n; a++)
        for (int b = 0; b < r->n; b++) {
            bool before = has(&o->base, a, b);
            for (int z = 0; z < r->n && !before; z++)
                before = has(&o->obs, a, z) && same_place(r, z, b) && has(&o->base, z, b);
            if (before && same_place(r, a, b))
                add(&o->cause, a, b);
        }
}

/* 8.9.6, 8.9.7 and axiom 8.10.1: the chosen order of the writes, as far as they are related at all. */
static bool order_writes(const struct run *r, struct orders *o)
{
    for (int a = 0; a < r->n; a++)
        for (int b = 0; b < r->n; b++) {
            if (!same_place(r, a, b) || !writes(&r->events[a]) || !writes(&r->events[b]))
                continue;
            bool caused = has(&o->cause, a, b);
            if (caused && r->rank[a] > r->rank[b])
                return false;
            if (r->rank[a] < r->rank[b] && (caused || morally_strong(&r->events[a], &r->events[b])))
                add(&o->co, a, b);
        }
    close_over(&o->co, r->n);
    o->com = o->rf;
    for (int a = 0; a < r->n; a++) {
        o->com.row[a] |= o->co.row[a];
        if (reads(&r->events[a]))
            o->com.row[a] |= o->co.row[r->source[a]] & ~(1u << a);
    }
    return true;
}

/* 8.10.2 and 8.10.3 */
static bool fences_and_atoms_agree(const struct run *r, const struct orders *o)
{
    for (int a = 0; a < r->n; a++)
        for (int b = 0; b < r->n; b++) {
            const struct event *x = &r->events[a], *y = &r->events[b];
            if (x->is_sc && y->is_sc && morally_strong(x, y) && r->fence_rank[a] < r->fence_rank[b] &&
                has(&o->base, b, a))
                return false;
            if (x->kind == ADD && writes(y) && morally_strong(x, y) && has(&o->co, r->source[a], b) &&
                has(&o->co, b, a))
                return false;
        }
    return true;
}

/* 8.10.5: per location, with what is morally strong of the communication. */
static bool places_agree(const struct run *r, const struct orders *o)
{
    struct relation all = r->po_place;
    for (int a = 0; a < r->n; a++)
        for (int b = 0; b < r->n; b++)
            if (has(&o->com, a, b) && morally_strong(&r->events[a], &r->events[b]))
                add(&all, a, b);
    return !is_cyclic(all, r->n);
}

/* 8.10.6 */
static bool causes_agree(const struct run *r, const struct orders *o)
{
    for (int a = 0; a < r->n; a++)
        for (int b = 0; b < r->n; b++) {
            if (!has(&o->cause, a, b))
                continue;
            if (reads(&r->events[a]) && writes(&r->events[b]) && r->source[a] == b)
                return false;
            if (writes(&r->events[a]) && reads(&r->events[b]) && has(&o->co, r->source[b], a))
                return false;
        }
    return true;
}

static bool outcome_holds(const struct run *r, const char *text)
{
    char copy[96], name[32], *rest = NULL;
    int value = 0;
    (void)snprintf(copy, sizeof copy, "%s", text);
    for (char *one = strtok_r(copy, " ", &rest); one; one = strtok_r(NULL, " ", &rest)) {
        int reg = -1;
        if (sscanf(one, "%31[^=]=%d", name, &value) != 2)
            bad("an outcome is \"r0=1 r1=0\"", text);
        for (int i = 0; i < r->n_registers; i++)
            reg = strcmp(r->registers[i], name) == 0 ? i : reg;
        if (reg < 0)
            bad("no such register", name);
        if (register_value(r, reg) != value)
            return false;
    }
    return true;
}

static void judge(struct run *r)
{
    struct orders o = {0};
    observe(r, &o);
    struct relation thin = r->dependency; /* 8.10.4 */
    for (int a = 0; a < r->n; a++) {
        thin.row[a] |= o.rf.row[a];
        if (r->events[a].kind == ADD && r->source[a] == a)
            return;
    }
    if (is_cyclic(thin, r->n))
        return;
    for (int i = 0; i < r->n; i++)
        if (r->events[i].waits && value_of(r, r->source[i]) != r->events[i].value)
            return;
    order_by_cause(r, &o);
    if (!order_writes(r, &o) || !fences_and_atoms_agree(r, &o) || !places_agree(r, &o) ||
        !causes_agree(r, &o))
        return;
    r->n_allowed++;
    if (r->outcome && outcome_holds(r, r->outcome))
        r->found = true;
}

/* --- all executions --- */

/* Gives event `at` and those behind it each rank of their kind that is free: the orders of writes, of fences.
 */
static void choose_ranks(struct run *r, int at)
{
    const struct event *e = &r->events[at];
    if (at == r->n) {
        judge(r);
        return;
    }
    bool sc = e->is_sc;
    int *rank = sc ? r->fence_rank : r->rank, n = 0;
    if (e->thread == INIT || (!sc && !writes(e))) {
        rank[at] = 0;
        choose_ranks(r, at + 1);
        return;
    }
    for (int i = 0; i < r->n; i++)
        n += sc ? r->events[i].is_sc : writes(&r->events[i]) && r->events[i].place == e->place;
    for (int k = 1; k <= n; k++) {
        bool taken = false;
        for (int i = 0; i < at; i++)
            taken |= rank[i] == k &&
                     (sc ? r->events[i].is_sc : writes(&r->events[i]) && r->events[i].place == e->place);
        if (taken)
            continue;
        rank[at] = k;
        choose_ranks(r, at + 1);
    }
}

static void choose_sources(struct run *r, int at)
{
    if (at == r->n) {
        choose_ranks(r, 0);
        return;
    }
    if (!reads(&r->events[at])) {
        choose_sources(r, at + 1);
        return;
    }
    for (int w = 0; w < r->n; w++)
        if (writes(&r->events[w]) && r->events[w].place == r->events[at].place) {
            r->source[at] = w;
            choose_sources(r, at + 1);
        }
}

/* Returns whether an allowed execution of the program has the outcome. changed: thread, or -1. */
static bool possible(const struct program *p, const char *outcome, int changed, int at, const char *other)
{
    struct run r = {.outcome = outcome};
    for (int t = 0; t < p->n_threads; t++)
        add_thread(&r, p->threads[t], t, at, t == changed ? other : NULL);
    add_initial_writes(&r);
    order_by_program(&r);
    choose_sources(&r, 0);
    if (!r.n_allowed)
        bad("no execution is allowed at all, in", p->name);
    return r.found;
}

/* --- the file --- */

static int check(const struct program *p)
{
    int failures = 0;
    for (int i = 0; i < p->n_never; i++)
        if (possible(p, p->never[i], -1, 0, NULL)) {
            (void)printf("FAILED  %s: possible: %s\n", p->name, p->never[i]);
            failures++;
        }
    for (int i = 0; i < p->n_may; i++)
        if (!possible(p, p->may[i], -1, 0, NULL)) {
            (void)printf("FAILED  %s: not possible: %s\n", p->name, p->may[i]);
            failures++;
        }
    for (int i = 0; i < p->n_unless; i++) {
        int thread = 0, at = 0, length = 0;
        bool shown = false;
        if (sscanf(p->unless[i], "T%d.%d %n", &thread, &at, &length) != 2 || thread >= p->n_threads)
            bad("a change is \"unless Tn.m INSTRUCTION\"", p->unless[i]);
        for (int k = 0; k < p->n_never && !shown; k++)
            shown = possible(p, p->never[k], thread, at, p->unless[i] + length);
        failures += !shown;
        (void)printf("%s %s: %s possible with %s\n", shown ? "ok     " : "FAILED ", p->name,
                     shown ? "an outcome" : "no outcome is", p->unless[i]);
    }
    if (!failures)
        (void)printf("ok      %s: %d outcomes never, %d possible\n", p->name, p->n_never, p->n_may);
    return failures;
}

static void copy_line(char *to, size_t room, const char *from, int *n, int most)
{
    if (strlen(from) >= room || *n >= most)
        bad("a line is too long, or there are too many", from);
    (void)snprintf(to, room, "%s", from);
    ++*n;
}

static void take_line(struct program *p, const char *line)
{
    if (strncmp(line, "never ", 6) == 0 && p->n_never < MAX_LINES)
        copy_line(p->never[p->n_never], sizeof *p->never, line + 6, &p->n_never, MAX_LINES);
    else if (strncmp(line, "may ", 4) == 0 && p->n_may < MAX_LINES)
        copy_line(p->may[p->n_may], sizeof *p->may, line + 4, &p->n_may, MAX_LINES);
    else if (strncmp(line, "unless ", 7) == 0 && p->n_unless < MAX_LINES)
        copy_line(p->unless[p->n_unless], sizeof *p->unless, line + 7, &p->n_unless, MAX_LINES);
    else if (line[0] == 'T' && line[1] == '0' + p->n_threads && p->n_threads < MAX_THREADS)
        copy_line(p->threads[p->n_threads], sizeof *p->threads, line + 2, &p->n_threads, MAX_THREADS);
    else
        bad("not understood", line);
}

int main(int argc, char **argv)
{
    char line[512];
    int failures = 0, n = 0;
    static struct program p;
    FILE *f = argc == 2 ? fopen(argv[1], "r") : NULL;
    if (!f) {
        (void)fprintf(stderr, "usage: litmus FILE\n");
        return 2;
    }
    while (fgets(line, sizeof line, f)) {
        line_number++;
        line[strcspn(line, "#\n")] = '\0';
        char *text = line + strspn(line, " ");
        if (!*text)
            continue;
        if (strncmp(text, "test ", 5) != 0) {
            take_line(&p, text);
            continue;
        }
        failures += p.n_threads ? check(&p) : 0;
        p = (struct program){.line = line_number};
        (void)snprintf(p.name, sizeof p.name, "%s", text + 5);
        n++;
    }
    failures += p.n_threads ? check(&p) : 0;
    (void)fclose(f);
    (void)printf("%d litmus tests, %d failures\n", n, failures);
    return n == 0 || failures;
}
