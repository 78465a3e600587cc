/* api_ollama.c - Ollama's dialect: POST /api/chat and /api/generate in lines of JSON, and what its clients
 * ask about the model: tags, ps, show, version. The loaded model writes texts under every name. Options
 * without effect here, and members that are not known, pass. Durations are nanoseconds. */
#include "admin.h"
#include "api.h"
#include "api_chat.h"
#include "api_openai_private.h"
#include "base/api_error.h"
#include "body_members.h"
#include "gguf/gguf.h"
#include "json/json.h"
#include "model/model.h"
#include "model_list.h"

#include <string.h>
#include <time.h>

#define STAYS   10982304000 /* 2318: a model that is not unloaded */
#define VERSION "0.18.3"    /* clients want one that is high enough; see API.md */

/* --- the body --- */

static void read_message(struct chat_json *c, size_t i, const json_t *given)
{
    const char *content = chat_json_word(given, "content"), *role;
    const char *thinking = chat_json_word(given, "thinking"), *tool = chat_json_word(given, "tool_name");
    const json_t *calls = json_object_get(given, "tool_calls");
    char path[96];
    snprintf(path, sizeof path, "messages[%zu]", i);
    role = chat_json_need(c, given, path, "role");
    snprintf(path, sizeof path, "messages[%zu].content", i);
    field_has_shape(json_object_get(given, "content"), path, SHAPE_STRING, c->err);
    snprintf(path, sizeof path, "messages[%zu].tool_calls", i);
    field_has_shape(calls, path, SHAPE_ARRAY, c->err);
    snprintf(path, sizeof path, "messages[%zu].images", i);
    if (json_array_size(json_object_get(given, "images")))
        api_invalid(c->err, path, "%s is not supported: the model reads text only", path);
    json_t *message = chat_json_message(c, role ? role : "");
    chat_json_put(c, message, "content", json_string(content ? content : ""));
    if (thinking && *thinking)
        chat_json_put(c, message, "reasoning_content", json_string(thinking));
    if (tool)
        chat_json_put(c, message, "name", json_string(tool));
    if (chat_json_word(given, "tool_call_id"))
        chat_json_put(c, message, "tool_call_id", json_string(chat_json_word(given, "tool_call_id")));
    for (size_t k = 0; k < json_array_size(calls); k++) {
        const json_t *call = json_array_get(calls, k), *function = json_object_get(call, "function");
        (void)snprintf(path, sizeof path, "messages[%zu].tool_calls[%zu].function", i, k);
        const char *name = chat_json_need(c, function, path, "name");
        if (name)
            chat_json_call(c, message, chat_json_word(call, "id"), name,
                           json_object_get(function, "arguments"));
    }
}

static const struct field_name names[] = {
    {"max_tokens", "options.num_predict"},
    {"temperature", "options.temperature"},
    {"top_p", "options.top_p"},
    {"top_k", "options.top_k"},
    {"min_p", "options.min_p"},
    {"typical_p", "options.typical_p"},
    {"seed", "options.seed"},
    {"penalty_last_n", "options.repeat_last_n"},
    {"repetition_penalty", "options.repeat_penalty"},
    {"presence_penalty", "options.presence_penalty"},
    {"frequency_penalty", "options.frequency_penalty"},
    {"stop", "options.stop"},
    {"mirostat", "options.mirostat"},
    {"mirostat_tau", "options.mirostat_tau"},
    {"mirostat_eta", "options.mirostat_eta"},
    {"response_format.json_schema.schema", "format"},
    {"response_format", "format"},
    {"reasoning_effort", "think"},
    {0},
};

/* A num_predict of 0 or less is no limit (read_options() removes 0); a negative seed is none. */
static const struct body_member options_read[] = {
    {"temperature", "temperature"},
    {"top_p", "top_p"},
    {"top_k", "top_k", NEGATIVE_OFF},
    {"min_p", "min_p"},
    {"typical_p", "typical_p"},
    {"repeat_penalty", "repetition_penalty"},
    {"presence_penalty", "presence_penalty"},
    {"frequency_penalty", "frequency_penalty"},
    {"stop", "stop"},
    {"mirostat_tau", "mirostat_tau"},
    {"mirostat_eta", "mirostat_eta"},
    {"num_predict", "max_tokens", NEGATIVE_NOTHING},
    {"seed", "seed", NEGATIVE_NOTHING},
    {"repeat_last_n", "penalty_last_n", NEGATIVE_ALL},
    {0},
};

