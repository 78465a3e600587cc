/* memory.c - device memory and pinned memory: both are memory of the process, filled with NaNs. */
#include "calls.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGNMENT 512
#define FRESH     0xFF /* not a number, in every float type */

static size_t page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Memory that ends, up to its alignment, at a page which nothing may touch, and begins behind one. */
static char *guarded_open(size_t bytes)
{
    size_t page = page_size(), room = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    size_t inner = (room + page - 1) / page * page;
    char *base = mmap(NULL, inner + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    if (mprotect(base + page, inner, PROT_READ | PROT_WRITE) < 0) {
        munmap(base, inner + 2 * page);
        return NULL;
    }
    return base + page + inner - room;
}

static void guarded_close(char *memory, size_t bytes)
{
    size_t page = page_size(), room = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    size_t inner = (room + page - 1) / page * page;
    munmap(memory + room - inner - page, inner + 2 * page);
}

struct buffer *buffer_of(const void *p, size_t bytes)
{
    uintptr_t at = (uintptr_t)p;
    for (struct buffer *b = emulated.buffers; b; b = b->next)
        if (at >= (uintptr_t)b->memory && at - (uintptr_t)b->memory < b->bytes &&
            bytes <= b->bytes - (at - (uintptr_t)b->memory))
            return b;
    return NULL;
}

static int buffer_open(char **memory, size_t bytes, bool is_host, bool is_mapped)
{
    static unsigned number;
    int result = fault_due(is_host ? FAULT_HOST_ALLOC : FAULT_ALLOC);
    if (result || !bytes)
        return result ? result : RESULT_INVALID_VALUE;
    if (!is_host && bytes > emulated.settings.memory_bytes - emulated.used_bytes)
        return CUDA_OUT_OF_MEMORY;
    struct buffer *b = calloc(1, sizeof *b);
    if (b)
        *b = (struct buffer){.memory = guarded_open(bytes), .bytes = bytes, .is_host = is_host};
    if (!b || !b->memory) {
        free(b);
        return CUDA_OUT_OF_MEMORY;
    }
    memset(b->memory, FRESH, bytes);
    b->is_mapped = is_mapped;
    snprintf(b->name, sizeof b->name, "%s memory %u", is_host ? "pinned" : "device", ++number);
    b->next = emulated.buffers;
    emulated.buffers = b;
    emulated.used_bytes += is_host ? 0 : bytes;
    if (is_mapped && is_host)
        host_watch_pinned(b);
    *memory = b->memory;
    return CUDA_SUCCESS;
}

static int buffer_close(const void *memory, bool is_host)
{
    for (struct buffer **at = &emulated.buffers; *at; at = &(*at)->next) {
        struct buffer *b = *at;
        if (b->memory != memory || b->is_host != is_host)
            continue;
        *at = b->next;
        emulated.used_bytes -= is_host ? 0 : b->bytes;
        guarded_close(b->memory, b->bytes);
        free(b);
        return CUDA_SUCCESS;
    }
    return RESULT_INVALID_VALUE;
}

static void drop_late_copies(bool arrive)
{
    while (emulated.late) {
        struct late_copy *c = emulated.late;
        emulated.late = c->next;
        if (arrive)
            memcpy(c->to, c->data, c->bytes);
        free(c);
    }
}

void late_copies_arrive(void)
{
    drop_late_copies(true);
}

void buffers_close(void)
{
    drop_late_copies(false);
    while (emulated.buffers)
        buffer_close(emulated.buffers->memory, emulated.buffers->is_host);
}

void buffers_map(struct simt_machine *m)
{
    simt_unmap_all(m);
    for (const struct buffer *b = emulated.buffers; b; b = b->next)
        if (!b->is_host || b->is_mapped)
            simt_map(m, b->memory, b->bytes, b->is_host ? SIMT_MAP_HOST : 0, b->name);
}

int cuMemGetInfo_v2(size_t *available, size_t *total)
{
    int result = call_begin();
    if (result)
        return result;
    *total = emulated.settings.memory_bytes;
    *available = *total - emulated.used_bytes;
    return call_end(CUDA_SUCCESS);
}

int cuMemAlloc_v2(uint64_t *memory, size_t bytes)
{
    char *p = NULL;
    int result = call_begin_alone("cuMemAlloc");
    if (result)
        return result;
    result = buffer_open(&p, bytes, false, true);
    *memory = (uintptr_t)p;
    return call_end(result);
}

int cuMemFree_v2(uint64_t memory)
{
    int result = call_begin_alone("cuMemFree");
    if (result)
        return result;
    late_copies_arrive();
    return call_end(memory ? buffer_close((void *)(uintptr_t)memory, false) : CUDA_SUCCESS);
}

int cuMemHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    char *p = NULL;
    int result = call_begin_alone("cuMemHostAlloc");
    if (result)
        return result;
    result = buffer_open(&p, bytes, true, flags & CUDA_HOST_MAPPED);
    *memory = p;
    return call_end(result);
}

