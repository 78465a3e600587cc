#include "gguf_private.h"
#include "quant.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "items are read as they lie in the file");

#define MAX_KEY           65535 /* bytes, by the format */
#define MAX_NAME          64    /* bytes of a tensor's name, by the format */
#define MAX_DIMS          4
#define DEFAULT_ALIGNMENT 32
#define MAX_ALIGNMENT     (1u << 20)
#define MIN_VALUE_SIZE    (8 + 1 + 4 + 1)         /* bytes in the file: key, type, the smallest scalar */
#define MIN_TENSOR_SIZE   (8 + 1 + 4 + 8 + 4 + 8) /* name, number of dims, one dim, type, offset */

/* Open addressing over positions in an array; 0 is an empty slot, p + 1 an entry. */
struct index {
    uint32_t *slots;
    size_t mask;
    uint64_t seed; /* random: a file cannot be made to collide */
};

struct gguf {
    char *path;
    const uint8_t *bytes;
    size_t size;
    bool mapped;
    uint32_t version;
    uint32_t alignment;
    struct gguf_value *values;
    size_t n_values;
    struct gguf_tensor *tensors;
    size_t n_tensors;
    char *names; /* of the tensors, NUL-terminated */
    struct index value_index;
    struct index tensor_index;
};

/* Where we are in the file, and which value or tensor an error is about. */
struct reader {
    const struct gguf *g;
    size_t pos;
    const char *kind; /* "key" or "tensor"; NULL in the header */
    uint64_t number;
    struct gguf_str name; /* once it is known */
    struct error *err;
};

/* ---- errors ---- */

#define SHOWN 80 /* bytes of a foreign name that an error shows */

/* Foreign bytes go into logs: what is not plain ASCII is shown as '?', what is long is cut. */
static const char *shown(char out[SHOWN], struct gguf_str s)
{
    size_t n = s.len < SHOWN - 4 ? s.len : SHOWN - 4;
    for (size_t i = 0; i < n; i++)
        out[i] = s.s[i] >= 32 && s.s[i] < 127 ? s.s[i] : '?';
    strcpy(out + n, n < s.len ? "..." : "");
    return out;
}

/* The end of a path is what tells files apart, and leaves room for the words after it. */
static const char *short_path(const char *path)
{
    size_t n = strlen(path);
    return n > 120 ? path + n - 120 : path;
}

__attribute__((format(printf, 3, 4))) static int fail(const struct reader *r, int code, const char *fmt, ...)
{
    char text[200], name[SHOWN];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    const char *path = short_path(r->g->path);
    if (!r->kind)
        return error_set(r->err, code, "%s: %s", path, text);
    if (!r->name.s)
        return error_set(r->err, code, "%s: %s number %" PRIu64 ": %s", path, r->kind, r->number, text);
    return error_set(r->err, code, "%s: %s '%s': %s", path, r->kind, shown(name, r->name), text);
}

int gguf_fail_value(const struct gguf *g, const struct gguf_value *v, struct error *err, const char *fmt, ...)
{
    char text[200], name[SHOWN];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return error_set(err, -EBADMSG, "%s: key '%s': %s", short_path(g->path), shown(name, v->key), text);
}

/* ---- index ---- */

