/* fuzz_prefix - any bytes as a file of the prefix cache: read as one, and taken only when they are the page
 * that was asked for. The first byte says whether the file's sums are put right before, so that what lies
 * behind them is reached. The bytes are also a file's name. */
#include "fuzz.h"
#include "base/hash.h"
#include "kv/prefix_file.h"

#include <sys/mman.h>
#include <unistd.h>

enum { N_BYTES = 128, PLACE = 5 };

/* A seed is this page: salt 0, tokens 0. */
static struct kv_page_name wanted(void)
{
    struct kv_page_name name = {.parent = kv_key_of_salt(0)};
    name.key = kv_key_next(name.parent, name.ids);
    return name;
}

static void repair(uint8_t *file, size_t n)
{
    struct prefix_file_header h;
    if (n < sizeof h)
        return;
    memcpy(&h, file, sizeof h);
    h.bytes_sum = hash_bytes(PLACE, file + sizeof h, n - sizeof h);
    h.header_sum = hash_bytes(0, &h, offsetof(struct prefix_file_header, header_sum));
    memcpy(file, &h, sizeof h);
}

static void read_name(const uint8_t *data, size_t n)
{
    char name[200] = {0}, again[PREFIX_FILE_NAME];
    uint64_t place;
    struct kv_key key;
    memcpy(name, data, n < sizeof name - 1 ? n : sizeof name - 1);
    if (!prefix_file_parse_name(name, &place, &key))
        return;
    prefix_file_name(again, place, key);
    CHECK(strcmp(name, again) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t file[4096];
    uint8_t bytes[N_BYTES];
    struct kv_page_name name = wanted();
    struct prefix_file f = {.place = PLACE, .name = &name, .bytes = bytes, .n_bytes = N_BYTES};
    if (size < 1 || size > sizeof file)
        return 0;
    read_name(data + 1, size - 1);
    size_t n = size - 1;
    memcpy(file, data + 1, n);
    if (data[0] & 1)
        repair(file, n);
    int fd = memfd_create("page", MFD_CLOEXEC);
    CHECK(fd >= 0 && write(fd, file, n) == (ssize_t)n);
    if (prefix_file_read_from(fd, &f, NULL) == 0) {
        struct prefix_file_header h;
        CHECK(n == prefix_file_size(N_BYTES));
        memcpy(&h, file, sizeof h);
        CHECK(memcmp(&h.name, &name, sizeof name) == 0 && h.place == PLACE);
        CHECK(memcmp(bytes, file + sizeof h, N_BYTES) == 0);
    }
    close(fd);
    return 0;
}