static void read_options(struct chat_json *c, const json_t *options)
{
    json_t *mirostat = json_object_get(options, "mirostat");
    json_t *most = json_object_get(options, "num_predict");
    c->failed |= !body_copy(c->body, options, options_read);
    if (json_is_number(most) && json_number_value(most) == 0)
        json_object_del(c->body, "max_tokens");
    if (json_integer_value(mirostat) == 2) /* Ollama's has none any more */
        chat_json_set(c, "mirostat", json_incref(mirostat));
}

static void read_think(struct chat_json *c, json_t *think)
{
    if (json_is_boolean(think))
        chat_json_set(c, "reasoning_effort", json_string(json_is_true(think) ? "high" : "none"));
    else if (json_is_string(think))
        chat_json_set(c, "reasoning_effort", json_incref(think));
}

/* "json", a schema, or "" for any text. */
static void read_format(struct chat_json *c, json_t *format)
{
    const char *word = json_string_value(format);
    if (json_is_object(format))
        chat_json_set(c, "response_format",
                      json_pack("{s:s, s:{s:O}}", "type", "json_schema", "json_schema", "schema", format));
    else if (word && !strcmp(word, "json"))
        chat_json_set(c, "response_format", json_pack("{s:s}", "type", "json_object"));
    else if (format && !json_is_null(format) && !(word && !*word))
        api_invalid(c->err, "format", "format must be \"json\" or a JSON schema (got %s)",
                    field_got_word(format));
}

static void read_common(struct chat_json *c, const json_t *body)
{
    static const struct field_shape shapes[] = {
        {"model", SHAPE_STRING},
        {"prompt", SHAPE_STRING},
        {"suffix", SHAPE_STRING},
        {"system", SHAPE_STRING},
        {"template", SHAPE_STRING},
        {"stream", SHAPE_BOOL},
        {"raw", SHAPE_BOOL},
        {"tools", SHAPE_ARRAY},
        {"options", SHAPE_OBJECT},
        {"think", SHAPE_BOOL | SHAPE_STRING},
        {"context", SHAPE_ARRAY},
        {"logprobs", SHAPE_BOOL},
        {0},
    };
    static const char *const same[] = {"logprobs", "logprobs", "top_logprobs", "top_logprobs", NULL};
    if (fields_have_shapes(body, shapes, c->err) < 0)
        return;
    const json_t *stream = json_object_get(body, "stream"), *tools = json_object_get(body, "tools");
    read_format(c, json_object_get(body, "format"));
    read_options(c, json_object_get(body, "options"));
    read_think(c, json_object_get(body, "think"));
    chat_json_copy(c, body, same);
    chat_json_set(c, "stream", json_boolean(!json_is_false(stream)));
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (json_array_append(c->tools, json_array_get(tools, i)) < 0)
            c->failed = true;
}

/* A request without words only asks for the model to be there. */
static void read_nothing(struct chat_json *c)
{
    chat_json_put(c, chat_json_message(c, "user"), "content", json_string(""));
    chat_json_set(c, "max_tokens", json_integer(0));
}

/* Ollama's templates leave the last message open where it is an assistant's: its text is gone on with. A
 * constraint holds for whole answers, so with one another answer comes. */
static void read_begun(struct chat_json *c, const json_t *body, const json_t *last)
{
    const char *role = chat_json_word(last, "role"), *text = chat_json_word(last, "content");
    bool constrained = json_object_get(c->body, "response_format") != NULL;
    for (const struct field *f = constraint_fields; f->name; f++)
        constrained |= json_object_get(body, f->name) != NULL;
    if (role && !strcmp(role, "assistant") && text && *text && !constrained)
        chat_json_set(c, "continue_final_message", json_true());
}

