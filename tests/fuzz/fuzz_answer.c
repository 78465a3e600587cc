/* fuzz_answer - any bytes as what a server answers to `hearthd stats` and `hearthd ps`: read as HTTP and
 * JSON, printed as a table. The output is UTF-8 without a character that a terminal would obey. The
 * first byte chooses the command and whether a proper head goes before the bytes. */
#include "cli/query_print.h"
#include "fuzz.h"
#include "cli/http_get.h"
#include "base/utf8.h"

#include <errno.h>
#include <jansson.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_ANSWER 65536 /* what a socket holds */

static void check_table(void (*print)(const json_t *answer, FILE *f), const json_t *answer)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    CHECK(f);
    print(answer, f);
    CHECK(fclose(f) == 0 && n);
    for (size_t i = 0, length; i < n; i += length) {
        length = utf8_char(text + i, n - i);
        CHECK(length && (text[i] == '\n' || !utf8_is_obeyed(utf8_code(text + i, length))));
    }
    free(text);
}

static void read_answer(int fd, bool ps)
{
    char *body = NULL;
    int status = http_get_over(fd, "/stats", "sesame", &body);
    CHECK(status < 0 ? !body : status >= 100 && status <= 999 && body);
    json_t *answer = status == 200 ? json_loads(body, 0, NULL) : NULL;
    if (answer)
        check_table(ps ? query_print_requests : query_print_stats, answer);
    json_decref(answer);
    free(body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char head[] = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
    int pair[2];
    if (!size || size > MAX_ANSWER)
        return 0;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    if (data[0] & 2)
        CHECK(write(pair[1], head, strlen(head)) == (ssize_t)strlen(head));
    CHECK(write(pair[1], data + 1, size - 1) == (ssize_t)size - 1);
    shutdown(pair[1], SHUT_WR);
    read_answer(pair[0], data[0] & 1);
    close(pair[0]);
    close(pair[1]);
    return 0;
}
