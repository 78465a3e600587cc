#include "gguf_private.h"
#include "base/hash.h"
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
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "numbers are read from the file without conversion");

#define MAX_KEY           65535 /* bytes; the format's limit */
#define MAX_NAME          64    /* bytes of a tensor's name; the format's limit */
#define MAX_DIMS          4
#define DEFAULT_ALIGNMENT 32
#define MAX_ALIGNMENT     (1u << 20)
#define MAX_METADATA      ((size_t)256 << 20)     /* bytes: large vocabularies have 10 MB of it */
#define READ_AHEAD        ((size_t)1 << 20)       /* bytes of metadata beyond what is needed */
#define MIN_VALUE_SIZE    (8 + 1 + 4 + 1)         /* bytes in the file: key, type, the smallest scalar */
#define MIN_TENSOR_SIZE   (8 + 1 + 4 + 8 + 4 + 8) /* name, number of dims, one dim, type, offset */

/* Hash table with open addressing. A slot is 0 when empty, else 1 + the position of a value or tensor. */
struct index {
    uint32_t *slots;
    size_t mask;
    uint64_t seed; /* random, so that no file can be made to collide */
};

struct gguf {
    char *path;
    int fd;               /* -1: the file lies in memory, or was released */
    const uint8_t *bytes; /* the first n_read of the file */
    size_t size, n_read;
    uint8_t
        *reserved; /* addresses that `bytes` grows into without moving; NULL: the bytes are the caller's */
    size_t n_reserved;
    struct timespec changed; /* the file's time of change when it was opened */
    uint32_t version;
    uint32_t alignment;
    struct gguf_value *values;
    size_t n_values;
    struct gguf_tensor *tensors;
    size_t n_tensors;
    char *names; /* of the tensors, NUL-terminated, one behind the other */
    struct index value_index;
    struct index tensor_index;
    struct gguf **parts; /* the other parts of a split model */
    uint32_t n_parts;
};

/* Position in the file, and the key or tensor that an error names. */
struct reader {
    struct gguf *g;
    size_t pos;
    const char *kind; /* "key" or "tensor"; NULL in the header */
    uint64_t number;
    struct gguf_str name; /* empty until it has been read */
    struct error *err;
};

/* ---- errors ---- */

#define SHOWN 80 /* bytes of a file's name for a key or tensor that an error shows */

/* Makes a file's bytes safe for a log: bytes that are not printable ASCII become '?', a long name is cut. */
static const char *shown(char out[SHOWN], struct gguf_str s)
{
    size_t n = s.len < SHOWN - 4 ? s.len : SHOWN - 4;
    for (size_t i = 0; i < n; i++)
        out[i] = s.s[i] >= 32 && s.s[i] < 127 ? s.s[i] : '?';
    strcpy(out + n, n < s.len ? "..." : "");
    return out;
}

/* Returns the end of a long path, which tells files apart and leaves room for the message. */
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

static int index_open(struct index *x, size_t n_entries)
{
    size_t n_slots = 16;
    while (n_slots < 2 * n_entries)
        n_slots *= 2;
    x->slots = calloc(n_slots, sizeof *x->slots);
    if (!x->slots)
        return -ENOMEM;
    x->mask = n_slots - 1;
    x->seed = hash_seed();
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

/* Returns the slot of `name`, or the empty slot where it belongs. */
static uint32_t *index_slot(const struct index *x, const struct gguf *g, struct gguf_str name,
                            struct gguf_str (*name_of)(const struct gguf *, size_t))
{
    assert(x->slots); /* at least half of them are empty, so that the search ends */
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
    assert(r->pos <= r->g->size);
    return r->g->size - r->pos;
}

/* Bytes [at, at + n) of the file. */
static int read_at(const struct gguf *g, uint64_t at, void *out, size_t n, struct error *err)
{
    const char *path = short_path(g->path);
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(g->fd, (char *)out + done, n - done, (off_t)(at + done));
        if (got < 0 && errno != EINTR)
            return error_set(err, -EIO, "%s: cannot be read at byte %" PRIu64 ": %s", path, at + done,
                             strerror(errno));
        if (got == 0)
            return error_set(err, -EIO,
                             "%s: was cut short while it was read: it had %zu bytes and ends at %" PRIu64,
                             path, g->size, at + done);
        done += got > 0 ? (size_t)got : 0;
    }
    return 0;
}

