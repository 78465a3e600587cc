/* chat_prepare.c - a chat becomes a prompt: rendered by the model's template, then tokenised. */
#include "chat_prepare.h"
#include "generation.h"
#include "toolcall/toolcall_writing.h"

#include <errno.h>
#include <string.h>

#define MAX_PROMPT_END 64 /* bytes that may open the reasoning */

/* Refuses fields that would have no effect, as unknown ones are. */
static int check_template(const struct chat_template *c, const struct chat *chat, struct api_error *err)
{
    if (!c)
        return api_invalid(err, "chat_template", "the model has neither a chat_template nor ChatML tokens");
    if (chat->tools.kind != JINJA_UNDEFINED && !chat_template_reads(c, "tools"))
        return api_invalid(err, "tools", "the model's chat_template does not support tools");
    if (chat->documents.kind != JINJA_UNDEFINED && !chat_template_reads(c, "documents"))
        return api_invalid(err, "documents", "the model's chat_template does not support documents");
    return 0;
}

static int refuse_render(struct generation *g, int rc, const struct error *words, struct api_error *err)
{
    if (rc == -ENOMEM)
        return api_out_of_memory(err);
    if (rc == -E2BIG)
        return generation_too_long(g, err);
    if (rc == -EINVAL)
        return api_invalid(err, "messages", "the model's chat_template rejects the messages: %s",
                           words->text);
    return api_invalid(err, "chat_template", "the model's chat_template cannot render the messages: %s",
                       words->text);
}

/* The file's BOS comes first, whether the template writes it or not. */
static int put_prompt_text(struct generation *g, struct jinja_text text, struct api_error *err)
{
    const struct tokenizer *t = g->model->tokenizer;
    struct params *p = &g->p;
    int32_t bos = tokenizer_bos(t);
    bool adds = p->add_special && tokenizer_adds_bos(t);
    /* Text of users never becomes a special token. */
    struct tokenizer_flags flags = {.parse_special = text.plain != jinja_all_plain};
    flags.plain = flags.parse_special ? text.plain : NULL;
    if ((adds && generation_append_id(g, bos, err) < 0) ||
        generation_encode(g, text.s, text.len, flags, err) < 0)
        return -1;
    if (adds && p->n_ids > 1 && p->ids[1] == bos)
        memmove(p->ids, p->ids + 1, --p->n_ids * sizeof *p->ids);
    return 0;
}

/* The prompt, and its end, which may open the reasoning. */
static int put_prompt(struct generation *g, struct jinja_text text, struct api_error *err)
{
    size_t n = text.len < MAX_PROMPT_END ? text.len : MAX_PROMPT_END;
    g->p.prompt_end = arena_copy(g->arena, text.s + text.len - n, n);
    g->p.prompt_end_len = n;
    return g->p.prompt_end ? put_prompt_text(g, text, err) : api_out_of_memory(err);
}

/* Takes the begun answer, the last message, from the conversation; its text, or an undefined value. */
static struct jinja_value take_begun(struct params *p)
{
    static const struct jinja_value none = {0};
    struct jinja_list *all = p->chat.messages;
    const struct jinja_value *last = &all->items[all->n - 1];
    const struct jinja_value *role = jinja_dict_find(last->dict, "role", 4);
    const struct jinja_value *content = jinja_dict_find(last->dict, "content", 7);
    bool begun = (p->continues || p->last_is_begun) && all->n > 1 && role &&
                 jinja_text_is(role->text, "assistant") && !jinja_dict_find(last->dict, "tool_calls", 10);
    if (!begun || !content || content->kind == JINJA_NONE)
        return none;
    if (content->kind == JINJA_LIST) /* the parts of a text */
        content = content->list->n ? jinja_dict_find(content->list->items[0].dict, "text", 4) : NULL;
    if (!content || content->kind != JINJA_TEXT)
        return none;
    all->n--;
    p->chat.add_generation_prompt = true;
    return *content;
}

/* reasoning_effort under the names that templates read; what the client set itself holds. */
static int put_effort(struct generation *g, struct api_error *err)
{
    struct chat *chat = &g->p.chat;
    const char *effort = g->p.reasoning_effort;
    const struct chat_template *c = g->model->chat;
    bool thinks = effort && strcmp(effort, "none");
    const struct {
        const char *name;
        struct jinja_value value;
        bool given;
    } variables[] = {{"enable_thinking", jinja_bool(thinks), true},
                     {"reasoning_effort", jinja_word(effort ? effort : ""), thinks}};
    if (!effort)
        return 0;
    if (!chat->variables && !(chat->variables = jinja_dict_open(chat->arena)))
        return api_out_of_memory(err);
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *name = variables[i].name;
        if (!variables[i].given || !chat_template_reads(c, name) ||
            jinja_dict_find(chat->variables, name, strlen(name)))
            continue;
        if (jinja_dict_add(chat->arena, chat->variables, jinja_word(name), variables[i].value) < 0)
            return api_out_of_memory(err);
    }
    return 0;
}

/* Goes on with an answer that has begun. Its reasoning is over: where the prompt opens one, it is closed. */
static int put_begun(struct generation *g, struct jinja_text begun, struct api_error *err)
{
    struct params *p = &g->p;
    bool open = p->format && toolcall_reasoning_is_open(p->format, p->prompt_end, p->prompt_end_len);
    const char *close = open ? toolcall_reasoning_of(p->format).close : "";
    size_t n = strlen(close);
    if (p->constraint.kind != CONSTRAINT_NONE || p->choice.forced)
        return api_invalid(
            err, "messages",
            "%s cannot constrain an answer that messages has begun: leave out the last message",
            p->choice.forced ? "tool_choice" : p->constraint.field);
    if (n && (generation_encode(g, close, n, (struct tokenizer_flags){.parse_special = true}, err) < 0 ||
              generation_encode(g, "\n\n", 2, (struct tokenizer_flags){0}, err) < 0))
        return -1;
    p->prompt_end = n ? close : p->prompt_end;
    p->prompt_end_len = n ? n : p->prompt_end_len;
    return generation_encode(g, begun.s, begun.len, (struct tokenizer_flags){0}, err);
}

int chat_prepare(struct generation *g, struct api_error *err)
{
    const struct server_model *m = g->model;
    struct params *p = &g->p;
    struct error words = {0};
    struct jinja_text text;
    if (p->no_tools) {
        p->chat.tools = (struct jinja_value){0};
        p->tools.n = 0;
    }
    if (!p->format)
        p->format = m->format;
    if (check_template(m->chat, &p->chat, err) < 0 || put_effort(g, err) < 0)
        return -1;
    p->chat.now = g->created;
    struct jinja_value begun = take_begun(p);
    struct jinja_limits limits = {.operations = generation_operations(g),
                                  .output = generation_most_ids(g) * tokenizer_max_piece(m->tokenizer)};
    struct arena scratch = {0}; /* not the request's: it would keep all that the render made for long */
    int rc = chat_template_render(m->chat, &p->chat, limits, &scratch, &text, &words);
    if (rc == -ELOOP && limits.operations)
        rc = generation_exceeded(g);
    else
        rc = rc < 0 ? refuse_render(g, rc, &words, err) : put_prompt(g, text, err);
    if (rc == 0 && begun.kind == JINJA_TEXT)
        rc = put_begun(g, begun.text, err);
    arena_close(&scratch);
    return rc;
}
