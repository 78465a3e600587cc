/* The tables of hearthd stats and hearthd ps. */
#include "cli/query_print.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *table_of(const char *stats)
{
    char *text = NULL;
    size_t n;
    json_t *root = json_loads(stats, 0, NULL);
    FILE *f = open_memstream(&text, &n);
    cr_assert(root && f);
    query_print_stats(root, f);
    fclose(f);
    json_decref(root);
    return text;
}

Test(ask_print, a_model_has_its_lines)
{
    char *text =
        table_of("{\"version\":\"1\",\"state\":\"ready\",\"model\":{\"name\":\"M\",\"arch\":\"qwen3\","
                 "\"quantization\":\"Q8_0\"},\"kv\":{\"pages_total\":8}}");
    cr_assert_not_null(strstr(text, "model      M · qwen3 Q8_0 · "), "%s", text);
    cr_assert_not_null(strstr(text, "KV cache   0 of 8 pages"), "%s", text);
    free(text);
}

Test(ask_print, scratch_and_drafts_have_their_place)
{
    char *text =
        table_of("{\"model\":{\"name\":\"M\"},\"device\":{\"memory_used\":10485760,\"scratch\":1048576},"
                 "\"speculation\":{\"enabled\":true,\"drafted\":1200,\"accepted\":800,\"steps_saved\":1,"
                 "\"requests\":3,\"turned_off\":2}}");
    cr_assert_not_null(strstr(text, "10.0 MiB (1.0 scratch)"), "%s", text);
    cr_assert_not_null(
        strstr(text, "drafts     1,200 tokens, 800 accepted · 1 step saved · 2 of 3 requests turned off\n"),
        "%s", text);
    free(text);
    text = table_of("{\"speculation\":{\"enabled\":false}}");
    cr_assert_not_null(strstr(text, "drafts     off\n"), "%s", text);
    free(text);
}

Test(ask_print, the_tuning_has_its_line)
{
    char *text =
        table_of("{\"model\":{\"name\":\"M\"},\"device\":{\"tuning\":{\"source\":\"measured\",\"note\":null,"
                 "\"ms\":35.25,\"choices\":[{\"gain\":1},{\"gain\":1.2},{\"gain\":1}],"
                 "\"folds\":[{\"by\":\"floats\"},{\"by\":\"bf16\"}]}}}");
    cr_assert_not_null(strstr(text, "tuning     measured in 35.2 ms · 1 of 3 choices faster than the "
                                    "constants · pages folded by floats, bf16\n"),
                       "%s", text);
    free(text);
    text = table_of("{\"model\":{\"name\":\"M\"},\"device\":{\"tuning\":{\"source\":\"constants\","
                    "\"note\":\"weights below 64 MiB are not measured\",\"ms\":0,\"choices\":[]}}}");
    cr_assert_not_null(strstr(text, "tuning     constants · weights below 64 MiB are not measured\n"), "%s",
                       text);
    free(text);
    text = table_of("{\"model\":{\"name\":\"M\"},\"device\":{\"tuning\":null}}");
    cr_assert_null(strstr(text, "tuning"), "%s", text);
    free(text);
}

/* While one is loaded or put away. */
Test(ask_print, without_a_model_there_is_no_line_of_empty_names)
{
    static const char *const lines[] = {"model ", "device ", "decoder ", "KV cache ", "drafts "};
    char *text = table_of("{\"version\":\"1\",\"state\":\"suspended\",\"model\":null,\"device\":null,"
                          "\"decoder\":null,\"kv\":null,\"speculation\":null,\"requests\":{\"running\":0}}");
    cr_assert_not_null(strstr(text, "hearthd 1 · suspended · "), "%s", text);
    cr_assert_not_null(strstr(text, "requests   0 running"), "%s", text);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        cr_assert_null(strstr(text, lines[i]), "%s", text);
    free(text);
}

/* The daemon may belong to any user. */
Test(ask_print, names_that_a_terminal_would_obey_are_escaped)
{
    char *text = table_of(
        "{\"version\":\"1\\n\\u001b]0;x\\u0007\",\"model\":{\"name\":\"a\\u009b2Jb\\u202ec\\u007f\"}}");
    cr_assert_not_null(strstr(text, "hearthd 1\\x0a\\x1b]0;x\\x07 · "), "%s", text);
    cr_assert_not_null(strstr(text, "model      a\\u009b2Jb\\u202ec\\x7f · "), "%s", text);
    cr_assert_null(strchr(text, '\x9b'), "%s", text);
    free(text);
}