static int cut_off(const struct reader *r, const char *what, uint64_t need)
{
    return fail(r, -EBADMSG, "cut off: %s takes %" PRIu64 " bytes at offset %zu, the file has %zu", what,
                need, r->pos, r->g->size);
}

/* Reads on from n_read to `to`, for which there are addresses. */
static int read_metadata(struct gguf *g, size_t to, struct error *err)
{
    if (mprotect(g->reserved, to, PROT_READ | PROT_WRITE) < 0)
        return error_set(err, -ENOMEM, "%s: out of memory", short_path(g->path));
    int rc = read_at(g, g->n_read, g->reserved + g->n_read, to - g->n_read, err);
    if (rc == 0)
        g->n_read = to;
    return rc;
}

/* The next n bytes, which the file has, are in memory afterwards. */
static int need(struct reader *r, size_t n)
{
    size_t end = r->pos + n, ahead = end + READ_AHEAD, most = r->g->n_reserved;
    if (end <= r->g->n_read)
        return 0;
    if (end > most)
        return fail(r, -ENOTSUP, "metadata of more than %zu MiB is not supported", MAX_METADATA >> 20);
    return read_metadata(r->g, ahead < most ? ahead : most, r->err);
}

static int take(struct reader *r, void *out, size_t n, const char *what)
{
    if (n > left(r))
        return cut_off(r, what, n);
    int rc = need(r, n);
    if (rc < 0)
        return rc;
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
    if ((rc = need(r, len)) < 0)
        return rc;
    *out = (struct gguf_str){(const char *)r->g->bytes + r->pos, len};
    r->pos += len;
    return 0;
}

/* Reads the name of a key or tensor. It has no zero byte, as look-ups are by C string. */
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
static const uint8_t type_sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8}; /* bytes; 0: varies */

const char *gguf_type_name(uint32_t type)
{
    return type <= GGUF_F64 ? type_names[type] : "?";
}

