#include "chat_template.h"
#include "toolcall/toolcall_writing.h"
#include "gguf/gguf.h"
#include "tokenizer/tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct chat_template {
    struct jinja *program;
    char *source; /* [len], as it was written */
    size_t len;
    const struct tokenizer *tokenizer;
    const struct toolcall_format *format;
    bool wants_parts, wants_argument_text, takes_late_system, wants_short_ids;
    bool needs_content, folds_user, shows_reasoning, needs_descriptions;
};

static const char chatml[] =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/* --- variables --- */

static const char *const reserved[] = {"messages",  "tools",     "documents", "add_generation_prompt",
                                       "bos_token", "eos_token", NULL};

bool chat_template_reserves(const char *variable)
{
    for (size_t i = 0; reserved[i]; i++)
        if (!strcmp(reserved[i], variable))
            return true;
    return false;
}

static int put(struct arena *a, struct jinja_dict *d, const char *name, struct jinja_value value)
{
    return jinja_dict_add(a, d, jinja_word(name), value);
}

/* A token's text; one that the vocabulary lacks is undefined. */
static int put_token(struct arena *a, struct jinja_dict *d, const char *name, const struct tokenizer *t,
                     int32_t token)
{
    struct tokenizer_piece piece = tokenizer_text(t, token);
    return token < 0 ? 0 : put(a, d, name, jinja_string(piece.s, piece.len, false));
}

/* Puts the variables that transformers gives a template: tools and documents are none when there are none. */
static int put_variables(const struct chat_template *c, const struct chat *chat, struct arena *a,
                         struct jinja_dict *d)
{
    struct jinja_value tools = chat->tools, documents = chat->documents;
    if (tools.kind == JINJA_UNDEFINED)
        tools = jinja_none();
    if (documents.kind == JINJA_UNDEFINED)
        documents = jinja_none();
    int rc = put(a, d, "messages", jinja_list_value(chat->messages));
    if (rc == 0)
        rc = put(a, d, "tools", tools);
    if (rc == 0)
        rc = put(a, d, "documents", documents);
    if (rc == 0)
        rc = put(a, d, "add_generation_prompt", jinja_bool(chat->add_generation_prompt));
    if (rc == 0)
        rc = put_token(a, d, "bos_token", c->tokenizer, tokenizer_bos(c->tokenizer));
    if (rc == 0)
        rc = put_token(a, d, "eos_token", c->tokenizer, tokenizer_eos(c->tokenizer));
    for (size_t i = 0; rc == 0 && chat->variables && i < chat->variables->n; i++)
        rc = jinja_dict_add(a, d, chat->variables->pairs[i].key, chat->variables->pairs[i].value);
    return rc;
}

int chat_template_render(const struct chat_template *c, const struct chat *chat, struct jinja_limits limits,
                         struct arena *arena, struct jinja_text *out, struct error *err)
{
    struct jinja_dict variables = {0};
    time_t seconds = (time_t)chat->now;
    struct tm now;
    if (put_variables(c, chat, arena, &variables) < 0)
        return error_set(err, -ENOMEM, "out of memory");
    struct jinja_input in = {.variables = &variables, .now = localtime_r(&seconds, &now), .limits = limits};
    return jinja_render(c->program, &in, arena, out, err);
}

const struct toolcall_format *chat_template_format(const struct chat_template *c)
{
    return c ? c->format : toolcall_format_find("none");
}

bool chat_template_reads(const struct chat_template *c, const char *variable)
{
    return jinja_reads(c->program, variable);
}

bool chat_template_wants_parts(const struct chat_template *c)
{
    return c->wants_parts;
}

bool chat_template_wants_argument_text(const struct chat_template *c)
{
    return c->wants_argument_text;
}

bool chat_template_needs_content(const struct chat_template *c)
{
    return c->needs_content;
}

bool chat_template_needs_descriptions(const struct chat_template *c)
{
    return c->needs_descriptions;
}

bool chat_template_shows_reasoning(const struct chat_template *c)
{
    return c->shows_reasoning;
}

bool chat_template_folds_user(const struct chat_template *c)
{
    return c->folds_user;
}

bool chat_template_takes_late_system(const struct chat_template *c)
{
    return c->takes_late_system;
}

bool chat_template_wants_short_ids(const struct chat_template *c)
{
    return c->wants_short_ids;
}

/* --- what it wants --- */

#define PROBE "a probe"

/* {a: x, b: y}, or an undefined value when memory has run out. */
static struct jinja_value pair(struct arena *a, const char *name, struct jinja_value x, const char *other,
                               struct jinja_value y)
{
    struct jinja_dict *d = jinja_dict_open(a);
    bool ok = d && x.kind != JINJA_UNDEFINED && y.kind != JINJA_UNDEFINED && put(a, d, name, x) == 0 &&
              put(a, d, other, y) == 0;
    return ok ? jinja_dict_value(d) : (struct jinja_value){0};
}

static struct jinja_value list_of(struct arena *a, struct jinja_value item)
{
    struct jinja_list *l = jinja_list_open(a);
    bool ok = l && item.kind != JINJA_UNDEFINED && jinja_list_add(a, l, item) == 0;
    return ok ? jinja_list_value(l) : (struct jinja_value){0};
}