static json_t *translate_chat(const json_t *body, struct api_error *err)
{
    const json_t *messages = json_object_get(body, "messages");
    struct chat_json c;
    if (chat_json_open(&c, err) < 0)
        return NULL;
    read_common(&c, body);
    if (messages && !json_is_null(messages) && !json_is_array(messages))
        api_invalid(err, "messages", "messages must be an array (got %s)", field_got(messages));
    else if (!json_array_size(messages))
        read_nothing(&c);
    for (size_t i = 0; i < json_array_size(messages); i++)
        read_message(&c, i, json_array_get(messages, i));
    if (json_array_size(messages))
        read_begun(&c, body, json_array_get(messages, json_array_size(messages) - 1));
    return chat_json_close(&c);
}

/* Refuses members that would change the text and are not supported. An empty `context` is accepted: it has
 * no effect. */
static void refuse_some(const json_t *body, bool raw, bool fills, struct api_error *err)
{
    if (json_array_size(json_object_get(body, "images")))
        api_invalid(err, "images", "images is not supported: the model reads text only");
    if (json_string_length(json_object_get(body, "template")))
        api_invalid(err, "template",
                    "template is not supported: prompts are written with the model's own, or with none where "
                    "raw is true");
    if (json_array_size(json_object_get(body, "context")))
        api_invalid(err, "context", "context is not supported: send the messages before to /api/chat");
    if ((raw || fills) && json_string_length(json_object_get(body, "system")))
        api_invalid(err, "system", "system is not supported beside %s: no template writes the prompt",
                    raw ? "raw" : "suffix");
}

/* A prompt is a user's message, unless it is raw. */
static json_t *translate_generate(const json_t *body, struct api_error *err)
{
    const char *system = chat_json_word(body, "system"), *prompt = chat_json_word(body, "prompt");
    json_t *suffix = json_object_get(body, "suffix");
    bool fills = json_string_length(suffix) > 0, raw = json_is_true(json_object_get(body, "raw"));
    struct chat_json c;
    if (chat_json_open(&c, err) < 0)
        return NULL;
    read_common(&c, body);
    refuse_some(body, raw, fills, err);
    if ((fills || raw) && prompt && *prompt) {
        json_object_del(c.body, "messages");
        chat_json_set(&c, "prompt", json_string(prompt));
        if (fills)
            chat_json_set(&c, "suffix", json_incref(suffix));
        return chat_json_close(&c);
    }
    if (system && *system)
        chat_json_put(&c, chat_json_message(&c, "system"), "content", json_string(system));
    if (prompt && *prompt)
        chat_json_put(&c, chat_json_message(&c, "user"), "content", json_string(prompt));
    else
        read_nothing(&c);
    return chat_json_close(&c);
}

static const struct field own_fields[] = {
    {.name = "prompt", .kind = FIELD_CUSTOM, .read = read_prompt}, /* a raw one */
    {.name = "suffix", .kind = FIELD_CUSTOM, .read = openai_read_suffix},
    {0},
};

/* The text of a raw prompt, or of one with a suffix, is shown as it is. */
static int prepare(struct generation *g, struct api_error *err)
{
    if (!g->p.has_prompt)
        return chat_dialect_prepare(g, err);
    g->p.format = toolcall_format_find("none");
    if (chat_prepare_logprobs(&g->p, err) < 0)
        return -1;
    return g->p.infill.suffix.len ? openai_put_suffix(g, err) : 0;
}

/* --- parts of replies --- */

static void put_time(struct buf *out, time_t seconds, long ns)
{
    struct tm t;
    char text[32];
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", gmtime_r(&seconds, &t));
    buf_printf(out, "\"%s.%09ldZ\"", text, ns);
}

static void open_line(struct buf *out, const struct generation *g)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    buf_puts(out, "{\"model\":");
    chat_put_model(out, g);
    buf_puts(out, ",\"created_at\":");
    put_time(out, now.tv_sec, now.tv_nsec);
}

static bool chats(const struct generation *g)
{
    return g->dialect == &dialect_ollama_chat;
}