static uint64_t hash_bytes(uint64_t h, const char *s, size_t n)
{
    for (; n >= 8; s += 8, n -= 8) {
        uint64_t word;
        memcpy(&word, s, 8);
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    uint64_t tail = n;
    for (size_t i = 0; i < n; i++)
        tail = tail << 8 | (uint8_t)s[i];
    h = (h ^ tail) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static int index_open(struct index *x, size_t n_entries)
{
    size_t n_slots = 16;
    while (n_slots < 2 * n_entries)
        n_slots *= 2;
    x->slots = calloc(n_slots, sizeof *x->slots);
    if (!x->slots)
        return -ENOMEM;
    x->mask = n_slots - 1;
    if (getrandom(&x->seed, sizeof x->seed, GRND_NONBLOCK) != (ssize_t)sizeof x->seed)
        x->seed = (uintptr_t)x->slots;
    return 0;
}

static struct gguf_str value_name(const struct gguf *g, size_t i)
{
    return g->values[i].key;
}

static struct gguf_str tensor_name(const struct gguf *g, size_t i)
{
    return (struct gguf_str){g->tensors[i].name, strlen(g->tensors[i].name)};
}

/* The slot that holds `name`, or the empty one where it belongs. */
static uint32_t *index_slot(const struct index *x, const struct gguf *g, struct gguf_str name,
                            struct gguf_str (*name_of)(const struct gguf *, size_t))
{
    for (size_t i = hash_bytes(x->seed, name.s, name.len) & x->mask;; i = (i + 1) & x->mask) {
        if (!x->slots[i])
            return &x->slots[i];
        struct gguf_str other = name_of(g, x->slots[i] - 1);
        if (other.len == name.len && memcmp(other.s, name.s, name.len) == 0)
            return &x->slots[i];
    }
}

/* ---- reading ---- */

static size_t left(const struct reader *r)
{
    return r->g->size - r->pos;
}

static int cut_off(const struct reader *r, const char *what, uint64_t need)
{
    return fail(r, -EBADMSG, "cut off: %s takes %" PRIu64 " bytes at offset %zu, the file has %zu", what,
                need, r->pos, r->g->size);
}

static int take(struct reader *r, void *out, size_t n, const char *what)
{
    if (n > left(r))
        return cut_off(r, what, n);
    memcpy(out, r->g->bytes + r->pos, n);
    r->pos += n;
    return 0;
}

static int take_u32(struct reader *r, uint32_t *out, const char *what)
{
    return take(r, out, sizeof *out, what);
}

static int take_u64(struct reader *r, uint64_t *out, const char *what)
{
    return take(r, out, sizeof *out, what);
}

static int take_str(struct reader *r, struct gguf_str *out, const char *what)
{
    uint64_t len = 0;
    int rc = take_u64(r, &len, what);
    if (rc < 0)
        return rc;
    if (len > left(r))
        return cut_off(r, what, len);
    *out = (struct gguf_str){(const char *)r->g->bytes + r->pos, len};
    r->pos += len;
    return 0;
}

/* The name of a key or tensor: what look-ups by C string can find. */
static int take_name(struct reader *r, size_t max, struct gguf_str *out)
{
    struct gguf_str name;
    int rc = take_str(r, &name, "its name");
    if (rc < 0)
        return rc;
    if (name.len == 0 || name.len > max)
        return fail(r, -EBADMSG, "a name has 1 to %zu bytes, this one has %zu", max, name.len);
    r->name = name;
    if (memchr(name.s, 0, name.len))
        return fail(r, -EBADMSG, "the name contains a zero byte");
    *out = name;
    return 0;
}

/* ---- values ---- */

static const char *const type_names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                         "bool", "string", "array", "u64", "i64", "f64"};
static const uint8_t type_sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8}; /* 0: not of a fixed size */

const char *gguf_type_name(uint32_t type)
{
    return type <= GGUF_F64 ? type_names[type] : "?";
}