static bool renders(const struct chat_template *c, struct arena *a, struct jinja_list *messages)
{
    struct chat chat = {.messages = messages, .add_generation_prompt = true};
    struct jinja_text text;
    return chat_template_render(c, &chat, (struct jinja_limits){0}, a, &text, NULL) == 0 && text.len &&
           memmem(text.s, text.len, PROBE, strlen(PROBE));
}

/* True if a user's message shows when its content is this. */
static bool shows_content(const struct chat_template *c, struct arena *a, struct jinja_value content)
{
    struct jinja_value message = pair(a, "role", jinja_word("user"), "content", content);
    struct jinja_value all = list_of(a, message);
    return all.kind == JINJA_LIST && renders(c, a, all.list);
}

struct probed_call {                 /* the forms of messages that it takes */
    struct jinja_value asked, other; /* with the probe, without */
    struct jinja_value beside;       /* a call */
    struct jinja_value arguments;
    const char *id;
};

/* s system, u user, a assistant, c assistant with a call, t its result; a capital letter has the probe. */
static struct jinja_value message_of(struct arena *a, const struct probed_call *p, char letter)
{
    bool probe = letter < 'a', calls = letter == 'c', result = letter == 't';
    letter |= 32;
    struct jinja_value role = jinja_word(letter == 's'   ? "system"
                                         : letter == 'u' ? "user"
                                         : result        ? "tool"
                                                         : "assistant");
    struct jinja_value m = pair(a, "role", role, "content", calls ? p->beside : probe ? p->asked : p->other);
    if (m.kind == JINJA_DICT && result &&
        (put(a, m.dict, "tool_call_id", jinja_word(p->id)) < 0 ||
         put(a, m.dict, "name", jinja_word("f")) < 0))
        return (struct jinja_value){0};
    if (m.kind != JINJA_DICT || !calls)
        return m;
    struct jinja_value function = pair(a, "name", jinja_word("f"), "arguments", p->arguments);
    struct jinja_value call = pair(a, "type", jinja_word("function"), "function", function);
    struct jinja_value list = list_of(a, call);
    bool ok = list.kind == JINJA_LIST && put(a, call.dict, "id", jinja_word(p->id)) == 0 &&
              put(a, m.dict, "tool_calls", list) == 0;
    return ok ? m : (struct jinja_value){0};
}

/* Tells if the message with the probe shows in a conversation of these. */
static bool shows(const struct chat_template *c, struct arena *a, const struct probed_call *p,
                  const char *letters)
{
    struct jinja_list *all = jinja_list_open(a);
    for (; all && *letters; letters++) {
        struct jinja_value m = message_of(a, p, *letters);
        if (m.kind != JINJA_DICT || jinja_list_add(a, all, m) < 0)
            return false;
    }
    return all && renders(c, a, all);
}

/* The usual call, then one thing after the other as most templates do not need it. */
static void probe_calls(struct chat_template *c, struct arena *a, const struct probed_call *usual)
{
    static const char called[] = "Uct";
    struct probed_call p = *usual, other = p;
    other.arguments = jinja_word("{\"x\": 1}");
    c->wants_argument_text = !shows(c, a, &p, called) && shows(c, a, &other, called);
    if (c->wants_argument_text)
        p = other;
    bool usually = shows(c, a, &p, called);
    other = p;
    other.id = "call_0123456789abcdef";
    c->wants_short_ids = usually && !shows(c, a, &other, called);
    other = p;
    other.beside = jinja_none();
    c->needs_content = usually && !shows(c, a, &other, called);
    c->folds_user = (shows(c, a, &p, "ucta") && !shows(c, a, &p, "uctU")) ||
                    (shows(c, a, &p, "U") && !shows(c, a, &p, "uU"));
    c->takes_late_system = shows(c, a, &p, "suaSu");
}

/* Tells if a tool whose description is this shows; undefined: it has none. */
static bool shows_tool(const struct chat_template *c, struct arena *a, struct jinja_value content,
                       struct jinja_value description)
{
    struct jinja_dict *properties = jinja_dict_open(a);
    struct jinja_value parameters = pair(a, "type", jinja_word("object"), "properties",
                                         properties ? jinja_dict_value(properties) : (struct jinja_value){0});
    struct jinja_value function = pair(a, "name", jinja_word("f"), "parameters", parameters);
    struct jinja_value tools = list_of(a, pair(a, "type", jinja_word("function"), "function", function));
    struct jinja_value all = list_of(a, pair(a, "role", jinja_word("user"), "content", content));
    if (tools.kind != JINJA_LIST || all.kind != JINJA_LIST ||
        (description.kind != JINJA_UNDEFINED && put(a, function.dict, "description", description) < 0))
        return false;
    struct chat chat = {.messages = all.list, .tools = tools, .add_generation_prompt = true};
    struct jinja_text text;
    return chat_template_render(c, &chat, (struct jinja_limits){0}, a, &text, NULL) == 0;
}