int cuMemFreeHost(void *memory)
{
    int result = call_begin_alone("cuMemFreeHost");
    return result ? result : call_end(buffer_close(memory, true));
}

int cuMemHostGetDevicePointer_v2(uint64_t *device_address, void *memory, unsigned flags)
{
    int result = call_begin();
    if (result)
        return result;
    const struct buffer *b = buffer_of(memory, 1);
    if (flags || !b || !b->is_host || !b->is_mapped)
        return call_end(RESULT_INVALID_VALUE);
    *device_address = (uintptr_t)memory;
    return call_end(CUDA_SUCCESS);
}

int cuPointerGetAttribute(void *value, int attribute, uint64_t address)
{
    int result = call_begin();
    if (result)
        return result;
    const struct buffer *b = buffer_of((void *)(uintptr_t)address, 1);
    if (!b || attribute != CUDA_POINTER_IS_MANAGED)
        return call_end(RESULT_INVALID_VALUE);
    *(uint32_t *)value = b->is_host && emulated.settings.pins_managed;
    return call_end(CUDA_SUCCESS);
}

/* Device memory, all of it in one buffer. */
static bool is_device(uint64_t address, size_t bytes)
{
    const struct buffer *b = buffer_of((void *)(uintptr_t)address, bytes);
    return b && !b->is_host;
}

/* "The function will return once the pageable buffer has been copied to the staging memory, but the DMA to
 * final destination may not have completed": here it completes as late as it may. */
static int copy_late(void *to, const void *from, size_t bytes)
{
    struct late_copy *c = malloc(sizeof *c + bytes), **last = &emulated.late;
    if (!c)
        return CUDA_OUT_OF_MEMORY;
    *c = (struct late_copy){.to = to, .bytes = bytes};
    memcpy(c->data, from, bytes);
    memset(to, FRESH, bytes);
    while (*last)
        last = &(*last)->next;
    *last = c;
    return CUDA_SUCCESS;
}

int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes)
{
    int result = call_begin_alone("cuMemcpyHtoD");
    if (result)
        return result;
    if (!is_device(to, bytes))
        return call_end(RESULT_INVALID_VALUE);
    late_copies_arrive();
    const struct buffer *pinned = buffer_of(from, bytes);
    if (!pinned || !pinned->is_host)
        return call_end(copy_late((void *)(uintptr_t)to, from, bytes));
    memcpy((void *)(uintptr_t)to, from, bytes);
    return call_end(CUDA_SUCCESS);
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes)
{
    int result = call_begin_alone("cuMemcpyDtoH");
    if (result)
        return result;
    if (!is_device(from, bytes))
        return call_end(RESULT_INVALID_VALUE);
    late_copies_arrive();
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return call_end(CUDA_SUCCESS);
}

/* A copy whose host side is not pinned makes the driver wait for the stream: here it needs that no grid is
 * there for good. */
static int add_copy(const char *call, void *to, const void *from, size_t bytes, const void *host,
                    uint64_t device, void *stream)
{
    int result = call_begin();
    if (result)
        return result;
    const struct buffer *b = buffer_of(host, bytes);
    if (!b || !b->is_host) {
        call_end(0);
        result = call_begin_alone(call);
        if (result)
            return result;
    }
    struct stream *s = object_check(stream, OBJECT_STREAM);
    if (!s)
        return call_end(RESULT_INVALID_HANDLE);
    if (!is_device(device, bytes))
        return call_end(RESULT_INVALID_VALUE);
    result = stream_add(s, &(struct work){.kind = WORK_COPY, .to = to, .from = from, .bytes = bytes});
    while ((!b || !b->is_host) && !s->capture && !result && !stream_idle(s)) {
        pthread_cond_wait(&emulated.changed, &emulated.lock);
        result = emulated.sticky;
    }
    return call_end(result);
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream)
{
    return add_copy("cuMemcpyHtoDAsync of memory that is not pinned", (void *)(uintptr_t)to, from, bytes,
                    from, to, stream);
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream)
{
    return add_copy("cuMemcpyDtoHAsync to memory that is not pinned", to, (const void *)(uintptr_t)from,
                    bytes, to, from, stream);
}

int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void *stream)
{
    int result = call_begin();
    if (result)
        return result;
    struct stream *s = object_check(stream, OBJECT_STREAM);
    if (!s)
        return call_end(RESULT_INVALID_HANDLE);
    if (!buffer_of((void *)(uintptr_t)to, bytes))
        return call_end(RESULT_INVALID_VALUE);
    return call_end(stream_add(
        s, &(struct work){.kind = WORK_FILL, .to = (char *)(uintptr_t)to, .value = value, .bytes = bytes}));
}