static int read_strings(struct reader *r, uint64_t n)
{
    if (n > left(r) / 8) /* each has a length at least */
        return fail(r, -EBADMSG,
                    "cut off or broken: says it has %" PRIu64 " strings, the rest of the file has %zu bytes",
                    n, left(r));
    for (uint64_t i = 0; i < n; i++) {
        struct gguf_str s;
        int rc = take_str(r, &s, "a string");
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int read_numbers(struct reader *r, uint32_t type, uint64_t n)
{
    if (n > left(r) / type_sizes[type])
        return fail(r, -EBADMSG,
                    "cut off or broken: says it has %" PRIu64
                    " items of type %s, the rest of the file has %zu bytes",
                    n, type_names[type], left(r));
    size_t size = n * type_sizes[type];
    for (size_t i = 0; type == GGUF_BOOL && i < size; i++) {
        if (r->g->bytes[r->pos + i] > 1)
            return fail(r, -EBADMSG, "a bool is 0 or 1, this one is %d", r->g->bytes[r->pos + i]);
    }
    r->pos += size;
    return 0;
}

static int read_array_header(struct reader *r, struct gguf_value *v)
{
    int rc = take_u32(r, &v->item_type, "the type of an array's items");
    if (rc < 0)
        return rc;
    if (v->item_type == GGUF_ARR)
        return fail(r, -ENOTSUP, "arrays of arrays are not supported");
    if (v->item_type > GGUF_F64)
        return fail(r, -EBADMSG, "unknown type %u of an array's items", v->item_type);
    return take_u64(r, &v->n, "the number of an array's items");
}

static int read_value(struct reader *r, struct gguf_value *v)
{
    int rc = take_name(r, MAX_KEY, &v->key);
    if (rc == 0)
        rc = take_u32(r, &v->type, "its type");
    if (rc < 0)
        return rc;
    if (v->type > GGUF_F64)
        return fail(r, -EBADMSG, "unknown value type %u", v->type);
    v->n = 1;
    v->item_type = v->type;
    if (v->type == GGUF_ARR && (rc = read_array_header(r, v)) < 0)
        return rc;
    v->data = r->g->bytes + r->pos;
    rc = v->item_type == GGUF_STR ? read_strings(r, v->n) : read_numbers(r, v->item_type, v->n);
    v->size = (size_t)(r->g->bytes + r->pos - v->data);
    return rc;
}

/* Claimed numbers of things are believed only as far as the rest of the file could hold them. */
static int check_count(const struct reader *r, uint64_t n, const char *what, size_t min_size)
{
    if (n > left(r) / min_size || n >= UINT32_MAX)
        return fail(r, -EBADMSG, "says it has %" PRIu64 " %s, %zu bytes cannot hold them", n, what, left(r));
    return 0;
}

static int read_values(struct reader *r, struct gguf *g, uint64_t n)
{
    g->values = calloc(n ? n : 1, sizeof *g->values);
    if (!g->values || index_open(&g->value_index, n) < 0)
        return fail(r, -ENOMEM, "out of memory");
    r->kind = "key";
    for (r->number = 0; r->number < n; r->number++) {
        struct gguf_value *v = &g->values[g->n_values];
        r->name.s = NULL;
        int rc = read_value(r, v);
        if (rc < 0)
            return rc;
        uint32_t *slot = index_slot(&g->value_index, g, v->key, value_name);
        if (*slot)
            return fail(r, -EBADMSG, "appears twice");
        *slot = (uint32_t)++g->n_values;
    }
    r->kind = NULL;
    return 0;
}

/* ---- tensors ---- */

/* Shape to size; `rank` and `ne` have been read. Every product is checked: sizes are what later reads trust.
 */
static int check_shape(const struct reader *r, struct gguf_tensor *t)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < MAX_DIMS; i++) {
        if (t->ne[i] == 0)
            return fail(r, -EBADMSG, "dimension %u is 0", i);
        if (t->ne[i] > INT64_MAX || __builtin_mul_overflow(n, t->ne[i], &n) || n > INT64_MAX)
            return fail(r, -EBADMSG, "the product of its dimensions overflows at dimension %u", i);
    }
    const struct quant_traits *q = quant_traits(t->type);
    if (!q)
        return 0;
    if (t->ne[0] % q->block)
        return fail(r, -EBADMSG, "rows of %" PRIu64 " values do not fill blocks of %u (%s)", t->ne[0],
                    q->block, q->name);
    if (__builtin_mul_overflow(n / q->block, q->block_size, &t->size))
        return fail(r, -EBADMSG, "its size in bytes overflows");
    return 0;
}

static int read_shape(struct reader *r, struct gguf_tensor *t)
{
    int rc = take_u32(r, &t->n_dims, "its number of dimensions");
    if (rc < 0)
        return rc;
    if (t->n_dims == 0 || t->n_dims > MAX_DIMS)
        return fail(r, -EBADMSG, "has %u dimensions, 1 to %d are allowed", t->n_dims, MAX_DIMS);
    for (uint32_t i = 0; i < MAX_DIMS; i++) {
        t->ne[i] = 1;
        if (i < t->n_dims && (rc = take_u64(r, &t->ne[i], "a dimension")) < 0)
            return rc;
    }
    return 0;
}

/* A tensor's extent in the data section; sorted to find overlap. */
struct extent {
    uint64_t offset;
    size_t size; /* 1 for a type of unknown size */
    size_t tensor;
};

static int read_tensor(struct reader *r, struct gguf_tensor *t, char *name, struct extent *e)
{
    struct gguf_str s;
    int rc = take_name(r, MAX_NAME, &s);
    if (rc < 0)
        return rc;
    memcpy(name, s.s, s.len);
    name[s.len] = 0;
    t->name = name;
    if ((rc = read_shape(r, t)) < 0 || (rc = take_u32(r, &t->type, "its type")) < 0 ||
        (rc = take_u64(r, &e->offset, "its offset")) < 0)
        return rc;
    if (e->offset % r->g->alignment)
        return fail(r, -EBADMSG, "offset %" PRIu64 " is not a multiple of general.alignment %u", e->offset,
                    r->g->alignment);
    if ((rc = check_shape(r, t)) < 0)
        return rc;
    e->size = t->size ? t->size : 1;
    return 0;
}

