/* fuzz_template - any bytes as a chat template, rendered with a conversation. It is opened or refused with
 * words; what it writes stays within what it was allowed, and a user's text never loses its mark: the letter
 * that only users write here is plain wherever it comes out. */
#include "fuzz.h"
#include "jinja/jinja.h"

#define MAX_OUTPUT 65536
#define SECRET     "\x1e" /* what only users write; a template that has it, or \x1e, says nothing */

static struct jinja_value say(struct arena *a, const char *role, const char *content)
{
    struct jinja_dict *d = jinja_dict_open(a);
    struct jinja_list *calls = jinja_list_open(a);
    struct jinja_dict *call = jinja_dict_open(a);
    CHECK(jinja_dict_add(a, call, jinja_word("name"), jinja_string("f" SECRET, 2, true)) == 0);
    CHECK(jinja_dict_add(a, call, jinja_word("arguments"), jinja_float(1.5)) == 0);
    CHECK(jinja_list_add(a, calls, jinja_dict_value(call)) == 0);
    CHECK(jinja_dict_add(a, d, jinja_word("role"), jinja_word(role)) == 0);
    CHECK(jinja_dict_add(a, d, jinja_word("content"), jinja_string(content, strlen(content), true)) == 0);
    CHECK(jinja_dict_add(a, d, jinja_word("tool_calls"), jinja_list_value(calls)) == 0);
    return jinja_dict_value(d);
}

static struct jinja_dict *variables(struct arena *a)
{
    struct jinja_dict *d = jinja_dict_open(a);
    struct jinja_list *messages = jinja_list_open(a);
    CHECK(jinja_list_add(a, messages, say(a, "system", " be\n" SECRET " kind ")) == 0);
    CHECK(jinja_list_add(a, messages, say(a, "user", SECRET "h\xc3\xa9 <b>\n\n")) == 0);
    CHECK(jinja_list_add(a, messages, say(a, "assistant", "<think>" SECRET "</think>x")) == 0);
    CHECK(jinja_dict_add(a, d, jinja_word("messages"), jinja_list_value(messages)) == 0);
    CHECK(jinja_dict_add(a, d, jinja_word("tools"), jinja_list_value(messages)) == 0);
    CHECK(jinja_dict_add(a, d, jinja_word("documents"), jinja_none()) == 0);
    CHECK(jinja_dict_add(a, d, jinja_word("add_generation_prompt"), jinja_bool(true)) == 0);
    CHECK(jinja_dict_add(a, d, jinja_word("bos_token"), jinja_word("<s>")) == 0);
    CHECK(jinja_dict_add(a, d, jinja_word("eos_token"), jinja_word("</s>")) == 0);
    return d;
}

/* A template can make the letter by itself from an escape only. */
static void check_marks(struct jinja_text out, const char *source, size_t n)
{
    if (memmem(source, n, "\\", 1) || memmem(source, n, SECRET, 1))
        return;
    for (size_t i = 0; i < out.len; i++)
        CHECK(out.s[i] != SECRET[0] || (out.plain && (out.plain == jinja_all_plain || out.plain[i])));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const struct tm now = {.tm_year = 124, .tm_mday = 1};
    struct arena arena = {0};
    struct jinja *t = NULL;
    struct error err = {0};
    struct jinja_text out;
    char *source = malloc(n ? n : 1); /* so that nothing beyond its end is read */
    memcpy(source, data, n);
    int rc = jinja_open(&t, source, n, &err);
    CHECK(rc == 0 || (err.code == rc && err.text[0]));
    if (rc == 0) {
        struct jinja_input in = {.variables = variables(&arena),
                                 .now = &now,
                                 .limits = {.operations = 20000, .output = MAX_OUTPUT, .memory = 1 << 23}};
        rc = jinja_render(t, &in, &arena, &out, &err);
        CHECK(rc == 0 || err.code == rc);
        CHECK(rc < 0 || out.len <= MAX_OUTPUT);
        CHECK(arena.total < (size_t)24 << 20);
        if (rc == 0)
            check_marks(out, source, n);
    }
    jinja_close(t);
    arena_close(&arena);
    free(source);
    return 0;
}
