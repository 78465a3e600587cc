/* fuzz_json - any bytes as the body of a request: scanned, parsed, read by the field tables of all dialects,
 * and the result written as JSON that parses again. The first byte chooses the table. A member that is found
 * without parsing is the parser's. */
#include "base/buf.h"
#include "fuzz.h"
#include "generation/generation.h"
#include "gguf/gguf.h"
#include "json/json.h"
#include "json/json_member.h"
#include "tokenizer/tokenizer.h"

static struct server_model *model(void)
{
    static struct server_model m;
    static struct tokenizer *t;
    struct gguf *g;
    if (t)
        return &m;
    CHECK(gguf_open(&g, HEARTH_SOURCE_DIR "/models/hearth-stories-6m-q4_k_m.gguf", NULL) == 0);
    CHECK(tokenizer_open(&t, g, NULL) == 0);
    gguf_close(g);
    m.tokenizer = t;
    m.n_ctx = 1024;
    return &m;
}

/* A refusal is a 400 or 500 whose object is JSON. */
static void check_error(struct arena *a, const struct api_error *err)
{
    struct buf out = {.arena = a};
    CHECK(err->status == 400 || err->status == 500);
    api_error_put(&out, err);
    json_t *root = json_loadb(out.p, out.len, 0, NULL);
    CHECK(root);
    json_decref(root);
}

/* Accepted values are within the limits that the words of a refusal name. */
static void check_params(const struct params *p)
{
    CHECK(p->temperature >= 0 && p->temperature <= 2);
    CHECK(p->top_p >= 0 && p->top_p <= 1 && p->min_p >= 0 && p->min_p <= 1);
    CHECK(p->n_stops <= GENERATE_MAX_STOPS && p->n_stop_ids <= GENERATE_MAX_STOP_IDS);
    CHECK(p->n_biases <= STEP_MAX_BIAS && p->logprobs <= STEP_MAX_TOP && p->prompt_logprobs <= STEP_MAX_TOP);
    for (size_t i = 0; i < p->n_ids; i++)
        CHECK(p->ids[i] >= 0 && (uint32_t)p->ids[i] < tokenizer_n_vocab(model()->tokenizer));
    for (uint32_t i = 0; i < p->n_biases; i++)
        CHECK(p->biases[i].bias >= -100 && p->biases[i].bias <= 100);
}

static void read_fields(const struct dialect *d, const json_t *body, struct arena *a)
{
    struct params p = {.temperature = 0.8f, .top_p = 1, .chat.arena = a};
    struct api_error err = {0};
    const struct field *tables[5];
    size_t n_tables = 0;
    struct field_reader reader = {.out = &p, .arena = a, .err = &err, .context = model()};
    json_t *chat = d->translate ? d->translate(body, &err) : json_incref((json_t *)body);
    if (d->own_fields)
        tables[n_tables++] = d->own_fields;
    if (d->fields)
        tables[n_tables++] = d->fields;
    if (!d->embeds) {
        tables[n_tables++] = generate_fields;
        tables[n_tables++] = sampling_fields;
        tables[n_tables++] = constraint_fields;
    }
    if (!chat || fields_read(&reader, chat, tables, n_tables) < 0)
        check_error(a, &err);
    else
        check_params(&p);
    json_decref(p.tool_list);
    json_decref(p.schema);
    json_decref(chat);
}

/* Also of what is no JSON (NULL), where anything may be found. A member whose name is written with escapes is
 * not found. */
static void check_member(const char *s, size_t n, const json_t *body)
{
    char text[64];
    const char *parsed = json_string_value(json_object_get(body, "model"));
    double number = json_member_number(s, n, "seed", 0.5);
    const json_t *seed = json_object_get(body, "seed");
    bool found = json_member_text(s, n, "model", text, sizeof text);
    if (!body)
        return;
    CHECK(!found || (parsed && (!strcmp(text, parsed) || !strcmp(text, "?"))));
    CHECK(number == 0.5 || (json_is_number(seed) && json_number_value(seed) == number));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const struct dialect *const dialects[] = {
        &dialect_generate,   &dialect_completions,  &dialect_chat,
        &dialect_messages,   &dialect_ollama_chat,  &dialect_ollama_generate,
        &dialect_responses,  &dialect_llama,        &dialect_infill,
        &dialect_embeddings, &dialect_ollama_embed, &dialect_llama_embedding,
        &dialect_tei_embed,  &dialect_tgi,          &dialect_tgi_root,
        &dialect_count,      &dialect_template,     &dialect_tgi_generate,
        &dialect_sglang,     &dialect_tokenize};
    static const struct json_limits limits = {.max_values = 5000, .max_depth = JSON_MAX_DEPTH_IN_BODY};
    struct arena a = {0};
    struct api_error err = {0};
    if (!n)
        return 0;
    json_t *body = json_read((const char *)data + 1, n - 1, &limits, &err);
    check_member((const char *)data + 1, n - 1, body);
    if (body)
        read_fields(dialects[data[0] % (sizeof dialects / sizeof *dialects)], body, &a);
    else
        check_error(&a, &err);
    json_decref(body);
    arena_close(&a);
    return 0;
}