/* A probe that cannot be made for want of memory leaves the usual ways. */
static void probe(struct chat_template *c)
{
    struct arena a = {0};
    struct jinja_value text = jinja_word(PROBE);
    struct jinja_value parts = list_of(&a, pair(&a, "type", jinja_word("text"), "text", text));
    c->wants_parts = !shows_content(c, &a, text) && shows_content(c, &a, parts);
    struct jinja_value x = jinja_word("x"),
                       part = list_of(&a, pair(&a, "type", jinja_word("text"), "text", x)),
                       none = jinja_word(""),
                       no_text = list_of(&a, pair(&a, "type", jinja_word("text"), "text", none));
    struct probed_call usual = {.asked = c->wants_parts ? parts : text,
                                .other = c->wants_parts ? part : x,
                                .beside = c->wants_parts ? no_text : none,
                                .arguments = pair(&a, "x", text, "y", jinja_int(1)),
                                .id = "call00000"};
    probe_calls(c, &a, &usual);
    c->needs_descriptions = !shows_tool(c, &a, usual.asked, (struct jinja_value){0}) &&
                            shows_tool(c, &a, usual.asked, jinja_word(""));
    arena_close(&a);
}

/* --- opening --- */

static int open_source(struct chat_template **out, const char *source, size_t len, const struct tokenizer *t,
                       struct error *err)
{
    struct chat_template *c = calloc(1, sizeof *c);
    if (!c || !(c->source = malloc(len + 1))) {
        free(c);
        return error_set(err, -ENOMEM, "out of memory");
    }
    int rc = jinja_open(&c->program, source, len, err);
    if (rc < 0) {
        free(c->source);
        free(c);
        return rc;
    }
    memcpy(c->source, source, len);
    c->len = len;
    c->tokenizer = t;
    c->format = toolcall_format_of_template(source, len);
    const char *think = toolcall_reasoning_of(c->format).open;
    c->shows_reasoning = think && memmem(source, len, think, strlen(think));
    probe(c);
    *out = c;
    return 0;
}

/* One byte more than a template may have is read, so that one too long is seen to be. */
static int read_file(const char *path, char **out, size_t *len, struct error *err)
{
    FILE *f = fopen(path, "re");
    char *text = malloc(JINJA_MAX_SOURCE + 1);
    int rc = 0;
    if (!f)
        rc = error_set(err, errno == ENOMEM ? -ENOMEM : -EINVAL, "chat_template: %s: %s", path,
                       strerror(errno));
    else if (!text)
        rc = error_set(err, -ENOMEM, "chat_template: %s: out of memory", path);
    if (rc == 0) {
        *len = fread(text, 1, JINJA_MAX_SOURCE + 1, f);
        if (ferror(f))
            rc = error_set(err, -EINVAL, "chat_template: %s: %s", path, strerror(errno));
    }
    if (f)
        fclose(f);
    if (rc < 0)
        free(text);
    else
        *out = text;
    return rc;
}

static int open_file(struct chat_template **out, const char *path, const struct tokenizer *t,
                     struct error *err)
{
    struct error words = {0};
    char *text = NULL;
    size_t len = 0;
    int rc = read_file(path, &text, &len, err);
    if (rc < 0)
        return rc;
    rc = t ? open_source(out, text, len, t, &words) : 0;
    struct jinja *program = NULL;
    if (!t)
        rc = jinja_open(&program, text, len, &words);
    jinja_close(program);
    free(text);
    if (rc < 0)
        return error_set(err, rc == -ENOMEM ? rc : -EINVAL, "chat_template: %s: %s", path, words.text);
    return 0;
}

int chat_template_check(const char *choice, struct error *err)
{
    return !*choice || !strcmp(choice, "chatml") ? 0 : open_file(NULL, choice, NULL, err);
}

static bool has_chatml(const struct tokenizer *t)
{
    return tokenizer_find(t, "<|im_start|>", 12) >= 0 && tokenizer_find(t, "<|im_end|>", 10) >= 0;
}

int chat_template_open(struct chat_template **out, const char *choice, const struct gguf *g,
                       const struct tokenizer *t, struct error *err)
{
    struct gguf_str source = {0};
    struct error words = {0};
    *out = NULL;
    if (*choice && strcmp(choice, "chatml"))
        return open_file(out, choice, t, err);
    if (*choice)
        return open_source(out, chatml, strlen(chatml), t, err);
    if (gguf_get_str(g, "tokenizer.chat_template", &source, NULL) < 0)
        return has_chatml(t) ? open_source(out, chatml, strlen(chatml), t, err) : 0;
    int rc = open_source(out, source.s, source.len, t, &words);
    if (rc < 0)
        return error_set(err, rc, "%s: chat template: %s (chat_template can set another)", gguf_path(g),
                         words.text);
    return 0;
}

const char *chat_template_source(const struct chat_template *c, size_t *len)
{
    *len = c->len;
    return c->source;
}

void chat_template_close(struct chat_template *c)
{
    if (!c)
        return;
    jinja_close(c->program);
    free(c->source);
    free(c);
}