static int read_tensors(struct reader *r, struct gguf *g, uint64_t n, struct extent *extents)
{
    size_t used = 0;
    r->kind = "tensor";
    for (r->number = 0; r->number < n; r->number++) {
        struct gguf_tensor *t = &g->tensors[g->n_tensors];
        struct extent *e = &extents[g->n_tensors];
        r->name.s = NULL;
        e->tensor = g->n_tensors;
        int rc = read_tensor(r, t, g->names + used, e);
        if (rc < 0)
            return rc;
        used += strlen(t->name) + 1;
        uint32_t *slot = index_slot(&g->tensor_index, g, r->name, tensor_name);
        if (*slot)
            return fail(r, -EBADMSG, "appears twice");
        *slot = (uint32_t)++g->n_tensors;
    }
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    const struct extent *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

/* Every tensor lies in the file, after the one before it. `r->pos` is the end of the tensor table. */
static int place_tensors(struct reader *r, struct gguf *g, struct extent *extents)
{
    size_t start = r->pos + (-r->pos & (g->alignment - 1)); /* the position is far from overflow */
    size_t room = start < g->size ? g->size - start : 0;
    qsort(extents, g->n_tensors, sizeof *extents, by_offset);
    for (size_t i = 0; i < g->n_tensors; i++) {
        const struct extent *e = &extents[i];
        struct gguf_tensor *t = &g->tensors[e->tensor];
        r->name = tensor_name(g, e->tensor);
        if (e->offset > room || e->size > room - e->offset)
            return fail(r, -EBADMSG,
                        "cut off: its %zu bytes at data offset %" PRIu64 " end after the file's %zu", e->size,
                        e->offset, g->size);
        if (i > 0 && extents[i - 1].offset + extents[i - 1].size > e->offset)
            return fail(r, -EBADMSG, "overlaps tensor '%s' at data offset %" PRIu64,
                        g->tensors[e[-1].tensor].name, e->offset);
        if (t->size)
            t->data = g->bytes + start + e->offset;
    }
    return 0;
}

static int read_tensor_table(struct reader *r, struct gguf *g, uint64_t n)
{
    int rc = check_count(r, n, "tensors", MIN_TENSOR_SIZE);
    if (rc < 0 || n == 0)
        return rc;
    struct extent *extents = calloc(n, sizeof *extents);
    g->tensors = calloc(n, sizeof *g->tensors);
    g->names = malloc(n * (MAX_NAME + 1));
    if (!extents || !g->tensors || !g->names || index_open(&g->tensor_index, n) < 0)
        rc = fail(r, -ENOMEM, "out of memory");
    if (rc == 0)
        rc = read_tensors(r, g, n, extents);
    if (rc == 0)
        rc = place_tensors(r, g, extents);
    free(extents);
    return rc;
}

/* ---- the file ---- */

static int read_header(struct reader *r, struct gguf *g, uint64_t *n_tensors, uint64_t *n_values)
{
    if (g->size == 0)
        return fail(r, -EBADMSG, "the file is empty");
    char magic[4];
    int rc = take(r, magic, sizeof magic, "the magic number");
    if (rc == 0 && memcmp(magic, "GGUF", sizeof magic) != 0)
        return fail(r, -EBADMSG, "not a GGUF file: it does not begin with \"GGUF\"");
    if (rc < 0 || (rc = take_u32(r, &g->version, "the version")) < 0)
        return rc;
    if (g->version && !(g->version & 0xffff))
        return fail(r, -ENOTSUP, "a big-endian file; only little-endian GGUF is supported");
    if (g->version != 2 && g->version != 3)
        return fail(r, -ENOTSUP, "GGUF version %u; versions 2 and 3 are supported", g->version);
    if ((rc = take_u64(r, n_tensors, "the number of tensors")) < 0 ||
        (rc = take_u64(r, n_values, "the number of keys")) < 0)
        return rc;
    return check_count(r, *n_values, "keys", MIN_VALUE_SIZE);
}

static int check_alignment(const struct reader *r, struct gguf *g)
{
    g->alignment = DEFAULT_ALIGNMENT;
    int rc = gguf_get_u32(g, "general.alignment", &g->alignment, r->err);
    if (rc < 0 && rc != -ENOENT)
        return rc;
    if (g->alignment < 8 || g->alignment > MAX_ALIGNMENT || (g->alignment & (g->alignment - 1)))
        return fail(r, -EBADMSG, "general.alignment is %u, expected a power of two from 8 to %u",
                    g->alignment, MAX_ALIGNMENT);
    return 0;
}

/* The N of a name that ends in "-00001-of-N.gguf", or 0. */
static unsigned split_count_of(const char *path)
{
    size_t n = strlen(path);
    const char *tail = "-00001-of-00000.gguf";
    unsigned part, count;
    int end = 0;
    if (n < strlen(tail) || sscanf(path + n - strlen(tail), "-%5u-of-%5u.gguf%n", &part, &count, &end) != 2 ||
        end != (int)strlen(tail))
        return 0;
    return count;
}

static int refuse_split(const struct reader *r, const struct gguf *g)
{
    uint32_t count = 0;
    int rc = gguf_get_u32(g, "split.count", &count, r->err);
    if (rc < 0 && rc != -ENOENT)
        return rc;
    if (rc == -ENOENT)
        count = split_count_of(g->path);
    if (count > 1)
        return fail(r, -ENOTSUP, "one of %u parts of a split model; merge the parts into one file first",
                    count);
    return 0;
}

static int read_file(struct gguf *g, struct error *err)
{
    struct reader r = {.g = g, .err = err};
    uint64_t n_tensors = 0, n_values = 0;
    int rc = read_header(&r, g, &n_tensors, &n_values);
    if (rc < 0 || (rc = read_values(&r, g, n_values)) < 0 || (rc = refuse_split(&r, g)) < 0 ||
        (rc = check_alignment(&r, g)) < 0)
        return rc;
    return read_tensor_table(&r, g, n_tensors);
}

static int map_file(struct gguf *g, struct error *err)
{
    const char *path = short_path(g->path);
    /* O_NONBLOCK: a FIFO must not hang the start; it is refused below. */
    int fd = open(g->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0) {
        int rc = error_set(err, -errno, "%s: cannot open: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return rc;
    }
    int rc = 0;
    if (S_ISDIR(st.st_mode))
        rc = error_set(err, -EISDIR, "%s: is a directory, expected a GGUF file", path);
    else if (!S_ISREG(st.st_mode))
        rc = error_set(err, -EINVAL, "%s: is not a regular file", path);
    g->size = rc == 0 ? (size_t)st.st_size : 0;
    if (g->size > 0) {
        void *bytes = mmap(NULL, g->size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes == MAP_FAILED)
            rc = error_set(err, -errno, "%s: cannot map %zu bytes: %s", path, g->size, strerror(errno));
        else
            g->bytes = bytes;
    }
    g->mapped = g->bytes != NULL;
    close(fd);
    return rc;
}

/* `bytes` NULL with `map`: map the file at `path`. */
static int open_any(struct gguf **out, const char *path, bool map, const void *bytes, size_t size,
                    struct error *err)
{
    struct gguf *g = calloc(1, sizeof *g);
    if (!g || !(g->path = strdup(path))) {
        free(g);
        return error_set(err, -ENOMEM, "%s: out of memory", short_path(path));
    }
    g->bytes = bytes;
    g->size = size;
    int rc = map ? map_file(g, err) : 0;
    if (rc == 0)
        rc = read_file(g, err);
    if (rc < 0) {
        gguf_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

int gguf_open(struct gguf **out, const char *path, struct error *err)
{
    return open_any(out, path, true, NULL, 0, err);
}

int gguf_open_memory(struct gguf **out, const char *path, const void *bytes, size_t size, struct error *err)
{
    return open_any(out, path, false, bytes, size, err);
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    if (g->mapped)
        munmap((void *)(uintptr_t)g->bytes, g->size);
    free(g->value_index.slots);
    free(g->tensor_index.slots);
    free(g->values);
    free(g->tensors);
    free(g->names);
    free(g->path);
    free(g);
}

void gguf_drop_pages(const struct gguf *g, const struct gguf_tensor *t)
{
    if (!g->mapped || !t->data)
        return;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)t->data + page - 1) / page * page; /* whole pages: neighbours keep theirs */
    uintptr_t to = ((uintptr_t)t->data + t->size) / page * page;
    if (from < to)
        (void)madvise((void *)from, to - from, MADV_DONTNEED); /* advice: failing costs memory only */
}

/* ---- what it holds ---- */

const char *gguf_path(const struct gguf *g)
{
    return g->path;
}

uint32_t gguf_version(const struct gguf *g)
{
    return g->version;
}

size_t gguf_file_size(const struct gguf *g)
{
    return g->size;
}

size_t gguf_n_values(const struct gguf *g)
{
    return g->n_values;
}

const struct gguf_value *gguf_value_at(const struct gguf *g, size_t i)
{
    assert(i < g->n_values);
    return &g->values[i];
}

size_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
    assert(i < g->n_tensors);
    return &g->tensors[i];
}

const struct gguf_value *gguf_find(const struct gguf *g, const char *key)
{
    uint32_t slot = *index_slot(&g->value_index, g, (struct gguf_str){key, strlen(key)}, value_name);
    return slot ? &g->values[slot - 1] : NULL;
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name)
{
    if (g->n_tensors == 0)
        return NULL;
    uint32_t slot = *index_slot(&g->tensor_index, g, (struct gguf_str){name, strlen(name)}, tensor_name);
    return slot ? &g->tensors[slot - 1] : NULL;
}
