/* fuzz_chat - any bytes as the body of a chat, written by a model's template and made tokens. The first byte
 * chooses the template. For any text of users the control tokens of the prompt are those that the template
 * wrote. */
#include "base/buf.h"
#include "chat/chat_template.h"
#include "fuzz.h"
#include "generation/generation.h"
#include "gguf/gguf.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

#define N_CTX 1024

static const char *const names[] = {"",         "chatml", "llama3", "llama3_tools", "qwen3", "mistral",
                                    "deepseek", "gemma3", "llama2", "phi4",         "macros"};
enum { N_TEMPLATES = sizeof names / sizeof *names };

static struct {
    struct http_server server;
    struct server_model model;
    struct gguf *gguf;
    struct tokenizer *tokenizer;
    struct chat_template *templates[N_TEMPLATES];
} f;

static void open_all(void)
{
    char path[512];
    CHECK(gguf_open(&f.gguf, HEARTH_SOURCE_DIR "/models/hearth-stories-6m-q4_k_m.gguf", NULL) == 0);
    CHECK(tokenizer_open(&f.tokenizer, f.gguf, NULL) == 0);
    for (size_t i = 0; i < N_TEMPLATES; i++) {
        snprintf(path, sizeof path, HEARTH_TEST_DATA "/templates/%s.jinja", names[i]);
        struct error err = {0};
        if (chat_template_open(&f.templates[i], i ? path : "", f.gguf, f.tokenizer, &err) < 0)
            fprintf(stderr, "%s\n", err.text);
        CHECK(f.templates[i]);
    }
    f.model.tokenizer = f.tokenizer;
    f.model.n_ctx = N_CTX;
}

/* A refusal is a 400 with words. */
static void check_error(struct arena *a, const struct api_error *err)
{
    struct buf out = {.arena = a};
    CHECK(err->status == 400 && err->message[0]);
    api_error_put(&out, err);
    json_t *root = json_loadb(out.p, out.len, 0, NULL);
    CHECK(root);
    json_decref(root);
}

/* Control tokens of the prompt, but for the BOS before all. */
static size_t n_controls(const struct params *p)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n_ids; i++)
        n += (tokenizer_attr(f.tokenizer, p->ids[i]) & TOKEN_CONTROL) != 0;
    return n;
}

/* The same, counted in the text: where no byte of it is a user's. */
static size_t n_written(struct jinja_text text)
{
    static const char *const specials[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    size_t n = 0;
    for (size_t i = 0; i < text.len; i++)
        for (size_t k = 0; k < sizeof specials / sizeof *specials; k++) {
            size_t len = strlen(specials[k]);
            bool here = text.len - i >= len && !memcmp(text.s + i, specials[k], len);
            bool plain = here && text.plain &&
                         (text.plain == jinja_all_plain || memchr(text.plain + i, 1, len) != NULL);
            n += here && !plain;
        }
    return n;
}

static void prepare(struct generation *g)
{
    struct api_error err = {0};
    if (dialect_chat.prepare(g, &err) < 0) {
        check_error(g->arena, &err);
        return;
    }
    struct jinja_limits limits = {.output = (size_t)N_CTX * 1024};
    struct jinja_text text;
    struct arena scratch = {0};
    CHECK(chat_template_render(f.model.chat, &g->p.chat, limits, &scratch, &text, NULL) == 0);
    CHECK(n_controls(&g->p) == n_written(text));
    CHECK(g->p.n_ids <= N_CTX + 1);
    arena_close(&scratch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct json_limits limits = {.max_values = 5000, .max_depth = JSON_MAX_DEPTH_IN_BODY};
    static const struct field *const tables[] = {NULL, generate_fields};
    const struct field *both[] = {dialect_chat.fields, tables[1]};
    struct arena a = {0};
    struct api_error err = {0};
    if (!f.gguf)
        open_all();
    if (!size)
        return 0;
    f.model.chat = f.templates[data[0] % N_TEMPLATES];
    json_t *body = json_read((const char *)data + 1, size - 1, &limits, &err);
    if (body) {
        struct generation g = {.server = &f.server,
                               .model = &f.model,
                               .arena = &a,
                               .dialect = &dialect_chat,
                               .created = 1700000000,
                               .effort = EFFORT_LONG,
                               .p.chat.arena = &a};
        struct field_reader reader = {.out = &g.p, .arena = &a, .err = &err, .context = &f.model};
        dialect_chat.defaults(&g.p);
        if (fields_read(&reader, body, both, 2) < 0)
            check_error(&a, &err);
        else
            prepare(&g);
        json_decref(g.p.tool_list);
    } else {
        check_error(&a, &err);
    }
    json_decref(body);
    arena_close(&a);
    return 0;
}