static void put_calls(struct buf *out, const struct answer *a, uint32_t from)
{
    buf_puts(out, ",\"tool_calls\":[");
    for (uint32_t i = from; i < a->n_calls; i++) {
        const struct answer_call *call = &a->calls[i];
        buf_printf(out, "%s{\"id\":\"%s\",\"function\":{\"index\":%u,\"name\":", i > from ? "," : "",
                   call->id, i);
        json_put_string(out, call->name.p, call->name.len);
        buf_puts(out, ",\"arguments\":");
        chat_put_input(out, call);
        buf_puts(out, "}}");
    }
    buf_puts(out, "]");
}

/* The members of one line: text or thinking, and calls from number `from` on. */
static void put_text(struct buf *out, const struct choice *c, const struct buf *text,
                     const struct buf *thinking, uint32_t from)
{
    bool chat = chats(c->g);
    buf_puts(out, chat ? ",\"message\":{\"role\":\"assistant\",\"content\":" : ",\"response\":");
    json_put_string(out, text->p ? text->p : "", text->len);
    if (thinking->len) {
        buf_puts(out, ",\"thinking\":");
        json_put_string(out, thinking->p, thinking->len);
    }
    if (chat && from < c->answer->n_calls)
        put_calls(out, c->answer, from);
    buf_puts(out, chat ? "}" : "");
}

static uint64_t ns_of(double ms)
{
    return ms > 0 ? (uint64_t)(ms * 1e6) : 0;
}

static void close_last(struct buf *out, const struct choice *c)
{
    struct timings t;
    const struct engine_request *e = &c->e;
    bool cut = !strcmp(answer_finish(c), "length");
    generation_timings(c->g, &t);
    buf_printf(out, ",\"done\":true,\"done_reason\":\"%s\"",
               c->n_tokens == 0 && e->max_tokens == 0 ? "load"
               : cut                                  ? "length"
                                                      : "stop");
    buf_printf(
        out,
        ",\"total_duration\":%llu,\"load_duration\":0,\"prompt_eval_count\":%u,\"prompt_eval_duration\":%llu,"
        "\"eval_count\":%u,\"eval_duration\":%llu}\n",
        (unsigned long long)ns_of(t.ttft_ms + t.decode_ms), e->n_prompt,
        (unsigned long long)ns_of(t.prefill_ms), c->n_tokens, (unsigned long long)ns_of(t.decode_ms));
}

/* The log-probabilities of a piece of text, if they are asked for; the first line of the piece has them. */
static void put_logprobs(struct buf *out, const struct choice *c, const struct piece *piece)
{
    if (!c->g->p.has_logprobs || !piece || piece->to == piece->from)
        return;
    buf_puts(out, ",\"logprobs\":");
    chat_put_logprobs(out, c, piece);
}

static void reply(struct generation *g, struct buf *out)
{
    struct choice *c = g->choices;
    struct piece whole = choice_whole(c);
    answer_take_whole(c);
    open_line(out, g);
    put_text(out, c, &c->answer->content, &c->answer->reasoning, 0);
    put_logprobs(out, c, &whole);
    close_last(out, c);
}

/* --- the stream --- */

/* A call is one line, once it is whole. */
static void event(struct choice *c, struct buf *out, const struct toolcall_event *e)
{
    struct answer *a = c->answer;
    const struct buf piece = {.p = (char *)e->s, .len = e->n}, none = {0};
    bool call = e->kind == TOOLCALL_END;
    if (e->kind != TOOLCALL_TEXT && e->kind != TOOLCALL_REASONING && !call)
        return;
    open_line(out, c->g);
    put_text(out, c, e->kind == TOOLCALL_TEXT ? &piece : &none,
             e->kind == TOOLCALL_REASONING ? &piece : &none, call ? a->n_calls - 1 : a->n_calls);
    put_logprobs(out, c, a->piece);
    a->piece = NULL;
    buf_puts(out, ",\"done\":false}\n");
}

static void put_empty(struct choice *c, struct buf *out, const struct piece *tokens)
{
    const struct buf none = {0};
    open_line(out, c->g);
    put_text(out, c, &none, &none, c->answer->n_calls);
    put_logprobs(out, c, tokens);
}