static int read_strings(struct reader *r, uint64_t n)
{
    if (n > left(r) / 8) /* a string has a length of 8 bytes at least */
        return fail(r, -EBADMSG,
                    "cut off or broken: %" PRIu64 " strings are declared, the rest of the file has %zu bytes",
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
    assert(type < sizeof type_sizes && type_sizes[type]);
    if (n > left(r) / type_sizes[type])
        return fail(r, -EBADMSG,
                    "cut off or broken: %" PRIu64
                    " items of type %s are declared, the rest of the file has %zu bytes",
                    n, type_names[type], left(r));
    size_t size = n * type_sizes[type];
    int rc = need(r, size);
    if (rc < 0)
        return rc;
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

/* Refuses a count of keys or tensors that the rest of the file cannot hold, before memory is taken for it. */
static int check_count(const struct reader *r, uint64_t n, const char *what, size_t min_size)
{
    if (n > left(r) / min_size || n >= UINT32_MAX)
        return fail(r, -EBADMSG, "%" PRIu64 " %s are declared, %zu bytes cannot hold them", n, what, left(r));
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

/* Computes the size from the shape and the type, which have been read. Every product is checked, as later
 * reads trust the size. */
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

/* A tensor's place in the data section. They are sorted by offset to find overlap. */
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
    if (t->type == QUANT_NVFP4_SCALED)
        return fail(r, -EBADMSG, "%u is no weight type", t->type);
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

/* Sets the tensors' data. Each must lie in the file and behind the one before it. The data section begins at
 * the next aligned position behind the tensor table, which ends at r->pos. */
static int place_tensors(struct reader *r, struct gguf *g, struct extent *extents)
{
    size_t start = r->pos + (-r->pos & (g->alignment - 1)); /* a file's size is far from overflow */
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
        t->offset = start + e->offset;
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

/* Names what is often found in the place of a model. */
static int refuse_other(struct reader *r)
{
    static const struct {
        size_t at;
        const char *bytes, *words;
    } others[] = {
        {0, "version https://git-lfs", "it is a pointer of Git LFS; `git lfs pull` fetches the file"},
        {8, "{\"", "it looks like safetensors; llama.cpp's convert_hf_to_gguf.py makes a GGUF of it"},
        {0, "<", "it looks like a web page; was a link to the page downloaded, not to the file?"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        size_t n = strlen(others[i].bytes);
        if (r->g->n_read >= others[i].at + n && !memcmp(r->g->bytes + others[i].at, others[i].bytes, n))
            return fail(r, -EBADMSG, "not a GGUF file: %s", others[i].words);
    }
    return fail(r, -EBADMSG, "not a GGUF file: it does not begin with \"GGUF\"");
}

static int read_header(struct reader *r, struct gguf *g, uint64_t *n_tensors, uint64_t *n_values)
{
    if (g->size == 0)
        return fail(r, -EBADMSG, "the file is empty");
    char magic[4] = {0};
    int rc = take(r, magic, sizeof magic, "the magic number");
    if (rc == 0 && memcmp(magic, "GGUF", sizeof magic) != 0)
        return refuse_other(r);
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

static int read_file(struct gguf *g, struct error *err)
{
    struct reader r = {.g = g, .err = err};
    uint64_t n_tensors = 0, n_values = 0;
    int rc = read_header(&r, g, &n_tensors, &n_values);
    if (rc < 0 || (rc = read_values(&r, g, n_values)) < 0 || (rc = check_alignment(&r, g)) < 0)
        return rc;
    return read_tensor_table(&r, g, n_tensors);
}

/* Addresses for as much metadata as there may be; memory comes with read_metadata(). */
static int reserve(struct gguf *g, struct error *err)
{
    size_t most = g->size < MAX_METADATA ? g->size : MAX_METADATA;
    void *p = mmap(NULL, most, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return error_set(err, -ENOMEM, "%s: out of memory", short_path(g->path));
    g->bytes = g->reserved = p;
    g->n_reserved = most;
    return 0;
}

static int open_file(struct gguf *g, struct error *err)
{
    const char *path = short_path(g->path);
    struct stat st;
    /* O_NONBLOCK: a FIFO must not hang the start; it is refused below. */
    g->fd = open(g->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (g->fd < 0 || fstat(g->fd, &st) < 0)
        return error_set(err, -errno, "%s: cannot open: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return error_set(err, -EISDIR, "%s: is a directory, expected a GGUF file", path);
    if (!S_ISREG(st.st_mode))
        return error_set(err, -EINVAL, "%s: is not a regular file", path);
    g->size = (size_t)st.st_size;
    g->changed = st.st_mtim;
    return g->size ? reserve(g, err) : 0;
}

/* Gives back what was reserved for more metadata than there is. */
static void trim(struct gguf *g)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), used = (g->n_read + page - 1) / page * page;
    if (used < g->n_reserved) {
        munmap(g->reserved + used, g->n_reserved - used);
        g->n_reserved = used;
    }
}

int gguf_open_one(struct gguf **out, const char *path, const void *bytes, size_t size, struct error *err)
{
    struct gguf *g = calloc(1, sizeof *g);
    if (!g || !(g->path = strdup(path))) {
        free(g);
        return error_set(err, -ENOMEM, "%s: out of memory", short_path(path));
    }
    g->fd = -1;
    g->bytes = bytes;
    g->size = g->n_read = size;
    int rc = bytes ? 0 : open_file(g, err);
    if (rc == 0)
        rc = read_file(g, err);
    if (rc < 0) {
        gguf_close(g);
        return rc;
    }
    trim(g);
    *out = g;
    return 0;
}

int gguf_adopt(struct gguf *g, struct gguf **parts, uint32_t n_parts, struct error *err)
{
    size_t n = g->n_tensors, i = g->n_tensors;
    g->parts = parts;
    g->n_parts = n_parts;
    for (uint32_t p = 0; p < n_parts; p++)
        n += parts[p]->n_tensors;
    struct gguf_tensor *all = realloc(g->tensors, (n ? n : 1) * sizeof *all);
    g->tensors = all ? all : g->tensors;
    free(g->tensor_index.slots);
    g->tensor_index.slots = NULL;
    if (!all || index_open(&g->tensor_index, n) < 0)
        return error_set(err, -ENOMEM, "%s: out of memory", short_path(g->path));
    for (uint32_t p = 0; p < n_parts; p++)
        for (size_t k = 0; k < parts[p]->n_tensors; k++) {
            all[i] = parts[p]->tensors[k];
            all[i++].part = p + 1;
        }
    for (g->n_tensors = 0; g->n_tensors < n; g->n_tensors++) {
        uint32_t *slot = index_slot(&g->tensor_index, g, tensor_name(g, g->n_tensors), tensor_name);
        if (*slot)
            return error_set(err, -EBADMSG, "%s: tensor '%s' is in two parts", short_path(g->path),
                             all[g->n_tensors].name);
        *slot = (uint32_t)g->n_tensors + 1;
    }
    return 0;
}

void gguf_release(struct gguf *g)
{
    for (uint32_t i = 0; i < g->n_parts; i++)
        gguf_release(g->parts[i]);
    if (g->fd >= 0)
        close(g->fd);
    if (g->reserved)
        munmap(g->reserved, g->n_reserved);
    free(g->value_index.slots);
    free(g->values);
    g->fd = -1;
    g->bytes = g->reserved = NULL;
    g->n_read = g->n_reserved = g->n_values = 0;
    g->value_index.slots = NULL;
    g->values = NULL;
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    gguf_release(g);
    for (uint32_t i = 0; i < g->n_parts; i++)
        gguf_close(g->parts[i]);
    free(g->parts);
    free(g->tensor_index.slots);
    free(g->tensors);
    free(g->names);
    free(g->path);
    free(g);
}

int gguf_read(const struct gguf *g, const struct gguf_tensor *t, size_t at, void *out, size_t n,
              struct error *err)
{
    struct error why = {0};
    assert(t->part <= g->n_parts);
    g = t->part ? g->parts[t->part - 1] : g;
    assert(g->bytes && at <= t->size && n <= t->size - at);
    if (g->fd < 0) {
        memcpy(out, g->bytes + t->offset + at, n);
        return 0;
    }
    int rc = read_at(g, t->offset + at, out, n, &why);
    return rc < 0 ? error_set(err, rc, "%s (tensor %s)", why.text, t->name) : 0;
}

int gguf_check_unchanged(const struct gguf *g, struct error *err)
{
    struct stat st;
    for (uint32_t i = 0; i < g->n_parts; i++) {
        int rc = gguf_check_unchanged(g->parts[i], err);
        if (rc < 0)
            return rc;
    }
    if (g->fd < 0)
        return 0;
    if (fstat(g->fd, &st) < 0)
        return error_set(err, -EIO, "%s: %s", short_path(g->path), strerror(errno));
    if ((size_t)st.st_size == g->size && st.st_mtim.tv_sec == g->changed.tv_sec &&
        st.st_mtim.tv_nsec == g->changed.tv_nsec)
        return 0;
    return error_set(err, -EIO, "%s: was changed while it was read", short_path(g->path));
}

/* ---- accessors ---- */

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
    size_t size = g->size;
    for (uint32_t i = 0; i < g->n_parts; i++)
        size += g->parts[i]->size;
    return size;
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
    if (g->n_values == 0)
        return NULL;
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
