/* The words of the daemon to a person at start. */
#include "backend/backend.h"
#include "service/serve_text.h"

#include <criterion/criterion.h>

static const char *curl_for(const char *where)
{
    static char line[512];
    serve_curl_line(where, false, line, sizeof line);
    return line;
}

static const char *memory_of(const struct backend_info *info)
{
    static char line[256];
    serve_memory_line(info, 5 << 19, line, sizeof line);
    return line;
}

Test(serve_text, the_memory_line_counts_what_a_model_takes)
{
    struct backend_info info = {.weights_bytes = 359 << 20,
                                .scratch_bytes = 3 << 19,
                                .n_pages = 32,
                                .kv = {.n_layers = 16, .n_kv_heads = 8, .head_dim = 64, .type = KV_F16}};
    cr_assert_str_eq(memory_of(&info), "memory: weights 359.0 MiB, KV cache 64.0 MiB for 2,048 tokens, "
                                       "activations 1.5 MiB, sampling 2.5 MiB");
    info.window_bytes = kv_page_size(&info.kv) / 2; /* of half the layers, and fewer of them */
    info.n_windows = 8;
    info.state_bytes = 12 << 20;
    cr_assert_str_eq(memory_of(&info), "memory: weights 359.0 MiB, KV cache 40.0 MiB for 2,048 tokens, "
                                       "recurrent states 12.0 MiB, activations 1.5 MiB, sampling 2.5 MiB");
}

Test(serve_text, numbers_are_grouped_by_three_digits)
{
    char out[32];
    cr_assert_str_eq(serve_grouped(0, out), "0");
    cr_assert_str_eq(serve_grouped(999, out), "999");
    cr_assert_str_eq(serve_grouped(1024, out), "1,024");
    cr_assert_str_eq(serve_grouped(18446744073709551615ull, out), "18,446,744,073,709,551,615");
}

Test(serve_text, the_curl_line_reaches_the_address)
{
    cr_assert_str_eq(curl_for("http://127.0.0.1:8080"),
                     "curl -d '{\"prompt\":\"Once upon a time\"}' http://127.0.0.1:8080/generate");
}

Test(serve_text, with_keys_the_curl_line_has_a_place_for_one)
{
    char line[512];
    serve_curl_line("http://127.0.0.1:8080", true, line, sizeof line);
    cr_assert_str_eq(line, "curl -H 'Authorization: Bearer KEY' -d '{\"prompt\":\"Once upon a time\"}' "
                           "http://127.0.0.1:8080/generate");
}

Test(serve_text, of_several_addresses_the_first_is_meant)
{
    cr_assert_str_eq(curl_for("http://[::1]:80, http://127.0.0.1:80"),
                     "curl -d '{\"prompt\":\"Once upon a time\"}' http://[::1]:80/generate");
}

Test(serve_text, an_address_that_means_all_becomes_one_that_can_be_reached)
{
    cr_assert_str_eq(curl_for("http://0.0.0.0:8080"),
                     "curl -d '{\"prompt\":\"Once upon a time\"}' http://127.0.0.1:8080/generate");
    cr_assert_str_eq(curl_for("http://[::]:8080"),
                     "curl -d '{\"prompt\":\"Once upon a time\"}' http://[::1]:8080/generate");
}

Test(serve_text, a_unix_socket_has_its_own_flag)
{
    cr_assert_str_eq(curl_for("unix:/run/hearth.sock, http://127.0.0.1:1"),
                     "curl --unix-socket /run/hearth.sock -d '{\"prompt\":\"Once upon a time\"}' "
                     "http://localhost/generate");
}