static void delta(struct choice *c, struct buf *out, const struct piece *piece)
{
    size_t before = out->len;
    answer_take(c, piece, false);
    if (!c->g->p.has_logprobs || piece->to == piece->from || out->len != before)
        return;
    put_empty(c, out, piece); /* its text is held back, its tokens are not */
    buf_puts(out, ",\"done\":false}\n");
}

static void end(struct choice *c, struct buf *out, const struct piece *piece)
{
    size_t before = out->len;
    answer_take(c, piece, true);
    put_empty(c, out, out->len == before ? piece : NULL);
    close_last(out, c);
}

static void last(struct generation *g, struct buf *out)
{
    (void)g;
    (void)out;
}

/* If the prompt does not fit, the message has the sentence that clients look for. */
void api_ollama_put_error(struct buf *out, const struct api_error *e)
{
    const char *words = e->has_context ? "the input length exceeds the context length: " : "";
    buf_puts(out, "{\"error\":\"");
    json_put_chars(out, words, strlen(words));
    json_put_chars(out, e->message, strlen(e->message));
    buf_puts(out, "\"}\n");
}

#define COMMON                                                                                               \
    .id_prefix = "ollama-", .fields = chat_fields, .own_fields = own_fields, .defaults = chat_defaults,      \
    .prepare = prepare, .event = event, .whole_calls = true, .mends = true, .clamps = true, .reply = reply,  \
    .delta = delta, .end = end, .last = last

const struct dialect dialect_ollama_chat = {COMMON, .translate = translate_chat, .names = names};
const struct dialect dialect_ollama_generate = {COMMON, .translate = translate_generate, .names = names};

/* --- the model --- */

static void put_size(struct buf *out, uint64_t n_params)
{
    double billions = (double)n_params / 1e9;
    if (billions >= 1)
        buf_printf(out, "\"%.1fB\"", billions);
    else
        buf_printf(out, "\"%.2fM\"", billions * 1e3);
}

static void put_details(struct buf *out, const struct model_config *m)
{
    buf_puts(out, "\"details\":{\"parent_model\":\"\",\"format\":\"gguf\",\"family\":");
    json_put_str(out, m->arch);
    buf_puts(out, ",\"families\":[");
    json_put_str(out, m->arch);
    buf_puts(out, "],\"parameter_size\":");
    put_size(out, m->n_params);
    buf_puts(out, ",\"quantization_level\":");
    json_put_str(out, m->quantization);
    buf_puts(out, "}");
}

/* Details are known of a model that is loaded. */
static void put_file(struct buf *out, const struct model_view *v)
{
    if (v->model) {
        buf_printf(out, ",\"size\":%zu,\"digest\":\"%016llx\",", gguf_file_size(model_gguf(v->model->model)),
                   (unsigned long long)v->model->hash);
        put_details(out, model_config(v->model->model));
        return;
    }
    buf_printf(out, ",\"size\":%llu,\"digest\":\"\",", (unsigned long long)v->bytes);
    put_details(out, &(struct model_config){0});
}

static void put_model(struct request *r, const struct model_view *v, bool running)
{
    struct buf *out = &r->out;
    buf_puts(out, "{\"name\":");
    json_put_str(out, v->name);
    buf_puts(out, ",\"model\":");
    json_put_str(out, v->name);
    if (running) {
        time_t soon = time(NULL) + (time_t)(v->unloads_in_ms / 1000);
        buf_puts(out, ",\"expires_at\":");
        put_time(out, v->unloads_in_ms ? soon : (time_t)STAYS, 0);
    }
    buf_puts(out, ",\"modified_at\":");
    put_time(out, v->modified ? (time_t)v->modified : (time_t)r->server->api->created, 0);
    put_file(out, v);
    if (running)
        buf_printf(out, ",\"size_vram\":0,\"context_length\":%u", v->model->n_ctx);
    buf_puts(out, "}");
}

static void put_tag(struct request *r, struct model_list *l, const struct model_view *v)
{
    buf_puts(&r->out, l->n ? "," : "");
    put_model(r, v, false);
}

