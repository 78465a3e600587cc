/* fuzz_toolcall - any bytes as a model's text, in a format that the first byte chooses, cut where the second
 * says. Whole and in pieces the events join to the same; names come before arguments, every event is UTF-8,
 * arguments of calls are JSON, but for one that max_tokens cut. */
#include "fuzz.h"
#include "base/utf8.h"
#include "toolcall/bytes.h"
#include "toolcall/toolcall.h"

#include <jansson.h>

struct parsed {
    struct arena arena;
    struct bytes events, arguments; /* events: "kind text", joined where the kind stays */
    int last;
    unsigned n_calls;
    bool cut; /* what ends now is cut by max_tokens */
};

static void check_arguments(struct parsed *p)
{
    json_t *arguments = json_loadb(p->arguments.n ? p->arguments.p : "", p->arguments.n,
                                   JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    /* jansson refuses these, and other readers do not: numbers beyond a double, lone surrogates, depth. */
    bool odd = memmem(p->arguments.p, p->arguments.n, "\\u", 2) || p->arguments.n > 200;
    for (size_t i = 0; i < p->arguments.n; i++)
        odd |= p->arguments.p[i] >= '0' && p->arguments.p[i] <= '9';
    CHECK(arguments || odd);
    json_decref(arguments);
}

static void on_event(void *user, const struct toolcall_event *e)
{
    struct parsed *p = user;
    char kind = (char)('0' + e->kind);
    CHECK(utf8_valid(e->s, e->n) == e->n);
    CHECK(e->n || e->kind == TOOLCALL_END);
    if (e->kind == TOOLCALL_BEGIN) {
        p->n_calls++;
        p->arguments.n = 0;
    }
    CHECK(p->n_calls || e->kind == TOOLCALL_TEXT || e->kind == TOOLCALL_REASONING);
    if (e->kind == TOOLCALL_ARGUMENTS)
        bytes_put(&p->arguments, e->s, e->n);
    if (e->kind == TOOLCALL_END && !p->cut)
        check_arguments(p);
    if (p->last != (int)e->kind || e->kind == TOOLCALL_BEGIN || e->kind == TOOLCALL_END)
        bytes_put(&p->events, &kind, 1);
    bytes_put(&p->events, e->s, e->n);
    p->last = (int)e->kind;
}

static struct parsed *parse(const uint8_t *data, size_t n, size_t by)
{
    static const struct toolcall_param params[] = {{"a", true}, {"b", false}};
    static const struct toolcall_tool list[] = {{"f", params, 2}, {"get", NULL, 0}};
    static const struct toolcall_tools tools = {list, 2};
    struct parsed *p = calloc(1, sizeof *p);
    struct toolcall_options o = {.tools = &tools, .emit = on_event, .user = p, .prompt = "<think>"};
    p->last = -1;
    p->events.arena = p->arguments.arena = &p->arena;
    o.format = toolcall_format_at(data[0] % toolcall_n_formats());
    o.prompt_len = data[1] & 1 ? 7 : 0;
    o.no_calls = (data[1] & 6) == 6;
    o.verbatim = (data[1] & 96) == 96;
    struct toolcall_scanner *s = toolcall_open(&p->arena, &o);
    CHECK(s);
    for (size_t at = 2; at < n; at += by) {
        size_t piece = n - at < by ? n - at : by;
        char *copy = malloc(piece);
        memcpy(copy, data + at, piece);
        CHECK(toolcall_feed(s, copy, piece) == 0);
        free(copy);
    }
    p->cut = (data[1] & 24) == 24;
    CHECK(toolcall_end(s, p->cut) == 0);
    return p;
}

static void drop(struct parsed *p)
{
    arena_close(&p->arena);
    free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 3)
        return 0;
    const size_t cuts[] = {1, 3, (size_t)(data[1] >> 5) + 2};
    struct parsed *whole = parse(data, n, n);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        struct parsed *cut = parse(data, n, cuts[i]);
        CHECK(cut->events.n == whole->events.n &&
              (!cut->events.n || !memcmp(cut->events.p, whole->events.p, cut->events.n)));
        drop(cut);
    }
    drop(whole);
    return 0;
}
