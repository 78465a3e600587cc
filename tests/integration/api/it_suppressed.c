/* Tokens that a file wants in no text (tokenizer.ggml.suppress_tokens), whatever a client asks for. */
#include "support/models/variant.h"
#include "integration/harness.h"

#include <unistd.h>

#define BASE  "tiny-qwen3-s11-q4_k_m"
#define TOKEN 40
#define WISH                                                                                                 \
    "{\"prompt\":[1,2,3],\"max_tokens\":12,\"temperature\":0,\"ignore_eos\":true,\"logprobs\":1,\"logit_"    \
    "bias\":{\"40\":100}"

/* The number of a text's tokens that are TOKEN, of 12. */
static int n_forced(const char *body)
{
    json_t *root = post_ok("/generate", body), *item;
    size_t i;
    int n = 0;
    json_array_foreach(json_object_get(root, "logprobs"), i, item) n +=
        json_integer_value(json_object_get(item, "id")) == TOKEN;
    cr_assert_eq(json_array_size(json_object_get(root, "logprobs")), 12);
    json_decref(root);
    return n;
}

Test(suppressed, tokens_are_in_no_text)
{
    static const int32_t tokens[] = {TOKEN, 7, TOKEN};
    char model[64];
    const struct variant_edit edit = {
        .kind = VARIANT_I32S, .name = "tokenizer.ggml.suppress_tokens", .u32 = 3, .bytes = tokens};
    variant_write(model, BASE, NULL, 0);
    daemon_start((const char *[]){"--model", model, NULL});
    cr_expect_eq(n_forced(WISH "}"), 12);
    daemon_stop();
    unlink(model);
    variant_write(model, BASE, &edit, 1);
    daemon_start((const char *[]){"--model", model, NULL});
    cr_expect_eq(n_forced(WISH "}"), 0);
    cr_expect_eq(n_forced(WISH ",\"mirostat\":2}"), 0, "the host draws");
    daemon_stop();
    unlink(model);
}
