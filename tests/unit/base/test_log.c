/* Log lines: one per event, for any bytes that came in. */
#include "base/log.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int pipe_end;

/* stderr becomes a pipe whose other end is read by written(). */
static void catch_stderr(void)
{
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    pipe_end = ends[0];
}

static const char *written(void)
{
    static char text[2 * LOG_MAX_LINE];
    ssize_t n = read(pipe_end, text, sizeof text - 1);
    cr_assert_gt(n, 0);
    text[n] = '\0';
    return text;
}

Test(log, a_message_with_control_characters_stays_one_line)
{
    catch_stderr();
    log_open(LOG_LEVEL_INFO, LOG_TEXT);
    log_info("a%sb", "\n\x1b[31mred\x7f\xc2\x9b");
    cr_assert_str_eq(written(), "a\\x0a\\x1b[31mred\\x7f\\u009bb\n");
}

Test(log, text_in_utf8_is_kept_and_broken_utf8_is_escaped)
{
    catch_stderr();
    log_open(LOG_LEVEL_INFO, LOG_TEXT);
    log_info("32 × é \xff\xe2\x82");
    cr_assert_str_eq(written(), "32 × é \\xff\\xe2\\x82\n");
}

Test(log, lines_below_the_level_are_not_written)
{
    catch_stderr();
    log_open(LOG_LEVEL_WARN, LOG_TEXT);
    log_info("not this");
    log_warn("this");
    cr_assert_str_eq(written(), "warning: this\n");
}

Test(log, the_level_can_be_changed_while_running)
{
    catch_stderr();
    log_open(LOG_LEVEL_ERROR, LOG_TEXT);
    log_set_level(LOG_LEVEL_DEBUG);
    log_debug("now");
    cr_assert_str_eq(written(), "debug: now\n");
}

Test(log, json_lines_carry_level_and_message)
{
    catch_stderr();
    log_open(LOG_LEVEL_INFO, LOG_JSON);
    log_info("say \"hi\"\n");
    const char *line = written();
    cr_assert(strstr(line, ",\"level\":\"info\",\"message\":\"say \\\"hi\\\"\\u000a\"}\n"), "%s", line);
    cr_assert_eq(strncmp(line, "{\"time\":\"20", 11), 0);
}

Test(log, a_line_too_long_is_cut_and_still_ends)
{
    static char text[4 * LOG_MAX_LINE];
    memset(text, 'x', sizeof text - 1);
    catch_stderr();
    log_open(LOG_LEVEL_INFO, LOG_JSON);
    log_info("%s", text);
    const char *line = written();
    cr_assert_leq(strlen(line), LOG_MAX_LINE);
    cr_assert_str_eq(line + strlen(line) - 3, "\"}\n");
}

Test(log, the_journal_gets_priorities)
{
    struct stat st;
    char stream[64];
    catch_stderr();
    cr_assert_eq(fstat(STDERR_FILENO, &st), 0);
    snprintf(stream, sizeof stream, "%llu:%llu", (unsigned long long)st.st_dev,
             (unsigned long long)st.st_ino);
    setenv("JOURNAL_STREAM", stream, 1);
    log_open(LOG_LEVEL_INFO, LOG_TEXT);
    log_warn("careful");
    cr_assert_str_eq(written(), "<4>careful\n");
}

Test(log, another_stream_than_the_journal_gets_none)
{
    catch_stderr();
    setenv("JOURNAL_STREAM", "1:2", 1);
    log_open(LOG_LEVEL_INFO, LOG_TEXT);
    log_info("plain");
    cr_assert_str_eq(written(), "plain\n");
}

Test(log, quoted_words_show_where_they_end)
{
    cr_assert_str_eq(log_quote("a \"b\"\\"), "\"a \\\"b\\\"\\\\\"");
    cr_assert_str_eq(log_quote(NULL), "-");
}

Test(log, a_long_word_is_cut)
{
    char text[1000];
    memset(text, 'y', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    const char *quoted = log_quote(text);
    cr_assert_lt(strlen(quoted), 130);
    cr_assert_str_eq(quoted + strlen(quoted) - 4, "…\"");
}

static const struct log_access generation = {.method = "POST",
                                             .route = "/generate",
                                             .path = "/generate",
                                             .status = 200,
                                             .ms = 12.34,
                                             .finish = "eos",
                                             .generation = "gen-1",
                                             .prompt_tokens = 4,
                                             .cached_tokens = 1,
                                             .tokens = 64,
                                             .client = "2001:db8::7"};

Test(log, the_access_line_of_a_generation_has_its_figures)
{
    catch_stderr();
    log_open(LOG_LEVEL_INFO, LOG_TEXT);
    log_access(LOG_LEVEL_INFO, "req-1", &generation);
    cr_assert_str_eq(written(),
                     "req-1: POST /generate 200 gen-1 prompt=4 cached=1 tokens=64 finish=eos 12.3 ms from "
                     "2001:db8::7\n");
}

Test(log, in_json_each_figure_of_the_access_line_is_a_key)
{
    catch_stderr();
    log_open(LOG_LEVEL_INFO, LOG_JSON);
    log_access(LOG_LEVEL_INFO, "req-\"1", &generation);
    const char *line = written();
    cr_assert(strstr(line, ",\"level\":\"info\",\"request\":\"req-\\\"1\",\"message\":\"POST /generate"),
              "%s", line);
    cr_assert(strstr(
        line,
        "12.3 ms from 2001:db8::7\",\"method\":\"POST\",\"route\":\"/generate\",\"status\":200,\"ms\":12.3,"
        "\"generation\":\"gen-1\",\"prompt_tokens\":4,\"cached_tokens\":1,"
        "\"tokens\":64,\"finish\":\"eos\",\"client\":\"2001:db8::7\"}\n"));
}

Test(log, a_refusal_has_the_type_of_its_error)
{
    struct log_access a = {.method = "POST", .route = "/generate", .status = 503, .error = "queue_full"};
    catch_stderr();
    log_open(LOG_LEVEL_INFO, LOG_TEXT);
    log_access(LOG_LEVEL_INFO, "req-1", &a);
    log_open(LOG_LEVEL_INFO, LOG_JSON);
    log_access(LOG_LEVEL_INFO, "req-2", &a);
    const char *text = written();
    cr_assert(strstr(text, "req-1: POST /generate 503 queue_full 0.0 ms\n"), "%s", text);
    cr_assert(strstr(text, "\"status\":503,\"ms\":0.0,\"error\":\"queue_full\"}\n"), "%s", text);
}

Test(log, a_path_without_a_route_is_escaped_in_its_key)
{
    struct log_access a = {.method = "GET", .path = "/a\"\n", .status = 404};
    catch_stderr();
    log_open(LOG_LEVEL_INFO, LOG_JSON);
    log_access(LOG_LEVEL_INFO, "req-1", &a);
    cr_assert(strstr(written(), "\"route\":null,\"path\":\"/a\\\"\\u000a\",\"status\":404,\"ms\":0.0}\n"));
}

Test(log, the_keys_of_a_very_long_path_still_end_the_object)
{
    char path[4096] = {0};
    struct log_access a = {.method = "GET", .path = path, .status = 404};
    memset(path, '\x01', sizeof path - 1);
    catch_stderr();
    log_open(LOG_LEVEL_INFO, LOG_JSON);
    log_access(LOG_LEVEL_INFO, "req-1", &a);
    cr_assert(strstr(written(), "\"status\":404,\"ms\":0.0}\n"));
}
