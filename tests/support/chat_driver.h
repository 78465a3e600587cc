/* chat_driver.h - chats over HTTP with the fake engine: a server whose model has a template, and the prompt
 * that came out of it. */
#pragma once
#include "support/server_driver.h"

/* A server whose model has this template. */
static inline void start_template(const char *source, const char *chat_format)
{
    char path[] = "/tmp/hearth-template-XXXXXX";
    struct error err = {0};
    const char *keys[] = {"chat_format", chat_format, NULL};
    open_server(keys);
    fake.n_ctx = 1024;
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, source, strlen(source)), (ssize_t)strlen(source));
    close(fd);
    cr_assert_eq(chat_template_open(&f.chat, path, model_gguf(f.model), f.tokenizer, &err), 0, "%s",
                 err.text);
    unlink(path);
    struct server_model m = {
        .engine = (struct engine *)&fake, .tokenizer = f.tokenizer, .model = f.model, .chat = f.chat};
    m.hash = model_hash(f.model, 0);
    server_set_model(f.server, &m);
    server_set_state(f.server, SERVER_READY);
    pthread_create(&f.thread, NULL, run_loop, NULL);
}

#define HERMES                                                                                               \
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c.function.name }}={{ "             \
    "c.function.arguments.city }}{% endfor %}{% endfor %}{% if tools %}<tool_call>{% endif %}"               \
    "{% if add_generation_prompt %}:{% endif %}"
#define THINKS                                                                                               \
    "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}<tool_call>{% endif %}<think>\n"

#define ASK  "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"
#define CALL "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Be rn\"}}\n</tool_call>"

/* The prompt's tokens as a text. */
static inline void expect_prompt(const char *want)
{
    char text[512] = "";
    for (uint32_t i = 0; i < fake.last.n_prompt && i < 64; i++) {
        struct tokenizer_piece p = tokenizer_piece(f.tokenizer, fake.last_prompt[i], true);
        strncat(text, p.s, p.len);
    }
    cr_assert_str_eq(text, want);
}

/* Appends a member's text, if it has one. */
static inline void join(char *to, const json_t *delta, const char *name)
{
    const char *s = json_string_value(json_object_get(delta, name));
    strcat(to, s ? s : "");
}