static void put_running(struct request *r, struct model_list *l, const struct model_view *v)
{
    if (!v->model)
        return;
    buf_puts(&r->out, l->first ? "," : "");
    l->first = v->name;
    put_model(r, v, true);
}

static void end_list(struct request *r, struct model_list *l)
{
    (void)l;
    buf_puts(&r->out, "]}\n");
}

void api_ollama_tags(struct request *r)
{
    static const struct model_list_part parts[] = {{.put = put_tag, .end = end_list}, {0}};
    buf_puts(&r->out, "{\"models\":[");
    model_list_reply(r, parts);
}

void api_ollama_ps(struct request *r)
{
    static const struct model_list_part parts[] = {{.put = put_running, .end = end_list}, {0}};
    buf_puts(&r->out, "{\"models\":[");
    model_list_reply(r, parts);
}

void api_ollama_version(struct request *r)
{
    buf_puts(&r->out, "{\"version\":\"" VERSION "\"}\n");
    request_reply(r, 200);
}

/* The name in the body, within it: `model`, or `name` as older clients call it. NULL with r->error. */
static const char *named(struct request *r, const json_t *body)
{
    static const struct field_shape shapes[] = {{"model", SHAPE_STRING}, {"name", SHAPE_STRING}, {0}};
    const char *model = chat_json_word(body, "model"), *name = chat_json_word(body, "name");
    const char *given = model && *model ? model : name;
    if (!body || fields_have_shapes(body, shapes, &r->error) < 0)
        return NULL;
    if (!given || !*given)
        api_invalid(&r->error, "model", "model is missing");
    return r->error.status ? NULL : given;
}

/* Of a file alone little is known. */
static void show_file(struct request *r, const struct model_view *v)
{
    buf_puts(&r->out, "{\"license\":\"\",\"modelfile\":\"\",\"parameters\":\"\",\"template\":\"\",");
    put_details(&r->out, &(struct model_config){0});
    buf_puts(&r->out, ",\"model_info\":{},\"capabilities\":[\"completion\"],\"modified_at\":");
    put_time(&r->out, (time_t)v->modified, 0);
    buf_puts(&r->out, "}\n");
}

static void show_model(struct request *r, const struct server_model *model)
{
    struct buf *out = &r->out;
    const struct model_config *m = model_config(model->model);
    bool tools =
        model->chat && chat_template_reads(model->chat, "tools") && toolcall_format_calls(model->format);
    buf_puts(out, "{\"license\":\"\",\"modelfile\":\"\",\"parameters\":\"\",\"template\":\"\",");
    put_details(out, m);
    buf_puts(out, ",\"model_info\":{\"general.architecture\":");
    json_put_str(out, m->arch);
    buf_printf(out, ",\"general.parameter_count\":%llu,\"%s.context_length\":%u,\"%s.embedding_length\":%u}",
               (unsigned long long)m->n_params, m->arch, model->n_ctx, m->arch, m->n_embd);
    buf_printf(out, ",\"capabilities\":[\"completion\"%s%s],\"modified_at\":", tools ? ",\"tools\"" : "",
               toolcall_format_reasons(model->format) ? ",\"thinking\"" : "");
    put_time(out, (time_t)r->server->api->created, 0);
    buf_puts(out, "}\n");
}

/* Where there is one model, it is meant by every name, as in chats. */
static bool find_shown(struct request *r, const char *name, struct model_view *out)
{
    int first = 0;
    const struct generator *g = r->server->generator;
    return g->source ? model_list_find(r, name, out) : generator_next_model(g, &first, out);
}

void api_ollama_show(struct request *r)
{
    const struct json_limits limits = {.max_values = 4096, .max_depth = JSON_MAX_DEPTH_IN_BODY};
    struct model_view v = {0};
    json_t *body = json_read(r->body, r->body_len, &limits, &r->error);
    const char *name = named(r, body);
    if (!name || !find_shown(r, name, &v)) {
        request_fail(r, &r->error);
    } else {
        if (v.model)
            show_model(r, v.model);
        else
            show_file(r, &v);
        request_reply(r, 200);
    }
    json_decref(body);
}
